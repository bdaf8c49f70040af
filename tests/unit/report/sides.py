"""Two sides of a comparison: runs whose sessions have the time that a test gives them."""

import random

from msgspec.structs import replace

from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.result.case import selector
from gpubench.result.run import Block, Fingerprint
from tests.unit.report.builders import QUIET, case, failed, measured, run_of

CASES = tuple(case(n=n) for n in (64, 128, 256, 512))


def timed(what, session_s, **changes):
    """A case that took `session_s[i]` in session i, give or take half a percent within it."""
    blocks = [
        Block(session=i, round=0, position=0, repeat=10_000, wall_s=[seconds * factor for factor in QUIET])
        for i, seconds in enumerate(session_s)
    ]
    return replace(measured(what, 1.0), blocks=blocks, **changes)


def a_run(outcomes, sessions=5, *, second=0, **changes):
    """A run whose sessions start every two seconds from `second` on: 0 and 1 take turns."""
    run = run_of(outcomes, sessions=sessions)
    sizes: dict[str, list[int]] = {}
    for outcome in outcomes:
        sizes.setdefault(outcome.case.op, []).append(outcome.case.params["n"])
    starts = [f"2026-01-02T03:{2 * i // 60:02}:{(2 * i + second) % 60:02}Z" for i in range(sessions)]
    records = [replace(record, started_at=at) for record, at in zip(run.sessions, starts, strict=True)]
    own = {"id": f"00000000-0000-4000-8000-{second:012}", "selection": replace(run.selection, sizes=sizes)}
    return replace(run, sessions=records, **{**own, **changes})


def pair(slow=None, *, k=5, sigma=0.01, seed=1, cases=CASES):
    """Base and new in turns; `slow` maps case ids to new / base, sessions vary by `sigma`."""
    chance = random.Random(seed)

    def times(factor):
        return [1e-3 * factor * (1 + chance.gauss(0, sigma)) for _ in range(k)]

    base = a_run([timed(what, times(1.0)) for what in cases], k)
    return base, a_run([timed(what, times((slow or {}).get(what.id, 1.0))) for what in cases], k, second=1)


def on_machine(run, **fields):
    prints = replace(run.fingerprint, machine=Fingerprint(hash="1" * 12, fields=fields))
    return replace(run, fingerprint=prints)


def compared(base, new, options=None, *more):
    news = [("new.json", new), *((f"new {i}", run) for i, run in enumerate(more, 2))]
    return compare(("base.json", base), news, options or CompareOptions())


def verdicts(comparison):
    return [row.verdict for row in comparison.cases]


def gate(comparison, name):
    return next(gate for gate in comparison.gates if gate.name == name)


def with_blocks(run, change, ids=None):
    """The run with every block changed, or those of the cases `ids`."""
    outcomes = [
        replace(row, blocks=[change(block) for block in row.blocks]) if ids is None or row.id in ids else row
        for row in run.outcomes
    ]
    return replace(run, outcomes=outcomes)


def with_first(run, *outcomes):
    return replace(run, outcomes=[*outcomes, *run.outcomes[1:]])


def started_late(run):
    """The run whose sessions all began after those of any other."""
    return replace(run, sessions=[replace(one, started_at="2026-02-02T00:00:00Z") for one in run.sessions])


def clocked(run, hertz):
    return with_blocks(run, lambda block: replace(block, clock_hz=[hertz]))


def throttled(run, ids=None):
    every = {str(i): "throttled" for i in range(len(QUIET))}
    return with_blocks(run, lambda block: replace(block, discarded=every), ids)


def contended(run, share=0.5):
    return replace(run, sessions=[replace(session, foreign_cpu_share=share) for session in run.sessions])


def noisy(run, ids):
    wide = (0.8, 1.2, 0.85, 1.15, 1.0, 1.0, 0.82, 1.18, 0.9, 1.1)
    return with_blocks(run, lambda block: replace(block, wall_s=[1e-3 * factor for factor in wide]), ids)


def untrue(run, ids=None):
    """A sample of less than 100 steps of its clock is no measurement."""
    return with_blocks(run, lambda block: replace(block, repeat=1, wall_s=[1e-9] * 10), ids)


# ---------------------------------------------------------------- comparisons of tests/golden/comparisons.txt
def changed(**more):
    return pair({CASES[1].id: 1.3, CASES[2].id: 0.7}, sigma=0.004, **more)


def broken():
    base, new = changed()
    return base, with_first(new, failed(CASES[0]))


def long():
    """Sixty cases, of which 25 are slower, one failed and one is missing."""
    cases = [case(n=2**i + j) for i in range(6, 16) for j in range(6)]
    base, new = pair({item.id: 1.3 + 0.01 * i for i, item in enumerate(cases[:25])}, sigma=0.002, cases=cases)
    return base, replace(new, outcomes=[*new.outcomes[:-2], failed(cases[-2])])


def slow_session(run):
    """The low ends of its cases lie close together, and the printed interval is wide."""
    return with_blocks(run, lambda b: replace(b, wall_s=[2 * x for x in b.wall_s]) if b.session == 0 else b)


def with_ends(lo, hi):
    """Cases that are the same, between these ends of their intervals."""
    found = compared(*pair(sigma=0.002))
    return replace(found, cases=[replace(row, lo=lo, hi=hi, threshold=0.05) for row in found.cases])


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
    "a wide interval": (lambda: compared(*map(slow_session, pair({CASES[0].id: 1.3}, sigma=0.002))), "plain", {}),
    **{f"the same from {lo:.3g} to {hi}": (lambda lo=lo, hi=hi: with_ends(lo, hi), "plain", {}) for lo, hi in ((1 / 1.05, 1.05), (0.99, 1.06), (0.95, 1.01))},
    "one after the other": (lambda: compared(*pair(), None, started_late(pair()[1])), "plain", {}),
    "another machine": (lambda: compared(*(on_machine(run, cpu=cpu) for run, cpu in zip(pair(), "AB", strict=True)), ELSEWHERE), "plain", {}),
    "the same file": (lambda: compared(pair()[0], pair()[0]), "plain", {}),
    "nothing compared": (lambda: compared(pair()[0], replace(pair()[1], outcomes=[failed(one) for one in CASES])), "plain", {}),
    "all ignored": (lambda: compared(*pair(), IGNORED), "plain", {}),
}  # fmt: skip
