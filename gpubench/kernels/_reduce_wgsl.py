"""Reductions in WGSL: grid-stride partials of 16-byte loads into scratch, then one group over the partials.

On an H200 512 to 4096 groups reach 1.01 of the device copy, whatever the order of the additions. A vector
that one group can read in a moment takes a single pass.
"""

from __future__ import annotations

import msgspec

from gpubench.kernels._limits import ceil_div, group_threads, require_bindings, require_dtype
from gpubench.model.kernel import Limits, WgslPass, WgslProgram

# Up to this many vectors (64 KiB an input) the second pass would cost more than it saves.
ONE_GROUP_VECTORS = 4096
MOST_GROUPS = 1024
_UNROLL = 4


class Body(msgspec.Struct, frozen=True):
    """A reduction: `start` of the accumulators, `element` from the inputs' vectors, `join` of a and b.

    `start`, `element`, `join` and `finish` are WGSL expressions; `start` may use the input arrays, `element`
    the inputs' names (vec4 each), `join` the vec4 or f32 values a and b, `finish` folds the vec4 a to a f32.
    """

    names: tuple[str, ...]
    start: str
    element: str
    join: str
    finish: str


def build(body: Body, n: int, dtype: str, limits: Limits) -> WgslProgram:
    """One or two dispatches over n >= 1 elements. Raises Unsupported for a dtype or size it cannot do."""
    require_dtype(dtype, ("float32",))
    require_bindings(dict.fromkeys(body.names, 4 * n), limits)
    threads = group_threads(limits)
    vectors = ceil_div(n, 4)
    if vectors <= ONE_GROUP_VECTORS:
        text = source(body, threads)
        return WgslProgram((WgslPass(text, (1, 1, 1), (*body.names, "out"), uniform=(n,)),))
    groups = min(MOST_GROUPS, ceil_div(vectors, threads * _UNROLL), limits.max_groups_per_dimension)
    first = WgslPass(source(body, threads), (groups, 1, 1), (*body.names, "partials"), uniform=(n,))
    rest = source(Body(("x",), body.start, "x", body.join, body.finish), threads)
    second = WgslPass(rest, (1, 1, 1), ("partials", "out"), uniform=(groups,), read_only=("partials",))
    return WgslProgram((first, second), scratch={"partials": ceil_div(4 * groups, 16) * 16})


def source(body: Body, threads: int) -> str:
    """The text of one pass: group g writes its partial result to out_[g]. It does not depend on n."""
    last = len(body.names)
    arguments = ", ".join(f"{name}: vec4<f32>" for name in body.names)
    lines = [
        "struct Params { n: u32, }",
        *(
            f"@group(0) @binding({i}) var<storage, read> {name}_: array<vec4<f32>>;"
            for i, name in enumerate(body.names)
        ),
        f"@group(0) @binding({last}) var<storage, read_write> out_: array<f32>;",
        f"@group(0) @binding({last + 1}) var<uniform> p: Params;",
        f"var<workgroup> shared_: array<f32, {threads}>;",
        f"fn join4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {{ return {body.join}; }}",
        f"fn join1(a: f32, b: f32) -> f32 {{ return {body.join}; }}",
        f"fn element({arguments}) -> vec4<f32> {{ return {body.element}; }}",
        f"fn finish(a: vec4<f32>) -> f32 {{ return {body.finish}; }}",
        *_main(body, threads),
    ]
    return "\n".join(lines) + "\n"


def _main(body: Body, threads: int) -> list[str]:
    def element(index: str) -> str:
        return f"element({', '.join(f'{name}_[{index}]' for name in body.names)})"

    lines = [
        f"@compute @workgroup_size({threads})",
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,",
        "        @builtin(local_invocation_index) thread: u32) {",
        "  let whole = p.n >> 2u;",
        "  let rest = p.n & 3u;",
        f"  let stride = groups.x * {threads}u;",
        f"  var i = group.x * {threads}u + thread;",
        *(f"  var a{k} = {body.start};" for k in range(_UNROLL)),
        # Four accumulators: four loads are in flight before the first one is needed.
        f"  for (; i + {_UNROLL - 1}u * stride < whole; i += {_UNROLL}u * stride) {{",
        *(f"    a{k} = join4(a{k}, {element(f'i + {k}u * stride')});" for k in range(_UNROLL)),
        "  }",
        f"  for (; i < whole; i += stride) {{ a0 = join4(a0, {element('i')}); }}",
        "  var a = join4(join4(a0, a1), join4(a2, a3));",
        # Exactly one thread of the grid ends at `whole`: it takes the up to three elements left over.
        "  if (i == whole && rest > 0u) {",
        f"    let e = {element('i')};",
        *(f"    if (rest > {k}u) {{ a.{lane} = join1(a.{lane}, e.{lane}); }}" for k, lane in enumerate("xyz")),
        "  }",
        "  shared_[thread] = finish(a);",
        "  workgroupBarrier();",
    ]
    half = threads // 2
    while half:
        lines += [
            f"  if (thread < {half}u) {{",
            f"    shared_[thread] = join1(shared_[thread], shared_[thread + {half}u]);",
            "  }",
            "  workgroupBarrier();",
        ]
        half //= 2
    return [*lines, "  if (thread == 0u) { out_[group.x] = shared_[0]; }", "}"]
