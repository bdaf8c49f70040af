"""Templates of kernels, each with its CPU, CUDA and WGSL texts side by side; the ops are declared with them.

Files of ops, functions of a user and networks use them.
Here is what every kernel asks of a device's limits: dtypes, binding sizes, and the fold of a large grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits

# WebGPU's guaranteed minimum of threads per group; width 64 to 256 measured alike on an H200.
GROUP_THREADS = 256
# Where a device does not tell its number of multiprocessors (WebGPU never does), tiles are chosen as for a
# large GPU: too small a tile costs a quarter at worst, too large a tile two thirds (0.36 of cuBLAS).
ASSUMED_MULTIPROCESSORS = 128
# A binding's size is a 32-bit number in Vulkan; this one is a multiple of any alignment.
MOST_WINDOW_BYTES = 2**32 - 2**16


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient of two positive integers, rounded up."""
    return -(-dividend // divisor)


def log2(power: int) -> int:
    return power.bit_length() - 1


def power_of_two_at_least(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def multiprocessors(limits: Limits) -> int:
    """The device's number of multiprocessors, or the assumed one."""
    return limits.multiprocessors or ASSUMED_MULTIPROCESSORS


def group_threads(limits: Limits, most: int = GROUP_THREADS) -> int:
    """The largest power of two that is neither above `wanted` nor above the device's limit."""
    return 1 << (min(most, limits.max_workgroup_threads).bit_length() - 1)


def fold(groups: int, limits: Limits) -> tuple[int, int, int]:
    """A grid of at least `groups` groups, folded evenly into y where x alone is too short.

    Even, because folding 131,072 groups as 65,535 x 3 launches a third of them for nothing (measured 7 %
    slower on a copy). A kernel's index is `group.y * groups.x + group.x`; spare groups must do nothing.
    Raises Unsupported if two dimensions do not hold them.
    """
    most = limits.max_groups_per_dimension
    y = ceil_div(max(1, groups), most)
    if y > most:
        raise Unsupported(f"{groups} groups exceed {most} x {most}, the device's largest grid")
    return (ceil_div(max(1, groups), y), y, 1)


def require_grid(limits: Limits, x: int, y: int = 1, z: int = 1) -> tuple[int, int, int]:
    """The grid of these extents. Raises Unsupported where one is longer than the device's dimensions are."""
    if max(x, y, z) > limits.max_groups_per_dimension:
        raise Unsupported(
            f"{x} x {y} x {z} groups exceed {limits.max_groups_per_dimension} a dimension"
            " (maxComputeWorkgroupsPerDimension)",
            reason="limit",
        )
    return x, y, z


def require_dtype(dtype: str, able: Iterable[str], language: str = "WGSL") -> None:
    """Raise Unsupported unless `dtype` is one of `able`."""
    able = tuple(able)
    if dtype not in able:
        detail = f"the {language} kernel works in {', '.join(able)}, not in {dtype}"
        raise Unsupported(detail, reason="no-dtype")


def require_buffers(sizes: Mapping[str, int], limits: Limits) -> None:
    """Raise Unsupported if one buffer (name -> bytes) is larger than the device's buffers can be."""
    for name, size in sizes.items():
        if ceil_div(size, 16) * 16 > limits.max_buffer_bytes:
            raise Unsupported(
                f"{name} has {size} bytes; the device's buffers hold at most"
                f" {limits.max_buffer_bytes} bytes (maxBufferSize)",
                reason="limit",
            )


def require_bindings(sizes: Mapping[str, int], limits: Limits) -> None:
    """Raise Unsupported if a buffer (name -> bytes) does not fit one storage binding or one buffer."""
    for name, size in sizes.items():
        if ceil_div(size, 16) * 16 > limits.max_binding_bytes:
            raise Unsupported(
                f"{name} has {size} bytes; the device binds at most {limits.max_binding_bytes} bytes"
                " at once (maxStorageBufferBindingSize)",
                reason="limit",
            )
    require_buffers(sizes, limits)


class BindingWindow(msgspec.Struct, frozen=True):
    """The part of a buffer that one pass binds."""

    first: int  # the first item
    count: int  # items from there on
    total: int  # items of the buffer

    def of(self, names: Iterable[str], itemsize: int) -> dict[str, tuple[int, int]]:
        """`WgslPass.windows` for buffers of that many bytes an item; nothing if the window is all of it."""
        if self.count == self.total:
            return {}
        size = ceil_div(self.count * itemsize, 16) * 16
        return dict.fromkeys(names, (self.first * itemsize, size))


def windows(total: int, itemsize: int, limits: Limits) -> list[BindingWindow]:
    """`total` items of `itemsize` bytes cut into the fewest windows that fit a binding, about equally long.

    Every window starts at a multiple of the device's offset alignment. Raises Unsupported if a binding does
    not hold the smallest such window (an item may be a whole row).
    """
    alignment = limits.binding_alignment
    step = alignment // math.gcd(itemsize, alignment)  # items between two aligned offsets
    # Sizes and indices of a window are 32-bit numbers in the kernels, in bytes too on some drivers.
    most = min(limits.max_binding_bytes, MOST_WINDOW_BYTES)
    if ceil_div(total * itemsize, 16) * 16 <= most:
        return [BindingWindow(0, total, total)] if total else []
    longest = most // 16 * 16 // itemsize // step * step
    if not longest:
        raise Unsupported(
            f"{step} items of {itemsize} bytes, the least that can be bound apart, exceed the {most} bytes that"
            " the device binds at once (maxStorageBufferBindingSize)",
            reason="limit",
        )
    count = ceil_div(ceil_div(total, ceil_div(total, longest)), step) * step
    return [BindingWindow(first, min(count, total - first), total) for first in range(0, total, count)]
