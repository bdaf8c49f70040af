"""A formula's trace: its texts, why a function has none, and the bound of its roundings. What is told of a program."""

import itertools
import math
import pickle
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import scipy.special

from gpubench.functions import trial
from gpubench.functions.declare import UserFunction, stays
from gpubench.functions.describe import Code, CodeSource, Description, Shown, make_op
from gpubench.kernels import elementwise
from gpubench.kernels.contract.op import EXACT, Ladder, Tolerance
from gpubench.kernels.templates.formula import UNITS, Arrays, Untraceable, trace
from gpubench.kernels.templates.reduce import reduction


def call_price(xp, spot, strike):
    d1 = xp.log(spot / strike) + 0.045
    return spot / (1 + xp.exp(-1.7 * d1)) - strike * 0.97 / (1 + xp.exp(-1.7 * (d1 - 0.3)))


@pytest.mark.parametrize(("language", "last", "text"), [
    ("wgsl", "return {};", "let step_0 = x * x;\nreturn select(-x, step_0 * x, x > 0.0) / sqrt(1.0 + step_0);"),
    ("cuda", "return narrow({});",
     "const auto step_0 = x * x;\nreturn narrow(select(x > real(0), step_0 * x, -x) / sqrt(real(1) + step_0));"),
    ("python", "return {}", "step_0 = x * x\nreturn select(x > real(0), step_0 * x, -x) / sqrt(real(1) + step_0)")])  # fmt: skip
def test_each_language_has_the_steps_and_names_what_is_used_twice(language, last, text):
    def formula(m, x):
        square = x * x
        return m.where(x > 0, square * x, -x) / m.sqrt(1 + square)

    assert trace(formula, ["x"]).statements(language, last) == text


@pytest.mark.parametrize(("formula", "text"), [
    (lambda m, x: (x - 1) - (x - 2), "x - 1.0 - (x - 2.0)"),
    (lambda m, x: (x + 1) * 2 / (x * 3), "(x + 1.0) * 2.0 / (x * 3.0)"),
    (lambda m, x: -(x * 2) * -3, "-(x * 2.0) * -3.0"),
    (lambda m, x: m.where((x > 1) | (x < -1), 0, x), "select(x, 0.0, ((x > 1.0) | (x < -1.0)))"),
    (lambda m, x: x - (x > 1), "x - select(0.0, 1.0, x > 1.0)"),
    (lambda m, x: (x > 0) * (x < 1) * x, "select(0.0, 1.0, ((x > 0.0) & (x < 1.0))) * x"),
    (lambda m, x: m.where((x > 0) + (x / 2), x, 0), "select(0.0, x, select(0.0, 1.0, x > 0.0) + x / 2.0 != 0.0)"),
    (lambda m, x: m.where(m.where(x > 0, x < 1, x < 2) + (x > 3), x, 0),
     "select(0.0, x, ((select(select(0.0, 1.0, x < 2.0), select(0.0, 1.0, x < 1.0), x > 0.0) != 0.0) | (x > 3.0)))"),
    (lambda m, x: m.where(m.logical_or(x, x > 1), x, 0), "select(0.0, x, ((x != 0.0) | (x > 1.0)))"),
    *((f, "let step_0 = select(0.0, 1.0, x > 0.0);\nstep_0 * step_0") for f in (lambda m, x: (x > 0) ** 2, lambda m, x: m.square(x > 0))),
    (lambda m, x: m.maximum(x, 0), "select(x, 0.0, x < 0.0)"), (lambda m, x: m.where(m.e > 3, x, +x) ** 0.5, "sqrt(x)"),
    (lambda m, x: doubled(x, 2), "let step_0 = x + x;\nstep_0 + step_0")])  # fmt: skip
def test_parentheses_and_names_stand_where_they_are_needed(formula, text):
    assert trace(formula, ["x"]).statements("wgsl", "{}") == text


def doubled(x, times):
    for _ in range(times):
        x = x + x
    return x


def test_a_value_that_is_used_twice_is_computed_once():
    """Written out, the text would be longer than any memory."""
    assert trace(lambda xp, x: doubled(x, 500), ["x"]).operations == 500


@pytest.mark.parametrize(("function", "why"), [
    (lambda xp, x: xp.sort(x), r"calls sort"),
    (lambda xp, x: x if x > 0 else -x, "asks whether an array is true"),
    (lambda xp, x: np.exp(x), "calls NumPy itself"), (lambda xp, x: x.sum(), r"uses \.sum of an array"),
    (lambda xp, x: x[1:], "takes elements of an array by index"),
    (lambda xp, x: x ** np.ones(3), "mixes arrays with an object of type ndarray"),
    (lambda xp, x: x * xp.log2(np.ones(3)), "mixes arrays with an object of type ndarray"),
    (lambda xp, x: (x, x + 1), "returns several results"), (lambda xp, x: x > 0, "returns truth values"),
    (lambda xp, x: x * -(x > 0), "calls negative for truth values alone"),
    (lambda xp, x: pickle.dumps(x), "sends it to another process"),
    (lambda xp, x: doubled(x, 501), "has 501 steps; 500 are"), (lambda xp, x: (f := lambda: f())(), "is too long"),
    (lambda xp, x: x / (1 // 0), r"takes no symbols \(ZeroDivisionError: integer"),
    (lambda xp, x: sum(x), "loops over an array"), (lambda xp, x: x * float("inf"), "holds the number inf")])  # fmt: skip
def test_why_a_function_is_no_formula(function, why):
    with pytest.raises(Untraceable, match=why):
        trace(function, ["x"])


def test_a_formula_that_calls_what_nobody_knows_is_an_error_at_its_declaration():
    declaration = {"name": "odd", "group": "vector", "summary": "", "inputs": ("x",), "flops_per_element": 1,
                   "tolerance": EXACT}  # fmt: skip
    with pytest.raises(ValueError, match=r"the formula of odd calls gamma; it may call exp, "):
        elementwise(formula=lambda m, x: m.gamma(x), **declaration)
    with pytest.raises(ValueError, match=r"the formula of odd calls gamma"):
        reduction(formula=lambda m, x: m.gamma(x), join="add", **declaration)


def test_a_nan_wins_a_maximum_in_each_order():
    text = trace(lambda m, x, y: m.maximum(x, y), ["x", "y"]).statements("python", "{}")
    for values in ((math.nan, 1.0), (1.0, math.nan), (2.0, 1.0)):
        known = {"select": lambda c, a, b: a if c else b, "real": float, "x": values[0], "y": values[1]}
        np.testing.assert_equal(eval(text, known), np.maximum(*values))


@pytest.mark.parametrize("name", ["log2", "log10", "exp2", "square", "reciprocal"])
def test_what_is_made_of_other_functions_has_numpys_value(name):
    text = trace(lambda m, x: getattr(m, name)(x), ["x"]).statements("python", "{}")
    known = {"log": math.log, "pow": pow, "real": float, "x": 1.75}
    assert eval(text, known) == pytest.approx(getattr(np, name)(1.75), rel=1e-12)


def test_the_bound_admits_float32_and_refuses_float16():
    spot, strike = np.random.default_rng(1).uniform(0.5, 2, (2, 20_000)).astype("float32")
    want = call_price(np, spot.astype("float64"), strike.astype("float64"))
    tolerance = trace(call_price, ["spot", "strike"]).tolerance()
    limit = UNITS * 2.0**-24 * tolerance.scale(np, spot.astype("float64"), strike.astype("float64"))
    for dtype, passes in (("float32", True), ("float16", False)):
        got = call_price(np, spot.astype(dtype), strike.astype(dtype))
        assert bool(np.all(np.abs(got - want) <= limit)) == passes


@pytest.mark.parametrize(("formula", "x", "scale"), [
    (lambda m, x: x**20, -2.0, 2**20 * (1 + 20 * np.log(2))), (lambda m, x: m.asin(x / 2), 2.0, 2**14), (lambda m, x: 1 - 1 / (1 + m.exp(x)), 800.0, 2),
    (lambda m, x: m.erf(x), 0.5, math.erf(0.5)), (lambda m, x: x, -3.0, 3), (lambda m, x: m.maximum(x * x, 4), 2.0, 12),
    *((lambda m, x: m.where(x < 3, x * x, x), x, scale) for x, scale in ((2.0, 4), (4.0, 0)))])  # fmt: skip
def test_the_bound_is_a_number_where_the_result_is(formula, x, scale):
    with np.errstate(all="ignore"):
        bound = trace(lambda m, other, x: formula(m, x), ["other", "x"]).tolerance().scale
        got = bound(np, np.array([7.0]), np.array([x]))
    np.testing.assert_allclose(got, scale, rtol=1e-3)


@pytest.mark.parametrize(("right", "last"), [
    (lambda x, y: x > y, 1.125), (lambda x, y: x * x > y, 1.25), (lambda x, y: x > y * y, 1.13),
    (lambda x, y: (x > y) | (x > 9), 1.125), (lambda x, y: (x < 9) & (x > y), 1.125)])  # fmt: skip
def test_next_to_a_jump_either_side_is_right(right, last):
    """At x = 1, with an eighth of it for each rounding."""
    tolerance = trace(lambda xp, x, y: xp.where(right(x, y), x, -x), ["x", "y"]).tolerance()
    at_jump, elsewhere = tolerance.slack(np, 0.125 / UNITS, np.ones(2), np.array([last, last + 0.01]))
    assert (at_jump, elsewhere) == (2, 0)


def test_a_program_of_numpy_has_the_names_of_cupy(monkeypatch):
    cupy, special = ModuleType("cupy"), SimpleNamespace(erf=lambda x: -x)
    cupy.exp = lambda x: x + 1
    monkeypatch.setitem(sys.modules, "cupyx.scipy.special", special)
    monkeypatch.setitem(sys.modules, "cupyx.scipy", SimpleNamespace(special=special))
    exp = type("Exp", (), {"__call__": lambda self, x: np.exp(x)})()
    programs = np.exp, exp, exp.__call__, scipy.special.erf, lambda x: scipy.special.erf(x), abs
    assert [UserFunction(program).bind(cupy)(-3) for program in programs] == [-2, -2, -2, 3, 3, 3]
    assert [Arrays(xp).erf(-3) for xp in (cupy, SimpleNamespace(erf=int))] == [3, -3]


def test_a_program_without_its_text_is_known_by_its_code():
    ends = "x + 1", "x - 1", "x + 2", "min(x)", "max(x)", "lambda: 1", "lambda: 2"
    first, second = ([trial.digest(UserFunction(eval(f"lambda x: {end}"))) for end in ends] for _ in range(2))
    assert (first == second, len({*first})) == (True, len(ends))


def test_all_that_a_trial_tells_and_the_op_that_is_made_of_it(monkeypatch):
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=partial(next, itertools.count(0, 2**-20))))
    monkeypatch.setattr(trial.tracemalloc, "get_traced_memory", lambda: (1, 10**6))
    function = UserFunction(
        lambda xp, weights, x: (weights @ x, x > 1), flops=lambda n: n**3, backends="numpy,torch", dtypes="f32,float64",
        inputs=lambda rng, n, dtype: [stays(np.ones((2 * n, n), dtype)), np.ones(n, dtype)])  # fmt: skip
    request = trial.TrialRequest(CodeSource("own", "file", "own.py"), sizes=[4, 8, 16, 32], dtypes=["float64"])
    *_, told = trial.describe("product", function, request)
    wide, long, took = ([(n, f(n)) for n in (4, 8, 16)] for f in (lambda n: 2 * n, int, lambda n: 2**-20))
    assert told == Description(
        "own", "product", trial.digest(function), "product(weights, x)",
        [Shown("weights", [wide, long], [(4, 256), (8, 1024), (16, 4096)], stays=True), Shown("x", [long], [(4, 32), (8, 64), (16, 128)])],
        [Shown("out[0]", [wide], [(4, 64), (8, 128), (16, 256)]), Shown("out[1]", [long], long, floating=False)],
        [(4, 999932), (8, 999864), (16, 999728)], took, 4, 2**24, ["float32", "float64"], took,
        backends=["numpy", "torch"], flops=[(4, 64.0), (8, 512.0), (16, 4096.0)], own_inputs=True,
        untraced="takes other inputs than vectors of n floating-point numbers")  # fmt: skip
    op, params = make_op(told, Code(lambda xp, x: x)), {"n": 64}
    parts = [(x.role, x.shape(params), x.bytes(params, "float32")) for x in (*op.inputs, op.output, *op.between)]  # fmt: skip
    rest = [((64,), 256), ((128,), 17 * 64), ((), 998912)]
    assert parts == [("state", (128, 64), 2**15), *(("activation", *each) for each in rest)]
    assert (op.flops(params), op.seconds(params), op.inputs_s(params)) == (64**3, 2**-20, 2**-20)
    assert (op.only, op.sizes, op.tolerance) == (("numpy", "torch"), Ladder(4, 2**24), Tolerance(64.0))
