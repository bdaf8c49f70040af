"""transpose: out[i, j] = x[j, i], moved in memory and not just relabelled; one read and one write per element.

x is n x n, or `m` x n where a param `m` is given.
"""

from gpubench.kernels.contract.kernel import by_backend
from gpubench.kernels.contract.op import EXACT, Ladder, Op, Operand, Params, Split
from gpubench.kernels.templates import transpose
from gpubench.kernels.templates.cpu import compiled_kernel


def sides(params: Params) -> tuple[int, int]:
    """(m, n): rows and columns of x."""
    return (params.get("m", params["n"]), params["n"])


def _columns(params: Params, units: int) -> Params:
    """So many columns of x, which are rows of the output."""
    return {"n": units, "m": params.get("m", params["n"])}


OP = Op(
    name="transpose",
    group="matrix",
    summary="out = x^T of an n x n matrix, contiguous",
    params={"n": "side of the square matrix"},
    options={"m": "rows of x; n is its columns (default: n)"},
    sizes=Ladder(low=64, high=4096),
    inputs=(Operand("x", sides),),
    output=Operand("out", lambda params: sides(params)[::-1]),
    flops=lambda params: 0,
    # x.T alone is a view: nothing would move, and nothing would be measured.
    expr=lambda xp, x: xp.ascontiguousarray(x.T),
    library={"torch": lambda torch, x, out: out.copy_(x.T)},
    tolerance=EXACT,
    split=Split({"x": 1}, _columns),
    tuned=by_backend(
        compiled_kernel(
            lambda params, dtype, limits: transpose.numba_transposes(*sides(params), dtype, limits)
        ),
        lambda params, dtype, limits: transpose.build_cuda(*sides(params), dtype),
        lambda params, dtype, limits: transpose.build_wgsl(*sides(params), dtype, limits),
    ),
)
