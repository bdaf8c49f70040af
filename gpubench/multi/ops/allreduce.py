"""allreduce: every rank gets the sum of all ranks' buffers."""

from gpubench.multi.collective import collective

OP = collective(
    name="allreduce", group="collective", summary="every rank gets the sum of all buffers of n bytes",
    expected=lambda value, rank, ranks, i, part: sum(value(other, i) for other in range(ranks)),
    bus=lambda ranks: 2 * (ranks - 1) / ranks,
)  # fmt: skip
