"""Parent side: which ceilings are worth their time, and how much time they get (measurement.md section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.measure.plan import Workload
from gpubench.measure.protocol import Wanted
from gpubench.model.machine import Machine, cpu_cache_bytes
from gpubench.model.op import Dtype
from gpubench.model.result import UNKNOWN_CACHE_BYTES, Device, Settings

# A launch of less work than this is over in a microsecond on the fastest device there is: it comes near no ceiling.
LEAST_FLOPS = 10**8
# A working set above so many caches is limited by the memory behind them.
CACHES = 4
# For one ceiling, and of a budget: a small run stays a small one.
LIMIT_S, QUICK_LIMIT_S, BUDGET_SHARE = 1.0, 0.6, 0.01
# Three arrays of it leave room for the workloads.
MEMORY_SHARE = 8
UNKNOWN_MEMORY_BYTES = 8 << 30


def asked(
    workloads: Iterable[Workload], devices: Sequence[Device], settings: Settings, machine: Machine
) -> dict[str, Wanted]:
    """What to measure on each device: only the ceilings that a case of the plan could come near."""
    items = [item for item in workloads if item.op.overhead is None]
    found = {}
    for device in devices:
        if device.kind not in ("cpu", "gpu"):
            continue  # a software adapter and a split stand for no hardware of their own
        cache_bytes = cache_of(device, devices, machine)
        ours = [item for item in items if any(case.device_id == device.id for case in item.cases)]
        memory = any(item.op.bytes(item.params, item.dtype) > CACHES * cache_bytes for item in ours)
        compute: list[Dtype] = sorted(
            {item.dtype for item in ours if item.op.flops(item.params) >= LEAST_FLOPS}
        )
        if memory or compute:
            rooms = [device.usable_bytes, machine.memory.usable_bytes.value]
            known = [room for room in rooms if room is not None] or [UNKNOWN_MEMORY_BYTES]
            found[device.id] = Wanted(
                memory=memory, compute=compute, cache_bytes=cache_bytes, limit_s=limit_s(settings),
                memory_bytes=min(known) // MEMORY_SHARE,
            )  # fmt: skip
    return found


def limit_s(settings: Settings) -> float:
    """Seconds for one ceiling."""
    most = QUICK_LIMIT_S if settings.preset == "quick" else LIMIT_S
    return most if settings.budget_s is None else min(most, BUDGET_SHARE * settings.budget_s)


def cache_of(device: Device, devices: Sequence[Device], machine: Machine) -> int:
    """Bytes of the last level of cache that the device computes from."""
    if device.kind == "cpu":
        return cpu_cache_bytes(machine) or UNKNOWN_CACHE_BYTES
    same = [other.cache_bytes for other in devices if other.gpu_id and other.gpu_id == device.gpu_id]
    return device.cache_bytes or next((size for size in same if size), UNKNOWN_CACHE_BYTES)
