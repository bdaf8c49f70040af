"""benchmarks/accuracy.py without a GPU: what the tools print, the order of the turns, the targets, the page."""

import pytest

from benchmarks import accuracy_ncu, accuracy_nvbench, accuracy_page
from benchmarks.accuracy_record import Pairing
from benchmarks.accuracy_subjects import Subject
from benchmarks.accuracy_tools import Theirs, Tool, turns

HEAD = '"ID","Process ID","Kernel Name","gpu__time_duration.sum"'


def pairing(ours_us, theirs_us, **other):
    fields = {"op": "add", "n": 4096, "library": "cupy", "tool": "nvbench", "clock": "cold"} | other
    return Pairing(ours_s=[x * 1e-6 for x in ours_us], theirs_s=[x * 1e-6 for x in theirs_us], **fields)


def test_rows_of_ncu_are_told_apart_by_the_empty_kernel():
    """Two launches of a library call that takes two kernels, then two of one that takes one."""
    names = ["nothing", "gemm", "reduce", "gemm", "reduce", "nothing()", "add(float)", "add(float)"]
    times = ["1,300", "2,000", "500", "2,100", "500", "1,280", "1,000", "1,010"]
    lines = ["==PROF== Connected", HEAD, '"","","","ns"']
    lines += [f'"{i}","7","{name}","{t}"' for i, (name, t) in enumerate(zip(names, times, strict=True))]
    rows = accuracy_ncu.durations(lines)
    found = accuracy_ncu.per_launch(rows, launches=2)
    assert [[round(s * 1e9) for s in launches] for launches in found] == [[2500, 2600], [1000, 1010]]
    assert accuracy_ncu.empty_s(rows) == pytest.approx(1.29e-6)


def test_a_launch_that_is_missing_is_not_guessed():
    with pytest.raises(ValueError, match="not 2 launches"):
        accuracy_ncu.per_launch([("nothing", 1e-6), ("add", 1e-6)], launches=2)


def state(number, *, skipped=False, **tags):
    summaries = [
        {"tag": tag, "data": [{"name": "value", "type": "float64", "value": str(value)}]}
        for tag, value in tags.items()
    ]
    axis = {"name": "number", "type": "int64", "value": str(number)}
    return {"axis_values": [axis], "is_skipped": skipped, "summaries": summaries}


def test_nvbench_stands_beside_the_readings_around_it():
    cold = {"nv/cold/time/gpu/mean": 9e-6, "nv/cold/time/gpu/median": 8e-6, "nv/batch/time/gpu/mean": 5e-6}
    states = [state(0, **cold), state(1, skipped=True), state(2, **cold)]
    before, after = {"cold": 8e-6, "hot": 4e-6}, {"cold": 1e-5, "hot": 6e-6}
    besides = [accuracy_nvbench.Beside("add", 4096, number, before, after) for number in range(3)]
    found = {one.clock: one for one in accuracy_nvbench.pairings(besides, {"benchmarks": [{"states": states}]})}
    assert found["cold"].theirs_s == [
        8e-6,
        8e-6,
    ]  # the median where there is one; a skipped state gives nothing
    assert found["cold"].ours_s == pytest.approx([9e-6, 9e-6])
    assert (found["hot"].tool, found["hot"].theirs_s) == ("nvbench, batch", [5e-6, 5e-6])


def test_each_tool_stands_between_two_readings_and_every_second_turn_is_reversed():
    order = []

    def tool(name, seconds):
        def measure(subject):
            order.append(name)
            return Theirs(seconds, 1e-6)

        return measure

    def read(subject):
        order.append("gpubench")
        return {"hot": 1e-5 * len(order), "wall": 2e-5}

    one, two = tool("one", 1e-5), tool("two", 2e-5)
    tools = [
        Tool("one", "hot", "cupy", True, one), Tool("one", "wall", "cupy", False, one),
        Tool("two", "hot", "cupy", True, two),
    ]  # fmt: skip
    found = turns(Subject("add", 4096, "cupy", lambda: None, None), tools, 2, read)
    assert order == ["gpubench", "one", "gpubench", "two", "gpubench", "two", "gpubench", "one", "gpubench"]
    assert [(row.tool, row.clock, row.judged) for row in found] == [
        ("one", "hot", True), ("one", "wall", False), ("two", "hot", True)
    ]  # fmt: skip
    assert found[0].ours_s == pytest.approx([2e-5, 8e-5])  # the mean of both neighbours
    assert found[0].host_s == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs", "tool", "judged", "agrees"),
    [
        (100, 101.9, "nvbench", True, True), (100, 103, "nvbench", True, False), (10, 5, "nvbench", True, None),
        (10, 9.6, "ncu, kept", True, True), (2, 1.6, "ncu, kept", True, True), (2, 1.4, "ncu, kept", True, False),
        (100, 50, "ncu, kept", True, None), (100, 50, "nvbench", False, None),
    ],
)  # fmt: skip
def test_the_targets(ours, theirs, tool, judged, agrees):
    assert pairing([ours], [theirs], tool=tool, judged=judged).agrees is agrees


def test_the_page_is_fresh():
    """If the difference is wanted: python benchmarks/accuracy.py"""
    text = accuracy_page.PAGE.read_text(encoding="utf-8")
    assert accuracy_page.renew(text) == text
