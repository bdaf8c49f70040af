"""How many examples a property is tried with, and the characters of its texts."""

from hypothesis import settings
from hypothesis import strategies as st

USUAL = 100
# Those of `st.text()`, which asks for what UTF-8 can encode: to find that out Hypothesis takes four seconds in a fresh clone.
CHARACTERS = st.characters(exclude_categories=["Cs"])


def examples(number: int) -> int:
    """`number` where a property is tried with as many examples as usual. The profiles of `make check` and `make test`
    have fewer, that of `make fuzz` has more, and each takes its share of `number`."""
    return -(-number * settings().max_examples // USUAL)
