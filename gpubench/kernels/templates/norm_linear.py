"""Products of a layer whose rows are normed first: out = f(layernorm(x) w + b), as a transformer does before each part.

The norm of a few rows takes less time than a launch of its own.

- CPU: the norm, compiled or by NumPy, into an array that stays; then what `templates/linear.py` does.
- CUDA: few rows in one launch, whose blocks each make the norm of the rows that they multiply; others by the kernel of
  layernorm, cuBLAS and a pass over the result.
- WGSL: the candidates of a linear layer. That of few rows makes the norm in each group; the others take it from a
  dispatch before them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from gpubench import kernels
from gpubench.kernels.contract.kernel import (
    Candidate,
    CudaProgram,
    Limits,
    NumpyPass,
    WgslProgram,
    by_backend,
)
from gpubench.kernels.contract.op import (
    ITEMSIZE,
    Array,
    Op,
    Operand,
    Params,
    Shape,
    Split,
    Tolerance,
    counted_by,
)
from gpubench.kernels.templates.cpu import compiled_kernel
from gpubench.kernels.templates.linear import build_cpu, build_cuda, norms, product, rows_in, rows_out, sides
from gpubench.kernels.templates.matmul import few_rows, wgsl
from gpubench.kernels.templates.matmul.epilogue import Epilogue
from gpubench.kernels.templates.rows import cpu, cuda, layernorm, row_formula
from gpubench.kernels.templates.rows import wgsl as wgsl_rows

_NORM = kernels.load("layernorm")
_ROW = row_formula(_NORM.name, _NORM.inputs, layernorm)
_NORM_FLOPS = 7  # of an element
_NORMED = "normed"  # the rows between the norm and the product, where it is no single launch
_NAMES = (_NORMED, "w")


def _across(params: Params) -> Shape:
    return rows_in(params)[1:]


def norm_linear(*, plain: Op, epilogue: Epilogue, slope: float = 1.0, **declared: Any) -> Op:
    """The op `plain`, a linear layer with that epilogue, of layernorm(x). `slope` is the largest of what the layer does
    to its product: so much of the norm's error it lets through."""
    x, *weights = plain.inputs
    given = (
        Operand("x", rows_in, "normal"),
        Operand("g", _across, "normal", role="weight"),
        Operand("c", _across, "normal", role="weight"),
    )

    def of_norm(formula: Callable[[Op], Any]) -> Any:
        return partial(_composed, formula(_NORM), formula(plain))

    return Op(
        params=plain.params, options=plain.options, sizes=plain.sizes,
        dtypes=plain.dtypes, inputs=(*given, *weights), output=Operand("out", rows_out),
        flops=partial(_flops, plain), split=Split({x.name: 0}, counted_by("n")), fits=plain.fits, tf32=plain.tf32,
        blas=plain.blas, slow=plain.slow, expr=of_norm(lambda op: op.expr), reference=of_norm(lambda op: op.exact()),
        library={"torch": of_norm(lambda op: op.library["torch"])},
        tolerance=Tolerance(plain.tolerance.units, scale=partial(_scale, plain, slope)),
        tuned=by_backend(
            compiled_kernel(partial(_compiled, epilogue)),
            partial(_cuda, epilogue),
            wgsl.chosen_from(partial(_candidates, epilogue)),
        ),
        **declared,
    )  # fmt: skip


def _composed(norm_of: Any, layer_of: Any, xp: Array, x: Array, g: Array, c: Array, *weights: Array) -> Array:
    return layer_of(xp, norm_of(xp, x, g, c), *weights)


def _flops(plain: Op, params: Params) -> int:
    n, _, k = sides(params)
    return _NORM_FLOPS * n * k + plain.flops(params)


def _scale(plain: Op, slope: float, xp: Array, x: Array, g: Array, c: Array, *weights: Array) -> Array:
    """The layer's own, and the norm's error through the product: both are counted in as many units."""
    own, of_rows = plain.tolerance.scale, _NORM.tolerance.scale
    assert own is not None
    assert of_rows is not None
    assert plain.tolerance.units == _NORM.tolerance.units
    through = norms(xp, of_rows(xp, x, g, c), weights[0])
    return own(xp, _NORM.expr(xp, x, g, c), *weights) + slope * through


# ---------------------------------------------------------------- CPU


def _compiled(epilogue: Epilogue, params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """The norm by so many threads, and the layer by NumPy."""

    def build(norm: Candidate) -> Any:
        return msgspec.structs.replace(norm.build(), behind=layer, between={_NORMED: rows_in(params)})

    operands = (*_NAMES, *epilogue.operands)
    layer = NumpyPass(lambda np, blocks: build_cpu(epilogue, False, np, blocks, params), operands)
    n, _, k = sides(params)
    found = cpu.candidates(_ROW, n, k, dtype, limits, into=_NORMED)
    return tuple(Candidate(one.name, partial(build, one)) for one in found)


# ---------------------------------------------------------------- GPU


def _weighted(epilogue: Epilogue, params: Params, dtype: str) -> few_rows.WeightedRows:
    return few_rows.WeightedRows(("x", "w"), *sides(params), dtype, epilogue=epilogue, normed=True)


def _scratch(params: Params, dtype: str) -> dict[str, int]:
    n, _, k = sides(params)
    return {_NORMED: -(-n * k * ITEMSIZE[dtype] // 16) * 16}


def _cuda(epilogue: Epilogue, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    n, _, k = sides(params)
    if n == 0:
        return CudaProgram(())
    if few := few_rows.cuda_pass(_weighted(epilogue, params, dtype), limits):
        return CudaProgram((few,))
    before = cuda.program(_NORM.name, _ROW, n, k, dtype, limits, into=_NORMED)
    layer = build_cuda(_NAMES, False, epilogue, params, dtype, limits)
    return CudaProgram((*before.passes, *layer.passes), {**layer.scratch, **_scratch(params, dtype)})


def _candidates(epilogue: Epilogue, params: Params, dtype: str, limits: Limits) -> tuple[Candidate, ...]:
    """Return the candidates of the layer. Raises Unsupported."""
    product(("x", "w"), False, epilogue, params, dtype).require(limits)
    found = wgsl.candidates(product(_NAMES, False, epilogue, params, dtype), limits)
    return tuple(Candidate(one.name, partial(_wgsl, epilogue, params, dtype, limits, one)) for one in found)


def _wgsl(epilogue: Epilogue, params: Params, dtype: str, limits: Limits, of: Candidate) -> WgslProgram:
    """One dispatch for few rows whose norm each group makes; else the norm's before those of the layer."""
    if of.name == few_rows.NAME:
        found = few_rows.wgsl_program(_weighted(epilogue, params, dtype), limits)
        if found is not None:
            return found
    n, _, k = sides(params)
    before, layer = wgsl_rows.program(_ROW, n, k, dtype, limits, into=_NORMED), of.build()
    return WgslProgram((*before.passes, *layer.passes), {**layer.scratch, **_scratch(params, dtype)})
