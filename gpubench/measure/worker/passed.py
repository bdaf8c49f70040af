"""Child side: outputs that passed, kept on the device, and the host memory that outputs are fetched into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gpubench.backends.contract import Buffer, Session
from gpubench.backends.contract.protocols import ComparesBuffers
from gpubench.base.errors import DeviceOutOfMemory
from gpubench.kernels.contract.op import Array, Op
from gpubench.result.case import Case, SeriesKey
from gpubench.result.run import Check, Device

# Smaller outputs are fetched and compared on the host: a kernel that compares them would take as long.
LEAST_BYTES = 2**20
# Copies take at most this share of a device's memory, and no more bytes.
_SHARE, _MOST_BYTES, _MOST_BYTES_UNKNOWN = 0.05, 2**31, 2**28
_LINE = 64

Form = tuple[SeriesKey, str]


class Copy(NamedTuple):
    """Outputs of one size that passed."""

    case: Case
    buffers: tuple[Buffer, ...]
    size: int
    check: Check


def copies_bytes(device: Device) -> int:
    """Return how many bytes of outputs that passed may stay on a device."""
    if device.usable_bytes is None:
        return _MOST_BYTES_UNKNOWN
    return min(_MOST_BYTES, int(_SHARE * device.usable_bytes))


class Passed:
    """Copies of outputs that passed the whole comparison; those that were asked for last stay.

    An output with the bits of one is right. So is one with the bits of the beginning of a larger one, where the op's
    output begins so, except at the sizes that are always compared whole: the lowest, a middle and the top one.
    """

    def __init__(self, session: Session, most_bytes: int) -> None:
        self._session, self._most_bytes = session, most_bytes
        self._copies: dict[tuple[Form, int], Copy] = {}  # the one that was asked for last comes last
        self._landing: Array | None = None

    def recall(self, op: Op, case: Case, outputs: Sequence[Buffer]) -> Check | None:
        """Return the check of outputs with the same bits. Returns None if no copy has them."""
        if op.written_bytes(case.params, case.dtype) < LEAST_BYTES:
            return None
        form, n, whole = _form(case), case.params["n"], op.sizes.ends(op.sizes.rungs())
        sizes = sorted(size for known, size in self._copies if known == form and size >= n)
        for size in sizes:
            copy = self._copies.pop((form, size))
            self._copies[form, size] = copy
            if size > n and (n in whole or not op.begins(case.params, copy.case.params)):
                continue
            if self._has_bits(op, case, outputs, copy):
                return copy.check if size == n else msgspec.structs.replace(copy.check, index=[])
        return None

    def keep(self, op: Op, case: Case, outputs: Sequence[Buffer], check: Check) -> None:
        """Copy outputs that passed, in place of others of this size."""
        size, session = op.written_bytes(case.params, case.dtype), self._session
        if (
            not LEAST_BYTES <= size <= self._most_bytes
            or op.updated
            or not isinstance(session, ComparesBuffers)
        ):
            return
        key = (_form(case), case.params["n"])
        if key in self._copies:
            self._drop(key)
        self._make_room(self._most_bytes - size)
        buffers: list[Buffer] = []
        try:
            for operand, output in zip(op.outputs, outputs, strict=True):
                copy = session.copy_of(output, operand.shape(case.params), operand.stored(case.dtype))
                if copy is not None:
                    buffers.append(copy)
        except DeviceOutOfMemory:
            self._make_room(0)
        if len(buffers) == len(op.outputs):
            self._copies[key] = Copy(case, tuple(buffers), size, check)
        else:
            self._free(buffers)

    def landing(self, op: Op, case: Case) -> list[Array]:
        """Return host arrays for the outputs, page-locked where the device has such memory. All cases share them."""
        from gpubench.backends.shared.host import host_dtype

        shapes = [
            (operand.shape(case.params), host_dtype(operand.stored(case.dtype))) for operand in op.outputs
        ]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
        total = sum(-(-size // _LINE) * _LINE for size in sizes)
        if self._landing is None or self._landing.size < total:
            self._landing = self._session.host_array((total,), "uint8", "tuned")
        arrays, start = [], 0
        for (shape, dtype), size in zip(shapes, sizes, strict=True):
            arrays.append(self._landing[start : start + size].view(dtype).reshape(shape))
            start += -(-size // _LINE) * _LINE
        return arrays

    def release(self) -> None:
        """Free all memory."""
        self._make_room(0)
        self._landing = None

    def _has_bits(self, op: Op, case: Case, outputs: Sequence[Buffer], copy: Copy) -> bool:
        session = self._session
        return isinstance(session, ComparesBuffers) and all(
            session.begins(known, output, operand.shape(case.params), operand.stored(case.dtype))
            for known, output, operand in zip(copy.buffers, outputs, op.outputs, strict=True)
        )

    def _make_room(self, most_bytes: int) -> None:
        """Drop the copies that were asked for longest ago, until the rest is small enough."""
        while self._copies and sum(copy.size for copy in self._copies.values()) > most_bytes:
            self._drop(next(iter(self._copies)))

    def _drop(self, key: tuple[Form, int]) -> None:
        self._free(self._copies.pop(key).buffers)

    def _free(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self._session.free(buffer)


def _form(case: Case) -> Form:
    return case.series, case.form_id
