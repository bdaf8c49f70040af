"""Measure how often the advice of `gpubench advise` and `gpubench.Policy` is right, compared with constant
thresholds.

Run: .venv/bin/python benchmarks/advice.py [FILE]... (default: every result in results/; five minutes). It also
prints the time of one call. The exit code is always 0.

A question leaves out one size at which the CPU and another device were measured, and asks for advice at this
size. All measurements at the size are left out, including the measurements of other ops. The cost of an answer
is (the measured time of the advised device and implementation / the best time at the size) - 1. The cost of its
side uses the best implementation of the advised side instead, where a side is the CPU or all other devices
together. Each size is asked twice: once all devices of the file compete, and once each implementation of each
device alone competes with the CPU.

Two thresholds are judged on the same sizes, and on all sizes. The first is a size n that is fitted to the
remaining sizes of the op, dtype, regime and set of devices. The second is 100,000 elements of the first input.
For both, the best implementation of the chosen side counts.

Two more columns show the limit of every rule. One is how often the interval of the omitted times shows that the
answer is wrong. The other is the cost of an answer from the same size, measured in the other half of the blocks
or in another file.
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
from gpubench.analysis.machine import MOST_FILES
from gpubench.analysis.policy import Policy
from gpubench.analysis.speedup import ContenderKey, pair_ratio
from gpubench.curves import TimedSizes
from gpubench.kernels.contract.op import Implementation
from gpubench.result import store
from gpubench.result.case import QUEUED, WAITED
from gpubench.result.run import Run

RESULTS = Path(__file__).parents[1] / "results"
BAD, ELEMENTS = 0.05, 100_000


class Times(NamedTuple):
    """The times at one size."""

    by_implementation: dict[tuple[str, Implementation], float]  # seconds by (device, implementation)
    rows: dict[tuple[str, Implementation], CaseResult]  # cases by (device, implementation)
    cpu: float  # best seconds on the CPU
    other: float  # best seconds on another device

    def cost(self, *, cpu: bool) -> float:
        """Return (the best time of one side, the CPU or the other devices) / (the best time of all) - 1."""
        return (self.cpu if cpu else self.other) / min(self.cpu, self.other) - 1

    @property
    def best(self) -> tuple[str, Implementation]:
        return min(self.by_implementation, key=self.by_implementation.__getitem__)

    def halves(self) -> tuple[float, ...]:
        """Return, for each half of the blocks, the cost of the implementation that is fastest in the other
        half.

        The result is empty if there are fewer than four blocks.
        """
        blocks = {
            implementation: [*itertools.chain(*case.blocks.values())]
            for implementation, case in self.rows.items()
        }
        if min(map(len, blocks.values())) < 4:
            return ()
        halves = [
            {implementation: statistics.median(times[start::2]) for implementation, times in blocks.items()}
            for start in (0, 1)
        ]
        return tuple(
            judge[min(choice, key=choice.__getitem__)] / min(judge.values()) - 1
            for choice, judge in itertools.permutations(halves)
        )


class Question(NamedTuple):
    """One question of the benchmark: advice at a size that was left out of the data. A cost of None means that
    there was no answer, or that the advised device was not measured."""

    alone: bool  # whether one implementation of one device competes with the CPU
    regime: str  # id of the regime
    basis: str  # advice's `basis`
    confidence: str  # advice's `confidence`
    between: bool  # whether both sides were timed at a smaller and at a larger size
    answered: bool  # whether the advice names a device
    cost: float | None  # cost of the answer, as a share
    side: float | None  # cost of the best implementation of the advised side, as a share
    shown: bool  # whether the interval of the advised time / the best time lies above 1
    fitted: float  # cost, as a share, of the CPU below a fitted n and another device from it on
    # cost, as a share, of the CPU below 100,000 elements of the first input and another device from there on
    constant: float
    machine: Path  # folder of the result file, which stands for the machine
    key: Key  # what the calls have in common
    n: int  # size that was left out
    times: Times  # times at this size


def times_at(field: ContenderSet, n: int) -> Times | None:
    """Return the times at size n, or None if one of the two sides was not measured."""
    sides = [
        {
            (contender.device_id, contender.implementation): contender.points[n].time.estimate
            for contender in side
            if contender.is_timed_at(n)
        }
        for side in (field.cpu, field.others)
    ]
    if not all(sides):
        return None
    rows = {
        (contender.device_id, contender.implementation): contender.points[n].rows[0]
        for contender in field.contenders
        if contender.is_timed_at(n)
    }
    return Times({**sides[0], **sides[1]}, rows, *(min(side.values()) for side in sides))


class Field(NamedTuple):
    """An op, dtype, regime and set of devices of a file."""

    path: Path  # path of the file
    run: Run  # run in it
    key: Key  # what the calls have in common
    group: CaseGroup  # cases of the field
    regime: str  # id of the regime
    # the only device and implementation that competes with the CPU; None if all do
    alone: tuple[str, Implementation] | None

    def competes(self, contender: Contender) -> bool:
        return (
            self.alone is None
            or contender.kind == "cpu"
            or (contender.device_id, contender.implementation) == self.alone
        )

    def without(self, n: int, series: Mapping[ContenderKey, TimedSizes]) -> CaseGroup:
        """Return the group without the cases of size `n`, and with `series` as its times."""
        return CaseGroup(tuple(case for case in self.group.rows if case.case.params["n"] != n), (), series)


def fields(paths: Sequence[Path]) -> Iterator[list[Field]]:
    """Yield the fields of each op, dtype and regime of each file as a list.

    The first field of a list has all devices, and each further field has one implementation of one device.
    """
    for path in paths:
        run = store.load(path)
        for key, group in case_groups(run).items():
            implementations = {
                (case.case.device_id, case.case.implementation)
                for case in group.rows
                if case.device_kind != "cpu"
            }
            for regime in (WAITED, QUEUED, "transfer-always", f"transfer-once-{run.selection.calls}"):
                yield [
                    Field(path, run, key, group, regime, implementation)
                    for implementation in (None, *sorted(implementations))
                ]


def questions(paths: Sequence[Path]) -> Iterator[Question]:
    """Yield a question for each size of each field.

    The answer uses no measurement at the size, not even of another op, because ops share curves.
    """
    for same in fields(paths):
        first = same[0]
        every = list(contenders(first.group, first.regime))
        wholes = [
            compete(field.run, field.group, field.regime, [*filter(field.competes, every)]) for field in same
        ]
        measured = [{n: at for n in _sizes(whole) if (at := times_at(whole, n))} for whole in wholes]
        for n in sorted({*itertools.chain(*measured)}):
            series = {
                key: msgspec.structs.replace(
                    timed, blocks={size: blocks for size, blocks in timed.blocks.items() if size != n}
                )
                for key, timed in first.group.series.items()
            }
            rest = list(contenders(first.without(n, series), first.regime))
            for field, whole, times in zip(same, wholes, measured, strict=True):
                if n in times:
                    yield ask(field, rest, whole, times, n)


def ask(
    field: Field, rest: Sequence[Contender], whole: ContenderSet, measured: dict[int, Times], n: int
) -> Question:
    """Return the question for size `n`, with the answer and its cost by the times in `measured`. The answer comes
    from the contenders in `rest`, whose curves lack this size. `whole` tells which contenders are CPUs."""
    times = measured[n]
    contestants = [*filter(field.competes, rest)]
    implementations = {(contender.device_id, contender.implementation) for contender in contestants}
    group = field.without(n, {})
    rows = tuple(
        r
        for r in group.rows
        if r.device_kind == "cpu" or (r.case.device_id, r.case.implementation) in implementations
    )
    contest = compete(field.run, group._replace(rows=rows), field.regime, contestants)
    answer = advise(field.key, contest, choose(contest, n), n, field.regime)
    cost = side = None
    shown = False
    if answer.device_id is not None:
        side = times.cost(cpu=any(contender.device_id == answer.device_id for contender in whole.cpu))
        of_device = [s for (device, _), s in times.by_implementation.items() if device == answer.device_id]
        seconds = min(of_device, default=math.nan)
        if (answer.device_id, answer.implementation) in times.by_implementation:
            seconds = times.by_implementation[answer.device_id, answer.implementation]  # type: ignore[index]
            ratio = pair_ratio(times.rows[answer.device_id, answer.implementation], times.rows[times.best])  # type: ignore[index]
            shown = ratio is not None and ratio.low > 1
        cost = seconds / min(times.cpu, times.other) - 1
    if cost is not None and math.isnan(cost):
        cost = side = None  # the advised device was not measured at this size
    others = {size: at for size, at in measured.items() if size != n}
    elements = math.prod(kernels.load(field.key.op).inputs[0].shape({"n": n, **dict(field.key.params)}))
    between = all(
        any(contender.first < n < contender.last for contender in contestants)
        for contestants in (contest.cpu, contest.others)
    )
    return Question(
        field.alone is not None, field.regime, answer.basis, answer.confidence, between,
        answer.device_id is not None, cost, side, shown,
        times.cost(cpu=n < fit(others)), times.cost(cpu=elements < ELEMENTS), field.path.parent, field.key, n, times,
    )  # fmt: skip


def _sizes(field: ContenderSet) -> list[int]:
    return sorted({n for contender in field.contenders for n in contender.points})


def fit(measured: dict[int, Times]) -> float:
    """Return the threshold in n with the least cost on these sizes.

    It is the geometric mean of two neighbouring sizes, 0 (always the other device) or infinity (always the
    CPU).
    """
    sizes = sorted(measured)
    if not sizes:
        return math.inf
    limits = [0.0, *(math.sqrt(a * b) for a, b in itertools.pairwise(sizes)), math.inf]
    return min(limits, key=lambda limit: sum(math.log1p(measured[n].cost(cpu=n < limit)) for n in sizes))


def line(name: str, questions: Sequence[Question]) -> str:
    """Return one row of the table."""
    judged = [question for question in questions if question.cost is not None]
    answered = [question for question in questions if question.answered]
    clear = [question for question in answered if question.confidence == "clear"]
    between = [question.answered for question in questions if question.between]
    cells = [
        name, str(len(questions)), f"{len(answered) / len(questions):.0%}",
        f"{sum(between) / max(1, len(between)):.0%} of {len(between)}", _shares([question.cost for question in judged]),
        f"{sum(question.shown and question.cost > BAD for question in judged) / max(1, len(judged)):.1%}",  # type: ignore[operator]
        _shares([*itertools.chain(*(question.times.halves() for question in judged))]),
        _shares([question.side for question in judged]),
        f"{len(clear) / max(1, len(answered)):.0%}", _shares([question.cost for question in clear]),
        _shares([question.fitted for question in judged]), _shares([question.constant for question in judged]),
        _shares([question.fitted for question in questions]), _shares([question.constant for question in questions]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _shares(costs: Sequence[float | None]) -> str:
    """Return a text with the share of costs above BAD and the mean cost, or `-` without costs."""
    paid = [cost for cost in costs if cost is not None]
    return f"{sum(cost > BAD for cost in paid) / len(paid):.1%}, {statistics.mean(paid):.1%}" if paid else "-"


def table(questions: Sequence[Question]) -> Iterator[str]:
    """Yield the lines of the table. Its cells are `share above 5 %, mean cost`."""
    yield (
        "| | sizes left out | answered | between sizes | advice | shown wrong | half of its blocks | its side | clear "
        "| of these | fitted threshold | 100,000 elements | fitted, all sizes | 100,000, all sizes |"
    )
    yield "|---" * 14 + "|"
    for alone, name in (
        (False, "all devices compete"),
        (True, "one device and implementation against the CPU"),
    ):
        group = [question for question in questions if question.alone == alone]
        if group:
            yield line(name, group)
        for regime in sorted({question.regime for question in group}):
            yield line(f"- {regime}", [question for question in group if question.regime == regime])
        for word in ("clear", "close", "noisy"):
            if some := [question for question in group if question.confidence == word]:
                yield line(f"- {word}", some)


def again(questions: Sequence[Question]) -> str:
    """Return a line with the cost, in one file, of the implementation that was the fastest in another file of
    the same machine.

    Only sizes for which there is advice count.
    """
    same: dict[tuple[Path, Key, str, int], list[Times]] = {}
    for question in questions:
        if not question.alone and question.cost is not None:
            same.setdefault((question.machine, question.key, question.regime, question.n), []).append(
                question.times
            )
    costs = [
        there.by_implementation[here.best] / there.by_implementation[there.best] - 1
        for times in same.values()
        for here, there in itertools.permutations(times, 2)
        if here.best in there.by_implementation
    ]
    return f"all devices, measured there in another file of the machine: {_shares(costs)} of {len(costs)} pairs"


def cost_us(call: str, names: dict[str, object]) -> float:
    return min(timeit.repeat(call, globals=names, number=5000, repeat=7)) / 5000 * 1e6


def cost(path: Path) -> Iterator[str]:
    """Yield lines with the microseconds of one call of `choose`, and its ratio to one dictionary look-up by a
    tuple."""
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
        call_us = cost_us(call, names)
        yield f"  {name:19} {call_us:6.1f} us  {call_us / look_up:6.0f} x  {'ok' if call_us < 20 else 'above 20 us'}"


def main() -> None:
    paths = [Path(word) for word in sys.argv[1:]] or sorted(RESULTS.glob("*/*.json*"))
    answering = (path for path in paths if Policy.load(path).choose("matmul", shape=3000).device_id)
    answers = list(questions(paths))
    for text in (*table(answers), "", again(answers), "", *cost(next(answering, paths[0]))):
        print(text, flush=True)


if __name__ == "__main__":
    main()
