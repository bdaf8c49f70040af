"""One launch of a split op: so many units on the GPU, the rest on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from gpubench.backends._split_buffers import Part, SplitBuffer
from gpubench.backends._split_units import cut_array
from gpubench.model.backend import Launch, Session
from gpubench.model.case import Case
from gpubench.model.op import ITEMSIZE, Array, Op, Params, Split
from gpubench.model.result import Staging


class SplitLaunch:
    """`on_gpu` of `units` units. `parts` and `target` are the inputs and the output on the GPU, `gpu` its launch."""

    def __init__(
        self, op: Op, case: Case, units: int, on_gpu: int, inputs: Sequence[SplitBuffer], output: SplitBuffer
    ) -> None:
        cut = op.cut(case.params)
        assert cut is not None
        self.op, self.case, self.cut = op, case, cut
        self.units, self.on_gpu, self.on_cpu = units, on_gpu, units - on_gpu
        self.inputs, self.output = inputs, output
        self.parts: list[Part] = []
        self.target: Part | None = None
        self.gpu: Launch | None = None
        # How the GPU's part of the data moves.
        self.way: Any = None
        # Host memory for the partial results of the GPU and of the CPU, where the op joins them.
        self.partial: tuple[Array, Array] = (None, None)
        # Where the CPU's share of the last result is: in the output's own memory, or in an array of the caller's.
        self.landed = False
        self._seen: list[int] | None = None

    @property
    def kernel_hash(self) -> str | None:
        """That of the GPU's kernel."""
        return self.gpu.kernel_hash if self.gpu is not None else None

    @property
    def kernel_name(self) -> str | None:
        """The candidate that the GPU took, where it had a choice."""
        return getattr(self.gpu, "kernel_name", None)

    @property
    def staging(self) -> Staging:
        """That of the GPU's transfers."""
        found: Staging = getattr(self.way, "staging", "pageable")
        return found

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
        view = getattr(cpu, "view", _itself)
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
        self._launch = cpu.compile(launch.op, case, [view(array) for array in arrays], view(self._target))

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
        case, params=dict(params), form="library" if library else "tuned", regime="resident", calls=None,
        device_id=side.device.id,
    )  # fmt: skip


def _itself(array: Array) -> Array:
    return array
