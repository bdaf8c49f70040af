"""Samples that count, estimates, labels; numbers that cannot be true, the parts of a call, peaks."""

import csv
import io
import json
import math
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse, means
from gpubench.analysis.findings import find_waiting, findings
from gpubench.analysis.hybrid import hybrids
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.thresholds import amortizations
from gpubench.base.plugins.sections import TOOLS
from gpubench.curves import stats
from gpubench.report import draw_report, render
from gpubench.report.charts import chart_cases
from gpubench.result.run import Measurement, Parts, Peak, SessionFailure, SessionRecord, Settings, Theoretical
from tests.examples import examples
from tests.unit.report.builders import CPU, GPU, QUIET, SOFTWARE, case, measured, run_of
from tests.unit.report.parts import CALL, LARGE, SHARED, SUM_S
from tests.unit.report.samples import full_run, hybrid_run

ONE = measured(case(), 1e-3)
ON_GPU = measured(case(n=1000, device="cupy:0"), 1e-3)  # 2 TFLOP/s
CARD = replace(GPU, gpu_id="GPU-a")
VULKAN = replace(GPU, id="wgpu:0", backend="wgpu", api="vulkan", gpu_id="GPU-a")
LINK = Peak(device_id="cupy:0", upload_bytes_per_s=5e10, download_bytes_per_s=4e10)


def row_of(*outcomes, peaks=None, session=None, **more):
    """The first case of a run; `session`: what each of its sessions says besides."""
    run = run_of(outcomes, **more)
    fields = {**({} if peaks is None else {"peaks": peaks}), **(session or {})}
    return analyse(replace(run, sessions=[replace(record, **fields) for record in run.sessions])).cases[0]


def with_blocks(outcome, **fields):
    return replace(outcome, blocks=[replace(block, **fields) for block in outcome.blocks])


def flops(rate, device="cupy:0", **more):
    return [Peak(device_id=device, dtype="float32", flops_per_s=rate, **more)]


def vendor(rate):
    return replace(GPU, theoretical=Theoretical(flops_per_s={"float32": rate}))


def memory(rate=1e9):
    return [Peak(device_id="cupy:0", bytes_per_s=rate)]


def relu(n, seconds, **more):
    return measured(case("relu", n, device="cupy:0", **more), seconds)


def in_blocks(levels):
    """A case of 1 ms whose sessions have a block at each of these levels."""
    what = measured(case(), 1e-3, sessions=len(levels))
    blocks = [
        replace(block, round=i, wall_s=[value * level for value in block.wall_s])
        for block, ours in zip(what.blocks, levels, strict=True)
        for i, level in enumerate(ours)
    ]
    return replace(what, blocks=blocks)


def scattered(width, noisy):
    """The ten samples of one block, whose quartiles lie 2 x `width` of the median apart, in these sessions."""
    wall_s = [1.0, *[1e-3 * (1 - width)] * 5, *[1e-3 * (1 + width)] * 5]
    return replace(ONE, blocks=[replace(b, wall_s=wall_s) if b.session in noisy else b for b in ONE.blocks])


def carried(seconds, regime="transfer-always", *, n=2**20, calls=None, device="cupy:0", **fields):
    """relu of n elements: as many bytes up as down, in one iteration of `seconds`."""
    what = replace(case("relu", n, device=device), regime=regime, calls=calls)
    return replace(measured(what, seconds / (calls or 1)), bytes=8 * n, output_bytes=4 * n, **fields)


def parts(upload_s, download_s):
    return [Parts(session=0, upload_s=[upload_s] * 5, download_s=[download_s] * 5)]


def upload(seconds):
    what = replace(case("upload", 2**26, device="cupy:0"), group="overhead")
    return replace(measured(what, seconds), bytes=2**26)


def clock_step(step_s):
    workers = run_of([]).sessions[0].workers
    return {"workers": [replace(worker, clock_step_s=step_s) for worker in workers]}


LABELS = [
    # Noise is how far blocks lie apart in most sessions, however quiet the samples inside each are. How far sessions
    # differ stands in the interval, not in a label.
    ("ok", in_blocks([[1.0, 1.0, 1.0, 1.0]]), {}), ("noisy", in_blocks([[0.9, 1.1, 0.95, 1.05]]), {}),
    ("unstable", in_blocks([[0.7, 1.3, 0.8, 1.2]]), {}), ("ok", in_blocks([[0.7, 1.3, 0.8, 1.2], [1.0] * 4, [1.0] * 4]), {}),
    ("noisy", in_blocks([[0.9, 1.1, 0.95, 1.05], [0.9, 1.1, 0.95, 1.05], [1.0] * 4]), {}), ("ok", in_blocks([[0.7], [1.3], [1.0]]), {}),
    # Of few samples the quartiles lie closer together than more samples would show, by 10 / 8.85.
    *((label, scattered(width, noisy), {}) for noisy in ((0, 1, 2), (0, 1)) for width, label in (
        (0.04, "ok"), (0.0442, "ok"), (0.0443, "noisy"), (0.08, "noisy"), (0.1106, "noisy"), (0.1107, "unstable"))),
    # Samples that are too short, and load of others
    ("too-short", measured(case(), 1e-5, repeat=1), {}), ("ok", measured(case(), 1e-5, repeat=10_000), {}), ("ok", measured(case(), 1e-3, repeat=10), {}),
    ("too-short", replace(ONE, blocks=[replace(b, repeat=1, wall_s=[5e-4] * 11) if b.session == 2 else b for b in ONE.blocks]), {}),  # the shortest session
    ("ok", measured(case(regime="transfer-once", device="cupy:0"), 2e-4, repeat=10), {}),  # a sample is all its launches
    ("too-short", measured(case(regime="transfer-once", device="cupy:0"), 5e-5, repeat=10), {}),
    *((label, ONE, {"session": {field: share}}) for field in ("foreign_cpu_share", "steal_share")
      for share, label in ((0.2, "contended"), (0.051, "contended"), (0.05, "ok"), (None, "ok"))),
    ("software", measured(case(device="wgpu:0"), 1e-3), {"devices": (SOFTWARE,)}),
    ("software", measured(case(device="wgpu:0"), 1e-5, factors=[0.8] * 5 + [1.2] * 5, repeat=1),
     {"devices": (SOFTWARE,), "session": {"foreign_cpu_share": 0.5}}),  # the gravest of four
    # Peaks of computing: the lower of what was measured and what the vendor says, of the hardware and of no library
    ("implausible", ON_GPU, {"peaks": flops(1.5e12)}), ("ok", ON_GPU, {"peaks": flops(1.9e12)}),
    ("implausible", ON_GPU, {"devices": (CPU, vendor(1e12))}), ("implausible", ON_GPU, {"devices": (CPU, vendor(1.7e12)), "peaks": flops(5e12)}),
    ("implausible", ON_GPU, {"devices": (CPU, vendor(5e12)), "peaks": flops(1.7e12)}),
    ("implausible", measured(case(n=1000, device="wgpu:0"), 1e-3), {"devices": (CPU, CARD, VULKAN), "peaks": flops(1.5e12)}),
    ("ok", measured(case(n=1000, device="wgpu:0"), 1e-3), {"devices": (CPU, CARD, replace(VULKAN, gpu_id="GPU-b")), "peaks": flops(1.5e12)}),
    # The multiply-adds of one backend are no peak of tensor cores in another.
    ("implausible", measured(case(n=1000, device="wgpu:0"), 1e-3), {"devices": (CPU, CARD, VULKAN), "peaks": flops(1.5e12, "wgpu:0", own=True)}),
    ("ok", ON_GPU, {"devices": (CPU, CARD, VULKAN), "peaks": flops(1.5e12, "wgpu:0", own=True)}),
    # What a CPU reached while others used it is no peak.
    *((label, measured(case(n=1000), 1e-3), {"peaks": flops(0.9e12, "numpy:0"), "session": {"foreign_cpu_share": share}})
      for share, label in ((None, "implausible"), (0.02, "implausible"), (0.5, "contended"))),
    ("ok", ON_GPU, {"peaks": [Peak(device_id="cupy:0", dtype="float32", reason="no time"), Peak(device_id="cupy:0", reason="x")]}),
    # Tensor cores do what no float32 unit does.
    ("ok", measured(replace(ON_GPU.case, variant="tf32"), 1e-3), {"devices": (CPU, vendor(1e12)), "peaks": flops(1e12)}),
    # Peaks of memory, above four caches of the device: 192 MiB
    ("implausible", relu(2**24, 1e-3), {"devices": (CPU, replace(GPU, cache_bytes=40 * 2**20)), "peaks": memory()}),
    ("ok", relu(2**24, 1e-3), {"peaks": memory()}), ("ok", relu(1000, 1e-6), {"peaks": memory()}), ("implausible", relu(2**30, 1e-3), {"peaks": memory()}),
    # Links: both ways one after the other, at most at the rate of the better direction; parts have each their own
    *((label, carried(2**23 / 5e10 / share, regime, calls=calls), {"peaks": [LINK]}) for share, label in ((1.2, "implausible"), (1.05, "ok"))
      for regime, calls in (("transfer-always", None), ("transfer-once", 10))),
    ("ok", carried(1e-3, parts=parts(2**22 / 5e10, 2**22 / 4e10)), {"peaks": [LINK]}),
    ("implausible", carried(1e-3, parts=parts(2**22 / 6e10, 2**22 / 4e10)), {"peaks": [LINK]}),
    ("implausible", carried(1e-3, parts=parts(2**22 / 5e10, 2**22 / 5e10)), {"peaks": [LINK]}),
    # Where the file does not say what came back, both directions share one time: 8 MiB in 80 us are 105 GB/s.
    ("implausible", replace(carried(1e-3, parts=parts(4e-5, 4e-5)), output_bytes=None), {"peaks": [LINK]}),
    ("too-short", carried(1e-9, n=2**16), {"peaks": [LINK]}), ("ok", carried(1e-6, "resident"), {"peaks": [LINK]}),
    ("implausible", carried(1e-4, device="wgpu:0"), {"devices": (CPU, CARD, VULKAN), "peaks": [LINK]}),
    ("implausible", upload(2**26 / 7e10), {"peaks": [LINK]}), ("ok", upload(2**26 / 5e10), {"peaks": [LINK]}),
    # Clocks: a hundred steps, an empty launch, a device time surely above the wall time; a few percent are chance
    ("implausible", measured(case(), 1e-3, repeat=1), {"session": clock_step(1.1e-5)}),
    ("ok", measured(case(), 1e-3, repeat=1), {"session": clock_step(0.9e-5)}),
    *((label, measured(case(device="cupy:0"), s, parts=Parts(session=0, single_s=[s])), {}) for s, label in ((3.4e-6, "implausible"), (3.6e-6, "ok"))),
    *((label, with_blocks(measured(case(device="cupy:0"), 1e-3), device_hot_s=hot), {}) for hot, label in (
        ([1.2e-3, 1.3e-3], "implausible"), ([0.9e-3, 1.3e-3], "ok"), ([1.05e-3], "ok"))),
]  # fmt: skip


@pytest.mark.parametrize(("label", "outcome", "more"), LABELS, ids=map(str, range(len(LABELS))))
def test_labels(label, outcome, more):
    assert row_of(outcome, **more).label == label


def test_warm_up_and_superseded_sessions_and_sweeps_never_count():
    row = row_of(ONE)
    assert row.time.estimate == pytest.approx(1e-3)
    assert (row.sample_count, len(row.sessions), row.label) == (30, 3, "ok")
    run = run_of([ONE])
    superseded = [replace(s, superseded=s.index == 1) for s in run.sessions]
    assert list(analyse(replace(run, sessions=superseded)).cases[0].sessions) == [0, 2]
    known = replace(run, sessions=[SessionRecord(index=0, started_at="2026-01-02T03:04:05Z")])
    assert list(analyse(known).cases[0].sessions) == [0], "only the blocks know the others"
    assert analyse(replace(run_of([ONE], settings=Settings()), sessions=[])).cases[0].time is not None
    sweep = [replace(block, phase="sweep", wall_s=[9.0] * 11) for block in ONE.blocks]
    assert row_of(replace(ONE, blocks=[*ONE.blocks, *sweep])).time.high < 1.1e-3


def test_a_device_time_is_the_median_of_the_session_medians():
    """Not the median of all its samples: the session with the most of them would decide."""
    what = measured(case(device="cupy:0"), 1e-3, cold_s=1e-4, hot_s=1e-4)
    times = ([1e-4] * 3, [2e-4] * 3, [9e-4] * 9)
    clocks = [{"device_cold_s": cold, "device_hot_s": [t / 2 for t in cold]} for cold in times]
    blocks = [replace(block, **clock) for block, clock in zip(what.blocks, clocks, strict=True)]
    row = row_of(replace(what, blocks=blocks))
    assert (row.device_cold_s, row.device_hot_s) == (2e-4, 1e-4)


def test_blocks_are_the_observations():
    """Ten samples in one block are one of them; in four blocks, four, whatever their number of samples."""
    one, four = row_of(in_blocks([[1.0]])), row_of(in_blocks([[1.0] * 4]))
    prior = stats.prior_of(1e-3, 5e-6)
    assert math.log(one.time.high / one.time.estimate) == pytest.approx(1.96 * math.hypot(*prior), rel=5e-3)
    assert four.time.high < one.time.high
    assert four.time.high == pytest.approx(stats.run_interval([[1e-3] * 4], prior).high)
    assert (one.time.n, four.time.n, four.time.median_s) == (10, 40, pytest.approx(1e-3))
    assert row_of(measured(case(), 1e-3, sessions=5), sessions=5).time.kind == "sessions"


def test_a_launch_that_costs_little_more_than_an_empty_one_has_a_wider_prior():
    """An empty launch of the builder's devices takes 5 us."""
    found = [row_of(measured(case(), seconds, sessions=1)) for seconds in (1e-6, 2e-5, 1e-3)]
    assert [tuple(row.prior) for row in found] == [(0.15, 0.1), (0.15, 0.05), (0.08, 0.05)]
    widths = [row.time.high / row.time.low for row in found]
    assert widths == sorted(widths, reverse=True)


def test_enough_unthrottled_samples_leave_the_throttled_ones_out():
    found = analyse(run_of([measured(case(), 1e-3, discarded={"2": "throttled"})]))
    assert (found.cases[0].label, found.cases[0].sample_count) == ("throttled", 30)
    assert [finding.severity for finding in findings(found) if finding.code == "throttled"] == ["warning"]
    run = run_of([measured(case(), 1e-3, factors=[*QUIET, 5.0], discarded={"11": "throttled"})])
    row = analyse(run).cases[0]
    assert (row.label, row.sample_count) == ("ok", 30)
    (reported,) = [finding for finding in findings(analyse(run)) if finding.code == "throttled"]
    assert (reported.severity, reported.ids, "set aside" in reported.message) == ("info", (case().id,), True)


def test_no_clock_is_told_of_devices_without_one_and_the_power_cap_is_no_label():
    outcome = measured(case(device="cupy:0"), 1e-3)
    assert "no-device-clock" in row_of(outcome, devices=(replace(GPU, clock=None),)).findings
    assert "no-device-clock" not in row_of(outcome).findings
    capped = row_of(with_blocks(outcome, throttle=["sw_power_cap"]))
    assert (capped.label, capped.findings) == ("ok", ("power-cap",))


def in_order(count, step):
    return [1.0 + i * step for i in range(count)]


@pytest.mark.parametrize(("factors", "found"), [
    # Values that trend with order drift, in either direction, from 20 samples on.
    (in_order(20, 1e-3), ("drift",)), (in_order(20, -1e-3), ("drift",)), (in_order(19, 1e-3), ()), (in_order(20, 0.0), ()),
    # Only a first sample that is slower by more than a percent is slow.
    ((3.0, *QUIET), ("first-slow",)), ((1.001, *[1.0] * 12), ()),
    *(((first, *(1.0 + 1e-5 * (i % 3) for i in range(12))), found) for first, found in ((1.2, ("first-slow",)), (0.8, ()), (1.009, ()))),
    # Its modified z-score is above ten: 0.6745 (x - median) / MAD (Iglewicz and Hoaglin 1993); the median is 1, the MAD 1 %.
    *(((1 + z * 0.01 / 0.6745, 0.98, 0.99, 0.99, 1.0, 1.0, 1.01, 1.01, 1.02), found) for z, found in ((9.9, ()), (10.1, ("first-slow",)))),
])  # fmt: skip
def test_findings_of_the_order_of_samples(factors, found):
    assert row_of(measured(case(), 1e-3, factors=factors)).findings == found


# ---------------------------------------------------------------- a number that cannot be true takes part in nothing
QUEUED = "resident-queued@cupy:0"


def doubtful(run, case_id):
    """The run in which samples of this case are shorter than the clock can tell."""

    def spoiled(outcome):
        if outcome.id != case_id or not isinstance(outcome, Measurement):
            return outcome
        short = [[min(value, 1e-3) for value in block.wall_s] for block in outcome.blocks]
        both = zip(outcome.blocks, short, strict=True)
        return replace(outcome, blocks=[replace(block, repeat=1, wall_s=wall_s) for block, wall_s in both])

    workers = [replace(worker, clock_step_s=1.1e-5) for worker in run.sessions[0].workers]
    sessions = [replace(session, workers=workers) for session in run.sessions]
    return replace(run, outcomes=[*map(spoiled, run.outcomes)], sessions=sessions)


def derived(analysis):
    """All that was derived from the cases, as text."""
    nouns = (means, amortizations, hybrids, roofline, overheads)
    parts = (analysis.speedups, analysis.break_even, *(noun(analysis) for noun in nouns))
    return json.dumps([msgspec.to_builtins(part) for part in parts])


@pytest.mark.parametrize(("make", "case_id"), [
    *((full_run, f"matmul/n=1024/float32/{name}") for name in (
        "library/resident@numpy:0", f"library/{QUEUED}", "library/transfer-once-10@cupy:0", "library/transfer-always@cupy:0")),
    (full_run, f"copy/n=67108864/float32/library/{QUEUED}"), (full_run, "allocate/n=4194304/float32/tuned/resident@cupy:0"),
    (hybrid_run, "matmul/n=1024/float32/tuned/resident-queued@hybrid:cupy:0"),
])  # fmt: skip
def test_it_takes_part_in_nothing_that_is_derived_and_has_no_estimate(make, case_id):
    assert f'"{case_id}"' in derived(analyse(make())), "as long as it is plausible, something is made of it"
    found = analyse(doubtful(make(), case_id))
    assert f'"{case_id}"' not in derived(found)
    (row,) = [row for row in found.cases if row.id == case_id]
    assert (row.label, row.reason) == ("implausible", "implausible")
    assert (row.time, row.rates, row.time_breakdown) == (None, None, None)
    assert "less than 100 steps of its clock (1.1e-05 s)" in row.detail
    assert case_id not in {shown.id for shown in chart_cases(found)}


def test_every_format_names_it_and_no_other_tool_gets_a_number_of_it():
    case_id = f"matmul/n=1024/float32/library/{QUEUED}"
    analyses = [analyse(doubtful(full_run(), case_id))]
    assert not [format for format in TOOLS if case_id in draw_report(analyses, format)]
    table = csv.DictReader(io.StringIO(draw_report(analyses, "csv")))
    row = next(row for row in table if row["case_id"] == case_id)
    assert not [name for name, value in row.items() if value and name.endswith(("_s", "speedup", "peak"))]
    assert (row["label"], row["reason"]) == ("implausible", "implausible")
    row = next(row for row in json.loads(draw_report(analyses, "json"))["cases"] if row["id"] == case_id)
    assert (row["time"], row["label"], row["device_cold_s"], row["rates"]) == (None, "implausible", None, None)
    assert "excluded, implausible: a sample takes" in draw_report(analyses, "plain")


# ---------------------------------------------------------------- the parts of a GPU call add up to the whole
ALWAYS = case(regime="transfer-always", device="cupy:0")


def test_one_launch_that_is_waited_for_stands_beside_the_wall_time_of_many():
    """The middle of the used sessions; where the data travels every call is waited for anyway."""
    what = case(device="cupy:0")
    sessions = [replace(CALL, session=i, single_s=[s]) for i, s in enumerate((3e-4, 1.3e-4, 1e-4))]
    resident = replace(measured(what, 1e-4), parts=sessions)
    run = run_of([measured(case(), 1e-3), resident, measured(ALWAYS, SUM_S, parts=CALL)])
    *_, always = rows = analyse(run).cases
    found = {row.id: row.single_s for row in rows}
    assert found == {case().id: None, what.id: pytest.approx(1.3e-4), ALWAYS.id: None}
    assert always.time_breakdown.kernel_s == pytest.approx(1e-4), "less a launch and a wait"
    document = json.loads(render([run], "json"))
    assert {row["id"]: row["single_s"] for row in document["cases"]} == found


@pytest.mark.parametrize(("whole_s", "cold_s", "fields", "found"), [
    (SUM_S, 1e-4, {}, (1e-4, 2e-4, 0.0, False, False)), (SUM_S, None, {}, (1e-4, 2e-4, 0.0, True, False)),
    (SUM_S, None, {"single_s": [2e-5]}, (0.0, 2e-4, 1e-4, True, True)), (SUM_S, 1e-4, {"result_s": [2.8e-4]}, (1e-4, 1.6e-4, 4e-5, False, False)),
    (SUM_S, 4e-4, {"result_s": [1e-4]}, (1e-4, 0.0, 2e-4, False, True)),
    (SUM_S + 8e-5, 1e-4, {}, (1e-4, 2e-4, 8e-5, False, False)), (SUM_S + 9e-5, 1e-4, {}, (1e-4, 2e-4, 9e-5, False, True)),
    (SUM_S - 7e-5, 1e-4, {}, (1e-4, 2e-4, -7e-5, False, True)), *((1e-4 + rest_s, 4e-5, {"upload_s": [1e-5], "download_s": [1e-5]}, (4e-5, 1e-5, rest_s, False, rest_s > 2e-5)) for rest_s in (1.9e-5, 2.1e-5)),
])  # fmt: skip
def test_the_parts_of_a_call(whole_s, cold_s, fields, found):
    parts = row_of(measured(ALWAYS, whole_s, cold_s=cold_s, parts=replace(CALL, **fields))).time_breakdown
    kept = (parts.kernel_s, parts.download_s, parts.residual_s, parts.kernel_derived, parts.mismatch)
    assert kept == pytest.approx(found, abs=1e-12)
    sums_s = 0.2 + CALL.compile_s + CALL.first_launch_s + parts.alloc_s + parts.upload_s + parts.download_s
    assert parts.first_result_s == (None if parts.mismatch else pytest.approx(sums_s))


def test_a_session_that_lacks_a_case_is_named_by_its_place_in_the_plan():
    lost = [SessionFailure(session=i, reason="timeout", detail="it hangs") for i in (1, 3)]
    run = run_of([replace(ONE, failures=lost)])
    again = [replace(run.sessions[3], repeats=2) if i == 3 else record for i, record in enumerate(run.sessions)]
    told = findings(analyse(replace(run, sessions=again)))
    text = " ".join(finding.message for finding in told if finding.code == "session-failed")
    assert re.findall("session (.*?): timeout: it hangs", text) == ["2", "3 when it was measured again"]


@pytest.mark.parametrize(("small_s", "large_s", "waits"), [
    (0.01, 0.95, 1), (0.01, 0.01, 0), (0.9, 0.95, 0), (0.28125, 0.84375, 1), (0.01, 0.8, 1),  # the third: many launches, whatever the size
])  # fmt: skip
def test_a_call_that_waits_by_itself_is_told_by_its_time(small_s, large_s, waits):
    rows, of = [], {"regime": "transfer-always", "device": "cupy:0"}
    for op, n, launch_s in (("mine.f", 10**6, large_s), ("mine.f", 1000, small_s), ("mine.f", 2000, 0.5), ("add", 1, 0.1), ("add", 2, 0.9)):  # fmt: skip
        what = replace(case(op, n=n, **of), group="function" if "." in op else "vector")
        rows.append(measured(what, 5.0, parts=replace(CALL, launch_s=[launch_s], single_s=[1.0])))
    lacking = measured(replace(what, group="function"), 5.0, parts=replace(CALL, single_s=[]))
    assert find_waiting(run_of([lacking, *rows])) == [rows[0].id] * waits


# ---------------------------------------------------------------- peaks from copy and matmul alone, never clipped
def peaks_of(*outcomes, devices=SHARED):
    return roofline(analyse(run_of(outcomes, devices=devices)))


@given(st.floats(1e-6, 1e3), st.floats(1e9, 1e13), st.floats(1e9, 1e15))
@settings(max_examples=examples(50), deadline=None)
def test_the_peak_is_the_minimum_of_both(seconds, bytes_per_s, flops_per_s):
    found = peaks_of(
        measured(case("copy", LARGE, device="cupy:0"), 1e6, hot_s=8 * LARGE / bytes_per_s),
        measured(case(n=8192, device="cupy:0"), 1e6, hot_s=2 * 8192**3 / flops_per_s),
        measured(case("add", LARGE, device="cupy:0"), 1e6, hot_s=seconds),
    )
    row = next(row for row in found.rows if row.case.case.op == "add")
    memory_s, compute_s = 12 * LARGE / bytes_per_s, LARGE / flops_per_s
    assert row.share == pytest.approx(max(memory_s, compute_s) / seconds, rel=1e-6)
    assert row.bound == ("memory" if memory_s >= compute_s else "compute")
