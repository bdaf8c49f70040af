"""The text of the register-blocked WGSL matmul: each thread owns a block of C in named vec4 accumulators.

What each choice is worth at n = 4096 on an H200: register blocking 8.8x over naive; the K tile written out
in full +50 % (WGSL has no unroll hint); the next tile fetched into registers during the arithmetic +16 %;
A's tile transposed, so that both operands are read as vec4, +16 %; vec4 global loads +9 %; one vec4 of
padding and 4 x 8 lanes per 32 threads +3 % each.
"""

from __future__ import annotations

import msgspec

LANES = "xyzw"


class Tile(msgspec.Struct, frozen=True):
    """A group computes rows x columns of C, stepping through K by `depth`; a thread a block of it.

    All are powers of two; the thread's block is at least 4 x 4 and a group is at least 8 threads wide.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def threads_x(self) -> int:
        """Threads along a row of C."""
        return self.columns // self.thread_columns

    @property
    def threads_y(self) -> int:
        """Threads along a column of C."""
        return self.rows // self.thread_rows

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.threads_x * self.threads_y

    def workgroup_bytes(self, *, padded: bool) -> int:
        """Workgroup memory of both tiles; padding adds one vec4 to each row of A's transposed tile."""
        return 16 * self.depth * (self.rows // 4 + padded + self.columns // 4)


class Layout(msgspec.Struct, frozen=True):
    """A tile and what is known about the sizes: each fact saves guards in the text.

    `vectors`: rows of B and C and of A are multiples of 4 long. `whole_depth`: K is a multiple of the
    tile's depth. `whole_output`: C is a multiple of the tile. `sizes`: (m, n, k) as constants, else uniform.
    """

    tile: Tile
    padded: bool
    vectors: bool
    whole_depth: bool
    whole_output: bool
    sizes: tuple[int, int, int] | None = None

    @property
    def stride_a(self) -> int:
        """The vec4s of one row of A's transposed tile."""
        return self.tile.rows // 4 + self.padded


def source(layout: Layout) -> str:
    """The whole shader; bindings a, b, out and, unless the sizes are constants, the uniform."""
    lines = [*_header(layout), *_loaders(layout), *_store_function(layout)]
    lines += [*_entry(layout), *_addresses(layout), *_accumulators(layout.tile)]
    lines += ["  var step = 0u;", *_fetch(layout, "  ")]
    lines += ["  for (var tile = 0u; tile < tiles; tile++) {", *_publish(layout), "    workgroupBarrier();"]
    lines += [f"    step += {layout.tile.depth // 4}u;"]
    lines += ["    if (tile + 1u < tiles) {", *_fetch(layout, "      "), "    }"]
    for k in range(layout.tile.depth):
        lines += _multiply(layout, k)
    lines += ["    workgroupBarrier();", "  }", *_write(layout), "}"]
    return "\n".join(lines) + "\n"


def _header(layout: Layout) -> list[str]:
    tile, element = layout.tile, "vec4<f32>" if layout.vectors else "f32"
    lines = [
        f"@group(0) @binding(0) var<storage, read> a_: array<{element}>;",
        f"@group(0) @binding(1) var<storage, read> b_: array<{element}>;",
        f"@group(0) @binding(2) var<storage, read_write> out_: array<{element}>;",
        f"var<workgroup> tile_a: array<vec4<f32>, {tile.depth * layout.stride_a}>;",
        f"var<workgroup> tile_b: array<vec4<f32>, {tile.depth * tile.columns // 4}>;",
    ]
    if layout.sizes is None:
        lines += ["struct Params { m: u32, n: u32, k: u32, }", "@group(0) @binding(3) var<uniform> p: Params;"]
    return lines


def _size(layout: Layout, name: str) -> str:
    return f"p.{name}" if layout.sizes is None else f"{layout.sizes['mnk'.index(name)]}u"


def _loaders(layout: Layout) -> list[str]:
    """load_a(row, k) and load_b(k, column): 4 neighbours in a row; k of A and column count vec4s.

    Rows and columns arrive inside the matrix. Past the end of K both give 0, so that no garbage (or
    infinity times 0) enters a sum; the address is clamped, since a read must not leave the buffer.
    """
    n, k = _size(layout, "n"), _size(layout, "k")
    if layout.whole_depth:
        a = f"return a_[row * ({k} >> 2u) + k];"
        b = f"return b_[k * ({n} >> 2u) + column];"
    elif layout.vectors:
        a = f"return select(vec4<f32>(), a_[row * ({k} >> 2u) + min(k, ({k} >> 2u) - 1u)], k < ({k} >> 2u));"
        b = f"return select(vec4<f32>(), b_[min(k, {k} - 1u) * ({n} >> 2u) + column], k < {k});"
    else:
        each_a = ", ".join(
            f"select(0.0, a_[row * {k} + min(4u * k + {q}u, {k} - 1u)], 4u * k + {q}u < {k})" for q in range(4)
        )
        each_b = ", ".join(f"b_[min(k, {k} - 1u) * {n} + min(4u * column + {q}u, {n} - 1u)]" for q in range(4))
        a = f"return vec4<f32>({each_a});"
        b = f"return select(vec4<f32>(), vec4<f32>({each_b}), k < {k});"
    return [
        f"fn load_a(row: u32, k: u32) -> vec4<f32> {{ {a} }}",
        f"fn load_b(k: u32, column: u32) -> vec4<f32> {{ {b} }}",
    ]


def _store_function(layout: Layout) -> list[str]:
    m, n = _size(layout, "m"), _size(layout, "n")
    head = "fn store(row: u32, column: u32, value: vec4<f32>) {"
    if layout.whole_output:
        return [f"{head} out_[row * ({n} >> 2u) + column] = value; }}"]
    if layout.vectors:
        inside = f"row < {m} && column < ({n} >> 2u)"
        return [f"{head} if ({inside}) {{ out_[row * ({n} >> 2u) + column] = value; }} }}"]
    return [
        head,
        f"  if (row >= {m}) {{ return; }}",
        *(
            f"  if (4u * column + {q}u < {n}) {{ out_[row * {n} + 4u * column + {q}u] = value.{lane}; }}"
            for q, lane in enumerate(LANES)
        ),
        "}",
    ]


def _entry(layout: Layout) -> list[str]:
    tile = layout.tile
    warps_x = tile.threads_x // 8
    return [
        f"@compute @workgroup_size({tile.threads})",
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {",
        # 32 neighbouring threads cover 4 x 8 blocks: they share more of both tiles than a row of 32 would.
        f"  let tx = (((thread >> 5u) & {warps_x - 1}u) << 3u) + (thread & 7u);",
        f"  let ty = ((thread >> {5 + _log2(warps_x)}u) << 2u) + ((thread >> 3u) & 3u);",
        f"  let row0 = group.y * {tile.rows}u;",
        f"  let column0 = group.x * {tile.columns // 4}u;",
        f"  let last_row = {_size(layout, 'm')} - 1u;",
        f"  let last_column = (({_size(layout, 'n')} + 3u) >> 2u) - 1u;",
        f"  let tiles = ({_size(layout, 'k')} + {tile.depth - 1}u) >> {_log2(tile.depth)}u;",
    ]


def _log2(power: int) -> int:
    return power.bit_length() - 1


class _Share(msgspec.Struct, frozen=True):
    """One vec4 of a tile that a thread carries: the register's name and where it comes from."""

    name: str
    row: str
    column: str


def _shares_a(tile: Tile) -> list[_Share]:
    """A's tile in 4 x 4 blocks where they come out even (stored transposed as vec4s), else in single vec4s."""
    quads = tile.depth // 4
    each = tile.rows * quads // tile.threads
    shares = []
    for i in range(each):
        if each % 4 == 0:
            item = f"(thread + {i // 4 * tile.threads}u)"
            row = f"({item} >> {_log2(quads)}u) * 4u + {i % 4}u"
        else:
            item = f"(thread + {i * tile.threads}u)"
            row = f"({item} >> {_log2(quads)}u)"
        shares.append(_Share(f"a{i}", row, f"({item} & {quads - 1}u)"))
    return shares


def _shares_b(tile: Tile) -> list[_Share]:
    quads = tile.columns // 4
    items = [f"(thread + {i * tile.threads}u)" for i in range(tile.depth * quads // tile.threads)]
    return [
        _Share(f"b{i}", f"({item} >> {_log2(quads)}u)", f"({item} & {quads - 1}u)")
        for i, item in enumerate(items)
    ]


def _addresses(layout: Layout) -> list[str]:
    """Rows of A and columns of B are clamped once: what a group computes past the edge is not stored."""
    lines = []
    for share in _shares_a(layout.tile):
        lines.append(f"  let row_{share.name} = min(row0 + {share.row}, last_row);")
        lines.append(f"  var next_{share.name}: vec4<f32>;")
    for share in _shares_b(layout.tile):
        lines.append(f"  let column_{share.name} = min(column0 + {share.column}, last_column);")
        lines.append(f"  var next_{share.name}: vec4<f32>;")
    return lines


def _accumulators(tile: Tile) -> list[str]:
    return [
        f"  var c{i}{lane}{j} = vec4<f32>();"
        for i in range(tile.thread_rows // 4)
        for lane in LANES
        for j in range(tile.thread_columns // 4)
    ]


def _fetch(layout: Layout, indent: str) -> list[str]:
    lines = [
        f"{indent}next_{share.name} = load_a(row_{share.name}, step + {share.column});"
        for share in _shares_a(layout.tile)
    ]
    lines += [
        f"{indent}next_{share.name} = load_b(4u * step + {share.row}, column_{share.name});"
        for share in _shares_b(layout.tile)
    ]
    return lines


def _publish(layout: Layout) -> list[str]:
    """From registers to workgroup memory, A transposed: row k of its tile holds column k of the matrix."""
    shares, lines = _shares_a(layout.tile), []
    if len(shares) % 4 == 0:
        for first in range(0, len(shares), 4):
            block = shares[first : first + 4]
            for q, lane in enumerate(LANES):
                value = ", ".join(f"next_{share.name}.{lane}" for share in block)
                at = f"(4u * {block[0].column} + {q}u) * {layout.stride_a}u + (({block[0].row}) >> 2u)"
                lines.append(f"    tile_a[{at}] = vec4<f32>({value});")
    else:
        for share in shares:
            for q, lane in enumerate(LANES):
                at = f"(4u * {share.column} + {q}u) * {layout.stride_a}u + ({share.row} >> 2u)"
                lines.append(f"    tile_a[{at}][{share.row} & 3u] = next_{share.name}.{lane};")
    return lines + [
        f"    tile_b[{share.row} * {layout.tile.columns // 4}u + {share.column}] = next_{share.name};"
        for share in _shares_b(layout.tile)
    ]


def _multiply(layout: Layout, k: int) -> list[str]:
    """One step of K: thread_rows x thread_columns multiply-adds from a few vec4 reads."""
    tile = layout.tile
    rows, columns = range(tile.thread_rows // 4), range(tile.thread_columns // 4)
    lines = ["    {"]
    for i in rows:
        lines.append(f"      let a{i} = tile_a[{k * layout.stride_a + i * tile.threads_y}u + ty];")
    for j in columns:
        lines.append(f"      let b{j} = tile_b[{k * tile.columns // 4 + j * tile.threads_x}u + tx];")
    for i in rows:
        for lane in LANES:
            for j in columns:
                lines.append(f"      c{i}{lane}{j} = fma(vec4<f32>(a{i}.{lane}), b{j}, c{i}{lane}{j});")
    return [*lines, "    }"]


def _write(layout: Layout) -> list[str]:
    tile = layout.tile
    return [
        f"  store(row0 + (ty + {i * tile.threads_y}u) * 4u + {r}u,"
        f" column0 + tx + {j * tile.threads_x}u, c{i}{lane}{j});"
        for i in range(tile.thread_rows // 4)
        for r, lane in enumerate(LANES)
        for j in range(tile.thread_columns // 4)
    ]
