"""Our CUDA kernels on a real GPU: shapes, dtypes, special values, and arrays past 2^32 elements."""

import math

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.cupy.launches import CudaPrograms
from gpubench.backends.shared.host import host_dtype
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import Case
from tests.cuda.conftest import DEVICE
from tests.shapes import CACHES, ROWS_OF_CLASSES

pytestmark = pytest.mark.cuda

DTYPES = ("float32", "float64", "float16", "bfloat16")
# Rows of part of a warp, of a warp, of blocks and of clusters; whole and ragged; longer than any cluster holds.
ROWS = (1, 4, 37, 256, 1000, 1024, 4096, 5000, 16384, 20001, 32768, 65536, 65544, 300_000)
SIDES = ((1, 1), (5, 3), (33, 70), (16, 8), (136, 72), (8, 1000), (1029, 1040), (300_000, 8), (8, 300_000))
FEW_ROWS = (
    (1, 256, 1024), (1, 1, 1), (3, 10, 33), (9, 257, 5), (16, 768, 256), (13, 8, 16), (1, 5000, 8), (17, 64, 64),
)  # fmt: skip
GEMV = ((1, 1), (1, 5), (7, 4), (1000, 4), (33, 257), (130, 1000), (1, 400_000), (3, 300_001), (20_000, 8))


# Images, channels, filters and side of a convolution: too few for Winograd's products, and enough; in part of a block.
CONVOLUTIONS = (
    (1, 1, 1, 1), (3, 3, 5, 7), (700, 5, 65, 9), (9, 67, 130, 33), (3000, 8, 64, 2), (13, 64, 64, 32),
)  # fmt: skip


def case(name, params, dtype):
    return Case(name, kernels.load(name).group, params, dtype, "tuned", "resident-queued", DEVICE)


def right(session, name, params, dtype, folder):
    """The kernel passes the gate, and again on a second launch of the same buffers."""
    wanted = case(name, params, dtype)
    workspace = Workspace(session, kernels.load(name), wanted, 1, "random", folder)
    launch = gate(workspace, wanted, lambda phase: None).launch
    session.run(launch, 3)
    assert workspace.verify(launch).ok
    workspace.release()


def apply(session, name, *hosts, params=None, programs=None):
    dtype = "bfloat16" if hosts[0].dtype.itemsize == 2 and hosts[0].dtype != np.float16 else hosts[0].dtype.name
    op, params = kernels.load(name), params or {"n": hosts[0].size}
    buffers = []
    for host in hosts:
        buffers.append(session.allocate(host.shape, dtype))
        session.upload(buffers[-1], host)
    out = np.empty(op.output.shape(params), host_dtype(dtype))
    target = session.allocate(out.shape, dtype)
    compiler = programs or session
    build = compiler.launch if programs else compiler.compile
    session.run(build(op, case(name, params, dtype), buffers, target))
    session.download(target, out)
    return out


def named(names, *values):
    return [dict(zip(names.split(), value, strict=True)) for value in values]


ROWS_OF_A_NORM = [(n, 40, k) for n in (2, 8, 16, 1000) for k in (1, 255, 257, 5000)]
SHAPES = {
    **{name: named("n m k", *FEW_ROWS) for name in kernels.groups()["layers"] if name.startswith("linear")},
    "conv2d": named("n channels filters side", *CONVOLUTIONS),
    # In one launch; in two and in three where a block does not hold the rows, and where there are many.
    **{name: named("n m k", *FEW_ROWS, *ROWS_OF_A_NORM) for name in ("norm_linear", "norm_linear_gelu")},
    "attention_append": CACHES,
    "norm_linear_last": named("n width vocabulary", (1, 256, 2048), (5, 256, 2048), (3, 33, 1), (7, 5000, 257)),
    "argmax": named("n classes", *ROWS_OF_CLASSES),
    **{name: [{"n": 3 * columns, "columns": columns} for columns in ROWS] for name in ("softmax", "softmax_grad")},
    "transpose": named("m n", *SIDES),
    "gemv": named("m n", *GEMV),
    # The last one in large blocks.
    **{name: [{"n": n} for n in (1, 3, 9, 1025, 40_000, 1_000_003, 9_000_001, 40_000_003)] for name in ("sum", "dot", "max")},
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_right(session, tmp_path, name, dtype):
    for params in SHAPES[name]:
        right(session, name, params, dtype, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1024, 20_001, 65_536])
def test_rows_without_clusters_are_the_same(session, dtype, columns):
    """What an older GPU does: rows too long for a block are read twice."""
    import cupy

    older = CudaPrograms(cupy, msgspec.structs.replace(session.limits, clusters=False))
    x = np.random.default_rng(1).standard_normal((3, columns)).astype(host_dtype(dtype))
    params = {"n": x.size, "columns": columns}
    one = apply(session, "softmax", x, params=params).astype(np.float64)
    two = apply(session, "softmax", x, params=params, programs=older).astype(np.float64)
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133}.get(dtype, 0.0)
    u = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert (np.abs(one - two) <= 64 * u * np.abs(one) + smallest).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 777, 65_000, 70_000])
def test_a_nan_is_the_largest(session, dtype, place):
    x = np.random.default_rng(2).standard_normal(70_001).astype(host_dtype(dtype))
    x[place] = np.nan
    assert np.isnan(apply(session, "max", x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_in_reductions(session, dtype):
    x = np.ones(70_001, host_dtype(dtype))
    x[5] = np.inf
    assert (apply(session, "max", x), apply(session, "sum", x)) == (np.inf, np.inf)
    x[6] = -np.inf
    assert np.isnan(apply(session, "sum", x))
    assert apply(session, "max", np.full(70_001, -np.inf, x.dtype)) == -np.inf


def specials(dtype):
    """NaN, infinities, both zeros, the smallest subnormal numbers, the largest one, and ordinary ones."""
    kind = host_dtype(dtype)
    bits = np.arange(1, 4, dtype=f"u{kind.itemsize}").view(kind)
    found = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 30.0, -30.0, 1e4, -1e4], kind)
    return np.concatenate([found, bits, -bits])


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_follow_numpy(session, dtype):
    x = np.repeat(specials(dtype), specials(dtype).size)
    y = np.tile(specials(dtype), specials(dtype).size)
    with np.errstate(all="ignore"):
        # One rounding each, so that every bit is determined; subnormal numbers are neither read nor written as 0.
        for name in ("add", "sub", "mul", "div"):
            got = apply(session, name, x, y)
            want = kernels.load(name).expr(np, x, y)
            assert np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True), name
        for name in ("copy", "relu"):
            got = apply(session, name, x)
            want = kernels.load(name).expr(np, x)
            assert np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True), name
            assert np.array_equal(np.signbit(got), np.signbit(want)) or name == "relu"
        for name in ("sigmoid", "tanh"):
            got = apply(session, name, x).astype(np.float64)
            want = kernels.load(name).expr(np, x.astype(np.float64))
            assert np.array_equal(np.isnan(got), np.isnan(want)), name
            assert np.nanmax(np.abs(got - want)) < 0.01, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal_numbers_are_not_zeros(session, dtype):
    """NumPy keeps them; CuPy's own kernels take a subnormal float as 0."""
    size = 8 * host_dtype(dtype).itemsize
    bits = np.array([64, 99, 127], f"u{size // 8}")  # subnormal in every dtype, with 6 bits of precision
    x = np.concatenate([bits, bits | 1 << (size - 1)]).astype(bits.dtype).view(host_dtype(dtype))
    for name in ("tanh", "gelu", "relu", "copy"):
        got = apply(session, name, x).astype(np.float64)
        want = kernels.load(name).expr(np, x.astype(np.float64))
        assert np.allclose(got, want, rtol=0.02, atol=0), name
    assert apply(session, "max", x[3:]) == x[3]
    got, want = apply(session, "sum", x[:3]).astype(np.float64), x[:3].astype(np.float64).sum()
    assert np.allclose(got, want, rtol=0.02, atol=0)


def test_copy_keeps_every_bit_of_every_half(session):
    every = np.arange(2**16, dtype=np.uint16)
    for dtype in ("float16", "bfloat16"):
        assert np.array_equal(apply(session, "copy", every.view(host_dtype(dtype))).view(np.uint16), every)


def test_half_precision_rounds_to_nearest_even(session):
    """x * 1 in every bit pattern, and sums that fall halfway between two numbers."""
    for dtype in ("float16", "bfloat16"):
        kind = host_dtype(dtype)
        x = np.arange(2**16, dtype=np.uint16).view(kind)
        y = np.roll(x, 12345)
        with np.errstate(all="ignore"):
            for name, want in (("mul", x * np.ones_like(x)), ("add", x + y)):
                got = apply(session, name, x, np.ones_like(x) if name == "mul" else y)
                equal = np.array_equal(got.astype(np.float32), want.astype(np.float32), equal_nan=True)
                assert equal, (name, dtype)


@pytest.mark.parametrize("columns", [64, 3000, 65_536])
def test_softmax_of_nan_and_infinity_is_nan_in_that_row_alone(session, columns):
    for dtype in DTYPES:
        x = np.zeros((4, columns), host_dtype(dtype))
        x[0, 5], x[1, 7], x[2, :] = np.nan, np.inf, -np.inf
        got = apply(session, "softmax", x, params={"n": x.size, "columns": columns}).astype(np.float64)
        assert np.isnan(got[:3]).all()
        assert np.allclose(got[3], 1 / columns, rtol=0.01, atol=1e-7)


@pytest.mark.parametrize("name", ["sum", "dot"])
def test_a_reduction_is_the_same_in_every_launch(session, name):
    op, n = kernels.load(name), 2**26 + 3  # enough for large blocks
    values = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    buffers = [session.allocate((n,), "float32") for _ in op.inputs]
    for buffer in buffers:
        session.upload(buffer, values)
    target = session.allocate((), "float32")
    launch = session.compile(op, case(name, {"n": n}, "float32"), buffers, target)
    seen = set()
    for _ in range(50):
        session.run(launch)
        got = np.empty((), np.float32)
        session.download(target, got)
        seen.add(got.tobytes())
    assert len(seen) == 1


# Past 2^32 elements: compared on the device, since the host would take minutes.

BEYOND = 2**32 + 64 + 5


def need(cupy, size):
    cupy.get_default_memory_pool().free_all_blocks()
    free = cupy.cuda.runtime.memGetInfo()[0]
    if free < size:
        pytest.skip(f"needs {size >> 30} GiB of device memory, {free >> 30} GiB are free")


def pattern(cupy, n):
    """n half-precision numbers in [-1, 1] that repeat after a prime number of elements."""
    period = cupy.asarray(np.random.default_rng(4).uniform(-1, 1, 1_000_003).astype(np.float16))
    whole = cupy.empty(n, cupy.float16)
    for start in range(0, n, period.size * 64):
        part = whole[start : start + period.size * 64]
        part[...] = cupy.tile(period, 64)[: part.size]
    return whole


def launched(session, name, params, inputs, out):
    launch = session.compile(kernels.load(name), case(name, params, "float16"), inputs, out)
    session.run(launch)
    session.sync()


def test_elementwise_past_2_to_the_32(session):
    import cupy

    need(cupy, 5 * 2 * BEYOND)
    x, out = pattern(cupy, BEYOND), cupy.zeros(BEYOND, cupy.float16)
    launched(session, "add", {"n": BEYOND}, [x, x], out)
    step = 2**28
    assert all(bool((out[i : i + step] == x[i : i + step] * 2).all()) for i in range(0, BEYOND, step))


def test_a_sum_past_2_to_the_32(session):
    import cupy

    need(cupy, 2 * 2 * BEYOND)
    x, out = cupy.zeros(BEYOND, cupy.float16), cupy.zeros((), cupy.float16)
    for place in (0, 2**31 - 1, 2**31 + 1, 2**32 - 1, 2**32 + 1, BEYOND - 1):
        x[place] = 1
    launched(session, "sum", {"n": BEYOND}, [x], out)
    assert float(out) == 6
    launched(session, "max", {"n": BEYOND}, [x], out)
    assert float(out) == 1


def test_matrices_past_2_to_the_32(session):
    import cupy

    m, n = 65_544, 65_592
    need(cupy, 4 * 2 * m * n)
    x, out = pattern(cupy, m * n).reshape(m, n), cupy.zeros((n, m), cupy.float16)
    launched(session, "transpose", {"n": n, "m": m}, [x], out)
    assert all(bool((out[:, i : i + 4096] == x[i : i + 4096].T).all()) for i in range(0, m, 4096))
    ones, product = cupy.ones(n, cupy.float16), cupy.zeros(m, cupy.float16)
    launched(session, "gemv", {"n": n, "m": m}, [x, ones], product)
    for row in (0, 32_767, 65_535, 65_543):
        want = float(x[row].astype(cupy.float64).sum())
        assert math.isclose(float(product[row]), want, rel_tol=2e-3, abs_tol=0.3)
    columns = 1032
    launched(session, "softmax", {"n": m * n // columns * columns, "columns": columns}, [x], out)
    rows = out.reshape(-1)[: m * n // columns * columns].reshape(-1, columns)
    for row in (0, len(rows) // 2, len(rows) - 1):
        assert math.isclose(float(rows[row].astype(cupy.float64).sum()), 1, rel_tol=2e-3)
