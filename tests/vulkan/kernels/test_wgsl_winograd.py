"""Winograd's products in WGSL against float64, on shapes that fill no block; and where they are chosen from."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.shared.host import named_buffers, random_inputs
from gpubench.backends.shared.reference import sentinels
from gpubench.backends.wgpu.programs import WgpuLaunch
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.templates import winograd
from tests.judging import compare

pytestmark = pytest.mark.vulkan

OP = kernels.load("conv2d")
# Images, channels, filters, side: one number of each, no whole chunk, odd sides, two blocks of filters, several of tiles.
SHAPES = [(1, 1, 1, 1), (3, 3, 5, 7), (5, 5, 65, 9), (2, 67, 130, 33), (7, 8, 64, 2)]
GPU = Limits(
    max_buffer_bytes=2**32, max_binding_bytes=2**31, max_workgroup_bytes=49152, max_workgroup_threads=1024,
    float16=True, float64=True,
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_they_agree_with_float64(session, dtype):
    if dtype == "float16" and not session.limits.float16:
        pytest.skip("the adapter has no float16 in shaders")
    for n, channels, filters, side in SHAPES:
        params = {"n": n, "channels": channels, "filters": filters, "side": side}
        program = winograd.wgsl_program(n, channels, filters, side, dtype, session.limits)
        inputs = random_inputs(OP, params, dtype, seed=3)
        got = sentinels(OP.output.shape(params), dtype)
        buffers = [session.allocate(x.shape, dtype) for x in (*inputs, got)]
        for buffer, x in zip(buffers, (*inputs, got), strict=True):
            session.upload(buffer, x)
        *given, output = buffers
        steps = session.programs.steps(program, named_buffers(OP, given, output))
        session.run(WgpuLaunch(steps, output, None), 2)
        session.download(output, got)
        for buffer in buffers:
            session.free(buffer)
        wide = [x.astype(np.float64) for x in inputs]
        check = compare(OP, dtype, got, OP.reference(np, *wide), OP.tolerance.scale(np, *wide))
        assert check.ok, (params, check)


def names(params, dtype="float32", **limits):
    (kernel,) = OP.tuned["wgpu"]
    return [one.name for one in kernel.candidates(params, dtype, msgspec.structs.replace(GPU, **limits))]


def test_many_groups_try_them_first_and_few_do_not():
    assert names({"n": 256})[0] == winograd.NAME
    assert winograd.NAME not in names({"n": 1})


@pytest.mark.parametrize(
    "less", [{"max_workgroup_bytes": 32768}, {"max_workgroup_threads": 256}, {"software": True}]
)
def test_a_group_that_cannot_hold_a_block_has_tiles_alone(less):
    found = names({"n": 256}, **less)
    assert found
    assert winograd.NAME not in found


def test_double_precision_has_tiles_alone():
    assert winograd.NAME not in names({"n": 256}, "float64")
