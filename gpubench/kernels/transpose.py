"""transpose: out[i, j] = x[j, i], moved in memory and not just relabelled; one read and one write per element.

x is n x n, or `m` x n where a param `m` is given.
"""

from gpubench.kernels import _transpose_cuda, _transpose_numpy, _transpose_wgsl
from gpubench.kernels._elementwise import WORKING_DTYPES
from gpubench.model.kernel import CudaProgram, Kernel, Limits, WgslProgram
from gpubench.model.op import EXACT, Ladder, Op, Operand, Params, Shape, Split


def _input_shape(params: Params) -> Shape:
    """(m, n)."""
    return (params.get("m", params["n"]), params["n"])


def _output_shape(params: Params) -> Shape:
    """(n, m)."""
    return (params["n"], params.get("m", params["n"]))


def _columns(params: Params, units: int) -> Params:
    """So many columns of x, which are rows of the output."""
    return {"n": units, "m": params.get("m", params["n"])}


def _build_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    rows, columns = _input_shape(params)
    return _transpose_wgsl.build(rows, columns, dtype, limits)


def _build_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    rows, columns = _input_shape(params)
    return _transpose_cuda.build(rows, columns, dtype)


OP = Op(
    name="transpose",
    group="matrix",
    summary="out = x^T of an n x n matrix, contiguous",
    params={"n": "side of the square matrix"},
    options={"m": "rows of x; n is its columns (default: n)"},
    sizes=Ladder(low=64, high=4096),
    dtypes=WORKING_DTYPES,
    inputs=(Operand("x", _input_shape),),
    output=Operand("out", _output_shape),
    flops=lambda params: 0,
    # x.T alone is a view: nothing would move, and nothing would be measured.
    expr=lambda xp, x: xp.ascontiguousarray(x.T),
    tolerance=EXACT,
    split=Split({"x": 1}, _columns),
    tuned={
        "numpy": (Kernel("numpy", _transpose_numpy.transpose),),
        "cupy": (Kernel("cuda", _build_cuda),),
        "wgpu": (Kernel("wgsl", _build_wgsl),),
    },
)
