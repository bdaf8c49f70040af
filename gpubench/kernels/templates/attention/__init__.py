"""Fused causal attention on a GPU: how queries meet threads.

A thread has `rows` queries of one head and their results in registers and goes through the keys four at a time, with
a running maximum and a running sum. All threads of a warp read the same key, which is one access for all of them. The
keys are dealt out to the `parts` of a group in turn, which merge their results at the end: more threads, where there
are few queries. No array of scores is ever written.
"""

from __future__ import annotations

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.templates import ceil_div, multiprocessors

LANES = 32  # threads that go through the same keys together
# The score of a key that a query does not see, and what stands before the first key: so that the difference of two is a
# number.
LOWEST = "-3e38"
KEYS = 4  # of one step: with eight their loads take so many registers that some spill
_MOST_ELEMENTS = 256  # of a head: its query and result have to be in registers
_TWO_QUERIES_BYTES = (
    512  # of registers that two queries and their results may take: then a key is read once for both
)
_WARPS_A_MULTIPROCESSOR = 32  # also of those that end early, since their tokens see few
_MOST_PARTS = 8
CACHE_THREADS = 256  # of a head of one token; as many elements as it may have


class Heads(msgspec.Struct, frozen=True):
    """`n` tokens with `heads` heads of `e` elements."""

    n: int
    heads: int
    e: int

    @property
    def width(self) -> int:
        """Elements of a token."""
        return self.heads * self.e


class QueryLayout(msgspec.Struct, frozen=True):
    """`rows` queries a thread, `parts` threads for the same queries."""

    rows: int
    parts: int

    @property
    def threads(self) -> int:
        return LANES * self.parts

    @property
    def group_rows(self) -> int:
        return LANES * self.rows

    def words(self, e: int) -> int:
        """Reals of shared memory: results, maxima and sums of the half of the parts that hands over."""
        return self.parts // 2 * self.group_rows * (e + 2)


def layout(of: Heads, itemsize: int, limits: Limits) -> QueryLayout:
    """As many parts as give each multiprocessor enough warps and the keys suffice for, and as the device's limits hold.

    Raises Unsupported for heads that are too wide for registers.
    """
    if of.e > _MOST_ELEMENTS:
        why = f"a head of {of.e} elements does not fit a thread's registers; up to {_MOST_ELEMENTS} do"
        raise Unsupported(why, reason="limit")
    rows = 2 if 4 * of.e * itemsize <= _TWO_QUERIES_BYTES and of.n > LANES else 1
    warps = of.heads * ceil_div(max(of.n, 1), LANES * rows)
    found = QueryLayout(rows, 1)
    while found.parts < _MOST_PARTS:
        more = QueryLayout(rows, 2 * found.parts)
        enough = warps * found.parts >= _WARPS_A_MULTIPROCESSOR * multiprocessors(limits)
        fits = (
            more.threads <= limits.max_workgroup_threads
            and itemsize * more.words(of.e) <= limits.max_workgroup_bytes
        )
        if enough or not fits or of.n < more.parts * KEYS:
            break
        found = more
    return found


class CacheGroup(msgspec.Struct, frozen=True):
    """How the threads of a group share the head of one token over a cache, whose rows are `units` loads long."""

    units: int
    shares: int  # threads that make the score of a key

    @property
    def teams(self) -> int:
        """Of `units` threads each, which add up values."""
        return CACHE_THREADS // self.units

    @property
    def held(self) -> int:
        """Keys of a step."""
        return CACHE_THREADS // self.shares


def cache_group(units: int, room: int) -> CacheGroup:
    """As many threads a key as are left where all keys are of one step; they read it together."""
    shares = 1
    while units % (2 * shares) == 0 and 2 * shares * room <= CACHE_THREADS:
        shares *= 2
    return CacheGroup(units, shares)


def require_threads(of: Heads) -> None:
    """Raise Unsupported for a head of more elements than a group over a cache has threads."""
    if of.e > CACHE_THREADS:
        why = f"a head of {of.e} elements exceeds a group of {CACHE_THREADS} threads"
        raise Unsupported(why, reason="limit")
