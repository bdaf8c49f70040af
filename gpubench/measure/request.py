"""What a run is asked for: the document to fill, the ops, the devices, and what bounds the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gpubench.measure import load, search, splits
from gpubench.measure.plan import Scope, Series, Workload, expand, open_series, workload
from gpubench.measure.sequel import Sequel
from gpubench.model.op import Op
from gpubench.model.result import Run, Settings


class Request(msgspec.Struct, frozen=True):
    """What `run` needs: the document to fill, the ops, the devices and what else bounds the plan.

    `required` devices were named by the user: if one cannot be opened, that is exit 5. `began` is
    the monotonic time from which the budget counts. With a `sequel` the plan is that of a file. `load` reads what
    others do on this machine.
    """

    run: Run
    ops: Mapping[str, Op]
    scope: Scope
    began: float
    required: frozenset[str] = frozenset()
    check_only: bool = False
    sequel: Sequel | None = None
    load: Callable[[], load.Reading | None] = load.unread

    @property
    def settings(self) -> Settings:
        """How to measure."""
        return self.run.settings

    @property
    def sessions(self) -> int:
        """How many sessions are to come."""
        return self.settings.sessions if self.sequel is None else self.sequel.count

    @property
    def searches(self) -> bool:
        """Whether there are break-evens to search for."""
        wanted = self.settings.refine != "off" and bool(searched(self))
        return wanted and (self.sequel is None or self.sequel.search)


def planned(request: Request) -> list[Workload]:
    """What is known before measuring: given sizes, and of ops without them the coarse ones, or all if there is no
    search."""
    if request.sequel is not None:
        return list(request.sequel.workloads)
    sparse = request.settings.refine != "off" and request.settings.budget_s is not None
    found = [
        workload(curve, n, splits.alone(request.scope))
        for curve in searched(request)
        if not curve.given
        for n in (search.coarse_sizes(curve.ladder) if sparse else curve.ladder.sizes())
    ]
    return [*expand(request.ops, request.scope), *found]


def searched(request: Request) -> list[Series]:
    """The curves to search."""
    return open_series(request.ops, request.scope.selection, request.settings)
