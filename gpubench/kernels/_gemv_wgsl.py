"""A x in WGSL: neighbouring threads share a row, a thread works on several rows, the vector is read once for them.

Bound by reading A. Rows meet threads by length: up to 256 threads a row, several rows a group where they are
short. Where there are too few rows to fill a device, a row is cut into chunks and a second pass adds them up.
"""

from __future__ import annotations

import msgspec

from gpubench.kernels._limits import (
    ceil_div,
    fold,
    group_threads,
    multiprocessors,
    power_of_two_at_least,
    require_bindings,
)
from gpubench.kernels._storage_wgsl import Storage, elements, real_dtype, require_storage, vectors
from gpubench.model.kernel import Limits, WgslPass, WgslProgram
from gpubench.model.op import ITEMSIZE

_ROWS = 4  # of a thread: x is read once for all of them
_UNITS_PER_LANE = 2  # the least that is worth a thread
_FULL_GROUPS = 8  # per multiprocessor
_MOST_CHUNKS = 1024


class Shape(msgspec.Struct, frozen=True):
    """Threads of a group, threads that share a row, and rows of a thread."""

    threads: int
    lanes: int
    rows: int

    @property
    def group_rows(self) -> int:
        """Rows of a group."""
        return self.threads // self.lanes * self.rows


def build(m: int, n: int, dtype: str, limits: Limits, shape: Shape | None = None) -> WgslProgram:
    """out = A x, A being m x n. One dispatch, or two for few rows. Raises Unsupported for what it cannot do."""
    require_storage(dtype, limits)
    size = ITEMSIZE[dtype]
    require_bindings({"a": m * n * size, "x": n * size, "out": m * size}, limits)
    if m == 0:
        return WgslProgram(())
    storage = elements(dtype) if n % vectors(dtype).width else vectors(dtype)
    units = n // storage.width
    shape = shape or choose_shape(m, units, limits)
    span, parts = chunks(m, units, shape, limits)
    x, y, _ = fold(ceil_div(m, shape.group_rows), limits)
    uniform = (m, units, span, parts)
    if parts == 1:
        text = source(storage, storage.stored, shape)
        return WgslProgram((WgslPass(text, (x, y, 1), ("a", "x", "out"), uniform=uniform),))
    text = source(storage, storage.real, shape)
    first = WgslPass(text, (x, y, parts), ("a", "x", "partials"), uniform=uniform)
    partial = elements(real_dtype(dtype))
    rest = choose_shape(m, parts, limits)
    text = source(partial, storage.stored, rest, weighted=False)
    grid = fold(ceil_div(m, rest.group_rows), limits)
    second = WgslPass(text, grid, ("partials", "out"), uniform=(m, parts, parts, 1), read_only=("partials",))
    size = m * parts * ITEMSIZE[real_dtype(dtype)]
    return WgslProgram((first, second), scratch={"partials": ceil_div(size, 16) * 16})


def choose_shape(m: int, units: int, limits: Limits) -> Shape:
    """Threads by the row's length; one row a thread where there are few rows."""
    threads = group_threads(limits)
    lanes = min(power_of_two_at_least(ceil_div(max(1, units), _UNITS_PER_LANE)), threads)
    rows = _ROWS if ceil_div(m, threads // lanes * _ROWS) >= 2 * multiprocessors(limits) else 1
    return Shape(threads, lanes, rows)


def chunks(m: int, units: int, shape: Shape, limits: Limits) -> tuple[int, int]:
    """(units of a chunk, chunks of a row): more than one chunk where the rows alone leave the device idle."""
    groups = ceil_div(m, shape.group_rows)
    wanted = min(_FULL_GROUPS * multiprocessors(limits) // groups, _MOST_CHUNKS)
    longest = units // (shape.lanes * _UNITS_PER_LANE)
    count = max(1, min(wanted, longest, limits.max_groups_per_dimension))
    span = max(1, ceil_div(ceil_div(units, count), shape.lanes) * shape.lanes)
    return span, max(1, ceil_div(units, span))


def source(storage: Storage, result: str, shape: Shape, *, weighted: bool = True) -> str:
    """One pass: chunk z of row r goes to out_[r * chunks + z]. Without weights it adds up the rows of A."""
    names = ("a", "x") if weighted else ("a",)
    lines = [
        *dict.fromkeys([*storage.header, *(["enable f16;"] if result == "f16" else [])]),
        "struct Params { m: u32, units: u32, span: u32, chunks: u32, }",
        *(
            f"@group(0) @binding({i}) var<storage, read> {name}_: array<{storage.unit}>;"
            for i, name in enumerate(names)
        ),
        f"@group(0) @binding({len(names)}) var<storage, read_write> out_: array<{result}>;",
        f"@group(0) @binding({len(names) + 1}) var<uniform> p: Params;",
        f"var<workgroup> sums: array<{storage.real}, {shape.threads * shape.rows}>;",
        *storage.functions,
        *_main(storage, result, shape, weighted),
    ]
    return "\n".join(lines) + "\n"


def _main(storage: Storage, result: str, shape: Shape, weighted: bool) -> list[str]:
    threads, lanes, rows = shape.threads, shape.lanes, range(shape.rows)
    apart = threads // lanes  # rows that neighbouring groups of lanes work on at a time
    lines = [
        f"@compute @workgroup_size({threads})",
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,",
        "        @builtin(local_invocation_index) thread: u32) {",
        f"  let lane = thread & {lanes - 1}u;",
        f"  let row = (group.y * groups.x + group.x) * {shape.group_rows}u + (thread >> {lanes.bit_length() - 1}u);",
        "  let end = min((group.z + 1u) * p.span, p.units);",
    ]
    for r in rows:
        # Rows past the last repeat it and write nothing: no thread may leave before a barrier.
        lines.append(f"  let start{r} = min(row + {r * apart}u, p.m - 1u) * p.units;")
        lines.append(f"  var total{r} = {storage.part}();")
    lines.append(f"  for (var u = group.z * p.span + lane; u < end; u += {lanes}u) {{")
    lines += ["    let x = x_[u];"] if weighted else []
    lines += [f"    let a{r} = a_[start{r} + u];" for r in rows]
    for r in rows:
        for i, a in enumerate(storage.decoded(f"a{r}")):
            added = f"fma({a}, {storage.decoded('x')[i]}, total{r})" if weighted else f"total{r} + {a}"
            lines.append(f"    total{r} = {added};")
    lines.append("  }")
    lines += [f"  sums[thread + {r * threads}u] = {storage.across('', f'total{r}')};" for r in rows]
    half = lanes // 2
    while half:
        lines += ["  workgroupBarrier();", f"  if (lane < {half}u) {{"]
        for r in rows:
            at = f"thread + {r * threads}u"
            lines.append(f"    sums[{at}] += sums[{at} + {half}u];")
        lines.append("  }")
        half //= 2
    for r in rows:
        value = f"{result}(sums[thread + {r * threads}u])"
        guard = f"lane == 0u && row + {r * apart}u < p.m"
        lines.append(f"  if ({guard}) {{ out_[(row + {r * apart}u) * p.chunks + group.z] = {value}; }}")
    return [*lines, "}"]
