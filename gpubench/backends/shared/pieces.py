"""Calls in several queues of a device, so that the copies of one call overlap with the kernels of others. The
calls are independent ones, or pieces of the GPU's share of a split."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from gpubench.backends.contract import Buffer, DeviceStream, Launch, Work
from gpubench.backends.contract.protocols import Streams
from gpubench.backends.shared.sides import INLINE_BYTES, DeviceShare, granule, side_case
from gpubench.base.errors import BackendError, DeviceOutOfMemory, Unsupported
from gpubench.kernels.contract.op import Array, Shape, Stored, each
from gpubench.result.run import PIPELINE_STAGES, OnePiece

# A call that sends fewer bytes is not divided into pieces.
LEAST_BYTES = 4 * INLINE_BYTES
# Pieces under way at the same time: one is uploaded, one is computed, one is downloaded.
IN_FLIGHT = 3


class QueuedCall:
    """A launch with its input buffers and its queue."""

    def __init__(self, stream: DeviceStream, inputs: Sequence[Buffer], launch: Launch) -> None:
        self.stream, self.inputs, self.launch = stream, inputs, launch

    def enqueue(
        self, sent: Mapping[int, Array], fetched: Mapping[int, Array], stages: Sequence[str] = PIPELINE_STAGES
    ) -> None:
        """Enqueue the call, or some of its stages. `sent` and `fetched` have host arrays, by the index of an input
        and of an output."""
        stream = self.stream
        with stream.on():
            if "upload" in stages:
                for i, host in sent.items():
                    stream.upload(self.inputs[i], host)
            if "kernel" in stages:
                stream.run(self.launch)
            if "download" in stages:
                outputs = each(self.launch.output)
                for i, host in fetched.items():
                    stream.download(outputs[i], host)


def one_piece(share: DeviceShare, host_output: Array) -> OnePiece | None:
    """Return why the share cannot be moved in pieces, or None if it can. `host_output` is the caller's array for
    the result."""
    op, split = share.whole.op, share.whole.split
    rows = all(operand.travels and split.axes.get(operand.name) == 0 for operand in op.inputs)
    if not rows or split.join is not None or any(operand.dtype is not None for operand in op.operands):
        return "uncut"
    if share.sent_bytes < LEAST_BYTES:
        return "small"
    if not isinstance(share.session, Streams):
        return "no-streams"
    try:
        share.session.stream().close()
    except Unsupported:
        return "no-streams"
    return None if share.is_direct(host_output) else "ordinary-arrays"


class Pieces:
    """The GPU's share of a split, computed in about `share.pieces` pieces. Raises DeviceOutOfMemory."""

    def __init__(self, share: DeviceShare) -> None:
        assert isinstance(share.session, Streams)
        launch, units, count = share.whole, share.stop, share.pieces
        self._launch, self._session, self._streams = launch, share.session, share.session
        step = granule(launch.op.units(launch.case.params))
        step *= -(-units // (count * step))
        self._bounds = [(start, min(start + step, units)) for start in range(0, units, step)]
        self._buffers: list[tuple[Buffer, Shape, Stored]] = []
        self._calls: dict[int, list[QueuedCall]] = {}  # by the units of a piece
        self._plan: list[tuple[QueuedCall, dict[int, Array], dict[int, Array]]] = []
        self._hosts: list[Array] = []  # the host arrays for which the plan is made
        try:
            for size, of_size in ((step, units // step), (units % step, 1)):
                if size:
                    self._calls[size] = [self._make(size) for _ in range(min(IN_FLIGHT, of_size))]
            self.spoil()
        except Exception:
            self.close()
            raise

    def start(self, inputs: Sequence[Array], output: Array) -> Work:
        """Enqueue all pieces. Returns a function that waits until their results are in the first rows of
        `output`."""
        hosts = [*inputs, output]
        if list(map(id, hosts)) != list(map(id, self._hosts)):
            self._hosts, self._plan = hosts, []
            for number, (start, stop) in enumerate(self._bounds):
                calls = self._calls[stop - start]
                sent = {i: array[start:stop] for i, array in enumerate(inputs)}
                self._plan.append((calls[number % len(calls)], sent, {0: output[start:stop]}))
        try:
            for call, sent, fetched in self._plan:
                call.enqueue(sent, fetched)
        except Exception:
            self._end()
            raise
        return self._wait

    def spoil(self) -> None:
        """Fill all buffers with NaN, so that the result of an earlier call cannot pass as a right result."""
        for buffer, shape, dtype in self._buffers:
            self._session.fill(buffer, shape, dtype, float("nan"))
        self._session.sync()

    def close(self) -> None:
        """Free the memory and close the queues."""
        self._end()
        for calls in self._calls.values():
            for call in calls:
                call.stream.close()
        for buffer, _, _ in self._buffers:
            self._session.free(buffer)
        self._calls, self._buffers, self._plan, self._hosts = {}, [], [], []

    def _wait(self) -> None:
        for calls in self._calls.values():
            for call in calls:
                call.stream.wait()

    def _end(self) -> None:
        """Wait for the work that a failed call left in the queues, because its arrays will be used again."""
        with contextlib.suppress(BackendError):
            self._wait()

    def _make(self, units: int) -> QueuedCall:
        launch, session, op = self._launch, self._session, self._launch.op
        case = side_case(op, launch.case, launch.split.part(launch.case.params, units), session)
        operands = op.inputs if case.implementation == "library" else op.operands
        for operand in operands:
            shape, dtype = operand.form(case.params, case.dtype)
            self._buffers.append((session.allocate(shape, dtype), shape, dtype))
        buffers = [buffer for buffer, _, _ in self._buffers[-len(operands) :]]
        inputs = buffers[: len(op.inputs)]
        output = None if case.implementation == "library" else buffers[-1]
        return QueuedCall(self._streams.stream(), inputs, session.compile(op, case, inputs, output))


class HeldPieces:
    """The Pieces of at most two shares of a GPU, usually the GPU's share of a split and a share of all the work."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int, int], Pieces] = {}

    def start(self, share: DeviceShare, calls: int, host_output: Array | None) -> Work | None:
        """Enqueue one call of the share in pieces, and return a function that waits for the results in
        `host_output`. Returns None if this call does not use pieces. Sets `share.came_in_pieces` accordingly.
        Raises DeviceOutOfMemory."""
        share.came_in_pieces = False
        if share.pieces == 1 or calls > 1 or host_output is None or not share.is_direct(host_output):
            return None
        share.came_in_pieces = True
        key = share.whole.case.workload, share.stop, share.pieces
        if key not in self._held:
            if len(self._held) > 1:
                self._held.pop(next(iter(self._held))).close()
            try:
                self._held[key] = Pieces(share)
            except DeviceOutOfMemory:
                self.close()
                self._held[key] = Pieces(share)
        return self._held[key].start([buffer.host for buffer in share.whole.inputs], host_output)

    def spoil(self) -> None:
        """Fill all buffers of all pieces with NaN."""
        for pieces in self._held.values():
            pieces.spoil()

    def close(self) -> None:
        """Free the memory and the queues of all pieces."""
        while self._held:
            self._held.popitem()[1].close()
