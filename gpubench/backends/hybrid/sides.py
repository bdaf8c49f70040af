"""Both sides of a split op at work: what is sent, what runs where, and how the results come together."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from gpubench.backends.hybrid.launches import CpuPart, SplitLaunch, cut_array, joined
from gpubench.model.backend import Session, Work
from gpubench.model.op import Array

# Launches that the GPU is sent before the CPU computes as many: one submit serves several, and the driver's queue
# never fills up, which would make this thread wait.
CHUNK = 8
# Of fewer threads none is left over for moving data.
FEWEST_THREADS = 3
# Up to here sending takes less than a hand-over to the second thread and back (some 50 us each way).
INLINE_BYTES = 2 << 20
# Bound CPU parts that are kept: a few operands and landings take turns.
_KEPT = 32


class Sides:
    """A GPU's session and the CPU's. `cpu_s` sums up the seconds that the CPU's parts took."""

    def __init__(self, gpu: Session, cpu: Session) -> None:
        self.gpu, self.cpu = gpu, cpu
        self.cpu_s = 0.0
        self._threads = cpu.threads or 1
        self._companion = CompanionThread(gpu.enter)
        self._bound: dict[tuple[object, ...], CpuPart] = {}

    def resident(self, launch: SplitLaunch, repeat: int) -> None:
        """The data is in place: this thread enqueues a few launches, then computes as many while the GPU works."""
        self.share_cores(launch, travels=False)
        cpu = self._cpu_part(launch, None) if launch.on_cpu else None
        for start in range(0, repeat, CHUNK):
            count = min(CHUNK, repeat - start)
            if launch.gpu is not None:
                self.gpu.run(launch.gpu, count)
            if cpu is not None:
                self._compute(cpu, count)

    def together(self, launch: SplitLaunch, repeat: int, landing: Array | None, *, again: bool = False) -> None:
        """The GPU's data travels and its kernel runs on the second thread, while this one computes. A little data is
        sent and fetched by this one: waking the other would take longer.

        With `landing` the whole result is there afterwards. `again`: all inputs are sent, changed or not.
        """
        given = self.share_cores(launch, travels=True)
        if launch.on_gpu and launch.on_cpu:
            cpu = self._cpu_part(launch, landing)
            if launch.sent_bytes <= INLINE_BYTES:
                self.on_gpu(launch, repeat, None, again=again)
                self._compute(cpu, repeat)
                if landing is not None:
                    self._fetch(launch, landing)
            else:
                self.gpu.both(
                    lambda: self.on_gpu(launch, repeat, landing, again=again, rest=not given),
                    lambda: self._compute(cpu, repeat),
                    self._companion.both,
                )
        elif launch.on_gpu:
            self.on_gpu(launch, repeat, landing, again=again)
        else:
            self.on_cpu(launch, repeat, landing)
        if landing is not None and launch.cut.join:
            landing[...] = self._joined(launch)

    def share_cores(self, launch: SplitLaunch, *, travels: bool) -> int:
        """Leave cores to the threads that move the GPU's data; all are the CPU's where none does. Returns how many.

        Where every core computes, a thread that wakes up waits for a time slice of milliseconds, at each chunk.
        """
        busy = travels and bool(launch.on_gpu and launch.on_cpu) and launch.sent_bytes > INLINE_BYTES
        way = launch.way
        given = reserved_cores(self._threads, several=way is not None and way.copies) if busy else 0
        self.cpu.use_threads(self._threads - given if given else None)
        if way is not None:
            way.use_threads(given or None)
        return given

    def on_gpu(
        self,
        launch: SplitLaunch,
        repeat: int,
        landing: Array | None,
        *,
        again: bool = False,
        rest: bool = False,
    ) -> None:
        """The GPU's side alone: send what is out of date, run, and with `landing` fetch its part of the result.

        `rest`: wait for the kernel asleep, because the CPU has no core left over for a wait that spins.
        """
        assert launch.gpu is not None
        self.send(launch, again=again)
        self.gpu.run(launch.gpu, repeat)
        if landing is not None:
            if rest:
                self.gpu.rest()
            self._fetch(launch, landing)

    def on_cpu(self, launch: SplitLaunch, repeat: int, landing: Array | None) -> None:
        """The CPU's side alone."""
        self._compute(self._cpu_part(launch, landing), repeat)

    def gather(self, launch: SplitLaunch, host: Array) -> None:
        """The result of a launch that ran: the GPU's part comes down, the CPU's is copied, or computed once more
        where the caller got the only copy."""
        self.gpu.sync()
        if launch.on_gpu:
            self._fetch(launch, host)
        if launch.cut.join:
            host[...] = self._joined(launch)
        elif launch.landed and launch.on_cpu:
            self.on_cpu(launch, 1, host)
        elif launch.on_cpu:
            host[launch.on_gpu :] = launch.output.own()[launch.on_gpu :]

    def send(self, launch: SplitLaunch, *, again: bool = False) -> None:
        """The GPU's part of each input that was uploaded since it was sent last, and of an output of sentinels."""
        import numpy as np

        assert launch.way is not None
        for operand, buffer, part in zip(launch.op.inputs, launch.inputs, launch.parts, strict=True):
            if again or part.version != buffer.version:
                ours = cut_array(operand, buffer.host, launch.cut, 0, launch.on_gpu)
                launch.way.upload(part.device, np.ascontiguousarray(ours))
                part.version = buffer.version
        target, output = launch.target, launch.output
        if target is not None and target.version != output.version:
            ours = output.host if launch.cut.join else output.host[: launch.on_gpu]
            launch.way.upload(target.device, np.ascontiguousarray(ours))
            target.version = output.version

    def close(self) -> None:
        """End the second thread and forget the arrays."""
        self._companion.close()
        self.forget()

    def forget(self) -> None:
        """Hold none of the caller's arrays any longer."""
        self._bound.clear()

    def _fetch(self, launch: SplitLaunch, host: Array) -> None:
        assert launch.gpu is not None
        assert launch.way is not None
        place = launch.partial[0] if launch.cut.join else host[: launch.on_gpu]
        launch.way.download(launch.gpu.output, place)

    def _cpu_part(self, launch: SplitLaunch, landing: Array | None) -> CpuPart:
        """Bound to the inputs as they are, and to where its result goes."""
        launch.landed = landing is not None
        whole = landing if landing is not None else launch.output.own()
        if launch.cut.join:
            whole = launch.partial[1]
        key = (launch.case.workload, launch.on_gpu, *(id(x.host) for x in launch.inputs), id(whole))
        found = self._bound.get(key)
        if found is None:
            if len(self._bound) >= _KEPT:
                self._bound.clear()
            found = self._bound[key] = CpuPart(launch, self.cpu, whole)
        return found

    def _compute(self, cpu: CpuPart, count: int) -> None:
        start = self.gpu.clock()
        cpu.run(count)
        self.cpu_s += self.gpu.clock() - start

    def _joined(self, launch: SplitLaunch) -> Array:
        if launch.on_gpu and launch.on_cpu:
            return joined(launch.cut, *launch.partial)
        return launch.partial[0 if launch.on_gpu else 1]


def reserved_cores(threads: int, *, several: bool) -> int:
    """Of so many cores those that move data while the others compute; `several` threads, or a call of the driver's."""
    return 0 if threads < FEWEST_THREADS else max(1, threads // (4 if several else 8))


class CompanionThread:
    """A thread that starts with the first piece of work and stays; `enter` runs on it once, before that."""

    def __init__(self, enter: Work) -> None:
        self._enter = enter
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def both(self, aside: Work, here: Work) -> None:
        """Run `aside` there and `here` on the calling thread, at once; both have ended on return.

        Raises what either raised, what `here` raised first.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gpubench-beside", daemon=True)
            self._thread.start()
        self._work.put(aside)
        try:
            here()
        finally:
            error = self._ended.get()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread; later work starts a new one."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        entered = False
        while (work := self._work.get()) is not None:
            error: BaseException | None = None
            try:
                if not entered:
                    self._enter()
                    entered = True
                work()
            except BaseException as caught:  # handed to the caller of `both`
                error = caught
            self._ended.put(error)
