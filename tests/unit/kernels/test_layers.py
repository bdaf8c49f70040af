"""The ops of networks: gradients are slopes, formulas equal slower ones, kernels are the compiled ones they claim."""

import contextlib
import math
from functools import partial
from operator import attrgetter

import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.numpy import BACKEND
from gpubench.backends.shared.host import allocate_outputs, random_inputs
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.op import Op, each
from gpubench.result.case import Case
from tests.judging import compare
from tests.shapes import SMALLEST

EVERY = [kernels.load(name) for group in ("layers", "network") for name in kernels.groups().get(group, ())]
# A workload has the kernels of its stages; what runs on the host has none.
OPS = [op for op in EVERY if not op.stages and op.host is None]
STEP = 1e-4
by_name = attrgetter("name")


@contextlib.contextmanager
def compiled(op: Op, params, dtype="float32", threads=1, *, seed=1):
    """The launch of the CPU's tuned kernel, its inputs and its output."""
    session = BACKEND.open("numpy:0", threads=threads, autotune=False)
    case = Case(op.name, op.group, params, dtype, "tuned", "resident", "numpy:0")
    inputs = random_inputs(op, params, dtype, seed)
    output = allocate_outputs(session, op, case, inputs)
    launch = session.compile(op, case, inputs, output)
    yield partial(session.run, launch), inputs, output, launch.kernel_name
    session.close()


def slope(function, x: np.ndarray) -> np.ndarray:
    """The gradient of a number with respect to each element, by central differences."""
    found = np.empty_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = STEP
        found[place] = (function(x + step) - function(x - step)) / (2 * STEP)
    return found


@pytest.mark.parametrize("n", [1, 65504, 65536, 65537, 200_000])
def test_the_mean_over_more_rows_than_float16_holds_has_a_gradient(n):
    z = np.zeros((n, 2), np.float16)
    _, dz = kernels.load("cross_entropy").expr(np, z, np.zeros(n, np.int32))
    assert np.allclose(dz.astype(np.float64), [[-0.5 / n, 0.5 / n]], rtol=2e-3, atol=2**-25)


def test_the_gradient_of_the_cross_entropy_is_the_slope_of_its_mean():
    op = kernels.load("cross_entropy")
    z, labels = random_inputs(op, {"n": 5, "classes": 4}, "float64", seed=1)
    _, gradient = op.expr(np, z, labels)
    np.testing.assert_allclose(gradient, slope(lambda x: op.expr(np, x, labels)[0].mean(), z), atol=1e-8)


def test_a_convolution_is_that_of_its_windows():
    op = kernels.load("conv2d")
    x, w = random_inputs(op, {"n": 2, "channels": 3, "filters": 4, "side": 6}, "float64", seed=1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    np.testing.assert_allclose(op.expr(np, x, w), np.einsum("ncyxij,kcij->nkyx", windows, w), atol=1e-12)


@pytest.mark.parametrize("scale", [1, 100])
def test_attention_is_a_softmax_for_each_head_and_token(scale):
    params = {"n": 5, "width": 6, "heads": 2}
    op = kernels.load("attention").at(params)
    qkv = scale * random_inputs(op, params, "float64", seed=1)[0]
    want = np.zeros((5, 6))
    for head in range(2):
        q, k, v = (qkv[:, 6 * i + 3 * head : 6 * i + 3 * head + 3] for i in range(3))
        for row in range(5):
            scores = k[: row + 1] @ q[row] / math.sqrt(3)
            powers = np.exp(scores - scores.max())
            want[row, 3 * head : 3 * head + 3] = powers / powers.sum() @ v[: row + 1]
    for formula in (op.expr, op.reference):
        np.testing.assert_allclose(formula(np, qkv), want, atol=1e-12 * scale)


@pytest.mark.parametrize("name", ["attention", "attention_grad"])
def test_a_token_sees_its_own_sequence_alone(name):
    params = {"n": 15, "width": 6, "heads": 2}
    op = kernels.load(name)
    inputs = random_inputs(op, params, "float64", seed=1)
    want = np.concatenate([op.at(params).expr(np, *(x[at : at + 5] for x in inputs)) for at in (0, 5, 10)])
    several = op.at({**params, "tokens": 5})
    for formula in (several.expr, several.reference):
        np.testing.assert_allclose(formula(np, *inputs), want, atol=1e-12)
    assert op.flops({**params, "tokens": 5}) == 3 * op.flops({**params, "n": 5})
    told = [op.fits({**params, "tokens": tokens}) for tokens in (4, 30)]
    assert all("choose `tokens` so that it divides n" in text for text in told)


@pytest.mark.parametrize("params", [{"n": 1, "width": 6, "heads": 3}, {"n": 9, "width": 12, "heads": 2, "room": 20}])  # fmt: skip
def test_a_token_that_joins_the_cache_sees_what_the_last_of_all_tokens_sees(params):
    n, width = params["n"], params["width"]
    whole = {"n": n, "width": width, "heads": params["heads"]}
    (qkv,) = random_inputs(kernels.load("attention"), whole, "float64", seed=1)
    cache, last = np.full((params.get("room", n), 2 * width), np.nan), np.array([n - 1], np.int32)
    append, op = kernels.load("cache_append").expr, kernels.load("attention_append").at(params)
    append(np, qkv[:-1], np.array([0], np.int32), cache)
    found, kept = op.expr(np, qkv[-1:], last, cache.copy())
    np.testing.assert_array_equal(kept, append(np, qkv[-1:], last, cache))
    np.testing.assert_allclose(found, kernels.load("attention").at(whole).expr(np, qkv)[-1:], atol=1e-12)
    (given,) = (x for x in random_inputs(op, params, "float32", seed=1) if x.dtype == np.int32)
    assert given == last, "measured alone, it sees n tokens"


def test_ties_of_argmax_go_to_the_lowest_place():
    assert kernels.load("argmax").expr(np, np.array([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0]])).tolist() == [1, 0]


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_what_an_op_declares_is_what_it_computes(op):
    params = {"n": 6}
    inputs = random_inputs(op, params, "float64", seed=2)
    found = each(op.at(params).expr(np, *inputs))
    assert [np.shape(x) for x in found] == [output.shape(params) for output in op.outputs]
    assert (op.group in kernels.ON_REQUEST, op.name in kernels.usual()) == (True, False)
    assert set(op.takes) <= set(op.options)
    for room in {"room", "context"} & set(op.options):
        assert [op.fits({"n": 5, room: size}) for size in (5, 4)] == [None, "5 tokens do not fit in 4 places"]
    once = {x.name: x for x in op.operands}  # what is added to is one buffer
    held = sum(math.prod(x.shape(params)) * x.stored_dtype("float32").endswith("32") * 4 for x in once.values())
    assert op.held_bytes(params, "float32") == held
    assert 0 < op.bytes(params, "float32") <= held
    assert op.flops(params) >= op.flops({"n": 3}) > 0 or op.updated, "adding to a state is moving"


def test_an_embedding_reads_the_rows_that_are_asked_for():
    op = kernels.load("embedding")
    moved = [op.bytes(params, "float32") for params in ({"n": 10**6, "width": 1, "vocabulary": 2}, {"n": 1})]
    assert moved == [4 * (2 * 10**6 + 2) + 4 * 10**6, 4 * 3 * 256 + 4]


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_what_is_compiled_for_the_cpu_compiles(op):
    pytest.importorskip("numba")
    with compiled(op, {"n": 40}) as (*_, name):
        assert name.startswith("numba") == (op.kernel("numpy", "float32").language == "numba")


NORMED = [kernels.load("norm_linear"), kernels.load("norm_linear_gelu")]
each_normed = pytest.mark.parametrize("op", NORMED, ids=by_name)


@each_normed
def test_it_is_a_layer_of_the_norm(op: Op):
    x, g, c, w, b = random_inputs(op, {"n": 5, "m": 4, "k": 6}, "float64", seed=1)
    rest = x - x.mean(axis=1, keepdims=True)
    u = rest / np.sqrt(np.mean(rest**2, axis=1, keepdims=True) + 1e-5) * g + c
    z = u @ w + b
    want = z if op.name == "norm_linear" else z / (1 + np.exp(-2 * 0.7978845608028654 * (z + 0.044715 * z**3)))
    np.testing.assert_allclose(op.expr(np, x, g, c, w, b), want, rtol=1e-12)
    np.testing.assert_allclose((op.reference or op.expr)(np, x, g, c, w, b), want, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("threads", [1, 2])
@each_normed
def test_the_layer_behind_a_compiled_norm_is_right(op: Op, threads, dtype):
    """Twice: the rows between the two stay, and are written anew."""
    for n, m, k in ((1, 768, 256), (3, 5, 257), (600, 7, 9), (2, 3, 1), (4, 2, 5000)):
        with compiled(op, {"n": n, "m": m, "k": k}, dtype, threads, seed=2) as (launch, inputs, output, _):
            for gain in (1, 2):
                inputs[1] *= gain
                output.fill(np.nan)
                launch()
                wide = [one.astype(np.float64) for one in inputs]
                want, scale = (op.reference or op.expr)(np, *wide), op.tolerance.scale(np, *wide)
                assert compare(op, dtype, output, want, scale).ok, (n, m, k, gain)


@each_normed
def test_a_row_that_is_no_number_spoils_no_other_one(op: Op):
    with compiled(op, {"n": 5, "m": 4, "k": 16}, seed=2) as (launch, inputs, output, _):
        inputs[0][1, 3], inputs[0][3, 2] = np.nan, np.inf
        launch()
    assert np.isnan(output).all(axis=1).tolist() == [False, True, False, True, False]
    assert np.isfinite(output[::2]).all()


def test_rows_beyond_a_binding_are_refused_by_their_own_name():
    with pytest.raises(Unsupported, match=r"^x has 268435456 bytes"):
        NORMED[0].kernel("wgpu", "float32").build({"n": 2**17, "m": 1, "k": 512}, "float32", SMALLEST)
