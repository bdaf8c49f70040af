"""One launch of a split op, so many units on the GPU and the rest on the CPU, and its operands on both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from gpubench.backends.shared.host import host_dtype
from gpubench.model.backend import Buffer, Launch, Session, Transfers
from gpubench.model.case import Case
from gpubench.model.op import ITEMSIZE, Array, Dtype, Op, Operand, Params, Shape, Split
from gpubench.model.result import Staging

# ---------------------------------------------------------------- units

# The GPU's share is rounded to a 256th of the work: tiles and vector loads come out whole, and a sweep in steps of
# 0.05 still means what it says. A thousand elements are enough of a granule for any of them.
_GRANULES, _LARGEST_GRANULE = 256, 1024
# A file keeps six digits of a share: finer steps than 2^-19 would not come out of it as they went in.
_FINEST_BITS = 19


def granule(units: int) -> int:
    """The power of two that the GPU's share is a multiple of."""
    finest = max(1, units // _GRANULES)
    return max(
        min(_LARGEST_GRANULE, 1 << (finest.bit_length() - 1)), 1 << max(0, units.bit_length() - _FINEST_BITS)
    )


def gpu_units(units: int, fraction: float) -> int:
    """The GPU's share of `units`, for a fraction from 0 to 1; of a real split each side gets something."""
    if fraction <= 0.0 or fraction >= 1.0:
        return units if fraction >= 1.0 else 0
    step = granule(units)
    most = (units - 1) // step
    return min(max(round(fraction * units / step), 1), most) * step


def cut_array(operand: Operand, array: Array, cut: Split, start: int, stop: int) -> Array:
    """The part of an input: a view; the whole if the parts share it."""
    axis = cut.axes.get(operand.name)
    return array if axis is None else array[(slice(None),) * axis + (slice(start, stop),)]


# ---------------------------------------------------------------- operands on two sides
#
# The CPU's part is a view of the array that was uploaded, not a copy: that is what sharing the work saves. So the array
# has to stay as it is until the next upload.


class DevicePart:
    """What one case's launches hold of an operand on the GPU, and which upload it comes from."""

    def __init__(self, device: Buffer, shape: Shape) -> None:
        self.device = device
        self.shape = shape
        self.version = 0


class SplitBuffer:
    """One operand. `version` counts its uploads; `last` is the launch whose output it holds, None after an upload."""

    def __init__(self, shape: Shape, dtype: Dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self.version = 0
        self.last: Any = None
        self._parts: dict[str, DevicePart] = {}
        self._host: Array | None = None
        self._own = False

    @property
    def host(self) -> Array:
        """The whole operand in host memory: what was uploaded, or memory of its own."""
        if self._host is None:
            import numpy as np

            self._host, self._own = np.empty(self.shape, host_dtype(self.dtype)), True
        return self._host

    def own(self) -> Array:
        """As `host`, but never the caller's array: a launch writes to it."""
        if not self._own and self._host is not None:
            self._host, self._own = self._host.copy(), True
        return self.host

    def hold(self, host: Array) -> None:
        """Stand for this array from now on, without a copy; what the GPU has of it is out of date."""
        self._host, self._own, self.last = host, False, None
        self.version += 1

    def part(self, gpu: Session, key: str, shape: Shape) -> DevicePart:
        """Device memory of that shape for the launches of `key`, taken anew where the shape was another."""
        known = self._parts.get(key)
        if known is None or known.shape != shape:
            if known is not None:
                gpu.free(self._parts.pop(key).device)
            known = self._parts[key] = DevicePart(gpu.allocate(shape, self.dtype), shape)
        return known

    def free(self, gpu: Session) -> None:
        """Give the device memory back."""
        for part in self._parts.values():
            gpu.free(part.device)
        self._parts.clear()


# ---------------------------------------------------------------- launches


class SplitLaunch(Launch):
    """`on_gpu` of `units` units. `parts` and `target` are the inputs and the output on the GPU, `gpu` its launch."""

    def __init__(
        self, op: Op, case: Case, units: int, on_gpu: int, inputs: Sequence[SplitBuffer], output: SplitBuffer
    ) -> None:
        cut = op.cut(case.params)
        assert cut is not None
        self.op, self.case, self.cut = op, case, cut
        self.units, self.on_gpu, self.on_cpu = units, on_gpu, units - on_gpu
        self.inputs, self.output = inputs, output
        self.parts: list[DevicePart] = []
        self.target: DevicePart | None = None
        self.gpu: Launch | None = None
        # How the GPU's part of the data moves, where it has one.
        self.way: Transfers | None = None
        self.staging: Staging = "pageable"
        # Host memory for the partial results of the GPU and of the CPU, where the op joins them.
        self.partial: tuple[Array, Array] = (None, None)
        # Where the CPU's share of the last result is: in the output's own memory, or in an array of the caller's.
        self.landed = False
        self._seen: list[int] | None = None

    @property
    def devices(self) -> list[Any]:
        """The inputs' device buffers."""
        return [part.device for part in self.parts]

    @property
    def sent_bytes(self) -> int:
        """What goes up to the GPU when all of its inputs do."""
        return sum(math.prod(part.shape) for part in self.parts) * ITEMSIZE[self.case.dtype]

    @property
    def waits(self) -> bool:
        """True if an operand was uploaded since the last run: the GPU's part of it has still to be sent."""
        return self._seen != self._versions()

    def begin(self) -> None:
        """All operands are taken as they are now."""
        self._seen = self._versions()
        self.output.last = self

    def part_case(self, side: Session, units: int) -> Case:
        """The op on so many units as a case of one side, in the best form that the side has for it."""
        params = self.case.params if units == self.units else dict(self.cut.part(self.case.params, units))
        return side_case(self.op, self.case, params, side)

    def _versions(self) -> list[int]:
        return [buffer.version for buffer in (*self.inputs, self.output)]


class CpuPart:
    """The CPU's part bound to arrays: the last `on_cpu` units of the inputs, written to their place in `whole`.

    Of a reduction `whole` is the CPU's partial result.
    """

    def __init__(self, launch: SplitLaunch, cpu: Session, whole: Array) -> None:
        hosts = [buffer.host for buffer in launch.inputs]
        arrays = [
            cut_array(operand, host, launch.cut, launch.on_gpu, launch.units)
            for operand, host in zip(launch.op.inputs, hosts, strict=True)
        ]
        self._target = whole if launch.cut.join else whole[launch.on_gpu :]
        self._held = (hosts, whole)  # as long as this lives, no other array has their ids
        case = launch.part_case(cpu, launch.on_cpu)
        self._fresh = case.form == "library"
        self._cpu = cpu
        self._launch = cpu.compile(
            launch.op, case, [cpu.view(array) for array in arrays], cpu.view(self._target)
        )

    def run(self, count: int) -> None:
        """So many launches; a library call's fresh array is copied to its place."""
        self._cpu.run(self._launch, count)
        if self._fresh:
            self._cpu.download(self._launch.output, self._target)


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
