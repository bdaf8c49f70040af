"""Every WGSL kernel, through the wgpu backend, against float64: full outputs over sentinels, any size."""

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.backends.shared.reference import sentinels
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import Op
from gpubench.kernels.templates.elementwise import WgslElement
from gpubench.result.case import Case
from tests.judging import compare

pytestmark = pytest.mark.vulkan

NAMES = [name for name in kernels.usual() if "wgpu" in kernels.load(name).tuned]
VECTORS = [name for name in NAMES if kernels.load(name).group != "matrix"]


@pytest.fixture(scope="module")
def session():
    from gpubench.backends.wgpu import BACKEND

    device = next(d for d in BACKEND.devices() if d.kind == "software" or d.kind == "gpu")
    opened = BACKEND.open(device.id)
    yield opened
    opened.close()


def launch(session, op: Op, params: dict[str, int], dtype: str, inputs: list[np.ndarray]) -> np.ndarray:
    """Upload, fill with sentinels, run twice (a launch is idempotent), download; the inputs must be left alone."""
    case = Case(op.name, op.group, params, dtype, "tuned", "resident-queued", session.device.id)
    buffers = [session.allocate(x.shape, dtype) for x in inputs]
    output = session.allocate(op.output.shape(params), dtype)
    got = sentinels(op.output.shape(params), dtype)
    for buffer, x in zip(buffers, inputs, strict=True):
        session.upload(buffer, x)
    session.upload(output, got)
    prepared = session.compile(op, case, buffers, output)
    session.run(prepared, 2)
    session.download(prepared.output, got)
    for buffer, x in zip(buffers, inputs, strict=True):
        back = np.empty_like(x)
        session.download(buffer, back)
        assert back.tobytes() == x.tobytes()
    for buffer in (*buffers, output):
        session.free(buffer)
    return got


def check(session, op: Op, params: dict[str, int], dtype: str = "float32") -> None:
    inputs = random_inputs(op, params, dtype, seed=11)
    got = launch(session, op, params, dtype, inputs)
    wide = [x.astype(np.float64) for x in inputs]
    scale = np.asarray(op.tolerance.scale(np, *wide)) if op.tolerance.scale else None
    with np.errstate(all="ignore"):  # a divisor may be 0
        want = np.asarray((op.reference or op.expr)(np, *wide))
    found = compare(op, dtype, got, want, scale)
    assert found.ok, (op.name, params, dtype, found)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_any_length(session, name):
    for n in (1, 2, 3, 4, 5, 7, 255, 256, 257, 1000, 1023, 1025, 4099, 65537, 300_007):
        check(session, kernels.load(name), {"n": n})


# Their loops over many elements differ by the operands and by what comes out: an element, a row or a number.
SHAPES_OF_LOOPS = {
    (len(op.inputs), op.output.shape({"n": 4096}), "columns" in op.options): name
    for name, op in ((name, kernels.load(name)) for name in VECTORS)
}


@pytest.mark.parametrize("name", SHAPES_OF_LOOPS.values())
def test_vectors_long_enough_for_the_four_fold_shape_and_the_second_pass(session, name):
    # 2^22 + 5 elements are more than 8 groups a multiprocessor: four vectors a thread, with a tail.
    check(session, kernels.load(name), {"n": 2**22 + 5})


@pytest.mark.parametrize("name", [name for name in NAMES if name != "matmul"])
def test_halves(session, name):
    if not session.limits.float16:
        pytest.skip("the adapter has no float16 in shaders")
    for n in (1, 3, 8, 97, 264, 4099):
        check(session, kernels.load(name), {"n": n if name in VECTORS else min(n, 264)}, "float16")


def in_doubles(name: str, limits: Limits) -> bool:
    """Whether the shader is declared right in float64. WGSL has no exp there."""
    build = kernels.load(name).tuned["wgpu"][0].build
    writer = getattr(build, "__self__", None)
    if isinstance(writer, WgslElement):
        return writer.formula.exact
    return "exp(" not in build({"n": 64}, "float32", limits).passes[0].source


@pytest.mark.parametrize("name", [name for name in NAMES if name != "matmul"])
def test_doubles_or_why_not(session, name):
    if not session.limits.float64:
        pytest.skip("the adapter has no float64 in shaders")
    for n in (1, 3, 4, 97, 264):
        if in_doubles(name, session.limits):
            check(session, kernels.load(name), {"n": n}, "float64")
        else:
            with pytest.raises(Unsupported, match="double precision"):
                kernels.load(name).tuned["wgpu"][0].build({"n": n}, "float64", session.limits)


@pytest.mark.parametrize(
    "columns",
    [1, 2, 3, 4, 7, 8, 32, 36, 63, 100, 255, 257, 1000, 1024, 1025, 2048, 4099, 7777, 8192, 16384, 65535],
)
def test_softmax_rows_of_any_length(session, columns):
    op = kernels.load("softmax")
    check(session, op, {"n": 3 * columns, "columns": columns})
    check(session, op, {"n": 67 * columns if columns < 5000 else columns, "columns": columns})


def test_softmax_shifts_by_the_largest_and_keeps_minus_infinity_out(session):
    op = kernels.load("softmax")
    x = np.array([[1e30, 1e30, -np.inf, 0.0], [-np.inf, -np.inf, 5.0, 5.0]], np.float32)
    got = launch(session, op, {"n": 8, "columns": 4}, "float32", [x])
    assert got.tolist() == [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]


@pytest.mark.parametrize(
    "sides", [(1, 1), (1, 257), (257, 1), (4, 1000), (1000, 4), (36, 100), (33, 31), (1025, 7)]
)
def test_transpose_of_any_sides(session, sides):
    check(session, kernels.load("transpose"), {"n": sides[1], "m": sides[0]})


@pytest.mark.parametrize("n", [3, 4, 31, 32, 33, 255, 256, 1000, 1023])
def test_transpose_of_squares(session, n):
    check(session, kernels.load("transpose"), {"n": n})


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh", "gelu", "max", "sum"])
def test_special_values_follow_numpy(session, name):
    op = kernels.load(name)
    x = np.array([0.0, -0.0, 1e-30, -1e-30, 50.0, -50.0, 200.0, -200.0, 1e30, np.inf], np.float32)
    for values in (x, np.append(x, np.float32(np.nan)), np.append(np.float32(np.nan), x)):
        got = launch(session, op, {"n": values.size}, "float32", [values])
        with np.errstate(all="ignore"):
            want = np.asarray(op.expr(np, values))
        # 1e-37: results next to the smallest normal number may be flushed to 0.
        np.testing.assert_allclose(got, want, rtol=4e-6, atol=1e-37)
