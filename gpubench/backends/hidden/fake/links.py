"""The scripted gang: NumPy moves the data, and a clock of its own pretends what links take.

GPUBENCH_FAKE_LINK="0+1=50e9 1+2=25e9" gives the bytes a second of a pair, GPUBENCH_FAKE_SLOW="gpu2=1.15" makes a GPU
that much slower. `link-lies` delivers something else, `link-hangs` nothing, for ever.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence

from gpubench.backends.shared.links import HostLinks
from gpubench.kernels.contract.op import Array

CALL_S, BYTES_PER_S = 1e-5, 4e11
GANGS = ("link-hangs", "link-lies")


def slower(gpu: str) -> float:
    """How many times as long a scripted GPU takes."""
    return _scripted("GPUBENCH_FAKE_SLOW").get(gpu, 1.0)


def hot_after_s(gpu: str) -> float:
    """After how many seconds of its clock a scripted GPU gets hot."""
    return _scripted("GPUBENCH_FAKE_HEAT").get(gpu, float("inf"))


def _scripted(name: str) -> dict[str, float]:
    pairs = (word.partition("=") for word in os.environ.get(name, "").split())
    return {key: float(number) for key, _, number in pairs}


class FakeLinks(HostLinks):
    """Each exchange takes what its slowest link takes."""

    copier = library = "fake"

    def __init__(self, ordinals: Sequence[int], word: str) -> None:
        super().__init__(len(ordinals))
        self._ordinals, self._word, self._now = ordinals, word, 0.0
        rates = _scripted("GPUBENCH_FAKE_LINK")
        self._rates = {
            frozenset(pair): rates.get(f"{min(pair)}+{max(pair)}", BYTES_PER_S)
            / max(slower(f"gpu{ordinal}") for ordinal in pair)
            for pair in itertools.combinations(ordinals, 2)
        }

    def clock(self) -> float:
        self._now += 1e-9
        return self._now

    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        super().copy(pairs, sent, got)
        self._spend(sent[0].nbytes, got)

    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        super().collect(name, sent, got)
        size, others = max(sent[0].nbytes, got[0].nbytes), (self.ranks - 1) / self.ranks
        self._spend(size * {"broadcast": 1, "allreduce": 2 * others}.get(name, others), got)

    def _spend(self, size: float, got: Sequence[Array]) -> None:
        if self._word == "link-hangs":
            while True:
                time.sleep(60)
        if self._word == "link-lies":
            got[1][-1] += 1
        self._now += CALL_S + size / min(self._rates.values())
