"""WGSL kernels of vectors against float64: what the suite's sizes and values do not reach."""

import numpy as np
import pytest

from gpubench import kernels
from tests.vulkan.computing import check_program, of_op

pytestmark = pytest.mark.vulkan

VECTORS = {
    name: op for name in kernels.usual() if (op := kernels.load(name)).group != "matrix" and "wgpu" in op.tuned
}
# Their loops over many elements differ by the operands and by what comes out: an element, a row or a number.
LOOPS = {(len(op.inputs), op.output.shape({"n": 4096}), "columns" in op.options): op for op in VECTORS.values()}


def program_of(session, op, params):
    return op.kernel("wgpu", "float32").build(params, "float32", session.limits)


@pytest.mark.parametrize("op", LOOPS.values(), ids=lambda op: op.name)
def test_vectors_long_enough_for_the_four_fold_shape_and_the_second_pass(session, op):
    params = {"n": 2**22 + 5}  # more than 8 groups a multiprocessor: four vectors a thread, with a tail
    check_program(session, op, program_of(session, op, params), params, "float32")


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh", "gelu", "max", "sum"])
def test_special_values_follow_numpy(session, name):
    op = kernels.load(name)
    x = np.array([0.0, -0.0, 1e-30, -1e-30, 50.0, -50.0, 200.0, -200.0, 1e30, np.inf], np.float32)
    for values in (x, np.append(x, np.float32(np.nan)), np.append(np.float32(np.nan), x)):
        params = {"n": values.size}
        got = of_op(session, op, program_of(session, op, params), params, "float32", [values])
        with np.errstate(all="ignore"):
            want = np.asarray(op.expr(np, values))
        # 1e-37: results next to the smallest normal number may be flushed to 0.
        np.testing.assert_allclose(got, want, rtol=4e-6, atol=1e-37)
