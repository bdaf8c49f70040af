"""Equal GPUs, asked beside the plan: which case each of them computes, and what became of those that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpubench.kernels.contract.op import Form
from gpubench.measure import protocol
from gpubench.measure.plan import Constraints, Series, Target, workload
from gpubench.measure.worker_pool import DeviceGone, Worker, WorkerGone, WorkerPool
from gpubench.result.case import QUEUED, Case
from gpubench.result.run import Device

# For one answer: inputs of a case are made once, on the host.
ENOUGH_S = 30.0

OnDevice = tuple[Device, Case]


def cases_of(
    series: Series, n: int, group: Sequence[Target], constraints: Constraints, form: Form = "tuned"
) -> list[OnDevice]:
    """The op on each GPU in that form, or in the one that there is, with data that stays there; none where one of them
    lacks it."""
    selection = msgspec.structs.replace(
        constraints.selection, forms=["library", "tuned"], regimes=[QUEUED], variants=[]
    )
    within = msgspec.structs.replace(
        constraints, targets=tuple(group), keep=None, named_forms=False, selection=selection
    )
    cases = workload(series, n, within).cases
    found = []
    for target in group:
        ours = [case for case in cases if case.device_id == target.device.id]
        best = max(ours, key=lambda case: case.form == form, default=None)
        found += [(target.device, best)] if best is not None else []
    return found if len(found) == len(group) else []


class EqualGpus:
    """Workers of GPUs. `failed` has the reason of each that failed: it is asked nothing more."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.monitor = pool.monitor
        self.failed: dict[str, str] = {}

    def prepare(self, cases: Sequence[OnDevice], session: int) -> None:
        """Inputs, launch and check on all of them at once, then what a sample takes, one by one."""
        if cases[0][1].group != "overhead":
            self.failed |= self._pool.load([{device.id: [case] for device, case in cases}])
        for device, case in cases:
            self.ask(
                device,
                lambda number, case=case: protocol.Prepare(  # type: ignore[misc]
                    id=number, case=case, session=session, part_samples=0, device_clock=False
                ),
            )

    def finish(self, cases: Sequence[OnDevice]) -> None:
        """Check what the last launch left."""
        for device, case in cases:
            self.ask(device, lambda number, case=case: protocol.Finish(id=number, case_id=case.id))  # type: ignore[misc]

    def ask(self, device: Device, request: Callable[[int], protocol.Request]) -> protocol.Reply | None:
        """The answer; None from a GPU that failed, now or before."""
        return next(iter(self.ask_all([(device, request)], ENOUGH_S).values()), None)

    def ask_all(
        self, requests: Sequence[tuple[Device, Callable[[int], protocol.Request]]], within_s: float
    ) -> dict[str, protocol.Reply]:
        """The answers of GPUs that are asked at the same time, without those of GPUs that failed."""
        sent: list[tuple[str, Worker, protocol.Request]] = []
        found: dict[str, protocol.Reply] = {}
        for device, request in requests:
            if device.id in self.failed:
                continue
            try:
                worker = self._pool.worker(device.id)
                message = request(worker.next_id)
                worker.send(message)
                sent.append((device.id, worker, message))
            except DeviceGone as gone:
                self.failed[device.id] = gone.detail
            except WorkerGone as gone:
                self._lost(device.id, gone)
        for device_id, worker, message in sent:
            try:
                reply = worker.wait(message, within_s)
            except WorkerGone as gone:
                self._lost(device_id, gone)
                continue
            if isinstance(reply, protocol.Refused | protocol.Broke):
                self.failed[device_id] = f"{reply.reason}: {reply.detail}"
            else:
                found[device_id] = reply
        return found

    def _lost(self, device_id: str, gone: WorkerGone) -> None:
        self._pool.drop(device_id)
        self.failed[device_id] = gone.detail
