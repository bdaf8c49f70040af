"""An op cut into parts for several devices: in which units, which part of an operand each gets, as which case it
computes it, how partial results are joined, and a thread for a device beside the caller's."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import cast

import msgspec

from gpubench.backends.contract import Buffer, Session, Work
from gpubench.backends.contract.protocols import EntersThreads, ScriptedPair, has
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.op import Array, Op, Operand, Params, Split
from gpubench.result.case import Case

# A share is rounded to a 256th of the work: tiles and vector loads come out whole, and a sweep in steps of
# 0.05 still means what it says. A thousand elements are enough of a granule for any of them.
_GRANULES, _LARGEST_GRANULE = 256, 1024
# A file keeps six digits of a share: finer steps than 2^-19 would not come out of it as they went in.
_FINEST_BITS = 19
# Up to here sending takes less than a hand-over to the second thread and back (some 50 us each way).
INLINE_BYTES = 2 << 20


def granule(units: int) -> int:
    """The power of two that a share is a multiple of."""
    finest = max(1, units // _GRANULES)
    return max(
        min(_LARGEST_GRANULE, 1 << (finest.bit_length() - 1)), 1 << max(0, units.bit_length() - _FINEST_BITS)
    )


def cut_array(operand: Operand, array: Array, cut: Split, start: int, stop: int) -> Array:
    """The part of an input: a view; the whole if the parts share it."""
    axis = cut.axes.get(operand.name)
    return array if axis is None else array[(slice(None),) * axis + (slice(start, stop),)]


def joined(cut: Split, first: Array, second: Array) -> Array:
    """Two partial results as one, by the op's own function."""
    import numpy as np

    assert cut.join is not None
    with np.errstate(all="ignore"):
        return getattr(np, cut.join)(first, second)


def side_case(op: Op, case: Case, params: Params, side: Session) -> Case:
    """The same work as a case of one side: its own kernel, or the library call where that is the best or all."""
    kernel = op.kernel(side.device.backend, case.dtype)
    on_cpu = side.device.kind == "cpu"
    # On the CPU the library call has a form that writes to a given array; a GPU's has none.
    library = kernel is None or (kernel.library and not on_cpu)
    return msgspec.structs.replace(
        case, params=dict(params), form="library" if library else "tuned", calls=None,
        regime=side.device.resident_regime, device_id=side.device.id,
    )  # fmt: skip


def refusal(op: Op, case: Case, *sides: Session) -> Unsupported | None:
    """Why one of the sides cannot take all of the work; None: each can, if only by the library call."""
    for side in sides:
        one = side_case(op, case, case.params, side)
        kernel = op.kernel(side.device.backend, case.dtype)
        if kernel is not None and kernel.library:
            one = msgspec.structs.replace(one, form="library")
        found = side.supports(op, one)
        if found is not None and found.reason != "not-compiled":  # else this side runs the plain expression
            return Unsupported(f"{side.device.id}: {found.detail}", reason=found.reason, hint=found.hint)
    return None


def view_of(cpu: Session, array: Array) -> Buffer:
    """Return a buffer of the CPU for a host array: of NumPy the array itself."""
    return cast("ScriptedPair", cpu).view(array) if has(type(cpu), ScriptedPair) else array


def enter(session: Session) -> None:
    """Make the calling thread one that may drive the device."""
    if has(type(session), EntersThreads):
        cast("EntersThreads", session).enter()


class CompanionThread:
    """A thread beside the caller's for a session. It starts with the first piece of work and stays."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._scripted = session if isinstance(session, ScriptedPair) else None
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def both(self, aside: Work, here: Work) -> None:
        """Run `aside` there and `here` on the calling thread, at once; both have ended on return.

        Raises what either raised, what `here` raised first.
        """
        if self._scripted is not None:
            self._scripted.both(aside, here)
            return
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
        entered = not isinstance(self._session, EntersThreads)
        while (work := self._work.get()) is not None:
            error: BaseException | None = None
            try:
                if not entered and isinstance(self._session, EntersThreads):
                    self._session.enter()
                    entered = True
                work()
            except BaseException as caught:  # handed to the caller of `both`
                error = caught
            self._ended.put(error)
