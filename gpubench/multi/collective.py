"""What the collectives share: the declaration of each, and the whole numbers that ranks send.

Inputs are whole numbers from -8 to 8, a hash of rank and index, so that a float32 sum over up to 128 ranks is exact in
any order: outputs are compared for equality. The two rates are those of nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubench.kernels.contract.op import EXACT, ITEMSIZE, Array, Collective, Ladder, Op, Operand, Params

WIDTH = ITEMSIZE["float32"]
Length = Callable[[int, int], int]
_MASK = 0xFFFFFFFF
# Odd factors that spread bits over a word, as in MurmurHash3.
_RANK, _INDEX, _MIX = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35


def value(xp: Any, rank: Any, i: Array) -> Array:
    """Element `i` of what `rank` sends, of arrays of uint32; a rank may be a number."""
    if isinstance(rank, int):
        spread = xp.uint32((rank + 1) * _RANK & _MASK)
    else:
        spread = (rank + xp.uint32(1)) * xp.uint32(_RANK)
    word = (i ^ spread) * xp.uint32(_INDEX)
    word = (word ^ (word >> xp.uint32(13))) * xp.uint32(_MIX)
    return ((word ^ (word >> xp.uint32(16))) % xp.uint32(17)).astype("float32") - xp.float32(8)


def whole(count: int, ranks: int) -> int:
    """A buffer of the full length."""
    return count


def part(count: int, ranks: int) -> int:
    """A buffer that holds one rank's share."""
    return count // ranks


def once(ranks: int) -> float:
    """Each link carries the bytes once."""
    return 1.0


def others(ranks: int) -> float:
    """A rank sends all but its own share."""
    return (ranks - 1) / ranks


def collective(
    *, name: str, expected: Callable[[Callable[[Any, Array], Array], int, int, Array, int], Array],
    bus: Callable[[int], float], pairs: Sequence[tuple[int, int]] = (), sends: Length = whole, gets: Length = whole,
    **declared: Any,
) -> Op:  # fmt: skip
    """Return the op that times one exchange among the ranks of a gang: a copy between the ranks of each of `pairs`,
    else the collective of that name. `declared`: its group and summary."""

    def exchange(links: Any, sent: Sequence[Array], got: Sequence[Array]) -> None:
        if pairs:
            links.copy(pairs, sent, got)
        else:
            links.collect(name, sent, got)

    return Op(
        name=name, params={"n": "bytes of the largest buffer that a rank holds"},
        sizes=Ladder(low=2**16, high=2**30, factor=16, granule=WIDTH), dtypes=("float32",), inputs=(),
        output=Operand("nothing", lambda params: (0,)), flops=lambda params: 0, expr=lambda xp: xp.zeros((0,)),
        tolerance=EXACT, options={"ranks": "GPUs that take part: a gang has as many"}, fits=_whole_shares,
        overhead=Collective(
            exchange=exchange, expected=expected, bus=bus, pairwise=bool(pairs), both=len(pairs) > 1,
            sends=sends, gets=gets,
            receivers=tuple(target for _, target in pairs) or None,
        ), **declared,
    )  # fmt: skip


def _whole_shares(params: Params) -> str | None:
    granule = WIDTH * params.get("ranks", 1)
    if params["n"] % granule:
        return f"{params['n']} bytes are no multiple of {granule}: one float32 for each rank"
    return None
