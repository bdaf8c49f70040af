"""Linear layers: n rows times a matrix of weights, then an epilogue such as a bias or an activation.

- CPU: each thread multiplies a slab of rows by a BLAS of one thread, and applies the epilogue while the slab is
  in its cache. On two cores this takes half the time of the plain expression. If the slabs would be too short,
  all rows are multiplied by one call of BLAS on its own threads.
- CUDA: cuBLAS, then one pass over the result that applies the whole epilogue. Up to 16 rows take one launch
  (`templates/matmul/few_rows`).
- WGSL: the register-blocked matmul, whose threads apply the epilogue to their own results, or the kernel for
  few rows.

The `norm_linear` ops norm the rows first, as a transformer does: out = f(layernorm(x) w + b).

- CPU: the compiled norm writes to a scratch array, which the layer then reads.
- CUDA and WGSL: few rows take one launch, in which each group norms the rows that it multiplies. More rows are
  normed by a launch before that of the layer.

`norm_linear_last` computes the logits of the last of n tokens, which are enough to continue a text. It uses the
kernels for few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import (
    Candidate,
    CudaProduct,
    CudaProgram,
    Limits,
    NumpyPass,
    WgslProgram,
    by_backend,
)
from gpubench.kernels.contract.op import (
    ITEMSIZE,
    Array,
    Dtype,
    Ladder,
    Op,
    Operand,
    Params,
    Shape,
    Split,
    Tolerance,
    counted_by,
)
from gpubench.kernels.templates import require_bindings, rows
from gpubench.kernels.templates.cpu import SLOW_HALVES, Blocks, Launch, ThreadScratch, compiled_kernels, widen
from gpubench.kernels.templates.elementwise import gelu_on_arrays, gelu_scale
from gpubench.kernels.templates.matmul import BIAS, GELU, GELU_SLOPE, Epilogue, few_rows, norms, wgsl
from gpubench.kernels.templates.rows import cpu, cuda, layernorm, row_formula
from gpubench.kernels.templates.rows import wgsl as wgsl_rows

_WIDTH = 256
_OPTIONS = {"k": f"columns of the input ({_WIDTH})", "m": f"columns of the result ({_WIDTH})"}
# Least rows and most elements of a slab. With fewer rows BLAS reads the weights too often; more elements do not fit
# the cache.
_FEWEST_ROWS, _SLAB = 128, 256 * 1024


def sides(params: Params) -> tuple[int, int, int]:
    """Return (n, m, k): rows, columns of the result, columns of the input."""
    return params["n"], params.get("m", _WIDTH), params.get("k", _WIDTH)


def rows_in(params: Params) -> Shape:
    n, _, k = sides(params)
    return (n, k)


def rows_out(params: Params) -> Shape:
    n, m, _ = sides(params)
    return (n, m)


def across(params: Params) -> Shape:
    return (sides(params)[1],)


def scale_of_sum(xp: Array, x: Array, w: Array, *added: Array) -> Array:
    """Return the scale of the tolerance of x w + added[0] + ...: the norm of the row of x times the norm of the
    column of w, plus |added[0]| + ...."""
    return sum((xp.abs(other) for other in added), norms(xp, x, w))


def linear(
    *, epilogue: Epilogue, turned: bool = False, expr: Callable[..., Array] | None = None,
    scale: Callable[..., Array] = scale_of_sum, **declared: Any,
) -> Op:  # fmt: skip
    """Return the op that multiplies rows x by weights w and applies `epilogue`. Its inputs are x, w and the
    operands of the epilogue. With `turned`, the rows are gradients dy, and the weights are stored m x k, as in a
    backward pass. `expr` replaces the array expression, `scale` is that of the tolerance, and `declared` are
    further fields of the op."""
    x = "dy" if turned else "x"
    w = Operand("w", partial(_weights, turned), "fan-in", role="weight")
    beside = tuple(
        Operand(other, across, "normal", role="weight")
        if along == "across"
        else Operand(other, rows_out, "normal")
        for other, along in epilogue.operands.items()
    )
    on_arrays = partial(_product, turned, epilogue.traced.on_arrays(epilogue.formula))
    names = (x, w.name)
    cut = {x: 0, **{other: 0 for other, along in epilogue.operands.items() if along == "all"}}
    return Op(
        params={"n": "number of rows"}, options=_OPTIONS, sizes=Ladder(low=1, high=16384),
        inputs=(Operand(x, rows_in, "normal"), w, *beside), output=Operand("out", rows_out),
        flops=partial(_flops, epilogue.flops), expr=expr or on_arrays, reference=None if expr is None else on_arrays,
        split=Split(cut, counted_by("n")), tf32=("cupy", "torch"),
        terms=lambda params: {x: 1, w.name: int(turned)},
        blas=("numpy", "torch"),
        slow=SLOW_HALVES, tolerance=Tolerance(8, scale=scale),
        tuned=by_backend(
            partial(build_cpu, epilogue, turned),
            partial(build_cuda, names, turned, epilogue),
            wgsl.kernel(partial(product, names, turned, epilogue)),
        ),
        **declared,
    )  # fmt: skip


def _product(
    turned: bool, formula: Callable[..., Array], xp: Array, x: Array, w: Array, *beside: Array
) -> Array:
    return formula(xp, x @ (w.T if turned else w), *beside)


def _weights(turned: bool, params: Params) -> Shape:
    _, m, k = sides(params)
    return (m, k) if turned else (k, m)


def _flops(per_element: int, params: Params) -> int:
    n, m, k = sides(params)
    return 2 * n * m * k + per_element * n * m


# ---------------------------------------------------------------- CPU


def build_cpu(epilogue: Epilogue, turned: bool, np: Any, blocks: Blocks, params: Params) -> Launch:
    """Return a launch that computes slabs of rows on all threads. Few rows, and the rows of a single thread, are
    one slab. `turned` is as in `linear`."""
    scratch, finish = ThreadScratch(np), epilogue.in_place

    def launch(inputs: Sequence[Array], output: Array) -> None:
        x, w, *beside = inputs
        n, widest, half = len(x), max(w.shape), output.dtype == np.float16
        if n < blocks.threads * _FEWEST_ROWS and not half:
            np.matmul(x, w.T if turned else w, out=output)
            finish(np, output, np.empty_like, *beside)
            return
        # halves are computed in float32
        kind = np.dtype(np.float32) if half else output.dtype
        if half:
            w, *beside = (other.astype(kind) for other in (w, *beside))
        weights, rows = w.T if turned else w, slab_rows(n, widest, blocks.threads)

        def slab(start: int, stop: int) -> None:
            free = iter(scratch.arrays(3, rows * widest, kind))

            def room(like: Array) -> Array:
                return next(free)[: like.size].reshape(like.shape)

            part, out = x[start:stop], output[start:stop]
            others = (
                other if along == "across" else other[start:stop]
                for other, along in zip(beside, epilogue.operands.values(), strict=True)
            )
            with np.errstate(all="ignore"):
                target = room(out) if half else out
                np.matmul(widen(np, part, room(part)) if half else part, weights, out=target)
                finish(np, target, room, *others)
                if half:
                    np.copyto(out, target, casting="same_kind")

        if rows < n:
            blocks.multiply(slab, n, rows)
        else:  # on BLAS's own threads
            slab(0, n)

    return launch


def slab_rows(n: int, widest: int, threads: int) -> int:
    """Return the number of rows of a slab: n if there is one thread, or if each would get too few rows. `widest`
    is the larger side of the weights, in elements."""
    if n < threads * _FEWEST_ROWS or threads == 1:
        return n
    longest = max(_FEWEST_ROWS, _SLAB // widest)
    rounds = -(-n // (threads * longest))
    return -(-n // (threads * rounds))


# ---------------------------------------------------------------- GPU


def build_cuda(
    names: tuple[str, str], turned: bool, epilogue: Epilogue, params: Params, dtype: str, limits: Limits
) -> CudaProgram:
    """Return the CUDA program of a layer: one launch for few rows, otherwise cuBLAS and a pass over the result.
    `names` are the buffers of the rows and of the weights. `turned` is as in `linear`."""
    n, m, k = sides(params)
    if few := few_rows.cuda_pass(few_rows.WeightedRows(names, n, m, k, dtype, turned, epilogue), limits):
        return CudaProgram((few,))
    return CudaProgram((CudaProduct(*names, "out", n, m, k, tb=turned), epilogue.cuda_pass(n, m, dtype)))


def product(
    names: tuple[str, str], turned: bool, epilogue: Epilogue, params: Params, dtype: str
) -> wgsl.Product:
    """Return the layer as a product for the WGSL kernels. `names` are the buffers of the rows and of the weights.
    `turned` is as in `linear`."""
    n, m, k = sides(params)
    return wgsl.Product(n, m, k, 1, dtype, tb=turned, a=names[0], b=names[1], epilogue=epilogue)


def _gelu_scale(xp: Array, x: Array, w: Array, b: Array) -> Array:
    """Return the scale of gelu(z) for z = x w + b."""
    # The error of z counts times the largest slope of gelu. gelu alone is allowed eight times as many units as
    # a product.
    return GELU_SLOPE * scale_of_sum(xp, x, w, b) + 8 * gelu_scale(xp, x @ w + b)


# ---------------------------------------------------------------- rows that are normed first


_NORM = kernels.load("layernorm")
_ROW = row_formula(_NORM.name, _NORM.inputs, layernorm)
_NORM_FLOPS = 7  # operations of the norm for each element
# With x = 0 the norm is c, so the product adds up terms of c and w.
_NORM_TERMS: dict[str, Any] = {
    "terms": lambda params: {"x": 1, "g": 0, "c": 0, "w": 0}, "zero_terms": ("x", "g"),
}  # fmt: skip
_NORMED = "normed"  # name of the array between the norm and the product, if they are two launches
_NAMES = (_NORMED, "w")


def _across(params: Params) -> Shape:
    return rows_in(params)[1:]


def norm_linear(*, plain: Op, epilogue: Epilogue, slope: float = 1.0, **declared: Any) -> Op:
    """Return the op that applies the linear layer `plain`, which has this epilogue, to layernorm(x). `slope` is the
    largest slope of the epilogue, by which an error of the norm may grow. `declared` are further fields of the op."""
    x, *weights = plain.inputs
    normed = (
        Operand("x", rows_in, "normal"),
        Operand("g", _across, "normal", role="weight"),
        Operand("c", _across, "normal", role="weight"),
    )

    def of_norm(formula: Callable[[Op], Any]) -> Any:
        norm_of, layer_of = formula(_NORM), formula(plain)
        return lambda xp, x, g, c, *weights: layer_of(xp, norm_of(xp, x, g, c), *weights)

    return Op(
        params=plain.params, options=plain.options, sizes=plain.sizes,
        dtypes=plain.dtypes, inputs=(*normed, *weights), output=Operand("out", rows_out),
        flops=partial(_normed_flops, plain), split=Split({x.name: 0}, counted_by("n")),
        tf32=plain.tf32, blas=plain.blas, slow=plain.slow, **_NORM_TERMS,
        expr=of_norm(lambda op: op.expr), reference=of_norm(lambda op: op.exact()),
        library={"torch": of_norm(lambda op: op.library["torch"])},
        tolerance=Tolerance(plain.tolerance.units, scale=partial(_normed_scale, plain, slope)),
        tuned=by_backend(
            compiled_kernels(partial(_compile, epilogue)),
            partial(_normed_cuda, epilogue),
            wgsl.chosen_from(partial(_candidates, epilogue)),
        ),
        **declared,
    )  # fmt: skip


def _normed_flops(plain: Op, params: Params) -> int:
    n, _, k = sides(params)
    return _NORM_FLOPS * n * k + plain.flops(params)


def _normed_scale(plain: Op, slope: float, xp: Array, x: Array, g: Array, c: Array, *weights: Array) -> Array:
    """Return the scale of the layer, plus that of the norm carried through the product and the epilogue."""
    own, of_rows = plain.tolerance.scale, _NORM.tolerance.scale
    assert own is not None
    assert of_rows is not None
    # both scales are for the same number of units
    assert plain.tolerance.units == _NORM.tolerance.units
    through = norms(xp, of_rows(xp, x, g, c), weights[0])
    return own(xp, _NORM.expr(xp, x, g, c), *weights) + slope * through


# ---------------------------------------------------------------- CPU


def _compile(epilogue: Epilogue, params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Return the candidates of the compiled norm, each with the layer after it."""

    def build(norm: Candidate) -> Any:
        return msgspec.structs.replace(norm.build(), behind=layer, between={_NORMED: rows_in(params)})

    operands = (*_NAMES, *epilogue.operands)
    # NumPy computes the layer after the norm
    layer = NumpyPass(lambda np, blocks: build_cpu(epilogue, False, np, blocks, params), operands)
    n, _, k = sides(params)
    norms_of = cpu.candidates(_ROW, n, k, dtype, limits, into=_NORMED)
    return tuple(Candidate(norm.name, partial(build, norm)) for norm in norms_of)


# ---------------------------------------------------------------- GPU


def _weighted_rows(epilogue: Epilogue, params: Params, dtype: str) -> few_rows.WeightedRows:
    return few_rows.WeightedRows(("x", "w"), *sides(params), dtype, epilogue=epilogue, normed=True)


def _scratch(params: Params, dtype: str) -> dict[str, int]:
    n, _, k = sides(params)
    return {_NORMED: n * k * ITEMSIZE[dtype]}


def _normed_cuda(epilogue: Epilogue, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    n, _, k = sides(params)
    if few := few_rows.cuda_pass(_weighted_rows(epilogue, params, dtype), limits):
        return CudaProgram((few,))
    before = cuda.program(_NORM.name, _ROW, n, k, dtype, limits, into=_NORMED)
    layer = build_cuda(_NAMES, False, epilogue, params, dtype, limits)
    return CudaProgram((*before.passes, *layer.passes), {**layer.scratch, **_scratch(params, dtype)})


def _candidates(epilogue: Epilogue, params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Return a candidate of the norm and the layer for each candidate of the layer alone."""
    product(("x", "w"), False, epilogue, params, dtype).require(limits)
    layers = wgsl.candidates(product(_NAMES, False, epilogue, params, dtype), limits)
    return tuple(
        Candidate(layer.name, partial(_wgsl, epilogue, params, dtype, limits, layer)) for layer in layers
    )


def _wgsl(epilogue: Epilogue, params: Params, dtype: str, limits: Limits, of: Candidate) -> WgslProgram:
    """Return the WGSL program of the norm and the layer, for the layer's candidate `of`."""
    if of.name == few_rows.NAME:
        program = few_rows.wgsl_program(_weighted_rows(epilogue, params, dtype), limits)
        if program is not None:
            return program
    n, _, k = sides(params)
    before, layer = wgsl_rows.program(_ROW, n, k, dtype, limits, into=_NORMED), of.build()
    return WgslProgram((*before.passes, *layer.passes), {**layer.scratch, **_scratch(params, dtype)})


# ---------------------------------------------------------------- the last row alone


_VOCABULARY = 2048


def _head(params: Params) -> Shape:
    return (*rows.across(params), params.get("vocabulary", _VOCABULARY))


def _last_flops(params: Params) -> int:
    width, vocabulary = _head(params)
    return _NORM_FLOPS * width + 2 * width * vocabulary


def _last_traffic(params: Params, dtype: Dtype) -> int:
    """Return the bytes of the last row, the weights g and c of its norm, the matrix w and the logits."""
    width, vocabulary = _head(params)
    return ITEMSIZE[dtype] * (3 * width + width * vocabulary + vocabulary)


def _last_expr(xp: Array, x: Array, g: Array, c: Array, w: Array) -> Array:
    return _NORM.expr(xp, x[-1:], g, c) @ w


def _last_scale(xp: Array, x: Array, g: Array, c: Array, w: Array) -> Array:
    """Return the scale of the logits: the norm of the normed row's scale times the norm of each column."""
    of_row = _NORM.tolerance.scale
    assert of_row is not None
    return norms(xp, of_row(xp, x[-1:], g, c), w)


def _last_cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Array) -> None:
        x, *weights = inputs
        if output.dtype == np.float16:
            x, *weights = (array.astype(np.float32) for array in (x[-1:], *weights))
        output[...] = _last_expr(np, x, *weights)

    return launch


def _last_row(params: Params, dtype: str) -> few_rows.WeightedRows:
    width, vocabulary = _head(params)
    return few_rows.WeightedRows(("x", "w"), 1, vocabulary, width, dtype, normed=True, row=params["n"] - 1)


def _require_row(step: Any, params: Params) -> Any:
    """Return `step`. Raises Unsupported if it is None, because a row does not fit into a group."""
    if step is None:
        raise Unsupported(f"a group does not hold a row of {_head(params)[0]} elements", reason="limit")
    return step


def _last_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    program = few_rows.wgsl_program(_last_row(params, dtype), limits)
    width, vocabulary = _head(params)
    size = ITEMSIZE[dtype] * width
    require_bindings({"x": params["n"] * size, "w": vocabulary * size}, limits)
    held: WgslProgram = _require_row(program, params)
    return held


_LINEAR = linear(
    name="linear",
    group="layers",
    summary="out = x w + b of n rows",
    epilogue=BIAS,
    library={"torch": lambda torch, x, w, b: torch.addmm(b, x, w)},
)
_LINEAR_GELU = linear(
    name="linear_gelu",
    group="layers",
    summary="out = gelu(x w + b) of n rows",
    epilogue=GELU,
    expr=lambda xp, x, w, b: gelu_on_arrays(xp, x @ w + b),
    library={
        "torch": lambda torch, x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh")
    },
    scale=_gelu_scale,
)

OPS = (
    _LINEAR,
    linear(
        name="linear_relu",
        group="layers",
        summary="out = max(x w + b, 0) of n rows",
        epilogue=Epilogue(
            {"b": "across"},
            lambda m, v, b: m.maximum(v + b, 0),
            flops=2,
            in_place=lambda np, out, room, b: np.maximum(np.add(out, b, out=out), 0, out=out),
        ),  # fmt: skip
        library={"torch": lambda torch, x, w, b: torch.relu_(torch.addmm(b, x, w))},
    ),
    _LINEAR_GELU,
    linear(
        name="linear_add",
        group="layers",
        summary="out = x w + b + r of n rows",
        epilogue=Epilogue(
            {"b": "across", "r": "all"},
            lambda m, v, b, r: v + b + r,
            flops=2,
            in_place=lambda np, out, room, b, r: np.add(np.add(out, b, out=out), r, out=out),
        ),  # fmt: skip
        library={"torch": lambda torch, x, w, b, r: torch.addmm(b, x, w).add_(r)},
    ),
    linear(
        name="linear_grad_relu",
        group="layers",
        summary="out = dy w^T where h > 0, else 0",
        turned=True,
        epilogue=Epilogue(
            {"h": "all"},
            lambda m, v, h: m.where(h > 0, v, 0),
            flops=1,
            in_place=lambda np, out, room, h: np.copyto(out, 0, where=~(h > 0)),
        ),  # fmt: skip
        library={"torch": lambda torch, dy, w, h: torch.ops.aten.threshold_backward(dy @ w.T, h, 0)},
        scale=lambda xp, dy, w, h: norms(xp, dy, w.T),
    ),
    norm_linear(
        name="norm_linear",
        group="layers",
        summary="out = layernorm(x) w + b of n rows",
        plain=_LINEAR,
        epilogue=BIAS,
    ),  # fmt: skip
    norm_linear(
        name="norm_linear_gelu",
        group="layers",
        summary="out = gelu(layernorm(x) w + b) of n rows",
        plain=_LINEAR_GELU,
        epilogue=GELU,
        slope=GELU_SLOPE,
    ),  # fmt: skip
    Op(
        name="norm_linear_last",
        group="layers",
        summary="out = layernorm(x[n - 1]) w, of the last row alone",
        params={"n": "number of rows"},
        options={"width": "length of a row (256)", "vocabulary": f"columns of the result ({_VOCABULARY})"},
        sizes=Ladder(low=1, high=16384),
        inputs=(*_NORM.inputs, Operand("w", _head, "fan-in", role="weight")),
        output=Operand("out", lambda params: (1, _head(params)[1])),
        flops=_last_flops,
        traffic=_last_traffic,
        blas=("numpy", "torch"),
        expr=_last_expr,
        library={"torch": lambda torch, x, g, c, w: _NORM.library["torch"](torch, x[-1:], g, c) @ w},
        tolerance=Tolerance(16, scale=_last_scale),
        **_NORM_TERMS,
        tuned=by_backend(
            _last_cpu,
            lambda params, dtype, limits: CudaProgram(
                (_require_row(few_rows.cuda_pass(_last_row(params, dtype), limits), params),)
            ),
            _last_wgsl,
        ),
    ),
)
