"""p2p_both: two ranks send each other their buffers at once."""

from gpubench.multi.collective import collective, once

OP = collective(
    name="p2p_both", group="collective", summary="n bytes from rank 0 to rank 1 and n bytes back, at once",
    expected=lambda value, rank, ranks, i, part: value(1 - rank, i),
    bus=once, pairs=((0, 1), (1, 0)),
)  # fmt: skip
