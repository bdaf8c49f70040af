"""alltoall: every rank gets its share of what each rank sent."""

from gpubench.multi.collective import collective, others

OP = collective(
    name="alltoall", group="collective", summary="every rank sends each its share of n bytes",
    expected=lambda value, rank, ranks, i, part: value(
        i // i.dtype.type(part), i % i.dtype.type(part) + i.dtype.type(rank * part)
    ),
    bus=others,
)  # fmt: skip
