"""Stages of a workload: they add up to the whole, or the report says that they do not, in every format."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import Analysis, analyse
from gpubench.analysis.findings import findings
from gpubench.fleet.nodes import merge_runs
from gpubench.report import render
from gpubench.report.layout import RenderOptions
from gpubench.report.plots import chart_set
from gpubench.result.case import RESIDENT, WAITED
from gpubench.result.run import Outcome, Run, StageClock
from gpubench.workloads.stages import Stages, stages
from tests import golden
from tests.unit.report.builders import CPU, GPU, case, in_stages, measured, run_of
from tests.unit.report.samples import stages_run

SECONDS = {"ffn_in": 2e-4, "ffn_out": 1e-4}
SUM_S, LAUNCH_S = 3e-4, 1e-5


def run_with(*, launch_s: float = LAUNCH_S, clock: StageClock = "event", **beside: Any) -> Run:
    what = measured(case("ffn", 64, "tuned", WAITED, "cupy:0"), SUM_S)
    return run_of([in_stages(what, SECONDS, clock=clock, launch_s=launch_s, **beside)])


def analysed(**given: Any) -> Analysis:
    return analyse(run_with(**given))


def row_of(**given: Any) -> Stages:
    (found,) = stages(analysed(**given))
    return found


def test_what_the_readings_cost_is_taken_off_the_stages():
    plain, found = row_of(), row_of(stamping_s=1e-4)
    assert found.stamping_s == pytest.approx(1e-4)
    assert sum(one.chain_s for one in found.stages) == pytest.approx(SUM_S - 1e-4)
    for before, after in zip(plain.stages, found.stages, strict=True):  # each has one reading
        lost = (before.chain_s - after.chain_s, before.alone_s - after.alone_s)
        assert lost == pytest.approx((1e-4 / len(plain.stages),) * 2)
    assert (found.residual_s, found.mismatch) == (pytest.approx(0.0, abs=1e-12), False)
    text = render([run_with(stamping_s=1e-4)], "plain", sections=("stages",))
    assert "recording" not in text, "where nothing is recorded no line says so"
    assert "100 us of clock readings are taken off the stages" in " ".join(text.split())


def test_gaps_between_stamps_are_no_cost_of_the_stages():
    """A stamped chain may take longer than the plain one, though its stages do not."""
    found = row_of(gap_s=3e-4, stamping_s=3e-4, rest_s=3e-4)
    assert found.stamping_s == pytest.approx(0.0, abs=1e-12)
    assert (sum(one.chain_s for one in found.stages), found.mismatch) == (pytest.approx(SUM_S), False)


@pytest.mark.parametrize(("recording_s", "waits_s"), [
    ((5e-5, 5e-5), 5e-5),  # one submit: the device begins after it
    ((5e-5, 5e-5 + SUM_S + LAUNCH_S), 5e-5),  # what is recorded later takes as long as the stages and a launch
    ((5e-5, 5e-5 + SUM_S + LAUNCH_S + 1e-4), 15e-5),
])  # fmt: skip
def test_the_device_waits_for_what_the_host_records(recording_s, waits_s):
    found = row_of(rest_s=waits_s + 1e-6, recording_s=recording_s)
    assert (found.recording_s, found.residual_s) == (pytest.approx(waits_s), pytest.approx(1e-6, abs=1e-12))
    assert not found.mismatch
    text = render([run_with(rest_s=waits_s, recording_s=recording_s)], "plain", sections=("stages",))
    (line,) = (line for line in text.splitlines() if line.startswith("recording "))
    assert f"{waits_s * 1e6:.0f}" in line
    assert "the device waits until the host has written down" in " ".join(text.split())


@pytest.mark.parametrize(("given", "mismatch"), [
    ({"rest_s": 5e-5}, True), ({"rest_s": -5e-5}, True), ({"gap_s": 5e-5, "rest_s": 0.0}, True),
    ({"rest_s": 2.5e-5}, False), ({"rest_s": -2.5e-5}, False), ({"gap_s": 1.5e-5}, False),
    ({"rest_s": -2e-4, "clock": "waited", "recording_s": (5e-5, 5e-5)}, False),  # waits for each stage are no parts
])  # fmt: skip
def test_what_misses_by_more_than_a_tenth_and_20_us_is_a_finding(given, mismatch):
    found = analysed(**given)
    (row,) = stages(found)
    assert (row.mismatch, row.recording_s) == (mismatch, 0.0)
    assert row.launch_s == (0.0 if "clock" in given else LAUNCH_S)
    parts_s = sum(stage.chain_s for stage in row.stages) + row.launch_s + row.residual_s
    assert parts_s == pytest.approx(row.whole_s)
    assert row.residual_s == pytest.approx(given.get("rest_s", 0.0) + LAUNCH_S - row.launch_s, abs=1e-12)
    assert sum(one.share for one in row.stages) == pytest.approx(SUM_S / row.whole_s)
    assert ("stage-mismatch" in {finding.code for finding in findings(found)}) == mismatch


def tokens_run() -> Run:
    """A model of two parts: 100 tokens are read, 15 written; on the CPU it takes ten times as long."""
    found: list[Outcome] = []
    for device, regime, seconds in (("numpy:0", RESIDENT, 1e-2), ("cupy:0", WAITED, 1e-3)):
        what = measured(case("inference", 100, "tuned", regime, device), 4 * seconds)
        timed = {"tokenise": 1, "prefill.heads": 0.5, "prefill.head": 0.5, "decode.heads": 2}
        known = in_stages(what, {name: factor * seconds for name, factor in timed.items()})
        counted = [replace(stage, tokens={"prefill": 100, "decode": 15}) for stage in known.stages]
        found.append(replace(known, stages=counted))
    return run_of(found, devices=(CPU, GPU))


def test_tokens_a_second_are_those_of_the_stages_of_a_part():
    run = tokens_run()
    rates = {row.device_id: row.tokens_per_s for row in stages(analyse(run))}
    assert rates["cupy:0"] == {"prefill": pytest.approx(1e5), "decode": pytest.approx(7500)}
    assert rates["numpy:0"] == {"prefill": pytest.approx(1e4), "decode": pytest.approx(750)}
    text = " ".join(render([run], "plain", sections=("stages",)).split())
    assert "tokens/s: prefill 100,000 (CPU 10,000), decode 7,500 (CPU 750)" in text
    rows = json.loads(render([run], "json"))["stages"]
    assert {row["device_id"]: row["tokens_per_s"] for row in rows} == rates
    assert {row.tokens_differing for row in stages(analyse(run))} == {None}
    other = [replace(one, check=replace(one.check, differing=2)) for one in run.outcomes]  # type: ignore[union-attr]
    run = replace(run, outcomes=other)
    assert {row["tokens_differing"] for row in json.loads(render([run], "json"))["stages"]} == {2}
    text = " ".join(render([run], "plain", sections=("stages",)).split())
    assert "2 of its tokens differ from float64's" in text
    assert row_of().tokens_per_s == {}, "a workload without tokens"


def test_a_stage_that_the_op_had_once_has_the_readings_of_the_one_behind_it():
    """Of a file from when the norms of inference were stages of their own: they ran as often as what reads them."""
    seconds = {"tokenise": 6e-4, "decode.norm1": 6e-4, "decode.qkv": 6e-4, "decode.choose": 6e-4}
    rows = []
    for stamping_s in (0.0, 1e-4):
        what = measured(case("inference", 16, "tuned", WAITED, "cupy:0"), sum(seconds.values()))
        run = run_of([in_stages(what, seconds, clock="event", stamping_s=stamping_s)])
        rows.append(stages(analyse(run))[0].stages)
    lost = {before.stage: before.chain_s - after.chain_s for before, after in zip(*rows, strict=True)}
    assert lost["decode.norm1"] == pytest.approx(lost["decode.qkv"])
    assert lost["decode.qkv"] == pytest.approx(4 * lost["decode.choose"]), "four layers, and one choice"


def test_the_chart_stacks_the_stages_of_each_device_to_its_whole():
    (chart,) = chart_set(analyse(stages_run()), RenderOptions(sections=("stages",))).charts
    for row in stages(analyse(stages_run())):
        bars = [one for rows in chart.rows.values() for one in rows if one["bar"] == f"{row.n} {row.device_id}"]
        drawn = row.whole_s - min(0.0, row.residual_s)  # a rest below 0 has no bar
        assert all(one["value"] > 0 for one in bars)
        assert sum(one["value"] for one in bars) == pytest.approx(drawn, rel=1e-3)
        assert [one["stage"] for one in bars][:2] == [one.stage for one in row.stages]


def test_merging_two_runs_keeps_the_stages_of_all_sessions():
    together = merge_runs([stages_run(), replace(stages_run(), id="0" * 36)])
    of = [[t.session for t in o.stages] for o in together.outcomes if getattr(o, "stages", [])]
    assert of
    assert all(sessions == sorted(set(sessions)) and len(sessions) == 6 for sessions in of)


@pytest.mark.parametrize(("run", "name"), golden.NETWORK_CASES)
def test_golden(run, name):
    """If the difference is wanted: python -m tests.golden, and look at it."""
    assert golden.text(run, name) == golden.path(run, name).read_text(encoding="utf-8")
