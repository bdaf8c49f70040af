"""token_append: n ids join those before them, and the place behind them is counted on: what writes a text.

The sequence is a state: a launch writes n of its ids, from `start` on, and leaves the others. `next` is where the ids
after them go. Both stay on the device, so that no token has to wait for the host.

- CPU: one copy.
- CUDA and WGSL: a thread moves one id, and the first one counts; the time is that of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.kernels.contract.kernel import CudaProgram, Kernel, Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import EXACT, ITEMSIZE, Array, Dtype, Ids, Ladder, Op, Operand, Params, Shape
from gpubench.kernels.templates import ceil_div, fold, require_bindings
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.cuda import kernel_pass
from gpubench.kernels.templates.elementwise import WORKING_DTYPES
from gpubench.kernels.templates.wgsl import shader

_THREADS = 256
_VOCABULARY = 2048
_NAMES = ("ids", "start", "sequence", "next")


def _room(params: Params) -> int:
    return params.get("room", 2 * params["n"])


def _sequence(params: Params) -> Shape:
    return (_room(params),)


def _traffic(params: Params, dtype: Dtype) -> int:
    """What is read, and the same again: the ids that are there already stay where they are."""
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


def _cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    blocks, arguments = ceil_div(max(params["n"], 1), _THREADS), (*_NAMES, params["n"])
    step = kernel_pass("token_append", dtype, _KERNEL, blocks, _THREADS, arguments)
    return CudaProgram((step,))


_KERNEL = f"""
extern "C" __global__ void __launch_bounds__({_THREADS})
gpubench_token_append(const int* __restrict__ ids, const int* __restrict__ start, int* __restrict__ sequence,
                      int* __restrict__ next, long long count) {{
  const long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  if (i < count) sequence[start[0] + i] = ids[i];
  if (i == 0) next[0] = start[0] + (int)count;
}}
"""


def _wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch. Raises Unsupported for what the device does not hold."""
    require_bindings({"sequence": _room(params) * ITEMSIZE["int32"]}, limits)
    grid = fold(ceil_div(max(params["n"], 1), _THREADS), limits)
    return WgslProgram((WgslPass(_TEXT, grid, _NAMES, uniform=(params["n"], max(_room(params), 1) - 1)),))


_BODY = f"""
  let i = (group.y * groups.x + group.x) * {_THREADS}u + thread;
  if (i < p.count) {{ sequence[min(u32(start[0]) + i, p.last)] = ids[i]; }}
  if (i == 0u) {{ next[0] = start[0] + i32(p.count); }}
"""
_TEXT = shader(dict.fromkeys(_NAMES, "i32"), _THREADS, _BODY, params="count last", writes=_NAMES[2:])


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
    dtypes=WORKING_DTYPES,
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
    tuned={
        "numpy": (Kernel("numpy", _cpu),),
        "cupy": (Kernel("cuda", _cuda),),
        "wgpu": (Kernel("wgsl", _wgsl),),
    },
)
