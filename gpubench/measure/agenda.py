"""What each session measures, step by step: the plan, in the first session the search, in others its windows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from gpubench.measure import splits, windows
from gpubench.measure.aim import MAIN, Aim
from gpubench.measure.hunt import Hunt, Step
from gpubench.measure.plan import Workload, expand, together
from gpubench.measure.recorder import Recorder
from gpubench.measure.request import Request, searched
from gpubench.measure.runtime import Progress
from gpubench.model.result import Planned


class Agenda:
    """The plan as it grows by what a search adds to it, and the steps that it makes in a session."""

    def __init__(self, request: Request, recorder: Recorder, progress: Progress) -> None:
        self._request = request
        self._recorder = recorder
        self._progress = progress
        self._cpu = {t.device.id for t in request.scope.targets if t.device.kind == "cpu"}
        self.plan: list[Workload] = []
        sequel = request.sequel
        self._announce(expand(request.ops, request.scope) if sequel is None else sequel.workloads)

    @property
    def count(self) -> int:
        """Cases of the plan."""
        return sum(len(item.cases) for item in self.plan)

    def first(self, index: int, hunt: Hunt) -> Iterator[Step]:
        """The plan, then the search; from a file, what an interrupt left of the two."""
        sequel = self._request.sequel
        if sequel is not None and not (sequel.missing or sequel.search):
            yield from self.again(index, hunt)
            return
        items = self.plan if sequel is None else sequel.missing
        plain = [item for item in items if item.op.overhead is None]
        overheads = [item for item in items if item.op.overhead is not None]
        yield from _each(self._shuffled(plain, index))
        if sequel is None or sequel.search:
            yield from self._searching(hunt)
            yield from self._splits(hunt)
        # From small to large: what a budget cuts off are the gigabytes, which take the longest.
        yield from _each(sorted(overheads, key=lambda item: item.n))

    def again(self, index: int, hunt: Hunt) -> Iterator[Step]:
        """The plan once more, and fresh timings at the sizes that the first session chose for them."""
        request = self._request
        yield from _each(self._shuffled(self.plan, index))
        found = windows.of_outcomes(self._recorder.outcomes, request.ops, self._cpu)
        for window in found or (request.sequel.windows if request.sequel else ()):
            for group in together(window.workloads(request.scope), request.scope):
                self._progress.cases += sum(len(item.cases) for item in group)
                yield Step(group, Aim("estimate", window.samples))

    def _searching(self, hunt: Hunt) -> Iterator[Step]:
        """The hunt's steps. What it adds to the plan, later sessions repeat."""
        for step in hunt.steps():
            if step.aim == MAIN:
                self._announce(step.workloads)
            else:
                self._progress.cases += sum(len(item.cases) for item in step.workloads)
            yield step

    def _splits(self, hunt: Hunt) -> Iterator[Step]:
        """Where a search found both sides near each other, what they do together."""
        for curve in searched(self._request):
            found = splits.worth_trying(curve, hunt.times(curve), self._cpu, self._request.scope)
            if not curve.given and found:
                self._announce(found)
                yield from _each(found)

    def _announce(self, workloads: Sequence[Workload]) -> None:
        """Workloads of the plan: what is not reached of them stays visible."""
        self.plan += workloads
        planned = [Planned(id=case.id, case=case) for w in workloads for case in w.cases]
        self._recorder.plan([*planned, *(skip for w in workloads for skip in w.skips)])
        self._recorder.save()
        self._progress.cases += len(planned)

    def _shuffled(self, items: Sequence[Workload], index: int) -> list[Workload]:
        settings = self._request.settings
        if settings.order == "sequential":
            return list(items)
        return random.Random(f"{settings.seed} workloads {index}").sample(items, len(items))


def _each(items: Sequence[Workload]) -> Iterator[Step]:
    return (Step((item,), MAIN) for item in items)
