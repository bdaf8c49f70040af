"""One op cut into a share for each rank of a gang: where the shares lie, how they get there, and how the results come
together on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import TypeVar

from gpubench.backends.contract import Session, Work
from gpubench.backends.shared.sides import (
    INLINE_BYTES,
    CompanionThread,
    CutBuffer,
    CutLaunch,
    DeviceShare,
    enter,
    granule,
    joined,
)
from gpubench.kernels.contract.op import Array, Op
from gpubench.result.case import Case

Result = TypeVar("Result")

# Launches that a rank is sent before the next one gets as many: its queue neither runs empty nor fills up.
CHUNK = 8


def shares(units: int, ranks: int) -> list[tuple[int, int]]:
    """Where the share of each rank begins and ends: as equal as whole granules let them be. Raises ValueError if there
    are fewer granules than ranks."""
    step = granule(units)
    whole = units // step
    if whole < ranks:
        raise ValueError(f"{units} units are too few for {ranks} ranks")
    edges = [whole * rank // ranks * step for rank in range(ranks)] + [units]
    return list(pairwise(edges))


def entered(session: Session, work: Callable[[], Result]) -> Result:
    """Do the work in this thread, which may drive the session from now on."""
    enter(session)
    return work()


class SharedLaunch(CutLaunch):
    """One launch of an op on all ranks."""

    ranks: Sequence[DeviceShare] = ()


class Ranks:
    """The sessions of a gang's members. Where much is moved, each has a thread for it but the last, which has this
    one."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)
        self._threads = [CompanionThread(session) for session in self.sessions[1:]]

    def cut(self, op: Op, case: Case, inputs: Sequence[CutBuffer], output: CutBuffer) -> SharedLaunch:
        """The launch with the share of each rank, not compiled yet."""
        launch = SharedLaunch(op, case, inputs, output)
        places = shares(op.units(case.params), len(self.sessions))
        launch.ranks = [
            entered(session, partial(DeviceShare, launch, session, *place))
            for session, place in zip(self.sessions, places, strict=True)
        ]
        return launch

    def run(self, launch: SharedLaunch, repeat: int) -> None:
        """Send what is out of date, and enqueue on all ranks."""
        if launch.waits:
            self.send(launch)
            launch.begin()
        for start in range(0, repeat, CHUNK):
            for rank in launch.ranks:
                enter(rank.session)
                rank.session.run(rank.launch, min(CHUNK, repeat - start))

    def send(self, launch: SharedLaunch) -> None:
        """What is out of date on each rank."""
        works = [partial(entered, rank.session, rank.send) for rank in launch.ranks]
        self._at_once(works, sum(rank.sent_bytes for rank in launch.ranks))

    def fetch(self, launch: SharedLaunch, host: Array) -> None:
        """The result of a launch that ran."""
        works = [partial(entered, rank.session, partial(rank.fetch, host)) for rank in launch.ranks]
        self._at_once(works, host.nbytes)
        if launch.cut.join:
            host[...] = reduce(partial(joined, launch.cut), [rank.partial for rank in launch.ranks])

    def each(self, work: Callable[[Session], None]) -> None:
        """`work` for each member in turn."""
        for session in self.sessions:
            entered(session, partial(work, session))

    def close(self) -> None:
        """End the threads and the sessions, whatever happens to one of them."""
        for thread in self._threads:
            thread.close()
        for session in self.sessions:
            with contextlib.suppress(Exception):
                entered(session, session.close)

    def _at_once(self, works: Sequence[Work], size: int) -> None:
        """A little is moved by this thread: waking the others would take longer."""
        if size <= INLINE_BYTES:
            for work in works:
                work()
        else:
            self._nested(works, 0)

    def _nested(self, works: Sequence[Work], rank: int) -> None:
        """The works of all ranks but the first `rank`: the first of them by this thread, beside the others."""
        if rank == len(works) - 1:
            works[rank]()
            return
        other = rank + 1
        self._threads[rank].both(lambda: self._nested(works, other), works[rank])
