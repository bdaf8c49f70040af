"""How many examples a property is tried with."""

from hypothesis import settings

USUAL = 100


def examples(number: int) -> int:
    """`number` where a property is tried with as many examples as usual. The profiles of `make check` and `make test`
    have fewer, that of `make fuzz` has more, and each takes its share of `number`."""
    return -(-number * settings().max_examples // USUAL)
