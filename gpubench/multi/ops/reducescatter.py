"""reducescatter: every rank gets its share of the sum of all ranks' buffers."""

from gpubench.multi.collective import collective, others, part

OP = collective(
    name="reducescatter", group="collective", summary="every rank gets its share of the sum of all buffers of n bytes",
    expected=lambda value, rank, ranks, i, part: sum(
        value(other, i + i.dtype.type(rank * part)) for other in range(ranks)
    ),
    bus=others, gets=part,
)  # fmt: skip
