"""The contract between a collective and what carries it: the links of a gang."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from gpubench.model.op import Array


class Links(ABC):
    """What moves data among the ranks of a gang. Calls enqueue on the ranks that they concern; `sync` waits for all.
    Both are made inside of `guard`.

    `xp` is the array library of the buffers, one float32 vector a rank. `copier` and `library` name what carries a
    plain copy, and a collective.
    """

    ranks: int
    xp: Any
    copier: str
    library: str

    @abstractmethod
    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Work with the arrays of that rank meanwhile."""

    def guard(self) -> AbstractContextManager[None]:
        """Errors of the vendor become ours meanwhile. It is entered once for many calls, as that takes longer than one.
        As it stands: there is no vendor."""
        return contextlib.nullcontext()

    @abstractmethod
    def sync(self) -> None:
        """Return when all ranks are done."""

    @abstractmethod
    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        """What the first rank of each pair sent becomes what the second got."""

    @abstractmethod
    def all_reduce(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets the sum of what all sent."""

    @abstractmethod
    def reduce_scatter(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets its part of the sum."""

    @abstractmethod
    def all_gather(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets what all sent, one after the other."""

    @abstractmethod
    def all_to_all(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets its part of what each sent."""

    @abstractmethod
    def broadcast(self, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Each rank gets what rank 0 sent."""

    def clock(self) -> float:
        """The host clock in seconds. As it stands: the host's own."""
        import time

        return time.perf_counter()

    def array(self, rank: int, count: int) -> Array:
        """A new vector of that rank, full of NaN. Raises DeviceOutOfMemory."""
        with self.on(rank):
            return self.xp.full(count, float("nan"), dtype="float32")

    def fetched(self, array: Array) -> tuple[Any, Array]:
        """The array in host memory, and the library that has it there."""
        return self.xp, array

    def close(self) -> None:
        """Free everything; never raises. As it stands: there is nothing to free."""
