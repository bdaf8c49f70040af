"""What a device costs before and around any work: ops that time a call of the session instead of an expression."""

from __future__ import annotations

from gpubench.model.op import EXACT, Array, Ladder, Op, Operand, Overhead, Params, Shape, always_fits

ONCE = Ladder(low=1, high=1)
# From less than a page to what fills a link for a fifth of a second.
BYTES = Ladder(low=2**10, high=2**30, factor=16)


def overhead(name: str, summary: str, what: Overhead, *, sizes: Ladder = ONCE) -> Op:
    """The op that times `what`. With the ladder `ONCE` it has no size, and n is 1."""
    return Op(
        name=name, group="overhead", summary=summary,
        params={"n": "always 1" if sizes == ONCE else "number of bytes"}, sizes=sizes, dtypes=("float32",),
        inputs=(), output=Operand("nothing", _empty), flops=_nothing, expr=_no_answer, tolerance=EXACT,
        fits=always_fits if sizes == ONCE else _whole_words, overhead=what,
    )  # fmt: skip


def _whole_words(params: Params) -> str | None:
    if params["n"] % 4:
        return f"n is a number of bytes, and devices move words of 4: {params['n']} is no multiple"
    return None


def _empty(params: Params) -> Shape:
    return (0,)


def _nothing(params: Params) -> int:
    return 0


def _no_answer(xp: Array) -> Array:
    return xp.zeros((0,))
