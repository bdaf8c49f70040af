"""fake: a hidden backend with a scripted clock and scripted failures, for tests and demonstrations.

It computes with NumPy and pretends to take the time that a cost model gives, on a clock of its own, so that
tests of the whole program are deterministic. `fake:cpu`, `fake:gpu` and the identical GPUs behave well. Every
other device has the failure or the peculiarity that its name says. Environment variables change the script:

GPUBENCH_FAKE_NOISE=0.1: each time varies, log-normal with this deviation, seeded by the device's id and
    GPUBENCH_FAKE_SEED.
GPUBENCH_FAKE_SLOWER=1.2: kernels take 1.2 times as long.
GPUBENCH_FAKE_HEAT="gpu1=9": this GPU takes 1.25 times as long after 9 seconds of its host clock.
GPUBENCH_FAKE_GPUS=4: there are identical GPUs fake:gpu0 to fake:gpu3, which form device groups.
GPUBENCH_FAKE_LINK="0+1=50e9 1+2=25e9": the links between GPUs 0 and 1, and 1 and 2, have so many bytes/s.
GPUBENCH_FAKE_SLOW="gpu2=1.15": this GPU takes 1.15 times as long.

The links of the device group `link-hangs` never return.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpubench.backends.contract import Backend, Buffer, Joins, Observed, Session
from gpubench.backends.hidden.fake.session import (
    WORDS,
    FakeSession,
    HostTime,
    list_identical,
    make_device,
    read_scripted_time,
    read_slowness,
    sleep_for_ever,
)
from gpubench.backends.shared.sides import HostLinks
from gpubench.base.errors import BackendUnavailable
from gpubench.kernels.contract.op import Array, Implementation
from gpubench.result.run import Device

# Scripted clocks, temperature and power that the monitor reads, and scripted links.
FULL_HZ, MEMORY_HZ, TEMPERATURE_C, POWER_W = 1.98e9, 2.6e9, 45.0, 300.0
LINK_CALL_S, LINK_BYTES_PER_S = 1e-5, 4e11


class FakeLinks(HostLinks):
    """Scripted links. Each exchange takes the time that the slowest link needs."""

    copier = library = "fake"

    def __init__(self, ordinals: Sequence[int], word: str) -> None:
        super().__init__(len(ordinals))
        self._word, self._now = word, 0.0
        rates = read_scripted_time("GPUBENCH_FAKE_LINK")
        self._rate = min(
            rates.get(f"{a}+{b}", LINK_BYTES_PER_S) / max(read_slowness(f"gpu{a}"), read_slowness(f"gpu{b}"))
            for a, b in itertools.combinations(sorted(ordinals), 2)
        )

    def clock(self) -> float:
        return self._now

    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        super().copy(pairs, sent, got)
        self._spend(sent[0].nbytes)

    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        super().collect(name, sent, got)
        size, others = max(sent[0].nbytes, got[0].nbytes), (self.ranks - 1) / self.ranks
        self._spend(size * {"broadcast": 1, "allreduce": 2 * others}.get(name, others))

    def average(self, buffers: Sequence[Sequence[Buffer]]) -> None:
        arrays = [[buffer.array.copy() for buffer in own] for own in buffers]
        super().average(arrays)
        for own, made in zip(buffers, arrays, strict=True):
            for buffer, array in zip(own, made, strict=True):
                buffer.array = array

    def _spend(self, size: float) -> None:
        if self._word == "link-hangs":
            sleep_for_ever()
        self._now += LINK_CALL_S + size / self._rate


# For devices whose clock is not steady: (throttle reasons, share of the full clock) in the first block, and in all
# later ones. Scripted blocks are so short that each has one reading.
_STEADY, _HOT = ((), 1.0), (("hw_thermal_slowdown",), 0.9)
_CLOCKS: dict[str, tuple[tuple[tuple[str, ...], float], ...]] = {
    "throttle": (_HOT, _HOT), "cools": (_HOT, _STEADY),
    "power-cap": (_STEADY, (("sw_power_cap",), 0.6)),
}  # fmt: skip


class FakeBackend(Backend, Observed, Joins):
    """The scripted devices. `fake:unavailable` is not among them and cannot be opened."""

    name = "fake"
    implementations: tuple[Implementation, ...] = ("library",)
    scripted_time = True

    device_groups = ("link-hangs",)  # device groups that act out a failure

    @property
    def default_devices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The CPU and the identical GPUs. If there are none, the CPU and `gpu`."""
        return ("cpu", *(list_identical() or ["gpu"]))

    def devices(self) -> list[Device]:
        return [make_device(word) for word in (*WORDS, *list_identical())]

    def joinable(self) -> list[Device]:
        return [make_device(word) for word in list_identical()]

    def links(self, ordinals: Sequence[int], word: str = "") -> FakeLinks:
        return FakeLinks(ordinals, word)

    def members(
        self, ordinals: Sequence[int], threads: int | None = None, *, autotune: bool = True
    ) -> list[Session]:
        """Open identical GPUs with one host clock for all."""
        host = HostTime()
        return [FakeSession(make_device(f"gpu{ordinal}"), f"gpu{ordinal}", host) for ordinal in ordinals]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> FakeSession:
        """Open a device. Raises BackendUnavailable if there is none with this id."""
        word = device_id.partition(":")[2]
        if word not in (*WORDS, *list_identical()):
            raise BackendUnavailable(f"scripted: there is no {device_id}", hint=f"one of {', '.join(WORDS)}")
        return FakeSession(make_device(word), word)

    def telemetry(self, device_id: str) -> Callable[[], Mapping[str, Any]]:
        """Return a function that reads steady clocks, or acts out the failure of the device."""
        word, numbers = device_id.partition(":")[2], itertools.count()
        first, later = _CLOCKS.get(word, (_STEADY, _STEADY))

        def read() -> dict[str, Any]:
            if word == "monitor-dies":
                os._exit(3)
            throttle, share = later if next(numbers) else first
            return {
                "clock_hz": share * FULL_HZ, "memory_clock_hz": MEMORY_HZ, "temperature_c": TEMPERATURE_C,
                "power_w": POWER_W, "energy_j": POWER_W * time.perf_counter(), "throttle": list(throttle),
            }  # fmt: skip

        return read

    def users(self, device_id: str) -> Mapping[str, int]:
        return {"computing": 1, "used_bytes": 2**30} if device_id == "fake:shared" else {}


BACKEND = FakeBackend()
