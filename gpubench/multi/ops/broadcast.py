"""broadcast: every rank gets what rank 0 sent."""

from gpubench.multi.collective import collective, once

OP = collective(
    name="broadcast", group="collective", summary="every rank gets the n bytes of rank 0",
    expected=lambda value, rank, ranks, i, part: value(0, i),
    bus=once,
)  # fmt: skip
