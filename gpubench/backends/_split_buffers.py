"""Operands that live on two sides: the caller's array, and on the GPU the parts that launches need of it.

The CPU's part is a view of the array that was uploaded, not a copy: that is what sharing the work saves. So the
array has to stay as it is until the next upload.
"""

from __future__ import annotations

from typing import Any

from gpubench.backends._host import host_dtype
from gpubench.model.backend import Buffer, Session
from gpubench.model.op import Array, Dtype, Shape


class Part:
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
        self._parts: dict[str, Part] = {}
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

    def part(self, gpu: Session, key: str, shape: Shape) -> Part:
        """Device memory of that shape for the launches of `key`, taken anew where the shape was another."""
        known = self._parts.get(key)
        if known is None or known.shape != shape:
            if known is not None:
                gpu.free(self._parts.pop(key).device)
            known = self._parts[key] = Part(gpu.allocate(shape, self.dtype), shape)
        return known

    def free(self, gpu: Session) -> None:
        """Give the device memory back."""
        for part in self._parts.values():
            gpu.free(part.device)
        self._parts.clear()
