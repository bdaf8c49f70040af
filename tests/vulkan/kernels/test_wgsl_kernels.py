"""Every WGSL kernel, through the wgpu backend, against float64: full outputs over sentinels, any size."""

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.backends.shared.reference import sentinels
from gpubench.kernels.contract.op import Op
from gpubench.result.case import Case
from tests.vulkan.computing import check_result

pytestmark = pytest.mark.vulkan

NAMES = [name for name in kernels.usual() if "wgpu" in kernels.load(name).tuned]
VECTORS = [name for name in NAMES if kernels.load(name).group != "matrix"]


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
    check_result(op, params, dtype, inputs, launch(session, op, params, dtype, inputs))


# Their loops over many elements differ by the operands and by what comes out: an element, a row or a number.
SHAPES_OF_LOOPS = {
    (len(op.inputs), op.output.shape({"n": 4096}), "columns" in op.options): name
    for name, op in ((name, kernels.load(name)) for name in VECTORS)
}


@pytest.mark.parametrize("name", SHAPES_OF_LOOPS.values())
def test_vectors_long_enough_for_the_four_fold_shape_and_the_second_pass(session, name):
    # 2^22 + 5 elements are more than 8 groups a multiprocessor: four vectors a thread, with a tail.
    check(session, kernels.load(name), {"n": 2**22 + 5})


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
