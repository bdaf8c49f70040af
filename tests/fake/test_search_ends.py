"""The search for sizes: what it leaves in the file, and that a size that gives no time is tried once."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from gpubench import detect, kernels
from gpubench.measure import runner, search
from gpubench.measure import schedule as requests
from gpubench.measure.case_run import LEAST_BLOCKS
from gpubench.measure.plan import MEMORY_SHARE, Constraints, Target
from gpubench.measure.recorder import Origin, new_run
from gpubench.model.result import Device, Measurement, Selection, Settings

pytestmark = pytest.mark.usefixtures("forked_children")

BUDGET_S = 60.0
LARGEST = 4096


@pytest.fixture
def sizes_planned(monkeypatch):
    """The sizes for which the runner asked the plan, in order."""
    asked = []
    plan = search.workload

    def counted(series, n, constraints):
        asked.append(n)
        return plan(series, n, constraints)

    for module in (requests, search):
        monkeypatch.setattr(module, "workload", counted)
    return asked


@pytest.mark.serial
def test_a_size_that_is_too_large_for_the_memory_is_not_asked_for_again_and_again(sizes_planned):
    """The GPU still loses at the largest size that fits: the search wants larger ones, and there are none."""
    op = kernels.load("add")
    targets = tuple(
        Target(Device(id=f"fake:{word}", backend="fake", kind=kind, name=word, api="fake"), ("library",))
        for word, kind in (("cpu", "cpu"), ("gpu", "gpu"))
    )
    settings = Settings(
        sessions=1, min_samples=5, max_samples=5, max_time_s=0.05, warmup_s=0.0, budget_s=BUDGET_S
    )
    selection = Selection(ops=["add"], regimes=["resident-queued"], devices=[t.device.id for t in targets])
    operands = op.bytes({"n": LARGEST}, "float32")
    run = new_run(selection, settings, detect.inspect(extra_records=[]), [t.device for t in targets], Origin())
    began = time.monotonic()
    constraints = Constraints(targets, selection, round(7 * operands / MEMORY_SHARE) + 100, settings=settings)
    finished = runner.run(
        requests.RunSpec(run=run, ops={"add": op}, constraints=constraints, began=began),
        lambda event: None,
        lambda run: None,
    )
    measured = {o.case.params["n"] for o in finished.outcomes if isinstance(o, Measurement)}
    assert LARGEST / 2.3 <= max(measured) <= LARGEST
    assert len(sizes_planned) < 60
    assert time.monotonic() - began < BUDGET_S / 2, "it ended by itself"


# Far above the break-even the ladder costs seconds of real arithmetic.
SEARCH = (
    "--devices", "fake:cpu,fake:gpu", "--ops", "add", "--regimes", "resident-queued", "--skip", "add/n>=2M",
)  # fmt: skip
TRUE_N = 16_900  # 1e-6 + 12 n / 4e10 = 6e-6 + 12 n / 3e12


def blocks_by_size(outcomes):
    """Blocks by phase and size, of both sides."""
    found = {}
    for outcome in outcomes.values():
        for block in outcome.get("blocks", []):
            sizes = found.setdefault(block.get("phase", "main"), Counter())
            sizes[outcome["case"]["params"]["n"]] += 1
    return found


@pytest.fixture(scope="module")
def searched(run):
    return run(*SEARCH, "--budget", "60s", env={"GPUBENCH_FAKE_NOISE": "0.03"})


def break_even(ran, gpubench):
    ended = gpubench("report", str(ran.folder / "r.json"), "--format", "json")
    (row,) = json.loads(ended.stdout)["break_even"]
    return row


def test_a_search_measures_sizes_of_the_plan_around_the_crossing(searched, gpubench):
    assert searched.code == 0, searched.err
    sizes = blocks_by_size(searched.outcomes)
    assert sizes.keys() == {"main"}
    near = [n for n in sizes["main"] if TRUE_N / 4 < n < TRUE_N * 4]
    assert len(near) >= 4, "a line takes some"
    assert min(sizes["main"][n] for n in near) >= 2 * LEAST_BLOCKS
    row = break_even(searched, gpubench)
    assert row["verdict"] == "at"
    assert row["n"] == pytest.approx(TRUE_N, rel=0.1)
    # One draw in twenty lies outside, and which one this is depends on how far a busy machine got: hence the 2 %.
    assert row["lo"] / 1.02 <= TRUE_N <= row["hi"] * 1.02
    assert row["hi"] / row["lo"] < 2.25


def test_refine_on_looks_between_given_sizes(run, gpubench):
    ran = run(*SEARCH, "--sizes", "4k,64k", "--refine", "on")
    assert ran.code == 0, ran.err
    (sizes,) = blocks_by_size(ran.outcomes).values()
    assert {4096, 65536} < set(sizes)
    assert all(4096 <= n <= 65536 for n in sizes)
    assert break_even(ran, gpubench)["n"] == pytest.approx(TRUE_N, rel=0.1)


def test_given_sizes_are_not_refined_unless_asked_and_refine_off_searches_nothing(run):
    assert sorted(blocks_by_size(run(*SEARCH, "--sizes", "4k,64k").outcomes)["main"]) == [4096, 65536]
    ran = run(*SEARCH, "--refine", "off", "--filter", "add/n<=64k", "--budget", "30s")
    ladder = [n for n in kernels.load("add").sizes.sizes() if n <= 65536]
    assert sorted(blocks_by_size(ran.outcomes)["main"]) == ladder


def test_a_budget_that_ends_in_the_middle_leaves_verdicts_and_no_half_estimate(run, gpubench):
    """Whatever is cut off, no size at which a search only looked makes the run fail."""
    ran = run(*SEARCH, "--budget", "4s", env={"GPUBENCH_FAKE_NOISE": "0.03"})
    assert ran.result["exit_reason"] in ("ok", "budget", "nothing-measured")
    for outcome in ran.outcomes.values():
        assert outcome["type"] != "planned"
        phases = {block.get("phase", "main") for block in outcome.get("blocks", [])}
        # One that passed its check just before the end has no sample; its stop says why.
        stops = {stop["reason"] for stop in outcome.get("stops", [])}
        assert phases or outcome["type"] == "skip" or stops == {"budget"}


@pytest.mark.parametrize("once_s", [0.0, 200.0])
def test_choosing_kernels_for_the_ends_takes_nothing_from_the_first_run_on_a_machine(monkeypatch, once_s):
    """A clock that runs ahead by what the trials are said to take. Only a budget that nobody named grows with it."""
    trials_s, ahead = BUDGET_S, [0.0]
    real, clock = runner.measure_workloads, time.monotonic

    def measured(runtime, *workloads, purpose):
        took = real(runtime, *workloads, purpose=purpose)
        if purpose != search.BLOCKS:
            ahead[0] += trials_s
            took += trials_s
        return took

    monkeypatch.setattr(runner, "measure_workloads", measured)
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock() + ahead[0])
    op = kernels.load("add")
    targets = tuple(
        Target(Device(id=f"fake:{word}", backend="fake", kind=kind, name=word, api="fake"), ("library",))
        for word, kind in (("cpu", "cpu"), ("gpu", "gpu"))
    )
    settings = Settings(
        sessions=1, min_samples=4, max_samples=4, max_time_s=0.05, warmup_s=0.0, budget_s=BUDGET_S
    )
    selection = Selection(ops=["add"], regimes=["resident-queued"], devices=[t.device.id for t in targets])
    run = new_run(selection, settings, detect.inspect(extra_records=[]), [t.device for t in targets], Origin())
    constraints = Constraints(targets, selection, 2**22, settings=settings)  # small sizes: the fake computes
    finished = runner.run(
        requests.RunSpec(
            run=run, ops={"add": op}, constraints=constraints, began=time.monotonic(), once_s=once_s
        ),
        lambda event: None,
        lambda run: None,
    )
    measured = {o.case.params["n"] for o in finished.outcomes if isinstance(o, Measurement)}
    reported = [warning.data for warning in finished.warnings if warning.code == "chosen-once"]
    if once_s:
        assert len(measured) >= 3, "its top, too"
        assert reported == [{"seconds": 2 * trials_s}]
    else:
        assert len(measured) == 2, "the budget is used up before the top"
        assert not reported
