"""Norm and product in WGSL against float64: rows of every length, few and many of them, in one dispatch and in several."""

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

OPS = [kernels.load("norm_linear"), kernels.load("norm_linear_gelu")]
# Rows that no thread shares with another, shorter and longer than a group, odd ones, and some that no group holds.
SHAPES = [
    (1, 1, 1), (1, 768, 256), (1, 5, 255), (2, 8, 257), (3, 33, 300), (4, 12, 31), (1, 40, 4099), (2, 4, 20_000),
    (16, 12, 256), (17, 5, 257), (1000, 8, 12), (7, 10, 3),
]  # fmt: skip


@pytest.fixture(scope="module")
def session():
    from gpubench.backends.wgpu import BACKEND

    opened = BACKEND.open(next(d.id for d in BACKEND.devices() if d.kind in ("software", "gpu")))
    yield opened
    opened.close()


def outputs(session, op: Op, params, dtype, inputs):
    """(name, dispatches, result) of few rows, of a tile, and of one that splits k, after two launches. The other tiles
    differ in what the layer alone has to do with."""
    found = op.kernel("wgpu", dtype).candidates(params, dtype, session.limits)
    kinds = {(one.name == few_rows.NAME, "slices" in one.name): one for one in reversed(found)}
    for candidate in kinds.values():
        got = sentinels(op.output.shape(params), dtype)
        buffers = [session.allocate(x.shape, dtype) for x in (*inputs, got)]
        for buffer, x in zip(buffers, (*inputs, got), strict=True):
            session.upload(buffer, x)
        *given, output = buffers
        program = candidate.build()
        steps = session.programs.steps(program, named_buffers(op, given, output))
        session.run(WgpuLaunch(steps, output, None), 2)
        session.download(output, got)
        for buffer in buffers:
            session.free(buffer)
        yield candidate.name, len(program.passes), got


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_kind_of_candidate_agrees_with_float64(session, op: Op, dtype):
    """Also where the mean is far from 0 and the deviation small, which one pass over the row would lose."""
    if dtype != "float32" and not getattr(session.limits, dtype):
        pytest.skip(f"the adapter has no {dtype} in shaders")
    alone = set()
    for n, m, k in SHAPES:
        params = {"n": n, "m": m, "k": k}
        inputs = random_inputs(op, params, dtype, seed=3)
        for offset in (0, 100):
            inputs[0] += np.asarray(offset, dtype)
            wide = [x.astype(np.float64) for x in inputs]
            want, scale = (op.reference or op.expr)(np, *wide), op.tolerance.scale(np, *wide)
            try:
                for name, dispatches, got in outputs(session, op, params, dtype, inputs):
                    check = compare(op, dtype, got, want, scale)
                    assert check.ok, (params, offset, name, check)
                    alone |= {k} if dispatches == 1 else set()
            except Unsupported as error:
                pytest.skip(error.detail)  # no exp or tanh in double precision
    assert {1, 31, 256, 257, 300} <= alone, "these rows a group holds"
    assert 20_000 not in alone


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_row_that_is_no_number_spoils_no_other_one(session, op: Op, n):
    params = {"n": n, "m": 5, "k": 300}
    for value in (np.nan, np.inf, -np.inf):
        inputs = random_inputs(op, params, "float32", seed=3)
        inputs[0][0, 299] = value
        for name, _, got in outputs(session, op, params, "float32", inputs):
            assert np.isnan(got[0]).all(), name
            assert np.isfinite(got[1:]).all(), name


def test_few_rows_are_one_dispatch_here(session):
    params = {"n": 1, "m": 1024, "k": 256}
    inputs = random_inputs(OPS[1], params, "float32", seed=3)
    ((name, dispatches, _),) = outputs(session, OPS[1], params, "float32", inputs)
    assert (name, dispatches) == (few_rows.NAME, 1)
