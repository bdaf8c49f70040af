"""Vector ops: copy, add, sub, mul, div, saxpy, chain, dot, pow and pow_int.

Each element is read and written once, so all are bound by memory. `copy` does nothing else: it is the peak that the
others are held to. The library implementation of `chain` pays one temporary array, its tuned implementation is a single
pass. The divisor of `div` is drawn from a normal distribution, where an exact 0 is rarer than among uniform values. A
power is exp(y log x): twenty times the work of a product. One whose exponent is a known integer is a few products, of
which the compiled kernels make as few as squaring allows; array libraries take the general way, but for a square."""

from __future__ import annotations

from gpubench.kernels.contract.op import EXACT, Array, Operand, Params, Range, Tolerance
from gpubench.kernels.templates.elementwise import absolute_sum, elementwise, vector_shape
from gpubench.kernels.templates.reduce import reduction

_A = 2.5  # exact in every dtype, and no power of two: the product has to be rounded


def _dot_scale(xp: Array, x: Array, y: Array) -> Array:
    """The product of the two vectors' norms."""
    return xp.sqrt(x @ x) * xp.sqrt(y @ y)


_LARGEST_POWER = 16  # beyond it the compiled kernels take the general power too


def _has_products(params: Params) -> str | None:
    exponent = params.get("exponent", 3)
    if 1 <= exponent <= _LARGEST_POWER:
        return None
    return f"the exponent is {exponent}; pow_int takes 1 to {_LARGEST_POWER}, pow any real one"


def _count_products(params: Params) -> int:
    """Return the products of a power by squaring."""
    exponent = params.get("exponent", 3)
    return exponent.bit_length() - 1 + exponent.bit_count() - 1


OPS = (
    elementwise(
        name="copy",
        group="vector",
        summary="out = x",
        inputs=("x",),
        flops_per_element=0,
        formula=lambda m, x: x,
        expr=lambda xp, x: x.copy(),
        library={"torch": lambda torch, x, out: out.copy_(x)},
        tolerance=EXACT,
    ),
    elementwise(
        name="add",
        group="vector",
        summary="out = x + y",
        inputs=("x", "y"),
        flops_per_element=1,
        formula=lambda m, x, y: x + y,
        library={"torch": lambda torch, x, y, out=None: torch.add(x, y, out=out)},
        tolerance=Tolerance(4, scale=absolute_sum),
    ),
    elementwise(
        name="sub",
        group="vector",
        summary="out = x - y",
        inputs=("x", "y"),
        flops_per_element=1,
        formula=lambda m, x, y: x - y,
        library={"torch": lambda torch, x, y, out: torch.sub(x, y, out=out)},
        tolerance=Tolerance(4, scale=absolute_sum),
    ),
    elementwise(
        name="mul",
        group="vector",
        summary="out = x * y",
        inputs=("x", "y"),
        flops_per_element=1,
        formula=lambda m, x, y: x * y,
        library={"torch": lambda torch, x, y, out: torch.mul(x, y, out=out)},
        tolerance=Tolerance(4),
    ),
    elementwise(
        name="div",
        group="vector",
        summary="out = x / y",
        inputs=("x", Operand("y", vector_shape, values="normal")),
        flops_per_element=1,
        formula=lambda m, x, y: x / y,
        library={"torch": lambda torch, x, y, out: torch.div(x, y, out=out)},
        tolerance=Tolerance(6, why="Vulkan and WGSL allow a quotient 2.5 ULP, which is up to 5 u"),
        not_finite="the divisor can be 0",
    ),
    elementwise(
        name="saxpy",
        group="vector",
        summary="out = 2.5 * x + y",
        inputs=("x", "y"),
        flops_per_element=2,
        formula=lambda m, x, y: m.fma(_A, x, y),
        expr=lambda xp, x, y: _A * x + y,
        library={"torch": lambda torch, x, y, out: torch.add(y, x, alpha=_A, out=out)},
        tolerance=Tolerance(4, scale=lambda xp, x, y: absolute_sum(xp, _A * x, y)),
    ),
    elementwise(
        name="chain",
        group="vector",
        summary="out = (a + b) * c",
        inputs=("a", "b", "c"),
        flops_per_element=2,
        formula=lambda m, a, b, c: (a + b) * c,
        library={"torch": lambda torch, a, b, c, out: torch.mul(torch.add(a, b, out=out), c, out=out)},
        tolerance=Tolerance(4, scale=lambda xp, a, b, c: absolute_sum(xp, a * c, b * c)),
    ),
    reduction(
        name="dot",
        group="vector",
        summary="out = x[0] y[0] + ... + x[n - 1] y[n - 1]",
        inputs=("x", "y"),
        flops_per_element=2,
        blas=("numpy", "torch"),
        formula=lambda m, x, y: x * y,
        join="add",
        expr=lambda xp, x, y: x @ y,
        tolerance=Tolerance(8, scale=_dot_scale),
        library={"torch": lambda torch, x, y, out: torch.dot(x, y, out=out)},
    ),
    elementwise(
        name="pow",
        group="math",
        summary="out = x ** y",
        inputs=(Operand("x", vector_shape, values=Range(0.25, 4)), "y"),
        flops_per_element=20,
        formula=lambda m, x, y: m.pow(x, y),
        library={"torch": lambda torch, x, y, out: torch.pow(x, y, out=out)},
        # What the logarithm is wrong by counts y times.
        tolerance=Tolerance(16, scale=lambda xp, x, y: x**y * (1 + xp.abs(y * xp.log(x)))),
    ),
    elementwise(
        name="pow_int",
        group="math",
        summary="out = x ** exponent, an integer (3)",
        inputs=("x",),
        options={"exponent": f"the integer exponent, 1 to {_LARGEST_POWER} (3)"},
        takes=("exponent",),
        fits=_has_products,
        flops_per_element=_count_products,
        formula=lambda m, x, exponent=3: x**exponent,
        library={"torch": lambda torch, x, out, exponent=3: torch.pow(x, exponent, out=out)},
        # Each product rounds once, and squaring doubles what is wrong so far: one rounding less than the exponent.
        tolerance=Tolerance(2 * _LARGEST_POWER),
    ),
)
