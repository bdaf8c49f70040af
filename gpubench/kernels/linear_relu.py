"""linear_relu: out = max(x w + b, 0), a layer and its activation in one launch."""

from typing import Any

from gpubench.kernels.contract.op import Array, Tolerance
from gpubench.kernels.templates.linear import linear, norms
from gpubench.kernels.templates.matmul.epilogue import Epilogue


def _scale(xp: Array, x: Array, w: Array, b: Array) -> Array:
    return norms(xp, x, w) + xp.abs(b)


def _cpu(np: Any, out: Array, room: Any, b: Array) -> None:
    np.add(out, b, out=out)
    np.maximum(out, 0, out=out)


OP = linear(
    name="linear_relu",
    summary="out = max(x w + b, 0) of n rows",
    epilogue=Epilogue(
        {"b": "across"},
        cpu=_cpu,
        wgsl="select(v + b, V(), v + b < V())",
        cuda="select(v + b < real(0), real(0), v + b)",
        flops=2,
    ),
    expr=lambda xp, x, w, b: xp.maximum(x @ w + b, 0),
    library={"torch": lambda torch, x, w, b: torch.relu_(torch.addmm(b, x, w))},
    tolerance=Tolerance(8, scale=_scale),
)
