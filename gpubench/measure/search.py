"""The search for break-evens in a run's first session.

Op by op, those that cost little first: its ends, so that it has an answer at its largest size: a low and a middle size,
which tell what the top takes, then the top, halved until it fits the op's share of the time. Then the sizes that tell
where its curves cross, with the forms alone that compete there, as long as the ends of all other ops still fit. What is
left at the end goes to curves that are still open, and then, of a long budget, to narrower thresholds.

What the search asks for next depends on what was measured so far, so it hands out one step at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpubench import break_even, stats
from gpubench.measure import curves
from gpubench.measure.curves import Curve, CurveState, Rows, Slot, slot
from gpubench.measure.plan import MAIN, Constraints, Purpose, Series, Workload, together, workload
from gpubench.measure.recorder import Recorder
from gpubench.model.case import QUEUED, WAITED, Case
from gpubench.model.op import Ladder
from gpubench.model.result import RunWarning

# High / low of a threshold that is an answer, and of one that nobody needs closer: a budget beyond LONG_BUDGET_S asks
# for that.
ANSWERED, CLOSE = 2.25, 1.5
LONG_BUDGET_S = 60.0
# The middle size of a visit lies so far up its ladder, by ratio: a launch there takes long enough to tell of the top.
MIDDLE = 0.7
# The ends of an op may take so many times its share before the top is halved, and it is halved so often. With a tenth
# more the tops of cheap ops left nothing for matmul in a machine's first run without a GPU. Where low and middle alone
# took more (inference on an H200: 8 s, of a share of 6), a top of 10 s left nothing for the last two ops.
ENDS_SHARE, HALVINGS = 1.4, 6
# The ends of an op to come are expected to take so many times those of the ops so far, which were the cheaper ones; far
# more if it has more than HEAVY times the work of the last one.
RESERVE, HEAVY_RESERVE, HEAVY = 1.05, 3.0, 10
# Launches of each case beside its blocks: first, trials, checks. A reference in float64 takes as long as so many of the
# slowest launches.
LAUNCHES_BESIDE, REFERENCE_LAUNCHES = 3, 4
# Steps of a visit beyond the top, sizes a curve asks for in one, and those beyond the threshold that are checked.
MOST_STEPS, MOST_ASKED, MOST_CHECKS = 4, 2, 3
# What people ask for first has more of a say in the order of sizes: a call that is waited for, then one that copies.
WEIGHTS: Mapping[str, int] = {WAITED: 4, "transfer-always": 3, QUEUED: 2}
# A form of the CPU that takes more than this times the best one competes no more.
FAR_BEHIND = 1.3
# Predictions are missed: a step is begun if it is predicted to fit with this much to spare.
MARGIN = 1.1
BLOCKS = Purpose(blocks=4)
# Library forms beside tuned ones decide nothing.
ENDS = Purpose(blocks=4, beside=2)
# Low and middle only tell where to look, until a curve crosses near them.
GLANCE = Purpose(blocks=2)


def first_sizes(ladder: Ladder) -> list[int]:
    """Low, middle and top, ascending: those with which a visit begins."""
    low, high = ladder.sizes()[0], ladder.high
    return sorted({low, ladder.snapped(low * (high / low) ** MIDDLE), high})


def held(curve: Series, scope: Constraints) -> Ladder:
    """Return its ladder from the first size that has cases up to what memory holds, by halving."""

    def devices(n: int) -> set[str]:
        return {case.device_id for case in workload(curve, n, scope).cases}

    ladder = curve.ladder
    low = next((n for n in ladder.sizes() if devices(n)), None)
    if low is None:
        return ladder
    cpus = {target.device.id for target in scope.targets if target.device.kind == "cpu"}
    wanted, n = devices(low), ladder.high
    while n > low and not devices(n) & (wanted - cpus or wanted):
        n = ladder.snapped(n / 2)
    first = ladder.low if low == ladder.sizes()[0] else low
    return msgspec.structs.replace(ladder, low=first, high=max(n, low))


class Step(NamedTuple):
    """Workloads to measure together, and what for. `ends`: sizes that every run of these ops begins with, so that what
    is chosen for them is chosen once on a machine."""

    workloads: tuple[Workload, ...]
    purpose: Purpose
    ends: bool = False


class BreakEvenSearch:
    """Steps of one search. Each has to be measured, and its time reported with `took`, before the next is asked for."""

    def __init__(
        self,
        series: Sequence[Series],
        constraints: Constraints,
        recorder: Recorder,
        left_s: Callable[[], float],
    ) -> None:
        self._series = series
        self._scope = constraints
        self._recorder = recorder
        self._left_s = left_s
        self._settings = constraints.settings
        self._cpu = {t.device.id for t in constraints.targets if t.device.kind == "cpu"}
        # A software adapter gets no verdict, so a break-even of it would be measured for nobody.
        self._software = {t.device.id for t in constraints.targets if t.device.kind == "software"}
        self._known: dict[str, Rows] = {}
        self._case_s: dict[str, dict[int, float]] = {}
        self._overheads_s: dict[str, float] = {}
        self._predicted: dict[tuple[str, int], float] = {}
        self._beside_s: list[float] = []  # what tops took beside their launches, a byte
        self._asked: set[tuple[str, Curve, int]] = set()
        self._checked: set[str] = set()
        self._narrowed: set[str] = set()
        self._tried: dict[str, set[int]] = {}
        self._halved: dict[str, RunWarning] = {}

    def took(self, step: Step, seconds: float) -> None:
        """A step was measured in so many seconds."""
        cases = sum(len(item.cases) for item in step.workloads)
        for item in step.workloads:
            key = item.series.key
            if expected := self._predicted.pop((key, item.n), 0.0):
                self._beside_s.append((seconds - expected) / max(item.op.bytes(item.params, item.dtype), 1))
            self._known.pop(key, None)
            self._tried.setdefault(key, set()).add(item.n)
            # Also where it failed: nothing is asked for again and again.
            self._asked |= {(key, (case.device_id, case.regime_id), item.n) for case in item.cases}
            if cases:
                self._case_s.setdefault(key, {})[item.n] = seconds / cases

    def steps(self) -> Iterator[Step]:
        """All of them, in the order of the module's text."""
        searched = [one for one in self._series if not one.given]
        if self._settings.budget_s is None or self._settings.refine == "off":
            for one in searched:
                for n in one.ladder.sizes():
                    if n not in self.known(one):  # of a run that was interrupted
                        yield self.whole(one, [n])
            searched = []
        ordered = sorted(searched, key=lambda one: curves.work(one, one.ladder.high))
        ends_s: list[float] = []
        for place, one in enumerate(ordered):
            left_s, others = self._left_s(), len(ordered) - place - 1
            if left_s <= 0:
                return
            yield from self._ends(one, left_s / (others + 1))
            ends_s.append(left_s - self._left_s())
            # While its inputs are at hand, but not of the time that the ends of the others need.
            done = HEAVY * curves.work(one, one.ladder.high)
            times = [
                HEAVY_RESERVE if curves.work(later, later.ladder.high) > done else RESERVE
                for later in ordered[place + 1 :]
            ]
            free_s = self._left_s() - math.fsum(times) * math.fsum(ends_s) / len(ends_s)
            waiting = sum(self._waits(earlier) for earlier in ordered[:place])
            yield from self._narrow(one, ANSWERED, self._left_s() - free_s / (others + waiting + 1))
        for given in (one for one in self._series if one.given):
            yield from self._narrow(given, ANSWERED, 0.0)
        # What is left, in turns: first to ops that had no step yet, then to all that is open, and at last, of a long
        # budget, a step of each op towards closer thresholds.
        long = (self._settings.budget_s or 0.0) > LONG_BUDGET_S
        for widest in (*[ANSWERED] * MOST_STEPS, *([CLOSE] if long else [])):
            for one in sorted(ordered, key=lambda one: (not self._waits(one), -len(self._open(one, widest)))):
                yield from self._narrow(one, widest, 0.0, 1)

    # ---------------------------------------------------------------- one op

    def _ends(self, one: Series, share_s: float) -> Iterator[Step]:
        """Low and middle, then the top; a size that memory does not hold is skipped, and a smaller one is the top."""
        ladder = held(one, self._scope)
        if ladder.high != one.ladder.high:
            refused = workload(one, one.ladder.high, self._scope)
            yield Step((msgspec.structs.replace(refused, cases=()),), BLOCKS)
        *below, high = first_sizes(ladder)
        left_s, allowed_s = self._left_s(), ENDS_SHARE * share_s
        # Of a CPU alone the answer is about the largest size, which is the middle where the top takes too long.
        end = max if {t.device.id for t in self._scope.targets} == self._cpu else min
        yield from self._new(one, below, explained=end(below, default=high))
        # What a halved one takes tells better what the next one will.
        while (top := self._top(one, high, allowed_s - (left_s - self._left_s()))) is not None:
            yield from self._new(one, [top], explained=top)
            if top == high or top not in self.known(one):
                return

    def _new(self, one: Series, sizes: Sequence[int], *, explained: int) -> Iterator[Step]:
        """These sizes, where an interrupted run has not measured them."""
        missing = [n for n in sizes if n not in self._tried.get(one.key, ()) and n not in self.known(one)]
        if missing:
            step = self.whole(one, missing, explained=explained)
            yield (
                step if max(missing) == one.ladder.high or len(missing) == 1 else step._replace(purpose=GLANCE)
            )

    def _top(self, one: Series, high: int, allowed_s: float) -> int | None:
        """The largest size that is predicted to fit so many seconds, and is said if it is not the top of the ladder;
        None if none above what was measured does."""
        measured = max(self.known(one), default=None)
        if measured is None:
            return high  # nothing could be measured: the top says why
        n = high
        for _ in range(HALVINGS):
            seconds = self._predicted[one.key, n] = self._top_s(one, n, measured)
            if self._beside_s:  # as the tops of other ops did
                seconds += one.op.bytes(one.params(n), one.dtype) * max(0.0, stats.median(self._beside_s))
            if seconds <= min(allowed_s, self._left_s()):
                break
            n = max(1, round(n / 2 / one.ladder.granule)) * one.ladder.granule
        else:
            n = measured
        if (earlier := self._halved.pop(one.key, None)) is not None:
            self._recorder.withdraw(earlier)
        if n < high:
            found = _halved(one, max(n, measured), high, self._top_s(one, high, measured))
            self._halved[one.key] = found
            self._recorder.warn(found)
        return n if n > measured else None

    def _top_s(self, one: Series, n: int, measured: int) -> float:
        """Seconds that size `n` will take with all its cases: launches grow with their work from the largest size, and
        up to that as others of their device did, what they copy with its bytes, all else is that of the size
        `measured`."""
        row = self.known(one)[measured]

        def more(low: int, high: int) -> float:
            return curves.work(one, high) / max(curves.work(one, low), 1)

        # By the fastest block: a slow moment of the machine grows too, and halves a top that fits.
        below = {
            s: min(map(min, sessions.values())) * (curves.growth(slots, row, s[0]) or more(m, measured))
            for m, slots in sorted(self.known(one).items())
            for s, sessions in slots.items()
        }

        low_bytes, high_bytes = (one.op.bytes(one.params(size), one.dtype) for size in (measured, n))

        def grown(s: Slot) -> float:
            """What a call of the slot takes beyond one with its data on the device is copying."""
            waited = [t for other, t in below.items() if (other[0], other[2]) == (s[0], WAITED)]
            copying = max(0.0, below[s] - min(waited)) if waited and s[2].startswith("transfer") else 0.0
            return (below[s] - copying) * more(measured, n) + copying * high_bytes / max(low_bytes, 1)

        launches = {s: grown(s) for s in below}
        # Of a GPU that waits for its next launch the time grows less: it competes with the CPU, or is not worth it.
        usual = min((t for s, t in launches.items() if s[0] in self._cpu), default=math.inf)
        launches = {s: t if s[0] in self._cpu else min(t, usual) for s, t in launches.items()}
        count = LAUNCHES_BESIDE + (BLOCKS.blocks or 0)
        fixed_s = self._case_s.get(one.key, {}).get(measured, 0.0) * len(row)
        slowest = max(launches.values(), default=0.0)
        return fixed_s + count * math.fsum(launches.values()) + REFERENCE_LAUNCHES * slowest

    def _narrow(self, one: Series, widest: float, until_s: float, steps: int = MOST_STEPS) -> Iterator[Step]:
        """Sizes that tell where its open curves cross, step by step, as long as the time lasts until `until_s` is left.
        Once the thresholds are known roughly, sizes above them are checked: a curve may lose again there."""
        for _ in range(steps):
            step = self._fitting(one, self._some(one, self._wanted(one, widest)), until_s)
            if step is None:
                return
            self._narrowed.add(one.key)
            yield step

    def _wanted(self, one: Series, widest: float) -> dict[int, set[Slot]]:
        """By size the forms to measure there: for each open curve the sizes that it asks for, those that most curves
        ask for first; last, and once, checks above the thresholds."""
        votes: dict[int, int] = {}
        found: dict[int, set[Slot]] = {}
        known, states = self.known(one), [(curve, self._state(one, curve)) for curve in self._curves(one)]
        taken = max((len(state.ratios) for _, state in states), default=0)
        if 2 * taken * (BLOCKS.blocks or 1) >= self._settings.break_even_timings:
            return {}
        for curve, state in sorted(states, key=lambda item: -WEIGHTS.get(item[0][1], 1)):
            for wanted in curves.asked(state, one.ladder, MOST_ASKED) if state.open(widest) else ():
                n = curves.shared(wanted, state, found)
                if (one.key, curve, n) not in self._asked:
                    votes[n] = votes.get(n, 0) + WEIGHTS.get(curve[1], 1)
                    found.setdefault(n, set()).update(self.contenders(known, curve, state, n))
        ordered = {n: found[n] for n in sorted(found, key=lambda n: (-votes[n], n))}
        if one.key not in self._checked and all(state.near for _, state in states):
            self._checked.add(one.key)
            self._add_checks(one, ordered)
        return ordered

    def _add_checks(self, one: Series, found: dict[int, set[Slot]]) -> None:
        known = self.known(one)
        states = [(curve, self._state(one, curve)) for curve in self._curves(one)]
        places = sorted({n for _, state in states for n in curves.checks(state, one.ladder)})
        step = -(-len(places) // MOST_CHECKS) or 1
        for n in places[::-1][::step]:
            for curve, state in states:
                if state.ends is not None and n > state.ends[1]:
                    found.setdefault(n, set()).update(self.contenders(known, curve, state, n))

    def contenders(self, known: Rows, curve: Curve, state: CurveState, n: int) -> set[Slot]:
        """The forms on both sides that compete around `n`: the fastest at the measured sizes next to it, and what is
        not far behind the fastest CPU."""
        below = max((m for m in state.ratios if m <= n), default=None)
        above = min((m for m in state.ratios if m >= n), default=None)
        found: set[Slot] = set()
        for m in {below, above} - {None}:
            row = known[m]  # type: ignore[index]
            base = curves.fastest(row, [s for s in row if s[0] in self._cpu])
            case = curves.fastest(row, [s for s in row if (s[0], s[2]) == curve])
            found |= {s for s in (base, case) if s is not None}
            if base is not None:
                least = curves.seconds(row[base])
                found |= {s for s in row if s[0] in self._cpu and curves.seconds(row[s]) <= FAR_BEHIND * least}
        return found

    def _waits(self, one: Series) -> bool:
        """Whether it has open curves and had no step yet that narrows them."""
        return one.key not in self._narrowed and bool(self._open(one, ANSWERED))

    def _open(self, one: Series, widest: float) -> list[tuple[Curve, CurveState]]:
        states = [(curve, self._state(one, curve)) for curve in self._curves(one)]
        return [(curve, state) for curve, state in states if state.open(widest)]

    def _curves(self, one: Series) -> list[Curve]:
        return curves.curves(self.known(one), self._cpu, self._software)

    def _state(self, one: Series, curve: Curve) -> CurveState:
        return curves.state_of(self.known(one), curve, self._cpu, self._overheads())

    def _overheads(self) -> dict[str, float]:
        if not self._overheads_s:
            run = self._recorder.run
            ids = [target.device.id for target in self._scope.targets]
            self._overheads_s = {name: break_even.empty_launch_s(run, name) for name in ids}
        return self._overheads_s

    # ---------------------------------------------------------------- steps

    def _fitting(self, one: Series, step: Step, until_s: float) -> Step | None:
        """As many of the step's sizes as are predicted to fit; None if there is none."""
        left_s = self._left_s() - until_s
        kept: list[Workload] = []
        for item in step.workloads:
            left_s -= MARGIN * self._predicted_s(one, item)
            if left_s < 0:
                break
            kept.append(item)
        groups = together(sorted(kept, key=lambda item: item.n), self._scope)
        return Step(groups[0], step.purpose) if groups else None

    def _predicted_s(self, one: Series, item: Workload) -> float:
        """By what a case took at the measured sizes around, in between by the work of a launch."""
        known = self._case_s.get(one.key)
        if not known:
            return 0.0
        below = max((n for n in known if n <= item.n), default=min(known))
        above = min((n for n in known if n >= item.n), default=max(known))
        a, b, x = (curves.work(one, n) for n in (below, above, item.n))
        share = (x - a) / (b - a) if b > a else 0.0
        return len(item.cases) * (known[below] + (known[above] - known[below]) * min(max(share, 0.0), 1.0))

    def whole(self, one: Series, sizes: Sequence[int], explained: int | None = None) -> Step:
        """All cases of these sizes, but for library forms beside tuned ones that decide nothing: the question is what
        the best does. Where the ends alone are `explained`, those of a GPU stand at the top alone, those of a CPU at
        both ends."""
        found = []
        for n in sizes:
            item, end = workload(one, n, self._scope), explained in (None, n)
            top = explained is None or n == max(sizes) == explained
            kept = tuple(c for c in item.cases if not item.outdone(c) or self._stays(c, end=end, top=top))
            found.append(msgspec.structs.replace(item, cases=kept, explained=end))
        return Step(tuple(found), MAIN) if explained is None else Step(tuple(found), ENDS, ends=True)

    def _stays(self, case: Case, *, end: bool, top: bool) -> bool:
        return end if case.device_id in self._cpu else top and case.regime.startswith("resident")

    def _some(self, one: Series, wanted: dict[int, set[Slot]]) -> Step:
        """At each size the cases that are in its slots."""
        found = []
        for n, slots in wanted.items():
            item = workload(one, n, self._scope)
            cases = tuple(c for c in item.cases if c.variant is None and slot(c) in slots)
            if cases:
                found.append(msgspec.structs.replace(item, cases=cases, skips=(), explained=False))
        return Step(tuple(found), BLOCKS)

    def known(self, one: Series) -> Rows:
        """What was measured of a curve, by size and slot."""
        if one.key not in self._known:
            self._known[one.key] = curves.rows(self._recorder.outcomes, one)
        return self._known[one.key]


def _halved(one: Series, n: int, high: int, seconds: float) -> RunWarning:
    return RunWarning(
        code="top-halved", severity="info",
        message=f"{one.key} is measured up to n = {n}, not {high}: that takes more than its share of the time, about"
        f" {seconds:.1f} s here",
        hint="raise --budget, or name the size with --sizes", data={"op": one.op.name, "dtype": one.dtype},
    )  # fmt: skip
