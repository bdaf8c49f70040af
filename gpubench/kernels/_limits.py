"""What every kernel asks of a device's limits: dtypes, binding sizes, and the fold of a large grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpubench.errors import Unsupported
from gpubench.model.kernel import Limits

# WebGPU's guaranteed minimum of threads per group; width 64 to 256 measured alike on an H200.
GROUP_THREADS = 256
# Where a device does not tell its number of multiprocessors (WebGPU never does), tiles are chosen as for a
# large GPU: too small a tile costs a quarter at worst, too large a tile two thirds (0.36 of cuBLAS).
ASSUMED_MULTIPROCESSORS = 128


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient of two positive integers, rounded up."""
    return -(-dividend // divisor)


def power_of_two_at_least(value: int) -> int:
    """The smallest power of two that is not below `value` (at least 1)."""
    return 1 << max(0, value - 1).bit_length()


def multiprocessors(limits: Limits) -> int:
    """The device's number of multiprocessors, or the assumed one."""
    return limits.multiprocessors or ASSUMED_MULTIPROCESSORS


def group_threads(limits: Limits, wanted: int = GROUP_THREADS) -> int:
    """The largest power of two that is neither above `wanted` nor above the device's limit."""
    return 1 << (min(wanted, limits.max_workgroup_threads).bit_length() - 1)


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


def require_dtype(dtype: str, able: Iterable[str], language: str = "WGSL") -> None:
    """Raise Unsupported unless `dtype` is one of `able`."""
    able = tuple(able)
    if dtype not in able:
        raise Unsupported(f"the {language} kernel works in {', '.join(able)}, not in {dtype}")


def require_bindings(sizes: Mapping[str, int], limits: Limits) -> None:
    """Raise Unsupported if a buffer (name -> bytes) does not fit one storage binding or one buffer."""
    for name, size in sizes.items():
        padded = ceil_div(size, 16) * 16
        if padded > limits.max_binding_bytes:
            raise Unsupported(
                f"{name} has {size} bytes; the device binds at most {limits.max_binding_bytes} bytes"
                " at once (maxStorageBufferBindingSize)"
            )
        if padded > limits.max_buffer_bytes:
            raise Unsupported(
                f"{name} has {size} bytes; the device's buffers hold at most"
                f" {limits.max_buffer_bytes} bytes (maxBufferSize)"
            )
