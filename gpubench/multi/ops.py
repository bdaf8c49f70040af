"""Device groups, and the collectives: what the ranks exchange in each, and the whole numbers that they send.

Every element is a whole number from -8 to 8, computed as a hash of its rank and index. A float32 sum of such
numbers over up to 128 ranks is exact in any order, so outputs are compared for equality. The two rates (algbw
and busbw) are defined as in nccl-tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels.contract.op import ITEMSIZE, Array, Collective, Ladder, Op, Params, timed_call
from gpubench.result.case import DEVICE_GROUP, group_id, ordinal
from gpubench.result.run import Device, Identity


def make_device_group(members: Sequence[Device]) -> Device:
    """Return the device group of these GPUs of one backend, at least two, in the order of its ranks."""
    first, names = members[0], dict.fromkeys(device.name for device in members)
    room = [device.usable_bytes for device in members if device.usable_bytes is not None]
    return Device(
        id=group_id(first.backend, [ordinal(device.id) or 0 for device in members]), backend=DEVICE_GROUP,
        kind=first.kind, api=first.api, name=f"{len(members)} x {' and '.join(names)}", driver=first.driver,
        usable_bytes=min(room, default=None), identities=[device.identity or Identity() for device in members],
    )  # fmt: skip


WIDTH = ITEMSIZE["float32"]
_MASK = 0xFFFFFFFF
# Odd factors that spread the bits over a word, as MurmurHash3 does.
_RANK, _INDEX, _MIX = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35


def value(xp: Any, rank: Any, i: Array) -> Array:
    """Return the elements with the indices `i` (uint32) of the buffer that `rank` sends, as float32 in the
    shape of `i`. `rank` is an array of uint32 or a number."""
    if isinstance(rank, int):
        spread = xp.uint32((rank + 1) * _RANK & _MASK)
    else:
        spread = (rank + xp.uint32(1)) * xp.uint32(_RANK)
    word = (i ^ spread) * xp.uint32(_INDEX)
    word = (word ^ (word >> xp.uint32(13))) * xp.uint32(_MIX)
    return ((word ^ (word >> xp.uint32(16))) % xp.uint32(17)).astype("float32") - xp.float32(8)


def _share(count: int, ranks: int) -> int:
    """Return the number of elements that a rank sends or receives if it handles only its share of a buffer of
    `count` elements."""
    return count // ranks


def _once(ranks: int) -> float:
    """Return busbw / algbw of an exchange in which each link carries all bytes once."""
    return 1.0


def _others(ranks: int) -> float:
    """Return busbw / algbw of an exchange in which a rank sends everything but its own share."""
    return (ranks - 1) / ranks


# `gpubench ops` reads the name, the group and the summary of each op from this text, without importing it.
def _collective(*, name: str, group: str, summary: str, **declared: Any) -> Op:
    """Return the op that times one exchange; `declared` are fields of `Collective`."""
    return timed_call(
        name=name, group=group, summary=summary, params={"n": "bytes of the largest buffer that a rank holds"},
        sizes=Ladder(low=2**16, high=2**30, factor=16, granule=WIDTH), fits=_whole_shares,
        options={"ranks": "GPUs that take part: a device group has as many"},
        overhead=Collective(name=name, **declared),
    )  # fmt: skip


def _whole_shares(params: Params) -> str | None:
    """Return why a buffer of this size cannot be exchanged and checked, or None if it can."""
    granule = WIDTH * params.get("ranks", 1)
    if params["n"] % granule:
        return f"{params['n']} bytes are no multiple of {granule}: one float32 for each rank"
    if params["n"] > WIDTH << 32:
        return f"{params['n']} bytes are more than 2^32 elements, which the check numbers in 32 bits"
    return None


p2p = _collective(
    name="p2p", group="collective", summary="n bytes from rank 0 to rank 1",
    expected=lambda value, rank, ranks, i, part: value(0, i),
    bus=_once, pairs=((0, 1),),
)  # fmt: skip
p2p_both = _collective(
    name="p2p_both", group="collective", summary="n bytes from rank 0 to rank 1 and n bytes back, at once",
    expected=lambda value, rank, ranks, i, part: value(1 - rank, i),
    bus=_once, pairs=((0, 1), (1, 0)),
)  # fmt: skip
broadcast = _collective(
    name="broadcast", group="collective", summary="every rank gets the n bytes of rank 0",
    expected=lambda value, rank, ranks, i, part: value(0, i),
    bus=_once,
)  # fmt: skip
allreduce = _collective(
    name="allreduce", group="collective", summary="every rank gets the sum of all buffers of n bytes",
    expected=lambda value, rank, ranks, i, part: sum(value(other, i) for other in range(ranks)),
    bus=lambda ranks: 2 * (ranks - 1) / ranks,
)  # fmt: skip
reducescatter = _collective(
    name="reducescatter", group="collective", summary="every rank gets its share of the sum of all buffers of n bytes",
    expected=lambda value, rank, ranks, i, part: sum(
        value(other, i + i.dtype.type(rank * part)) for other in range(ranks)
    ),
    bus=_others, gets=_share,
)  # fmt: skip
allgather = _collective(
    name="allgather", group="collective", summary="every rank gets the shares of all, n bytes in the end",
    expected=lambda value, rank, ranks, i, part: value(i // i.dtype.type(part), i % i.dtype.type(part)),
    bus=_others, sends=_share,
)  # fmt: skip
alltoall = _collective(
    name="alltoall", group="collective", summary="every rank sends each its share of n bytes",
    expected=lambda value, rank, ranks, i, part: value(
        i // i.dtype.type(part), i % i.dtype.type(part) + i.dtype.type(rank * part)
    ),
    bus=_others,
)  # fmt: skip
