"""CUDA as text: any size gives a launch that the device accepts and that covers every element, or Unsupported."""

import contextlib
import math
import re
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels import matmul
from gpubench.kernels.contract.kernel import CudaPass, CudaProduct, CudaProgram, Limits
from gpubench.kernels.contract.op import ITEMSIZE, Dtype
from gpubench.kernels.templates import kernel_pass
from gpubench.kernels.templates.matmul import few_rows
from tests.golden import programs
from tests.shapes import H200

OLDER = Limits(max_buffer_bytes=2**37, max_binding_bytes=2**37, multiprocessors=80)
DTYPES: tuple[Dtype, ...] = ("float32", "float64", "float16", "bfloat16")
LOADED = {op.name: op for op in map(kernels.load, kernels.computing_ops())}
EVERY = {name: op.tuned["cupy"][0] for name, op in LOADED.items() if "cupy" in op.tuned and not op.stages}
OPS = {name: kernel for name, kernel in EVERY.items() if name in kernels.usual() and not kernel.library}
SHAPES = {name: LOADED[name].output.shape({"n": 4096}) for name in OPS if LOADED[name].group != "matrix"}
ELEMENTWISE = [name for name, shape in SHAPES.items() if shape == (4096,)]
BY_ROWS = [name for name in OPS if "columns" in kernels.load(name).options]

dtypes = st.sampled_from(DTYPES)
devices = st.sampled_from([H200, OLDER])


def built(name, params, dtype, device=H200) -> CudaProgram:
    program: CudaProgram = EVERY[name].build(params, dtype, device)
    known = {operand.name for operand in kernels.load(name).operands} | set(program.scratch)
    for step in program.passes:
        if isinstance(step, CudaProduct):
            assert {step.a, step.b, step.out} <= known
            continue
        check_pass(step, dtype)
        assert {a for a in step.arguments if isinstance(a, str)} <= known
    assert all(size > 0 for size in program.scratch.values())
    return program


def check_pass(step: CudaPass, dtype: str) -> None:
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
    assert shared_bytes(step.source, dtype) <= 48 << 10  # what every device has without asking for more


def shared_bytes(source: str, dtype: str) -> int:
    """Of the arrays that a block shares, whose lengths are constants of the text."""
    constants: dict[str, int] = {}

    def value(text: str) -> int:
        condition, chooses, rest = text.partition(" ? ")
        if chooses:
            return value(rest.split(" : ")[0 if value(condition) else 1])
        return int(eval(text.replace("/", "//"), {}, constants))

    for name, text in re.findall(r"\b([A-Z][A-Z_]*) = ([^,;]+)[,;]", source):
        with contextlib.suppress(NameError, SyntaxError):  # a number of reals, or of what no array has
            constants[name] = value(text)
    stored = ITEMSIZE[dtype]
    sizes = {"real": max(4, stored), "stored": stored, "int": 4, "bool": 1, "Pack": 16}
    return sum(
        sizes[kind] * math.prod(map(value, re.findall(r"\[([^]]+)\]", names)))
        for kind, declared in re.findall(r"__shared__ (?:alignas\(16\) )?(\w+) ([^;]+);", source)
        for names in re.split(r", (?=[a-z])", declared)
    )


def number(name: str, source: str) -> int:
    found = re.search(rf"\b{name} = (\d+)", source)
    assert found
    return int(found[1])


def lanes(dtype: str) -> int:
    return 16 // ITEMSIZE[dtype]


@pytest.mark.parametrize("name", EVERY)
def test_every_program_is_launched_as_cuda_allows(name):
    op = kernels.load(name)
    for dtype in op.dtypes:
        for params, device in zip(programs.params_of(op), cycle(programs.DEVICES["cuda"]), strict=False):
            with contextlib.suppress(Unsupported):  # beyond a grid, or no row of a head
                assert op.fits(params) or built(name, params, dtype, device).passes


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


def test_a_refused_grid_names_the_limit_of_each_dimension():
    with pytest.raises(
        Unsupported, match="4 x 70000 x 1 blocks; a CUDA grid has 2147483647 x 65535 x 65535 at most"
    ):
        kernel_pass("odd", "float32", "", (4, 70_000, 1), 32, ())


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
        assert before[0].grid[0] * before[0].block[0] >= count >= own * filters
        assert step.grid[1] * number("FILTERS", step.source) >= filters
    else:
        units, a_block = n * side * side, number("PIXELS", step.source)
        assert step.grid[1] * number("LANES_A_SIDE", step.source) ** 2 >= filters
    assert (step.grid[0] - 1) * a_block < units <= step.grid[0] * a_block


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape == ()])
@given(n=st.one_of(st.integers(1, 10**6), st.integers(1, 2**36)), dtype=dtypes)
def test_a_reduction_is_one_launch_with_a_word_per_block(name, n, dtype):
    program = built(name, {"n": n}, dtype)
    (step,) = program.passes
    blocks, words = step.grid[0], program.scratch["partial"] // max(4, ITEMSIZE[dtype])
    assert step.block == (number("THREADS", step.source), 1, 1)
    assert program.scratch["ticket"] >= 4
    tile = step.block[0] * number("VECTORS", step.source) * lanes(dtype)
    assert blocks == words or (blocks < words and (blocks - 1) * tile < n <= blocks * tile)


@pytest.mark.parametrize("name", BY_ROWS)
@given(rows=st.integers(1, 5000), columns=st.integers(1, 100_000), dtype=dtypes, device=devices)
def test_every_row_is_covered(name, rows, columns, dtype, device):
    (step,) = built(name, {"n": rows * columns, "columns": columns}, dtype, device).passes
    assert (step.arguments[-2:], number("THREADS", step.source)) == ((rows, columns), step.block[0])
    cluster = number("CLUSTER", step.source)
    assert (f"__cluster_dims__({cluster}, 1, 1)" in step.source, step.grid[0] % cluster) == (cluster > 1, 0)
    threads, units = number("ROW_THREADS", step.source), number("HELD", step.source)
    assert step.grid[0] // cluster * (step.block[0] // threads) >= rows
    assert units == 0 or units * threads * cluster * number("WIDTH", step.source) >= columns


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "layernorm_grad"])
def test_each_fold_of_a_row_has_words_of_its_own(name):
    (step,) = built(name, {"n": 1024}, "float64").passes
    words = re.findall(r"across<\w+>\(.*, spare\[(\d+)\]\)", step.source)
    room = re.search(r"real spare\[(\d+)\]", step.source)
    assert words == [str(word) for word in range(int(room[1]))]
    (long,) = built("softmax", {"n": 2**19, "columns": 2**19}, "float32").passes
    assert "element(exp(term_0(wide(x_unit.lane[j])) - top_0), number_0)" in long.source, "no register holds it"


@pytest.mark.parametrize("name", ["linear", "linear_grad_relu", "norm_linear"])
@given(n=st.integers(1, 16), m=st.integers(1, 5000), k=st.integers(1, 9000), dtype=dtypes)
def test_few_rows_are_covered_by_blocks_of_columns(name, n, m, k, dtype):
    step = built(name, {"n": n, "m": m, "k": k}, dtype).passes[-1]
    if step.entry == "gpubench_few_rows":
        turned = "w_units" in step.source
        columns = number("UNITS", step.source) * (1 if turned else number("WIDTH", step.source))
        assert number("UNITS", step.source) * number("SHARES", step.source) == step.block[0]
        assert (step.grid[0] - 1) * columns < m <= step.grid[0] * columns
        assert step.grid[1] * number("ROWS", step.source) >= n


@pytest.mark.parametrize(("n", "k", "normed", "one"), [
    (4, 3004, True, True), (4, 3005, True, False), (4, 9000, False, True), (16, 64, True, True), (17, 64, True, False),
])  # fmt: skip
def test_a_block_norms_the_rows_that_it_can_hold(n, k, normed, one):
    rows = few_rows.WeightedRows(("x", "w"), n, 64, k, "float32", normed=normed)
    assert (few_rows.cuda_pass(rows, H200) is not None) == one


@pytest.mark.parametrize("name", ["attention", "attention_grad", "argmax"])
@given(n=st.integers(1, 5000), heads=st.integers(1, 9), dtype=dtypes)
def test_every_row_of_a_layer_is_covered(name, n, heads, dtype):
    params = {"n": n, **({"classes": 7 * heads} if name == "argmax" else {"heads": heads, "width": 12 * heads})}
    for step in built(name, params, dtype).passes:
        if name == "argmax":
            rows = step.block[0] // number("ACROSS", step.source)
        else:
            rows = number("ROWS", step.source) * (number("ACROSS", step.source) if name == "attention" else 1)
            assert step.grid[1] == heads
        assert (step.grid[0] - 1) * rows < n <= step.grid[0] * rows


@pytest.mark.parametrize("name", OPS)
def test_one_text_serves_many_sizes(name):
    """A text of its own takes a size seconds to compile."""
    sides = (1032, 1056, 1184) if kernels.load(name).group == "matrix" else (2**23, 2**23 + 2**14, 3 * 2**22)
    assert len({built(name, {"n": n}, "float32").passes[0].source for n in sides}) == 1


@given(m=st.integers(1, 100_000), n=st.integers(1, 100_000), dtype=dtypes)
def test_every_tile_of_a_transpose_is_covered(m, n, dtype):
    (step,) = built("transpose", {"n": n, "m": m}, dtype).passes
    assert step.arguments == ("x", "out", m, n)
    if m % lanes(dtype) == 0 and n % lanes(dtype) == 0:
        down, across = (number(name, step.source) * lanes(dtype) for name in ("DOWN", "ACROSS"))
    else:
        down = across = number("SIDE", step.source)
    assert step.grid[0] == -(-m // down) * -(-n // across)


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


@pytest.mark.parametrize("name", BY_ROWS)
def test_a_row_that_32_bits_cannot_count_is_refused(name):
    """An odd length is loaded by element; eight halves a load make the same row short."""
    odd = 2**31 - 1023
    with pytest.raises(Unsupported, match="counts up to") as refused:
        built(name, {"n": odd, "columns": odd}, "float16")
    assert refused.value.reason == "limit"
    built(name, {"n": 2**31, "columns": 2**31}, "float16")
    built(name, {"n": odd - 2, "columns": odd - 2}, "float16")
