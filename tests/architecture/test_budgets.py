"""Each package has a budget of tokens: a feature raises it by what it weighs, with the reason in its commit."""

from benchmarks import weight
from gpubench.base.plugins import wings


def test_no_package_weighs_more_than_its_budget():
    weights, limits = weight.packages(), weight.budgets()
    limits = {name: limit for name, limit in limits.items() if name in weights or name not in wings.OWN}
    assert weights.keys() == limits.keys()
    over = {name: (tokens, limits[name]) for name, tokens in weights.items() if tokens > limits[name]}
    assert not over, f"tokens and budget: {over}; delete code, or raise {weight.BUDGETS.name} and say why"
