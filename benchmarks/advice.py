"""How often `gpubench advise` and `gpubench.Policy` are right, beside constant thresholds; and what a call takes.

Run: .venv/bin/python benchmarks/advice.py [FILE]... (default: every result in results/; five minutes).

Every size at which a CPU and another device were measured is left out once, with all that was measured there, of other
ops too, and asked for. What the answer costs is the measured time of the advised device and form over the best that was
measured there, less 1; what its side costs, that of the best form there of the CPU, or of all else. Once all devices of
the file compete, once each form of each device alone against the CPU. Beside it, on the same sizes and on all: a
threshold in the size n, fitted for each op, dtype, regime and set of devices to the sizes that are left, and 100,000
elements of the first input; both take the best form of the side that they choose. What no rule can know stands beside
it, too: how often the interval of the times left out shows that the answer is wrong, and what an answer costs that is
measured at the very size, in the other half of its blocks or in another file of the machine. Exit code 0 in any case.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import timeit
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpubench import kernels
from gpubench.analysis.advice import advise
from gpubench.analysis.contenders import (
    CaseGroup,
    Contender,
    ContenderSet,
    Key,
    case_groups,
    choose,
    compete,
    contenders,
)
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.policy import MOST_FILES, Policy
from gpubench.analysis.speedup import ContenderKey, pair_ratio
from gpubench.curves import TimedSizes
from gpubench.kernels.contract.op import Form
from gpubench.result import store
from gpubench.result.case import QUEUED, WAITED
from gpubench.result.run import Run

RESULTS = Path(__file__).parents[1] / "results"
BAD, ELEMENTS = 0.05, 100_000


class Times(NamedTuple):
    """What was measured at one size: seconds by device and form with their cases, and the best of either side."""

    by_form: dict[tuple[str, Form], float]
    rows: dict[tuple[str, Form], CaseResult]
    cpu: float
    other: float

    def cost(self, *, cpu: bool) -> float:
        """Of the side that is chosen, by its best form."""
        return (self.cpu if cpu else self.other) / min(self.cpu, self.other) - 1

    @property
    def best(self) -> tuple[str, Form]:
        return min(self.by_form, key=self.by_form.__getitem__)

    def halves(self) -> tuple[float, ...]:
        """What the form costs in one half of the blocks that is the fastest in the other half; none of few blocks."""
        blocks = {form: [*itertools.chain(*row.blocks.values())] for form, row in self.rows.items()}
        if min(map(len, blocks.values())) < 4:
            return ()
        halves = [
            {form: statistics.median(ours[start::2]) for form, ours in blocks.items()} for start in (0, 1)
        ]
        return tuple(
            judge[min(choice, key=choice.__getitem__)] / min(judge.values()) - 1
            for choice, judge in itertools.permutations(halves)
        )


class Question(NamedTuple):
    """One size, left out and asked for. Costs are shares, `side` that of the best form on the advised side; None:
    unknown, or the answer was not measured. `between`: whether both sides were timed below and above. `shown`: whether
    the interval of the advised time over the best one lies above 1."""

    alone: bool
    regime: str
    basis: str
    confidence: str
    between: bool
    answered: bool
    cost: float | None
    side: float | None
    shown: bool
    fitted: float
    constant: float
    machine: Path
    key: Key
    n: int
    times: Times


def times_at(field: ContenderSet, n: int) -> Times | None:
    """None where one side was not measured."""
    sides = [
        {(one.device_id, one.form): one.points[n].time.estimate for one in side if one.is_timed_at(n)}
        for side in (field.cpu, field.others)
    ]
    if not all(sides):
        return None
    rows = {(one.device_id, one.form): one.points[n].rows[0] for one in field.contenders if one.is_timed_at(n)}
    return Times({**sides[0], **sides[1]}, rows, *(min(side.values()) for side in sides))


class Field(NamedTuple):
    """An op, dtype, regime and set of devices of a file; `alone`: one device and form against the CPU."""

    path: Path
    run: Run
    key: Key
    group: CaseGroup
    regime: str
    alone: tuple[str, Form] | None

    def chosen(self, one: Contender) -> bool:
        return self.alone is None or one.kind == "cpu" or (one.device_id, one.form) == self.alone

    def without(self, n: int, series: Mapping[ContenderKey, TimedSizes]) -> CaseGroup:
        """The cases of other sizes."""
        return CaseGroup(tuple(row for row in self.group.rows if row.case.params["n"] != n), (), series)


def fields(paths: Sequence[Path]) -> Iterator[list[Field]]:
    """Every op, dtype and regime of every file: all devices first, then each form of each device."""
    for path in paths:
        run = store.load(path)
        for key, group in case_groups(run).items():
            forms = {(row.case.device_id, row.case.form) for row in group.rows if row.device_kind != "cpu"}
            for regime in (WAITED, QUEUED, "transfer-always", f"transfer-once-{run.selection.calls}"):
                yield [Field(path, run, key, group, regime, form) for form in (None, *sorted(forms))]


def questions(paths: Sequence[Path]) -> Iterator[Question]:
    """Each size of each field, asked for without what was measured there, of other ops neither: curves share that."""
    for same in fields(paths):
        first = same[0]
        every = list(contenders(first.group, first.regime))
        wholes = [
            compete(field.run, field.group, field.regime, [*filter(field.chosen, every)]) for field in same
        ]
        measured = [{n: at for n in _sizes(whole) if (at := times_at(whole, n))} for whole in wholes]
        for n in sorted({*itertools.chain(*measured)}):
            series = {
                key: msgspec.structs.replace(
                    one, blocks={size: blocks for size, blocks in one.blocks.items() if size != n}
                )
                for key, one in first.group.series.items()
            }
            rest = list(contenders(first.without(n, series), first.regime))
            for field, whole, times in zip(same, wholes, measured, strict=True):
                if n in times:
                    yield ask(field, rest, whole, times, n)


def ask(
    field: Field, rest: Sequence[Contender], whole: ContenderSet, measured: dict[int, Times], n: int
) -> Question:
    """The question for one size, answered by the contenders that are left."""
    times = measured[n]
    ours = [*filter(field.chosen, rest)]
    forms = {(one.device_id, one.form) for one in ours}
    group = field.without(n, {})
    rows = tuple(r for r in group.rows if r.device_kind == "cpu" or (r.case.device_id, r.case.form) in forms)
    cut = compete(field.run, group._replace(rows=rows), field.regime, ours)
    answer = advise(field.key, cut, choose(cut, n), n, field.regime)
    cost = side = None
    shown = False
    if answer.device_id is not None:
        side = times.cost(cpu=any(one.device_id == answer.device_id for one in whole.cpu))
        of_device = [s for (device, _), s in times.by_form.items() if device == answer.device_id]
        seconds = min(of_device, default=math.nan)
        if (answer.device_id, answer.form) in times.by_form:
            seconds = times.by_form[answer.device_id, answer.form]  # type: ignore[index]
            ratio = pair_ratio(times.rows[answer.device_id, answer.form], times.rows[times.best])  # type: ignore[index]
            shown = ratio is not None and ratio.low > 1
        cost = seconds / min(times.cpu, times.other) - 1
    if cost is not None and math.isnan(cost):
        cost = side = None  # the advised device was not measured at this size
    others = {size: found for size, found in measured.items() if size != n}
    elements = math.prod(kernels.load(field.key.op).inputs[0].shape({"n": n, **dict(field.key.params)}))
    between = all(any(one.first < n < one.last for one in contestants) for contestants in (cut.cpu, cut.others))
    return Question(
        field.alone is not None, field.regime, answer.basis, answer.confidence, between,
        answer.device_id is not None, cost, side, shown,
        times.cost(cpu=n < fitted(others)), times.cost(cpu=elements < ELEMENTS), field.path.parent, field.key, n, times,
    )  # fmt: skip


def _sizes(field: ContenderSet) -> list[int]:
    return sorted({n for one in field.contenders for n in one.points})


def fitted(measured: dict[int, Times]) -> float:
    """The threshold in n that costs least on these sizes, in the middle (of the logarithms) between two of them."""
    sizes = sorted(measured)
    if not sizes:
        return math.inf
    cuts = [0.0, *(math.sqrt(a * b) for a, b in itertools.pairwise(sizes)), math.inf]
    return min(cuts, key=lambda cut: sum(math.log1p(measured[n].cost(cpu=n < cut)) for n in sizes))


def line(name: str, found: Sequence[Question]) -> str:
    """One row of the table."""
    known = [one for one in found if one.cost is not None]
    answered = [one for one in found if one.answered]
    clear = [one for one in answered if one.confidence == "clear"]
    between = [one.answered for one in found if one.between]
    cells = [
        name, str(len(found)), f"{len(answered) / len(found):.0%}",
        f"{sum(between) / max(1, len(between)):.0%} of {len(between)}", _shares([one.cost for one in known]),
        f"{sum(one.shown and one.cost > BAD for one in known) / max(1, len(known)):.1%}",  # type: ignore[operator]
        _shares([*itertools.chain(*(one.times.halves() for one in known))]),
        _shares([one.side for one in known]),
        f"{len(clear) / max(1, len(answered)):.0%}", _shares([one.cost for one in clear]),
        _shares([one.fitted for one in known]), _shares([one.constant for one in known]),
        _shares([one.fitted for one in found]), _shares([one.constant for one in found]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _shares(costs: Sequence[float | None]) -> str:
    """The share that costs more than BAD, and the mean cost."""
    paid = [cost for cost in costs if cost is not None]
    return f"{sum(cost > BAD for cost in paid) / len(paid):.1%}, {statistics.mean(paid):.1%}" if paid else "-"


def table(found: Sequence[Question]) -> Iterator[str]:
    """Shares as `more than 5 %, mean cost`."""
    yield (
        "| | sizes left out | answered | between sizes | advice | shown wrong | half of its blocks | its side | clear "
        "| of these | fitted threshold | 100,000 elements | fitted, all sizes | 100,000, all sizes |"
    )
    yield "|---" * 14 + "|"
    for alone, name in ((False, "all devices compete"), (True, "one device and form against the CPU")):
        ours = [one for one in found if one.alone == alone]
        if ours:
            yield line(name, ours)
        for regime in sorted({one.regime for one in ours}):
            yield line(f"- {regime}", [one for one in ours if one.regime == regime])
        for word in ("clear", "close", "noisy"):
            if some := [one for one in ours if one.confidence == word]:
                yield line(f"- {word}", some)


def again(found: Sequence[Question]) -> str:
    """What the fastest form of one file costs in another of the same machine, at the sizes that advice answers."""
    same: dict[tuple[Path, Key, str, int], list[Times]] = {}
    for one in found:
        if not one.alone and one.cost is not None:
            same.setdefault((one.machine, one.key, one.regime, one.n), []).append(one.times)
    costs = [
        theirs.by_form[ours.best] / theirs.by_form[theirs.best] - 1
        for times in same.values()
        for ours, theirs in itertools.permutations(times, 2)
        if ours.best in theirs.by_form
    ]
    return f"all devices, measured there in another file of the machine: {_shares(costs)} of {len(costs)} pairs"


def cost_us(call: str, names: dict[str, object]) -> float:
    return min(timeit.repeat(call, globals=names, number=5000, repeat=7)) / 5000 * 1e6


def cost(path: Path) -> Iterator[str]:
    """What one call of `choose` takes, as a ratio to one dictionary look-up by a tuple, and in microseconds."""
    policy = Policy.load(path)
    op = next((name for name in ("matmul", *policy.ops) if name in policy.ops), None)
    if op is None:
        return
    many = Policy([store.load(path)] * MOST_FILES)
    names: dict[str, object] = {"policy": policy, "many": many, "table": {(op, "float32"): 1}, "op": op}
    look_up = cost_us("table[op, 'float32']", names)
    yield f"cost of one call, {path.name}, {op}; one dictionary look-up is {look_up * 1e3:.0f} ns"
    for name, call in (
        ("n", "policy.choose(op, shape=3000)"),
        ("n, queued", "policy.choose(op, shape=3000, regime='resident-queued')"),
        ("n, once-37", "policy.choose(op, shape=3000, regime='transfer-once-37')"),
        ("n, hybrid", "policy.choose(op, shape=3000, hybrid=True)"),
        ("array shape", "policy.choose(op, shape=(3000, 3000))"),
        ("both shapes", "policy.choose(op, shape=[(3000, 3000), (3000, 3000)])"),
        ("20 files, no answer", "many.choose(op, shape=10**9)"),
    ):  # fmt: skip
        found = cost_us(call, names)
        yield f"  {name:19} {found:6.1f} us  {found / look_up:6.0f} x  {'ok' if found < 20 else 'above 20 us'}"


def main() -> None:
    paths = [Path(word) for word in sys.argv[1:]] or sorted(RESULTS.glob("*/*.json*"))
    known = (path for path in paths if Policy.load(path).choose("matmul", shape=3000).device_id)
    found = list(questions(paths))
    for text in (*table(found), "", again(found), "", *cost(next(known, paths[0]))):
        print(text, flush=True)


if __name__ == "__main__":
    main()
