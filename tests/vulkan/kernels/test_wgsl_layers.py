"""Kernels of layers in WGSL against float64, and each function that a formula may call: shapes that fill no group, no block and no whole number of units."""

import msgspec
import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.kernels import elementwise, linear
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.templates import winograd
from gpubench.kernels.templates.formula import KNOWN, Arrays, trace
from gpubench.kernels.templates.matmul import Tile, few_rows, wgsl
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import WAITED, Case
from tests.judging import compare
from tests.shapes import CACHES, ROWS_OF_CLASSES
from tests.vulkan.computing import check_program, of_op

pytestmark = pytest.mark.vulkan
LINEAR = [kernels.load(name) for name in kernels.groups()["layers"] if name.startswith("linear")]
GRAD = kernels.load("linear_grad_relu")
NORMED = kernels.load(
    "norm_linear"
)  # of the others the epilogue alone is another, which tests/conformance tries
CONVOLUTION = kernels.load("conv2d")
DTYPES = ("float32", "float64", "float16")


def candidates(session, op, params, dtype):
    if dtype != "float32" and not getattr(session.limits, dtype):
        pytest.skip(f"the adapter has no {dtype} in shaders")
    return op.kernel("wgpu", dtype).candidates(params, dtype, session.limits)


# Weights that are turned and those that are not in every dtype; the other layers differ from the first in the epilogue alone.
@pytest.mark.parametrize(("op", "dtype"), [
    (op, dtype) for op in LINEAR for dtype in DTYPES if dtype == "float32" or op in (LINEAR[0], GRAD)
], ids=lambda value: getattr(value, "name", value))  # fmt: skip
def test_few_rows(session, op, dtype):
    shapes = [(3, 256, 256), (5, 10, 33), (1, 256, 1024), (16, 257, 5), (1, 1, 1), (13, 8, 10)]
    for n, m, k in shapes if op is LINEAR[0] and dtype == "float32" else shapes[:2]:
        params = {"n": n, "m": m, "k": k}
        every = candidates(session, op, params, dtype)
        (program,) = (one.build() for one in every if one.name == few_rows.NAME)
        check_program(session, op, program, params, dtype)


# Rows that no thread shares with another, shorter and longer than a group, odd ones, and some that no group holds. In other
# dtypes the last four: whole and odd vectors, rows of several steps, and ends of every kernel.
ROWS = [
    (1, 1, 1), (1, 5, 255), (2, 8, 257), (4, 12, 31), (2, 4, 20_000), (16, 12, 256), (17, 5, 257), (1000, 8, 12),
    (1, 768, 256), (3, 33, 300), (1, 40, 4099), (7, 10, 3),
]  # fmt: skip


def kinds(session, params, dtype):
    """Programs of few rows and of a tile: other tiles differ in what the layer alone has to do with."""
    found = candidates(session, NORMED, params, dtype)
    return [one.build() for one in {one.name == few_rows.NAME: one for one in reversed(found)}.values()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_product(session, dtype):
    """Also where the mean is far from 0 and the deviation small, which one pass over the row would lose."""
    alone, every = set(), dtype == "float32"
    for n, m, k in ROWS if every else ROWS[-4:]:
        params = {"n": n, "m": m, "k": k}
        inputs = random_inputs(NORMED, params, dtype, seed=3)
        for offset in (0, 100) if dtype == "float32" else (0,):
            inputs[0] += np.asarray(offset, dtype)
            for program in kinds(session, params, dtype):
                check_program(session, NORMED, program, params, dtype, inputs)
                alone |= {k} if len(program.passes) == 1 else set()
    assert ({1, 31, 256, 257, 300} if every else {256, 300}) <= alone, "these rows a group holds"
    assert 20_000 not in alone


@pytest.mark.parametrize("several", ["slices", "splits"])
def test_an_epilogue_is_applied_to_whole_sums(session, several):
    op, params = kernels.load("linear_gelu"), {"n": 18, "m": 20, "k": 64}
    product = linear.product(("x", "w"), False, linear.GELU, params, "float32")
    program = wgsl.program(product, session.limits, Tile(16, 16, 8, 4, 4, **{several: 2}))
    check_program(session, op, program, params, "float32")


@pytest.mark.parametrize(("n", "m", "k"), [(3, 33, 300), (7, 10, 3)])  # of ROWS: nothing is compiled again
def test_a_row_that_is_no_number_spoils_no_other_one(session, n, m, k):
    params = {"n": n, "m": m, "k": k}
    for value in (np.nan, np.inf, -np.inf):
        inputs = random_inputs(NORMED, params, "float32", seed=3)
        inputs[0][0, k - 1] = value
        for program in kinds(session, params, "float32"):
            got = of_op(session, NORMED, program, params, "float32", inputs)
            assert np.isnan(got[0]).all(), program.passes
            assert np.isfinite(got[1:]).all(), program.passes


@pytest.mark.parametrize(("n", "classes"), ROWS_OF_CLASSES)
def test_ties_go_to_the_lowest_place(session, n, classes):
    """Few values, so that each row has several largest ones; and rows of minus infinity alone."""
    op = kernels.load("argmax")
    case = Case("argmax", op.group, {"n": n, "classes": classes}, "float32", "tuned", WAITED, session.device.id)
    z = np.random.default_rng(n).integers(-3, 3, (n, classes)).astype(np.float32)
    z[::3] = -np.inf
    given, found = session.allocate(z.shape, "float32"), session.allocate((n,), "int32")
    got = np.full(n, -1, np.int32)
    session.upload(given, z)
    session.run(session.compile(op, case, [given], found))
    session.download(found, got)
    np.testing.assert_array_equal(got, np.argmax(z, axis=-1))


@pytest.mark.parametrize("params", CACHES, ids=str)
def test_a_token_over_a_cache(session, tmp_path, params):
    op = kernels.load("attention_append")
    halves = session.limits.float16 and params["n"] in (300, 40)  # rows of whole vectors, of single elements
    for dtype in ("float32", *["float16"] * halves):
        case = Case(op.name, op.group, params, dtype, "tuned", WAITED, session.device.id)
        workspace = Workspace(session, op, case, 1, "random", tmp_path)
        gate(workspace, case, lambda phase: None)
        workspace.release()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_winograds_products(session, dtype):
    """One number of each, no whole chunk, odd sides, two blocks of filters, several of tiles."""
    if dtype == "float16" and not session.limits.float16:
        pytest.skip("the adapter has no float16 in shaders")
    for shape in [(1, 1, 1, 1), (3, 3, 5, 7), (5, 5, 65, 9), (2, 67, 130, 33), (7, 8, 64, 2)]:
        params = dict(zip(("n", "channels", "filters", "side"), shape, strict=True))
        program = winograd.wgsl_program(*shape, dtype, session.limits)
        inputs = random_inputs(CONVOLUTION, params, dtype, seed=3)
        check_program(session, CONVOLUTION, program, params, dtype, inputs)


GPU = Limits(
    max_buffer_bytes=2**32, max_binding_bytes=2**31, max_workgroup_bytes=49152, max_workgroup_threads=1024,
    float16=True, float64=True,
)  # fmt: skip


@pytest.mark.parametrize(("n", "dtype", "less", "tried"), [
    (256, "float32", {}, True), (1, "float32", {}, False), (256, "float64", {}, False),
    (256, "float32", {"max_workgroup_bytes": 32768}, False), (256, "float32", {"max_workgroup_threads": 256}, False),
    (256, "float32", {"software": True}, False),
])  # fmt: skip
def test_where_winograds_products_are_tried_first_and_where_not_at_all(n, dtype, less, tried):
    (kernel,) = CONVOLUTION.tuned["wgpu"]
    names = [one.name for one in kernel.candidates({"n": n}, dtype, msgspec.structs.replace(GPU, **less))]
    assert (names[0] == winograd.NAME, winograd.NAME in names) == (tried, tried)


# ---------------------------------------------------------------------- functions, in the two languages that this machine compiles


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


def within_bound(session, name, formula, x) -> None:
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
    within_bound(session, name, FORMULAS[name], INSIDE)


@pytest.mark.parametrize("name", WIDE)
def test_wgsl_has_it_everywhere(session, name) -> None:
    within_bound(session, f"wide {name}", *WIDE[name])


@pytest.mark.parametrize("backend", ["wgpu", "numpy"])
def test_both_languages_have_all_of_them(session, backend) -> None:
    if backend == "wgpu":
        within_bound(session, "total", total, INSIDE)
        return
    numpy = backends.load("numpy").open("numpy:0", 1, autotune=False)
    try:
        within_bound(numpy, "total", total, INSIDE)
    finally:
        numpy.close()
