"""allgather: every rank gets what all ranks sent, one after the other."""

from gpubench.multi.collective import collective, others, part

OP = collective(
    name="allgather", group="collective", summary="every rank gets the shares of all, n bytes in the end",
    expected=lambda value, rank, ranks, i, part: value(i // i.dtype.type(part), i % i.dtype.type(part)),
    bus=others, sends=part,
)  # fmt: skip
