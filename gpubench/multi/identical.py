"""A look at the equal GPUs that a search leaves out: the same three cases on each of them and on the one that is
measured, in turns, inside a share of the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gpubench import kernels
from gpubench.curves.stats import median
from gpubench.measure import protocol
from gpubench.measure.plan import Series
from gpubench.measure.schedule import RunSpec
from gpubench.measure.worker_pool import WorkerPool
from gpubench.multi.equal_gpus import EqualGpus, OnDevice, cases_of
from gpubench.result.run import TwinTimes

# Of the budget, and in it the time for opening the GPUs.
SHARE = 0.15
# What is prepared is timed for at least so long: preparing it took far more.
LEAST_S = 1.0
# Enough for two halves that say the same, each by itself.
ROUNDS, SAMPLES = 8, 3
# The link, memory and arithmetic: large enough for a rate; the host makes inputs and answer in a second or less.
SIZES = {"upload": 1 << 26, "copy": 1 << 24, "matmul": 2048}


def check(pool: WorkerPool, spec: RunSpec, session: int, left_s: Callable[[], float]) -> list[TwinTimes]:
    """What each GPU took, in the order of the groups; a GPU that fails has the reason in place of times."""
    left = [target.device.id for group in spec.left_out for target in group[1:]]
    pool.open_all([device_id for device_id in left if device_id not in pool.workers])
    found: list[TwinTimes] = []
    for group in spec.left_out:
        gpus = EqualGpus(pool)
        for name, n in SIZES.items():
            cases = cases_of(Series(spec.equip(kernels.load(name)), "float32"), n, group, spec.constraints)
            if cases and left_s() > 0:
                found += _times(gpus, cases, session, left_s)
    return found


def _times(
    gpus: EqualGpus, cases: Sequence[OnDevice], session: int, left_s: Callable[[], float]
) -> list[TwinTimes]:
    """Blocks in turns, every second round from the last GPU to the first."""
    gpus.prepare(cases, session)
    until = time.monotonic() + max(left_s(), LEAST_S)
    blocks: dict[str, list[float]] = {device.id: [] for device, _ in cases}
    for number in range(ROUNDS):
        if time.monotonic() >= until:
            break
        for position, (device, case) in enumerate(list(cases)[:: -1 if number % 2 else 1]):
            reply = gpus.ask(
                device,
                lambda n, case=case, at=(number, position): protocol.Sample(  # type: ignore[misc]
                    id=n, case_id=case.id, session=session, round=at[0], position=at[1], samples=SAMPLES,
                    warmup_s=0.0, limit_s=1.0,
                ),
            )  # fmt: skip
            if isinstance(reply, protocol.Sampled):
                block = reply.block
                blocks[device.id].append(median(block.wall_s[block.warmup :]))
    gpus.finish(cases)
    return [
        TwinTimes(
            case_id=case.id, device_id=device.id, gpu_id=device.gpu_id,
            blocks_s=[] if device.id in gpus.failed else blocks[device.id], reason=gpus.failed.get(device.id),
        )
        for device, case in cases
    ]  # fmt: skip
