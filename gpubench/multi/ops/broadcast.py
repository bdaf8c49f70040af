"""broadcast: every rank gets what rank 0 sent."""

from gpubench.multi.collective import collective, once

OP = collective(
    "broadcast", "every rank gets the n bytes of rank 0",
    lambda value, rank, ranks, i, part: value(0, i),
    bus=once,
)  # fmt: skip
