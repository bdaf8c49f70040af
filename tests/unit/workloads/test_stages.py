"""Stages of a workload: how a session reads their times, of which cases, and that they add up to the whole."""

import itertools
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.analysis.analyse import Analysis, analyse
from gpubench.analysis.findings import findings
from gpubench.backends.contract import Recording, StageReading
from gpubench.fleet.nodes import merge_runs
from gpubench.kernels import tokens
from gpubench.kernels.contract.op import Given, Ladder, Stage
from gpubench.measure.budget import Budget
from gpubench.measure.plan import Workload
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate
from gpubench.report import render
from gpubench.report.layout import RenderOptions
from gpubench.report.plots import chart_set
from gpubench.result.case import RESIDENT, WAITED, Case
from gpubench.result.run import Outcome, Run, StageClock
from gpubench.workloads import chains, measured_stages
from gpubench.workloads.chains import ChainWorkspace
from gpubench.workloads.stages import Stages, stages
from gpubench.workloads.workload import workload
from tests import golden
from tests.unit.report.builders import CPU, GPU, case, in_stages, measured, run_of
from tests.unit.report.samples import stages_run

# The name of a loop's body stands twice.
TWICE = workload(
    name="twice", summary="", params={"n": "rows"}, sizes=Ladder(1, 64),
    stages=tuple(Stage(name, "linear", (x, "w", "b"), (y,), lambda p: {"n": 8, "k": 8, "m": 8})
                 for name, x, y in (("first", "x", "h"), ("again", "h", "g"), ("again", "g", "y"))),
    inputs={"x": "normal"}, weights={"w": "fan-in", "b": "zeros"}, outputs={"y": "activation"},
)  # fmt: skip


@pytest.fixture
def session():
    opened = backends.load("numpy").open("numpy:0", 1, autotune=False)
    yield opened
    opened.close()


def timer_of(session, folder, op=TWICE, implementation="tuned"):
    case = Case(op.name, op.group, {"n": 8}, "float32", implementation, "resident", "numpy:0")
    workspace = ChainWorkspace(session, op, case, 1, "random", folder)
    return Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


def scripted(session, monkeypatch):
    """Step i of a chain takes i + 1 seconds; round by round ten times as long."""
    rounds = itertools.count()

    def stage_times(steps):
        factor = 10 ** (next(rounds) // 2)  # a reading of the chain, and one of the stages alone
        return StageReading([factor * (i + 1.0) for i in range(len(steps))], factor * 7.0, "host")

    monkeypatch.setattr(session, "stage_times", stage_times)


def test_stages_of_one_name_are_added_up_and_the_first_round_is_thrown_away(session, tmp_path, monkeypatch):
    scripted(session, monkeypatch)
    monkeypatch.setattr(chains, "ROUNDS", 2)
    found = chains.time_stages(timer_of(session, tmp_path), 4, limit_s=60)
    assert (found.session, found.clock, found.stages) == (4, "host", ["first", "again"])
    assert found.chain_s == [[10.0, 100.0], [50.0, 500.0]]
    assert found.span_s == found.wall_s == [70.0, 700.0], "by the host's clock the call read is the whole"
    # Alone each step runs once, as none here is short.
    assert (found.alone_s, len(found.empty_s)) == ([[10.0, 100.0], [50.0, 500.0]], 2)
    scripted(session, monkeypatch)
    hasty = chains.time_stages(timer_of(session, tmp_path), 0, limit_s=0.0)
    assert hasty.span_s == [7.0], "without time for a second round the first one counts"


def read(session, monkeypatch, folder, times):
    """Times of stages whose steps a session reads by `times`, and the launches of each reading."""
    asked = []

    def stage_times(steps):
        asked.append([id(launch) for launch, _ in steps])
        return times(steps)

    monkeypatch.setattr(session, "stage_times", stage_times)
    return chains.time_stages(timer_of(session, folder), 0, limit_s=0.0), asked


def test_a_short_stage_alone_has_a_run_before_it_and_few_are_read_at_once(session, tmp_path, monkeypatch):
    monkeypatch.setattr(chains, "TOGETHER", 2)
    times = iter([[chains.LONG_S / 2, chains.LONG_S, chains.LONG_S / 2], [5.0, 1.0, 2.0], [6.0, 3.0]])
    found, asked = read(session, monkeypatch, tmp_path, lambda steps: StageReading(next(times), 1.0, "host"))
    (first, long, last), *alone = asked
    assert (alone, found.alone_s) == ([[first, first, long], [last, last]], [[1.0], [2.0 + 3.0]])


def test_stamping_and_recording_are_what_they_add_to_a_plain_chain(session, tmp_path, monkeypatch):
    """Five seconds for each reading of the device's clock. Recording is compared with an empty launch."""
    ticks = itertools.count(step=0.5)
    times = {count: StageReading([1.0] * count, 6.0 + 5.0 * count, "event") for count in range(1, 7)}
    found, _ = read(session, monkeypatch, tmp_path, lambda steps: times[len(steps)])
    assert found.stamping_s == [2 * 5.0], "three stages against one chain"
    monkeypatch.setattr(session, "clock", lambda: next(ticks))
    session.recording = lambda launch: Recording(0.25, 9.0)
    found = chains.time_stages(timer_of(session, tmp_path), 0, limit_s=0.0)
    assert (found.first_recording_s, found.recording_s) == ([0.0], [9.0 - 0.5])


def test_what_a_session_does_not_tell_is_left_out(session, tmp_path, monkeypatch):
    found = chains.time_stages(timer_of(session, tmp_path), 0, limit_s=0.0)
    assert (found.first_recording_s, found.recording_s) == ([], []), "it records nothing"
    assert found.stamping_s == [], "the clock of the host stamps for nothing"
    assert chains.time_stages(timer_of(session, tmp_path, implementation="library"), 0, 60) is None
    readings = iter([StageReading([1.0, 2.0, 3.0], 6.0, "host")])  # and none of the stages alone
    found, _ = read(session, monkeypatch, tmp_path, lambda steps: next(readings, None))
    assert found.alone_s == found.chain_s == [[1.0], [5.0]]
    monkeypatch.setattr(session, "stage_times", lambda steps: None)
    assert chains.time_stages(timer_of(session, tmp_path), 0, 60) is None


@pytest.mark.parametrize(("tick_s", "twice"), [(0.25, False), (0.125, True)])
def test_a_short_call_has_another_call_before_it(session, tmp_path, monkeypatch, tick_s, twice):
    """Each call takes two ticks of the clock."""
    timer, events, ticks = timer_of(session, tmp_path), [], itertools.count(step=tick_s)
    empty = session.empty_launch()
    monkeypatch.setattr(session, "empty_launch", lambda: empty)
    monkeypatch.setattr(session, "clock", lambda: next(ticks))
    monkeypatch.setattr(session, "sync", lambda: None)
    words = {timer.launch: "call", empty: "empty"}
    monkeypatch.setattr(session, "run", lambda launch, repeat: events.append((words[launch], repeat)))
    reading = StageReading([1.0] * 3, 7.0, "event")
    monkeypatch.setattr(session, "stage_times", lambda steps: (events.append(len(steps)), reading)[1])
    monkeypatch.setattr(chains, "ROUNDS", 1)
    monkeypatch.setattr(chains, "LONG_S", 0.5)
    found = chains.time_stages(timer, 0, limit_s=60)
    call, nothing = [("call", 1)], [("empty", 1)]
    rest = [3, 1, *call * (1 + twice), *nothing * (1 + twice), 3]
    assert events == [*call, *rest, *call * twice, *rest]
    assert found.wall_s == found.empty_s == [2 * tick_s]


@pytest.mark.parametrize(("limit_s", "call_s", "rounds"), [
    (60, 0.0, 15), (4.0, 1.0, 4), (2.9, 1.0, 3), (1.0, 1.0, 2), (1.0, 1.1, 1), (0.9, 1.0, 1),
])  # fmt: skip
def test_rounds_end_with_the_time_or_twice_of_it(session, tmp_path, monkeypatch, limit_s, call_s, rounds):
    """A few rounds may take twice of it. The first one is thrown away."""
    now, timer = [0.0], timer_of(session, tmp_path)

    def stage_times(steps):
        now[0] += call_s / 2  # the chain and the stages alone
        return StageReading([1.0] * len(steps), 1.0, "host")

    monkeypatch.setattr(session, "stage_times", stage_times)
    monkeypatch.setattr(chains, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert len(chains.time_stages(timer, 0, limit_s).span_s) == rounds


ASKED = workload(
    name="asked", summary="", params={"n": "tokens"}, sizes=Ladder(1, 64),
    stages=(
        Stage("tokenise", "tokenise", ("text",), ("ids",), lambda p: {"n": p["n"]}),
        Stage("embedding", "embedding", ("ids", "table", "positions"), ("x",),
              lambda p: {"n": p["n"], "width": 8, "vocabulary": tokens.ENTRIES}),
        Stage("project", "linear", ("x", "w", "b"), ("y",), lambda p: {"n": p["n"], "k": 8, "m": 8}),
    ),
    inputs={"text": Given(lambda params: tokens.text_of(params["n"]))},
    weights={"table": "normal", "positions": "normal", "w": "fan-in", "b": "zeros"}, outputs={"y": "activation"},
)  # fmt: skip


def test_what_the_host_does_is_no_cost_of_stamps(session, tmp_path, monkeypatch):
    """The plain chain is of the device's stages, up to the output."""
    timer, chained, chain = timer_of(session, tmp_path, ASKED), [], session.chain
    monkeypatch.setattr(session, "chain", lambda *given: (chained.append(given), chain(*given))[1])
    times = {count: StageReading([2.0] + [1.0] * (count - 1), 5.0 * count, "event") for count in range(1, 4)}
    monkeypatch.setattr(session, "stage_times", lambda steps: times[len(steps)])
    assert chains.time_stages(timer, 0, limit_s=0.0).stamping_s == [15.0 - 2.0 - 5.0]
    [(steps, output)] = chained
    assert (len(steps), steps[-1][1] is output is timer.launch.output) == (2, True)


def test_at_the_ends_of_the_sizes_each_device_is_timed_once():
    op, timed = kernels.load("ffn"), []

    def run(device, regime, implementation="tuned", measured=True):
        case = Case(op.name, "network", {"n": n}, "float32", implementation, regime, device)
        return SimpleNamespace(case=case, measured=measured, time_stages=lambda limit_s: timed.append(case.id))

    low, high = op.sizes.rungs()[0], op.sizes.high
    for n, sizes in ((low, []), (high, []), (64, []), (64, [64, 256]), (100, [64, 256]), (256, [64, 256])):
        runs = [
            run("numpy:0", "resident", "library"), run("numpy:0", "resident"), run("cupy:0", "transfer-always"),
            run("cupy:0", WAITED), run("wgpu:0", WAITED, measured=False),
        ]  # fmt: skip
        chosen = SimpleNamespace(selection=SimpleNamespace(sizes={op.name: sizes} if sizes else {}))
        around = SimpleNamespace(recorder=SimpleNamespace(run=chosen), budget=Budget(60.0, time.monotonic()))
        item = Workload(op, {"n": n}, "float32", tuple(told.case for told in runs))
        measured_stages.StageCompanion(None, None).follow_cases(around, item, runs)
        ids = [f"ffn/n={n}/float32/tuned/{rest}" for rest in ("resident@numpy:0", "resident-waited@cupy:0")]
        assert timed == (ids if n in (low, high, *sizes[:1], *sizes[-1:]) else []), n
        timed.clear()


# ---------------------------------------------------------------- they add up, or the report says that they do not
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


@pytest.mark.parametrize("op", ["inference", "uninstalled"])
def test_a_file_may_have_other_stages_than_the_op_has_here(op):
    what = measured(case(op, 16, "tuned", WAITED, "cupy:0"), 1e-3)
    run = run_of([in_stages(what, {"decode.qkv": 1e-3}, clock="event", stamping_s=1e-4)])
    assert stages(analyse(run))[0].stages[0].chain_s == pytest.approx(9e-4)


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
