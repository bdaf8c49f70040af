"""A complete op from one array expression and scalar bodies: output i depends on element i of each input.

The op owns no loop: loads, stores, tail and dispatch come from the WGSL and CUDA templates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.kernels import _elementwise_cuda, _elementwise_numpy, _elementwise_wgsl
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import (
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

# 4 KiB to 64 MiB of float32: from a launch's overhead to well past any cache, in eight sizes.
LADDER = Ladder(low=2**10, high=2**24)
PARAMS = {"n": "number of elements"}
# Every op works in all of these; a backend that lacks one refuses the case. bfloat16 is CUDA's alone.
WORKING_DTYPES: tuple[Dtype, ...] = ("float32", "float64", "float16", "bfloat16")
# WGSL has +, -, *, / and comparisons in float64, but no exponential: float16 is computed in float32 in any case.
WGSL_ALL: tuple[Dtype, ...] = ("float32", "float64", "float16")
WGSL_NO_DOUBLE: tuple[Dtype, ...] = ("float32", "float16")


def vector_shape(params: Params) -> Shape:
    """The shape (n,)."""
    return (params["n"],)


def scalar_shape(params: Params) -> Shape:
    """The shape of a single number: ()."""
    return ()


def absolute_sum(xp: Array, *terms: Array) -> Array:
    """The scale of a sum whose terms may cancel: |first| + |second| + ..., element by element."""
    total = xp.abs(terms[0])
    for term in terms[1:]:
        total = total + xp.abs(term)
    return total


def elementwise(
    *,
    name: str,
    group: str,
    summary: str,
    inputs: tuple[str | Operand, ...],
    flops_per_element: int,
    expr: Callable[..., Array],
    wgsl: str,
    cuda: str,
    tolerance: Tolerance,
    reference: Callable[..., Array] | None = None,
    dtypes: tuple[Dtype, ...] = WORKING_DTYPES,
    wgsl_functions: str = "",
    wgsl_dtypes: tuple[Dtype, ...] = WGSL_NO_DOUBLE,
    numpy: Callable[..., Callable[..., None]] | None = None,
) -> Op:
    """The op of n elements that applies one scalar function to each position of its inputs.

    `wgsl` and `cuda` are scalar expressions in the inputs' names, of type `real`: float or double, also where
    the elements are halves. `wgsl_dtypes` are those in which the WGSL expression is right, `wgsl_functions` is
    WGSL text that it calls. `numpy` builds the tuned NumPy form where the expression's ufuncs, one after the
    other over blocks, are not it. A plain name among `inputs` is an operand of shape (n,) with uniform values.
    """
    operands = tuple(Operand(x, vector_shape) if isinstance(x, str) else x for x in inputs)
    names = tuple(operand.name for operand in operands)
    return Op(
        name=name, group=group, summary=summary, params=PARAMS, sizes=LADDER, dtypes=dtypes,
        inputs=operands, output=Operand("out", vector_shape),
        flops=lambda params: flops_per_element * params["n"],
        expr=expr,
        tolerance=tolerance,
        reference=reference,
        split=Split(dict.fromkeys(names, 0), counted_by("n")),
        tuned=_tuned(
            numpy or partial(_elementwise_numpy.build, expr, len(names)),
            _elementwise_wgsl.Body(names, wgsl, wgsl_functions, wgsl_dtypes),
            _elementwise_cuda.Body(name, names, cuda, dtypes),
        ),
    )  # fmt: skip


def _tuned(
    numpy: Callable[..., Any], shader: _elementwise_wgsl.Body, device_code: _elementwise_cuda.Body
) -> dict[str, tuple[Kernel, ...]]:
    return {
        "numpy": (Kernel("numpy", numpy),),
        "wgpu": (Kernel("wgsl", partial(_build_wgsl, shader)),),
        "cupy": (Kernel("cuda", partial(_build_cuda, device_code)),),
    }


def _build_wgsl(body: _elementwise_wgsl.Body, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    return _elementwise_wgsl.build(body, params["n"], dtype, limits)


def _build_cuda(body: _elementwise_cuda.Body, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    return _elementwise_cuda.build(body, params["n"], dtype)
