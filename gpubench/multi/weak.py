"""Weak scaling: the same case on several equal GPUs, on each of them alone and on all of them at once.

All workers wait for one moment, and each tells when each of its samples ended. Which of them count, those inside the
window that all GPUs worked in, is left to the analysis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from gpubench.kernels.contract.op import Form
from gpubench.measure import protocol
from gpubench.measure.plan import Constraints, Series, Target, Workload
from gpubench.measure.worker_pool import WorkerPool
from gpubench.multi.equal_gpus import EqualGpus, OnDevice, cases_of
from gpubench.result.run import TogetherTimes

WARM_UP_S, ALONE_S, TOGETHER_S = 1.0, 3.0, 10.0
# From the moment at which the GPUs are asked until they begin: time for the message and for the warm-up.
AHEAD_S = 0.5
# Beside the warm-up and the work: a sample that is longer than was thought.
_SLACK_S = 30.0


def seconds(gpus: int) -> float:
    """About what one case takes on so many GPUs."""
    return gpus * (WARM_UP_S + AHEAD_S + ALONE_S) + WARM_UP_S + AHEAD_S + TOGETHER_S


def largest(workloads: Iterable[Workload]) -> list[Workload]:
    """Of each curve the largest size that has cases, in the order of the plan; of overheads those that move data."""
    found: dict[str, Workload] = {}
    for item in workloads:
        if item.cases and item.op.collective is None and (item.op.overhead is None or item.op.overhead.moves):
            known = found.get(item.series.key)
            found[item.series.key] = item if known is None or item.n > known.n else known
    return list(found.values())


def weak(
    pool: WorkerPool, group: Sequence[Target], item: Workload, constraints: Constraints, session: int,
) -> list[TogetherTimes]:  # fmt: skip
    """What each GPU of the group did, alone and with the others; in every second session with the others first. Of
    transfers both forms."""
    found: list[TogetherTimes] = []
    forms: tuple[Form, ...] = ("tuned",) if item.op.overhead is None else ("library", "tuned")
    series: Series = item.series
    for form in forms:
        cases = cases_of(series, item.n, group, constraints, form)
        if cases:
            found += _one_case(pool, cases, session)
    return found


def _one_case(pool: WorkerPool, cases: Sequence[OnDevice], session: int) -> list[TogetherTimes]:
    gpus = EqualGpus(pool)
    gpus.prepare(cases, session)
    found: list[TogetherTimes] = []
    phases: list[Callable[[], list[TogetherTimes]]] = [
        lambda: [one for case in cases for one in _at_once(gpus, [case], session, "alone", ALONE_S)],
        lambda: _at_once(gpus, cases, session, "together", TOGETHER_S),
    ]
    for phase in phases if session % 2 == 0 else reversed(phases):
        found += phase()
    gpus.finish(cases)
    return [one for one in found if one.device_id not in gpus.failed] + [
        TogetherTimes(session=session, case_id=case.id, device_id=device.id, reason=gpus.failed[device.id])
        for device, case in cases
        if device.id in gpus.failed
    ]


def _at_once(
    gpus: EqualGpus, cases: Sequence[OnDevice], session: int, phase: Literal["alone", "together"], work_s: float
) -> list[TogetherTimes]:
    """All of these GPUs, from one moment on."""
    gpus.monitor.watch(*(device.id for device, _ in cases))
    start_at = time.perf_counter() + AHEAD_S + WARM_UP_S

    def request(case_id: str) -> Callable[[int], protocol.Work]:
        return lambda number: protocol.Work(
            id=number, case_id=case_id, start_at=start_at, warmup_s=WARM_UP_S, work_s=work_s
        )

    replies = gpus.ask_all(
        [(device, request(case.id)) for device, case in cases], AHEAD_S + WARM_UP_S + work_s + _SLACK_S
    )
    gpus.monitor.rest()
    at_s = gpus.monitor.seconds(start_at)
    return [
        TogetherTimes(
            session=session, case_id=case.id, device_id=device.id, gpu_id=device.gpu_id, phase=phase, gpus=len(cases),
            repeat=reply.repeat, at_s=at_s, begin_s=reply.begin_s, ends_s=reply.ends_s,
        )
        for device, case in cases
        if isinstance(reply := replies.get(device.id), protocol.Worked)
    ]  # fmt: skip
