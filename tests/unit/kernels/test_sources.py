"""WGSL and CUDA as text: any size and any limits give a launch that the device accepts, or Unsupported."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.errors import Unsupported
from gpubench.kernels import _matmul_wgsl, _softmax_wgsl
from gpubench.kernels._limits import fold
from gpubench.model.kernel import CudaProgram, Limits, WgslPass, WgslProgram

NAMES = kernels.names()
WEBGPU = Limits(max_buffer_bytes=2**28, max_binding_bytes=2**27)
H200 = Limits(
    max_buffer_bytes=4292870144,
    max_binding_bytes=2147483644,
    max_workgroup_bytes=49152,
    max_workgroup_threads=1024,
    multiprocessors=132,
    float16=True,
)
BYTES = {"f16": 2, "f32": 4, "f64": 8, "vec4<f32>": 16}

limits = st.builds(
    Limits,
    max_buffer_bytes=st.just(2**40),
    max_binding_bytes=st.sampled_from([2**27, 2**31, 2**34]),
    max_workgroup_bytes=st.sampled_from([16384, 32768, 49152, 65536]),
    max_workgroup_threads=st.sampled_from([256, 512, 1000, 1024]),
    max_groups_per_dimension=st.sampled_from([65535, 2**31 - 1]),
    multiprocessors=st.one_of(st.none(), st.integers(1, 300)),
    software=st.booleans(),
)
sizes = st.one_of(st.integers(1, 5000), st.integers(1, 2**26), st.sampled_from([2**k for k in range(27)]))


def workgroup_bytes(source: str) -> int:
    total = 0
    for declared in re.findall(r"var<workgroup> \w+: (.+);", source):
        counts = [int(count) for count in re.findall(r", (\d+)>", declared)]
        element = re.search(r"(vec4<f32>|f\d\d)", declared)
        assert element
        total += math.prod(counts) * BYTES[element[1]]
    return total


def check_pass(step: WgslPass, device: Limits, known: set[str]) -> None:
    assert f"fn {step.entry}(" in step.source
    assert all(1 <= extent <= device.max_groups_per_dimension for extent in step.grid)
    threads = re.search(r"@workgroup_size\(([\d, ]+)\)", step.source)
    assert threads
    assert math.prod(int(extent) for extent in threads[1].split(",")) <= device.max_workgroup_threads
    assert workgroup_bytes(step.source) <= device.max_workgroup_bytes
    assert set(step.bindings) <= known
    assert set(step.read_only) <= set(step.bindings)
    declared = re.findall(r"@group\(0\) @binding\((\d+)\) var<(.+?)>", step.source)
    wanted = [*step.bindings, *(["the sizes"] if step.uniform else [])]
    assert [int(number) for number, _ in declared] == list(range(len(wanted)))
    assert ("uniform" in [access for _, access in declared]) == bool(step.uniform)
    assert all(0 <= word < 2**32 for word in step.uniform)
    assert step.source.count("{") == step.source.count("}")
    assert step.source.count("(") == step.source.count(")")
    # naga turns / and % into guarded calls, also by constants; `enable subgroups` is rejected outright.
    body = step.source.split("@compute")[1]
    assert "%" not in body
    assert not re.search(r"\w / \d+u", body)
    assert "subgroups" not in step.source


def check_program(program: WgslProgram, op, device: Limits) -> None:
    known = {operand.name for operand in op.inputs} | {op.output.name} | set(program.scratch)
    for step in program.passes:
        check_pass(step, device, known)
    assert program.passes[-1].bindings[-1] == op.output.name
    assert {name for step in program.passes for name in step.bindings} == known
    assert all(size % 16 == 0 and size > 0 for size in program.scratch.values())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("matmul", "transpose")])
@given(n=sizes, device=limits)
def test_wgsl_of_vectors_fits_any_device(name, n, device):
    op = kernels.load(name)
    if 4 * n > device.max_binding_bytes:
        with pytest.raises(Unsupported, match=str(device.max_binding_bytes)):
            op.tuned["wgpu"][0].build({"n": n}, "float32", device)
        return
    check_program(op.tuned["wgpu"][0].build({"n": n}, "float32", device), op, device)


@pytest.mark.parametrize("name", ["matmul", "transpose"])
@given(n=st.integers(1, 5000), m=st.integers(1, 5000), k=st.integers(1, 5000), device=limits)
def test_wgsl_of_matrices_fits_any_device(name, n, m, k, device):
    op = kernels.load(name)
    for kernel in op.tuned["wgpu"]:
        check_program(kernel.build({"n": n, "m": m, "k": k}, "float32", device), op, device)


@pytest.mark.parametrize("name", NAMES)
def test_one_text_serves_many_sizes(name):
    op = kernels.load(name)
    sides = (1032, 1056, 1184) if name in ("matmul", "transpose") else (2**23, 2**23 + 4, 3 * 2**22)
    if name == "softmax":
        sides = (2**20, 3 * 2**20, 2**23)
    build = op.tuned["wgpu"][0].build
    assert len({build({"n": n}, "float32", WEBGPU).passes[0].source for n in sides}) <= 2


@pytest.mark.parametrize("name", NAMES)
def test_a_buffer_beyond_the_binding_limit_is_named_exactly(name):
    n = 6000 if name in ("matmul", "transpose") else 2**26
    with pytest.raises(Unsupported, match=r"134217728 bytes.*maxStorageBufferBindingSize") as caught:
        kernels.load(name).tuned["wgpu"][0].build({"n": n}, "float32", WEBGPU)
    assert caught.value.reason == "unsupported"


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_without_a_shader_is_named(name):
    for kernel in kernels.load(name).tuned["wgpu"]:
        with pytest.raises(Unsupported, match="bfloat16"):
            kernel.build({"n": 64}, "bfloat16", H200)


def test_half_and_double_need_the_device():
    build = kernels.load("add").tuned["wgpu"][0].build
    for dtype in ("float16", "float64"):
        with pytest.raises(Unsupported, match=f"no {dtype}"):
            build({"n": 64}, dtype, WEBGPU)
    assert build({"n": 64}, "float16", H200).passes[0].source.startswith("enable f16;")


@given(groups=st.integers(1, 2**32), most=st.sampled_from([65535, 2**31 - 1]))
def test_the_fold_covers_all_groups_and_wastes_less_than_one_row(groups, most):
    device = Limits(max_buffer_bytes=2**40, max_binding_bytes=2**40, max_groups_per_dimension=most)
    if groups > most * most:
        with pytest.raises(Unsupported, match=str(groups)):
            fold(groups, device)
        return
    x, y, z = fold(groups, device)
    assert groups <= x * y < groups + y
    assert max(x, y) <= most
    assert z == 1


@pytest.mark.parametrize(
    ("n", "rows", "columns"), [(512, 32, 32), (1024, 64, 128), (2048, 128, 128), (4096, 128, 128), (1, 32, 32)]
)
def test_the_tile_follows_the_size(n, rows, columns):
    tile = _matmul_wgsl.choose_tile(n, n, H200)
    assert (tile.rows, tile.columns) == (rows, columns)


def test_a_software_adapter_gets_the_shortest_text():
    device = Limits(max_buffer_bytes=2**30, max_binding_bytes=2**30, max_workgroup_bytes=32768, software=True)
    assert _matmul_wgsl.choose_tile(4096, 4096, device) == _matmul_wgsl.TILES[-1]


def test_a_device_too_small_for_any_tile_is_told_what_is_missing():
    tiny = Limits(max_buffer_bytes=2**30, max_binding_bytes=2**30, max_workgroup_bytes=4096)
    with pytest.raises(Unsupported, match="4096 bytes"):
        _matmul_wgsl.choose_tile(1024, 1024, tiny)


@pytest.mark.parametrize("tile", _matmul_wgsl.TILES)
def test_every_tile_is_written_out_in_full(tile):
    program = _matmul_wgsl.register(256, 256, 256, "float32", H200, tile)
    text = program.passes[0].source
    assert text.count("fma(") == tile.depth * tile.thread_rows * tile.thread_columns // 4
    assert len(re.findall(r"\bfor \(", text)) == 1


@given(columns=st.integers(1, 200_000), device=limits)
def test_a_softmax_row_is_held_or_looped_over(columns, device):
    layout = _softmax_wgsl.choose_layout(columns, device)
    units = columns // 4 if columns % 4 == 0 else columns
    assert layout.threads % layout.lanes == 0
    assert layout.threads <= device.max_workgroup_threads
    if layout.held:
        assert layout.lanes * layout.held >= units
        assert layout.whole == (layout.lanes * layout.held == units)
        assert layout.held <= (8 if layout.vectors else 16)
    else:
        assert layout.lanes == layout.threads


CUDA = [
    (name, dtype) for name in NAMES for dtype in kernels.load(name).dtypes if "cupy" in kernels.load(name).tuned
]
ELEMENTWISE = [(name, dtype) for name, dtype in CUDA if name not in ("matmul", "softmax", "transpose")]


def check_cuda(program: CudaProgram, op, sizes: tuple[int, ...]) -> None:
    (step,) = program.passes
    assert all(1 <= extent <= most for extent, most in zip(step.grid, (2**31 - 1, 65535, 65535), strict=True))
    assert math.prod(step.block) <= 1024
    assert step.arguments == (*(x.name for x in op.inputs), op.output.name, *sizes)
    signature = re.search(rf"\b{step.entry}\(([^)]+)\)", step.source)
    assert signature
    assert signature[1].count(",") + 1 == len(step.arguments)
    assert signature[1].count("long long") == len(sizes)
    assert step.source.count("{") == step.source.count("}")


@pytest.mark.parametrize(("name", "dtype"), ELEMENTWISE)
@given(n=st.integers(1, 2**33))
def test_cuda_covers_every_element(name, dtype, n):
    op = kernels.load(name)
    program = op.tuned["cupy"][0].build({"n": n}, dtype, H200)
    check_cuda(program, op, (n,))
    (step,) = program.passes
    assert step.grid[0] * step.block[0] * 16 // {"float64": 8, "float32": 4, "float16": 2}[dtype] >= n


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(rows=st.integers(1, 5000), columns=st.integers(1, 100_000))
def test_cuda_softmax_covers_every_row(dtype, rows, columns):
    op = kernels.load("softmax")
    program = op.tuned["cupy"][0].build({"n": rows * columns, "columns": columns}, dtype, H200)
    check_cuda(program, op, (rows, columns))
    (step,) = program.passes
    lanes = re.search(r"THREADS = (\d+), ROW_THREADS = (\d+);", step.source)
    assert lanes
    assert int(lanes[1]) == step.block[0]
    assert step.block[0] % 32 == 0  # the shuffles name all 32 threads of a warp
    assert step.grid[0] * (step.block[0] // int(lanes[2])) >= rows


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@given(m=st.integers(1, 100_000), n=st.integers(1, 100_000))
def test_cuda_transpose_covers_every_tile(dtype, m, n):
    op = kernels.load("transpose")
    program = op.tuned["cupy"][0].build({"n": n, "m": m}, dtype, H200)
    check_cuda(program, op, (m, n))
    (step,) = program.passes
    side = re.search(r"SIDE = (\d+);", step.source)
    assert side
    assert step.grid[0] * int(side[1]) >= n
    assert step.grid[1] * int(side[1]) >= m


def test_a_transpose_taller_than_a_cuda_grid_is_refused():
    with pytest.raises(Unsupported, match="65535"):
        kernels.load("transpose").tuned["cupy"][0].build({"n": 4, "m": 2**23}, "float32", H200)


def test_cublas_is_its_own_tuned_form():
    (kernel,) = kernels.load("matmul").tuned["cupy"]
    assert kernel.library
    with pytest.raises(Unsupported, match="cuBLAS") as caught:
        kernel.build({"n": 64}, "float32", H200)
    assert caught.value.reason == "no-implementation"
