"""The text of the register-blocked WGSL matmul: each thread owns a block of C in named accumulators.

What the choices are worth on an H200 stands in docs/kernels.md. Sizes are constants of the text, and every
address is one sum of a thread's base and a constant: that saves the registers which let a second and a third
group live on a multiprocessor. K's steps are written out in full (WGSL has no unroll hint), the next tile is
fetched into registers during the arithmetic, and A's tile lies transposed, so that both are read as vec4.
"""

from __future__ import annotations

import msgspec

from gpubench.kernels.families.matmul import Tile, sequence
from gpubench.kernels.families.matmul.epilogue import Epilogue
from gpubench.kernels.families.wgsl import LANES, elements


class Patches(msgspec.Struct, frozen=True):
    """B as the patches of an image of `channels` x `side` x `side`: a row for each channel and tap of 3 x 3, a column
    for each pixel. It is read from the image itself; a tap outside of it is 0."""

    channels: int
    side: int

    @property
    def pixels(self) -> int:
        """Columns of B."""
        return self.side * self.side

    @property
    def taps(self) -> int:
        """Rows of B."""
        return 9 * self.channels

    def function(self, real: str) -> str:
        """`patches_at(image, row, quad)`: four neighbours of a row of B."""
        lanes = "\n".join(
            f"  v.{lane} = tap(base, 4u * quad + {q}u, dy, dx, real);" for q, lane in enumerate(LANES)
        )
        return f"""fn tap(base: u32, pixel: u32, dy: u32, dx: u32, real: bool) -> {real} {{
  let y = pixel / {self.side}u + dy;
  let x = pixel % {self.side}u + dx;
  let inside = real && pixel < {self.pixels}u && y >= 1u && y <= {self.side}u && x >= 1u && x <= {self.side}u;
  let value = {real}(b_[base + select(0u, y * {self.side}u + x - {self.side + 1}u, inside)]);
  return select({real}(), value, inside);
}}
fn patches_at(image: u32, row: u32, quad: u32) -> vec4<{real}> {{
  let channel = min(row / 9u, {self.channels - 1}u);
  let base = (image * {self.channels}u + channel) * {self.pixels}u;
  let real = row < {self.taps}u;
  let dy = row % 9u / 3u;
  let dx = row % 3u;
  var v: vec4<{real}>;
{lanes}
  return v;
}}"""


class Layout(msgspec.Struct, frozen=True):
    """A tile and the sizes. A is m x k and B k x `stride`, both read as vec4; C is m x n.

    k and `stride` are multiples of 4 and `stride` >= n; k >= 4. Each of the `batch` products follows the one
    before. With the tile's `splits` k is a multiple of their depth, there is one product, and C is written once
    for each split, in the type of the arithmetic, without the `epilogue`. With `patches` every product has the same A.
    """

    tile: Tile
    dtype: str
    m: int
    n: int
    k: int
    stride: int
    batch: int = 1
    epilogue: Epilogue | None = None
    patches: Patches | None = None

    @property
    def real(self) -> str:
        """The type of the arithmetic and of workgroup memory."""
        return elements(self.dtype).real

    @property
    def vector(self) -> str:
        """Four of them."""
        return f"vec4<{self.real}>"

    @property
    def inside(self) -> bool:
        """C holds at least one whole block: a block past its edge moves back inside, and repeats a part."""
        return self.m >= self.tile.rows and self.stride >= self.tile.columns

    @property
    def scalar_stores(self) -> bool:
        """C is written element by element."""
        return self.tile.scalar_stores or self.n % 4 != 0

    @property
    def whole(self) -> int:
        """Whole tiles along K."""
        return self.k // self.tile.depth // self.tile.splits

    @property
    def rest(self) -> int:
        """Steps of K after the whole tiles."""
        return self.k % self.tile.depth

    @property
    def out(self) -> str:
        """The type of an element of C in memory."""
        return self.real if self.tile.splits > 1 else elements(self.dtype).stored

    @property
    def layers(self) -> bool:
        """The grid's third dimension counts something: products or splits."""
        return self.batch > 1 or self.tile.splits > 1

    @property
    def steps(self) -> int:
        """Steps of K of one team in one tile."""
        return self.tile.depth // self.tile.slices


def source(layout: Layout) -> str:
    """The whole shader; bindings a, b, out and the operands of the epilogue."""
    lines = [*_header(layout), *_thread(layout), *_addresses(layout)]
    lines += [f"  var c{i}_{j} = {layout.real}();" for i, j in sorted(sequence(layout.tile))]
    if layout.whole:
        lines += ["  var step = 0u;", *_fetch(layout)]
        lines += [f"  for (var tile = 0u; tile < {layout.whole}u; tile++) {{", *_publish(layout)]
        lines += ["    workgroupBarrier();"]
        # The last round fetches its own tile once more: cheaper than a branch around the loads.
        lines += [
            f"    step = min(step + {layout.tile.depth // 4}u, {(layout.whole - 1) * layout.tile.depth // 4}u);"
        ]
        lines += _fetch(layout)
        for k in range(layout.steps):
            lines += _multiply(layout, k)
        lines += ["    workgroupBarrier();", "  }"]
    if layout.rest:
        lines += _last_tile(layout)
    return "\n".join([*lines, *_add_slices(layout), *_write(layout), "}"]) + "\n"


def _header(layout: Layout) -> list[str]:
    stored = elements(layout.dtype).stored
    out = layout.out if layout.scalar_stores else f"vec4<{layout.out}>"
    beside = []
    if layout.epilogue is not None:
        unit = stored if layout.scalar_stores else f"vec4<{stored}>"
        beside = [
            *(
                f"@group(0) @binding({3 + i}) var<storage, read> {name}_with: array<{unit}>;"
                for i, name in enumerate(layout.epilogue.operands)
            ),
            f"alias V = {layout.vector};",
            layout.epilogue.finish(),
        ]
    return [
        *(["enable f16;"] if stored == "f16" else []),
        f"@group(0) @binding(0) var<storage, read> a_: array<vec4<{stored}>>;",
        f"@group(0) @binding(1) var<storage, read> b_: array<{stored if layout.patches else f'vec4<{stored}>'}>;",
        f"@group(0) @binding(2) var<storage, read_write> out_: array<{out}>;",
        f"var<workgroup> shared_: array<{layout.vector}, {layout.tile.vectors}>;",
        *([layout.patches.function(layout.real)] if layout.patches else []),
        *beside,
    ]


def _thread(layout: Layout) -> list[str]:
    tile = layout.tile
    warps_x = tile.threads_x // 8
    top, left = f"group.y * {tile.rows}u", f"group.x * {tile.columns // 4}u"
    if layout.inside:
        top = f"min({top}, {layout.m - tile.rows}u)"
        left = f"min({left}, {(layout.stride - tile.columns) // 4}u)"
    return [
        f"@compute @workgroup_size({tile.threads})",
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {",
        f"  let member = thread & {tile.team - 1}u;",
        # 32 neighbouring threads cover 8 x 4 blocks, and 8 of them 2 x 4: their reads of both tiles fall
        # into different banks of workgroup memory.
        f"  let tx = (((member >> 5u) & {warps_x - 1}u) << 3u) | (((member >> 3u) & 3u) << 1u) | (member & 1u);",
        f"  let ty = ((member >> {5 + _log2(warps_x)}u) << 2u) | ((member >> 1u) & 3u);",
        *([f"  let slice = thread >> {_log2(tile.team)}u;"] if tile.slices > 1 else []),
        f"  let top = {top};",
        f"  let left = {left};",
        f"  let read_a = ty{_slice_offset(layout, tile.stride_a)};",
        f"  let read_b = {tile.depth * tile.stride_a}u + tx{_slice_offset(layout, tile.columns // 4)};",
    ]


def _slice_offset(layout: Layout, row: int) -> str:
    return f" + slice * {layout.steps * row}u" if layout.tile.slices > 1 else ""


def _log2(power: int) -> int:
    return power.bit_length() - 1


class _Share(msgspec.Struct, frozen=True):
    """One vec4 that a thread carries from A or B to workgroup memory.

    `address` is its index in the matrix for step 0 of K, `row` and `column` say where it stands in the tile:
    rows of the matrix and vec4s along it.
    """

    name: str
    address: str
    row: str
    column: str


def _shares_a(layout: Layout, column: str | None = None) -> list[_Share]:
    """A's tile in squares of 4 x 4 where they come out even, which turn in registers; else in single vec4s."""
    tile, across = layout.tile, layout.k // 4
    quads = tile.depth // 4
    each, rows = tile.rows * quads // tile.threads, tile.threads // quads
    square = each % 4 == 0
    first = f"(thread >> {_log2(quads)}u)" + (" * 4u" if square else "")
    column = column or f"(thread & {quads - 1}u)"
    shares = []
    for i in range(each):
        ahead = 4 * (i // 4) * rows + i % 4 if square else i * rows
        address = f"base_a + {ahead * across}u"
        if not layout.inside:
            address = f"layer_a + min(top + {first} + {ahead}u, {layout.m - 1}u) * {across}u + {column}"
        shares.append(_Share(f"a{i}", address, f"({first} + {ahead}u)", column))
    return shares


def _shares_b(layout: Layout) -> list[_Share]:
    tile, across = layout.tile, layout.stride // 4
    quads = tile.columns // 4
    first, column = f"(thread >> {_log2(quads)}u)", f"(thread & {quads - 1}u)"
    shares = []
    for i in range(tile.depth * quads // tile.threads):
        ahead = i * tile.threads // quads
        address = f"base_b + {ahead * across}u"
        if not layout.inside:
            address = f"layer_b + ({first} + {ahead}u) * {across}u + min(left + {column}, {across - 1}u)"
        shares.append(_Share(f"b{i}", address, f"({first} + {ahead}u)", column))
    return shares


def _addresses(layout: Layout) -> list[str]:
    tile = layout.tile
    a, b = _shares_a(layout), _shares_b(layout)
    layer_a, layer_b = layout.m * layout.k // 4, layout.k * layout.stride // 4
    if layout.patches:
        layer_a = 0
    if tile.splits > 1:
        layer_a, layer_b = layout.k // tile.splits // 4, layout.k // tile.splits * layout.stride // 4
    lines = [
        f"  let layer_a = {f'group.z * {layer_a}u' if layout.layers else '0u'};",
        f"  let layer_b = {f'group.z * {layer_b}u' if layout.layers else '0u'};",
    ]
    if layout.inside:
        lines += [
            f"  let base_a = layer_a + (top + {a[0].row}) * {layout.k // 4}u + {a[0].column};",
            f"  let base_b = layer_b + {b[0].row} * {layout.stride // 4}u + left + {b[0].column};",
        ]
    lines += [
        f"  let put_a = 4u * {a[0].column} * {tile.stride_a}u + ({a[0].row} >> 2u);",
        f"  let lane_a = {a[0].row} & 3u;",
        f"  let put_b = {tile.depth * tile.stride_a}u + {b[0].row} * {tile.columns // 4}u + {b[0].column};",
        *(f"  var next_{share.name}: {layout.vector};" for share in (*a, *b)),
    ]
    return lines


def _fetch(layout: Layout) -> list[str]:
    """The tile at `step` (in vec4s of K) into registers."""
    rows = 4 * (layout.stride // 4)
    lines = [f"    next_{s.name} = {layout.vector}(a_[{s.address} + step]);" for s in _shares_a(layout)]
    for s in _shares_b(layout):
        if layout.patches:
            lines.append(f"    next_{s.name} = patches_at(group.z, {s.row} + step * 4u, left + {s.column});")
        else:
            lines.append(f"    next_{s.name} = {layout.vector}(b_[{s.address} + step * {rows}u]);")
    return lines


def _fetch_rest(layout: Layout) -> list[str]:
    """The steps of K after the whole tiles; a thread whose share lies past the end reads the last one again."""
    tile = layout.tile
    start, last = layout.whole * tile.depth // 4, layout.k // 4 - 1
    lines = [f"  let rest_a = min({_shares_a(layout)[0].column} + {start}u, {last}u);"]
    for share in _shares_a(layout):
        row = f"min(top + {share.row}, {layout.m - 1}u)"
        lines.append(
            f"    next_{share.name} = {layout.vector}(a_[layer_a + {row} * {layout.k // 4}u + rest_a]);"
        )
    for share in _shares_b(layout):
        k = f"min({share.row} + {4 * start}u, {layout.k - 1}u)"
        column = f"min(left + {share.column}, {layout.stride // 4 - 1}u)"
        if layout.patches:
            lines.append(f"    next_{share.name} = patches_at(group.z, {k}, {column});")
            continue
        lines.append(
            f"    next_{share.name} = {layout.vector}(b_[layer_b + {k} * {layout.stride // 4}u + {column}]);"
        )
    return lines


def _publish(layout: Layout) -> list[str]:
    """From registers to workgroup memory, A transposed: row k of its tile holds column k of the matrix."""
    tile = layout.tile
    shares, lines = _shares_a(layout), []
    rows = tile.threads // (tile.depth // 4)
    if len(shares) % 4 == 0:
        for first in range(0, len(shares), 4):
            for q, lane in enumerate(LANES):
                value = ", ".join(f"next_{share.name}.{lane}" for share in shares[first : first + 4])
                at = q * tile.stride_a + first // 4 * rows
                lines.append(f"    shared_[put_a + {at}u] = {layout.vector}({value});")
    else:
        for i, share in enumerate(shares):
            for q, lane in enumerate(LANES):
                lines.append(
                    f"    shared_[put_a + {q * tile.stride_a + i * rows // 4}u][lane_a] = next_{share.name}.{lane};"
                )
    return lines + [
        f"    shared_[put_b + {i * tile.threads}u] = next_{share.name};"
        for i, share in enumerate(_shares_b(layout))
    ]


def _multiply(layout: Layout, k: int) -> list[str]:
    """One step of K: thread_rows x thread_columns multiply-adds from a few vec4 reads."""
    tile = layout.tile
    lines = ["    {"]
    for i in range(tile.thread_rows // 4):
        lines.append(f"      let a{i} = shared_[read_a + {k * tile.stride_a + i * tile.threads_y}u];")
    for j in range(tile.thread_columns // 4):
        lines.append(f"      let b{j} = shared_[read_b + {k * tile.columns // 4 + j * tile.threads_x}u];")
    for row, column in sequence(tile):
        a, b = f"a{row // 4}.{LANES[row % 4]}", f"b{column // 4}.{LANES[column % 4]}"
        lines.append(f"      c{row}_{column} = fma({a}, {b}, c{row}_{column});")
    return [*lines, "    }"]


def _last_tile(layout: Layout) -> list[str]:
    """The steps that fill no tile. A team whose share of the tile lies past the end of K skips them."""
    lines = [*_fetch_rest(layout), *_publish(layout), "  workgroupBarrier();"]
    for k in range(min(layout.steps, layout.rest)):
        if layout.tile.slices > 1:
            inside = f"slice * {layout.steps}u + {k}u < {layout.rest}u"
            lines += [f"  if ({inside}) {{", *_multiply(layout, k), "  }"]
        else:
            lines += _multiply(layout, k)
    return [*lines, "  workgroupBarrier();"]


def _add_slices(layout: Layout) -> list[str]:
    """The teams' sums, halving the number of teams each time; the first team has them all in the end."""
    tile, lines = layout.tile, []
    blocks = [
        [f"c{row}_{4 * j + q}" for q in range(4)]
        for row in range(tile.thread_rows)
        for j in range(tile.thread_columns // 4)
    ]
    size = len(blocks) * tile.team
    half = tile.slices // 2
    while half:
        lines += ["  workgroupBarrier();", f"  if (slice >= {half}u && slice < {2 * half}u) {{"]
        for i, block in enumerate(blocks):
            at = f"(slice - {half}u) * {size}u + {i * tile.team}u + member"
            lines.append(f"    shared_[{at}] = {layout.vector}({', '.join(block)});")
        lines += ["  }", "  workgroupBarrier();", f"  if (slice < {half}u) {{"]
        for i, block in enumerate(blocks):
            lines.append(f"    {{ let e = shared_[slice * {size}u + {i * tile.team}u + member];")
            lines.append(
                "      " + " ".join(f"{c} += e.{lane};" for c, lane in zip(block, LANES, strict=True)) + " }"
            )
        lines.append("  }")
        half //= 2
    return lines


def _write(layout: Layout) -> list[str]:
    tile = layout.tile
    across = layout.n if layout.scalar_stores else layout.n // 4
    layer = f"group.z * {layout.m * across}u + " if layout.layers else ""
    lines = ["  if (slice > 0u) { return; }"] if tile.slices > 1 else []
    for row in range(tile.thread_rows):
        lines.append(f"  let row{row} = top + (ty + {row // 4 * tile.threads_y}u) * 4u + {row % 4}u;")
        for j in range(tile.thread_columns // 4):
            column = f"(left + tx + {j * tile.threads_x}u)"
            values = [f"c{row}_{4 * j + q}" for q in range(4)]
            lines += _store(layout, f"{layer}row{row} * {across}u", f"row{row}", column, values)
    return lines


def _store(layout: Layout, start: str, row: str, column: str, values: list[str]) -> list[str]:
    """Four neighbours of C, guarded where a block may stand over the edge."""
    down = [] if layout.inside else [f"{row} < {layout.m}u"]
    if not layout.scalar_stores:
        guards = [] if layout.inside else [*down, f"{column} < {layout.n // 4}u"]
        value = _finished(layout, start, column, values) or f"vec4({', '.join(values)})"
        return [_guarded(f"out_[{start} + {column}] = vec4<{layout.out}>({value});", guards)]
    ragged = not layout.inside or layout.stride != layout.n
    finished, lines = _finished(layout, start, column, values), []
    if finished is not None:
        lines.append(f"  {{ let f = {finished};")
        values = [f"f.{lane}" for lane in LANES]
    for q, value in enumerate(values):
        guards = [*down, f"{column} * 4u + {q}u < {layout.n}u"] if ragged else []
        lines.append(_guarded(f"out_[{start} + {column} * 4u + {q}u] = {layout.out}({value});", guards))
    return lines if finished is None else [*lines, "  }"]


def _guarded(text: str, guards: list[str]) -> str:
    return f"  if ({' && '.join(guards)}) {{ {text} }}" if guards else f"  {text}"


def _finished(layout: Layout, start: str, column: str, values: list[str]) -> str | None:
    """The epilogue of four neighbours; None without one. What stands past an edge is read at the last place."""
    if layout.epilogue is None:
        return None
    given = [f"V({', '.join(values)})"]
    for name, along in layout.epilogue.operands.items():
        if layout.scalar_stores:
            last = layout.n if along == "across" else layout.m * layout.n * layout.batch
            first = f"{column} * 4u" if along == "across" else f"{start} + {column} * 4u"
            reads = (f"{layout.real}({name}_with[min({first} + {q}u, {last - 1}u)])" for q in range(4))
            given.append(f"V({', '.join(reads)})")
        else:
            given.append(f"V({name}_with[{column if along == 'across' else f'{start} + {column}'}])")
    return f"finish({', '.join(given)})"
