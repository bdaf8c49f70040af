"""Measurements of identical GPUs beside the plan: weak scaling, and a check of the GPUs that a search leaves
out. Weak scaling runs each GPU alone and all of them at once.

For weak scaling all workers begin at the same moment, and each reports when each of its samples ended. The
analysis counts the samples inside the window in which all GPUs worked. For the check, three cases run in turns
on the measured GPU and on each GPU that was left out, within a share of the budget.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.base import group_by
from gpubench.base.errors import RequiredUnavailable
from gpubench.curves.stats import median
from gpubench.kernels.contract.op import Implementation
from gpubench.measure import protocol
from gpubench.measure.plan import Constraints, Series, Target, Workload, workload
from gpubench.measure.protocol import Listing
from gpubench.measure.schedule import Companion, Occasion, RunSpec
from gpubench.measure.worker_pool import DeviceGone, Worker, WorkerGone, WorkerPool
from gpubench.multi.ops import make_device_group
from gpubench.result.case import DEVICE_GROUP, QUEUED, Case, group_sizes, ordinal
from gpubench.result.run import Device, IdenticalGpuTimes, TogetherTimes

# The seconds to wait for one answer. They include making the inputs of a case on the host, which happens once.
ENOUGH_S = 30.0


def too_few(targets: Sequence[Target]) -> RequiredUnavailable:
    """Return the error for targets that have fewer identical GPUs than the options require."""
    models = Counter((t.device.backend, t.device.name) for t in _gpus(targets))
    return RequiredUnavailable(
        "unavailable", "--scaling needs two identical GPUs of one backend, and as many as --ranks says",
        why=f"the devices chosen have {max(models.values(), default=0) or 'none'}",
        hint="`gpubench detect` shows the GPUs; --devices cupy:* names them all",
    )  # fmt: skip


def _gpus(targets: Iterable[Target]) -> list[Target]:
    return [
        target for target in targets if target.device.kind == "gpu" and target.device.backend != DEVICE_GROUP
    ]


def join(
    targets: Sequence[Target], listings: Sequence[Listing], *, ranks: Sequence[int], pairs: bool, required: bool
) -> list[Target]:
    """Return the device groups to measure, each of GPUs of one backend and one name. `ranks` lists the numbers
    of GPUs in groups (empty: 2, 4, 8, ... and all), and `pairs` adds every ordered pair. Raises
    RequiredUnavailable if `required` is true and there is no group."""
    if any(target.device.backend == DEVICE_GROUP for target in targets):
        return []  # the user named device groups
    # The listing of the backend `group` says whose GPUs can form groups.
    joins = {
        device.id.split(":")[1]: x.implementations
        for x in listings
        if x.backend == DEVICE_GROUP
        for device in x.devices
    }  # by the name of the backend that drives the GPUs
    device_groups: dict[str, Target] = {}
    numbered = [target.device for target in _gpus(targets) if ordinal(target.device.id) is not None]
    models = group_by(numbered, lambda device: (device.backend, device.name))
    for (backend, _), alike in models.items():
        members: list[Sequence[Device]] = [*itertools.permutations(alike, 2)] if pairs else []
        sizes = ranks or group_sizes(len(alike))
        members += [alike[:count] for count in sizes if 2 <= count <= len(alike)]
        groups = map(make_device_group, members if backend in joins else ())
        device_groups |= {group.id: Target(group, joins[backend]) for group in groups}
    if required and not device_groups:
        raise too_few(targets)
    return [*device_groups.values()]


def identical_groups(spec: RunSpec) -> list[list[Target]]:
    """Return the groups of identical GPUs in a run, which include the GPUs that a search leaves out. If several
    backends drive a group, it is returned only for the first of them."""
    left_out = (target for group in spec.left_out for target in group[1:])
    gpus = _gpus((*spec.constraints.targets, *left_out))
    by_model = group_by(gpus, lambda target: (target.device.backend, target.device.name))
    groups = [group for group in by_model.values() if len(group) > 1]
    first = backends.drivers(group[0].device for group in groups)
    return [group for group in groups if first[group[0].device.name] == group[0].device.backend]


def without_scaling(spec: RunSpec) -> RunSpec:
    """Return a copy of the run's specification without weak and strong scaling."""
    settings = replace(spec.settings, scaling=msgspec.UNSET, ranks=msgspec.UNSET)
    return replace(
        spec, run=replace(spec.run, settings=settings),
        constraints=replace(spec.constraints, settings=settings),
    )  # fmt: skip


OnDevice = tuple[Device, Case]


def cases_of(
    series: Series,
    n: int,
    group: Sequence[Target],
    constraints: Constraints,
    implementation: Implementation = "tuned",
) -> list[OnDevice]:
    """Return each GPU in `group` with its case: the op at size `n`, with queued calls and resident data, by
    `implementation` if there is such a case. Return an empty list if a GPU has no case."""
    selection = replace(
        constraints.selection, implementations=["library", "tuned"], regimes=[QUEUED], variants=[]
    )
    within = replace(constraints, targets=tuple(group), keep=None, selection=selection)
    by_device = group_by(workload(series, n, within).cases, lambda case: case.device_id)
    if any(target.device.id not in by_device for target in group):
        return []
    return [
        (
            target.device,
            max(by_device[target.device.id], key=lambda case: case.implementation == implementation),
        )
        for target in group
    ]


class IdenticalGpus:
    """The workers of identical GPUs. `failed` says, by device id, why a GPU failed. Such a GPU gets no more
    requests."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.monitor = pool.monitor
        self.failed: dict[str, str] = {}

    def prepare(self, cases: Sequence[OnDevice], session: int) -> None:
        """Make the inputs, build the launch and check its result, on all GPUs at once. Then let one GPU after the
        other determine how long a sample takes."""
        if cases[0][1].group != "overhead":
            self._pool.load([{device.id: [case] for device, case in cases}])
            lost = self._pool.take_losses({device.id for device, _ in cases})
            self.failed |= {name: loss.gone.detail for name, loss in lost.items()}
        for device, case in cases:
            self.ask(
                device, protocol.Prepare(id=0, case=case, session=session, part_samples=0, device_clock=False)
            )

    def finish(self, cases: Sequence[OnDevice]) -> None:
        """Check the result of the last launch on each GPU."""
        for device, case in cases:
            self.ask(device, protocol.Finish(id=0, case_id=case.id))

    def ask(self, device: Device, request: protocol.WorkerRequest) -> protocol.Reply | None:
        """Return the worker's answer to one request, or None if the GPU fails or has failed before."""
        return self.ask_all([(device, request)], ENOUGH_S).get(device.id)

    def ask_all(
        self, requests: Sequence[tuple[Device, protocol.WorkerRequest]], within_s: float
    ) -> dict[str, protocol.Reply]:
        """Send requests to several GPUs at the same time, and wait up to `within_s` seconds for each answer.
        Return the answers of the GPUs that did not fail, by device id."""
        sent: list[tuple[str, Worker, protocol.WorkerRequest]] = []
        replies: dict[str, protocol.Reply] = {}
        for device, request in requests:
            if device.id in self.failed:
                continue
            try:
                worker = self._pool.worker(device.id)
                message = replace(request, id=worker.next_id)
                worker.send(message)
                sent.append((device.id, worker, message))
            except DeviceGone as gone:
                self.failed[device.id] = gone.detail
            except WorkerGone as gone:
                self._lose(device.id, gone)
        for device_id, worker, message in sent:
            try:
                reply = worker.wait(message, within_s)
            except WorkerGone as gone:
                self._lose(device_id, gone)
                continue
            if isinstance(reply, protocol.Refused | protocol.Broke):
                self.failed[device_id] = f"{reply.reason}: {reply.detail}"
            else:
                replies[device_id] = reply
        return replies

    def _lose(self, device_id: str, gone: WorkerGone) -> None:
        self._pool.drop(device_id)
        self.failed[device_id] = gone.detail


# ---------------------------------------------------------------- all at once, and each alone

WARM_UP_S, ALONE_S, TOGETHER_S = 1.0, 3.0, 10.0
# The seconds between the request and the common begin, besides the warm-up. The message arrives in them.
AHEAD_S = 0.5
# Additional seconds to wait for an answer, because a sample may take longer than expected.
_SLACK_S = 30.0


def seconds(gpus: int) -> float:
    """Return about how many seconds weak scaling takes for one implementation on this number of GPUs."""
    return gpus * (WARM_UP_S + AHEAD_S + ALONE_S) + WARM_UP_S + AHEAD_S + TOGETHER_S


def largest(workloads: Iterable[Workload]) -> list[Workload]:
    """Return, for each series, the workload of the largest size that has cases, in the order of the plan.
    Collectives, and overheads that move no data, are left out."""
    measured = (
        item for item in workloads
        if item.cases and item.op.collective is None and (item.op.overhead is None or item.op.overhead.moves)
    )  # fmt: skip
    by_curve = group_by(measured, lambda item: item.series.key)
    return [max(items, key=lambda item: item.n) for items in by_curve.values()]


def implementations(item: Workload) -> tuple[Implementation, ...]:
    """Return the implementations with which weak scaling runs a workload: library and tuned if it only moves
    data, else tuned."""
    return ("tuned",) if item.op.overhead is None else ("library", "tuned")


def weak(
    pool: WorkerPool, group: Sequence[Target], item: Workload, constraints: Constraints, session: int,
) -> list[TogetherTimes]:  # fmt: skip
    """Return the times of each GPU of the group when it works alone and when all GPUs work at once. Sessions
    with an even number begin with the GPUs alone, the others with all at once. A GPU that fails has a reason
    instead of times."""
    times: list[TogetherTimes] = []
    for implementation in implementations(item):
        cases = cases_of(item.series, item.n, group, constraints, implementation)
        if not cases:
            continue
        gpus = IdenticalGpus(pool)
        gpus.prepare(cases, session)
        turns: list[Sequence[OnDevice]] = [[case] for case in cases]
        turns.insert(0 if session % 2 else len(cases), cases)
        work = [worked for turn in turns for worked in _work(gpus, turn, session, alone=turn is not cases)]
        gpus.finish(cases)
        times += [worked for worked in work if worked.device_id not in gpus.failed]
        times += [
            TogetherTimes(session=session, case_id=case.id, device_id=device.id, reason=gpus.failed[device.id])
            for device, case in cases
            if device.id in gpus.failed
        ]
    return times


def _work(gpus: IdenticalGpus, cases: Sequence[OnDevice], session: int, *, alone: bool) -> list[TogetherTimes]:
    """Let all of these GPUs work from the same moment on, and return the times of each."""
    gpus.monitor.watch(*(device.id for device, _ in cases))
    work_s, start_at = ALONE_S if alone else TOGETHER_S, time.perf_counter() + AHEAD_S + WARM_UP_S
    work = {"start_at": start_at, "warmup_s": WARM_UP_S, "work_s": work_s}
    replies = gpus.ask_all(
        [(device, protocol.Work(id=0, case_id=case.id, **work)) for device, case in cases],
        AHEAD_S + WARM_UP_S + work_s + _SLACK_S,
    )
    gpus.monitor.rest()
    at_s = gpus.monitor.seconds(start_at)
    return [
        TogetherTimes(
            session=session, case_id=case.id, device_id=device.id, gpu_id=device.gpu_id,
            phase="alone" if alone else "together", gpus=len(cases), repeat=reply.repeat, at_s=at_s,
            begin_s=reply.begin_s, ends_s=reply.ends_s,
        )
        for device, case in cases
        if isinstance(reply := replies.get(device.id), protocol.Worked)
    ]  # fmt: skip


# ---------------------------------------------------------------- those that a search leaves out

# The share of the budget for checking GPUs that a search leaves out, opening them included.
SHARE = 0.15
# Prepared cases are timed for at least so many seconds, because preparing them took much longer.
LEAST_S = 1.0
# So many rounds of so many samples are enough for two halves that have to agree independently.
ROUNDS, SAMPLES = 8, 3
# Link, memory and arithmetic: sizes that are large enough for a rate and need at most a second on the host.
SIZES = {"upload": 1 << 26, "copy": 1 << 24, "matmul": 2048}


def check(
    pool: WorkerPool, spec: RunSpec, session: int, left_s: Callable[[], float]
) -> list[IdenticalGpuTimes]:
    """Return the times of the GPUs that a search leaves out and of the GPU measured in their place, in the
    order of `spec.left_out`. A GPU that fails has a reason instead of times. `left_s` returns the seconds that
    are left; when there are none, no more cases begin."""
    device_ids = [target.device.id for group in spec.left_out for target in group[1:]]
    pool.open_all([device_id for device_id in device_ids if device_id not in pool.workers])
    times: list[IdenticalGpuTimes] = []
    for group in spec.left_out:
        gpus = IdenticalGpus(pool)
        for name, n in SIZES.items():
            cases = cases_of(Series(spec.equip(kernels.load(name)), "float32"), n, group, spec.constraints)
            if cases and left_s() > 0:
                times += _times(gpus, cases, session, left_s)
    return times


def _times(
    gpus: IdenticalGpus, cases: Sequence[OnDevice], session: int, left_s: Callable[[], float]
) -> list[IdenticalGpuTimes]:
    """Sample the GPUs in turns, and return the times of each."""
    gpus.prepare(cases, session)
    until = time.monotonic() + max(left_s(), LEAST_S)
    blocks: dict[str, list[float]] = {device.id: [] for device, _ in cases}
    for number in range(ROUNDS):
        if time.monotonic() >= until:
            break
        # Every second round goes from the last GPU to the first.
        for position, (device, case) in enumerate(list(cases)[:: -1 if number % 2 else 1]):
            request = protocol.Sample(
                id=0, case_id=case.id, session=session, round=number, position=position, samples=SAMPLES,
                warmup_s=0.0, limit_s=1.0,
            )  # fmt: skip
            reply = gpus.ask(device, request)
            if isinstance(reply, protocol.Sampled):
                blocks[device.id].append(median(reply.block.wall_s[reply.block.warmup :]))
    gpus.finish(cases)
    return [
        IdenticalGpuTimes(
            case_id=case.id, device_id=device.id, gpu_id=device.gpu_id,
            blocks_s=[] if device.id in gpus.failed else blocks[device.id], reason=gpus.failed.get(device.id),
        )
        for device, case in cases
    ]  # fmt: skip


class IdenticalCompanion(Companion):
    """The companion that measures the identical GPUs of a run."""

    @property
    def share(self) -> float:  # type: ignore[override]
        """The share of the budget, from 0 to 1, for checking the GPUs that a search leaves out. The share is 0 if
        `devices` is empty."""
        return SHARE if self.devices() else 0.0

    def devices(self) -> list[Device]:
        """Return the GPUs that the search leaves out. The list is empty if the run has no budget."""
        if self.spec.settings.budget_s is None:
            return []
        return [target.device for group in self.spec.left_out for target in group[1:]]

    def follow_session(self, session: Occasion) -> None:
        """Measure weak scaling, if it was asked for. After the first session, also check the GPUs that the search
        leaves out."""
        if self.spec.settings.scales("weak"):
            self._work_together(session)
        if session.first and self.devices():
            budget_s = self.spec.settings.budget_s or 0.0
            until = time.monotonic() + min(session.budget.left_s(), SHARE * budget_s)
            times = check(session.pool, self.spec, session.index, lambda: until - time.monotonic())
            self.recorder.replace(identical_gpus=list(times))

    def _work_together(self, session: Occasion) -> None:
        """Measure weak scaling at the largest size of each series, as long as the budget is enough for it."""
        for group in identical_groups(self.spec):
            for item in largest(session.plan):
                for count in self.spec.settings.ranks or [len(group)]:
                    needed_s = len(implementations(item)) * seconds(count)
                    if count <= len(group) and session.budget.left_s() >= needed_s:
                        times = weak(session.pool, group[:count], item, self.spec.constraints, session.index)
                        earlier = self.recorder.run.together or ()
                        self.recorder.replace(together=[*earlier, *times])
