"""The exit code of what was learnt."""

import msgspec
import pytest

from gpubench.base.errors import ExitCode
from gpubench.measure.budget import LEAST_BLOCKS
from gpubench.measure.recorder import verdict
from gpubench.result.case import Case
from gpubench.result.machine import Machine
from gpubench.result.run import (
    Block,
    Check,
    Failure,
    Fingerprint,
    Fingerprints,
    Measurement,
    Planned,
    Run,
    Selection,
    Settings,
    Skip,
)

LEAST = 5
FEW = LEAST_BLOCKS - 1


def case(n):
    return Case("add", "vector", {"n": n}, "float32", "library", "resident", "numpy:0")


def measured(n, **samples):
    """A case with so many samples by phase, in one block each."""
    blocks = [
        Block(session=0, round=0, position=0, repeat=1, phase=phase, warmup=1, wall_s=[1.0] * (count + 1))
        for phase, count in samples.items()
    ]
    check = Check(ok=True, max_error=0.0, limit=1.0, scale="value")
    return Measurement(id=case(n).id, case=case(n), flops=1, bytes=1, op_hash="0", check=check, blocks=blocks)


FULL, SHORT = measured(1, main=LEAST), measured(2, main=LEAST - 1)
PLANNED = Planned(id=case(3).id, case=case(3))
SKIPPED = Skip(id=case(4).id, case=case(4), reason="out-of-memory", detail="")
CRASHED = Failure(id=case(5).id, case=case(5), reason="worker-crashed", detail="")
WRONG = Failure(id=case(6).id, case=case(6), reason="wrong-result", detail="")


def run(*outcomes, named=range(1, 10)):
    empty = Fingerprint(hash="0", fields={})
    return Run(
        id="0", started_at="t", selection=Selection(ops=["add"], sizes={"add": [*named]}), settings=Settings(min_samples=LEAST), machine=Machine(),
        fingerprint=Fingerprints(machine=empty, device=empty, software=empty), outcomes=[*outcomes],
    )  # fmt: skip


@pytest.mark.parametrize(("outcomes", "gone", "code", "reason"), [
    ([FULL], [], ExitCode.OK, "ok"), ([FULL, SKIPPED], [], ExitCode.OK, "ok"),
    ([FULL, SHORT], [], ExitCode.BUDGET, "budget"), ([FULL, PLANNED], [], ExitCode.BUDGET, "budget"),
    ([FULL, measured(7, main=LEAST - 1, estimate=20)], [], ExitCode.BUDGET, "budget"),
    ([FULL, measured(9)], [], ExitCode.BUDGET, "budget"), ([SKIPPED], [], ExitCode.FAILED, "nothing-measured"),
    ([FULL, SHORT], ["cupy:0"], ExitCode.UNAVAILABLE, "unavailable"),
    ([FULL, SHORT, CRASHED], ["cupy:0"], ExitCode.FAILED, "failed"),
    ([FULL, CRASHED, WRONG], [], ExitCode.FAILED, "wrong-result"),
])  # fmt: skip
def test_the_gravest_ending_is_told(outcomes, gone, code, reason):
    assert verdict(run(*outcomes), unavailable=gone) == (code, reason)
    assert verdict(run(*reversed(outcomes)), unavailable=gone) == (code, reason)


@pytest.mark.parametrize("lacking", [SHORT, PLANNED, measured(9)])
def test_what_a_search_left_open_is_no_failure(lacking):
    """Nobody named the size: the report says what is undecided."""
    assert verdict(run(FULL, lacking, named=[1])) == (ExitCode.OK, "ok")
    assert verdict(run(FULL, lacking)) == (ExitCode.BUDGET, "budget")


@pytest.mark.parametrize(("blocks", "code"), [(FEW, ExitCode.BUDGET), (LEAST_BLOCKS, ExitCode.OK)])
def test_long_launches_need_blocks_and_not_samples(blocks, code):
    """A block of a long launch holds a single sample."""
    whole = measured(1, main=1)
    assert verdict(run(msgspec.structs.replace(whole, blocks=whole.blocks * blocks)))[0] == code


def test_a_check_alone_needs_no_samples():
    assert verdict(run(measured(1)), check_only=True) == (ExitCode.OK, "ok")


@pytest.mark.parametrize("outcomes", [[measured(1), PLANNED], [PLANNED], [SKIPPED, PLANNED]])
def test_a_check_that_left_cases_out_is_out_of_time_whoever_chose_their_sizes(outcomes):
    for named in ([], [1], range(1, 10)):
        assert verdict(run(*outcomes, named=named), check_only=True) == (ExitCode.BUDGET, "budget")


def test_samples_that_heat_spoilt_are_no_lack_of_time():
    """They are used where too little else is left: the case has an estimate, and no budget was spent."""
    whole = measured(1, main=LEAST)
    (block,) = whole.blocks
    hot = msgspec.structs.replace(block, discarded=dict.fromkeys(("1", "2", "3"), "throttled"))
    assert verdict(run(msgspec.structs.replace(whole, blocks=[hot]))) == (ExitCode.OK, "ok")
