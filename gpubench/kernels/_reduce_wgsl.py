"""Reductions in WGSL: grid-stride partials of 16-byte loads into scratch, then one group over the partials.

On an H200 512 to 4096 groups reach 1.01 of the device copy, whatever the order of the additions. A vector
that one group can read in a moment takes a single pass.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.kernels._limits import ceil_div, group_threads, require_buffers, windows
from gpubench.kernels._storage_wgsl import LANES, Storage, real_dtype, require_storage, vectors
from gpubench.model.kernel import Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE

# Up to this many vectors (64 KiB an input) the second pass would cost more than it saves.
ONE_GROUP_VECTORS = 4096
MOST_GROUPS = 4096
UNROLL = 4
# The bits of minus infinity come with the sizes: WGSL has no literal for it.
_MINUS_INFINITY = 0xFF800000


class Body(msgspec.Struct, frozen=True):
    """A reduction: the accumulators' start, `element` from the inputs, `join` of two partial results a and b.

    `element` and `join` are WGSL expressions that hold for single numbers and for vectors of them, in float32
    and float64; the empty reduction is `start`.
    """

    names: tuple[str, ...]
    start: Literal["zero", "minus infinity"]
    element: str
    join: str


class Shape(msgspec.Struct, frozen=True):
    """Threads of a group, groups at most, and loads in flight per thread and input."""

    threads: int
    groups: int = MOST_GROUPS
    unroll: int = UNROLL


def build(body: Body, n: int, dtype: str, limits: Limits, shape: Shape | None = None) -> WgslProgram:
    """One dispatch, or one per window of the bindings and one over the partials. n = 0 gives the start.

    Raises Unsupported for a dtype or size that the device cannot do.
    """
    require_storage(dtype, limits)
    require_buffers(dict.fromkeys(body.names, n * ITEMSIZE[dtype]), limits)
    shape = shape or Shape(group_threads(limits))
    data, partial = vectors(dtype), vectors(real_dtype(dtype))
    if ceil_div(n, data.width) <= ONE_GROUP_VECTORS:
        text = source(body, data, data.stored, shape)
        return WgslProgram((WgslPass(text, (1, 1, 1), (*body.names, "out"), uniform=_uniform(n)),))
    text, passes, first = source(body, data, data.real, shape), [], 0
    for window in windows(n, ITEMSIZE[dtype], limits):
        whole = ceil_div(window.count, data.width)
        groups = min(
            shape.groups, ceil_div(whole, shape.threads * shape.unroll), limits.max_groups_per_dimension
        )
        parts = window.of(body.names, ITEMSIZE[dtype])
        uniform = _uniform(window.count, first)
        passes.append(WgslPass(text, (groups, 1, 1), (*body.names, "partials"), uniform=uniform, windows=parts))
        first += groups
    rest = source(Body(("x",), body.start, "x", body.join), partial, data.stored, Shape(shape.threads))
    passes.append(
        WgslPass(rest, (1, 1, 1), ("partials", "out"), uniform=_uniform(first), read_only=("partials",))
    )
    size = first * ITEMSIZE[real_dtype(dtype)]
    return WgslProgram(tuple(passes), scratch={"partials": ceil_div(size, 16) * 16})


def _uniform(n: int, first: int = 0) -> tuple[int, int, int]:
    return (n, first, _MINUS_INFINITY)


def source(body: Body, storage: Storage, result: str, shape: Shape) -> str:
    """The text of one pass: group g writes its partial result of type `result` to out_[first + g]."""
    last = len(body.names)
    arguments = ", ".join(f"{name}: {storage.part}" for name in body.names)
    lines = [
        *(["enable f16;"] if result == "f16" else []),
        "struct Params { n: u32, first: u32, low: u32, }",
        *(
            f"@group(0) @binding({i}) var<storage, read> {name}_: array<{storage.unit}>;"
            for i, name in enumerate(body.names)
        ),
        f"@group(0) @binding({last}) var<storage, read_write> out_: array<{result}>;",
        f"@group(0) @binding({last + 1}) var<uniform> p: Params;",
        f"var<workgroup> shared_: array<{storage.real}, {shape.threads}>;",
        *storage.functions,
        f"fn join_parts(a: {storage.part}, b: {storage.part}) -> {storage.part} {{ return {body.join}; }}",
        f"fn join(a: {storage.real}, b: {storage.real}) -> {storage.real} {{ return {body.join}; }}",
        f"fn element({arguments}) -> {storage.part} {{ return {body.element}; }}",
        *_main(body, storage, result, shape),
    ]
    return "\n".join(lines) + "\n"


def _elements(body: Body, storage: Storage, index: str) -> list[str]:
    """The parts of the elements at a unit's index."""
    decoded = [storage.decoded(f"{name}_[{index}]") for name in body.names]
    return [f"element({', '.join(at)})" for at in zip(*decoded, strict=True)]


def _joined(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"join_parts({values[0]}, {_joined(values[1:])})"


def _main(body: Body, storage: Storage, result: str, shape: Shape) -> list[str]:
    threads, unroll = shape.threads, shape.unroll
    start = "0.0" if body.start == "zero" else "bitcast<f32>(p.low)"
    accumulators = [f"a{k}" for k in range(unroll)]
    return [
        f"@compute @workgroup_size({threads})",
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,",
        "        @builtin(local_invocation_index) thread: u32) {",
        f"  let whole = p.n >> {storage.width.bit_length() - 1}u;",
        f"  let rest = p.n & {storage.width - 1}u;",
        f"  let stride = groups.x * {threads}u;",
        f"  var i = group.x * {threads}u + thread;",
        f"  let start = {storage.part}({storage.real}({start}));",
        *(f"  var {a} = start;" for a in accumulators),
        # As many accumulators as loads: all are in flight before the first one is needed.
        f"  for (; i + {unroll - 1}u * stride < whole; i += {unroll}u * stride) {{",
        *(
            f"    {a} = {_joined([a, *_elements(body, storage, f'i + {k}u * stride')])};"
            for k, a in enumerate(accumulators)
        ),
        "  }",
        f"  for (; i < whole; i += stride) {{ a0 = {_joined(['a0', *_elements(body, storage, 'i')])}; }}",
        f"  var a = {_joined(accumulators)};",
        *_tail(body, storage),
        f"  shared_[thread] = {storage.across('join', 'a')};",
        "  workgroupBarrier();",
        *_tree(threads),
        f"  if (thread == 0u) {{ out_[p.first + group.x] = {result}(shared_[0]); }}",
        "}",
    ]


def _tail(body: Body, storage: Storage) -> list[str]:
    """Exactly one thread of the grid ends at `whole`: it takes the elements left over."""
    lines = ["  if (i == whole && rest > 0u) {"]
    lines += [f"    let e{k} = {text};" for k, text in enumerate(_elements(body, storage, "i"))]
    for k in range(storage.width - 1):
        lane = LANES[k % storage.lanes]
        value = f"join(a.{lane}, e{k // storage.lanes}.{lane})"
        lines.append(f"    if (rest > {k}u) {{ a.{lane} = {value}; }}")
    return [*lines, "  }"]


def _tree(threads: int) -> list[str]:
    lines, half = [], threads // 2
    while half:
        lines += [
            f"  if (thread < {half}u) {{",
            f"    shared_[thread] = join(shared_[thread], shared_[thread + {half}u]);",
            "  }",
            "  workgroupBarrier();",
        ]
        half //= 2
    return lines
