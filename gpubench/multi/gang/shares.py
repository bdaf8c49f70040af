"""One op cut into a share for each rank of a gang: where the shares lie, how they get there, and how the results come
together on the host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise

from gpubench.backends.contract import Buffer, Launch, Session, Transfers, Work
from gpubench.backends.contract.protocols import transfers_of
from gpubench.backends.shared.sides import (
    INLINE_BYTES,
    CompanionThread,
    cut_array,
    enter,
    granule,
    joined,
    side_case,
)
from gpubench.kernels.contract.op import ITEMSIZE, Array, Form, Op, Shape, Stored
from gpubench.result.case import Case

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


class SharedBuffer:
    """One operand. It refers to the array that was uploaded until a launch says who gets which part of it; `version`
    counts the uploads, `last` is the launch whose output it holds."""

    def __init__(self, shape: Shape, dtype: Stored) -> None:
        self.shape, self.dtype = shape, dtype
        self.version = 0
        self.host: Array | None = None
        self.last: SharedLaunch | None = None
        self._parts: dict[tuple[int, str], RankPart] = {}

    def hold(self, host: Array) -> None:
        """Stand for this array from now on; what the ranks have of it is out of date."""
        self.host, self.last = host, None
        self.version += 1

    def part(self, rank: int, session: Session, key: str, shape: Shape) -> RankPart:
        """The memory of a rank for the launches of `key`, taken anew where the shape was another."""
        known = self._parts.get((rank, key))
        if known is None or known.shape != shape:
            if known is not None:
                known.free()
            known = self._parts[rank, key] = RankPart(session, shape, self.dtype)
        return known

    def free(self) -> None:
        """Give the memory of all ranks back."""
        for share in self._parts.values():
            share.free()
        self._parts.clear()


class RankPart:
    """What one rank holds of an operand, and of which upload."""

    def __init__(self, session: Session, shape: Shape, dtype: Stored) -> None:
        self.session, self.shape, self.version = session, shape, 0
        self.buffer: Buffer = session.allocate(shape, dtype)
        self.bytes = math.prod(shape) * ITEMSIZE[dtype]

    def free(self) -> None:
        """Give it back to the rank's pool."""
        enter(self.session)
        self.session.free(self.buffer)


class RankLaunch:
    """The share of one rank: units `start` to `stop`, their operands, and what computes them."""

    def __init__(self, rank: int, session: Session, launch: SharedLaunch, start: int, stop: int) -> None:
        op, cut, key = launch.op, launch.cut, launch.case.regime_id
        self.session, self.start, self.stop, self._whole = session, start, stop, launch
        self.enter = partial(enter, session)
        self.enter()
        self.case = side_case(op, launch.case, dict(cut.part(launch.case.params, stop - start)), session)
        params = self.case.params
        self.inputs = [
            buffer.part(rank, session, key, operand.shape(params))
            for operand, buffer in zip(op.inputs, launch.inputs, strict=True)
        ]
        own = self.case.form == "tuned"
        self.target = launch.output.part(rank, session, key, op.output.shape(params)) if own else None
        # As where one device has all of the work: else a gang would gain by moving data in another way.
        form: Form = "library" if op.kernel(session.device.backend, launch.case.dtype) is None else "tuned"
        self.way: Transfers = transfers_of(session, form)
        self.launch: Launch | None = None
        self.partial: Array | None = None

    @property
    def buffers(self) -> list[Buffer]:
        return [share.buffer for share in self.inputs]

    def compile(self) -> Launch:
        """The rank's own launch, which is the answer."""
        self.enter()
        target = self.target.buffer if self.target is not None else None
        self.launch = self.session.compile(self._whole.op, self.case, self.buffers, target)
        return self.launch

    def send(self) -> None:
        """The rank's part of each operand that was uploaded since it was sent last."""
        import numpy as np

        self.enter()
        whole = self._whole
        for operand, buffer, share in zip(whole.op.inputs, whole.inputs, self.inputs, strict=True):
            if share.version != buffer.version:
                ours = cut_array(operand, buffer.host, whole.cut, self.start, self.stop)
                self.way.upload(share.buffer, np.ascontiguousarray(ours))
                share.version = buffer.version
        target, output = self.target, whole.output
        if target is not None and target.version != output.version:
            ours = output.host if whole.cut.join else self._ours(output.host)
            self.way.upload(target.buffer, np.ascontiguousarray(ours))
            target.version = output.version

    def fetch(self, host: Array) -> None:
        """The rank's part of the result, to its place in `host`; what is joined first, to memory of its own."""
        import numpy as np

        assert self.launch is not None
        self.enter()
        if self._whole.cut.join:
            self.partial = np.empty_like(host)
            self.way.download(self.launch.output, self.partial)
        else:
            self.way.download(self.launch.output, self._ours(host))

    def _ours(self, host: Array) -> Array:
        return host[self.start : self.stop]


class SharedLaunch(Launch):
    """One launch of an op on all ranks."""

    def __init__(self, op: Op, case: Case, inputs: Sequence[SharedBuffer], output: SharedBuffer) -> None:
        cut = op.cut(case.params)
        assert cut is not None
        self.op, self.case, self.cut = op, case, cut
        self.inputs, self.output = inputs, output
        self.ranks: list[RankLaunch] = []
        self._seen: list[int] | None = None

    @property
    def moved_bytes(self) -> int:
        """Of the inputs of all ranks."""
        return sum(share.bytes for rank in self.ranks for share in rank.inputs)

    @property
    def waits(self) -> bool:
        """True if an operand was uploaded since the last run: the ranks have still to get it."""
        return self._seen != [buffer.version for buffer in (*self.inputs, self.output)]

    def begin(self) -> None:
        """All operands are taken as they are now."""
        self._seen = [buffer.version for buffer in (*self.inputs, self.output)]
        self.output.last = self


class Ranks:
    """The sessions of a gang's members. Where much is moved, each has a thread for it but the last, which has this
    one."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)
        self._threads = [CompanionThread(session) for session in self.sessions[1:]]

    def cut(self, op: Op, case: Case, inputs: Sequence[SharedBuffer], output: SharedBuffer) -> SharedLaunch:
        """The launch with the share of each rank, not compiled yet."""
        launch = SharedLaunch(op, case, inputs, output)
        places = shares(op.units(case.params), len(self.sessions))
        launch.ranks = [
            RankLaunch(rank, session, launch, *place)
            for rank, (session, place) in enumerate(zip(self.sessions, places, strict=True))
        ]
        return launch

    def run(self, launch: SharedLaunch, repeat: int) -> None:
        """Send what is out of date, and enqueue on all ranks."""
        if launch.waits:
            self.send(launch)
            launch.begin()
        for start in range(0, repeat, CHUNK):
            for rank in launch.ranks:
                rank.enter()
                rank.session.run(rank.launch, min(CHUNK, repeat - start))

    def send(self, launch: SharedLaunch) -> None:
        """What is out of date on each rank."""
        self._at_once([rank.send for rank in launch.ranks], launch.moved_bytes)

    def fetch(self, launch: SharedLaunch, host: Array) -> None:
        """The result of a launch that ran."""
        self._at_once([partial(rank.fetch, host) for rank in launch.ranks], host.nbytes)
        if launch.cut.join:
            host[...] = reduce(partial(joined, launch.cut), [rank.partial for rank in launch.ranks])

    def each(self, work: Callable[[Session], None]) -> None:
        """`work` for each member in turn."""
        for session in self.sessions:
            enter(session)
            work(session)

    def close(self) -> None:
        """End the threads and the sessions, whatever happens to one of them."""
        for thread in self._threads:
            thread.close()
        for session in self.sessions:
            with contextlib.suppress(Exception):
                enter(session)
                session.close()

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
