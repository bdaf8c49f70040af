"""p2p: rank 0 sends its buffer to rank 1."""

from gpubench.multi.collective import collective, once

OP = collective(
    name="p2p", group="collective", summary="n bytes from rank 0 to rank 1",
    expected=lambda value, rank, ranks, i, part: value(0, i),
    bus=once, pairs=((0, 1),),
)  # fmt: skip
