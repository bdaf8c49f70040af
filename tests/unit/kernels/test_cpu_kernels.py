"""The CPU's kernels, compiled and by NumPy's own calls: right in every way that a machine may choose, on one thread and on several."""

import importlib
import math
import os
import re
import subprocess
import sys
from functools import partial

import msgspec
import numba
import numpy as np
import pytest
import scipy.special

from gpubench import kernels
from gpubench.backends.numpy import BACKEND, compiled, machine_code
from gpubench.backends.numpy.compiled import NumbaThreads
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.shared.host import aligned_array, random_inputs
from gpubench.backends.shared.reference import sentinels
from gpubench.base.errors import BuildError
from gpubench.kernels import matmul
from gpubench.kernels.contract.kernel import Limits, NumbaProgram
from gpubench.kernels.contract.op import Operand, Range, Tolerance
from gpubench.kernels.templates import cpu
from gpubench.result.case import Case
from gpubench.result.store import cache
from tests.judging import compare

THREADS = 3
LIMITS = Limits(max_buffer_bytes=2**62, max_binding_bytes=2**62, multiprocessors=THREADS)


def compiled_kernel(op):
    return next((kernel for kernel in op.tuned.get("numpy", ()) if kernel.language == "numba"), None)


OPS = [name for name in kernels.usual() if compiled_kernel(kernels.load(name))]
ELEMENTWISE = [name for name in OPS if kernels.load(name).output.shape({"n": 4096}) == (4096,)]
DTYPES = ("float32", "float64", "float16")


@pytest.fixture(scope="module")
def pool():
    return NumbaThreads(THREADS)


def outputs(pool, op, inputs, dtype, params, beyond=0):
    """The name and the output of each candidate, `beyond` elements past the begin of a cache line."""
    arrays = {operand.name: array for operand, array in zip(op.inputs, inputs, strict=True)}
    shape = op.output.shape(params)
    for candidate in compiled_kernel(op).candidates(params, dtype, LIMITS):
        output = aligned_array((math.prod(shape) + beyond,), dtype)[beyond:].reshape(shape)
        output.fill(0.25)
        launch = pool.launch(candidate.build(), {**arrays, "out": output})
        launch()
        launch()
        yield candidate.name, output


def judge(op, inputs, dtype):
    """Compares an output with the reference, which is made once."""
    wide = [x.astype(np.float64) for x in inputs]
    with np.errstate(all="ignore"):
        scale = np.asarray(op.tolerance.scale(np, *wide)) if op.tolerance.scale else None
        want = np.asarray((op.reference or op.expr)(np, *wide), np.float64)
    return lambda output: compare(op, dtype, output, want, scale)


def shapes(op):
    """Sizes around the widths of vectors and blocks, rows shorter and longer than a thread's share."""
    if op.name == "transpose":
        return [{"n": 1}, {"n": 15}, {"n": 17}, {"n": 130}, {"n": 257, "m": 33}]
    if "columns" in op.options:
        rows = [{"n": 5 * 64, "columns": 64}, {"n": 3 * 17, "columns": 17}, {"n": 10_000, "columns": 10_000}]
        return [*rows, {"n": 2 * 9000, "columns": 9000}, {"n": 300 * 64, "columns": 64}, {"n": 1}]
    return [{"n": n} for n in (1, 15, 17, 4097, 65_537)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_every_candidate_is_right_at_every_size(pool, name, dtype):
    """All shapes in float32; in the other dtypes the first and the longest, since a shape does not depend on them."""
    op = kernels.load(name)
    every, seen = shapes(op), set()
    for params in every if dtype == "float32" else (every[0], max(every, key=lambda one: one["n"])):
        inputs = random_inputs(op, params, dtype, seed=3)
        before, judged = [x.copy() for x in inputs], judge(op, inputs, dtype)
        for candidate, output in outputs(pool, op, inputs, dtype, params):
            seen.add(candidate)
            assert judged(output).ok, (params, candidate)
        assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))
    assert {"1 thread", "2 threads", "3 threads"} <= seen or name == "transpose"


@pytest.mark.parametrize(("name", "dtype", "params"), [
    ("add", "float32", {"n": 2100 * 1024}),
    *((name, "float32", {"n": 2100 * 1024, "columns": 1024}) for name in ("softmax", "softmax_grad")),
    # Sides that no rectangle fills.
    ("transpose", "float32", {"n": 1459, "m": 1456}), ("transpose", "float64", {"n": 1037, "m": 1032}),
])  # fmt: skip
def test_stores_past_the_caches_are_right_too(pool, name, dtype, params):
    """Every candidate is right, and some write past the caches; also where a split hands over a part of an array, which
    begins at no cache line."""
    op = kernels.load(name)
    inputs = random_inputs(op, params, dtype, seed=3)
    judged, seen = judge(op, inputs, dtype), set()
    for beyond in (0, 2):
        for candidate, output in outputs(pool, op, inputs, dtype, params, beyond):
            seen.add(candidate)
            assert judged(output).ok, (candidate, beyond)
    assert "streaming" in "".join(seen)


@pytest.mark.parametrize("declare", [kernels.elementwise, partial(kernels.reduction, join="add")])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_package_may_declare_an_op_of_any_number_of_inputs(pool, declare, count):
    """A compiled kernel takes three."""
    inputs = tuple(Operand(name, lambda params: (params["n"],), Range(1, 2)) for name in "xyzw"[:count])
    op = declare(
        name="product", group="vector", summary="", inputs=inputs, flops_per_element=count, tolerance=Tolerance(16),
        formula=lambda m, *x: math.prod(x),
    )  # fmt: skip
    assert (compiled_kernel(op) is None) == (count > 3)
    if count <= 3:
        arrays = random_inputs(op, {"n": 1000}, "float32", seed=1)
        judged = judge(op, arrays, "float32")
        assert all(judged(output).ok for _, output in outputs(pool, op, arrays, "float32", {"n": 1000}))


@pytest.mark.parametrize(("cores", "elements", "counts"), [
    (3, 8191, [1]), (3, 8192, [1, 2]), (3, 12_287, [1, 2]), (3, 12_288, [1, 2, 3]), (3, 2**17 - 1, [1, 2, 3]),
    (3, 2**17, [3, 1, 2]), (3, 2**20, [3, 1, 2]), (3, 2**20 + 1, [3, 2]), (3, 2**21 + 1, [3]), (3, 2**30, [3]),
    (4, 2**14, [1, 2, 4]), (None, 2**14, [1]),
])  # fmt: skip
def test_threads_are_tried_that_have_neither_too_few_elements_nor_too_many(cores, elements, counts):
    assert cpu.thread_counts(elements, msgspec.structs.replace(LIMITS, multiprocessors=cores)) == counts


SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e4, -3e4, 1e-3)
FAR = (100.0, -100.0, 720.0, -720.0)  # beyond the powers of one dtype, but not of the other


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_not_finite_comes_out_as_in_numpy(pool, name, dtype):
    op = kernels.load(name)
    count = len(op.inputs)
    grid = np.array(np.meshgrid(*[SPECIAL + FAR * (count == 1)] * count)).reshape(count, -1)
    inputs = [np.ascontiguousarray(row, dtype=dtype) for row in grid]
    params = {"n": inputs[0].size}
    _, output = next(outputs(pool, op, inputs, dtype, params))
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64) for x in inputs]
        want = np.asarray(op.expr(np, *wide)).astype(dtype)
    for kind in (np.isnan, np.isposinf, np.isneginf):
        differ = kind(output) != kind(want)
        assert not differ.any(), [row[differ] for row in (*inputs, output, want)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name in OPS if name not in ELEMENTWISE and name != "transpose"])
def test_one_such_value_spreads_as_in_numpy(pool, name, value):
    op = kernels.load(name)
    params = {"n": 3 * 10_000, "columns": 10_000} if "columns" in op.options else {"n": 30_000}
    for place in (0, 4097, 29_999):
        inputs = random_inputs(op, params, "float32", seed=4)
        inputs[0].reshape(-1)[place] = value
        with np.errstate(all="ignore"):
            want = np.asarray(op.expr(np, *inputs))
        for candidate, output in outputs(pool, op, inputs, "float32", params):
            assert np.array_equal(np.isnan(output), np.isnan(want)), (candidate, place)
            assert np.array_equal(np.isinf(output), np.isinf(want)), (candidate, place)


def test_a_masked_element_has_no_share_and_a_masked_row_is_nan(pool):
    op, params = kernels.load("softmax"), {"n": 4 * 5000, "columns": 5000}
    x = np.zeros((4, 5000), np.float32)
    x[0, 10:] = x[1] = x[2, :4999] = -np.inf
    for _, output in outputs(pool, op, [x], "float32", params):
        assert np.all(output[0, 10:] == 0)
        np.testing.assert_allclose(output[0, :10], 0.1, rtol=1e-6)
        assert np.all(np.isnan(output[1]))
        assert output[2, 4999] == 1
    one = np.full((1, 9000), -np.inf, np.float32)  # one row that all threads share
    one[0, 8999] = 3
    for _, output in outputs(pool, op, [one], "float32", {"n": 9000, "columns": 9000}):
        assert output[0, 8999] == 1
        assert np.all(output[0, :8999] == 0)


@pytest.mark.parametrize("name", [name for name in OPS if name != "transpose"])
def test_the_loops_are_vectors(pool, name):
    """What LLVM does not vectorize is right and ten times slower: the machine code tells, whatever the machine's load."""
    limits = Limits(max_buffer_bytes=1 << 40, max_binding_bytes=1 << 40)
    candidate = compiled_kernel(kernels.load(name)).candidates({"n": 1 << 20}, "float32", limits)[0]
    assembly = pool.assembly(candidate.build())
    packed = r"\bv?(?:mul|add|max|div|and|mov|fm\w*)\w*p[sd]\b|\bf(?:mul|add|mla)\s+v\d"
    # At least a load and a store: LLVM does not unroll every loop on every processor.
    assert len(re.findall(packed, assembly)) >= 2, assembly[:2000]


@pytest.mark.parametrize(("name", "reference", "low", "high", "ulps"), [
    ("exp32", np.exp, -87, 88, 2), ("exp64", np.exp, -708, 709, 3), ("tanh32", np.tanh, -9, 9, 5), ("tanh64", np.tanh, -19, 19, 4),
    ("log32", np.log, 1e-44, 3e38, 1), ("log64", np.log, 1e-320, 1e308, 1), ("expm1_32", np.expm1, -87, 88, 6),
    ("log1p32", np.log1p, -0.9999, 3e38, 3), ("log1p64", np.log1p, -0.9999, 1e308, 3), ("erf32", scipy.special.erf, -5, 5, 1),
    ("sin32", np.sin, -1e9, 1e9, 1), ("cos32", np.cos, -1e9, 1e9, 1),
])  # fmt: skip
def test_elementary_functions_are_vectors_and_nearly_exact(name, reference, low, high, ulps):
    native = importlib.import_module("gpubench.backends.numpy.native")
    function, dtype = getattr(native, name), np.dtype(f"float{name[-2:]}")

    @numba.njit(fastmath=native.BODY, error_model="numpy")
    def loop(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    magnitudes = [
        np.geomspace(max(1e-5 * (low < 0), low), high, 3000),
        -np.geomspace(1e-5, max(-low, 1e-4), 3000),
    ]
    x = np.concatenate([magnitudes[0], *(magnitudes[1:] if low < 0 else ()), SPECIAL]).astype(dtype)
    loop(x, out := np.empty_like(x))
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64 if reference is scipy.special.erf else np.longdouble))
        error = np.abs(out - want) / np.spacing(np.abs(want.astype(dtype)))
    finite = np.isfinite(want.astype(dtype)) & (np.abs(want) >= np.finfo(dtype).tiny)
    assert error[finite].max() <= ulps
    np.testing.assert_array_equal(out[~np.isfinite(want)], want[~np.isfinite(want)].astype(dtype))
    (assembly,) = loop.inspect_asm().values()
    assert len(re.findall(r"\bv?(?:mul|add|fm\w*)\w*p[sd]\b|\bf(?:mul|add|mla)\s+v\d", assembly)) >= 2


def test_variables_of_numba_that_a_user_has_set_are_named(monkeypatch):
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        monkeypatch.delenv(name)
    assert (compiled.foreign_variables(), compiled.slowing_variables()) == ("", "")
    for name in ("NUMBA_OPT", "NUMBA_DISABLE_JIT", "NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "OTHER"):
        monkeypatch.setenv(name, "1")
    assert compiled.foreign_variables() == "NUMBA_DISABLE_JIT and NUMBA_OPT"
    assert compiled.slowing_variables() == "NUMBA_OPT"


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBENCH_CACHE_DIR", str(tmp_path))
    cache.forget()
    yield tmp_path / machine_code.FOLDER
    cache.forget()


def compile_again(program: NumbaProgram) -> int:
    """Compile as a new process does; return how many kernels no cache held."""
    compiler = NumbaThreads(1)
    sys.modules.pop(compiler.module_name(program.source), None)
    compiler.compile(program)
    made = vars(sys.modules[compiler.module_name(program.source)]).values()
    return sum(not getattr(value, "cache_hits", 1) for value in made)


def test_machine_code_that_numba_does_not_take_is_compiled_once_more(pool, own_cache):
    program = compiled_kernel(kernels.load("copy")).candidates({"n": 33}, "float32", LIMITS)[0].build()
    program = msgspec.structs.replace(program, source=f"{program.source}# not loaded before\n")
    assert compile_again(program) == 1
    (path,) = own_cache.iterdir()
    name = f"{machine_code.FOLDER}/{path.name.removesuffix(cache.SUFFIX)}"
    held = msgspec.msgpack.decode(cache.user_cache().read(name, ""))
    for payload in (b"no pickle", machine_code.dumps(("of", "another", "implementation"))):
        cache.user_cache().write(name, msgspec.msgpack.encode(dict.fromkeys(held, payload)))
        assert [compile_again(program), compile_again(program)] == [1, 0]
    assert {note.code for note in cache.notes()} == {"cache-damaged"}


@pytest.mark.parametrize(("text", "why"), [("x ? y", "SyntaxError"), ("raise OSError('no')", "OSError: no")])
def test_a_kernel_that_does_not_compile_is_a_failure_with_the_compilers_words(pool, own_cache, text, why):
    with pytest.raises(BuildError, match=why):
        pool.compile(NumbaProgram(text, (), 1))


def test_what_a_chain_needs_is_compiled_before_any_stage_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(NumbaThreads, "compile", lambda self, program: asked.append(program.source))
    session = BACKEND.open("numpy:0")
    ops = {**dict.fromkeys(("layernorm", "attention", "linear"), "tuned"), "softmax": "library"}
    cases = [Case(name, "layers", {"n": 8}, "float32", how, "resident", "numpy:0") for name, how in ops.items()]
    session.build([(kernels.load(case.op), case) for case in cases])
    session.close()
    wanted = {
        candidate.build().source
        for case in cases[:3]
        if (kernel := kernels.load(case.op).kernel("numpy", "float32")).candidates is not None
        for candidate in kernel.candidates(case.params, "float32", session.limits)
    }
    assert (set(asked), len(wanted)) == (wanted, 2)


@pytest.fixture
def no_kernels(pool, tmp_path):
    """The environment with a cache that holds what all kernels share, and none of them."""
    shared = machine_code.file_name("gpubench.backends.numpy.native")
    content = cache.user_cache().read(shared, "")
    if content is None:  # this process kept it in the folder of an earlier test
        begun = "from gpubench.backends.numpy.compiled import NumbaThreads; NumbaThreads(2)"
        subprocess.run([sys.executable, "-c", begun], check=True)
        content = cache.user_cache().read(shared, "")
    cache.SealedFiles(tmp_path).write(shared, content)
    return {**os.environ, "GPUBENCH_CACHE_DIR": str(tmp_path)}


@pytest.mark.slow
def test_kernels_are_compiled_ahead_once_by_others(no_kernels):
    """On many CPUs processes share them out, and this one finds them in the cache. The second one compiles nothing, imports
    nothing that compiles, and computes the same."""
    program = (
        "import sys, numpy as np\n"
        "from gpubench import kernels\n"
        "from gpubench.backends.numpy.compiled import NumbaThreads\n"
        "from gpubench.kernels.contract.kernel import Limits\n"
        "compiler, limits = NumbaThreads(16), Limits(2**62, 2**62, multiprocessors=16)\n"
        "found = [kernels.load(name).kernel('numpy', 'float32').candidates({'n': 4096}, 'float32', limits)[0].build()\n"
        "         for name in ('copy', 'add', 'sum', 'relu')]\n"
        "ahead_s = compiler.compile_ahead(found)\n"
        "x, out = np.ones(4096, np.float32), np.empty(4096, np.float32)\n"
        "compiler.launch(found[-1], {'x': x, 'out': out})()\n"
        "modules = [vars(sys.modules[compiler.module_name(program.source)]) for program in found]\n"
        "missed = sum(not getattr(value, 'cache_hits', 1) for made in modules for value in made.values())\n"
        "print('numba.np.linalg' in sys.modules, ahead_s > 0, missed, *set(out.tolist()))\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=no_kernels
        ).stdout.split()
        for _ in "12"
    )
    assert (first[1:3], second) == (["True", "0"], ["False", "False", "0", first[3]])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no threads")
def test_threads_have_a_cpu_each_and_the_caller_keeps_all():
    """Bound by accident, the caller would hand its one CPU on to all threads and processes that it starts."""
    program = (
        "import os\n"
        "from gpubench.backends.numpy.compiled import NumbaThreads\n"
        "allowed = os.sched_getaffinity(0)\n"
        "NumbaThreads(len(allowed))\n"
        "assert os.sched_getaffinity(0) == allowed\n"
        "bound = [os.sched_getaffinity(int(name)) for name in os.listdir('/proc/self/task')]\n"
        "bound = [cpus for cpus in bound if len(cpus) == 1]\n"
        "assert len(bound) == len(set.union(set(), *bound)) == min(1, len(allowed) - 1), bound\n"  # two threads are tried
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------------- by NumPy's own calls


LANGUAGES = {name: {one.language for one in kernels.load(name).tuned["numpy"]} for name in kernels.usual()}
TUNED = [name for name, languages in LANGUAGES.items() if "numpy" in languages]


one_after_another = BlockThreads(1)


def numpy_kernel(op):
    """Return the op's kernel in NumPy's own calls."""
    return next(kernel for kernel in op.tuned["numpy"] if kernel.language == "numpy")


def check(name, n, dtype, blocks):
    op, params = kernels.load(name), {"n": n}
    inputs = random_inputs(op, params, dtype, seed=21)
    before = [x.copy() for x in inputs]
    output = sentinels(op.output.shape(params), dtype)
    launch = numpy_kernel(op).build(np, blocks, params)
    launch(inputs, output)
    launch(inputs, output)
    assert judge(op, inputs, dtype)(output).ok
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))


def several_blocks(name):
    """A size of several blocks, the last one short: the side of a matrix, else the number of elements."""
    op = kernels.load(name)
    if op.group == "matrix":
        return 2301
    return 600_003 if op.output.shape({"n": 600_003}) else 2**22 + 77


def test_an_op_has_a_compiled_kernel_or_one_of_numpys_calls():
    """Two of the same would be two homes of one thing; those of other dtypes are variants."""
    for name in kernels.usual():
        languages = {kernel.language for kernel in kernels.load(name).tuned["numpy"]}
        assert languages in ({"numba"}, {"numpy"}), name


# NumPy multiplies matrices of halves by a plain loop: 2 s at 1000.
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", [name for name in TUNED if kernels.load(name).flops({"n": 1000}) <= 1e9])
def test_several_blocks_with_a_short_last_one(name, threads):
    blocks = BlockThreads(threads)
    check(name, several_blocks(name), "float32", blocks)
    blocks.close()


@pytest.mark.parametrize("name", ["linear", "linear_gelu", "linear_relu", "linear_add", "linear_grad_relu"])
def test_what_is_done_to_a_product_in_place_is_what_its_formula_says(name):
    """At the jumps of the formula, too: each epilogue is written twice."""
    op, params = kernels.load(name), {"n": 6, "m": 6, "k": 6}
    *inputs, beside = random_inputs(op, params, "float32", seed=3)
    beside = np.resize(np.array([0, -0.0, 2, -2, np.inf, -np.inf, np.nan, 1e-30], np.float32), beside.shape)
    output = sentinels(op.output.shape(params), "float32")
    with np.errstate(all="ignore"):
        numpy_kernel(op).build(np, one_after_another, params)([*inputs, beside], output)
        want = op.expr(np, *(x.astype(np.float64) for x in (*inputs, beside)))
    np.testing.assert_allclose(output, want, rtol=2e-5, atol=1e-6)


def test_every_half_is_widened_exactly():
    half = np.arange(2**16, dtype=np.uint16).view(np.float16)
    for part in (half, half[np.isfinite(half)]):
        wide = cpu.widen(np, part, np.full(part.size, np.nan, np.float32))
        np.testing.assert_array_equal(wide, part.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(wide), np.signbit(part))
    inputs = [np.full((40, 40), 0.1, np.float16), np.full((40, 40), 0.3, np.float16)]
    output = np.empty((40, 40), np.float16)
    matmul.multiply_halves(np, one_after_another, {"n": 40})(inputs, output)
    np.testing.assert_array_equal(output, (inputs[0].astype("f4") @ inputs[1].astype("f4")).astype("f2"))


def test_an_error_in_a_block_reaches_the_caller_and_the_threads_live_on():
    limits = []
    team = BlockThreads(3, limits.append)

    def fails(start, stop):
        if start == 5:
            raise MemoryError("block 5")

    with pytest.raises(MemoryError, match="block 5"):
        team.multiply(fails, 10, 1)
    assert limits == [1, 3], "threads of BLAS during the blocks, and after them"
    seen = []
    team.run(lambda start, stop: seen.append(start), 10, 1)
    assert sorted(seen) == list(range(10))
    team.close()
