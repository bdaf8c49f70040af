"""The `.part` file: its lines add up to the run wherever they are cut; which of it and the result holds more."""

import errno
import itertools
import os

import msgspec
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from gpubench.base.errors import InputError
from gpubench.result import store
from gpubench.result.run import Block, Parts, RunWarning, SessionRecord, Telemetry
from gpubench.result.store.document import FIRST_LINE, PartLine
from gpubench.result.store.journal import part_relation
from tests.raising import raised
from tests.unit.store.test_files import failing

_STEP = st.sampled_from("samples parts undone warning session telemetry forget nothing".split())
_STEPS = st.lists(_STEP, min_size=1, max_size=12)


def _grown(run, step, number):
    """The run after one more step of measuring."""
    first, *rest = run.outcomes
    match step:
        case "samples":
            block = Block(session=1, round=number, position=0, repeat=4, wall_s=[0.25, 0.5])
            return replace(run, outcomes=[replace(first, blocks=[*first.blocks, block]), *rest])
        case "parts":
            more = [*first.parts, Parts(session=number, single_s=[1e-6] * number)]
            return replace(run, outcomes=[replace(first, parts=more), *rest])
        case "undone":
            fewer = replace(first, blocks=first.blocks[:-1], parts=first.parts[1:])
            return replace(run, outcomes=[fewer, *rest])
        case "warning":
            return replace(run, warnings=[*run.warnings, RunWarning(code="noisy", message=f"no. {number}")])
        case "session":
            record = SessionRecord(index=len(run.sessions), started_at="2026-01-01T00:00:00Z")
            return replace(run, sessions=[*run.sessions, record])
        case "telemetry" if run.sessions:
            last = replace(run.sessions[-1], telemetry=[Telemetry(device_id="cupy:0", t_s=[0.5] * number)])
            return replace(run, sessions=[*run.sessions[:-1], last])
        case "forget":
            return replace(run, outcomes=[first])
    return run


def _stored(run):
    """What the file holds of a run: not yet the telemetry of the session that is under way."""
    sessions = [replace(one, telemetry=[]) if one is run.sessions[-1] else one for one in run.sessions]
    return store.loads(store.dumps(replace(run, sessions=sessions)), "x")


@given(_STEPS)
@example(["session", "telemetry", "session", "telemetry"])
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_lines_add_up_to_the_run(tmp_path, run, steps):
    path = tmp_path / "a.json.part"
    journal = store.Journal(path)
    for number, step in enumerate(steps, 1):
        run = _grown(run, step, number)
        journal.write(run)
        assert store.load(path) == _stored(run)
    journal.remove()
    assert not path.exists()


@given(_STEPS, st.data())
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_cut_anywhere_holds_an_earlier_state(tmp_path, run, steps, data):
    path = tmp_path / "a.json.part"
    journal = store.Journal(path)
    journal.write(run)
    least, states = path.stat().st_size, [_stored(run)]
    for number, step in enumerate(steps, 1):
        run = _grown(run, step, number)
        journal.write(run)
        states.append(_stored(run))
    journal.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(least, len(whole)))
    # As after a power failure.
    zeros = data.draw(st.sampled_from([b"", b"\0" * 100, b"\0" * 50 + b"\n" + b"\0" * 50]))
    path.write_bytes(whole[:cut] + zeros)
    ids = {outcome.id for outcome in store.load(path).outcomes}
    blocks = [len(outcome.blocks) for outcome in store.load(path).outcomes if hasattr(outcome, "blocks")]
    assert blocks[0] in [len(state.outcomes[0].blocks) for state in states]
    assert ids <= {outcome.id for outcome in states[0].outcomes}


def test_lines_are_added_until_they_are_a_megabyte_above_three_times_the_first(tmp_path, run):
    journal = store.Journal(tmp_path / "a.part")
    sizes = []
    for number in range(40):
        journal.write(replace(run, label=f"{number:02}" + "a" * 50_000))
        sizes.append((tmp_path / "a.part").stat().st_size)
    journal.close()
    fall = next(i for i in range(1, len(sizes)) if sizes[i] < sizes[i - 1])
    assert 2**20 < sizes[fall - 1] - 3 * sizes[0] <= 2**20 + sizes[0]
    assert sizes[fall] == pytest.approx(sizes[0], rel=0.01)


SPOILED = {
    "line 3 is spoiled": lambda data: data[: data.index(b"\n", data.index(b"\n") + 1) + 1] + b"{\n" + data.split(b"\n", 3)[3],
    "Expected `object`": lambda data: data + msgspec.json.encode(PartLine(id="a", outcome=Raw(b"[1]"))) + b"\n",
    "expected `object`": lambda data: data + msgspec.json.encode(PartLine(head=Raw(b"7"))) + b"\n",
    "builds on 1 blocks, and 0 are there": lambda data: data + msgspec.json.encode(PartLine(id="a", outcome=Raw(b'{"blocks": []}'), blocks=1)) + b"\n",
    "builds on -1 parts, and 0 are there": lambda data: data + msgspec.json.encode(PartLine(id="a", outcome=Raw(b'{"parts": []}'), parts=-1)) + b"\n",
    "": lambda data: data[:5], "e": lambda data: data[:40], "n": lambda data: data[:45],
    "the run ended before it had written anything": lambda data: FIRST_LINE,
    "2": lambda data: data.replace(b'"schema_version":1', b'"schema_version":2', 1)}  # fmt: skip


@pytest.mark.parametrize("why", SPOILED)
def test_a_part_that_adds_up_to_nothing_is_refused(tmp_path, run, why):
    path = tmp_path / "a.json.part"
    store.Journal(path).write(run)
    path.write_bytes(SPOILED[why](path.read_bytes()))
    error = raised(InputError, store.load, path)
    assert why.lower() in error.why.lower()
    assert len(why) < 3 or "anything" in why or error.code == "bad-part"


def test_what_a_killed_run_left_stands_until_all_of_the_new_file_is_there(tmp_path, run, monkeypatch):
    path = tmp_path / "a.json.part"
    store.Journal(path).write(run)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            store.Journal(path).write(_grown(run, "warning", 1))
    assert (path.read_bytes(), [path]) == (before, list(tmp_path.iterdir()))


def test_a_write_that_fails_is_made_up_for_by_the_next(tmp_path, run, monkeypatch):
    path = tmp_path / "a.json.part"
    journal = store.Journal(path)
    journal.write(run)
    write = os.write
    # The first call writes half, the second finds the disk full.
    calls = itertools.cycle(
        (lambda file, data: write(file, bytes(data[: len(data) // 2])), failing(errno.ENOSPC))
    )
    for number in range(1, 4):
        run = _grown(run, "samples", number)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *words: next(calls)(*words))
            assert "No space" in str(raised(OSError, journal.write, run))
        assert len(store.load(path).outcomes[0].blocks) == number, "half a line is taken back"
        journal.write(run)
        assert store.load(path) == _stored(run)


# ---------------------------------------------------------------- a result and the .part beside it: decided by run id and sessions
TIMES = [(1, 2), (2, 1)]


def with_sessions(run, count, begin="2026-11-20T19"):
    sessions = [SessionRecord(index=i, started_at=f"{begin}:{i:02}:00.000Z") for i in range(count)]
    return replace(run, sessions=sessions)


def put(folder, whole, part, times=(1, 1)):
    path = folder / "a.json"
    journal = store.Journal(store.part_of(path))
    journal.write(part)
    journal.close()
    if whole is not None:
        store.save(whole, path)
        os.utime(path, (times[0], times[0]))
    os.utime(store.part_of(path), (times[1], times[1]))
    return path


@pytest.mark.parametrize("times", TIMES)
def test_more_sessions_of_the_run_go_on_with_it(tmp_path, run, times):
    path = put(tmp_path, with_sessions(run, 1), with_sessions(run, 10), times)
    assert store.part_to_resume(path) == store.part_of(path)
    assert store.newest_first([tmp_path]) == [store.part_of(path)], "one run is not there twice"
    assert store.set_aside(path, resumed=True) is None
    aside = store.set_aside(path, resumed=False)
    assert (aside, len(store.load(aside).sessions)) == (tmp_path / "a.123e4567.json.part", 10)


@pytest.mark.parametrize("times", TIMES)
def test_what_the_result_holds_already_is_not_gone_on_with(tmp_path, run, times):
    for part in (with_sessions(run, 2), with_sessions(run, 3)):
        path = put(tmp_path, with_sessions(run, 3), part, times)
        assert (store.part_to_resume(path), store.newest_first([tmp_path])) == (None, [path])
        assert (store.set_aside(path, resumed=True), store.set_aside(path, resumed=False)) == (None, None)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("how", ["another run", "other sessions"])
def test_what_neither_holds_is_kept_beside_it(tmp_path, run, times, how):
    """`run -o a.json` was killed where another run's a.json lay; or a copy went on elsewhere."""
    other = (replace(with_sessions(run, 10), id="ffffffff-e89b-42d3-a456-426614174000")
             if how == "another run"
             else with_sessions(run, 10, "2026-11-21T20"))  # fmt: skip
    path = put(tmp_path, with_sessions(run, 1), other, times)
    assert store.part_to_resume(path) is None
    assert set(store.newest_first([tmp_path])) == {path, store.part_of(path)}
    for again in range(2):
        aside = store.set_aside(path, resumed=True)
        assert aside is not None
        assert store.load(aside) == store.loads(store.dumps(other), "x")
        assert not store.part_of(path).exists()
        assert store.part_to_resume(str(aside).removesuffix(".part")) == aside, "--append takes it"
        if not again:
            put(tmp_path, None, other)
    assert len(list(tmp_path.glob("a.*.json.part"))) == 2, "nor does one replace the other"


def test_without_a_result_the_part_stands_for_it(tmp_path, run):
    path = put(tmp_path, None, with_sessions(run, 1))
    assert (store.part_to_resume(path), store.newest([tmp_path])) == (store.part_of(path), store.part_of(path))
    assert store.set_aside(path, resumed=True) is None
    assert store.set_aside(path, resumed=False) == tmp_path / "a.123e4567.json.part"


def test_a_part_that_cannot_be_read_is_neither_passed_over_nor_replaced(tmp_path, run):
    path = put(tmp_path, with_sessions(run, 1), with_sessions(run, 10))
    part = store.part_of(path)
    part.write_bytes(part.read_bytes().replace(b'"started_at"', b'"started_a\xff"', 1))
    assert part_relation(path) == "apart"
    assert raised(InputError, store.part_to_resume, path).code == "bad-part"
    assert store.set_aside(path, resumed=False) == tmp_path / "a.unreadable.json.part"
    assert part_relation(path) == "behind", "a run that has ended meanwhile has removed it"


@pytest.mark.parametrize(("suffix", "kept"), [(".json", ".json"), (".Json.Gz", ".Json.Gz"), ("", ".json")])
def test_what_is_kept_has_the_suffix_of_a_result(tmp_path, run, suffix, kept):
    path = tmp_path / f"a{suffix}"  # without a suffix it is what a link leads to
    store.Journal(store.part_of(path)).write(with_sessions(run, 1))
    assert store.set_aside(path, resumed=False) == tmp_path / f"a.123e4567{kept}.part"
