"""A gang in host memory: real data and real time, on one CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from gpubench.backends.contract import Links
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.kernels.contract.op import Array


class HostLinks(Links):
    """Copies and sums of NumPy arrays, rank by rank."""

    copier = library = "numpy"

    def __init__(self, ranks: int) -> None:
        import numpy

        self.xp, self.ranks = numpy, ranks

    def on(self, rank: int) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def sync(self) -> None:
        """Every call has ended when it returns."""

    def array(self, rank: int, count: int) -> Array:
        try:
            return super().array(rank, count)
        except MemoryError as error:
            raise DeviceOutOfMemory(str(error)) from error

    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        for source, target in pairs:
            self.xp.copyto(got[target], sent[source])

    def all_reduce(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        self._sum(sent, got[0])
        for other in got[1:]:
            self.xp.copyto(other, got[0])

    def reduce_scatter(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        for rank, target in enumerate(got):
            self._sum([self._share(one, rank) for one in sent], target)

    def all_gather(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        for target in got:
            for rank, one in enumerate(sent):
                self.xp.copyto(self._share(target, rank), one)

    def all_to_all(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        for rank, target in enumerate(got):
            for other, one in enumerate(sent):
                self.xp.copyto(self._share(target, other), self._share(one, rank))

    def broadcast(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        for target in got:
            self.xp.copyto(target, sent[0])

    def _share(self, array: Array, rank: int) -> Array:
        part = len(array) // self.ranks
        return array[rank * part : (rank + 1) * part]

    def _sum(self, sent: Sequence[Array], target: Array) -> None:
        """In the order of ranks."""
        self.xp.copyto(target, sent[0])
        for one in sent[1:]:
            self.xp.add(target, one, out=target)
