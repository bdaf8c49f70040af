"""What a device costs before and around any work: ops that time a call of the session instead of an expression.

Each has the name of its call.
"""

from __future__ import annotations

from gpubench.model.op import (
    EXACT,
    Ladder,
    Op,
    Operand,
    Overhead,
    Params,
    SessionCall,
    always_fits,
)

_ONCE = Ladder(low=1, high=1)
# From less than a page to what fills a link for a fifth of a second.
_BYTES = Ladder(low=2**10, high=2**30, factor=16, granule=4)


def _overhead(call: SessionCall, summary: str, *, of_bytes: bool = False) -> Op:
    """The op that times `call`: with n bytes, in the plain form and in the best one, or once, where n is 1."""
    return Op(
        name=call, group="overhead", summary=summary,
        params={"n": "number of bytes" if of_bytes else "always 1"}, sizes=_BYTES if of_bytes else _ONCE,
        dtypes=("float32",), inputs=(), output=Operand("nothing", lambda params: (0,)),
        flops=lambda params: 0, expr=lambda xp: xp.zeros((0,)), tolerance=EXACT,
        fits=_whole_words if of_bytes else always_fits,
        overhead=Overhead(call, ("library", "tuned") if of_bytes else ("library",)),
    )  # fmt: skip


def _whole_words(params: Params) -> str | None:
    if params["n"] % 4:
        return f"n is a number of bytes, and devices move words of 4: {params['n']} is no multiple"
    return None


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        # Each sample is the first context of a fresh process.
        _overhead("open", "import the library and open the device, in a fresh process"),
        # Host time, while earlier launches may still run.
        _overhead("launch", "enqueue an empty launch, without waiting"),
        # The least that any result costs.
        _overhead("roundtrip", "an empty launch and the wait for it"),
        _overhead("sync", "wait with nothing enqueued"),
        _overhead(
            "allocate",
            "take n bytes on the device and give them back: library from the driver, tuned from the pool",
            of_bytes=True,
        ),
        _overhead(
            "upload",
            "n bytes to the device: library from ordinary memory, tuned pinned or mapped",
            of_bytes=True,
        ),
        _overhead(
            "download",
            "n bytes to the host: library into ordinary memory, tuned pinned or mapped",
            of_bytes=True,
        ),
    )
}
