"""A formula's trace: its texts, why a function has none, and the bound of its roundings."""

import numpy as np
import pytest

from gpubench.kernels.templates.formula import UNITS, Untraceable, trace


def call_price(xp, spot, strike):
    d1 = xp.log(spot / strike) + 0.045
    return spot / (1 + xp.exp(-1.7 * d1)) - strike * 0.97 / (1 + xp.exp(-1.7 * (d1 - 0.3)))


def test_each_language_has_the_steps() -> None:
    formula = trace(lambda xp, x: xp.where(x > 0, x**3, -x) / xp.sqrt(1 + x * x), ["x"])
    for text in (formula.wgsl(), formula.cuda(), formula.python()):
        assert "sqrt(" in text
        assert "select(" in text
    assert formula.call == "formula(x)"


def test_a_value_that_is_used_twice_is_computed_once() -> None:
    def doubled(xp, x):
        for _ in range(60):  # written out, its text would be longer than any memory
            x = x + x
        return x

    assert trace(doubled, ["x"]).operations == 60


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda xp, x: xp.sort(x), r"calls xp\.sort"),
        (lambda xp, x: x if x > 0 else -x, "asks whether an array is true"),
        (lambda xp, x: np.exp(x), "calls NumPy itself"),
        (lambda xp, x: x.sum(), r"uses \.sum of an array"),
        (lambda xp, x: x[1:], "takes elements of an array by index"),
        (lambda xp, x: x**2.5, "power that is no whole number"),
        (lambda xp, x: (x, x + 1), "returns several results"),
        (lambda xp, x: x > 0, "returns truth values"),
        (lambda xp, x: sum(x), "loops over an array"),
        (lambda xp, x: x * float("inf"), "holds the number inf"),
    ],
)
def test_why_a_function_is_no_formula(function, why: str) -> None:
    with pytest.raises(Untraceable, match=why):
        trace(function, ["x"])


def test_the_bound_admits_float32_and_refuses_float16() -> None:
    spot, strike = np.random.default_rng(1).uniform(0.5, 2, (2, 20_000)).astype("float32")
    wide = spot.astype("float64"), strike.astype("float64")
    want = call_price(np, *wide)
    scale = trace(call_price, ["spot", "strike"]).tolerance().scale(np, *wide)
    limit = UNITS * 2.0**-24
    assert np.all(np.abs(call_price(np, spot, strike) - want) <= limit * scale)
    halves = call_price(np, spot.astype("float16"), strike.astype("float16"))
    assert not np.all(np.abs(halves - want) <= limit * scale)


def test_next_to_a_jump_either_side_is_right() -> None:
    tolerance = trace(lambda xp, x: xp.where(3 * x > 0.3, x, -x), ["x"]).tolerance()
    x = np.array([0.1, 0.2])
    at_jump, elsewhere = tolerance.slack(np, 2.0**-24, x)
    assert at_jump == pytest.approx(0.2)
    assert elsewhere == 0
