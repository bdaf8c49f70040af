"""Times of a workload's stages: how a session reads them, how rounds are kept, and of which cases they are taken."""

import itertools
import time
from types import SimpleNamespace

import pytest

from gpubench import backends, kernels
from gpubench.backends.contract import Recording, StageReading
from gpubench.kernels import tokens
from gpubench.kernels.contract.op import Given, Ladder, Stage
from gpubench.measure.budget import Budget
from gpubench.measure.plan import Workload
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate
from gpubench.result.case import WAITED, Case
from gpubench.workloads import chains as stages
from gpubench.workloads import measured_stages
from gpubench.workloads.chains import ChainWorkspace
from gpubench.workloads.workload import workload

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
    monkeypatch.setattr(stages, "ROUNDS", 2)
    found = stages.time_stages(timer_of(session, tmp_path), 4, limit_s=60)
    assert (found.session, found.clock, found.stages) == (4, "host", ["first", "again"])
    assert found.chain_s == [[10.0, 100.0], [50.0, 500.0]]
    assert found.span_s == found.wall_s == [70.0, 700.0], "by the host's clock the call read is the whole"
    # Alone each step runs once, as none here is short.
    assert (found.alone_s, len(found.empty_s)) == ([[10.0, 100.0], [50.0, 500.0]], 2)
    scripted(session, monkeypatch)
    hasty = stages.time_stages(timer_of(session, tmp_path), 0, limit_s=0.0)
    assert hasty.span_s == [7.0], "without time for a second round the first one counts"


def read(session, monkeypatch, folder, times):
    """Times of stages whose steps a session reads by `times`, and the launches of each reading."""
    asked = []

    def stage_times(steps):
        asked.append([id(launch) for launch, _ in steps])
        return times(steps)

    monkeypatch.setattr(session, "stage_times", stage_times)
    return stages.time_stages(timer_of(session, folder), 0, limit_s=0.0), asked


def test_a_short_stage_alone_has_a_run_before_it_and_few_are_read_at_once(session, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "TOGETHER", 2)
    times = iter([[stages.LONG_S / 2, stages.LONG_S, stages.LONG_S / 2], [5.0, 1.0, 2.0], [6.0, 3.0]])
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
    found = stages.time_stages(timer_of(session, tmp_path), 0, limit_s=0.0)
    assert (found.first_recording_s, found.recording_s) == ([0.0], [9.0 - 0.5])


def test_what_a_session_does_not_tell_is_left_out(session, tmp_path, monkeypatch):
    found = stages.time_stages(timer_of(session, tmp_path), 0, limit_s=0.0)
    assert (found.first_recording_s, found.recording_s) == ([], []), "it records nothing"
    assert found.stamping_s == [], "the clock of the host stamps for nothing"
    assert stages.time_stages(timer_of(session, tmp_path, implementation="library"), 0, 60) is None
    readings = iter([StageReading([1.0, 2.0, 3.0], 6.0, "host")])  # and none of the stages alone
    found, _ = read(session, monkeypatch, tmp_path, lambda steps: next(readings, None))
    assert found.alone_s == found.chain_s == [[1.0], [5.0]]
    monkeypatch.setattr(session, "stage_times", lambda steps: None)
    assert stages.time_stages(timer_of(session, tmp_path), 0, 60) is None


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
    monkeypatch.setattr(stages, "ROUNDS", 1)
    monkeypatch.setattr(stages, "LONG_S", 0.5)
    found = stages.time_stages(timer, 0, limit_s=60)
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
    monkeypatch.setattr(stages, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert len(stages.time_stages(timer, 0, limit_s).span_s) == rounds


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
    assert stages.time_stages(timer, 0, limit_s=0.0).stamping_s == [15.0 - 2.0 - 5.0]
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
