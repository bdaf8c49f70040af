"""The document of a run, which names no path, user or host; what a failure costs a case; the exit code of what was learnt."""

import functools
import getpass
import os
import platform
import re
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.base.errors import ExitCode
from gpubench.measure.budget import LEAST_BLOCKS
from gpubench.measure.recorder import Origin, Recorder, broken, fingerprint, new_run, to_be_tried, verdict
from gpubench.result import run as results
from gpubench.result import store
from gpubench.result.machine import Fact, Gpu, Machine
from gpubench.result.run import Failure, Measurement, Planned, Selection, SessionRecord, Settings, Skip, Stop
from tests.examples import CHARACTERS
from tests.unit.measure import builders

DEVICE = results.Device(
    id="cupy:0", backend="cupy", kind="gpu", name="Example", api="cuda", memory_bytes=2**34,
    identity=results.Identity(uuid="0123456789abcdef", pci="0000:09:00.0"),
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def outside_of_a_checkout(tmp_path_factory):  # asking git of the checkout takes longer than all else here
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("nowhere"))
        yield


def document(argv=(), environ=None, device=DEVICE, machine=None):
    origin = Origin(argv=argv, versions={"numpy": "2.0"}, environ=environ or {})
    return new_run(Selection(ops=["add"]), Settings(), machine or Machine(), [device], origin)


@pytest.mark.parametrize(("kind", "backend", "clock", "so"), [
    ("gpu", "cupy", None, "derived"), ("gpu", "cupy", results.DeviceClock(kind="event", step_s=1e-6), "event"),
    ("gpu", "group", None, None), ("cpu", "numpy", None, None),
])  # fmt: skip
def test_a_gpu_without_a_clock_has_a_derived_one(kind, backend, clock, so):
    (kept,) = document(device=replace(DEVICE, kind=kind, backend=backend, clock=clock)).devices
    assert (kept.clock and kept.clock.kind, kept.identity) == (so, None)


names = st.from_regex(re.compile(r"[A-Za-z0-9_.@-]{3,12}"), fullmatch=True, alphabet=CHARACTERS)
paths = st.lists(names, min_size=2, max_size=5).map(lambda parts: "/".join(["", *parts]))


@given(paths, st.sampled_from(["{}", "-o{}", "--output={}", "--config={}"]))
def test_paths_are_cut_to_their_last_part(path, written):
    (argument,) = document([written.format(path)]).argv
    assert os.sep not in argument
    assert argument.endswith(path.rpartition("/")[2])


SELECTORS = ("*/*/library/*@numpy:0", "--skip=add/n=64/*", "add/n=64/float32/tuned/resident@numpy:0")


@pytest.mark.parametrize(("written", "kept"), [
    *((selector, selector) for selector in SELECTORS), ("results/base.json", "base.json"), ("./a@b/c*", "c*"),
    ("~/a@b/c", "c"), ("-o=a/b", "-o=b"), ("a=b/c", "c"),
])  # fmt: skip
def test_a_selector_of_cases_is_no_path_and_one_that_begins_elsewhere_is(written, kept):
    assert document([written]).argv == [kept]


def test_the_environment_is_recorded_by_name_and_nothing_else_of_it(monkeypatch):
    for module, name in ((socket, "gethostname"), (platform, "node"), (getpass, "getuser")):
        monkeypatch.setattr(module, name, lambda: "private-box")
    secret = {"AWS_SECRET": "hunter2", "HOME": "/home/someone", "USER": "someone", "HOSTNAME": "private-box"}
    run = document(["run", "-o", "/home/someone/r.json"], {**secret, "OMP_NUM_THREADS": "1\udcff"})
    assert run.environment.variables == {"OMP_NUM_THREADS": "1?"}, "a byte that is not UTF-8"
    text = store.dumps(run).decode()
    for word in ("hunter2", "someone", "private-box", os.getcwd(), "0123456789abcdef", "0000:09:00.0"):
        assert word not in text


@pytest.mark.parametrize("uuid", ["GPU-8fd2ceae-1e56-1aae-077f-81452b8715a7", "GPU-fa8f3d8e91c2b7a0"])
def test_a_uuid_becomes_a_digest_everywhere_and_stays_one_name(uuid):
    machine = Machine(gpus=[Gpu(id=uuid, uuid=Fact(uuid, "ok", "nvml"))])
    first, second = (document(device=replace(DEVICE, gpu_id=uuid), machine=machine) for _ in range(2))
    assert uuid.encode() not in store.dumps(first)
    (found,), (again,) = first.machine.gpus, second.machine.gpus
    assert found.id == found.uuid.value == first.devices[0].gpu_id == again.id
    assert found.id.startswith("GPU-")


@pytest.mark.parametrize(("environ", "provider"), [
    ({}, None), ({"CI": "false"}, None), ({"CI": "1"}, "unknown"), ({"CI": "true", "GITHUB_ACTIONS": "true"}, "github"),
])  # fmt: skip
def test_the_ci_is_named(environ, provider):
    ci = document(environ=environ).environment.ci
    assert (ci.provider if ci else None) == provider


def test_outside_of_a_checkout_there_is_no_git_and_no_branch_beside_one(monkeypatch):
    git = type("", (), {"status": 0, "output": "0a HEAD"})
    assert document().environment.git is None
    monkeypatch.setenv("PATH", "")
    assert document().environment.git is None
    monkeypatch.setattr("gpubench.base.processes.run", lambda *_: git)
    assert document().environment.git.branch is None


@given(st.dictionaries(names, names, max_size=6), st.randoms())
def test_fingerprints_depend_on_every_field_and_not_on_order(fields, random):
    items = list(fields.items())
    random.shuffle(items)
    assert fingerprint(dict(items)).hash == fingerprint(fields).hash
    for name in fields:
        assert fingerprint({**fields, name: fields[name] + "x"}).hash != fingerprint(fields).hash


# ------------------------------------------------------------------- cases: what is left, and tried again


case = functools.partial(builders.case, device_id="numpy:0")


def ended(kind, n, reason):
    return kind(id=case(n).id, case=case(n), reason=reason, detail="")


def block(session=0, samples=1, phase="main"):
    """One of so many samples behind a warm-up."""
    return builders.block([1.0] * (samples + 1), session=session, warmup=1, phase=phase)


def measured(n, *blocks, **fields):
    return builders.measured(case(n), *blocks, **fields)


def known(*sessions):
    """The case with a finished block in each of these sessions."""
    stops = [Stop(session=number, reason="precision") for number in sessions]
    return measured(1, *map(block, sessions), stops=stops)


def crash(session):
    return results.SessionFailure(session=session, reason="worker-crashed", detail="it crashed")


LEAST = 5
FULL, SHORT = measured(1, block(samples=LEAST)), measured(2, block(samples=LEAST - 1))
PLANNED, SKIPPED = Planned(id=case(3).id, case=case(3)), ended(Skip, 4, "out-of-memory")
CRASHED, WRONG = ended(Failure, 5, "worker-crashed"), ended(Failure, 6, "wrong-result")


def test_what_was_planned_and_never_reached_is_a_skip_at_the_end():
    saved = []
    recorder = Recorder(document(), saved.append)
    recorder.plan([Planned(id=case(n).id, case=case(n)) for n in (1, 2)])
    recorder.put(measured(1))
    run = recorder.finish(124, "budget", complete=True)
    assert [type(o) for o in run.outcomes] == [Measurement, Skip]
    assert (run.outcomes[1].reason, run.complete, saved[-1]) == ("budget", True, run)


def test_what_comes_in_during_a_run_stands_in_order_and_an_interrupt_keeps_the_plan():
    recorder = Recorder(document(), lambda run: None)
    recorder.put(measured(1))
    recorder.plan([Planned(id=case(n).id, case=case(n)) for n in (1, 2)])
    for number in range(3):
        recorder.add(case(1).id, blocks=block(number))
        recorder.warn(results.RunWarning(code="budget", message=str(number)))
    recorder.add(case(1).id, stops=Stop(session=0, reason="precision"))
    for started_at in ("now", "later"):
        recorder.session(SessionRecord(index=0, started_at=started_at))
    run = recorder.finish(130, "interrupted", complete=False)
    first, second = run.outcomes
    assert isinstance(second, Planned)
    assert first == measured(1, *map(block, range(3)), stops=[Stop(session=0, reason="precision")]), "it stays"
    assert [warning.message for warning in run.warnings] == ["0", "1", "2"]
    assert [(s.index, s.started_at) for s in run.sessions] == [(0, "later")]
    assert (run.complete, run.exit_code, run.exit_reason) == (False, 130, "interrupted")
    assert run.finished_at


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 4))
@example([False, False, True], 2)
def test_no_session_is_lost_and_two_failures_in_a_row_end_it(fates, since):
    """`fates` says of each session whether the case would run; earlier calls had `since` of them."""
    outcome, tried = None, []
    for session, fine in enumerate(fates):
        first = 0 if session < since else since
        tried.append(fine if to_be_tried(outcome, session, first) else None)
        if tried[-1] is False:
            outcome = broken(case(1), outcome, crash(session))
            assert not to_be_tried(outcome, session, first), "not twice in one session"
        elif tried[-1]:
            failures = getattr(outcome, "failures", None) or []
            sessions = [b.session for b in outcome.blocks] if isinstance(outcome, Measurement) else []
            outcome = replace(known(*sessions, session), failures=failures)
    ran = [session for session, fine in enumerate(tried) if fine]
    broke = [session for session, fine in enumerate(tried) if fine is False]
    if ran:
        assert [block.session for block in outcome.blocks] == ran
    elif broke:
        assert isinstance(outcome, Failure)
    if broke:
        assert [failure.session for failure in outcome.failures] == broke
    for call in (tried[:since], tried[since:]):
        assert call[:1] != [None], "each call begins anew"
        ends = [i + 2 for i in range(len(call) - 1) if call[i] is False and call[i + 1] is False]
        if ends:
            assert call[ends[0] :] == [None] * len(call[ends[0] :]), "given up for the rest of this call"


@pytest.mark.parametrize(("outcome", "again"), [
    (None, True), (PLANNED, True), (known(0), True), (SKIPPED, False), (ended(Skip, 4, "device-lost"), True),
    (WRONG, False), (ended(Failure, 5, "timeout"), True),
])  # fmt: skip
def test_what_is_tried_in_the_next_session(outcome, again):
    assert to_be_tried(outcome, 1, 0) is again


def test_a_failure_leaves_what_stood_before_and_nothing_else():
    before = known(0, 1)
    after = broken(case(1), before, crash(2))
    assert (after.blocks, after.stops) == (before.blocks, before.stops)
    assert broken(case(1), known(), crash(0)).reason == "worker-crashed", "samples are what a number needs"


# ------------------------------------------------------------------- the end


def run(*outcomes, named=range(1, 10)):
    chosen = Selection(ops=["add"], sizes={"add": [*named]})
    return replace(document(), selection=chosen, settings=Settings(min_samples=LEAST), outcomes=[*outcomes])


# Samples that heat spoilt are used where too little else is left: the case has an estimate.
HOT = measured(1, replace(block(samples=LEAST), discarded=dict.fromkeys("123", "throttled")))
OK, BUDGET = (ExitCode.OK, "ok"), (ExitCode.BUDGET, "budget")


# Outcomes, what else is known, and the ending. What a search left open at sizes that nobody named is no failure.
@pytest.mark.parametrize(("outcomes", "more", "ending"), [
    ([FULL], {}, OK), ([FULL, SKIPPED], {}, OK), ([FULL, SHORT], {}, BUDGET), ([FULL, PLANNED], {}, BUDGET),
    ([FULL, measured(7, block(samples=LEAST - 1), block(samples=20, phase="estimate"))], {}, BUDGET),
    ([FULL, measured(9)], {}, BUDGET), ([SKIPPED], {}, (ExitCode.FAILED, "nothing-measured")), ([HOT], {}, OK),
    ([FULL, SHORT], {"unavailable": ["cupy:0"]}, (ExitCode.UNAVAILABLE, "unavailable")),
    ([FULL, SHORT, CRASHED], {"unavailable": ["cupy:0"]}, (ExitCode.FAILED, "failed")),
    ([FULL, CRASHED, WRONG], {}, (ExitCode.FAILED, "wrong-result")),
    ([FULL, broken(case(1), known(0), crash(3))], {"since": 3}, (ExitCode.FAILED, "failed")),
    ([FULL, broken(case(1), known(0), crash(3))], {"since": 4}, BUDGET),
    *(([FULL, lacking], {"named": [1]}, OK) for lacking in (SHORT, PLANNED, measured(9))),
    # A block of a long launch holds a single sample.
    ([measured(1, *[block()] * (LEAST_BLOCKS - 1))], {}, BUDGET), ([measured(1, *[block()] * LEAST_BLOCKS)], {}, OK),
    ([measured(1)], {"check_only": True}, OK),
    # A check that left cases out is out of time whoever chose their sizes.
    *(([*outcomes, PLANNED], {"check_only": True, "named": named}, BUDGET)
      for outcomes in ([measured(1)], [], [SKIPPED]) for named in ([], [1], range(1, 10))),
])  # fmt: skip
def test_the_gravest_ending_is_told(outcomes, more, ending):
    known = {name: value for name, value in more.items() if name != "named"}
    for order in (outcomes, outcomes[::-1]):
        assert verdict(run(*order, named=more.get("named", range(1, 10))), **known) == ending
