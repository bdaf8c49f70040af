"""From the shapes of a call's arrays to the size and the other params of its op."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gpubench.errors import UsageError
from gpubench.model.case import beside_size
from gpubench.model.op import Op, Params, Shape

# The size, one array's shape, the shapes of all inputs, or the params by name.
Size = int | Sequence[int] | Sequence[Sequence[int]] | Mapping[str, int]
Others = tuple[tuple[str, int], ...]  # the params beside the size, by name
MOST_SHAPES = 4096  # kept; a caller that makes up ever new ones pays for them, not the memory


def size_and_others(op: str, shape: Size) -> tuple[int, Others]:
    """n and the other params; n = 0 where no size of the op has these shapes, or several have.

    Raises UsageError for a mapping without n.
    """
    if type(shape) is int:  # the usual case, before any slower question
        return shape, ()
    given: Any = shape
    if isinstance(given, Mapping):
        if "n" not in given:
            raise UsageError("no-size", f"the shape {dict(given)!r} has no n", hint='give {"n": 1024, ...}')
        return _parted({name: int(value) for name, value in given.items()})
    if not isinstance(given, Sequence):
        return int(given), ()
    if given and isinstance(given[0], Sequence):
        return _declared(op, tuple(tuple(map(int, one)) for one in given))
    return _declared(op, (tuple(map(int, given)),))


@lru_cache(maxsize=MOST_SHAPES)
def _declared(op: str, shapes: tuple[Shape, ...]) -> tuple[int, Others]:
    """The params with which the op's first inputs have these shapes; a vector op takes arrays of any shape as their
    elements.

    An extent that none of them tells (the columns of matmul's B, if A alone is given) is that of the plain op: square.
    """
    declared, whole = _load(op), math.prod(shapes[0])
    if declared is None or not shapes[0] or _is_vector(declared):
        return whole, ()
    if set(declared.options) == {"columns"}:  # rows, however many axes count them
        shapes = tuple((math.prod(one[:-1]), one[-1]) for one in shapes if one)
    if len(declared.inputs) < len(shapes):
        return 0, ()
    extents = sorted({whole, *itertools.chain(*shapes)} - {0})
    for count in range(len(declared.options) + 1):
        found = [params for params in _candidates(declared, extents, count) if _fits(declared, params, shapes)]
        if found:  # two ways to read them are none
            return _parted(found[0]) if len(found) == 1 else (0, ())
    return 0, ()


def _fits(declared: Op, params: Params, shapes: Sequence[Shape]) -> bool:
    if declared.fits(params) is not None:
        return False
    return all(
        tuple(operand.shape(params)) == one for operand, one in zip(declared.inputs, shapes, strict=False)
    )


def _candidates(declared: Op, extents: Sequence[int], count: int) -> Iterator[dict[str, int]]:
    """n and `count` options, each some extent."""
    for names in itertools.combinations(sorted(declared.options), count):
        for n, *values in itertools.product(extents, repeat=count + 1):
            yield {"n": n, **dict(zip(names, values, strict=True))}


def _parted(params: Params) -> tuple[int, Others]:
    return params["n"], beside_size(params)


def _is_vector(declared: Op) -> bool:
    return not declared.inputs or tuple(declared.inputs[0].shape({"n": 64})) == (64,)


def _load(op: str) -> Op | None:
    from gpubench import kernels

    try:
        return kernels.load(op)
    except KeyError:
        return None
