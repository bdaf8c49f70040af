"""The WGSL templates by themselves: every dtype, any length and row, windows, tails that leave the rest alone."""

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.kernels import matmul, transpose
from gpubench.kernels.contract.kernel import Limits, WgslProgram
from gpubench.kernels.contract.op import UNIT_ROUNDOFF
from gpubench.kernels.templates import elementwise, reduce
from gpubench.kernels.templates.formula import trace
from tests.vulkan.computing import computed, of_op

pytestmark = pytest.mark.vulkan

DTYPES = ("float32", "float16", "float64")
LENGTHS = (1, 3, 4, 5, 8, 9, 17, 256, 257, 4099, 65537)


def by_element(formula, *names):
    """`build(n, dtype, limits)` of the formula for each element."""
    traced = trace(formula, names)
    return lambda n, *rest: elementwise.build_wgsl(traced, n, *rest)


def folded(join, formula, *names):
    """`build(n, dtype, limits)` of the join of all elements."""
    traced = trace(formula, names)
    return lambda n, *rest: reduce.build_wgsl(traced, join, {"n": n}, *rest)


ADD, COPY = by_element(lambda m, x, y: x + y, "x", "y"), by_element(lambda m, x: x, "x")
SUM, DOT = folded("add", lambda m, x: x, "x"), folded("add", lambda m, x, y: x * y, "x", "y")
MAX = folded("maximum", lambda m, x: x, "x")


def chosen(m, x, y):
    return m.where(((x > -0.5) & (y < 0.5)) | (x > y), m.maximum(x, y), -1)


def logarithm(m, x, y):
    return m.log1p(x * x) * y


WEBGPU = {"max_workgroup_threads": 256, "max_workgroup_bytes": 16384}


def able(session, dtype: str, **changes: int) -> Limits:
    """The device's limits with some of them lowered; skips where it lacks the dtype."""
    if dtype != "float32" and not getattr(session.limits, dtype):
        pytest.skip(f"the adapter has no {dtype} in shaders")
    return msgspec.structs.replace(session.limits, **changes)


def values(shape, dtype: str, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def launch(session, program: WgslProgram, inputs: dict[str, np.ndarray], shape) -> np.ndarray:
    return computed(session, program, inputs, shape, next(iter(inputs.values())).dtype.name)


def close(got, want, dtype: str, units: float, scale) -> None:
    # Results below the smallest normal half are multiples of its last bit.
    least = 2.0**-24 if dtype == "float16" else 1e-300
    assert np.all(np.abs(got.astype(np.float64) - want) <= units * UNIT_ROUNDOFF[dtype] * scale + least)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_of_any_length(session, dtype):
    limits = able(session, dtype)
    for n in (*LENGTHS, 2**21 + 5):
        x, y = values(n, dtype), values(n, dtype, 2)
        got = launch(session, ADD(n, dtype, limits), {"x": x, "y": y}, (n,))
        wide = x.astype(np.float64) + y
        close(got, wide, dtype, 2, np.abs(x.astype(np.float64)) + np.abs(y))
        assert launch(session, COPY(n, dtype, limits), {"x": x}, (n,)).tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_of_any_length(session, dtype):
    limits = able(session, dtype)
    for n in (*LENGTHS, 2**20 + 3):
        x, y = values(n, dtype), values(n, dtype, 2)
        wide, other = x.astype(np.float64), y.astype(np.float64)
        close(launch(session, SUM(n, dtype, limits), {"x": x}, ()), wide.sum(), dtype, 4, np.abs(wide).sum())
        got = launch(session, DOT(n, dtype, limits), {"x": x, "y": y}, ())
        close(got, wide @ other, dtype, 4, np.abs(wide * other).sum())
        assert launch(session, MAX(n, dtype, limits), {"x": x}, ()) == x.max()
        for formula in (chosen, logarithm)[: (n in LENGTHS) * (1 + (dtype != "float64"))]:
            got = launch(session, folded("add", formula, "x", "y")(n, dtype, limits), {"x": x, "y": y}, ())
            close(got, formula(np, wide, other).sum(), dtype, 64, np.abs(formula(np, wide, other)).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_follows_numpy_at_infinities_and_nan(session, dtype):
    limits = able(session, dtype)
    for n in (1, 3, 9, 1000, 100_003):
        program = MAX(n, dtype, limits)
        x = np.full(n, -np.inf, dtype)
        assert launch(session, program, {"x": x}, ()) == -np.inf
        x[n // 2] = np.inf
        assert launch(session, program, {"x": x}, ()) == np.inf
        for place in {0, n // 3, n - 1}:
            x[:] = values(n, dtype)
            x[place] = np.nan
            assert np.isnan(launch(session, program, {"x": x}, ())), (n, place)


COLUMNS = (1, 3, 4, 8, 36, 255, 1000, 1024, 1025, 4099, 10240, 40_000)


def along_rows(name: str, rows: int, columns: int, dtype: str, limits: Limits) -> WgslProgram:
    kernel = kernels.load(name).kernel("wgpu", dtype)
    return kernel.build({"n": rows * columns, "columns": columns}, dtype, limits)


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(("dtype", "lowered"), [*((dtype, {}) for dtype in DTYPES), ("float32", WEBGPU)])
def test_softmax_and_its_derivative_along_rows_of_any_length(session, dtype, lowered):
    limits = able(session, dtype, **lowered)
    for columns in COLUMNS if dtype == "float32" else COLUMNS[1::2]:
        rows = 3 if columns > 2000 else 67
        y, dy = values((rows, columns), dtype), values((rows, columns), dtype, 2)
        wide, other = y.astype(np.float64), dy.astype(np.float64)
        product = wide * other
        want = wide * (other - product.sum(-1, keepdims=True))
        scale = np.abs(wide) * (np.abs(other) + np.abs(product).sum(-1, keepdims=True))
        program = along_rows("softmax_grad", rows, columns, dtype, limits)
        got = launch(session, program, {"y": y, "dy": dy}, y.shape)
        close(got, want, dtype, 8, scale)
        if dtype == "float64":
            continue
        x = (8 * y).astype(dtype)
        got = launch(session, along_rows("softmax", rows, columns, dtype, limits), {"x": x}, x.shape)
        # Half of the smallest float16 is what any of its results may be off by.
        want = softmax_of(x.astype(np.float64))
        close(got, want, dtype, 64, want + (2.0**-24 if dtype == "float16" else 0))


@pytest.mark.parametrize("columns", [6, 8, 10240, 40_001])
def test_softmax_shifts_by_the_largest_and_keeps_minus_infinity_out(session, columns):
    limits = able(session, "float32", **WEBGPU)
    x = np.full((4, columns), -np.inf, np.float32)
    x[0, -1] = x[0, 0] = 1e30
    x[1, -2:] = 5
    x[2, 1] = np.nan
    got = launch(session, along_rows("softmax", 4, columns, "float32", limits), {"x": x}, x.shape)
    assert got[0, [0, -1]].tolist() == got[1, -2:].tolist() == [0.5, 0.5]
    assert not np.any(got[0, 1:-1])
    assert not np.any(got[1, :-2])
    assert np.isnan(got[2:]).all()  # a NaN; nothing but -inf: as in NumPy


@pytest.mark.parametrize(("dtype", "lowered"), [*((dtype, {}) for dtype in DTYPES), ("float16", WEBGPU)])
def test_transpose_of_any_sides(session, dtype, lowered):
    limits = able(session, dtype, **lowered)
    for m, n in ((1, 1), (1, 257), (257, 1), (8, 1000), (1000, 8), (136, 264), (33, 31), (36, 100)):
        x = values((m, n), dtype)
        got = launch(session, transpose.build_wgsl(m, n, dtype, limits), {"x": x}, (n, m))
        assert got.tobytes() == x.T.tobytes(), (m, n)


@pytest.mark.parametrize(("m", "n"), [(1003, 8), (8, 1003), (1000, 8), (8, 1000)])
def test_a_grid_too_long_for_one_dimension_goes_on_in_another(session, m, n):
    limits = able(session, "float32", max_groups_per_dimension=6)
    x = values((m, n), "float32")
    program = transpose.build_wgsl(m, n, "float32", limits)
    assert program.passes[0].grid[2] > 1
    assert launch(session, program, {"x": x}, (n, m)).tobytes() == x.T.tobytes()
    y = values(200_003, "float32")
    got = launch(session, COPY(5000, "float32", limits), {"x": y[:5000].copy()}, (5000,))
    assert got.tobytes() == y[:5000].tobytes()
    assert launch(session, MAX(y.size, "float32", limits), {"x": y}, ()) == y.max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemv_of_any_sides(session, dtype):
    limits = able(session, dtype)
    sides = [
        (1, 1), (1, 8), (3, 7), (5, 64), (1000, 64), (300, 1), (2, 100_000), (1, 65_537), (257, 257), (40_000, 24),
        (100_003, 3), (2064, 1024),
    ]  # fmt: skip
    for m, n in sides if dtype == "float32" else sides[1::2]:
        a, x = values((m, n), dtype), values(n, dtype, 2)
        wide, other = a.astype(np.float64), x.astype(np.float64)
        got = launch(session, matmul.build_wgsl(m, n, dtype, limits), {"a": a, "x": x}, (m,))
        close(got, wide @ other, dtype, 4, np.linalg.norm(wide, axis=1) * np.linalg.norm(other))


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_of_a_small_binding_give_the_same_results(session, dtype):
    limits = able(session, dtype, max_binding_bytes=40_000)
    n = 70_001
    x, y = values(n, dtype), values(n, dtype, 2)
    program = ADD(n, dtype, limits)
    assert len(program.passes) > 3
    assert (
        launch(session, program, {"x": x, "y": y}, (n,)).tobytes()
        == launch(session, ADD(n, dtype, session.limits), {"x": x, "y": y}, (n,)).tobytes()
    )
    program = MAX(n, dtype, limits)
    x[-1] = 2
    assert launch(session, program, {"x": x}, ()) == 2
    n = 200_003  # past what one group takes
    x, y = values(n, dtype), values(n, dtype, 2)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    program = DOT(n, dtype, limits)
    assert len(program.passes) > 5
    close(launch(session, program, {"x": x, "y": y}, ()), wide @ other, dtype, 4, np.abs(wide * other).sum())


@pytest.mark.parametrize("columns", [100, 1001])
def test_rows_are_cut_between_windows_and_not_within(session, columns):
    limits = able(session, "float32", max_binding_bytes=300_000)
    rows = 400_000 // columns
    x = values((rows, columns), "float32")
    program = along_rows("softmax", rows, columns, "float32", limits)
    assert len(program.passes) > 3
    got = launch(session, program, {"x": x}, x.shape)
    close(got, softmax_of(x.astype(np.float64)), "float32", 64, softmax_of(x.astype(np.float64)))


def test_arrays_past_the_devices_own_binding(session):
    x = np.resize(values(1 << 16, "float32"), 34 * 2**20 + 7)  # 136 MiB: past llvmpipe's and WebGPU's 128 MiB
    x[-1] = 3
    assert np.array_equal(launch(session, COPY(x.size, "float32", session.limits), {"x": x}, x.shape), x)
    assert launch(session, MAX(x.size, "float32", session.limits), {"x": x}, ()) == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_denormals_survive_where_nothing_is_computed(session, dtype):
    limits = able(session, dtype)
    least = np.finfo(dtype).smallest_subnormal
    x = (np.arange(1, 601) * least).astype(dtype)
    for body in (COPY, by_element(lambda m, x: m.maximum(x, 0), "x")):
        assert launch(session, body(x.size, dtype, limits), {"x": x}, x.shape).tobytes() == x.tobytes()
    assert launch(session, MAX(3, dtype, limits), {"x": x[:3].copy()}, ()) == x[2]
    square = x[:576].reshape(24, 24).copy()
    got = launch(session, transpose.build_wgsl(24, 24, dtype, limits), {"x": square}, square.shape)
    assert got.tobytes() == square.T.tobytes()


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh", "gelu", "max", "sum"])
def test_special_values_follow_numpy(session, name):
    op = kernels.load(name)
    x = np.array([0.0, -0.0, 1e-30, -1e-30, 50.0, -50.0, 200.0, -200.0, 1e30, np.inf], np.float32)
    for values in (x, np.append(x, np.float32(np.nan)), np.append(np.float32(np.nan), x)):
        params = {"n": values.size}
        program = op.kernel("wgpu", "float32").build(params, "float32", session.limits)
        got = of_op(session, op, program, params, "float32", [values])
        with np.errstate(all="ignore"):
            want = np.asarray(op.expr(np, values))
        # 1e-37: results next to the smallest normal number may be flushed to 0.
        np.testing.assert_allclose(got, want, rtol=4e-6, atol=1e-37)
