"""Each function that a formula may call, in the two languages that this machine compiles: within the formula's bound."""

import numpy as np
import pytest

from gpubench import backends
from gpubench.kernels import elementwise
from gpubench.kernels.templates.formula import KNOWN, Arrays, trace
from gpubench.result.case import Case
from tests.judging import compare

pytestmark = pytest.mark.vulkan

FORMULAS = {
    **{name: lambda m, x, name=name: getattr(m, name)(x) for name in KNOWN},
    **{name: lambda m, x, name=name: getattr(m, name)(x, 0.4 - x) for name in ("add", "subtract", "multiply", "divide")},
    **{name: lambda m, x, name=name: getattr(m, name)(x, 0.4) for name in ("maximum", "minimum", "pow", "power")},
    **{
        name: lambda m, x, name=name: m.where(getattr(m, name)(x, 0.4), x, 2 * x)
        for name in ("less", "greater", "less_equal", "greater_equal", "equal", "not_equal")
    },
    "logical_and": lambda m, x: m.where((x > 0.3) & (x < 0.6), x, 2 * x),
    "logical_or": lambda m, x: m.where((x < 0.3) | (x > 0.6), x, 2 * x),
    "where": lambda m, x: m.where(x > 0.5, x, 1 - x),
    "fma": lambda m, x: m.fma(x, x, 0.25),
    "clip": lambda m, x: m.clip(x, 0.3, 0.6),
    "between two": lambda m, x: m.maximum(x, 1 - x),
    "a power of itself": lambda m, x: x**x + 2**x + x**-3,
}  # fmt: skip
WIDE = {
    "erf": (lambda m, x: m.erf(x), np.linspace(-6, 6, 1001)),
    "a negative base": (lambda m, x: m.pow(x - 0.5, m.where(x > 2, 3, 2)), np.arange(-8, 8)),
    "0 ** 0": (lambda m, x: m.pow(x, x), np.arange(8)),
}


def op_of(name, formula):
    traced = trace(formula, ["x"])
    return elementwise(
        name=name, group="vector", summary="", inputs=("x",), flops_per_element=1, formula=formula,
        tolerance=traced.tolerance(), expr=lambda xp, x: formula(Arrays(xp), x),
    )  # fmt: skip


def close(session, name, formula, x) -> None:
    op, x = op_of(name, formula), x.astype(np.float32)
    case = Case(name, "vector", {"n": x.size}, "float32", "tuned", "resident-queued", session.device.id)
    buffer, output = session.allocate(x.shape, "float32"), session.allocate(x.shape, "float32")
    session.upload(buffer, x)
    launch = session.compile(op, case, [buffer], output)
    session.run(launch)
    session.sync()
    got = np.empty_like(x)
    session.download(launch.output, got)
    wide = x.astype(np.float64)
    scale = op.tolerance.scale(np, wide)
    if op.tolerance.slack:
        scale = scale + op.tolerance.slack(np, 2.0**-24, wide) / (op.tolerance.units * 2.0**-24)
    found = compare(op, "float32", got, op.exact()(np, wide), scale)
    assert found.ok, found


def total(m, x):
    values = [formula(m, x) for formula in FORMULAS.values()]
    for value in values[1:]:
        values[0] = values[0] + value
    return values[0]


INSIDE = np.linspace(0.05, 0.95, 1003)


@pytest.mark.parametrize("name", ["log", "log1p", "asin", "acos", "atan", "expm1", "tanh", "erf", "pow"])
def test_what_wgsl_lacks_is_as_accurate_as_its_host(session, name) -> None:
    close(session, name, FORMULAS[name], INSIDE)


@pytest.mark.parametrize("name", WIDE)
def test_wgsl_has_it_everywhere(session, name) -> None:
    close(session, f"wide {name}", *WIDE[name])


@pytest.mark.parametrize("backend", ["wgpu", "numpy"])
def test_both_languages_have_all_of_them(session, backend) -> None:
    if backend == "wgpu":
        close(session, "total", total, INSIDE)
        return
    numpy = backends.load("numpy").open("numpy:0", 1, autotune=False)
    try:
        close(numpy, "total", total, INSIDE)
    finally:
        numpy.close()
