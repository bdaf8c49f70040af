"""Each package has a budget of tokens: a feature raises it by what it weighs, with the reason in its commit."""

import pytest

from benchmarks import weight
from gpubench.base.plugins import wings

pytestmark = pytest.mark.check


def test_no_package_weighs_more_than_its_budget():
    weights, limits = weight.packages(), weight.budgets()
    limits = {name: limit for name, limit in limits.items() if name in weights or name not in wings.OWN}
    assert weights.keys() == limits.keys()
    over = {name: (tokens, limits[name]) for name, tokens in weights.items() if tokens > limits[name]}
    assert not over, f"tokens and budget: {over}; delete code, or raise {weight.BUDGETS.name} and say why"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("x = 1\n", 3), ('"""A docstring."""\n# a comment\n\nx = 1\n', 3),
        ('def f():\n    "A docstring."\n    return "a string"\n', 7), ('x = f"{a} and {b!r:>{c}}"\n', 3),
        ('x = """one\ntwo\nthree"""\n', 3), ('x = """one\ntwo\nthree\nfour"""\n', 2 + 10),
        ('x = f"""one {a}\ntwo\nthree\nfour"""\n', 2 + 14),
    ],
)  # fmt: skip
def test_what_weighs_how_much(text, tokens):
    assert weight.weigh(text) == tokens
