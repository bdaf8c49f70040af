"""What `gpubench.Policy` costs a call, and how often its interpolation is right.

Run: .venv/bin/python benchmarks/policy.py [FILE]... (default: every result in results/). Cost: `choose` as a ratio to
one dictionary look-up by a tuple, and in microseconds. Truth: every measured size but the ends is left out once and
predicted from the rest, across a gap twice as wide as any real one: is the time inside the interval, is the device the
one that measurement names, and if not, how much longer does it take? Exit code 0 in any case.
"""

from __future__ import annotations

import statistics
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

from gpubench import store
from gpubench.report.analysis.contest import Choice, Contender, Field, choose, families, field
from gpubench.report.analysis.cost_curves import curve
from gpubench.report.policy import Policy
from gpubench.report.results import MOST_FILES

RESULTS = Path(__file__).parents[1] / "results"
WIDEST_GAP = 20  # of two steps; wider ones do not occur in a ladder of factor 4


def fields(paths: list[Path]) -> Iterator[Field]:
    """Every op, dtype and regime of every file that compares two sides."""
    for path in paths:
        run = store.load(path)
        for family in families(run).values():
            found = [field(run, family, calls) for calls in (None, 1, run.selection.calls)]
            yield from (one for one in found if one.two_sided)


def without(one: Contender, n: int) -> Contender:
    return one._replace(curve=curve(point for point in one.curve.points if point.n != n))


def left_out(one: Field) -> Iterator[tuple[int, float, Field]]:
    """(n, gap factor, the field without n) for every size that all curves have between two others."""
    everyone = (*one.cpu, *one.others)
    shared = sorted(set.intersection(*(set(who.curve.sizes) for who in everyone)))
    for below, n, above in zip(shared, shared[1:], shared[2:], strict=False):
        if above <= below * WIDEST_GAP:
            cut = one._replace(
                cpu=tuple(without(who, n) for who in one.cpu),
                others=tuple(without(who, n) for who in one.others),
            )
            yield n, above / below, cut


def truth(paths: list[Path]) -> None:
    errors, covered, decided, regrets = [], 0, 0, []
    for one in fields(paths):
        for n, _, cut in left_out(one):
            for whole, part in zip((*one.cpu, *one.others), (*cut.cpu, *cut.others), strict=True):
                expected, real = part.curve.expected(n), whole.curve.expected(n)
                if expected is not None and real is not None:
                    errors.append(abs(expected.time.estimate / real.time.estimate - 1))
                    covered += expected.time.low <= real.time.high and real.time.low <= expected.time.high
            found, right = choose(cut, n), choose(one, n)
            if found.best is not None and right.best is not None:
                decided += 1
                regrets.append(really(one, found, n) / right.seconds - 1)
    if not errors:
        print("interpolation: no file has three sizes of one op on two devices")
        return
    wrong = [regret for regret in regrets if regret > 0]
    print(f"interpolation: {len(errors)} times left out; error {statistics.median(errors):.1%} in the median")
    print(f"  the intervals meet in {covered / len(errors):.1%}")
    print(f"device: {decided} decisions, {1 - len(wrong) / decided:.1%} as measured")
    if wrong:
        print(f"  where it is another one, it takes {statistics.median(wrong):.1%} longer in the median")
    print(f"  over all decisions {statistics.mean(regrets):.2%} longer than the best device")


def really(one: Field, found: Choice, n: int) -> float:
    """The measured time of the device and form that was chosen without it."""
    assert found.best is not None
    for who in (*one.cpu, *one.others):
        if (who.device_id, who.form) == (found.best.device_id, found.best.form):
            seconds = who.curve.seconds(n)
            if seconds is not None:
                return seconds
    raise AssertionError("a chosen device has a measured time")


def cost_us(call: str, names: dict[str, object]) -> float:
    return min(timeit.repeat(call, globals=names, number=5000, repeat=7)) / 5000 * 1e6


def cost(path: Path) -> None:
    policy = Policy.load(path)
    op = next((name for name in ("matmul", *policy.ops) if name in policy.ops), None)
    if op is None:
        return
    many = Policy([store.load(path)] * MOST_FILES)
    names: dict[str, object] = {"policy": policy, "many": many, "table": {(op, "float32"): 1}, "op": op}
    look_up = cost_us("table[op, 'float32']", names)
    print(f"cost of one call, {path.name}, {op}; one dictionary look-up is {look_up * 1e3:.0f} ns")
    for name, call in (
        ("n", "policy.choose(op, shape=3000)"), ("n, resident", "policy.choose(op, shape=3000, regime='resident')"),
        ("n, once-37", "policy.choose(op, shape=3000, regime='transfer-once-37')"),
        ("n, hybrid", "policy.choose(op, shape=3000, hybrid=True)"),
        ("array shape", "policy.choose(op, shape=(3000, 3000))"),
        ("both shapes", "policy.choose(op, shape=[(3000, 3000), (3000, 3000)])"),
        ("20 files, no answer", "many.choose(op, shape=10**9)"),
    ):  # fmt: skip
        found = cost_us(call, names)
        print(f"  {name:19} {found:6.1f} us  {found / look_up:6.0f} x  {'ok' if found < 20 else 'above 20 us'}")


def main() -> None:
    given = [Path(word) for word in sys.argv[1:]]
    paths = given or sorted(RESULTS.glob("*/*.json"))
    cost(paths[0])
    truth(paths)


if __name__ == "__main__":
    main()
