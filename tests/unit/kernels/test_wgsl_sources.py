"""WGSL as text: any size and any limits give launches that the device accepts, or Unsupported with the limit."""

import math
import re
from itertools import cycle

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels import matmul
from gpubench.kernels.contract.kernel import Limits, WgslPass, WgslProgram
from gpubench.kernels.templates import fold, vectors, windows, winograd
from gpubench.kernels.templates.matmul import few_rows
from gpubench.kernels.templates.rows.formula import trace_row
from gpubench.kernels.templates.rows.wgsl import layout
from tests.examples import examples
from tests.golden import programs
from tests.rows import rows
from tests.shapes import H200, WEBGPU

OPS = {name: kernels.load(name) for name in kernels.usual() if "wgpu" in kernels.load(name).tuned}
MATRICES = [name for name, op in OPS.items() if op.group == "matrix"]
VECTORS = [name for name in OPS if name not in MATRICES]
# Their loops differ by the operands and by what comes out: an element, a row or a number.
LOOPS = {(len(OPS[x].inputs), OPS[x].output.shape({"n": 4096}), *OPS[x].options): x for x in VECTORS}.values()
DTYPES = ("float32", "float64", "float16")
BYTES = {
    "f16": 2, "f32": 4, "f64": 8, "vec2<f32>": 8, "vec4<f32>": 16, "vec4<f64>": 32, "vec2<f64>": 16, "vec4<u32>": 16,
    "Best": 16,
}  # fmt: skip

limits = st.builds(
    Limits, max_buffer_bytes=st.just(2**40), max_binding_bytes=st.sampled_from([2**27, 2147483644, 2**31, 2**34]),
    max_workgroup_bytes=st.sampled_from([16384, 32768, 49152, 65536]),
    max_workgroup_threads=st.sampled_from([128, 256, 512, 1024]),
    max_groups_per_dimension=st.sampled_from([65535, 2**31 - 1]),
    multiprocessors=st.one_of(st.none(), st.integers(1, 300)), software=st.booleans(), float16=st.just(True),
    float64=st.just(True), binding_alignment=st.sampled_from([16, 32, 256]),
)  # fmt: skip
sizes = st.one_of(st.integers(1, 5000), st.integers(1, 2**32), st.sampled_from([2**k for k in range(33)]))


def workgroup_bytes(source: str) -> int:
    total, real = 0, re.search(r"alias real = (\w+);", source)
    for declared in re.findall(r"var<workgroup> \w+: (.+);", source):
        counts = [int(count) for count in re.findall(r", (\d+)>", declared)]
        declared = declared.replace("real", real[1] if real else "real")
        element = re.search(r"(vec\d<\w+>|f\d\d|Best)", declared)
        assert element
        total += math.prod(counts) * BYTES[element[1]]
    return total


def check_limits(step: WgslPass, device: Limits, known: set[str]) -> None:
    assert all(1 <= extent <= device.max_groups_per_dimension for extent in step.grid)
    threads = re.search(r"@workgroup_size\(([\d, ]+)\)", step.source)
    assert threads
    assert math.prod(int(extent) for extent in threads[1].split(",")) <= device.max_workgroup_threads
    assert workgroup_bytes(step.source) <= device.max_workgroup_bytes
    assert set(step.bindings) <= known
    assert len(step.bindings) <= 8  # storage buffers of a stage that WebGPU promises
    assert ("f16" in re.findall(r"\w+", step.source)) == step.source.startswith("enable f16;")


def check_pass(step: WgslPass, device: Limits, known: set[str]) -> None:
    check_limits(step, device, known)
    assert "fn main(" in step.source
    assert set(step.windows) <= set(step.bindings)
    declared = re.findall(r"@group\(0\) @binding\((\d+)\) var<(.+?)>", step.source)
    wanted = [*step.bindings, *(["the sizes"] if step.uniform else [])]
    assert [int(number) for number, _ in declared] == list(range(len(wanted)))
    assert ("uniform" in [access for _, access in declared]) == bool(step.uniform)
    assert all(0 <= word < 2**32 for word in step.uniform)
    assert step.source.count("{") == step.source.count("}")
    assert step.source.count("(") == step.source.count(")")
    # naga turns / and % into guarded calls, also by constants; `enable subgroups` is rejected outright. Once an element,
    # where splits are added up from memory, the column of a bias may cost one.
    body = step.source.split("@compute")[1]
    assert "%" not in re.sub(r"_with\[i % \d+u\]", "", body)
    assert not re.search(r"\w / \d+u", body)
    assert "subgroups" not in step.source
    assert "bitcast<vec2<f16>>" not in step.source  # compiled to wrong values by naga 29


def check_windows(program: WgslProgram, sizes: dict[str, int], device: Limits) -> None:
    """Each operand is bound whole, or in windows that are aligned, fit a binding and cover it without overlap."""
    for name, size in sizes.items():
        padded = -(-size // 16) * 16
        bound = [step.windows.get(name) for step in program.passes if name in step.bindings]
        if None in bound:
            assert set(bound) == {None}
            assert padded <= device.max_binding_bytes
            continue
        end = 0
        for offset, length in bound:
            assert (offset, offset % device.binding_alignment, length % 16) == (end, 0, 0)
            assert 0 < length <= device.max_binding_bytes
            end = offset + length
        assert not bound or end == padded


def check_program(program: WgslProgram, op, params, dtype: str, device: Limits) -> None:
    operands = {x.name: x.bytes(params, dtype) for x in op.operands}
    known = set(operands) | set(program.scratch)
    for step in program.passes:
        check_pass(step, device, known)
    assert all(size > 0 for size in program.scratch.values())
    check_windows(program, operands, device)
    assert op.output.name in program.passes[-1].bindings
    assert {name for step in program.passes for name in step.bindings} == known


def built(kernel, params, dtype: str, device: Limits, refused: re.Pattern[str]) -> WgslProgram | None:
    try:
        return kernel.build(params, dtype, device)
    except Unsupported as error:
        if not refused.search(error.detail):
            raise
        return None


COMPUTING = [kernels.load(name) for name in kernels.computing_ops()]
EVERY = {op.name: op for op in COMPUTING if "wgpu" in op.tuned and not op.stages}


@pytest.mark.parametrize("name", EVERY)
def test_every_program_fits_its_device(name):
    op = EVERY[name]
    for kernel in op.tuned["wgpu"]:
        for dtype in {*DTYPES} & {*(kernel.dtypes or op.dtypes)}:
            for params, device in zip(programs.params_of(op), cycle(programs.DEVICES["wgsl"]), strict=False):
                made = [] if op.fits(params) else programs.build(kernel, params, dtype, device)
                made = [program for _, program in made] if isinstance(made, list) else [made]
                sizes = {x.name: x.bytes(params, dtype) for x in op.operands}
                for program in made:
                    if not isinstance(program, str):  # a reason why there is none
                        for step in program.passes:
                            check_limits(step, device, {*sizes} | {*program.scratch})
                        check_windows(program, sizes | dict(program.scratch), device)


@pytest.mark.parametrize("name", ["add", "sum"])
def test_long_vectors_have_two_units_a_thread_and_two_passes(name):
    """From eight groups a multiprocessor on, or from 64 KiB."""
    few = 4 * 256 * 2 * 8 * 132 if name == "add" else 4 * 4096 + 1
    for n, many in ((few, True), (few - 1 if name == "sum" else few - 4, False)):
        passes = EVERY[name].kernel("wgpu", "float32").build({"n": n}, "float32", H200).passes
        assert (len(passes) == 2 if name == "sum" else "let i1 =" in passes[0].source) == many


def test_a_device_that_holds_a_block_of_winograds_products_takes_them():
    program = winograd.wgsl_program(8, 64, 64, 32, "float32", H200)
    least = {
        "max_workgroup_bytes": workgroup_bytes(program.passes[-1].source), "max_workgroup_threads": winograd.THREADS,
    }  # fmt: skip
    assert winograd.fits(msgspec.structs.replace(H200, **least))
    for name, value in least.items():
        assert not winograd.fits(msgspec.structs.replace(H200, **{name: value - 1}))
    with pytest.raises(Unsupported, match="out has 2097152 bytes"):
        kernels.load("conv2d").kernel("wgpu", "float32").candidates(
            {"n": 8, "channels": 1, "filters": 64, "side": 32}, "float32",
            msgspec.structs.replace(H200, max_binding_bytes=2**21 - 16),
        )  # fmt: skip


@pytest.mark.parametrize(("k", "rows"), [
    (64, 4), (1904, 4), (1905, 3), (2160, 3), (2161, 2), (4832, 2), (4833, None),
])  # fmt: skip
def test_a_group_norms_as_many_rows_as_it_can_hold_but_no_less_than_half(k, rows):
    program = few_rows.wgsl_program(few_rows.WeightedRows(("x", "w"), 4, 64, k, "float32", normed=True), H200)
    held = program and int(re.search(r"sums: array<array<vec4<f32>, (\d)>", program.passes[0].source)[1])
    assert held == rows
    assert not rows or program.passes[0].grid[2] == -(-4 // rows)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_without_a_norm_have_a_group_where_memory_is_less_than_webgpu_promises(dtype):
    limits = msgspec.structs.replace(H200, max_workgroup_bytes=16352)
    assert few_rows.wgsl_program(few_rows.WeightedRows(("x", "w"), 4, 1024, 512, dtype, normed=False), limits)


@pytest.mark.parametrize("name", LOOPS)
@given(n=sizes, dtype=st.sampled_from(DTYPES), device=limits)
@settings(max_examples=examples(40))
def test_wgsl_of_vectors_fits_any_device(name, n, dtype, device):
    op, params = OPS[name], {"n": n}
    # No exponential in double precision; a row of all n, longer than a binding.
    refused = re.compile("double precision|maxStorageBufferBindingSize")
    program = built(op.tuned["wgpu"][0], params, dtype, device, refused)
    if program is not None:
        check_program(program, op, params, dtype, device)


@pytest.mark.parametrize(("name", "dtype"), [
    *((name, "float32") for name in MATRICES), *((name, dtype) for name in ("transpose", "gemv") for dtype in ("float64", "float16")),
])  # fmt: skip
@given(n=st.integers(1, 5000), m=st.integers(1, 5000), k=st.integers(1, 5000), device=limits)
@settings(max_examples=examples(40))
def test_wgsl_of_matrices_fits_any_device(name, dtype, n, m, k, device):
    op, params = OPS[name], {"n": n, "m": m, "k": k}
    for kernel in op.tuned["wgpu"]:
        program = built(kernel, params, dtype, device, re.compile("256 threads a group|BindingSize"))
        if program is not None:
            check_program(program, op, params, dtype, device)


@pytest.mark.parametrize(("name", "dtype", "most"), [
    *(("matmul", dtype, 1500) for dtype in DTYPES), *((name, dtype, 16) for name in ("linear", "norm_linear") for dtype in DTYPES),
])  # fmt: skip
@given(data=st.data(), m=st.integers(1, 1500), k=st.integers(1, 3000), batch=st.integers(1, 4), device=limits)
@settings(max_examples=examples(15))
def test_every_candidate_fits_any_device(name, dtype, most, data, m, k, batch, device):
    """Of few rows, too, for which an op has a kernel of its own."""
    op, params = EVERY[name], {"n": data.draw(st.integers(1, most)), "m": m, "k": k}
    params |= {"batch": batch} if name == "matmul" else {}
    for candidate in op.tuned["wgpu"][0].candidates(params, dtype, device):
        check_program(candidate.build(), op, params, dtype, device)


# Ops, params, dtype, what the device has beside the least of WebGPU, and words of the reason.
@rows("names, params, dtype, limits, words", {
    "a matrix beyond a binding": (MATRICES, {"n": 6000}, "float32", {}, r"134217728 bytes.*maxStorageBufferBindingSize"),
    "a vector beyond a buffer": (VECTORS, {"n": 2**27}, "float32", {}, r"has 536870912 bytes.* 268435456 bytes \(maxBufferSize\)"),
    "a row beyond a binding": (["softmax"], {"n": 3 * 2**19, "columns": 2**19}, "float32", {"max_binding_bytes": 1 << 20}, "1048576 bytes that"),
    "a dtype without a shader": (OPS, {"n": 64}, "bfloat16", {"float16": True, "float64": True}, "bfloat16"),
    **{f"a device without {dtype}": (["add"], {"n": 64}, dtype, {}, f"no {dtype}.*shader-f") for dtype in ("float16", "float64")},
})  # fmt: skip
def test_what_a_device_lacks_is_named_exactly(names, params, dtype, limits, words):
    device = msgspec.structs.replace(WEBGPU, **limits)
    for name in names:
        with pytest.raises(Unsupported, match=words) as caught:
            OPS[name].tuned["wgpu"][0].build(params, dtype, device)
        assert caught.value.reason == ("limit" if dtype == "float32" else "no-dtype")


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_beyond_one_binding_takes_windows(name):
    passes = OPS[name].tuned["wgpu"][0].build({"n": 2**26}, "float32", WEBGPU).passes
    assert len([step for step in passes if step.windows]) == 2


@given(
    total=st.integers(0, 2**33), itemsize=st.one_of(st.sampled_from([2, 4, 8]), st.integers(1, 2**16)), device=limits,
)  # fmt: skip
@example(total=2**31 - 2**14, itemsize=4, device=msgspec.structs.replace(WEBGPU, max_binding_bytes=2**34))
@example(total=68, itemsize=4, device=msgspec.structs.replace(WEBGPU, max_binding_bytes=272))
def test_windows_cover_every_item_once_and_fit_a_binding(total, itemsize, device):
    found = windows(total, itemsize, device)
    assert sum(window.count for window in found) == total
    first, whole = 0, -(-total * itemsize // 16) * 16
    assert (len(found) == 1) == (whole <= min(device.max_binding_bytes, 2**32 - 2**16))
    for window in found:
        assert (window.first, window.first * itemsize % device.binding_alignment) == (first, 0)
        assert -(-window.count * itemsize // 16) * 16 <= min(device.max_binding_bytes, 2**32 - 2**16)
        first += window.count
    # The fewest, up to what alignment may cost.
    assert len(found) <= 1 + -(-total * itemsize // (min(device.max_binding_bytes, 2**32 - 2**16) // 2))


@given(groups=st.integers(1, 65535**2), most=st.sampled_from([65535, 2**31 - 1]))
def test_the_fold_covers_all_groups_and_wastes_less_than_one_row(groups, most):
    device = Limits(max_buffer_bytes=2**40, max_binding_bytes=2**40, max_groups_per_dimension=most)
    x, y, z = fold(groups, device)
    assert groups <= x * y < groups + y
    assert max(x, y) <= most
    assert z == 1


@given(columns=st.integers(1, 200_000), dtype=st.sampled_from(DTYPES), device=limits)
def test_a_row_is_held_as_far_as_registers_go(columns, dtype, device):
    for inputs in (("x",), ("y", "dy")):
        rows = layout(trace_row("first", lambda m, x, *others: x, inputs, ()), columns, dtype, device)
        units = columns // rows.storage.width
        assert rows.storage.width in (1, vectors(dtype).width)
        assert columns % rows.storage.width == rows.threads % rows.lanes == 0
        assert 1 <= rows.held <= 16
        assert (rows.rest, rows.whole) == (rows.lanes * rows.held < units, rows.lanes * rows.held == units)
        assert rows.lanes * (rows.held - 1) < units  # no register is idle in every lane


@given(m=st.integers(1, 2**22), units=st.integers(1, 2**24), device=limits)
def test_gemv_gives_every_row_and_every_unit_to_somebody(m, units, device):
    shape = matmul.wgsl_layout(m, units, device)
    assert shape.threads % shape.lanes == 0
    span, chunks = matmul.chunks(m, units, shape, device)
    assert span * (chunks - 1) < units <= span * chunks
    assert 4 * m * chunks <= max(4 * m, 2**27)


@pytest.mark.parametrize("name", [name for name in OPS if name != "matmul"])  # whose sizes are constants
def test_one_text_serves_many_sizes(name):
    """A text of its own takes a size a tenth of a second to compile."""
    sides = (1032, 1056, 1184) if name in MATRICES else (2**20, 3 * 2**20, 2**23)
    build = OPS[name].tuned["wgpu"][0].build
    assert len({build({"n": n}, "float32", WEBGPU).passes[0].source for n in sides}) <= 2
