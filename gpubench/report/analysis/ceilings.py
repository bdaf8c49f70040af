"""What no true result exceeds: the ceilings of a device, measured in the same run or told by its vendor (section 7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpubench.model.case import TF32
from gpubench.model.machine import cpu_cache_bytes
from gpubench.model.result import (
    UNKNOWN_CACHE_BYTES,
    Device,
    DeviceKind,
    Measurement,
    Run,
    Theoretical,
)
from gpubench.model.session import Ceiling
from gpubench.report.analysis.samples import used_sessions

OVER_THEORETICAL, OVER_MEASURED = 1.05, 1.10
# Below so many last-level caches a rate may rightly exceed that of the memory.
CACHES = 4
Unit = Literal["FLOP/s", "B/s"]


def above_ceiling(run: Run, outcome: Measurement, kind: DeviceKind, seconds: float) -> str | None:
    """Which ceiling the case breaks at `seconds` a launch, with both numbers; None: none of them."""
    case = outcome.case
    if case.shared_with is not None:
        return None  # two devices together have no ceiling of their own
    device = next((device for device in run.devices if device.id == case.device_id), None)
    measured = list(_measured(run, case.device_id, kind))
    told = _told(run, case.device_id)
    if case.variant != TF32:  # tensor cores: the ceilings of float32 are none of theirs
        best = max(
            (c.flops_per_s for c in measured if c.flops_per_s and c.dtype in (None, case.dtype)), default=None
        )
        vendor = max((t.flops_per_s[case.dtype] for t in told if case.dtype in t.flops_per_s), default=None)
        if why := _breach(outcome.flops / seconds, "FLOP/s", best, vendor):
            return why
    if outcome.bytes > CACHES * last_level_cache(run, device, kind):
        best = max((c.bytes_per_s for c in measured if c.bytes_per_s), default=None)
        vendor = max((t.bytes_per_s for t in told if t.bytes_per_s), default=None)
        return _breach(outcome.bytes / seconds, "B/s", best, vendor)
    return None


def last_level_cache(run: Run, device: Device | None, kind: DeviceKind) -> int:
    """Bytes; of a GPU as one of the backends that see it tells."""
    if kind == "cpu":
        return cpu_cache_bytes(run.machine) or UNKNOWN_CACHE_BYTES
    if device is None:
        return UNKNOWN_CACHE_BYTES
    same = (other.cache_bytes or 0 for other in _same_hardware(run, device.id))
    return max(same, default=0) or UNKNOWN_CACHE_BYTES


def _same_hardware(run: Run, device_id: str) -> list[Device]:
    """The device, under all names that backends have for it: its limits are the hardware's."""
    gpu_id = next((device.gpu_id for device in run.devices if device.id == device_id), None)
    return [other for other in run.devices if other.id == device_id or (gpu_id and other.gpu_id == gpu_id)]


def _told(run: Run, device_id: str) -> list[Theoretical]:
    return [device.theoretical for device in _same_hardware(run, device_id)]


def _measured(run: Run, device_id: str, kind: DeviceKind) -> Iterable[Ceiling]:
    """Of all sessions that count, and of all backends that drive the same hardware, but for what is one's own.

    Of a CPU that others used at the time what it reached is no ceiling: later it may have been alone.
    """
    names = {device_id, *(device.id for device in _same_hardware(run, device_id))}
    allowed = used_sessions(run) or frozenset()
    for session in run.sessions:
        if session.index in allowed and not (kind == "cpu" and session.contended):
            yield from (
                c for c in session.ceilings if c.device_id == device_id or (c.device_id in names and not c.own)
            )


def _breach(rate: float, unit: Unit, measured: float | None, vendor: float | None) -> str | None:
    if measured is not None and rate > OVER_MEASURED * measured:
        return f"{rate:.3g} {unit} is above {OVER_MEASURED:.2f} x the measured ceiling of {measured:.3g}"
    if vendor is not None and rate > OVER_THEORETICAL * vendor:
        return f"{rate:.3g} {unit} is above {OVER_THEORETICAL:.2f} x the vendor's ceiling of {vendor:.3g}"
    return None
