"""Few rows times weights in WGSL against float64: whole units and single elements, blocks of rows, every epilogue."""

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.shared.host import named_buffers, random_inputs
from gpubench.backends.shared.reference import sentinels
from gpubench.backends.wgpu.programs import WgpuLaunch
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.op import Op
from gpubench.kernels.templates.matmul import few_rows
from tests.judging import compare

pytestmark = pytest.mark.vulkan

OPS = [kernels.load(name) for name in kernels.groups()["layers"] if name.startswith("linear")]
SHAPES = [(1, 256, 1024), (3, 256, 256), (5, 10, 33), (16, 257, 5), (1, 1, 1), (13, 8, 10)]


@pytest.fixture(scope="module")
def session():
    from gpubench.backends.wgpu import BACKEND

    opened = BACKEND.open(next(d.id for d in BACKEND.devices() if d.kind in ("software", "gpu")))
    yield opened
    opened.close()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_few_rows_agree_with_float64(session, op: Op, dtype):
    if dtype != "float32" and not getattr(session.limits, dtype):
        pytest.skip(f"the adapter has no {dtype} in shaders")
    for n, m, k in SHAPES:
        params = {"n": n, "m": m, "k": k}
        try:
            found = op.kernel("wgpu", dtype).candidates(params, dtype, session.limits)
        except Unsupported as error:
            pytest.skip(error.detail)  # no exp or tanh in double precision
        (candidate,) = (one for one in found if one.name == few_rows.NAME)
        inputs = random_inputs(op, params, dtype, seed=3)
        got = sentinels(op.output.shape(params), dtype)
        buffers = [session.allocate(x.shape, dtype) for x in (*inputs, got)]
        for buffer, x in zip(buffers, (*inputs, got), strict=True):
            session.upload(buffer, x)
        *given, output = buffers
        steps = session.programs.steps(candidate.build(), named_buffers(op, given, output))
        session.run(WgpuLaunch(steps, output, None), 2)
        session.download(output, got)
        for buffer in buffers:
            session.free(buffer)
        wide = [x.astype(np.float64) for x in inputs]
        check = compare(op, dtype, got, (op.reference or op.expr)(np, *wide), op.tolerance.scale(np, *wide))
        assert check.ok, (params, check)
