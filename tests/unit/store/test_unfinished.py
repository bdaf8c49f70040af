"""Which of a result and the `.part` beside it holds more: decided by run id and sessions, whatever the times say."""

import os

import pytest
from msgspec.structs import replace

from gpubench.base.errors import InputError
from gpubench.result import store
from gpubench.result.run import Block, SessionRecord
from gpubench.result.store.journal import part_relation
from tests.raising import raised

TIMES = [(1, 2), (2, 1)]


def with_sessions(run, count, begin="2026-11-20T19"):
    sessions = [SessionRecord(index=i, started_at=f"{begin}:{i:02}:00.000Z") for i in range(count)]
    return replace(run, sessions=sessions)


def with_blocks(run, count):
    block = Block(session=0, round=0, position=0, repeat=4, wall_s=[0.25, 0.5])
    first, *rest = run.outcomes
    return replace(run, outcomes=[replace(first, blocks=[block] * count), *rest])


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
