"""A formula of scalars, traced once and written as WGSL, CUDA C++ and Python.

    lambda m, x: 1 / (1 + m.exp(-x))

`m` is an array library or, while the formula is traced, a namespace of symbols. Each operation becomes a step. The
steps give the text of a function `formula` in each language, the number of operations of an element, and the bound of
what rounding does to the result, by which the result is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpubench.kernels.contract.op import Array, Tolerance

# An element passes within so many roundings of each step: WebGPU asks less of a function than a host's library gives.
UNITS = 64.0
# A trace that is longer than this was unrolled by a loop: its text would take minutes to compile.
MOST_STEPS = 500
# The step of the differences that tell how far a rounding error grows, as a share of the value.
_DIFFERENCE = 2.0**-26

_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_COMPARISONS = {
    "less": "<", "greater": ">", "less_equal": "<=", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip
_UNARY = (
    "exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "abs",
)  # fmt: skip
# NumPy's older names, and what other functions are made of.
_ALIASES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "fabs": "abs", "absolute": "abs", "true_divide": "divide",
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "e": math.e}

# WGSL text of functions that the language lacks, or whose bound there says nothing near 0 (log, tanh) or is far from
# float32's precision (asin, acos, atan). Polynomials of Cephes' single-precision library.
_WGSL_LOG_NEAR = """fn log_near(z: f32) -> f32 {
  var p = fma(fma(fma(7.0376836292e-2, z, -1.1514610310e-1), z, 1.1676998740e-1), z, -1.2420140846e-1);
  p = fma(fma(fma(p, z, 1.4249322787e-1), z, -1.6668057665e-1), z, 2.0000714765e-1);
  p = fma(fma(p, z, -2.4999993993e-1), z, 3.3333331174e-1);
  return fma(z * z, fma(p, z, -0.5), z);
}"""
_WGSL_ASIN_NEAR = """fn asin_near(x: f32) -> f32 {
  let z = x * x;
  let p = fma(fma(fma(4.2163199048e-2, z, 2.4181311049e-2), z, 4.5470025998e-2), z, 7.4953002686e-2);
  return fma(fma(p, z, 1.6666752422e-1) * z, x, x);
}"""
_WGSL_FUNCTIONS = {
    "log": f"""{_WGSL_LOG_NEAR}
fn log_accurate(x: f32) -> f32 {{ return select(log(x), log_near(x - 1.0), x > 0.7072 && x < 1.4142); }}""",
    "log1p": f"""{_WGSL_LOG_NEAR}
fn log1p(x: f32) -> f32 {{ return select(log(1.0 + x), log_near(x), x > -0.2928 && x < 0.4142); }}""",
    "asin": f"""{_WGSL_ASIN_NEAR}
fn asin_accurate(x: f32) -> f32 {{
  let far = 1.57079633 - 2.0 * asin_near(sqrt(0.5 * (1.0 - abs(x))));
  return select(sign(x) * far, asin_near(x), abs(x) <= 0.5);
}}""",
    "acos": f"""{_WGSL_ASIN_NEAR}
fn acos_accurate(x: f32) -> f32 {{
  let far = 2.0 * asin_near(sqrt(0.5 * (1.0 - abs(x))));
  return select(select(far, 3.14159265 - far, x < 0.0), 1.57079633 - asin_near(x), abs(x) <= 0.5);
}}""",
    "atan": """fn atan_accurate(x: f32) -> f32 {
  let a = abs(x);
  let far = a > 2.41421356;
  let middle = a > 0.41421356;
  let t = select(select(a, (a - 1.0) / (a + 1.0), middle), -1.0 / a, far);
  let z = t * t;
  let p = fma(fma(fma(8.05374449538e-2, z, -1.38776856032e-1), z, 1.99777106478e-1), z, -3.33329491539e-1);
  let start = select(select(0.0, 0.785398163, middle), 1.57079633, far);
  return sign(x) * (start + fma(p * z, t, t));
}""",
    "expm1": """fn expm1(x: f32) -> f32 {
  let series = x * fma(x, fma(x, fma(x, fma(x, 0.00833333333, 0.0416666667), 0.166666667), 0.5), 1.0);
  return select(exp(x) - 1.0, series, abs(x) < 0.125);
}""",
    "tanh": """fn tanh_accurate(x: f32) -> f32 {
  let z = x * x;
  let series = fma(fma(fma(fma(-0.00570404252, z, 0.0206378615), z, -0.0537391565), z, 0.133314318), z, -0.333332813);
  let a = select(abs(x), 10.0, abs(x) > 10.0);
  let far = sign(x) * (1.0 - 2.0 / (exp(2.0 * a) + 1.0));
  return select(far, fma(x * z, series, x), abs(x) < 0.625);
}""",
}
_SPELLING = {
    "wgsl": {
        "where": "select({2}, {1}, {0})",
        "log1p": "log1p({0})",
        "expm1": "expm1({0})",
        **{name: f"{name}_accurate({{0}})" for name in ("log", "asin", "acos", "atan", "tanh")},
    },
    "cuda": {"abs": "fabs({0})", "where": "select({0}, {1}, {2})"},
    "python": {"abs": "fabs({0})", "where": "select({0}, {1}, {2})"},
}
_NUMBER = {"wgsl": "{}", "cuda": "real({})", "python": "real({})"}
# What the compiled module of the CPU has by itself; all else comes from `math`, which numba compiles.
_NATIVE = ("exp", "tanh", "abs")


class Untraceable(Exception):
    """Why a function is no formula of scalars: a part of a sentence whose subject is the function."""


class Symbol:
    """A scalar of a formula: an input or a number (no operands), or a step of a function and its operands."""

    __array_ufunc__ = None  # NumPy's numbers leave an operation to the symbol
    __slots__ = ("call", "operands")

    def __init__(self, call: str, operands: tuple[Any, ...] = ()) -> None:
        self.call, self.operands = call, operands

    def __pow__(self, exponent: Any) -> Symbol:
        return _power(self, exponent)

    def __neg__(self) -> Symbol:
        return Symbol("negative", (self,))

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return Symbol("abs", (self,))

    def __bool__(self) -> bool:
        raise Untraceable("asks whether an array is true (if, and, or, while)")

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"uses .{name} of an array")

    def __getitem__(self, index: Any) -> Any:
        raise Untraceable("takes elements of an array by index")

    def __iter__(self) -> Any:
        raise Untraceable("loops over an array")

    def __len__(self) -> int:
        raise Untraceable("asks for the length of an array")

    def __float__(self) -> float:
        raise Untraceable("makes a plain number of an array")


def _method(name: str, *, swapped: bool = False) -> Callable[[Symbol, Any], Symbol]:
    def method(self: Symbol, other: Any) -> Symbol:
        operands = (_operand(other), self) if swapped else (self, _operand(other))
        return Symbol(name, operands)

    return method


for _name, _word in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide")):
    setattr(Symbol, f"__{_name}__", _method(_word))
    setattr(Symbol, f"__r{_name}__", _method(_word, swapped=True))
for _name, _word in zip(("lt", "gt", "le", "ge", "eq", "ne"), _COMPARISONS, strict=True):
    setattr(Symbol, f"__{_name}__", _method(_word))
for _name, _word in (("and", "logical_and"), ("or", "logical_or")):
    setattr(Symbol, f"__{_name}__", _method(_word))


def _operand(value: Any) -> Any:
    """Return a symbol as it is, and a number as a float. Raises Untraceable."""
    if isinstance(value, Symbol):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise Untraceable(f"mixes arrays with a {type(value).__name__}") from None
    if not math.isfinite(number):
        raise Untraceable(f"holds the number {number}")
    return number


def _power(base: Symbol, exponent: Any) -> Symbol:
    """A whole power as products, and half a one as a root. Raises Untraceable for another exponent."""
    if exponent == 0.5:
        return Symbol("sqrt", (base,))
    if isinstance(exponent, Symbol) or exponent != int(exponent) or not 1 <= abs(exponent) <= 16:
        raise Untraceable(f"has a power that is no whole number ({exponent!r})")
    power, bits, square = None, abs(int(exponent)), base
    while bits:
        if bits & 1:
            power = square if power is None else power * square  # type: ignore[operator]
        bits >>= 1
        square = square * square if bits else square  # type: ignore[operator]
    assert power is not None
    return power if exponent > 0 else Symbol("divide", (1.0, power))


class _Namespace:
    """Stands for the array library while a formula is traced."""

    def __getattr__(self, name: str) -> Any:
        name = _ALIASES.get(name, name)
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _MADE:
            return _MADE[name]
        functions = (*_UNARY, *_OPERATORS, *_COMPARISONS, "logical_and", "logical_or", "negative", "where")
        if name not in functions:
            raise Untraceable(f"calls xp.{name}")
        return lambda *operands: Symbol(name, tuple(map(_operand, operands)))


def _where(condition: Any, a: Any, b: Any) -> Symbol:
    return Symbol("where", (condition, _operand(a), _operand(b)))


def _of_larger(a: Any, b: Any) -> Symbol:
    a, b = _operand(a), _operand(b)
    return _where(Symbol("greater", (a, b)), a, b)


def _of_smaller(a: Any, b: Any) -> Symbol:
    a, b = _operand(a), _operand(b)
    return _where(Symbol("less", (a, b)), a, b)


_MADE: dict[str, Callable[..., Any]] = {
    "maximum": _of_larger,
    "minimum": _of_smaller,
    "clip": lambda x, low, high: _of_smaller(_of_larger(x, low), high),
    "square": lambda x: x * x,
    "pow": lambda x, exponent: x**exponent,
    "power": lambda x, exponent: x**exponent,
    "reciprocal": lambda x: 1 / x,
    "log2": lambda x: Symbol("log", (x,)) * (1 / math.log(2)),  # type: ignore[operator]
    "log10": lambda x: Symbol("log", (x,)) * (1 / math.log(10)),  # type: ignore[operator]
    "where": _where,
}


class Formula(NamedTuple):
    """The steps of a formula in their order, the last of which is the result, and the names of its inputs."""

    names: tuple[str, ...]
    steps: tuple[Symbol, ...]

    @property
    def operations(self) -> int:
        """Operations of an element: each step counts as one."""
        return len(self.steps)

    @property
    def jumps(self) -> bool:
        """Whether a comparison chooses."""
        return any(step.call == "where" for step in self.steps)

    @property
    def call(self) -> str:
        """The expression that calls `formula`, the same in each language."""
        return f"formula({', '.join(self.names)})"

    def wgsl(self) -> str:
        """Text of `formula` and of what it calls, in f32."""
        texts = "\n".join(text for name, text in _WGSL_FUNCTIONS.items() if self._calls(name))
        for shared in (_WGSL_LOG_NEAR, _WGSL_ASIN_NEAR):  # once
            first, found, rest = texts.partition(shared)
            texts = first + found + rest.replace(shared, "")
        lines, result = self._write("wgsl", "  let {} = {};")
        head = f"fn formula({', '.join(f'{name}: f32' for name in self.names)}) -> f32 {{"
        return "\n".join([texts, head, *lines, f"  return {result};", "}"])

    def cuda(self) -> str:
        """Text of `formula` in `real`; a condition is a bool."""
        lines, result = self._write("cuda", "  const auto {} = {};")
        head = f"__device__ __forceinline__ real formula({', '.join(f'real {name}' for name in self.names)}) {{"
        return "\n".join([head, *lines, f"  return {result};", "}"])

    def python(self) -> str:
        """Text of `formula` for a compiled module of the CPU."""
        called = [name for name in _UNARY if self._calls(name) and name not in _NATIVE]
        lines, result = self._write("python", "    {} = {}")
        head = ["@scalar", f"def formula({', '.join(self.names)}):"]
        imports = [f"from math import {', '.join(called)}"] if called else []
        return "\n".join([*imports, "", *head, *lines, f"    return {result}"])

    def _calls(self, name: str) -> bool:
        return any(step.call == name for step in self.steps)

    def _write(self, language: str, line: str) -> tuple[list[str], str]:
        """A line for each step but the last, and the text of the result."""
        texts = {name: name for name in self.names}
        lines = []

        def text(operand: Any) -> str:
            if not isinstance(operand, Symbol):
                return _NUMBER[language].format(repr(operand))
            return texts[operand.call] if not operand.operands else texts[_key(operand)]

        for number, step in enumerate(self.steps):
            words = _spell(step.call, [text(operand) for operand in step.operands], language)
            texts[_key(step)] = f"step_{number}"
            lines.append(line.format(f"step_{number}", words))
        return lines, text(self.result) if self.steps else self.names[0]

    @property
    def result(self) -> Symbol:
        return self.steps[-1]

    def tolerance(self) -> Tolerance:
        """A first-order bound of what rounding each step does to the result; next to a jump either side is right."""

        def scale(xp: Array, *inputs: Array) -> Array:
            return self._spread(xp, inputs, 0.0)

        def slack(xp: Array, u: float, *inputs: Array) -> Array:
            return UNITS * u * (self._spread(xp, inputs, u) - self._spread(xp, inputs, 0.0))

        return Tolerance(UNITS, scale=scale, slack=slack if self.jumps else None)

    def _spread(self, xp: Array, inputs: Sequence[Array], u: float) -> Array:
        """The absolute error of the result, in roundings: of each step its own and those of its operands, as far as
        they reach it. With `u`, the round-off, a choice between values that round-off may swap counts the other one.
        """
        spreads: dict[str, tuple[Array, Array]] = {
            name: (x, xp.zeros_like(x)) for name, x in zip(self.names, inputs, strict=True)
        }

        def of(operand: Any) -> tuple[Array, Array]:
            if not isinstance(operand, Symbol):
                return operand, abs(operand)  # it may have no exact place in the dtype
            return spreads[operand.call] if not operand.operands else spreads[_key(operand)]

        for step in self.steps:
            values, errors = zip(*map(of, step.operands), strict=True)
            value = _compute(xp, step.call, values)
            if step.call in _COMPARISONS:  # True where round-off may swap it
                error = xp.abs(values[0] - values[1]) <= UNITS * u * (errors[0] + errors[1] + xp.abs(values[0]))
            elif step.call in ("logical_and", "logical_or"):
                error = errors[0] | errors[1]
            elif step.call == "where":
                error = xp.where(values[0], errors[1], errors[2])
                if u:
                    error = xp.where(errors[0], error + xp.abs(values[1] - values[2]) / (UNITS * u), error)
            else:
                error = xp.abs(value)
                for i, reach in enumerate(errors):
                    moved = [v + _DIFFERENCE * reach if i == k else v for k, v in enumerate(values)]
                    error = error + xp.abs(_compute(xp, step.call, moved) - value) / _DIFFERENCE
            spreads[_key(step)] = value, error
        return spreads[_key(self.result)][1] if self.steps else xp.abs(inputs[0])


def _key(step: Symbol) -> str:
    return f"step {id(step)}"


def _spell(call: str, operands: Sequence[str], language: str) -> str:
    if call == "negative":
        return f"(-{operands[0]})"
    if call in ("logical_and", "logical_or"):
        word = call.removeprefix("logical_") if language == "python" else {"logical_and": "&&"}.get(call, "||")
        return f"({operands[0]} {word} {operands[1]})"
    sign = _OPERATORS.get(call) or _COMPARISONS.get(call)
    if sign:
        return f"({operands[0]} {sign} {operands[1]})"
    return _SPELLING[language].get(call, call + "({0})").format(*operands)


def _compute(xp: Array, call: str, values: Sequence[Any]) -> Array:
    """The step on arrays, by NumPy's names."""
    old = {name: older for older, name in _ALIASES.items() if older.startswith("arc")}
    return getattr(xp, old.get(call, call))(*values)


def trace(function: Callable[..., Any], names: Sequence[str]) -> Formula:
    """Call the function once with symbols. Raises Untraceable where it is no formula of its inputs."""
    try:
        result = function(_Namespace(), *map(Symbol, names))
    except Untraceable:
        raise
    except RecursionError:
        raise Untraceable("is too long") from None
    except Exception as error:
        if "__array_ufunc__" in str(error):
            raise Untraceable("calls NumPy itself in place of its first argument") from None
        raise Untraceable(
            f"takes no symbols ({type(error).__name__}: {' '.join(str(error).split())[:80]})"
        ) from None
    if not isinstance(result, Symbol):
        what = "several results" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise Untraceable(f"returns {what}, not one array")
    if result.call in (*_COMPARISONS, "logical_and", "logical_or"):
        raise Untraceable("returns truth values")
    steps = _order(result)
    if len(steps) > MOST_STEPS:
        raise Untraceable(f"has {len(steps)} steps; {MOST_STEPS} are compiled at most")
    return Formula(tuple(names), steps)


def _order(result: Symbol) -> tuple[Symbol, ...]:
    """The steps that the result needs, each after its operands."""
    steps: dict[int, Symbol] = {}
    waiting: list[tuple[Symbol, bool]] = [(result, False)]
    while waiting:
        step, ready = waiting.pop()
        if not step.operands or id(step) in steps:
            continue
        if ready:
            steps[id(step)] = step
        else:
            waiting.append((step, True))
            waiting += [(operand, False) for operand in step.operands if isinstance(operand, Symbol)]
    return tuple(steps.values())
