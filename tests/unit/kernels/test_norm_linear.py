"""The norm of a row and the product behind it as one op: what it computes, and in how many launches."""

import re

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.numpy import BACKEND
from gpubench.backends.shared.host import allocate_outputs, random_inputs
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaPass, CudaProduct
from gpubench.kernels.contract.op import ITEMSIZE, Op
from gpubench.kernels.templates import ceil_div
from gpubench.kernels.templates.matmul import few_rows
from gpubench.result.case import Case
from tests.judging import compare
from tests.shapes import H200, SMALLEST

OPS = [kernels.load("norm_linear"), kernels.load("norm_linear_gelu")]
LAYER = {"norm_linear": "linear", "norm_linear_gelu": "linear_gelu"}
SHAPES = [(256, 256), (256, 1024), (768, 256), (10, 512), (257, 33), (1, 1), (40, 5000)]
BYTES = {"f32": 4, "f64": 8, "vec2<f32>": 8, "vec2<f64>": 16, "vec4<f32>": 16, "vec4<f64>": 32}
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def params(n: int, m: int, k: int) -> dict[str, int]:
    return {"n": n, "m": m, "k": k}


# ---------------------------------------------------------------- what it computes


@each_op
def test_it_is_a_layer_of_the_norm(op: Op):
    x, g, c, w, b = random_inputs(op, params(5, 4, 6), "float64", seed=1)
    rest = x - x.mean(axis=1, keepdims=True)
    u = rest / np.sqrt(np.mean(rest**2, axis=1, keepdims=True) + 1e-5) * g + c
    z = u @ w + b
    want = z if op.name == "norm_linear" else z / (1 + np.exp(-2 * 0.7978845608028654 * (z + 0.044715 * z**3)))
    np.testing.assert_allclose(op.expr(np, x, g, c, w, b), want, rtol=1e-12)
    np.testing.assert_allclose((op.reference or op.expr)(np, x, g, c, w, b), want, rtol=1e-12)


@each_op
def test_it_costs_what_its_parts_do(op: Op):
    shape = params(17, 40, 33)
    assert op.flops(shape) == 7 * 17 * 33 + kernels.load(LAYER[op.name]).flops(shape)
    assert op.bytes(shape, "float32") == 4 * (17 * 33 + 2 * 33 + 33 * 40 + 40 + 17 * 40)


# ---------------------------------------------------------------- the CPU


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("threads", [1, 2])
@each_op
def test_the_layer_behind_a_compiled_norm_is_right(op: Op, threads, dtype):
    """Twice: the rows between the two stay, and are written anew."""
    session = BACKEND.open("numpy:0", threads=threads, autotune=False)
    for n, m, k in ((1, 768, 256), (3, 5, 257), (600, 7, 9), (2, 3, 1), (4, 2, 5000)):
        shape = params(n, m, k)
        case = Case(op.name, op.group, shape, dtype, "tuned", "resident", "numpy:0")
        inputs = random_inputs(op, shape, dtype, seed=2)
        output = allocate_outputs(session, op, case, inputs)
        compiled = session.compile(op, case, inputs, output)
        for gain in (1, 2):
            inputs[1] *= gain
            output.fill(np.nan)
            compiled()
            wide = [one.astype(np.float64) for one in inputs]
            want, scale = (op.reference or op.expr)(np, *wide), op.tolerance.scale(np, *wide)
            assert compare(op, dtype, output, want, scale).ok, (shape, gain)
    session.close()


@each_op
def test_a_row_that_is_no_number_spoils_no_other_one(op: Op):
    shape = params(5, 4, 16)
    inputs = random_inputs(op, shape, "float32", seed=2)
    inputs[0][1, 3], inputs[0][3, 2] = np.nan, np.inf
    session = BACKEND.open("numpy:0", threads=1, autotune=False)
    case = Case(op.name, op.group, shape, "float32", "tuned", "resident", "numpy:0")
    output = allocate_outputs(session, op, case, inputs)
    session.run(session.compile(op, case, inputs, output))
    session.close()
    assert np.isnan(output).all(axis=1).tolist() == [False, True, False, True, False]
    assert np.isfinite(output[::2]).all()


# ---------------------------------------------------------------- CUDA


def passes(op: Op, shape: dict[str, int], dtype: str) -> list[str]:
    program = op.kernel("cupy", dtype).build(shape, dtype, H200)
    known = {x.name for x in op.operands} | set(program.scratch)
    for step in program.passes:
        if isinstance(step, CudaPass):
            assert {x for x in step.arguments if isinstance(x, str)} <= known
    assert set(program.scratch.values()) <= {-(-shape["n"] * shape["k"] * ITEMSIZE[dtype] // 16) * 16}
    return [step.entry if isinstance(step, CudaPass) else "cuBLAS" for step in program.passes]


@each_op
def test_few_rows_that_a_block_holds_are_one_launch_on_cuda(op: Op):
    for dtype in op.dtypes:
        size = 8 if dtype == "float64" else 4
        for n in range(1, few_rows.MOST_ROWS + 1):
            for m, k in SHAPES:
                shape = params(n, m, k)
                (step, *others) = op.kernel("cupy", dtype).build(shape, dtype, H200).passes
                held = min(8, 1 << (n - 1).bit_length()) * k * size
                if others:
                    assert passes(op, shape, dtype) == ["gpubench_layernorm", "gpubench_few_rows"]
                    assert held > 49152 - 17 * 1024, (
                        "beside the rows stand at most 16 KiB of sums, and a few words"
                    )
                    continue
                assert step.arguments == ("x", "w", "out", "b", "g", "c", *shape_of(shape))
                assert shared_bytes(step.source, size) <= 49152
                assert held <= 49152


def shape_of(shape: dict[str, int]) -> tuple[int, int, int]:
    return shape["n"], shape["m"], shape["k"]


def shared_bytes(source: str, size: int) -> int:
    """Of the block's arrays, whose lengths are the constants of the text."""
    said = {name: int(value) for name, value in re.findall(r"\b([A-Z_]+) = (\d+)\b", source)}
    said["COLUMNS"], said["WARPS"] = said["UNITS"] * said["WIDTH"], said["THREADS"] // 32
    total = 0
    for line in re.findall(r"__shared__ real (.+);", source):
        for lengths in re.findall(r"\w+((?:\[[^\]]+\])+)", line):
            count = 1
            for one in re.findall(r"\[([^\]]+)\]", lengths):
                name, _, divisor = one.partition(" / ")
                count *= (said[name] if name in said else int(name)) // int(divisor or 1)
            total += count
    return total * size


@each_op
def test_more_rows_are_a_norm_a_product_and_what_is_behind_it_on_cuda(op: Op):
    shape = params(few_rows.MOST_ROWS + 1, 64, 128)
    assert passes(op, shape, "float32") == ["gpubench_layernorm", "cuBLAS", "gpubench_epilogue"]
    program = op.kernel("cupy", "float32").build(shape, "float32", H200)
    norm, product, _ = program.passes
    assert norm.arguments == ("x", "g", "c", "normed", shape["n"], 128)
    assert product == CudaProduct("normed", "w", "out", shape["n"], 64, 128)
    assert program.scratch == {"normed": 4 * shape["n"] * 128}


# ---------------------------------------------------------------- WGSL


@pytest.mark.parametrize("device", [H200, SMALLEST], ids=["h200", "smallest"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@each_op
def test_every_candidate_of_the_layer_is_one_here_and_few_rows_are_one_dispatch(op: Op, dtype, device):
    layer = kernels.load(LAYER[op.name])
    for n in (1, 3, 5, 16, 17):
        for m, k in SHAPES[2:]:
            shape = params(n, m, k)
            try:
                wanted = layer.kernel("wgpu", dtype).candidates(shape, dtype, device)
            except Unsupported as error:
                with pytest.raises(Unsupported, match=re.escape(error.detail)):
                    op.kernel("wgpu", dtype).candidates(shape, dtype, device)
                continue
            found = op.kernel("wgpu", dtype).candidates(shape, dtype, device)
            assert [one.name for one in found] == [one.name for one in wanted]
            for one, plain in zip(found, wanted, strict=True):
                program, behind = one.build(), plain.build()
                bound = {name for step in program.passes for name in step.bindings}
                assert bound == {x.name for x in op.operands} | set(program.scratch)
                assert all(group_bytes(step.source) <= device.max_workgroup_bytes for step in program.passes)
                if "normed" in program.scratch:
                    assert len(program.passes) == 1 + len(behind.passes)
                    assert program.passes[0].bindings == ("x", "g", "c", "normed")
                    held = k <= 512 and (n <= 2 or device is H200)
                    assert one.name != few_rows.NAME or not held
                else:
                    (step,) = program.passes
                    assert one.name == few_rows.NAME
                    assert step.bindings == ("x", "w", "out", "b", "g", "c")


def group_bytes(source: str) -> int:
    """Of the group's arrays; those of sums are arrays of arrays."""
    total = 0
    for declared in re.findall(r"var<workgroup> \w+: (.+);", source):
        count = np.prod([int(one) for one in re.findall(r", (\d+)>", declared)])
        element = re.search(r"(vec\d<f\d\d>|f\d\d)", declared)
        assert element
        total += int(count) * BYTES[element[1]]
    return total


def test_the_texts_of_wgsl_divide_by_no_number_that_they_know():
    """naga turns / and % of whole numbers into guarded calls."""
    for shape in (params(1, 768, 256), params(3, 33, 257), params(4, 8, 31)):
        (step,) = OPS[0].kernel("wgpu", "float32").build(shape, "float32", H200).passes
        body = step.source.split("@compute")[1]
        assert "%" not in body
        assert not re.search(r"\w / \d+u", body)


def test_rows_beyond_a_binding_are_refused_by_their_own_name():
    shape = params(2**17, 1, 512)
    with pytest.raises(Unsupported, match=r"^x has 268435456 bytes"):
        OPS[0].kernel("wgpu", "float32").build(shape, "float32", SMALLEST)


# ------------------------------------------------------------------ few rows times weights


LINEAR = [kernels.load(name) for name in kernels.groups()["layers"] if name.startswith("linear")]
SOFTWARE = msgspec.structs.replace(SMALLEST, software=True)
WEIGHTS = [(256, 256), (768, 256), (256, 1024), (10, 512), (257, 33), (1, 1), (100_000, 64)]


@pytest.mark.parametrize("op", LINEAR, ids=lambda op: op.name)
@pytest.mark.parametrize("n", [1, 5, few_rows.MOST_ROWS])
def test_few_rows_take_one_launch_on_cuda(op: Op, n):
    for dtype in op.dtypes:
        for m, k in WEIGHTS:
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


@pytest.mark.parametrize("op", LINEAR, ids=lambda op: op.name)
def test_more_rows_are_for_cublas(op: Op):
    first, _ = (
        op.kernel("cupy", "float32").build(params(few_rows.MOST_ROWS + 1, 64, 64), "float32", H200).passes
    )
    assert isinstance(first, CudaProduct)


@pytest.mark.parametrize("device", [H200, SMALLEST], ids=["h200", "smallest"])
@pytest.mark.parametrize("op", LINEAR, ids=lambda op: op.name)
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
        for m, k in WEIGHTS:
            program = few_rows.wgsl_program(few_rows.WeightedRows(("x", "w"), n, m, k, dtype, turned), device)
            (step,) = program.passes
            assert 0 < group_bytes(step.source) <= device.max_workgroup_bytes
            assert step.grid[2] == ceil_div(n, ceil_div(n, step.grid[2]))
            assert max(step.grid) <= device.max_groups_per_dimension
