"""The search for sizes: what it leaves in the file, and that a size that gives no time is tried once."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from gpubench import detect, kernels
from gpubench.measure import runner, search
from gpubench.measure import schedule as requests
from gpubench.measure.plan import MEMORY_SHARE, Constraints, Target
from gpubench.measure.recorder import Origin, new_run
from gpubench.model.result import Device, Measurement, Selection, Settings

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
    assert max(measured) == LARGEST
    assert len(sizes_planned) < 12
    assert time.monotonic() - began < BUDGET_S / 2, "it ended by itself"


# Far above the break-even the ladder costs seconds of real arithmetic.
SEARCH = (
    "--devices", "fake:cpu,fake:gpu", "--ops", "add", "--regimes", "resident-queued", "--skip", "add/n>=2M",
)  # fmt: skip
TRUE_N = 16_900  # 1e-6 + 12 n / 4e10 = 6e-6 + 12 n / 3e12


def taken(outcomes):
    """Samples by phase and size, of both sides."""
    found = {}
    for outcome in outcomes.values():
        for block in outcome.get("blocks", []):
            sizes = found.setdefault(block.get("phase", "main"), Counter())
            sizes[outcome["case"]["params"]["n"]] += len(block["wall_s"]) - block.get("warmup", 0)
    return found


@pytest.fixture(scope="module")
def searched(run):
    return run(*SEARCH, "--budget", "60s", env={"GPUBENCH_FAKE_NOISE": "0.03"})


def break_even(ran, gpubench):
    ended = gpubench("report", str(ran.folder / "r.json"), "--format", "json")
    (row,) = json.loads(ended.stdout)["break_even"]
    return row


def test_a_search_ends_in_fresh_timings_that_alone_make_the_estimate(searched, gpubench):
    assert searched.code == 0, searched.err
    phases = taken(searched.outcomes)
    assert phases.keys() == {"main", "search", "estimate"}
    fresh = phases["estimate"]
    assert len(fresh) == 7
    assert min(fresh) / 1.12 < TRUE_N < max(fresh) * 1.12, "noise may move the bracket, not far"
    assert min(fresh.values()) >= 2 * search.LEAST_SAMPLES
    grid = sum(min(count, 10) for count in phases["main"].values())
    assert grid + sum(phases["search"].values()) + sum(fresh.values()) <= 400
    row = break_even(searched, gpubench)
    assert row["verdict"] == "at"
    assert row["n"] == pytest.approx(TRUE_N, rel=0.03)
    # One draw in twenty lies outside, and which one this is depends on how far a busy machine got: hence the 2 %.
    assert row["lo"] / 1.02 <= TRUE_N <= row["hi"] * 1.02
    # Of one session the prior is most of it: how far another would lie.
    assert row["hi"] / row["lo"] < 2.25


def test_sizes_of_the_estimate_stand_in_no_table(searched, gpubench):
    only = taken(searched.outcomes)["estimate"].keys() - taken(searched.outcomes)["main"].keys()
    for format in ("plain", "markdown", "csv", "jsonl"):
        text = gpubench("report", str(searched.folder / "r.json"), "--format", format).stdout
        assert not [n for n in only if f" {n} " in text or f",{n}," in text or f"n={n}/" in text]


def test_refine_on_looks_between_given_sizes(run, gpubench):
    ran = run(*SEARCH, "--sizes", "4k,64k", "--refine", "on", "--break-even-timings", "200")
    assert ran.code == 0, ran.err
    phases = taken(ran.outcomes)
    assert phases["main"].keys() == {4096, 65536}
    assert all(4096 <= n <= 65536 for sizes in phases.values() for n in sizes)
    assert len(phases["estimate"]) == 7
    row = break_even(ran, gpubench)
    assert row["n"] == pytest.approx(TRUE_N, rel=0.02)


def test_given_sizes_are_not_refined_unless_asked_and_refine_off_searches_nothing(run):
    assert taken(run(*SEARCH, "--sizes", "4k,64k").outcomes).keys() == {"main"}
    ran = run(*SEARCH, "--refine", "off", "--filter", "add/n<=64k", "--budget", "30s")
    assert taken(ran.outcomes).keys() == {"main"}
    assert sorted(taken(ran.outcomes)["main"]) == [1024, 4096, 16384, 65536]


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
