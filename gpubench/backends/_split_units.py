"""How many units of an op's outer dimension go to the GPU, and which part of each array they are. Pure."""

from __future__ import annotations

from gpubench.model.op import Array, Operand, Split

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
