"""A formula of scalars, traced once and written as WGSL, CUDA C++ and Python.

    lambda m, x: 1 / (1 + m.exp(-x))

`m` is an array library or, while the formula is traced, a namespace of symbols. Each operation becomes a step.
The steps give the text in each language, the number of operations for an element, and a bound on the error by
rounding. This bound is the tolerance of a user's function.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from gpubench.kernels.contract.op import Array, Tolerance

# The error of each step that the tolerance allows, in units of round-off: WebGPU requires less accuracy than a
# host's library has.
UNITS = 64.0
# Most steps of a formula. A longer trace comes from an unrolled loop, and its text would take minutes to compile.
MOST_STEPS = 500
# A depth of nested parentheses that every compiler accepts. A value that is nested deeper gets a name.
_DEEPEST = 20
# Relative step of the finite differences by which the growth of a rounding error is estimated.
_DIFFERENCE = 2.0**-26

# Operators by the name of the function, with their precedence.
_OPERATORS = {"add": ("+", 2), "subtract": ("-", 2), "multiply": ("*", 3), "divide": ("/", 3)}
_COMPARISONS = {
    "less": ("<", 1), "greater": (">", 1), "less_equal": ("<=", 1), "greater_equal": (">=", 1),
    "equal": ("==", 1), "not_equal": ("!=", 1),
}  # fmt: skip
_LOGICAL = ("logical_and", "logical_or")
_UNARY = (
    "exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "erf",
)  # fmt: skip
# Functions that round at most once, in any precision. WGSL has no other function in float64.
_CHOICES = {"maximum": ">", "minimum": "<"}
_EXACT = ("abs", "negative", "where", "fma", *_CHOICES, *_OPERATORS, *_COMPARISONS, *_LOGICAL)
# NumPy's older names, and its names for functions that have other names in the array API.
_ALIASES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "fabs": "abs", "absolute": "abs", "true_divide": "divide",
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "e": math.e}
# NumPy's types, which make a number of a number.
_TYPES = ("float16", "float32", "float64")

# WGSL texts of functions that the language lacks, or whose error bound there says nothing near 0 (log, tanh) or is
# far from float32's precision (asin, acos, atan). Most polynomials are those of Cephes' single-precision library.
# That of tanh, below 0.625, is fitted at Chebyshev nodes (0.08 u); above 10, tanh has rounded to 1. erf is a
# polynomial (1 ulp) up to 0.93, and 1 minus a power of e above.
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
_WGSL_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "log": (
        _WGSL_LOG_NEAR,
        "fn log_accurate(x: f32) -> f32 { return select(log(x), log_near(x - 1.0), x > 0.7072 && x < 1.4142); }",
    ),
    "log1p": (
        _WGSL_LOG_NEAR,
        "fn log1p_accurate(x: f32) -> f32 { return select(log(1.0 + x), log_near(x), x > -0.2928 && x < 0.4142); }",
    ),
    "asin": (
        _WGSL_ASIN_NEAR,
        """fn asin_accurate(x: f32) -> f32 {
  let far = 1.57079633 - 2.0 * asin_near(sqrt(0.5 * (1.0 - abs(x))));
  return select(sign(x) * far, asin_near(x), abs(x) <= 0.5);
}""",
    ),
    "acos": (
        _WGSL_ASIN_NEAR,
        """fn acos_accurate(x: f32) -> f32 {
  let far = 2.0 * asin_near(sqrt(0.5 * (1.0 - abs(x))));
  return select(select(far, 3.14159265 - far, x < 0.0), 1.57079633 - asin_near(x), abs(x) <= 0.5);
}""",
    ),
    "atan": (
        """fn atan_accurate(x: f32) -> f32 {
  let a = abs(x);
  let far = a > 2.41421356;
  let middle = a > 0.41421356;
  let t = select(select(a, (a - 1.0) / (a + 1.0), middle), -1.0 / a, far);
  let z = t * t;
  let p = fma(fma(fma(8.05374449538e-2, z, -1.38776856032e-1), z, 1.99777106478e-1), z, -3.33329491539e-1);
  let start = select(select(0.0, 0.785398163, middle), 1.57079633, far);
  return sign(x) * (start + fma(p * z, t, t));
}""",
    ),
    "expm1": (
        """fn expm1_accurate(x: f32) -> f32 {
  let series = x * fma(x, fma(x, fma(x, fma(x, 0.00833333333, 0.0416666667), 0.166666667), 0.5), 1.0);
  return select(exp(x) - 1.0, series, abs(x) < 0.125);
}""",
    ),
    "tanh": (
        """fn tanh_accurate(x: f32) -> f32 {
  let z = x * x;
  let series = fma(fma(fma(fma(-0.00570404252, z, 0.0206378615), z, -0.0537391565), z, 0.133314318), z, -0.333332813);
  let a = select(abs(x), 10.0, abs(x) > 10.0);
  let far = sign(x) * (1.0 - 2.0 / (exp(2.0 * a) + 1.0));
  return select(far, fma(x * z, series, x), abs(x) < 0.625);
}""",
    ),
    "erf": (
        """fn erf_accurate(x: f32) -> f32 {
  let t = abs(x);
  let z = x * x;
  var far = fma(fma(-1.72853470e-5, t, 3.83197126e-4), z, fma(-3.88396438e-3, t, 2.42546219e-2));
  far = fma(fma(fma(far, t, -1.06777877e-1), t, -6.34846687e-1), t, -1.28717512e-1);
  far = sign(x) * (1.0 - exp(fma(far, t, -t)));
  var near = fma(fma(fma(-5.96761703e-4, z, 4.99119423e-3), z, -2.67681349e-2), z, 1.12819925e-1);
  near = fma(fma(fma(near, z, -3.76125336e-1), z, 1.28379166e-1), x, x);
  return select(near, select(far, sign(x), t > 4.0), t > 0.927734375);
}""",
    ),
    "pow": (
        """fn pow_accurate(x: f32, y: f32) -> f32 {
  let power = select(pow(abs(x), y), 1.0, y == 0.0);
  let odd = fract(0.5 * y) != 0.0;
  return select(power, select(log(x), select(power, -power, odd), fract(y) == 0.0), x < 0.0);
}""",
    ),
}


class Language(NamedTuple):
    """The texts of one language. Each {} is replaced by an operand."""

    number: str  # format of a number
    step: str  # format of the statement that defines a step, with its name and its value
    functions: dict[str, str]  # formats of calls that the language writes differently
    both: str = "&&"  # sign for `and`
    either: str = "||"  # sign for `or`


_CHOICE = {"abs": "fabs({0})", "where": "select({0}, {1}, {2})"}
_ACCURATE = {name: f"{name}_accurate({{0}})" for name in _WGSL_FUNCTIONS} | {"pow": "pow_accurate({0}, {1})"}
_LANGUAGES = {
    # vectors have no && and ||
    "wgsl": Language("{}", "let {} = {};", {"where": "select({2}, {1}, {0})", **_ACCURATE}, "&", "|"),
    "cuda": Language("real({})", "const auto {} = {};", _CHOICE),
    "python": Language("real({})", "{} = {}", _CHOICE, "and", "or"),
}  # fmt: skip


class Untraceable(Exception):
    """The error for a function that is no formula of scalars. Its text follows the function's name in a sentence,
    as "loops over an array" does."""


class Symbol:
    """A scalar of a formula: an input, with its name as `call` and without operands, or a step, with the name of a
    function as `call` and with symbols and floats as operands."""

    __array_ufunc__ = None  # NumPy's numbers leave an operation to the symbol
    __slots__ = ("call", "operands")

    def __init__(self, call: str, operands: tuple[Any, ...] = ()) -> None:
        self.call, self.operands = call, operands

    def __pow__(self, exponent: Any) -> Any:
        return _power(self, exponent)

    def __rpow__(self, base: Any) -> Symbol:
        return _step("pow", base, self)

    def __neg__(self) -> Symbol:
        return _step("negative", self)

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return _step("abs", self)

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"uses .{name} of an array")


def _refuse(why: str) -> Any:
    raise Untraceable(why)


# No `partialmethod`: it sets an attribute at each call, and a function that sets one is not compiled.
for _name, _word in (
    ("bool", "asks whether an array is true (if, and, or, while)"), ("iter", "loops over an array"),
    ("getitem", "takes elements of an array by index"), ("len", "asks for the length of an array"),
    ("float", "makes a plain number of an array"),
    ("reduce_ex", "copies an array, or sends it to another process"),
):  # fmt: skip
    setattr(Symbol, f"__{_name}__", lambda self, *operands, why=_word: _refuse(why))
for _name, _word in zip(
    ("add", "sub", "mul", "truediv", "lt", "gt", "le", "ge", "eq", "ne", "and", "or"),
    (*_OPERATORS, *_COMPARISONS, *_LOGICAL), strict=True,
):  # fmt: skip
    setattr(Symbol, f"__{_name}__", lambda self, other, call=_word: _step(call, self, other))
    if _word not in _COMPARISONS:
        setattr(Symbol, f"__r{_name}__", lambda self, other, call=_word: _step(call, other, self))


def _operand(value: Any) -> Any:
    """Return a symbol unchanged and a finite number as a float, or raise Untraceable."""
    if isinstance(value, Symbol):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise Untraceable(f"mixes arrays with an object of type {type(value).__name__}") from None
    if not math.isfinite(number):
        raise Untraceable(f"holds the number {number}")
    return number


def _is_truth(value: Any) -> bool:
    return isinstance(value, Symbol) and value.call in (*_COMPARISONS, *_LOGICAL)


def _truth(value: Any) -> Symbol:
    """Return a truth value unchanged, or the step that tests whether a number is not 0."""
    return value if _is_truth(value) else Symbol("not_equal", (_operand(value), 0.0))


def _number_of(value: Any) -> Any:
    """Return a number unchanged, or the step that makes 1 or 0 of a truth value."""
    return Symbol("where", (value, 1.0, 0.0)) if _is_truth(value) else _operand(value)


def _step(call: str, *values: Any) -> Symbol:
    """Return a step. As in NumPy, a sum of truth values is their `or`, and a product their `and`."""
    if all(map(_is_truth, values)):
        call = {"add": "logical_or", "multiply": "logical_and"}.get(call, call)
        if call not in _LOGICAL:
            raise Untraceable(f"calls {call} for truth values alone")
    return Symbol(call, tuple(map(_truth if call in _LOGICAL else _number_of, values)))


def _power(base: Any, exponent: Any) -> Any:
    """Return a power: by products for a small whole exponent, by a root for 0.5, else by `pow`."""
    base, exponent = _number_of(base), _number_of(exponent)
    if isinstance(exponent, Symbol) or not isinstance(base, Symbol):
        return _step("pow", base, exponent)
    if exponent == 0.5:
        return _step("sqrt", base)
    if exponent != int(exponent) or not 1 <= abs(exponent) <= 16:
        return _step("pow", base, exponent)
    power, bits, square = None, abs(int(exponent)), base
    while bits:
        if bits & 1:
            power = square if power is None else power * square  # type: ignore[operator]
        bits >>= 1
        square = square * square if bits else square  # type: ignore[operator]
    assert power is not None
    return power if exponent > 0 else _step("divide", 1, power)


class Namespace:
    """The stand-in for the array library while a formula is traced."""

    def __getattr__(self, name: str) -> Any:
        name = _ALIASES.get(name, name)
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _TYPES:
            return float
        if name in _MADE:
            return _MADE[name]
        if name not in (*_UNARY, *_EXACT):
            raise Untraceable(f"calls {name}")
        return partial(_call, name)


def _call(name: str, *values: Any) -> Any:
    """Return a step, or the number that a function has for a number."""
    if name in _UNARY and not isinstance(values[0], Symbol):
        return getattr(math, name)(*values)
    return _step(name, *values)


def _where(condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, Symbol):
        return a if condition else b
    choice = Symbol("where", (_truth(condition), _number_of(a), _number_of(b)))
    return _truth(choice) if _is_truth(a) and _is_truth(b) else choice


def _limit(name: str, a: Any, b: Any) -> Symbol:
    """Return the step of a commutative function such as `maximum`, with a number as the second operand."""
    return _step(name, a, b) if isinstance(a, Symbol) else _step(name, b, a)


_MADE: dict[str, Callable[..., Any]] = {
    **{name: partial(_limit, name) for name in _CHOICES},
    "clip": lambda x, low, high: _limit("minimum", _limit("maximum", x, low), high),
    "square": lambda x: (number := _number_of(x)) * number,
    "pow": _power,
    "power": _power,
    "reciprocal": lambda x: 1 / x,
    "exp2": lambda x: _step("pow", 2, x),
    "log2": lambda x: _step("log", x) * (1 / math.log(2)),  # type: ignore[operator]
    "log10": lambda x: _step("log", x) * (1 / math.log(10)),  # type: ignore[operator]
    "where": _where,
}
# All functions that a formula may call.
KNOWN = (*_UNARY, *_EXACT, *_MADE)


class Formula(msgspec.Struct, frozen=True, eq=False):
    """A formula of scalars, divided into steps."""

    names: tuple[str, ...]  # names of the inputs
    steps: tuple[Symbol, ...]  # steps, each of which is computed from earlier ones
    result: Symbol  # value of the formula

    @staticmethod
    def of(result: Symbol, names: Sequence[str] = ()) -> Formula:
        """Return the formula of a value. Its inputs are the symbols that the value is computed from: first those
        in `names`, in this order."""
        steps = order(result)
        values = [operand for step in steps for operand in step.operands if isinstance(operand, Symbol)]
        made_of = dict.fromkeys(x.call for x in (*values, result) if not x.operands)
        return Formula(tuple(dict.fromkeys((*(x for x in names if x in made_of), *made_of))), steps, result)

    @property
    def operations(self) -> int:
        """The number of operations for an element, one for each step."""
        return len(self.steps)

    @property
    def jumps(self) -> bool:
        """Whether a comparison chooses between two values."""
        return "where" in self.functions

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions that the formula calls, each once."""
        return tuple(dict.fromkeys(step.call for step in self.steps))

    @property
    def exact(self) -> bool:
        """Whether each step rounds at most once. WGSL can compute only such formulas in float64."""
        return set(self.functions) <= {*_EXACT}

    @property
    def moved(self) -> str | None:
        """The input that the formula returns unchanged, or None if it computes something."""
        return None if self.steps else self.result.call

    def statements(self, language: str, last: str, number: str = "") -> str:
        """Return the lines that compute the formula. The last line is `last`, with the value in place of `{}`.
        `number` is the format of a number, by default the language's."""
        lines, value = self._write(_LANGUAGES[language], number)
        return "\n".join([*lines, last.format(value)])

    def wgsl(self, name: str, kind: str, number: str = "") -> str:
        """Return the text of the WGSL function `name` whose arguments have the type `kind`: f32, f64, or a
        vector of them."""
        arguments = ", ".join(f"{x}: {kind}" for x in self.names)
        return f"fn {name}({arguments}) -> {kind} {{ {self.statements('wgsl', 'return {};', number)} }}"

    def cuda(self, name: str) -> str:
        """Return the text of the CUDA function `name`, whose arguments are the formula's inputs."""
        arguments = ", ".join(f"real {x}" for x in self.names)
        lines = self.statements("cuda", "return {};")
        return f"__device__ __forceinline__ real {name}({arguments}) {{ {lines} }}"

    def wgsl_functions(self) -> list[str]:
        """Return the texts of the f32 functions that the formula calls and WGSL lacks. They take single numbers,
        not vectors."""
        return list(dict.fromkeys(text for name in self.functions for text in _WGSL_FUNCTIONS.get(name, ())))

    def on_arrays(self, formula: Callable[..., Array]) -> Callable[..., Array]:
        """Return `formula`, the function that was traced, as one that works on the arrays of any library."""
        if not {"erf", "fma"} & {*self.functions}:
            return formula
        # NumPy lacks erf and fma
        return lambda xp, *inputs, **params: formula(Arrays(xp), *inputs, **params)

    def _write(self, language: Language, number: str) -> tuple[list[str], str]:
        """Return a line for each step that is used twice or nested deeply, and the text of the result."""
        uses = Counter(id(operand) for step in self.steps for operand in step.operands)
        # The text of a maximum contains its operands twice.
        uses.update(id(operand) for step in self.steps for operand in step.operands if step.call in _CHOICES)
        # For each step: its text, its precedence (5 for a name), and the depth of its parentheses.
        texts: dict[int, tuple[str, int, int]] = {}
        lines: list[str] = []

        def text(operand: Any) -> tuple[str, int, int]:
            if not isinstance(operand, Symbol):
                words = (number or language.number).format(_number(operand, language))
                return words, 4 if operand < 0 else 5, 0
            return texts[id(operand)] if operand.operands else (operand.call, 5, 0)

        for step in self.steps:
            operands = [text(operand) for operand in step.operands]
            words, tight = _spell(
                step.call, operands, language, number=not isinstance(step.operands[-1], Symbol)
            )
            depth = 1 + max(deep for _, _, deep in operands)
            if step is not self.result and (uses[id(step)] > 1 or depth > _DEEPEST):
                name = f"step_{len(lines)}"
                lines.append(language.step.format(name, words))
                words, tight, depth = name, 5, 0
            texts[id(step)] = words, tight, depth
        return lines, text(self.result)[0]

    def tolerance(self) -> Tolerance:
        """Return a tolerance: a first-order bound on the error if each step rounds. Near a jump, the values of
        both sides pass."""

        def scale(xp: Array, *inputs: Array) -> Array:
            return self._spread(xp, inputs, 0.0)

        def slack(xp: Array, u: float, *inputs: Array) -> Array:
            return UNITS * u * (self._spread(xp, inputs, u) - self._spread(xp, inputs, 0.0))

        return Tolerance(UNITS, scale=scale, slack=slack if self.jumps else None)

    def _spread(self, xp: Array, inputs: Sequence[Array], u: float) -> Array:
        """Return a first-order bound on the result's error, in units of round-off. A round-off `u` may turn
        comparisons."""
        spreads: dict[str, tuple[Array, Array]] = {
            name: (x, xp.zeros_like(x)) for name, x in zip(self.names, inputs, strict=True)
        }

        def of(operand: Any) -> tuple[Array, Array]:
            if not isinstance(operand, Symbol):
                return operand, abs(operand)  # it may have no exact place in the dtype
            return spreads[_key(operand)]

        for step in self.steps:
            values, errors = zip(*map(of, step.operands), strict=True)
            value = _compute(xp, step.call, values)
            if step.call in _COMPARISONS:  # True where round-off may turn it
                error = xp.abs(values[0] - values[1]) <= UNITS * u * (errors[0] + errors[1] + xp.abs(values[0]))
            elif step.call in _LOGICAL:
                error = errors[0] | errors[1]
            elif step.call == "where":
                error = xp.where(values[0], errors[1], errors[2])
                # the height of a jump, where a round-off of `u` may turn the condition
                if u:
                    error = xp.where(errors[0], error + xp.abs(values[1] - values[2]) / (UNITS * u), error)
            else:
                # the step's rounding, and the effects of its operands' errors
                error = sum((_growth(xp, step.call, values, *at) for at in enumerate(errors)), xp.abs(value))
            spreads[_key(step)] = value, error
        value, error = spreads[_key(self.result)]
        return error if self.steps else xp.abs(value)


class Arrays:
    """An array library with the functions of formulas that NumPy lacks."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """Return a b + c, rounded twice."""
        return a * b + c

    def erf(self, x: Array) -> Array:
        """Return erf(x), by PyTorch, by cupyx for CuPy, or by Python for each number (NumPy)."""
        if hasattr(self._xp, "erf"):
            return self._xp.erf(x)
        if self._xp.__name__ == "cupy":
            from cupyx.scipy.special import erf

            return erf(x)
        return self._xp.asarray(self._xp.frompyfunc(math.erf, 1, 1)(x), x.dtype)


def _key(value: Symbol) -> str:
    """Return the name of an input, or a unique name for a step."""
    return f"step {id(value)}" if value.operands else value.call


def _number(value: float, language: Language) -> str:
    """Return the text of a number, without `.0` if the language states its type."""
    return repr(value) if language.number == "{}" else repr(value).removesuffix(".0")


def _spell(
    call: str, operands: Sequence[tuple[str, int, int]], language: Language, *, number: bool
) -> tuple[str, int]:
    """Return the text and the precedence of a step. `number`: its last operand is a constant."""
    words = [word for word, _, _ in operands]
    if call in _CHOICES:
        a, b = words
        # a constant is never NaN
        if number:
            lost, order = {">": "<", "<": ">"}[_CHOICES[call]], (b, a)
            return language.functions["where"].format(f"{a} {lost} {b}", *order), 5
        is_a = f"({a} {_CHOICES[call]} {b}) {language.either} ({a} != {a})"
        return language.functions["where"].format(is_a, a, b), 5
    if call in language.functions:
        return language.functions[call].format(*words), 5
    if call == "negative":
        return f"-{_inside(operands[0], 5)}", 4
    if call in _LOGICAL:
        sign = language.both if call == "logical_and" else language.either
        return f"({_inside(operands[0], 2)} {sign} {_inside(operands[1], 2)})", 5
    if spelling := _OPERATORS.get(call) or _COMPARISONS.get(call):
        sign, tight = spelling
        return f"{_inside(operands[0], tight + (tight == 1))} {sign} {_inside(operands[1], tight + 1)}", tight
    return f"{call}({', '.join(words)})", 5


def _inside(operand: tuple[str, int, int], least: int) -> str:
    """Return the text of an operand, in parentheses if its precedence is lower than `least`."""
    word, tight, _ = operand
    return word if tight >= least else f"({word})"


def _compute(xp: Array, call: str, values: Sequence[Any]) -> Array:
    """Return the value of a step on arrays."""
    old = {name: older for older, name in _ALIASES.items() if older.startswith("arc")} | {"pow": "power"}
    return getattr(Arrays(xp), old.get(call, call))(*values)


def _growth(xp: Array, call: str, values: Sequence[Any], i: int, error: Array) -> Array:
    """Return the change of a step's result if operand `i` changes by a small `error`."""
    # a negative number to a power counts as a positive one
    if call == "pow":
        values = (xp.abs(values[0]), values[1])
    value = _compute(xp, call, values)

    def change(by: float) -> Array:
        moved = _compute(xp, call, [v + by * error if i == k else v for k, v in enumerate(values)])
        return xp.where(moved == value, 0.0, xp.abs(moved - value)) / _DIFFERENCE

    # in the other direction where the operand would leave the function's domain
    up = change(_DIFFERENCE)
    return xp.where(xp.isnan(up), change(-_DIFFERENCE), up) if xp.isnan(up).any() else up


def trace(function: Callable[..., Any], names: Sequence[str]) -> Formula:
    """Call the function once with symbols and return its formula. Raises Untraceable if it does anything that a
    formula cannot express, returns no single number, or takes more than MOST_STEPS steps."""
    try:
        result = function(Namespace(), *map(Symbol, names))
    except Untraceable:
        raise
    except RecursionError:
        raise Untraceable("is too long") from None
    except Exception as error:
        if "__array_ufunc__" in str(error):
            raise Untraceable("calls NumPy itself in place of the array library") from None
        raise Untraceable(
            f"takes no symbols ({type(error).__name__}: {' '.join(str(error).split())[:80]})"
        ) from None
    if not isinstance(result, Symbol):
        what = "several results" if isinstance(result, tuple | list) else type(result).__name__
        raise Untraceable(f"returns {what}, not one array")
    if _is_truth(result):
        raise Untraceable("returns truth values")
    steps = order(result)
    if len(steps) > MOST_STEPS:
        raise Untraceable(f"has {len(steps)} steps; {MOST_STEPS} are compiled at most")
    return Formula(tuple(names), steps, result)


def require_formula(op: str, function: Callable[..., Any], names: Sequence[str]) -> Formula:
    """Return the trace of an op's formula. If it cannot be traced, raises ValueError with the reason and the calls
    that are allowed."""
    try:
        return trace(function, names)
    except Untraceable as error:
        raise ValueError(f"the formula of {op} {error}; it may call {', '.join(KNOWN)}") from None


def order(result: Symbol) -> tuple[Symbol, ...]:
    """Return the steps from which the result is computed, each after its operands."""
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
