"""A formula's trace: its texts, why a function has none, and the bound of its roundings. What is told of a program."""

import contextlib
import importlib.util
import inspect
import itertools
import math
import pickle
import random
import sys
import threading
import time
from functools import partial
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
import pandas
import pytest
import scipy.special
from msgspec.structs import replace

from gpubench.base import hash_text, processes
from gpubench.base.errors import Unsupported, UsageError
from gpubench.base.plugins import PluginError
from gpubench.functions import describe, loading, sources, trial
from gpubench.functions.declare import UserFunction, stays
from gpubench.functions.describe import (
    Code,
    CodeSource,
    Description,
    Manifest,
    Shown,
    make_op,
)
from gpubench.functions.session import (
    CallSession,
    ObjectBuffer,
    Translated,
    allow_condition,
    answer,
    shares_memory,
)
from gpubench.kernels import elementwise
from gpubench.kernels.contract.op import EXACT, Ladder, Tolerance
from gpubench.kernels.templates.cpu import MOST_INPUTS
from gpubench.kernels.templates.formula import UNITS, Arrays, Untraceable, trace
from gpubench.kernels.templates.reduce import reduction
from gpubench.result.case import Case


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
    (lambda m, x: x * m.float32(m.sqrt(4)) + m.log(1), "x * 2.0 + 0.0"), (lambda m, x: m.maximum(x, 0), "select(x, 0.0, x < 0.0)"), (lambda m, x: m.where(m.e > 3, x, +x) ** 0.5, "sqrt(x)"),
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
    cupy, special, standard = ModuleType("cupy"), SimpleNamespace(erf=lambda x: -x), ModuleType("standard")
    cupy.exp, standard.exp, standard.tan = (lambda x: x + 1), (lambda x: x + 2), (lambda x: x + 3)
    monkeypatch.setitem(sys.modules, "cupyx.scipy.special", special)
    monkeypatch.setitem(sys.modules, "cupyx.scipy", SimpleNamespace(special=special))
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", standard)
    exp = type("Exp", (), {"__call__": lambda self, x: np.exp(x)})()
    programs = np.exp, exp, exp.__call__, scipy.special.erf, lambda x: scipy.special.erf(x), abs
    assert [UserFunction(program).bind(cupy)(-3) for program in programs] == [-2, -2, -2, 3, 3, 3]
    assert [Arrays(xp).erf(-3) for xp in (cupy, SimpleNamespace(erf=int))] == [3, -3]
    bound = [UserFunction(f) for f in (lambda x: (np.exp(x), np.tan(x)), lambda xp, x: (xp.exp(x), xp.tan(x)))]
    assert [loading.bind_library(function, cupy)(np.array(0)) for function in bound] == [(1, 3), (2, 3)]
    assert [repr(UserFunction(*both)) for both in ([abs], [abs] * 2)] == [
        "<gpubench.function abs(x)>",
        "<gpubench.pair abs(x)>",
    ]
    for programs, options, why in (
        ([3], {}, "3 is not a function"),
        ([abs, 3], {}, "3 is not a function"),
        *(
            ([abs], {name: value}, f"{name} is {value!r}")
            for name, value in (("gradients", 1), ("tolerance", "1"), ("tolerance", 1e-120))
        ),
    ):
        with pytest.raises(UsageError, match=why):
            UserFunction(*programs, **options)


class Rounded:
    """A program that is an object, whose representation tells what it does."""

    def __init__(self, digits):
        self.digits = digits

    def __repr__(self):
        return f"<Rounded to {self.digits} at {id(self):#x}>"

    def __call__(self, x):
        return np.round(x, self.digits)


def test_a_program_without_its_text_is_known_by_its_code():
    ends = "x + 1", "x - 1", "x + 2", "min(x)", "max(x)", "lambda: 1", "lambda: 2"
    texts = *(f"lambda x: {end}" for end in ends), "len", "abs", "Rounded(1)", "Rounded(2)", *(
        f"partial(np.round, {end})" for end in ("decimals=1", "decimals=2")), "type('Bare', (), {'__call__': len})()"  # fmt: skip
    first, second = ([trial.digest(UserFunction(eval(text))) for text in texts] for _ in range(2))
    assert (first == second, len({*first})) == (True, len(texts))
    sources = map(inspect.getsource, (call_price, doubled))
    assert trial.digest(UserFunction(call_price, doubled)) == hash_text("\n".join(sources))


def sorts(parts):
    parts["x"].sort()
    return parts["x"][:1]


def drawn(rng, n):
    return [rng.permutation(n) + 0.0]


def no_inputs(n):
    raise KeyError("a key")


@pytest.mark.parametrize(("function", "why"), [
    (UserFunction(lambda x: x.__iadd__(1)), "it changes x: it has to leave"), (UserFunction(lambda x: None), "it returns nothing: return"),
    (UserFunction(sorts, sorts, inputs=lambda rng, n: [{"x": rng.random(n)}]), "it changes parts"),
    (UserFunction(lambda x: ()), "it returns nothing$"), (UserFunction(lambda x: {"an": object()}), "no array: say same="),
    (UserFunction(lambda x, known={}: known.setdefault(len(x), np.sort(x)[:2])), "it returns its first result for other values"),
    (UserFunction(lambda x, known={}: known.setdefault(len(x), np.sort(x)[:1]), same=lambda a, b: True), None),
    (UserFunction(lambda a, b: a, inputs=lambda n: np.ones(n)), "its inputs are of type ndarray: return a list"),
    (UserFunction(lambda a: a, inputs=lambda n: None), "its inputs are of type NoneType: return a list"),
    (UserFunction(lambda x: x, inputs=lambda rng, n: [np.random.default_rng().random(n)]), "its inputs differ from call to call"),
    (UserFunction(lambda x: x.sum() + np.random.default_rng().random()), "two calls give different results"),
    (UserFunction(lambda x: x, dtypes="f31"), "there is no dtype 'f31': take float64, float32, float16, bfloat16"),
    (UserFunction(lambda x: np.log(-x)), "its whole result is NaN"), (UserFunction(lambda x: x, backends="numpy,cudda"), "no backend 'cudda'"),
    (UserFunction(lambda x, y: x, inputs=lambda n: [np.ones(n), threading.Lock()]), "its inputs cannot be copied: TypeError"),
    (UserFunction(lambda x: x, inputs=no_inputs), r"its inputs raise KeyError: 'a key' \(test_formula.py, line \d+\) at n = 64"),
    (UserFunction(lambda x: 1 / 0), "^called with vectors of n numbers"), (UserFunction(lambda x: int("Tensor")), "^NumPy calls it too"),
    (UserFunction(lambda x: 1 / 0, inputs=lambda n: [np.ones(n)]), "^it raises ZeroDivisionError"),
    *((UserFunction(lambda x: x, flops=lambda n, count=count: count), "return a number of operations") for count in (-1, 2.0**63, math.nan, 10**400)),
    (UserFunction(lambda x: x, flops=lambda n: 1 // 0), "its option flops raises ZeroDivisionError"),
    *((UserFunction(lambda x: x, flops=lambda n, count=count: count), None) for count in (0, 2.0**62)),
    (UserFunction(np.sort, inputs=drawn), None), (UserFunction(lambda x: np.sort(x) if (x % 1 == 0).all() else 1 / 0, inputs=drawn), None),
    (UserFunction(lambda x: np.zeros(2)), None), (UserFunction(lambda x: np.arange(3)), None),
    (UserFunction(lambda x: np.sign(x), inputs=lambda rng, n: [rng.choice([-1.0, 1.0], n)]), None)])  # fmt: skip
def test_what_is_wrong_with_a_function_is_found_by_its_first_calls(function, why):
    request = trial.TrialRequest(CodeSource("own", "file", "own.py"), sizes=[64])
    if why is None:
        assert [told.low for told in trial.describe("f", function, request)] == [64]
    else:
        with pytest.raises(PluginError, match=why):
            list(trial.describe("f", function, request))


def test_the_smallest_sizes_are_tried_and_the_first_reason_is_told():
    sizes = []
    function = UserFunction(lambda x: sizes.append(len(x)) or no_inputs(x))
    with pytest.raises(PluginError, match=r"at n = 64$"):
        list(trial.describe("f", function, trial.TrialRequest(CodeSource("own", "file", "own.py"))))
    assert sizes == [64, 128, 256, 512, 1024]
    request = trial.TrialRequest(CodeSource("own", "file", "own.py"), dtypes=["float16", "float64"])
    declared = ["float32", "float64"], ["float32"], ["bfloat16", "float32"], ["bfloat16"]
    assert next(told.peak for told in trial.describe("f", UserFunction(lambda x: x), request)) == [(64, 0)]
    assert [*map(request.pick_dtype, declared)] == ["float64", "float32", "float32", "bfloat16"]


OWN = '''
import gpubench
from math import sqrt
class Held: ...
unnamed = [gpubench.function(lambda xp, x: x)]
@gpubench.function
def ends(xp, x): raise SystemExit(3)
@gpubench.function
def wrong(xp, x): return None
@gpubench.function
def known(xp, x): return xp.sort(x)
@gpubench.function
def right(xp, x):
    """Sort.

    More."""
    return xp.sort(x)
@gpubench.function
def twice(xp, x): return x
@gpubench.function
def twice(xp, x): return x
def plain(xp, x): return xp.sort(x)
'''


@pytest.mark.parametrize(("names", "limit_s", "tried", "wrong"), [
    (None, None, ["right"], ["ends", "lambda", "twice", "wrong"]), (["plain", "known", "twice"], 2.0, ["plain"], ["twice"])])  # fmt: skip
def test_functions_are_tried_one_by_one_against_the_clock(monkeypatch, tmp_path, names, limit_s, tried, wrong):
    monkeypatch.setattr("gpubench.functions.declare.MEASURES", True)  # loading unsets it
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    timers, told, report = [], [], trial.TrialReport()
    timer = SimpleNamespace(dump_traceback_later=lambda limit_s, **how: timers.append((limit_s, how)))
    monkeypatch.setattr(trial, "faulthandler", timer)
    source = CodeSource("own", "file", str(tmp_path / "own.py"), only=str(limit_s))
    request = trial.TrialRequest(source, names, skip=["known"], sizes=[64], limit_s=limit_s)
    trial.try_out(request, report, lambda: told.append((report.trying, report.partial and report.partial.name)))
    assert ([f.name for f in report.functions], sorted(report.wrong)) == (tried, wrong)
    assert (report.known, report.undeclared) == (
        ["ends", "wrong", "known", "right", "lambda", "twice"],
        ["plain", "sqrt"],
    )
    assert report.wrong.get("ends") in (None, "it raises SystemExit: 3 (own.py, line 7)")
    assert report.wrong["twice"] == "two functions are called twice: rename one of them"
    assert report.wrong.get("lambda", "it has no name in the file").startswith("it has no name in the file")
    (name,) = tried
    assert report.functions[0].summary == ("Sort." if name == "right" else "plain(x)")
    begun = ["ends", "wrong", "right"] if names is None else ["plain"]
    assert told == [("", None), *((each, None) for each in begun), (name, name)]
    assert timers == [(s, {"exit": True, "file": 2}) for s in (60.0, *(60.0 for _ in begun), limit_s or 60.0)]
    assert (report.partial, report.functions[0].file_digest != "") == (None, True)
    (tmp_path / "own.py").write_text("import gpubench\nundefined\n", encoding="utf-8")
    trial.try_out(trial.TrialRequest(CodeSource("other", "file", str(tmp_path / "own.py"))), report, list)
    assert "NameError" in report.broken


def test_all_that_a_trial_tells_and_the_op_that_is_made_of_it(monkeypatch):
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=partial(next, itertools.count(1, 2**-20))))
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
    assert make_op(msgspec.structs.replace(told, flops=None), Code(lambda xp, x: x)).flops(params) == 0
    assert describe.operand(Shown("x", [[(4, 0), (8, 0)]], [])).shape(params) == (0,)
    assert (op.only, op.sizes, op.tolerance) == (("numpy", "torch"), Ladder(4, 2**24), Tolerance(64.0))


@pytest.mark.parametrize(("make", "made"), [
    (lambda rng, n: (rng, n), (1, 2)), (lambda n: n, 2), (lambda n, rng: (rng, n), (1, 2)), (lambda size: size, 2), (lambda size, /: size, 2),
    (lambda dtype: dtype, 3), (lambda a, b: (a, b), (1, 2)), (lambda a, b, c: (a, b, c), (1, 2, 3)), (lambda a, n, /: (a, n), (1, 2)),
    (lambda rng, size: (rng, size), (1, 2)), (lambda rng, n, k=9: (rng, n, k), (1, 2, 9)), (lambda n=9, rng=None: (rng, n), (1, 2)),
    (lambda *all: all, (1, 2)), (slice, slice(1, 2)), (lambda n, *, k=9: (n, k), (2, 9))])  # fmt: skip
def test_a_maker_of_inputs_gets_what_it_takes(make, made):
    assert loading.call_maker(make, {"rng": 1, "n": 2, "dtype": 3}) == made


def counter():
    count = 0

    def step():
        nonlocal count
        count = 1

    return step


@pytest.mark.parametrize(("event", "call", "told"), [
    ("c_call", time.sleep, "calls time.sleep"), ("c_call", [].append, "calls list.append"), ("c_call", len, ""), ("c_call", print, "calls print"),
    ("c_call", math.sqrt, ""), ("call", "global total; total = 1", "assigns to total"), ("call", "array[0] = 1", "assigns to an item"),
    ("call", "array.flags = 1", "assigns to flags"), ("call", counter().__code__, "assigns to count"), ("call", counter.__code__, ""),
    ("return", "array[0] = 1", "")])  # fmt: skip
def test_a_side_effect_is_the_users_and_the_first_one_is_told(event, call, told):
    for module, first in (("own", told), ("gpubench.own", "")):
        effects, code = loading.Effects(), compile(call, "", "exec") if isinstance(call, str) else call
        for called in (call, open):
            effects(SimpleNamespace(f_globals={"__name__": module}, f_code=code), event, called)
        assert effects.first == (first or ("calls io.open" if event == "c_call" and module == "own" else ""))


@pytest.mark.parametrize(("function", "inputs", "why"), [
    (UserFunction(abs, abs), [np.ones(4)], "has two programs"), (UserFunction(abs, same=max), [np.ones(4)], "is compared by same="),
    *((UserFunction(abs), [array], "takes other inputs") for array in (np.ones(3), np.ones((4, 1)), np.ones(4, int), scipy.sparse.eye(4), 4.0)),
    (UserFunction(abs), [np.ones(4)] * (MOST_INPUTS + 1), f"takes more than {MOST_INPUTS} arrays"),
    (UserFunction(lambda *inputs: sum(inputs[1:], inputs[0])), [np.ones(4)] * MOST_INPUTS, None)])  # fmt: skip
def test_a_formula_is_of_a_few_vectors_of_floating_point_numbers(function, inputs, why):
    names = [f"x{i}" for i in range(len(inputs))]
    if why is None:
        assert loading.formula(function, names, inputs, 4).operations == MOST_INPUTS - 1
    else:
        with pytest.raises(Untraceable, match=why):
            loading.formula(function, names, inputs, 4)


def test_a_compiled_function_has_its_own_inputs_and_the_tolerance_that_is_said():
    drawn = {"inputs": lambda rng, n: [rng.random(n), np.ones(n)]}
    function = UserFunction(lambda xp, x, y: x - 2 * y, tolerance=1e-3, **drawn)
    request = trial.TrialRequest(CodeSource("own", "file", "own.py"), sizes=[8])
    (told,) = trial.describe("f", function, request)
    op, parents = loading.bound_op(function, told), make_op(told, Code(describe.worker_alone))
    assert [(x.shape({"n": 7}), x.values) for x in parents.inputs] == [((7,), describe.DRAWN)] * 2
    assert (
        op.split,
        parents.split,
        make_op(msgspec.structs.replace(told, own_inputs=False), Code(describe.worker_alone)).split is None,
    ) == (None, None, False)
    with pytest.raises(NotImplementedError):
        parents.expr()
    first, again = (op.inputs[0].values.make({"n": 8}, "float16", 1) for _ in range(2))
    assert (first.dtype, first is again, (first == again).all()) == (np.float16, False, True)
    assert list(op.inputs[1].values.make({"n": 2}, "float32", 1)) == [1, 1]
    allowed, usual = (
        op.tolerance,
        loading.bound_op(UserFunction(lambda xp, x, y: x + y, **drawn), told).tolerance,
    )
    parts = [*allowed.scale(np, np.array([1.0, 5.0]), 1.0), *allowed.slack(np, 1.0, np.array([1.0, 5.0]), 1.0)]
    assert (parts, allowed.units, usual.units) == (pytest.approx([1, 3, 1e-3, 3e-3]), 1e-9, UNITS)


@pytest.mark.parametrize(("text", "words"), [("undefined\n", "own.py cannot be imported again: line 1: NameError"),
                                             ("x = 1\n", "own.py was edited during the run")])  # fmt: skip
def test_a_function_that_is_no_longer_what_it_was_is_not_loaded(monkeypatch, tmp_path, text, words):
    monkeypatch.setattr("gpubench.functions.declare.MEASURES", True)
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    told = Description("own", "f", "", "", [], [], [], [(8, 1e-3)], 8, 8, ["float32"], file_digest="other")
    sources = [CodeSource(name, "file", str(tmp_path / f"{name}.py")) for name in ("else", "own")]
    monkeypatch.setattr(loading, "read_manifest", lambda: Manifest(sources, [told]))
    with pytest.raises(Unsupported, match=words) as refused:
        loading.load.__wrapped__("own.f")
    assert refused.value.reason == "bad-function"


@pytest.mark.parametrize(("value", "count"), [
    ({"a": np.ones(2), "b": (np.ones(1), [np.ones(3, np.int8)])}, 27), (SimpleNamespace(memory_usage=lambda deep: 7 + deep), 8),
    (SimpleNamespace(memory_usage=lambda deep: np.array([7, deep])), 8), (scipy.sparse.eye(3).tocsr(), 3 * 8 + 3 * 4), (1.5, sys.getsizeof(1.5))])  # fmt: skip
def test_an_object_has_the_bytes_that_its_parts_report(value, count):
    assert loading.size(value) == count


@pytest.mark.parametrize(("first", "second", "same"), [
    ((1.0,), (1.0, 2.0), False), ([np.ones(2)], [np.ones(3)], False), (object(), object(), True), ((1.0, 2.0), (1.0, 2.0), True),
    (object(), 1.0, True), ([1, 2], [1, 3], False), (["a", 1], ["a", 1], True), ({"a": 1}, {"b": 1}, True), (scipy.sparse.eye(3), 1.0, False)])  # fmt: skip
def test_two_objects_are_equal_in_all_their_values(first, second, same):
    assert loading.equal(first, second) is same


@pytest.mark.parametrize(("value", "names"), [
    ([1, 2.0], ["out"]), ([np.float32(1), 2], ["out"]), (["a", 1], ["out[0]", "out[1]"]), ([np.array("a"), 1], ["out[0]", "out[1]"]),
    (([1], {"a": (2,)}), ["out[0]", "out[1]['a'][0]"]), ([SimpleNamespace(shape=(), dtype="torch.bool")], ["out"]),
    (pandas.DataFrame({"a": [1], "b": [2]}), ["out['a']", "out['b']"]), (SimpleNamespace(columns="ab"), ["out"]),
    (SimpleNamespace(columns="a", to_numpy=None, to_pandas=lambda: pandas.DataFrame({"a": [1]})), ["out['a']"])])  # fmt: skip
def test_a_result_is_divided_into_its_arrays(value, names):
    assert [name for name, _ in loading.leaves(value)] == names


def test_masked_elements_are_missing_and_numbers_are_nudged_up_or_down_by_their_bits():
    for values, last in (([1.0, 2.0], math.nan), ([1, 2], 999999)):
        np.testing.assert_equal(loading.on_host(np.ma.masked_array(values, [0, 1])), [values[0], last])
    numbers = np.array([512.5, 513, 513.5, 514.5, 1023, 3, 1026.5, 2053]) / 1024
    moved = np.array([1.25, 0.75, 0.75, 1.25, 0.75, 1.25, 0.75, 0.75])
    np.testing.assert_array_equal(loading.nudge(numbers, 0.25), numbers * moved)
    np.testing.assert_array_equal(loading.nudge(numbers + 5j, 0.25), (numbers + 5j) * moved)
    assert ([*loading.nudge(np.array([3.0, -2.0]), 0.25)], loading.nudge(7, 0.25), loading.widen(7)) == (
        [3, -2],
        7,
        7,
    )
    assert loading.differences(np.array([pandas.NA, 1]), np.array([1, 1])).tolist() == [True, False]


def test_random_inputs_are_alike_for_a_seed_and_a_size_whoever_draws_them(monkeypatch, tmp_path):
    seeds, function = [], UserFunction(lambda x: x)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=seeds.append))
    (wide,), (narrow,) = (
        loading.make_inputs(function, ["x"], 1000, dtype, 1) for dtype in ("float64", "float16")
    )
    assert (wide.dtype, narrow.dtype, (wide != wide.astype("float32")).any()) == (np.float64, np.float16, True)
    assert (0.5 <= wide.min() < 0.51, 1.99 < wide.max() <= 2.0) == (True, True)
    others = UserFunction(lambda x: x, inputs=lambda n: [np.array([random.random(), np.random.random()])])
    drawn = [
        loading.make_inputs(others, ["x"], n, "float64", seed)[0]
        for n, seed in ((3, 5), (3, 5), (4, 5), (3, 2**32 - 1))
    ]
    assert ((drawn[0] == drawn[1]).all(), (drawn[0] != drawn[2]).all(), seeds) == (True, True, [8, 8, 9, 2])
    usual, path = np.random.default_rng, [*sys.meta_path]
    (tmp_path / "torch.py").write_text("import random\nrandom.seed(5)\n", encoding="utf-8")
    with loading.same_random_numbers():
        assert (random.random(), seeds.pop()) == (random.Random(0).random(), 0)
        assert [np.random.default_rng(seed).random() for seed in (None, 5)] == [
            usual(seed).random() for seed in (0, 5)
        ]
        finder, *rest = sys.meta_path
        assert (rest, finder.find_spec("other", [str(tmp_path)]), finder.find_spec("torch", [])) == (
            path,
            None,
            None,
        )
        spec = finder.find_spec("torch", [str(tmp_path)])
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        assert (random.random(), seeds[-1]) == (random.Random(0).random(), 0)
    assert (np.random.default_rng, sys.meta_path) == (usual, path)


def session_of(function, backend="numpy", kind="cpu"):
    """A session that calls the function on such a device, and what it asks the device for."""
    asked, device = (
        [],
        SimpleNamespace(id=f"{backend}:{kind if backend == 'torch' else 0}", backend=backend, kind=kind),
    )

    def compile(op, case, inputs, output):
        return asked.append((op.library[backend], inputs, output)) or SimpleNamespace(kernel_name="its own")

    inner = {"limits": None, "threads": None, "blas": None, "lacks": "it is old", "compile": compile}
    return CallSession(
        SimpleNamespace(device=device, sync=lambda: asked.append("sync"), **inner), function
    ), asked


@pytest.fixture
def cupy(monkeypatch):
    """What stands for CuPy: its arrays are those of NumPy."""
    waited = []
    runtime = SimpleNamespace(deviceSynchronize=lambda: waited.append("all streams"))
    library = SimpleNamespace(asarray=np.negative, cuda=SimpleNamespace(runtime=runtime), waited=waited)
    monkeypatch.setitem(sys.modules, "cupy", library)
    return library


def of_numba(x):
    import numba

    return numba.prange(x)


def of_cupy(x):
    import cupy

    return cupy.sort(x)


ALONE = Case("f", "function", {"n": 1}, "float32", "library", "resident", "numpy:0")
NO_OP = make_op(
    Description("own", "f", "", "", [], [Shown("x", [], [(1, 4)])], [], [(1, 1.0)], 1, 1, ["float32"]),
    Code(abs),
)
LIKE_A_TENSOR = SimpleNamespace(
    data_ptr=None, detach=lambda: SimpleNamespace(cpu=lambda: SimpleNamespace(dtype="", numpy=lambda: 5))
)


@pytest.mark.parametrize(("function", "device", "result", "got"), [
    (UserFunction(abs), ("numpy", "cpu"), {"a": (np.ones(1), [2.0, "x"])}, {"a": (np.ones(1), [2.0, np.array("x")])}),
    (UserFunction(abs, to_cpu=lambda x: x + 1), ("numpy", "cpu"), 1, 1), (UserFunction(abs, to_cpu=lambda x: x + 1), ("cupy", "gpu"), 1, 2),
    (UserFunction(abs), ("numpy", "cpu"), Ellipsis, "no array"), (UserFunction(abs, same=max), ("numpy", "cpu"), Ellipsis, Ellipsis),
    *((UserFunction(*both), ("torch", "gpu"), result, got) for both, result, got in (
        ([abs], np.ones(1), "it computes with NumPy"), ([abs, abs], np.ones(1), np.ones(1)), ([abs], LIKE_A_TENSOR, 5), ([abs], 1.5, 1.5))),
    (UserFunction(abs), ("cupy", "gpu"), np.ones(1), np.ones(1))])  # fmt: skip
def test_a_result_is_waited_for_and_comes_to_the_host_whole(cupy, monkeypatch, function, device, result, got):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    (session, asked), (buffer, host) = session_of(function, *device), (ObjectBuffer(), ObjectBuffer())
    buffer.value, host.value = result, "an earlier one"
    if isinstance(got, str):
        with pytest.raises((Unsupported, loading.Unreadable), match=got):
            session.download(buffer, host)
        assert got != "no array" or host.value is None
    else:
        session.download(buffer, host)
        assert repr(host.value) == repr(got)
    assert (asked, cupy.waited) == (["sync"], ["all streams"] * (device[0] == "cupy"))
    assert (session.lacks, session.core_hz()) == ("it is old", None)


@pytest.mark.parametrize(("function", "device", "kernel", "result"), [
    (UserFunction(lambda x: np.exp(x * 0), abs), ("numpy", "cpu"), None, 1), (UserFunction(lambda x: pandas.Series(x)[0]), ("numpy", "cpu"), "pandas", -3),
    (UserFunction(lambda xp, x: xp.abs(x)), ("numpy", "cpu"), "its own", 3), (UserFunction(np.negative, lambda x: x), ("cupy", "gpu"), None, -3),
    (UserFunction(np.negative, of_numba), ("cupy", "gpu"), "numba", ""), (UserFunction(np.negative, of_cupy), ("cupy", "gpu"), "its own", ""),
    (UserFunction(lambda xp, x: x), ("cupy", "gpu"), "its own", "")])  # fmt: skip
def test_a_launch_calls_the_program_of_its_side_and_is_named_by_its_library(
    cupy, function, device, kernel, result
):
    session, asked = session_of(function, *device)
    waited, buffer = [], session.allocate((), "float32")
    function.wait, buffer.value = waited.append, -3
    launch, again = (session.compile(NO_OP, ALONE, [buffer], None) for _ in range(2))
    assert (launch.kernel_name, again is launch) == (kernel, True)
    others = [
        session.compile(NO_OP, msgspec.structs.replace(ALONE), [buffer], None),
        session.compile(NO_OP, ALONE, [ObjectBuffer()], None),
    ]
    assert ([launch is other for other in others], len(asked), asked[0][1:]) == ([False] * 2, 3, ([], None))
    if result != "":
        first, second = (asked[0][0](np) for _ in range(2))
        assert (first.value, second.value, waited) == (None, result, [result] * 2)
    session.free(buffer)
    assert (buffer.value, session.allocate((), "float32") is buffer) == (None, True)


@pytest.mark.torch
@pytest.mark.parametrize(("function", "records"), [
    (UserFunction(lambda xp, x: x), False), (UserFunction(lambda xp, x: x, gradients=True), True), (UserFunction(id, id), True)])  # fmt: skip
def test_gradients_are_recorded_where_a_function_says_so_and_for_pairs(function, records):
    import torch

    session, asked = session_of(function, "torch")
    on, buffer, host = [], session.allocate((), "float32"), torch.ones(2)
    function.wait = lambda result: on.append(torch.is_grad_enabled())
    for given in (np.ones(2), host, 3):
        session.upload(buffer, given)
        assert (type(buffer.value), buffer.value is given) == (
            (torch.Tensor, False) if hasattr(given, "dtype") else (int, True)
        )
    session.compile(NO_OP, ALONE, [buffer], None)
    with torch.no_grad():
        asked[0][0](torch)
    assert on == [records]


@pytest.mark.parametrize(("function", "error", "ends"), [
    (UserFunction(abs), RuntimeError("element 0 does not require grad"), "; say gradients=True"), (UserFunction(abs, abs), ValueError("no"), "ValueError: no"),
    (UserFunction(abs, abs), TypeError("no"), "; say to_gpu= if the GPU's program takes other arrays"), (UserFunction(abs), TypeError("no"), "TypeError: no"),
    (UserFunction(abs, abs, to_gpu=abs), TypeError("no"), "TypeError: no")])  # fmt: skip
def test_an_error_of_a_call_says_which_option_may_help(function, error, ends):
    with pytest.raises(Unsupported) as refused, Translated(function):
        raise error
    assert refused.value.detail.endswith(ends)


def test_a_reference_that_is_refused_says_so_and_one_that_fails_when_nudged_changes_nothing():
    def narrow(x):
        assert x.dtype == np.float32
        return x

    def thrice(x, calls=[]):  # noqa: B006
        calls.append(x)
        return x if len(calls) < 3 else 1 / 0

    inputs = [np.linspace(0, 1, 9, dtype=np.float32)]
    with pytest.raises(
        Unsupported, match="for the reference, with float64 inputs, it raises AssertionError"
    ) as refused:
        answer(UserFunction(narrow), inputs, "float32")
    assert (refused.value.reason, "gpubench.stays" in refused.value.hint) == ("bad-function", True)
    want, allowed = answer(function := UserFunction(thrice), inputs, "float32")
    assert allow_condition(function, inputs, "float32", want, allowed) == allowed
    hidden = type("Hidden", (), {"__array__": lambda *_, **__: 1 + ""})()
    assert [shares_memory(x, inputs[0]) for x in (inputs[0][2:], inputs[0].copy(), hidden)] == [
        True,
        False,
        False,
    ]


def told_of(source, name, **more):
    """The description of a function that a child has tried."""
    shown = [Shown("x", [[(64, 64)]], [(64, 256)])]
    about = Description(source, name, "", "", shown, shown, [], [(64, 1e-3)], 64, 256, ["float64", "float32"])
    return [replace(about, **more)]


TURNS = [  # of each source: how its child ends, and what it has said by then
    {"a": (7, trial.TrialReport(told_of("a", "late", own_inputs=True), known=["early", "late", "dies"], trying="dies")),
     "b": (None, trial.TrialReport(told_of("b", "x"), known=["x", "slow"], trying="slow")),
     "c": (-6, trial.TrialReport(partial=told_of("c", "p", pair=True, inputs=[])[0], known=["p"], trying="p")),
     "d": (0, trial.TrialReport(told_of("d", "g", untraced="sorts"), wrong={"h": "no"}, known=["g", "h"], trying=None)), "e": (7, None)},
    {"a": (0, trial.TrialReport(told_of("a", "early", operations=1), known=["early", "late", "dies"], trying=None)),
     "b": (None, trial.TrialReport(known=["x", "slow"], trying="slow")), "c": (0, trial.TrialReport(known=["p"], trying=None)),
     "e": (0, trial.TrialReport(told_of("e", "f", operations=1), known=["f"], trying=None))},
    {"b": (0, trial.TrialReport(known=["x", "slow"], trying=None))},
]  # fmt: skip


@pytest.mark.parametrize(
    ("cpus", "together"),
    [
        (8, [["a", "e"], ["b"], ["c"], ["d"]]),
        (2, [["a", "c", "e"], ["b", "d"]]),
        (None, [["a", "b", "c", "d", "e"]]),
    ],
)
def test_children_try_files_side_by_side_until_all_is_told(monkeypatch, tmp_path, cpus, together):
    turns, asked, ops, turn = iter(TURNS), [], [], {}

    def run_all(commands):
        groups = [msgspec.json.decode(command[-1], type=list[trial.TrialRequest]) for command, _ in commands]
        asked.append(
            [
                ([(request.source.name, request.skip) for request in group], limit_s)
                for group, (_, limit_s) in zip(groups, commands, strict=True)
            ]
        )
        turn.update(next(turns))
        for group in groups:
            ends = [turn[request.source.name] for request in group]
            reports = [report for _, report in ends if report is not None]
            yield processes.Ended(ends[0][0], msgspec.json.encode(reports).decode(), "", 1.0)

    monkeypatch.setattr(processes, "run_all", lambda commands: list(run_all(commands)))
    monkeypatch.setattr(sources.os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(
        sources,
        "add_to_manifest",
        lambda source, functions: ops.append((source.name, [f.name for f in functions])),
    )
    monkeypatch.setattr(
        sources.kernels, "add_functions", lambda name, made: ops.append((name, [op.dtypes for op in made]))
    )
    places = []
    for name in "abcde":
        (tmp_path / f"{name}.py").write_text("", encoding="utf-8")
        places.append(sources.CodePlace(str(tmp_path / f"{name}.py"), ""))
    if (
        cpus != 8
    ):  # the children of a group end together, so that what a script of one says is no more than its groups
        with contextlib.suppress(Exception):
            sources.declare(places)
        assert [[name for name, _ in group] for group, _ in asked[0]] == together
        return
    assert sources.declare(places) == ["a.early", "a.late", "b.x", "c.p", "d.g", "e.f"]
    assert [[(name, skip) for name, skip in group] for group, _ in asked[0]] == [
        [(name, []) for name in group] for group in together
    ]
    assert [limit_s for _, limit_s in asked[0]] == [120.0, 60.0, 60.0, 60.0]
    assert [dict(group) for group, _ in asked[1]] == [
        {"a": ["dies", "late"]},
        {"b": ["x"]},
        {"c": ["p"]},
        {"e": []},
    ]
    assert asked[2] == [([("b", ["slow", "x"])], 60.0)]
    assert ops[:2] == [("a", ["early", "late"]), ("a", [("float32",)] * 2)]
    left_out = [(note.code, note.message) for note in sources.notes(["a.late", "b.x", "c.p", "d.g"])]
    assert left_out == [
        ("bad-function", "dies is left out: its first call ended the process, which exited with status 7"),
        ("not-compiled", "measured as written: late ()"), ("own-sizes", "late takes x (n)"),
        ("bad-function", "slow is left out: its first call did not end within 60 s"), ("not-compiled", "measured as written: x ()"),
        ("own-sizes", "p takes no inputs (arguments with a default get some by inputs= alone), so n changes nothing"), ("bad-function", "h is left out: no"), ("not-compiled", "measured as written: g (sorts)"),
    ]  # fmt: skip
