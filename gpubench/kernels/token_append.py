"""token_append: n ids join those before them, and the place behind them is counted on: what writes a text.

The sequence is a state: a launch writes n of its ids, from `start` on, and leaves the others. `next` is where the ids
after them go. Both stay on the device, so that no token has to wait for the host.

- CPU: one copy.
- CUDA and WGSL: a thread moves one id, and the first one counts; the time is that of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslProgram, by_backend
from gpubench.kernels.contract.op import EXACT, ITEMSIZE, Array, Dtype, Ids, Ladder, Op, Operand, Params, Shape
from gpubench.kernels.templates import ceil_div, fold, require_bindings
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.twin import Twin

_VOCABULARY = 2048


def _room(params: Params) -> int:
    return params.get("room", 2 * params["n"])


def _sequence(params: Params) -> Shape:
    return (_room(params),)


def _traffic(params: Params, dtype: Dtype) -> int:
    """Return the bytes that are read, twice: the ids that are there already stay where they are."""
    return (2 * params["n"] + 2) * ITEMSIZE["int32"]


def _expr(xp: Array, ids: Array, start: Array, sequence: Array) -> tuple[Array, Array]:
    first = int(start[0])
    sequence[first : first + ids.shape[0]] = ids
    return sequence, start + ids.shape[0]


def _torch(torch: Any, ids: Array, start: Array, sequence: Array) -> tuple[Array, Array]:
    """The place stays on the device."""
    sequence.index_copy_(0, start + torch.arange(len(ids), device=ids.device), ids)
    return sequence, start + len(ids)


def _cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Any) -> None:
        ids, start, _ = inputs
        sequence, behind = output
        first = int(start[0])
        sequence[first : first + len(ids)] = ids
        behind[0] = first + len(ids)

    return launch


_KERNEL = Twin(
    "token_append", dict.fromkeys(("ids", "start", "sequence", "next"), "i32"), ("sequence", "next"), "count", """
  let i = block * 256u + thread;
  if (i < count) { sequence[clamped(u32(start[0]) + i, last)] = ids[i]; }
  if (i == 0u) { next[0] = start[0] + i32(count); }
""", bounds="last",
)  # fmt: skip


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    n = params["n"]
    return CudaProgram((_KERNEL.cuda_pass(dtype, ceil_div(max(n, 1), _KERNEL.threads), (n,)),))


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch. Raises Unsupported for what the device does not hold."""
    n, room = params["n"], _room(params)
    require_bindings({"sequence": room * ITEMSIZE["int32"]}, limits)
    grid = fold(ceil_div(max(n, 1), _KERNEL.threads), limits)
    return WgslProgram((_KERNEL.wgsl_pass("float32", grid, (n, max(room, 1) - 1)),))


def _fits(params: Params) -> str | None:
    room = _room(params)
    return None if room >= params["n"] else f"{params['n']} ids do not fit a sequence of {room}"


OP = Op(
    name="token_append",
    group="layers",
    summary="sequence[start : start + n] = ids, in place; next = start + n",
    params={"n": "number of ids"},
    options={"room": "ids of the sequence (twice n)"},
    sizes=Ladder(low=1, high=65536),
    inputs=(
        Operand("ids", lambda params: (params["n"],), Ids(lambda params: _VOCABULARY), dtype="int32"),
        Operand(
            "start", lambda params: (1,), Ids(lambda params: _room(params) - params["n"] + 1), dtype="int32"
        ),
        Operand("sequence", _sequence, Ids(lambda params: _VOCABULARY), role="state", dtype="int32"),
    ),
    output=Operand("sequence", _sequence, role="state", dtype="int32"),
    more_outputs=(Operand("next", lambda params: (1,), dtype="int32"),),
    flops=lambda params: 0,
    traffic=_traffic,
    fits=_fits,
    expr=_expr,
    library={"torch": _torch},
    tolerance=EXACT,
    tuned=by_backend(_cpu, _cuda, _wgsl),
)
