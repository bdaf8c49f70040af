"""Child side: one collective on the ranks of a gang, checked on the whole output of every rank, then timed.

Outputs, and 4 KiB before and behind them, are filled with NaN first. What a rank got is compared where it lies: a piece
at a time, by the array library of the links; up to 64 MiB it is fetched, and the host compares.
"""

from __future__ import annotations

from functools import partial

from gpubench.backends.contract import Links, Session
from gpubench.backends.contract.protocols import DeviceGroup
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.op import Array, Collective, Op
from gpubench.measure.worker.timer import Timed
from gpubench.measure.worker.workspace import Wrong
from gpubench.multi.ops import WIDTH, value
from gpubench.result.case import Case
from gpubench.result.run import Check, Staging

GUARD = 1024  # elements
PIECE = 1 << 24
FETCHED_BYTES = 64 << 20
# The first touch of pages and the first call of a library take several times as long.
WARM_UP = 5


class CollectiveTimer(Timed):
    """One exchange ready to be sampled: `seconds(repeat)` makes it and returns seconds per exchange, each waited for on
    all ranks. Raises Unsupported where a library is missing, and Wrong if a rank got something else."""

    staging: Staging = "pageable"

    def __init__(self, session: Session, op: Op, case: Case, opening: object = None) -> None:
        exchange = op.collective
        if not isinstance(session, DeviceGroup) or exchange is None:
            raise Unsupported(f"{session.device.id} is no gang", reason="no-implementation")
        self.session: Session = session
        self.case = case
        self._links: Links = session.links()
        self.exchange: Collective = exchange
        self.kernel = self._links.copier if exchange.pairwise else self._links.library
        self._count = case.params["n"] // WIDTH
        self._sent: list[Array] = []
        self.held: list[Array] = []
        self.got: list[Array] = []

    def seconds(self, repeat: int) -> float:
        """Wall seconds per exchange of one sample."""
        links, exchange, sent, got = self._links, self.exchange.exchange, self._sent, self.got
        clock = links.clock
        with links.guard():
            start = clock()
            for _ in range(repeat):
                exchange(links, sent, got)
                links.sync()
            return (clock() - start) / repeat

    def verify(self) -> Check:
        """Exchange over outputs of NaN, and compare every element of every rank. Raises Wrong."""
        fresh = not self._sent
        if fresh:
            self._prepare()
        for rank, held in enumerate(self.held):
            with self._links.on(rank):
                held.fill(float("nan"))
        self.session.sync()
        self.seconds(WARM_UP if fresh else 1)
        receivers = self.exchange.receivers or range(self._links.ranks)
        for rank in receivers:
            with self._links.on(rank):
                self._compare(rank)
        return Check(ok=True, max_error=0.0, limit=0.0, scale="value")

    def release(self) -> None:
        """Let the buffers go."""
        self._sent, self.held, self.got = [], [], []

    def _prepare(self) -> None:
        links, count, ranks = self._links, self._count, self._links.ranks
        sends, gets = self.exchange.sends(count, ranks), self.exchange.gets(count, ranks)
        for rank in range(ranks):
            sent, held = links.array(rank, sends), links.array(rank, gets + 2 * GUARD)
            with links.on(rank):
                for start in range(0, sends, PIECE):
                    i = links.xp.arange(start, min(start + PIECE, sends), dtype="uint32")
                    sent[start : start + PIECE] = value(links.xp, rank, i)
            self._sent.append(sent)
            self.held.append(held)
            self.got.append(held[GUARD : GUARD + gets])
        self.session.sync()

    def _compare(self, rank: int) -> None:
        """Every element, and the guards. Raises Wrong with the rank and the first element that differs."""
        links, xp, held = self._links, self._links.xp, self.held[rank]
        if held.nbytes <= FETCHED_BYTES:
            xp, held = links.fetched(held)
        got = held[GUARD:-GUARD]
        for guard in (held[:GUARD], held[-GUARD:]):
            if not bool((guard != guard).all()):  # NaN alone differs from itself
                raise _wrong(rank, -1)
        part = self._count // links.ranks
        for start in range(0, len(got), PIECE):
            i = xp.arange(start, min(start + PIECE, len(got)), dtype="uint32")
            want = self.exchange.expected(partial(value, xp), rank, links.ranks, i, part)
            differs = got[start : start + PIECE] != want
            if bool(differs.any()):
                raise _wrong(rank, start + int(differs.argmax()))


def _wrong(rank: int, element: int) -> Wrong:
    """`index` is the rank and the element; -1: a write outside the buffer."""
    return Wrong(Check(ok=False, max_error=None, limit=0.0, scale="value", index=[rank, element]))
