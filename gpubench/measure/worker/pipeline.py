"""Child side: independent calls in a row with one wait. Each call in flight has a set of buffers and a queue of
its own. The sets have different inputs, and after each turn every set gets the inputs of the next one. So a
launch that uses the wrong buffer, or a queue that does not wait, gives a wrong result."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpubench.backends.contract import Launch
from gpubench.backends.contract.protocols import Streams
from gpubench.backends.shared.pieces import QueuedCall
from gpubench.base.errors import BackendError, DeviceOutOfMemory
from gpubench.measure.plan import LEAST_SETS
from gpubench.measure.worker.parts import PARTS_LIMIT_S, Times, add_parts
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Workspace
from gpubench.result.case import Case
from gpubench.result.run import PIPELINE_STAGES, Staging


class BufferSet:
    """The page-locked inputs and outputs, the device buffers and the queue of one call in flight. Raises
    DeviceOutOfMemory."""

    def __init__(self, workspace: Workspace, case: Case, streams: Streams) -> None:
        session, op = workspace.session, workspace.op
        self.workspace, self.case, self.stream = workspace, case, streams.stream()
        self.sent = {}  # host arrays by the index of the input
        workspace.upload_inputs()
        output = workspace.output(case)
        self.launch: Launch = workspace.compile(case, workspace.buffers, output)
        self._queued = QueuedCall(self.stream, workspace.buffers, self.launch)
        for i, (operand, drawn) in enumerate(zip(op.inputs, workspace.inputs, strict=True)):
            if operand.travels:
                self.sent[i] = session.host_array(drawn.shape, operand.stored_dtype(case.dtype), "tuned")
                self.sent[i][...] = drawn
        workspace.rest()
        workspace.host_outputs = [
            session.host_array(*operand.form(case.params, case.dtype), "tuned") for operand in op.outputs
        ]
        self.fetched = [i for i, operand in enumerate(op.outputs) if operand.travels]

    def call(self, inputs: BufferSet, stages: Sequence[str]) -> None:
        """Enqueue a call, or only some of its stages. It uploads the inputs of the set `inputs`."""
        fetched = {i: self.workspace.host_outputs[i] for i in self.fetched}
        self._queued.enqueue(inputs.sent, fetched, stages)

    def spoil(self) -> None:
        """Fill all memory that a call writes with sentinels."""
        workspace = self.workspace
        if workspace.output(self.case) is None:
            self.launch.output = None
        for i in self.sent:
            workspace.spoil(workspace.buffers[i], workspace.op.inputs[i])
        workspace.spoil_host_output()

    def verify(self, inputs: BufferSet) -> None:
        """Compare all outputs with the reference for the inputs of the set `inputs`. Raises Wrong."""
        workspace = self.workspace
        workspace.fetch(self.launch.output, workspace.session, travels=False)
        inputs.workspace.verify_arrays(workspace.host_outputs, self.case.precision)

    def release(self) -> None:
        """Free all memory."""
        self.stream.close()
        self.workspace.release()


class PipelineTimer(Timer):
    """A timer of the regime `streamed`. Raises DeviceOutOfMemory or MemoryError if there is no room for
    LEAST_SETS sets of buffers."""

    def __init__(self, workspace: Workspace, case: Case, launch: Launch, most_sets: int) -> None:
        super().__init__(workspace, case, launch)
        self.sets: list[BufferSet] = []
        self.last_inputs: list[int] = []  # by set: the set whose inputs its last call had
        # What stays on the device belongs to its set: only inputs that travel can move on.
        self._rotates = all(operand.travels or operand.role == "weight" for operand in workspace.op.inputs)
        assert isinstance(self.session, Streams)
        try:
            for number in range(1, most_sets + 1):
                self.sets.append(self._make_set(workspace.sibling(number), self.session))
        except (DeviceOutOfMemory, MemoryError):
            if len(self.sets) < LEAST_SETS:
                self.release()
                raise
        self.session.sync()

    def _make_set(self, workspace: Workspace, streams: Streams) -> BufferSet:
        try:
            return BufferSet(workspace, self.case, streams)
        except (BackendError, MemoryError):
            workspace.release()
            raise

    @property
    def staging(self) -> Staging:
        return self.sets[0].stream.staging

    def seconds(self, repeat: int) -> float:
        """Return the wall seconds per call of one sample: `repeat` rows of calls, each row followed by a
        wait."""
        if self.flush is not None:
            self.flush()
        clock = self.session.clock
        start = clock()
        for _ in range(repeat):
            self._row(self.calls)
        return (clock() - start) / (repeat * self.calls)

    def stage_times(self, count: int) -> Times:
        """Return the seconds per call of each stage (upload, kernel, download) by itself, `count` times at
        most. The longest stage bounds the rate of the whole pipeline."""
        self._row(self.calls)
        clock, times = self.session.clock, Times()
        began = time.perf_counter()
        for _ in range(count):
            for stage in PIPELINE_STAGES:
                start = clock()
                self._row(self.calls, (stage,))
                add_parts(times, {stage: (clock() - start) / self.calls})
            if time.perf_counter() - began > PARTS_LIMIT_S:
                break
        self.last_inputs = []
        return times

    def _row(self, calls: int, stages: Sequence[str] = PIPELINE_STAGES) -> None:
        sets, count, turns = self.sets, len(self.sets), self._rotates
        self.last_inputs = [0] * count
        for number in range(calls):
            place = number % count
            self.last_inputs[place] = (place + number // count * turns) % count
            sets[place].call(sets[self.last_inputs[place]], stages)
        for used in sets:
            used.stream.wait()

    def verify(self) -> None:
        """Check the outputs of the last row, then those of one more row over sentinels. Raises Wrong."""
        if not self.last_inputs:  # there was no row yet
            self._row(2 * len(self.sets))
        self.verify_sets()
        for used in self.sets:
            used.spoil()
        self.session.sync()
        self._row(len(self.sets))
        self.verify_sets()

    def verify_sets(self) -> None:
        for used, place in zip(self.sets, self.last_inputs, strict=True):
            used.verify(self.sets[place])

    def release(self) -> None:
        super().release()
        for used in self.sets:
            used.release()
        self.sets = []
