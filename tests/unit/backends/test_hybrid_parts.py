"""The pieces of the split: shares in whole units, a second thread that hands back what it raised."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench.backends.hybrid import gpu_units, reserved_cores
from gpubench.backends.shared import sides
from gpubench.backends.shared.sides import CompanionThread, granule


def test_the_kind_of_a_session_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A assigned workload asks inside of its timed calls, and the question takes as long as a small kernel."""
    asked: list[object] = []

    class Asking(type):
        def __instancecheck__(cls, instance: object) -> bool:
            asked.append(instance)
            return False

        def __subclasscheck__(cls, kind: type) -> bool:
            asked.append(kind)
            return False

    class Pair(metaclass=Asking): ...

    class OtherSession: ...

    monkeypatch.setattr(sides, "HostViews", Pair)
    array: Any = object()
    for _ in range(3):
        assert sides.view_of(OtherSession(), array) is array  # type: ignore[arg-type]
    assert len(asked) == 1


@given(st.integers(2, 1 << 30), st.floats(0, 1))
def test_each_side_of_a_real_split_gets_something(units: int, gpu_share: float) -> None:
    found = gpu_units(units, gpu_share)
    if 0 < gpu_share < 1:
        assert 1 <= found <= units - 1
        assert abs(found / units - gpu_share) <= 1.5 * granule(units) / units
    else:
        assert found == gpu_share * units


@given(st.integers(2, 1 << 40), st.floats(0, 1))
@example(1_073_741_799, 0.9921875)
@example(5_293_057, 0.9999999999999999)  # a step and one unit more
def test_a_share_that_was_rounded_stays_as_it_is(units: int, gpu_share: float) -> None:
    """A later session gets the share from a file, with six digits."""
    found = gpu_units(units, gpu_share)
    assert gpu_units(units, float(f"{found / units:.6g}")) == found


@given(st.integers(2, 1 << 30), st.floats(0, 1), st.floats(0, 1))
def test_more_is_never_fewer(units: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert gpu_units(units, low) <= gpu_units(units, high)


def test_both_run_at_once_and_the_thread_is_prepared_once() -> None:
    entered: list[str] = []
    session: Any = SimpleNamespace(enter=lambda: entered.append(threading.current_thread().name))
    beside = CompanionThread(session)
    meeting = threading.Barrier(2, timeout=10)
    for _ in range(3):
        beside.both(meeting.wait, meeting.wait)  # each waits for the other: in turn they would never meet
    assert entered == ["gpubench-beside"]
    beside.close()
    beside.close()


def test_errors_of_either_side_come_back_and_the_next_work_runs() -> None:
    session: Any = SimpleNamespace(enter=lambda: None)
    beside = CompanionThread(session)
    done: list[int] = []

    def fail() -> None:
        raise ValueError("aside")

    with pytest.raises(ValueError, match="aside"):
        beside.both(fail, lambda: done.append(1))
    with pytest.raises(ValueError, match="aside"):
        beside.both(lambda: done.append(2), fail)
    beside.both(lambda: done.append(3), lambda: done.append(4))
    assert sorted(done) == [1, 2, 3, 4]
    beside.close()


@given(st.integers(1, 1024), st.booleans())
def test_most_cores_compute_and_where_there_are_three_one_moves_data(threads: int, several: bool) -> None:
    kept = reserved_cores(threads, several=several)
    assert 0 <= kept <= max(1, threads / (4 if several else 8))
    assert threads - kept >= 1
    assert (kept >= 1) == (threads >= 3)


def test_numpy_gives_threads_up_and_takes_them_back() -> None:
    from threadpoolctl import threadpool_info

    from gpubench import backends

    session = backends.load("numpy").open("numpy:0", 2)

    def blas() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    before = blas()
    session.use_threads(1)  # type: ignore[attr-defined]
    assert blas() <= {1}
    session.use_threads(None)  # type: ignore[attr-defined]
    assert blas() == before
    assert session.threads == 2
    session.close()
