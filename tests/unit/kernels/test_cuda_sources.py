"""CUDA as text: any size gives a launch that the device accepts and that covers every element, or Unsupported."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels import matmul, transpose
from gpubench.kernels.contract.kernel import CudaPass, CudaProduct, CudaProgram, Limits
from gpubench.kernels.contract.op import ITEMSIZE, Dtype
from gpubench.kernels.templates.elementwise import CudaElement
from gpubench.kernels.templates.reduce import CudaReduction
from gpubench.kernels.templates.rows.cuda import cuda_rows
from tests.shapes import H200

OLDER = Limits(max_buffer_bytes=2**37, max_binding_bytes=2**37, multiprocessors=80)
DTYPES: tuple[Dtype, ...] = ("float32", "float64", "float16", "bfloat16")
OPS = {
    name: op.tuned["cupy"][0]
    for name in kernels.usual()
    if "cupy" in (op := kernels.load(name)).tuned and not op.tuned["cupy"][0].library
} | {"conv2d": kernels.load("conv2d").tuned["cupy"][0]}
# What writes a kernel's text, where a template does.
WRITERS = {name: getattr(kernel.build, "__self__", None) for name, kernel in OPS.items()}
ELEMENTWISE = [name for name, writer in WRITERS.items() if isinstance(writer, CudaElement)]
REDUCTIONS = {name: writer for name, writer in WRITERS.items() if isinstance(writer, CudaReduction)}
BY_ROWS = [name for name in OPS if "columns" in kernels.load(name).options]

dtypes = st.sampled_from(DTYPES)
devices = st.sampled_from([H200, OLDER])


def built(name, params, dtype, device=H200) -> CudaProgram:
    program: CudaProgram = OPS[name].build(params, dtype, device)
    for step in program.passes:
        check_pass(step)
    known = {operand.name for operand in kernels.load(name).inputs} | {"out"} | set(program.scratch)
    assert {a for step in program.passes for a in step.arguments if isinstance(a, str)} <= known
    assert all(size > 0 for size in program.scratch.values())
    return program


def check_pass(step: CudaPass) -> None:
    assert all(1 <= extent <= most for extent, most in zip(step.grid, (2**31 - 1, 65535, 65535), strict=True))
    threads = math.prod(step.block)
    assert threads <= 1024
    assert threads % 32 == 0  # the shuffles name all 32 threads of a warp
    signature = re.search(rf"\b{step.entry}\(([^)]+)\)", step.source)
    assert signature
    declared = [part.strip() for part in signature[1].split(",")]
    assert len(declared) == len(step.arguments)
    for text, given_ in zip(declared, step.arguments, strict=True):
        assert text.startswith("long long ") == isinstance(given_, int)
    for opening, closing in ("{}", "()", "[]"):
        assert step.source.count(opening) == step.source.count(closing)
    assert "#include" not in step.source  # a machine with a driver and CuPy may have no CUDA headers


def number(name: str, source: str) -> int:
    found = re.search(rf"\b{name} = (\d+)", source)
    assert found
    return int(found[1])


def lanes(dtype: str) -> int:
    return 16 // ITEMSIZE[dtype]


@pytest.mark.parametrize("name", OPS)
def test_every_declared_dtype_is_there(name):
    for dtype in kernels.load(name).dtypes:
        assert built(name, {"n": 4096}, dtype).passes


@pytest.mark.parametrize("name", ELEMENTWISE)
@given(n=st.one_of(st.integers(1, 5000), st.integers(1, 2**34)), dtype=dtypes)
def test_every_element_is_covered(name, n, dtype):
    (step,) = built(name, {"n": n}, dtype).passes
    assert step.arguments[-1] == n
    blocks, threads = step.grid[0], step.block[0]
    assert (blocks - 1) * threads * lanes(dtype) < n <= blocks * threads * lanes(dtype)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_vector_longer_than_any_grid_is_refused(name):
    with pytest.raises(Unsupported, match="2147483647"):
        OPS[name].build({"n": 2**45}, "float32", H200)


@given(
    n=st.integers(1, 10**6), channels=st.integers(1, 300), filters=st.integers(1, 300), side=st.integers(1, 300),
    dtype=dtypes, device=devices,
)  # fmt: skip
def test_every_pixel_of_a_convolution_is_covered(n, channels, filters, side, dtype, device):
    """By tiles of 2 x 2 of Winograd's products, or pixel by pixel."""
    params = {"n": n, "channels": channels, "filters": filters, "side": side}
    *before, step = built("conv2d", params, dtype, device).passes
    if before:
        units, a_block = n * (-(-side // 2)) ** 2, number("TILES", step.source)
        own, count = before[0].arguments[-2:]
        assert own >= channels
        assert count >= own * filters
        assert before[0].grid[0] * before[0].block[0] >= count
        assert step.grid[1] * number("FILTERS", step.source) >= filters
    else:
        units, a_block = n * side * side, number("PIXELS", step.source)
        assert step.grid[1] * number("LANES_A_SIDE", step.source) ** 2 >= filters
    assert (step.grid[0] - 1) * a_block < units <= step.grid[0] * a_block


def rows(columns, dtype, blocks, packed):
    texts = ("forget(x_held[k]", "\0") if packed else ("", "forget(x_held[k]")
    return (f"softmax of {columns}", "softmax", {"n": columns, "columns": columns}, dtype, texts,
            {"CLUSTER": blocks}, {"block": (512 if columns > 4096 else 256, 1, 1)})  # fmt: skip


# An op, its params and dtype; a text that it has and one that it has not; constants of the text; launch.
TEXTS = [
    *(("what only moves is not converted", "copy", {"n": 64}, dtype, ("stored element(stored x) { return x; }", "narrow(x"), {}, {})
      for dtype in ("float16", "bfloat16")),
    *(("what is computed is", "add", {"n": 64}, dtype, ("narrow(x + y)", "stored element(stored x)"), {}, {})
      for dtype in ("float16", "bfloat16")),
    ("halves beside an exponential are divided in short", "sigmoid", {"n": 64}, "float16", ("", "\0"), {}, {"options": ("--prec-div=false", "-ftz=true")}),
    ("and of bfloat16 none is flushed", "sigmoid", {"n": 64}, "bfloat16", ("", "\0"), {}, {"options": ("--prec-div=false",)}),
    ("but no floats", "sigmoid", {"n": 64}, "float32", ("", "\0"), {}, {"options": ()}),
    ("and no halves alone", "div", {"n": 64}, "float16", ("", "\0"), {}, {"options": ()}),
    *(rows(*case) for dtype in ("float16", "bfloat16") for case in (
        (4096, dtype, 1, False), (16384, dtype, 1, False), (32768, dtype, 1, True), (65536, dtype, 2, True))),
    *((f"{name} of few", name, {"n": 2**20}, "float32", ("", "\0"), {}, {"grid": (256, 1, 1)}) for name in ("sum", "dot")),
    *((f"{name} in large blocks", name, {"n": 2**26}, "float32", ("", "\0"), {}, {"grid": (blocks, 1, 1), "block": (1024, 1, 1)})
      for name, blocks in (("sum", 1056), ("dot", 2112))),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name", "params", "dtype", "texts", "numbers", "launch"), TEXTS)
def test_a_text_is_written_for_its_size_and_dtype(what, name, params, dtype, texts, numbers, launch):
    (step,) = built(name, params, dtype).passes
    assert texts[0] in step.source
    assert texts[1] not in step.source
    assert {constant: number(constant, step.source) for constant in numbers} == numbers
    assert {field: getattr(step, field) for field in launch} == launch


@pytest.mark.parametrize(("n", "dtype", "passes"), [(64, "float32", 2), (64, "float64", 1), (1, "float32", 1)])
def test_winograds_products_need_many_images_and_no_double_precision(n, dtype, passes):
    assert len(built("conv2d", {"n": n}, dtype).passes) == passes


@pytest.mark.parametrize("name", sorted(OPS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_elements_are_no_work(name, dtype):
    if name in REDUCTIONS and REDUCTIONS[name].join == "maximum":
        with pytest.raises(Unsupported, match="no largest"):
            OPS[name].build({"n": 0}, dtype, H200)
    elif name in REDUCTIONS:
        (step,) = built(name, {"n": 0}, dtype).passes  # it writes the 0
        assert step.grid == (1, 1, 1)
    else:
        assert built(name, {"n": 0}, dtype).passes == ()


@pytest.mark.parametrize("name", sorted(OPS))
def test_one_text_serves_many_sizes(name):
    sides = (1032, 1056, 1184) if kernels.load(name).group == "matrix" else (2**23, 2**23 + 2**14, 3 * 2**22)
    assert len({built(name, {"n": n}, "float32").passes[0].source for n in sides}) == 1


@pytest.mark.parametrize("name", REDUCTIONS)
@given(n=st.one_of(st.integers(1, 10**6), st.integers(1, 2**36)), dtype=dtypes)
def test_a_reduction_is_one_launch_with_a_word_per_block(name, n, dtype):
    program = built(name, {"n": n}, dtype)
    (step,) = program.passes
    blocks = step.grid[0]
    shape = REDUCTIONS[name].grid(n, dtype)
    assert blocks <= shape.blocks
    assert step.block == (shape.threads, 1, 1)
    assert program.scratch["partial"] >= blocks * max(4, ITEMSIZE[dtype])
    assert program.scratch["ticket"] >= 4
    tile = number("THREADS", step.source) * number("VECTORS", step.source) * lanes(dtype)
    assert blocks == shape.blocks or (blocks - 1) * tile < n <= blocks * tile


@given(columns=st.integers(1, 200_000), dtype=dtypes, device=devices, arrays=st.sampled_from([1, 2]))
def test_a_row_is_held_by_its_threads_or_looped_over(columns, dtype, device, arrays):
    size = ITEMSIZE[dtype]
    layout = cuda_rows(columns, dtype, device, itemsize=size, arrays=arrays)
    width = layout.width
    assert layout.units * width == columns
    assert width in (1, 2, 4, 8)
    assert width == lanes(dtype) or columns % (2 * width)
    assert layout.lanes & (layout.lanes - 1) == 0
    assert layout.threads % layout.lanes == 0
    assert layout.threads in (128, 256, 512, 1024)
    if layout.cluster > 1:
        assert device.clusters
        assert layout.cluster in (2, 4, 8)
        assert layout.lanes == layout.threads >= 512
    if layout.held:
        assert layout.lanes * layout.held * layout.cluster >= layout.units
        assert layout.held * max(4, width * size) * arrays <= 128
    else:
        blocks = 8 if device.clusters else 1
        assert layout.units * max(4, width * size) * arrays > blocks * 1024 * 64


@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_up_to_65536_are_read_once(name, dtype):
    for columns in (256, 1024, 4096, 16384, 65536):
        (step,) = built(name, {"n": columns * 3, "columns": columns}, dtype).passes
        assert number("HELD", step.source) > 0


@pytest.mark.parametrize("name", BY_ROWS)
@given(rows=st.integers(1, 5000), columns=st.integers(1, 100_000), dtype=dtypes, device=devices)
def test_every_row_is_covered(name, rows, columns, dtype, device):
    (step,) = built(name, {"n": rows * columns, "columns": columns}, dtype, device).passes
    assert step.arguments[-2:] == (rows, columns)
    assert number("THREADS", step.source) == step.block[0]
    cluster = number("CLUSTER", step.source)
    assert (f"__cluster_dims__({cluster}, 1, 1)" in step.source) == (cluster > 1)
    assert step.grid[0] % cluster == 0
    assert step.grid[0] // cluster * (step.block[0] // number("ROW_THREADS", step.source)) >= rows


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "layernorm_grad"])
def test_each_fold_of_a_row_has_words_of_its_own(name):
    (step,) = kernels.load(name).tuned["cupy"][0].build({"n": 1024}, "float64", H200).passes
    words = re.findall(r"across<\w+>\(.*, spare\[(\d+)\]\)", step.source)
    held = re.search(r"real spare\[(\d+)\]", step.source)
    assert words == [str(word) for word in range(int(held[1]))]


@given(m=st.integers(1, 100_000), n=st.integers(1, 100_000), dtype=dtypes)
def test_every_tile_of_a_transpose_is_covered(m, n, dtype):
    (step,) = built("transpose", {"n": n, "m": m}, dtype).passes
    assert step.arguments == ("x", "out", m, n)
    if m % lanes(dtype) == 0 and n % lanes(dtype) == 0:
        down, across = (number(name, step.source) * lanes(dtype) for name in ("DOWN", "ACROSS"))
    else:
        down = across = number("SIDE", step.source)
    assert step.grid[0] == -(-m // down) * -(-n // across)


def test_a_transpose_taller_than_a_grid_in_y_is_done():
    assert built("transpose", {"n": 4, "m": 2**27}, "float32").passes


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_transpose_meets_no_memory_bank_twice(dtype):
    """Eight threads move 128 bytes at once: their eight places must differ modulo 8, writing and reading."""
    tile, width = transpose.CudaTile(), lanes(dtype)
    assert "tile[j * LANES + k][i ^ (j & 7)]" in transpose.squares(dtype, tile)
    assert "tile[j][i ^ (j / LANES & 7)]" in transpose.squares(dtype, tile)
    for first in range(0, tile.down * tile.across, 8):
        for k in range(width):
            squares = [divmod(q, tile.across) for q in range(first, first + 8)]
            written = {((j * width + k) * tile.down + (i ^ (j & 7))) % 8 for i, j in squares}
            assert len(written) == 8
    for first in range(0, tile.down * tile.across * width, 8):
        places = [divmod(q, tile.down) for q in range(first, first + 8)]
        assert len({(j * tile.down + (i ^ (j // width & 7))) % 8 for j, i in places}) == 8


def test_a_tile_beyond_shared_memory_is_refused():
    with pytest.raises(Unsupported, match="65536 bytes"):
        transpose.squares("float32", transpose.CudaTile(32, 32, 256))


@given(m=st.integers(1, 10**7), n=st.integers(1, 10**6), dtype=dtypes)
def test_gemv_covers_every_row_and_every_part_of_it(m, n, dtype):
    program = built("gemv", {"m": m, "n": n}, dtype)
    layout = matmul.cuda_layout(m, n, dtype, H200)
    first = program.passes[0]
    assert first.grid == (-(-m // layout.block_rows), layout.parts, 1)
    assert first.arguments == ("a", "x", "partial" if layout.parts > 1 else "out", m, n)
    assert len(program.passes) == (1 if layout.parts == 1 else 2)
    if layout.parts > 1:
        assert program.scratch["partial"] == m * layout.parts * max(4, ITEMSIZE[dtype])
        last = program.passes[1]
        assert last.grid[0] * (last.block[0] // 32) >= m


@pytest.mark.parametrize(("m", "n"), [(1, 2**26), (16, 2**22), (8192, 8192), (2**22, 16)])
def test_gemv_fills_the_device_whatever_the_shape(m, n):
    first = built("gemv", {"m": m, "n": n}, "float32").passes[0]
    assert math.prod(first.grid) >= 4 * 132


@pytest.mark.parametrize("turned", [{}, {"ta": 1}, {"tb": 1}, {"batch": 3}], ids=str)
def test_cublas_is_its_own_tuned_implementation(turned):
    """With resident data it is the library call; a stage of a workload has the same product in a given array."""
    (kernel,) = kernels.load("matmul").tuned["cupy"]
    assert kernel.repeats_library("resident-waited")
    (product,) = kernel.build({"m": 5, "n": 7, "k": 3, **turned}, "float32", H200).passes
    assert product == CudaProduct(
        "a", "b", "out", 5, 7, 3, "ta" in turned, "tb" in turned, turned.get("batch", 1)
    )


@pytest.mark.parametrize("name", BY_ROWS)
def test_a_row_that_32_bits_cannot_count_is_refused(name):
    """An odd length is loaded by element; eight halves a load make the same row short."""
    odd = 2**31 + 1
    with pytest.raises(Unsupported, match="counts up to") as refused:
        built(name, {"n": odd, "columns": odd}, "float16")
    assert refused.value.reason == "limit"
    built(name, {"n": 2**31, "columns": 2**31}, "float16")
    built(name, {"n": 2**31 - 2049, "columns": 2**31 - 2049}, "float16")
