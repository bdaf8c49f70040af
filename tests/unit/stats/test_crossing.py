"""Which samples of a result file make a break-even: the fresh ones that count, and no others."""

from __future__ import annotations

import msgspec
import pytest

from gpubench import break_even
from gpubench.model.result import Block, Measurement, Run
from tests.unit.report.builders import case, measured, run_of

TRUE = 110.0
SIZES = (80, 90, 100, 112, 125, 140, 157)
WRONG = 50.0  # as a factor of one side's time: any such sample that counted would move the answer far away


def fresh(session: int, seconds: float, **changes: object) -> Block:
    block = Block(session=session, round=1, position=0, repeat=1000, phase="estimate", wall_s=[seconds] * 5)
    return msgspec.structs.replace(block, **changes)


def a_run(blocks_of, sessions: int = 3, *, form: str = "library") -> Run:
    """Fresh timings of both sides without noise; `blocks_of(session, seconds)` are the blocks of the device's."""
    found: list[Measurement] = []
    for n in SIZES:
        base = [fresh(i, 1e-3 * (n / TRUE) ** 1.5) for i in range(sessions)]
        found.append(msgspec.structs.replace(measured(case(n=n), 1.0), blocks=base))
        device = [block for i in range(sessions) for block in blocks_of(i, 1e-3)]
        found.append(
            msgspec.structs.replace(measured(case(n=n, device="cupy:0", form=form), 1.0), blocks=device)
        )
    return run_of(found, sessions=sessions)


def n_of(run: Run, **options: object) -> float | None:
    found = break_even.fresh_crossing(run, [case(n=80)], case(n=80, device="cupy:0"), **options)
    return None if found is None else found.n


def test_the_root_of_what_was_timed_for_it():
    assert n_of(a_run(lambda i, s: [fresh(i, s)])) == pytest.approx(TRUE)


@pytest.mark.parametrize(
    "blocks",
    [
        lambda i, s: [fresh(i, s), fresh(i, s * WRONG, phase="search"), fresh(i, s * WRONG, phase="main")],
        lambda i, s: [fresh(i, s, wall_s=[s * WRONG] * 4 + [s] * 3, warmup=4)],
        lambda i, s: [fresh(i, s, wall_s=[s] * 3 + [s * WRONG] * 4, discarded={str(k): "throttled" for k in range(3, 7)})],
        lambda i, s: [fresh(i, s, wall_s=[s, s, s, 0.0, 0.0, 0.0, 0.0])],
    ],
    ids=["search", "warm-up", "throttled", "nothing"],
)  # fmt: skip
def test_other_samples_take_no_part(blocks):
    assert n_of(a_run(blocks)) == pytest.approx(TRUE)


def test_a_superseded_session_takes_no_part():
    run = a_run(lambda i, s: [fresh(i, s * (WRONG if i else 1.0))])
    records = [msgspec.structs.replace(x, superseded=x.index > 0) for x in run.sessions]
    assert n_of(msgspec.structs.replace(run, sessions=records)) == pytest.approx(TRUE)
    assert n_of(run) != pytest.approx(TRUE, rel=0.5)


def test_too_few_samples_and_cases_that_are_not_believed_tell_nothing():
    assert n_of(a_run(lambda i, s: [fresh(i, s, wall_s=[s] * 2)])) is None
    assert n_of(a_run(lambda i, s: [fresh(i, s, phase="main")])) is None
    believed = a_run(lambda i, s: [fresh(i, s)])
    ids = {case(n=n, device="cupy:0").id for n in SIZES}
    assert n_of(believed, without=ids) is None


def test_the_pair_of_forms_with_the_most_timings_answers():
    run = a_run(lambda i, s: [fresh(i, s)])
    tuned = [
        msgspec.structs.replace(measured(case(n=n, device="cupy:0", form="tuned"), 1.0), blocks=[fresh(0, 1e-3 * WRONG)])
        for n in SIZES
    ]  # fmt: skip
    assert n_of(msgspec.structs.replace(run, outcomes=[*tuned, *run.outcomes])) == pytest.approx(TRUE)


def test_the_cpu_at_the_crossing_need_not_be_the_one_at_the_largest_size():
    run = a_run(lambda i, s: [fresh(i, s)])
    largest = case(n=2 * SIZES[-1], device="torch:cpu")
    found = break_even.fresh_crossing(run, [case(n=80), largest], case(n=80, device="cupy:0"))
    assert found is not None
    assert found.n == pytest.approx(TRUE)
    assert break_even.fresh_crossing(run, [largest], case(n=80, device="cupy:0")) is None
