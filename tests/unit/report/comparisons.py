"""Comparisons that stand in tests/golden/comparisons.txt, as text, Markdown and CSV."""

from msgspec.structs import replace

from gpubench.compare.comparison import CompareOptions
from gpubench.result.case import selector
from tests.unit.report.builders import case, failed
from tests.unit.report.sides import (
    CASES,
    compared,
    first_replaced,
    noisy,
    on_machine,
    pair,
    started_late,
    throttled,
    with_blocks,
)


def changed(**more):
    return pair({CASES[1].id: 1.3, CASES[2].id: 0.7}, sigma=0.004, **more)


def broken():
    base, new = changed()
    return base, first_replaced(new, failed(CASES[0]))


def long():
    """Sixty cases, of which 25 are slower, one failed and one is missing."""
    cases = [case(n=2**i + j) for i in range(6, 16) for j in range(6)]
    slow = {item.id: 1.3 + 0.01 * i for i, item in enumerate(cases[:25])}
    base, new = pair(slow, sigma=0.002, cases=cases)
    return base, replace(new, outcomes=[*new.outcomes[:-2], failed(cases[-2])])


def slow_session(run):
    """The low ends of its cases lie close together, and the printed interval is wide."""
    return with_blocks(run, lambda b: replace(b, wall_s=[2 * x for x in b.wall_s]) if b.session == 0 else b)


def two_new():
    base, new = pair()
    return compared(base, new, None, started_late(new))


ELSEWHERE = CompareOptions(allow_different_machine=True)
IGNORED = CompareOptions(fail_on=("slower",), ignored=(selector("*"),))
# Name -> what makes the comparison, the format, the options.
COMPARISONS = {
    "a change": (lambda: compared(*changed()), "markdown", {}),
    **{f"a broken case in {name}": (lambda: compared(*broken()), name, {}) for name in ("markdown", "csv")},
    "no change": (lambda: compared(*pair(sigma=0.004)), "plain", {}),
    "a long one": (lambda: compared(*long(), CompareOptions(thresholds=((None, 0.1),))), "plain", {}),
    "few sessions": (lambda: compared(*pair({CASES[0].id: 1.1}, k=4)), "plain", {}),
    "one session": (lambda: compared(*pair({CASES[0].id: 6.0}, k=1)), "plain", {}),
    "noise": (lambda: compared(pair()[0], noisy(pair()[1], {CASES[0].id})), "plain", {}),
    "throttled": (lambda: compared(pair()[0], throttled(pair()[1]), CompareOptions(fail_on=("slower",))), "plain", {}),
    "a wide interval": (lambda: compared(*map(slow_session, pair(sigma=0.002))), "plain", {}),
    "one after the other": (two_new, "plain", {}),
    "another machine": (lambda: compared(*(on_machine(run, cpu=cpu) for run, cpu in zip(pair(), "AB", strict=True)), ELSEWHERE), "plain", {}),
    "the same file": (lambda: compared(pair()[0], pair()[0]), "plain", {}),
    "nothing compared": (lambda: compared(pair()[0], replace(pair()[1], outcomes=[failed(one) for one in CASES])), "plain", {}),
    "all ignored": (lambda: compared(*pair(), IGNORED), "plain", {}),
}  # fmt: skip
