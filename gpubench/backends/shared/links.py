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

    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        for rank, target in enumerate(got):
            if name == "reducescatter":
                self._sum([self._share(array, rank) for array in sent], target)
            elif name == "allreduce" and rank == 0:
                self._sum(sent, target)
            elif name in ("allreduce", "broadcast"):
                self.xp.copyto(target, got[0] if name == "allreduce" else sent[0])
            else:
                for other, array in enumerate(sent):
                    part = self._share(array, rank) if name == "alltoall" else array
                    self.xp.copyto(self._share(target, other), part)

    def _share(self, array: Array, rank: int) -> Array:
        part = len(array) // self.ranks
        return array[rank * part : (rank + 1) * part]

    def _sum(self, sent: Sequence[Array], target: Array) -> None:
        """In the order of ranks."""
        self.xp.copyto(target, sent[0])
        for array in sent[1:]:
            self.xp.add(target, array, out=target)
