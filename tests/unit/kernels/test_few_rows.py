"""Few rows times weights: one launch on CUDA, one dispatch in WGSL, within the limits of a device."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpubench import kernels
from gpubench.kernels.contract.kernel import CudaPass, CudaProduct
from gpubench.kernels.contract.op import Op
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.matmul import few_rows
from tests.shapes import H200, SMALLEST

OPS = [kernels.load(name) for name in kernels.groups()["layers"] if name.startswith("linear")]
SOFTWARE = msgspec.structs.replace(SMALLEST, software=True)
SHAPES = [(256, 256), (768, 256), (256, 1024), (10, 512), (257, 33), (1, 1), (100_000, 64)]


def params(n: int, m: int, k: int) -> dict[str, int]:
    return {"n": n, "m": m, "k": k}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("n", [1, 5, few_rows.MOST_ROWS])
def test_few_rows_take_one_launch_on_cuda(op: Op, n):
    for dtype in op.dtypes:
        for m, k in SHAPES:
            (step,) = op.kernel("cupy", dtype).build(params(n, m, k), dtype, H200).passes
            assert isinstance(step, CudaPass)
            assert set(step.arguments) == {*(x.name for x in op.operands), n, m, k}
            covered = [axis * size for axis, size in zip(step.grid, columns_and_rows(step), strict=False)]
            assert covered[0] >= m
            assert covered[1] >= n


def columns_and_rows(step: CudaPass) -> tuple[int, int]:
    """What a block computes, as its text says."""
    line = next(line for line in step.source.splitlines() if line.startswith("const int ROWS"))
    said = dict(part.split(" = ") for part in line.removeprefix("const int ").rstrip(";").split(", "))
    turned = "w_units" in step.source
    assert int(said["UNITS"]) * int(said["SHARES"]) == int(said["THREADS"]) == step.block[0]
    return int(said["UNITS"]) * (1 if turned else int(said["WIDTH"])), int(said["ROWS"])


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_more_rows_are_for_cublas(op: Op):
    first, _ = (
        op.kernel("cupy", "float32").build(params(few_rows.MOST_ROWS + 1, 64, 64), "float32", H200).passes
    )
    assert isinstance(first, CudaProduct)


@pytest.mark.parametrize("device", [H200, SMALLEST], ids=["h200", "smallest"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_few_rows_are_a_candidate_in_wgsl_and_the_default_where_one_group_holds_them(op: Op, device):
    for dtype in ("float32", "float16"):
        for n in (1, few_rows.WGSL_ROWS, few_rows.WGSL_ROWS + 1, few_rows.MOST_ROWS, few_rows.MOST_ROWS + 1):
            found = op.kernel("wgpu", dtype).candidates(params(n, 256, 256), dtype, device)
            names = [one.name for one in found]
            assert (few_rows.NAME in names) == (n <= few_rows.MOST_ROWS)
            assert (names[0] == few_rows.NAME) == (n <= few_rows.WGSL_ROWS)
            alone = n <= few_rows.WGSL_ROWS
            assert (names == [few_rows.NAME]) == alone, (
                "there a launch takes all of the time: nothing is to be tried"
            )
    for m, k in ((256, 8192), (4096, 4096)):  # long columns; more bytes than a launch takes
        assert len(op.kernel("wgpu", "float32").candidates(params(1, m, k), "float32", device)) > 1
    software = op.kernel("wgpu", "float32").candidates(
        params(few_rows.WGSL_ROWS + 1, 256, 256), "float32", SOFTWARE
    )
    assert software[0].name != few_rows.NAME, "a software adapter reads the weights once a tile"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("device", [H200, SMALLEST], ids=["h200", "smallest"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_group_keeps_to_the_memory_and_the_threads_of_the_device(dtype, device, turned):
    for n in range(1, few_rows.MOST_ROWS + 1):
        for m, k in SHAPES:
            program = few_rows.wgsl_program(few_rows.WeightedRows(("x", "w"), n, m, k, dtype, turned), device)
            (step,) = program.passes
            threads, sums, lanes = group_memory(step.source)
            assert threads * sums * lanes * (8 if dtype == "float64" else 4) <= device.max_workgroup_bytes
            assert step.grid[2] == ceil_div(n, ceil_div(n, step.grid[2]))
            assert max(step.grid) <= device.max_groups_per_dimension


def group_memory(source: str) -> tuple[int, int, int]:
    """Threads of a group, the sums of each, and the numbers in a sum."""
    found = re.search(r"var<workgroup> sums: array<array<(?:vec(\d)<)?f\d\d>?, (\d+)>, (\d+)>;", source)
    assert found
    return int(found[3]), int(found[2]), int(found[1] or 1)
