"""A look at the equal GPUs that a search leaves out: the same three cases on each of them and on the one that is
measured, in turns, inside a share of the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from gpubench.measure import protocol
from gpubench.measure.plan import Constraints, Series, Target, workload
from gpubench.measure.worker_pool import DeviceGone, WorkerGone, WorkerPool
from gpubench.model.case import QUEUED, Case
from gpubench.model.op import Op
from gpubench.model.result import Device, TwinTimes
from gpubench.stats import median

# Of the budget, and in it the time for opening the GPUs.
SHARE = 0.15
# Enough for two halves that say the same, each by itself.
ROUNDS, SAMPLES = 8, 3
# The link, memory and arithmetic: large enough for a rate; the host makes inputs and answer in a second or less.
SIZES = {"upload": 1 << 26, "copy": 1 << 24, "matmul": 2048}
_ENOUGH_S = 30.0  # for one answer: inputs of a case are made once, on the host


class TwinSpec(msgspec.Struct, frozen=True):
    """The GPUs that are left out, each behind the one that is measured in its place, and the ops that tell them
    apart."""

    groups: tuple[tuple[Target, ...], ...] = ()
    ops: Mapping[str, Op] = {}


def check(
    pool: WorkerPool, spec: TwinSpec, constraints: Constraints, session: int, left_s: Callable[[], float]
) -> list[TwinTimes]:
    """What each GPU took, in the order of the groups. A GPU that fails has the reason in place of times, and so has
    each case for which `left_s` did not suffice."""
    pool.open_all([target.device.id for group in spec.groups for target in group[1:]])
    found: list[TwinTimes] = []
    for group in spec.groups:
        for op in spec.ops.values():
            if left_s() <= 0:
                break
            cases = _cases(op, group, constraints)
            found += _Look(pool, session, left_s).times(op, cases) if len(cases) == len(group) else []
    return found


def _cases(op: Op, group: Sequence[Target], constraints: Constraints) -> list[tuple[Device, Case]]:
    """The best form of the op on each GPU, with data that stays there; none where one of them lacks it."""
    within = msgspec.structs.replace(
        constraints, targets=tuple(group), keep=None, named_forms=False,
        selection=msgspec.structs.replace(
            constraints.selection, forms=["library", "tuned"], regimes=[QUEUED], variants=[], params={}
        ),
    )  # fmt: skip
    item = workload(Series(op, "float32"), SIZES[op.name], within)
    found = []
    for target in group:
        ours = [case for case in item.cases if case.device_id == target.device.id]
        best = max(ours, key=lambda case: case.form == "tuned", default=None)
        found += [(target.device, best)] if best is not None else []
    return found


class _Look:
    """One case on all GPUs of a group."""

    def __init__(self, pool: WorkerPool, session: int, left_s: Callable[[], float]) -> None:
        self._pool, self._session, self._left_s = pool, session, left_s
        self._failed: dict[str, str] = {}

    def times(self, op: Op, cases: Sequence[tuple[Device, Case]]) -> list[TwinTimes]:
        """Blocks in turns, every second round from the last GPU to the first."""
        if op.overhead is None:
            ended = self._pool.load([{device.id: [case] for device, case in cases}])
            self._failed |= ended
        for device, case in cases:
            settings: dict[str, Any] = {"session": self._session, "part_samples": 0, "device_clock": False}
            self._ask(device, partial(protocol.Prepare, case=case, **settings))
        blocks: dict[str, list[float]] = {device.id: [] for device, _ in cases}
        for number in range(ROUNDS):
            if self._left_s() <= 0:
                break
            for position, (device, case) in enumerate(list(cases)[:: -1 if number % 2 else 1]):
                sample = partial(
                    protocol.Sample, case_id=case.id, session=self._session, round=number, position=position,
                    samples=SAMPLES, warmup_s=0.0, limit_s=1.0,
                )  # fmt: skip
                reply = self._ask(device, sample)
                if isinstance(reply, protocol.Sampled):
                    block = reply.block
                    blocks[device.id].append(median(block.wall_s[block.warmup :]))
        for device, case in cases:
            self._ask(device, partial(protocol.Finish, case_id=case.id))
        self._pool.release([cases[0][1].workload])
        return [
            TwinTimes(
                case_id=case.id, device_id=device.id, gpu_id=device.gpu_id,
                blocks_s=[] if device.id in self._failed else blocks[device.id], reason=self._failed.get(device.id),
            )
            for device, case in cases
        ]  # fmt: skip

    def _ask(self, device: Device, request: Callable[..., protocol.Request]) -> protocol.Reply | None:
        """The answer; None from a GPU that failed, now or before."""
        if device.id in self._failed:
            return None
        try:
            worker = self._pool.worker(device.id)
            reply = worker.ask(request(id=worker.next_id), _ENOUGH_S)
        except DeviceGone as gone:
            self._failed[device.id] = gone.detail
            return None
        except WorkerGone as gone:
            self._pool.drop(device.id)
            self._failed[device.id] = gone.detail
            return None
        if isinstance(reply, protocol.Refused | protocol.Broke):
            self._failed[device.id] = f"{reply.reason}: {reply.detail}"
            return None
        return reply
