"""One case under measurement: prepare it, sample it, stop it, and turn any error into its outcome."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import UNSET

from gpubench.base.installation import NOT_AT_BEST, NUMBA_MISSING, REINSTALL, SHADOWS, install_command
from gpubench.base.messages import REASONS, Reason
from gpubench.curves import stats
from gpubench.curves.stats import median
from gpubench.measure import protocol
from gpubench.measure.budget import Budget, estimate, stop_reason
from gpubench.measure.monitor import SLOWED
from gpubench.measure.plan import MAIN, Purpose, Workload, skip
from gpubench.measure.points import Pace
from gpubench.measure.recorder import (
    DEVICE_LOST,
    WRONG_RESULT,
    BlockDone,
    CaseDone,
    CaseStarted,
    Progress,
    Recorder,
    Sink,
    Warned,
    broken,
    has_samples,
    settled_block,
)
from gpubench.measure.worker_pool import DeviceGone, Worker, WorkerGone, WorkerPool
from gpubench.result.case import FUNCTIONS, Case, inner_device
from gpubench.result.run import (
    AssignmentTimes,
    Block,
    DeviceKind,
    Failure,
    Measurement,
    Outcome,
    Planned,
    RunWarning,
    SessionFailure,
    Settings,
    Stop,
    StopReason,
    failures_of,
)


def warn_once(recorder: Recorder, sink: Sink, warning: RunWarning) -> None:
    """Store and report a warning unless the run already has one with the same code and message."""
    if all((other.code, other.message) != (warning.code, warning.message) for other in recorder.run.warnings):
        recorder.warn(warning)
        sink(Warned(warning))


class Runtime(msgspec.Struct, frozen=True):
    """The objects and settings that all cases of one session share."""

    pool: WorkerPool  # drives the devices of this session
    recorder: Recorder  # holds the document of the run and saves it
    settings: Settings  # the sessions, samples and precision of the run
    sink: Sink  # gets each event
    progress: Progress  # counts cases for the display of progress
    session: int  # index of the session in the file
    budget: Budget  # the time budget of the run
    kinds: Mapping[str, DeviceKind]  # the kinds of the devices by device id
    check_only: bool = False  # whether outputs are checked and nothing is timed
    repeats: Mapping[str, Block] = {}  # by case id: a block whose repeat counts are used again
    first_session: int = 0  # index of the first session of this call of the program
    pace: Pace = msgspec.field(default_factory=Pace)  # the times of launches so far


# Makes a request to a worker, with the number that the worker gives it.
RequestMaker = Callable[[Worker], protocol.WorkerRequest]

SHORTEST_DEADLINE_S = 1.0
# Pauses before throttled samples are taken again: each case has three tries in a session.
PAUSES_S = (0.05, 0.25, 1.0)
# The samples of one block deviate together, so a block has few samples. A launch of LONG_S or more makes a
# block of its own.
BLOCK_SAMPLES = 2
LONG_S = 0.005
# Launches of a case with one sample: those of the reference, the first one, the sample, and the last check.
LEAST_LAUNCHES = 5
# If the first launch takes longer than this, no launch is added to warm up.
ONCE_S = 0.25
LOOP_S = 0.05  # seconds of calls before each block, if a split is timed in the same rounds
# A CPU case ends when AGREEING blocks agree, or after MOST_TRIES blocks.
AGREEING, MOST_TRIES = 2, 4
LARGEST_BLOCK = 5  # samples of a split that is only tried
# A launch hangs if it takes HANG_S seconds more than SLOW times what is expected.
HANG_S, SLOW = 3.0, 10.0
CHECKED_BYTES_PER_S = 2e7  # the rate at which a slow host compares an output, with room to spare
# The phases in which compilers or the host work, which may take long.
BUILDING = ("compile", "autotune", "inputs", "reference")


class CaseRun:
    """One case while its workload is measured, with its time limit, samples and worker. `before` is the case's
    outcome before this measurement, or None. If it has samples, it stays if this measurement fails."""

    def __init__(
        self, case: Case, runtime: Runtime, workload: Workload, purpose: Purpose = MAIN,
        before: Outcome | None = None,
    ) -> None:  # fmt: skip
        self.case = case
        self.runtime = runtime
        self.purpose = purpose
        self.before = before
        self.left_s = runtime.settings.case_timeout_s
        self.prepared: protocol.Prepared | None = None
        self.worker: Worker | None = None
        self.split: float | str | None = None
        self.over = False
        self._workload = workload
        self._part_samples = (
            protocol.PART_SAMPLES if workload.explained and workload.is_taken_apart(case) else 0
        )
        self._used: list[list[float]] = []  # samples of each block
        self.clean: list[list[float]] = []  # those that were not throttled, of each block that has some
        self.pauses_s = list(PAUSES_S)  # the pauses left before throttled samples are taken again, in seconds
        self._number = 0
        self._sampling_s = 0.0
        self._block_s = 0.0
        self._launch_s = 0.0
        self._asked: protocol.WorkerRequest | None = None

    @property
    def unsettled(self) -> bool:
        """Whether the case runs on two sides (CPU and GPU) and its split has not been chosen yet."""
        return self.prepared is not None and self.prepared.split is not None and self.split is None

    @property
    def measured(self) -> bool:
        """Whether the case has passed its check and has not failed since."""
        return self.prepared is not None and isinstance(self._outcome, Measurement)

    @property
    def failed(self) -> bool:
        """Whether the case broke in this session."""
        here = self.runtime.session
        return isinstance(self._outcome, Failure) or any(
            failure.session == here for failure in failures_of(self._outcome)
        )

    def trial(self, purpose: Purpose, split: float | str) -> CaseRun:
        """Return a new CaseRun of the same case with another split and with a full time limit."""
        unexplained = msgspec.structs.replace(self._workload, explained=False)
        trial = CaseRun(self.case, self.runtime, unexplained, purpose, self.before)
        trial._number, trial.split = self._number, split
        return trial

    # ---------------------------------------------------------------- from its begin to its end

    def leave_out(self) -> None:
        """End the case before it begins if its launches are known to take longer than the budget lasts."""
        needed_s = LEAST_LAUNCHES * self.call_s
        if self.call_s >= ONCE_S and needed_s > self.runtime.budget.left_s():
            self._run_late(f"a call takes {self.call_s:.1f} s, and to check and time it about {needed_s:.0f} s")

    def lose(self, gone: WorkerGone) -> None:
        """End the case after the loss of its worker. It becomes a skip if the budget ended the worker and no
        launch hung, else a failure."""
        # A user's function may compile at its first launch, which then does not count as hanging.
        building = gone.phase in BUILDING or (self.case.group == FUNCTIONS and gone.phase == "first launch")
        late = gone.reason == "timeout" and self.runtime.budget.over
        if late and (building or gone.phase_s < HANG_S + SLOW * self._workload.slow_s):
            self._run_late(f"the time budget ended {gone.phase_s:.0f} s after its worker began: {gone.phase}")
            self._announce()
        else:
            self._fail(gone.reason, gone.detail, phase=gone.phase, stderr_tail=gone.stderr_tail)

    def _run_late(self, detail: str) -> None:
        """End the case because the budget has no time for it, and keep an outcome that it already had."""
        self.over, self.prepared = True, None
        outcome = self.before
        if outcome is None or isinstance(outcome, Planned):
            outcome = skip(self.case, "budget", detail, REASONS["budget"].remedy)
        self.runtime.recorder.put(outcome)

    def begin(self) -> None:
        """Report the start of the case and prepare it."""
        progress = self.runtime.progress
        progress.number += 1
        self._number = progress.number
        self.runtime.sink(CaseStarted(*self._place()))
        self.prepare(first=True)

    def _place(self) -> tuple[str, int, int, int, int, float | None]:
        """Return the values for the fields of a CaseUnderWay, in order."""
        progress, session = self.runtime.progress, self.runtime.session
        return (
            self.case.id, self._number, progress.cases, session, progress.sessions, progress.remaining(),
        )  # fmt: skip

    @property
    def quiet(self) -> bool:
        """Whether preparing the case times nothing, so that several devices may prepare at the same time."""
        if self.runtime.check_only:
            return True
        return not self._workload.explained and inner_device(self.case.device_id) is None

    def ask_to_begin(self) -> None:
        """Send the request to prepare the case. `begin` waits for the reply."""
        worker = self.runtime.pool.workers.get(self.case.device_id)
        if worker is not None:
            self._ask_ahead(worker, self._prepare_request)

    def prepare(self, *, first: bool) -> None:
        """Have the worker prepare the case. With `first`, enter the case as a measurement. A refusal ends the
        case as a Skip, an error as a failure."""
        reply = self._exchange(self._prepare_request)
        if isinstance(reply, protocol.Prepared):
            self.prepared = reply
            first_s = reply.parts.first_launch_s or 0.0
            self._launch_s = self.runtime.pace.least_s(self.case) or (first_s if first_s >= ONCE_S else 0.0)
            self._warn(reply.notes, reply.lacks)
            if first:
                self._enter(reply)

    def _warn(self, notes: Iterable[RunWarning], lacks: str | None) -> None:
        """Warn of each note once per run, and of `lacks`, the reason why the CPU is slower than it could be."""
        fix = install_command() if NUMBA_MISSING in str(lacks) else REINSTALL
        hint = "unset the variable" if "NUMBA_" in str(lacks) else "" if SHADOWS in str(lacks) else fix
        slow = [RunWarning(code="cpu-not-compiled", message=lacks, hint=hint)] if lacks else []
        for warning in (*slow, *notes):
            warn_once(self.runtime.recorder, self.runtime.sink, warning)

    def sample(self, number: int, position: int) -> None:
        """Take one block, at index `position` of round `number`, and stop the case if it has enough samples."""
        settings = self.runtime.settings
        if len(self.kept) >= settings.min_samples and self._block_s > self.left_s:
            self.stop("timeout")  # a block that its deadline kills would take the good samples with it
            return
        began = time.monotonic()
        if not self.take(number, position):
            return
        self.runtime.recorder.save()
        self._sampling_s += max(0.0, time.monotonic() - began - self._warmup_s)
        typical, precision = estimate(self._medians)
        if typical:
            self._launch_s = typical
            self.runtime.pace.note(self.case, typical)
        self.runtime.sink(BlockDone(*self._place(), typical, precision, len(self.kept)))
        reason = stop_reason(self._counted, self._sampling_s, self.left_s, settings, target=self.wanted)
        if reason is not None:
            self.stop(reason)

    def take(self, number: int, position: int) -> bool:
        """Take and record a block of samples (arguments as in `sample`). Returns False if the case is over.
        Throttled samples are taken again while the case has tries and time left."""
        samples = self._block_size()
        while True:
            began = time.monotonic()
            block = self._block(number, position, samples)
            if block is None:
                return False
            self.runtime.recorder.add(self.case.id, blocks=block)
            self.add(block)
            self._block_s = time.monotonic() - began
            samples = len(block.discarded)
            if not samples or not self.pauses_s or self.runtime.budget.over or self.left_s <= 0:
                return True
            pause_s = self.pauses_s.pop(0)
            # A pause cools a hot device. Any other would only lower its clock.
            if SLOWED.intersection(block.throttle):
                time.sleep(pause_s)
                self.left_s -= pause_s

    def stop(self, reason: StopReason) -> None:
        """End the sampling in this session. A time-out before the least number of samples is a failure."""
        self.over = True
        least = self.runtime.settings.min_samples
        if reason == "timeout" and len(self.kept) < least:
            detail = f"{len(self.kept)} of {least} samples within the case's time limit"
            self._fail("timeout", detail, hint=REASONS["timeout"].remedy, phase="sample")
            return
        stop = Stop(session=self.runtime.session, reason=reason)
        self.runtime.recorder.add(self.case.id, stops=stop)
        self.runtime.recorder.save()

    def time_stages(self, limit_s: float) -> None:
        """Time each stage of a workload for about `limit_s` seconds, and record the times."""
        if not self.measured:
            return
        self.left_s = max(self.left_s, self.runtime.settings.case_timeout_s)
        reply = self._ask_of_session(protocol.TimeStages, limit_s=limit_s)
        if isinstance(reply, protocol.TimedStages) and reply.times is not None:
            self.runtime.recorder.add(self.case.id, stages=reply.times)

    def assign_stages(self, limit_s: float) -> AssignmentTimes | None:
        """Measure for about `limit_s` seconds the times that decide on which side each stage runs, and record
        them. Returns None if the worker has none."""
        reply = self._ask_of_session(protocol.TimeStages, limit_s=limit_s, assignment_times=True)
        if not isinstance(reply, protocol.TimedStages) or reply.assignment_times is None:
            return None
        self.runtime.recorder.add(self.case.id, assignment_times=reply.assignment_times)
        return reply.assignment_times

    def work(self, start_at: float, warmup_s: float, work_s: float) -> protocol.Worked | None:
        """Have the worker warm up for `warmup_s` seconds, and launch the case for `work_s` seconds from
        `start_at` on. `start_at` is a time by `perf_counter`. Returns None if the case broke."""
        self.left_s = max(self.left_s, self.runtime.settings.case_timeout_s)
        reply = self._exchange_once_prepared(
            lambda worker: protocol.Work(
                id=worker.next_id, case_id=self.case.id, start_at=start_at, warmup_s=warmup_s, work_s=work_s
            )
        )
        return reply if isinstance(reply, protocol.Worked) else None

    def ask_to_finish(self) -> None:
        """Send the request of `finish` without waiting, so that all devices check at the same time."""
        if not self._to_be_finished:
            return
        # Sampling may have used up the case's time. What it found is right or wrong whatever the clock says.
        self.left_s = max(self.left_s, self.runtime.settings.case_timeout_s)
        if self.worker is not None and self.runtime.pool.holds(self.case.device_id, self.worker):
            self._ask_ahead(self.worker, self._finish_request)

    def finish(self) -> None:
        """Wait for the last check, if there is one, and report the outcome if the case is `measured`."""
        if not self._to_be_finished:
            if self.measured:
                self._announce()
            return
        reply = self._exchange_once_prepared(self._finish_request)
        if isinstance(reply, protocol.Done):
            self._warn(reply.notes, None)
            self._announce()

    @property
    def _to_be_finished(self) -> bool:
        """Whether a last check is needed."""
        return self.measured and (bool(self._used) or self.runtime.check_only)  # else no sample was taken

    @property
    def call_s(self) -> float:
        """The seconds of a launch: measured, else declared by the op, else 0."""
        return self._launch_s or self._workload.call_s

    @property
    def sample_s(self) -> float:
        """The least seconds of one sample. It is 0 for launches shorter than ONCE_S."""
        return self.call_s * (self.case.calls or 1) if self.call_s >= ONCE_S else 0.0

    @property
    def check_s(self) -> float:
        """The least seconds of the last check. It is 0 for launches shorter than ONCE_S."""
        return self.call_s * min(self.case.calls or 1, protocol.MOST_CHECKED) if self.call_s >= ONCE_S else 0.0

    # ---------------------------------------------------------------- its worker

    @property
    def _counts(self) -> Block | None:
        """A block with the repeat counts that this or an earlier session settled, or None."""
        outcome = self._outcome
        earlier = settled_block(outcome) if isinstance(outcome, Measurement) else None
        return earlier or self.runtime.repeats.get(self.case.id)

    def _ask_ahead(self, worker: Worker, request: RequestMaker) -> None:
        """Send a request whose reply `_exchange` waits for later."""
        self._asked = request(worker)
        with contextlib.suppress(WorkerGone):  # waiting for the answer tells the same
            worker.send(self._asked)

    def _prepare_request(self, worker: Worker) -> protocol.WorkerRequest:
        self.worker, block = worker, self._counts
        if self.split is None and block is not None:
            self.split = block.split
        return protocol.Prepare(
            id=worker.next_id, case=self.case, session=self.runtime.session,
            repeat=block.repeat if block else None, hot_repeat=block.hot_repeat if block else None,
            time_it=not self.runtime.check_only, device_clock=self._workload.explained, part_samples=self._part_samples,
            split=self.split, expected_s=self.runtime.pace.expected_s(self.case),
        )  # fmt: skip

    def _finish_request(self, worker: Worker) -> protocol.WorkerRequest:
        left_s = self.runtime.budget.left_s()
        limit_s = max(0.0, left_s) if math.isfinite(left_s) else None
        return protocol.Finish(id=worker.next_id, case_id=self.case.id, limit_s=limit_s)

    def _ask_of_session(
        self, kind: Callable[..., protocol.WorkerRequest], **fields: object
    ) -> protocol.Reply | None:
        """Send a request about this case and session, and return the reply, or None if an error ended the
        case."""
        session = self.runtime.session
        return self._exchange_once_prepared(
            lambda worker: kind(id=worker.next_id, case_id=self.case.id, session=session, **fields)
        )

    def _exchange_once_prepared(self, request: RequestMaker) -> protocol.Reply | None:
        """Like `_exchange`, but first prepare the case again if its worker was replaced."""
        if not self.runtime.pool.holds(self.case.device_id, self.worker):
            self.prepare(first=False)
            if self.prepared is None:
                return None
        return self._exchange(request)

    def _exchange(self, request: RequestMaker) -> protocol.Reply | None:
        """Send one request and return the reply, or None if an error ended the case."""
        pool, device_id, began = self.runtime.pool, self.case.device_id, time.monotonic()
        sent, self._asked = self._asked, None
        try:
            worker = pool.worker(device_id)
            if sent is None or worker is not self.worker:
                sent = request(worker)
                worker.send(sent)
            reply = worker.wait(sent, self._patience_s(sent))
        except DeviceGone as gone:
            if gone.reason == DEVICE_LOST and has_samples(self.before):
                self._fail(gone.reason, gone.detail, hint=gone.hint)
            else:
                self._skip(gone.reason, gone.detail, gone.hint)
            return None
        except WorkerGone as gone:
            pool.drop(device_id)
            self.lose(gone)
            return None
        finally:
            self.left_s -= time.monotonic() - began
        if isinstance(reply, protocol.Refused):
            if reply.reason == "not-compiled":
                self._warn((), NOT_AT_BEST.format(reply.detail))
            self._skip(reply.reason, reply.detail, reply.hint)
            return None
        if isinstance(reply, protocol.Broke):
            self._broke(reply)
            return None
        return reply

    def _patience_s(self, request: protocol.WorkerRequest) -> float:
        """Return how many seconds to wait for the reply to `request`."""
        limit_s, budget = max(self.left_s, SHORTEST_DEADLINE_S), self.runtime.budget
        if isinstance(request, protocol.Prepare):
            return min(limit_s, budget.patience_s)
        if isinstance(request, protocol.Sample | protocol.Finish):
            checked_s = (getattr(self.prepared, "output_bytes", None) or 0) / CHECKED_BYTES_PER_S
            launches_s = SLOW * self.call_s * (self.case.calls or 1)
            return min(limit_s, budget.patience_s + 2 * HANG_S + launches_s + checked_s)
        return limit_s

    def _block(self, number: int, position: int, samples: int) -> Block | None:
        """Take one block of `samples` samples, or return None if an error ended the case."""
        runtime = self.runtime
        monitor = None if self._on_cpu else runtime.pool.monitor
        if monitor is not None:
            monitor.watch(self.case.device_id)
        reply = self._ask_of_session(
            protocol.Sample, round=number, position=position, samples=samples, warmup_s=self._warmup_s,
            limit_s=max(0.0, min(self.left_s, runtime.budget.left_s())), warm_up=not self.sample_s,
        )  # fmt: skip
        read = monitor.rest() if monitor is not None else []
        if not isinstance(reply, protocol.Sampled):
            return None
        runtime.recorder.extend_parts(self.case.id, runtime.session, reply.parts)
        block = msgspec.structs.replace(reply.block, phase=self.purpose.phase)
        return monitor.judge(self.case.device_id, block, reply.times_s, read) if monitor is not None else block

    # ---------------------------------------------------------------- its samples

    @property
    def _on_cpu(self) -> bool:
        return self.runtime.kinds[self.case.device_id] == "cpu"

    @property
    def _warmup_s(self) -> float:
        """The seconds of work before a block."""
        # It raises a GPU's clock, which falls while another device is measured.
        return max(LOOP_S * self._loops, 0.0 if self._on_cpu else self.runtime.settings.warmup_s)

    @property
    def _loops(self) -> bool:
        """Whether the case makes calls before each block because it takes turns with a split."""
        # A core that is idle while a split runs is slow in its first calls after that.
        return self.call_s < ONCE_S and any(case.shared_with for case in self._workload.cases)

    @property
    def _long(self) -> bool:
        return self._launch_s * (self.case.calls or 1) >= LONG_S

    @property
    def wanted(self) -> int | None:
        """The number of blocks to take, or None if the settings decide."""
        target = self.purpose.blocks
        if target is None or not self._on_cpu or self._long or self.purpose.phase != MAIN.phase:
            return target
        # Other programs make single blocks of a CPU longer: take more until AGREEING blocks agree.
        agreeing = len(stats.clean_blocks(self._medians)) if self._medians else 0
        return max(target, min(len(self._medians) + max(0, AGREEING - agreeing), MOST_TRIES))

    @property
    def _medians(self) -> list[float]:
        return [median(block) for block in self._counted]

    @property
    def _counted(self) -> list[list[float]]:
        """The samples that count, by block."""
        # Throttled samples count only if too few others are left after the last try, each as a block.
        enough = sum(map(len, self.clean)) >= self.runtime.settings.min_samples
        return self.clean if enough or self.pauses_s else [[value] for block in self._used for value in block]

    @property
    def kept(self) -> list[float]:
        """The samples that count, in one list."""
        return [value for block in self._counted for value in block]

    def _block_size(self) -> int:
        if self.purpose.samples is not None:
            return max(1, self.purpose.samples - len(self.kept))
        rest = self.runtime.settings.max_samples - len(self.kept)
        return max(1, min(rest, 1 if self._long else BLOCK_SAMPLES))

    def add(self, block: Block) -> None:
        """Store the samples of a block after its warm-up, and separately those that were not discarded."""
        self._used.append(block.wall_s[block.warmup :])
        clean = [x for i, x in enumerate(self._used[-1], block.warmup) if str(i) not in block.discarded]
        self.clean += [clean] if clean else []

    # ---------------------------------------------------------------- its outcome

    @property
    def _outcome(self) -> Outcome | None:
        return self.runtime.recorder.outcome(self.case.id)

    def _enter(self, reply: protocol.Prepared) -> None:
        outcome = self._outcome
        if not isinstance(outcome, Measurement):
            self.runtime.recorder.put(Measurement(
                id=self.case.id, case=self.case, flops=reply.flops, bytes=reply.bytes, output_bytes=reply.output_bytes,
                input_bytes=reply.input_bytes, op_hash=reply.op_hash, kernel_hash=reply.kernel_hash,
                kernel=reply.kernel, blas=reply.blas, check=reply.check, staging=reply.staging, sets=reply.sets,
                one_piece=reply.one_piece, answer=UNSET if reply.answer is None else reply.answer,
                failures=failures_of(outcome) or UNSET,
            ))  # fmt: skip
        if self._workload.explained and not self.unsettled:
            self.runtime.recorder.add(self.case.id, parts=reply.parts)

    def _broke(self, reply: protocol.Broke) -> None:
        if reply.fatal:
            self.runtime.pool.drop(self.case.device_id)
        if reply.reason == WRONG_RESULT:
            self._end(Failure(
                id=self.case.id, case=self.case, reason=reply.reason, detail=reply.detail, hint=reply.hint or None,
                phase=reply.phase, check=reply.check,
            ))  # fmt: skip
        else:
            self._fail(reply.reason, reply.detail, hint=reply.hint, phase=reply.phase)

    def _fail(
        self, reason: Reason, detail: str, *, hint: str = "", phase: str | None = None, stderr_tail: str = ""
    ) -> None:
        """End the case in this session with a failure, and keep its earlier measurement."""
        failure = SessionFailure(
            session=self.runtime.session, reason=reason, detail=detail, hint=hint or None, phase=phase,
            stderr_tail=stderr_tail or None,
        )  # fmt: skip
        self._end(broken(self.case, self.before, failure))

    def _skip(self, reason: Reason, detail: str, hint: str) -> None:
        """End the case as a Skip, or with a warning if earlier sessions gave it samples."""
        if self.before is None or not has_samples(self.before):
            self._end(skip(self.case, reason, detail, hint or None))
            return
        session = self.runtime.session
        of_user = reason == "bad-function"
        why = f"session {session + 1} {'is incomplete' if of_user else 'lacks this case'}: {detail}"
        self.runtime.recorder.warn(RunWarning(
            code=reason if of_user else "few-sessions", id=self.case.id, session=session, message=why,
            hint=hint or "run it again",
        ))  # fmt: skip
        self._end(self.before)

    def _end(self, outcome: Outcome) -> None:
        self.over = True
        self.prepared = None
        self.runtime.recorder.put(outcome)
        self.runtime.recorder.save()
        self._announce()

    def _announce(self) -> None:
        outcome, progress = self._outcome, self.runtime.progress
        assert outcome is not None
        sampled = isinstance(outcome, Measurement) and bool(self.kept)
        typical, precision = estimate(self._medians) if sampled else (None, None)
        progress.finished += 1
        self.runtime.sink(
            CaseDone(outcome, progress.cases, self.runtime.session, typical, precision, progress.remaining())
        )
