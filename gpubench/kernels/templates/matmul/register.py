"""The text of the register-blocked WGSL matmul, in which each thread computes a block of C in named
accumulators.

docs/kernels.md says how much each choice gains on an H200. Sizes are constants of the text, and every address
is one sum of a thread's base and a constant. That saves registers, so that a second and a third group fit on a
multiprocessor. The steps of K are written out in full, because WGSL has no unroll hint. The next tile is
fetched into registers during the arithmetic.

In workgroup memory the tiles of A and B have a line for each step of K, so that threads read vec4s along the block
of C. An operand that is stored with such lines (B, or a transposed A) is copied as it is; any other is transposed in
registers on the way. Lines are read from the buffers as vec4s. Lines whose length is no multiple of 4 are read
element by element if they are short, and padded by an earlier dispatch if they are long.
"""

from __future__ import annotations

import functools
from typing import Literal

import msgspec

from gpubench.kernels.templates import LANES, ceil_div, elements, log2, shader
from gpubench.kernels.templates.matmul import Epilogue, Tile, sequence


class Carried(msgspec.Struct, frozen=True):
    """One vec4 that a thread holds between memory and workgroup memory."""

    name: str  # name of its variable
    ahead: int  # number of lines between the thread's first line and that of this vec4


class OperandTile(msgspec.Struct, frozen=True):
    """The way in which a group reads a tile of A or B, the operand, from its buffer."""

    name: Literal["a", "b"]  # operand
    tile: Tile  # block of C that the group computes
    real: str  # type of the arithmetic
    extent: int  # rows of A or columns of B
    k: int  # length of K; a multiple of 4 if the operand is turned
    turned: bool  # whether a line of memory runs along K (k / 4 vec4s); if not, it runs along `extent`
    loose: bool  # whether the operand is read element by element, not as vec4
    begin: str  # expression of the group's first row or column; in vec4s unless the operand is `turned`
    inside: bool  # whether no group reads past an edge
    # beginning of the call of a function that reads four neighbours of a line, for patches of an image; empty if the
    # lines are in the buffer
    gather: str = ""

    @property
    def length(self) -> int:
        """The number of rows (A) or columns (B) of the tile."""
        return self.tile.rows if self.name == "a" else self.tile.columns

    @property
    def pitch(self) -> int:
        """The number of vec4s from line to line in workgroup memory."""
        # + 1: lines of a turned operand begin in different banks
        return self.length // 4 + self.turned

    @property
    def vector(self) -> str:
        return f"vec4<{self.real}>"

    @property
    def across(self) -> int:
        """The number of units of memory in a line. A unit is a vec4, or an element of a `loose` operand."""
        if self.loose:
            return self.extent
        return self.k // 4 if self.turned else ceil_div(self.extent, 4)

    @property
    def lines(self) -> int:
        """The number of lines of the whole operand."""
        return self.extent if self.turned else self.k

    @property
    def carried(self) -> list[Carried]:
        """The vec4s that each thread loads."""
        # a thread that transposes squares of 4 x 4 reads four neighbouring lines, then those of its next square
        ahead = [
            4 * (i // 4) * self._apart + i % 4 if self._squares else i * self._apart for i in range(self._each)
        ]
        return [Carried(f"{self.name}{i}", lines) for i, lines in enumerate(ahead)]

    @property
    def _each(self) -> int:
        """The number of vec4s that a thread holds."""
        return (self.length if self.turned else self.tile.depth) // self._apart

    @property
    def _squares(self) -> bool:
        """Whether a thread transposes squares of four vec4s."""
        return self.turned and self._each % 4 == 0

    @property
    def _quads(self) -> int:
        """The number of vec4s of the tile in a line of the buffer."""
        return (self.tile.depth if self.turned else self.length) // 4

    @property
    def _apart(self) -> int:
        """The number of lines that all threads of the group read at once."""
        return self.tile.threads // self._quads

    @property
    def _place(self) -> str:
        """The expression of the thread's vec4 within each of its lines."""
        return f"(thread & {self._quads - 1}u)"

    def _line(self, load: Carried) -> str:
        """Return the expression for the line that the load reads, counted from the tile's first line."""
        first = f"(thread >> {log2(self._quads)}u)"
        return f"({first}{' * 4u' if self._squares else ''} + {load.ahead}u)"

    def functions(self) -> list[str]:
        """Return the lines of a function that reads four neighbouring elements of a `loose` operand's line, and repeats
        the last element after the line's end. Returns no lines for other operands."""
        if not self.loose:
            return []
        lanes = (f"{self.name}_[start + min(4u * place + {q}u, {self.extent - 1}u)]" for q in range(4))
        return [
            f"fn {self.name}_at(layer: u32, line: u32, place: u32) -> {self.vector} {{",
            f"  let start = layer + line * {self.extent}u;",
            f"  return {self.vector}({', '.join(f'{self.real}({lane})' for lane in lanes)});",
            "}",
        ]

    @property
    def _gather(self) -> str:
        return f"{self.name}_at(layer_{self.name}" if self.loose else self.gather

    def layer(self, steps: int) -> int:
        """Return the distance in the buffer between two layers of the grid, in the units of `across`. Layers are
        products, or splits of K, which have the length `steps`."""
        if self.tile.splits == 1:
            return self.lines * self.across
        return steps // 4 if self.turned else steps * self.across

    def addresses(self, start: int) -> list[str]:
        """Return statements for the address of the thread's first vec4 in the buffer, and for its place in workgroup
        memory, where the tile begins at `start`."""
        first = self.carried[0]
        line, at = self._line(first), f"{start}u + " if start else ""
        lines = []
        if self.inside and not self._gather:
            where = f"({self.begin} + {line})" if self.turned else line
            place = self._place if self.turned else f"{self.begin} + {self._place}"
            lines.append(f"  let base_{self.name} = layer_{self.name} + {where} * {self.across}u + {place};")
        if self.turned:
            lines.append(f"  let put_{self.name} = {at}4u * {self._place} * {self.pitch}u + ({line} >> 2u);")
            lines.append(f"  let lane_{self.name} = {line} & 3u;")
        else:
            lines.append(f"  let put_{self.name} = {at}{line} * {self.pitch}u + {self._place};")
        return lines

    def fetch(self) -> list[str]:
        """Return statements that read a tile into registers. The WGSL variable `step` is where it begins along K, in
        vec4s."""
        step = "step" if self.turned else f"step * {4 * self.across}u"
        lines = []
        for load in self.carried:
            line, place = self._line(load), self._place
            if self._gather:
                read = f"{self._gather}, {line} + step * 4u, {self.begin} + {place})"
            elif self.inside:
                read = f"{self.name}_[base_{self.name} + {load.ahead * self.across}u + {step}]"
            else:
                line, place = self._clamp(line, place)
                read = f"{self.name}_[layer_{self.name} + {line} * {self.across}u + {place} + {step}]"
            lines.append(self._next(load, read))
        return lines

    def _clamp(self, line: str, place: str) -> tuple[str, str]:
        """Return (line, place), with the one along the extent counted from the operand's begin and limited to it."""
        if self.turned:
            return f"min({self.begin} + {line}, {self.extent - 1}u)", place
        return line, f"min({self.begin} + {place}, {ceil_div(self.extent, 4) - 1}u)"

    def fetch_rest(self, start: int) -> list[str]:
        """Return statements that read the steps of K from `start` on, which do not fill a tile. After the end of K the
        last step is read again."""
        lines = []
        if self.turned:
            last = f"min({self._place} + {start // 4}u, {self.k // 4 - 1}u)"
            lines.append(f"  let rest_{self.name} = {last};")
        for load in self.carried:
            line, place = self._clamp(self._line(load), self._place)
            if self.turned:
                place = f"rest_{self.name}"
            else:
                line = f"min({line} + {start}u, {self.k - 1}u)"
            if self._gather:
                read = f"{self._gather}, {line}, {place})"
            else:
                read = f"{self.name}_[layer_{self.name} + {line} * {self.across}u + {place}]"
            lines.append(self._next(load, read))
        return lines

    def _next(self, load: Carried, read: str) -> str:
        return f"    next_{load.name} = {read if self._gather else f'{self.vector}({read})'};"

    def publish(self) -> list[str]:
        """Return statements that copy the held vec4s to workgroup memory."""
        carried, put = self.carried, f"put_{self.name}"
        if not self.turned:
            return [
                f"    shared_[{put} + {i * self.tile.threads}u] = next_{s.name};" for i, s in enumerate(carried)
            ]
        if not self._squares:
            where = (
                f"{put} + {q * self.pitch + i * self._apart // 4}u" for i in range(self._each) for q in range(4)
            )
            values = (f"next_{load.name}.{lane}" for load in carried for lane in LANES)
            return [
                f"    shared_[{at}][lane_{self.name}] = {value};"
                for at, value in zip(where, values, strict=True)
            ]
        lines = []
        for first in range(0, len(carried), 4):
            for q, lane in enumerate(LANES):
                value = ", ".join(f"next_{load.name}.{lane}" for load in carried[first : first + 4])
                at = q * self.pitch + first // 4 * self._apart
                lines.append(f"    shared_[{put} + {at}u] = {self.vector}({value});")
        return lines


class Patches(msgspec.Struct, frozen=True):
    """B as the patches of an image, with a row for each channel and tap of 3 x 3, and a column for each pixel. The
    elements are read from the image; where a tap is outside the image, the element is 0."""

    channels: int  # channels of the image
    side: int  # height and width of the image

    @property
    def pixels(self) -> int:
        """The number of columns of B."""
        return self.side * self.side

    @property
    def taps(self) -> int:
        """The number of rows of B."""
        return 9 * self.channels

    def function(self, real: str) -> str:
        """Return the text of the function `patches_at(image, row, quad)`, which reads four neighbours of a row of B."""
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


# Sums over more than _LONG steps of K are added up in blocks of _BLOCK steps. The error of a sum of terms of one sign
# grows with the square root of their number. A gradient of weights adds up a batch: over 16,384 rows the error of one
# accumulator was 12 units of round-off, and that of BLAS, which adds up blocks, was one.
_LONG, _BLOCK = 4096, 512


class Layout(msgspec.Struct, frozen=True):
    """A tile and the sizes of a product. In its buffer, a line of A or B takes `ceil_div(length, 4)` vec4s, unless
    the operand is `loose`. If lines run along K, k is a multiple of 4.

    If the tile has several splits, each of them has whole tiles of K, and its part of C is written without the
    epilogue.
    """

    tile: Tile  # block of C that a group computes
    dtype: str  # dtype of A, B and C
    m: int  # rows of C
    n: int  # columns of C
    k: int  # columns of A
    batch: int  # number of products, stored one after the other
    ta: bool  # whether A is stored k x m
    tb: bool  # whether B is stored n x k
    loose: tuple[str, ...]  # operands that are read element by element, whose lines run along m or n
    epilogue: Epilogue | None  # applied to each element before it is written; None: nothing is
    patches: Patches | None  # B is read from an image, and every product has the same A

    @property
    def real(self) -> str:
        """The type of the arithmetic and of workgroup memory: f32 or f64."""
        return elements(self.dtype).real

    @property
    def vector(self) -> str:
        """The vec4 of `real`."""
        return f"vec4<{self.real}>"

    @property
    def inside(self) -> bool:
        """Whether C has at least one whole block. If so, a block that would cross the edge is moved back inside, and
        computes a part of C again."""
        # a block of a transposed operand moves by whole vec4s only
        whole = not (self.ta and self.m % 4) and not (self.tb and self.n % 4)
        return whole and self.m >= self.tile.rows and 4 * self.quads >= self.tile.columns

    @property
    def quads(self) -> int:
        """The number of vec4s of a row of C. The last one may be partly used."""
        return ceil_div(self.n, 4)

    @property
    def a(self) -> OperandTile:
        """How A is read."""
        begin = "(top >> 2u)" if self.ta else "top"
        loose = "a" in self.loose
        return OperandTile("a", self.tile, self.real, self.m, self.k, not self.ta, loose, begin, self.inside)

    @property
    def b(self) -> OperandTile:
        """How B is read, from its buffer or as patches from an image."""
        begin, loose = "4u * left" if self.tb else "left", "b" in self.loose
        gather = "patches_at(group.z" if self.patches else ""
        return OperandTile(
            "b", self.tile, self.real, self.n, self.k, self.tb, loose, begin, self.inside, gather
        )

    @property
    def scalar_stores(self) -> bool:
        """Whether C is written element by element."""
        return self.tile.scalar_stores or self.n % 4 != 0

    @property
    def whole(self) -> int:
        """The number of whole tiles along K, in each split."""
        return self.k // self.tile.depth // self.tile.splits

    @property
    def block(self) -> int:
        """The number of tiles whose sum is added to the total, or 0 if each product is added to the total directly."""
        # such sums reduce rounding errors, and cost registers
        long = self.whole * self.steps > _LONG and self.k > max(self.m, self.n)
        return _BLOCK // self.steps if long else 0

    @property
    def rest(self) -> int:
        """The number of steps of K after the whole tiles."""
        return self.k % self.tile.depth

    @property
    def out(self) -> str:
        """The type of an element of C in memory."""
        return self.real if self.tile.splits > 1 else elements(self.dtype).stored

    @property
    def layers(self) -> bool:
        """Whether the third dimension of the grid counts products or splits."""
        return self.batch > 1 or self.tile.splits > 1

    @property
    def steps(self) -> int:
        """The number of steps of K of one team in one tile."""
        return self.tile.depth // self.tile.slices


def source(layout: Layout) -> str:
    """Return the text of the whole shader. Its bindings are a, b, out and the operands of the epilogue."""
    lines = [*_thread(layout), *_addresses(layout)]
    names = ("c", "total") if layout.block else ("c",)
    lines += [
        f"  var {name}{i}_{j} = {layout.real}();" for i, j in sorted(sequence(layout.tile)) for name in names
    ]
    fetch, publish = [*layout.a.fetch(), *layout.b.fetch()], [*layout.a.publish(), *layout.b.publish()]
    if layout.whole:
        lines += ["  var step = 0u;", *fetch]
        lines += [f"  for (var tile = 0u; tile < {layout.whole}u; tile++) {{", *publish]
        lines += ["    workgroupBarrier();"]
        # The last round fetches its own tile once more: cheaper than a branch around the loads.
        lines += [
            f"    step = min(step + {layout.tile.depth // 4}u, {(layout.whole - 1) * layout.tile.depth // 4}u);"
        ]
        lines += fetch
        for k in range(layout.steps):
            lines += _multiply(layout, k)
        lines += [*_end_block(layout), "    workgroupBarrier();", "  }"]
    if layout.rest:
        start = layout.whole * layout.tile.depth
        lines += [*layout.a.fetch_rest(start), *layout.b.fetch_rest(start), *publish, *_last_tile(layout)]
    blocks = [f"  c{i}_{j} += total{i}_{j};" for i, j in sorted(sequence(layout.tile)) if layout.block]
    body = "\n".join([*lines, *blocks, *_add_slices(layout), *_write(layout)])
    return shader(_buffers(layout), layout.tile.threads, body, before="\n".join(_before(layout)))


def _end_block(layout: Layout) -> list[str]:
    """Return statements that add the sums of a block of tiles to the totals after its last tile."""
    if not layout.block:
        return []
    places = sorted(sequence(layout.tile))
    moves = [f"total{i}_{j} += c{i}_{j}; c{i}_{j} = {layout.real}();" for i, j in places]
    return [
        # the tiles of a block are a power of two
        f"    if ((tile & {layout.block - 1}u) == {layout.block - 1}u) {{",
        *(f"      {move}" for move in moves),
        "    }",
    ]


def _buffers(layout: Layout) -> dict[str, str]:
    a, b, stored = layout.a, layout.b, elements(layout.dtype).stored
    quad = f"vec4<{stored}>"
    unit_a, unit_b = (stored if buffer.loose or buffer.gather else quad for buffer in (a, b))
    out, unit = (layout.out, stored) if layout.scalar_stores else (f"vec4<{layout.out}>", quad)
    beside = layout.epilogue.operands if layout.epilogue else ()
    return {"a_": unit_a, "b_": unit_b, "out_": out, **{f"{name}_with": unit for name in beside}}


def _before(layout: Layout) -> list[str]:
    a, b = layout.a, layout.b
    vectors = max(layout.tile.depth * (a.pitch + b.pitch), layout.tile.handed)
    return [
        f"var<workgroup> shared_: array<{layout.vector}, {vectors}>;",
        *a.functions(),
        *b.functions(),
        *([layout.patches.function(layout.real)] if layout.patches else []),
        *([f"alias V = {layout.vector};", layout.epilogue.finish()] if layout.epilogue else []),
    ]


def _thread(layout: Layout) -> list[str]:
    tile, pitch_a, pitch_b = layout.tile, layout.a.pitch, layout.b.pitch
    top, first = f"group.y * {tile.rows}u", f"group.x * {tile.columns // 4}u"
    if layout.inside:
        top = f"min({top}, {layout.m - tile.rows}u)"
        first = f"min({first}, {layout.quads - tile.columns // 4}u)"
    return [
        f"  let member = thread & {tile.team - 1}u;",
        *_place(tile),
        *([f"  let slice = thread >> {log2(tile.team)}u;"] if tile.slices > 1 else []),
        f"  let top = {top};",
        f"  let left = {first};",
        f"  let read_a = ty{_slice_offset(layout, pitch_a)};",
        f"  let read_b = {tile.depth * pitch_a}u + tx{_slice_offset(layout, pitch_b)};",
    ]


def _place(tile: Tile) -> list[str]:
    """Return statements for the place of a thread's block within its team."""
    if tile.threads_x < 8:
        return [
            f"  let tx = member & {tile.threads_x - 1}u;",
            f"  let ty = member >> {log2(tile.threads_x)}u;",
        ]
    # 32 neighbouring threads compute 8 x 4 blocks, and 8 of them 2 x 4: their reads are from different banks
    warps_x = tile.threads_x // 8
    return [
        f"  let tx = (((member >> 5u) & {warps_x - 1}u) << 3u) | (((member >> 3u) & 3u) << 1u) | (member & 1u);",
        f"  let ty = ((member >> {5 + log2(warps_x)}u) << 2u) | ((member >> 1u) & 3u);",
    ]


def _slice_offset(layout: Layout, r: int) -> str:
    return f" + slice * {layout.steps * r}u" if layout.tile.slices > 1 else ""


def _addresses(layout: Layout) -> list[str]:
    a, b, steps = layout.a, layout.b, layout.k // layout.tile.splits
    layers = {"a": 0 if layout.patches else a.layer(steps), "b": b.layer(steps)}
    return [
        *(
            f"  let layer_{name} = {f'group.z * {units}u' if layout.layers else '0u'};"
            for name, units in layers.items()
        ),
        *a.addresses(0),
        *b.addresses(layout.tile.depth * a.pitch),
        *(f"  var next_{operand.name}: {layout.vector};" for operand in (*a.carried, *b.carried)),
    ]


def _multiply(layout: Layout, k: int) -> list[str]:
    """Return the statements of one step of K, thread_rows x thread_columns multiply-adds."""
    tile, lines = layout.tile, ["    {"]
    for i in range(tile.thread_rows // 4):
        lines.append(f"      let a{i} = shared_[read_a + {k * layout.a.pitch + i * tile.threads_y}u];")
    for j in range(tile.thread_columns // 4):
        lines.append(f"      let b{j} = shared_[read_b + {k * layout.b.pitch + j * tile.threads_x}u];")
    return [*lines, *_products(tile), "    }"]


@functools.cache
def _products(tile: Tile) -> list[str]:
    return [
        f"      c{r}_{j} = fma(a{r // 4}.{LANES[r % 4]}, b{j // 4}.{LANES[j % 4]}, c{r}_{j});"
        for r, j in sequence(tile)
    ]


def _last_tile(layout: Layout) -> list[str]:
    """Return the statements of the last steps of K, which do not fill a tile."""
    lines = ["  workgroupBarrier();"]
    for k in range(min(layout.steps, layout.rest)):
        # a team whose part of the step is after the end of K skips it
        if layout.tile.slices > 1:
            inside = f"slice * {layout.steps}u + {k}u < {layout.rest}u"
            lines += [f"  if ({inside}) {{", *_multiply(layout, k), "  }"]
        else:
            lines += _multiply(layout, k)
    return [*lines, "  workgroupBarrier();"]


def _add_slices(layout: Layout) -> list[str]:
    """Return statements that add up the sums of all teams. The first team then has the totals."""
    tile, lines = layout.tile, []
    blocks = [
        [f"c{r}_{4 * j + q}" for q in range(4)]
        for r in range(tile.thread_rows)
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
    for r in range(tile.thread_rows):
        lines.append(f"  let row{r} = top + (ty + {r // 4 * tile.threads_y}u) * 4u + {r % 4}u;")
        for j in range(tile.thread_columns // 4):
            column = f"(left + tx + {j * tile.threads_x}u)"
            values = [f"c{r}_{4 * j + q}" for q in range(4)]
            lines += _store(layout, f"{layer}row{r} * {across}u", f"row{r}", column, values)
    return lines


def _store(layout: Layout, start: str, r: str, column: str, values: list[str]) -> list[str]:
    """Return lines that finish and store four neighbouring elements of a row, except outside of C."""
    # WGSL expressions: `start` is where the row begins, in elements with `scalar_stores`, else in vec4s
    down = [] if layout.inside else [f"{r} < {layout.m}u"]
    if not layout.scalar_stores:
        guards = [] if layout.inside else [*down, f"{column} < {layout.n // 4}u"]
        value = _finish(layout, start, column, values) or f"vec4({', '.join(values)})"
        return [_guard(f"out_[{start} + {column}] = vec4<{layout.out}>({value});", guards)]
    ragged = not layout.inside or layout.n % 4 != 0
    finished, lines = _finish(layout, start, column, values), []
    if finished is not None:
        lines.append(f"  {{ let f = {finished};")
        values = [f"f.{lane}" for lane in LANES]
    for q, value in enumerate(values):
        guards = [*down, f"{column} * 4u + {q}u < {layout.n}u"] if ragged else []
        lines.append(_guard(f"out_[{start} + {column} * 4u + {q}u] = {layout.out}({value});", guards))
    return lines if finished is None else [*lines, "  }"]


def _guard(text: str, guards: list[str]) -> str:
    return f"  if ({' && '.join(guards)}) {{ {text} }}" if guards else f"  {text}"


def _finish(layout: Layout, start: str, column: str, values: list[str]) -> str | None:
    """Return the epilogue of four neighbours as an expression, or None if there is no epilogue."""
    if layout.epilogue is None:
        return None
    arguments = [f"V({', '.join(values)})"]
    for name, along in layout.epilogue.operands.items():
        if layout.scalar_stores:
            # past the end, scalar reads repeat the last element
            last = layout.n if along == "across" else layout.m * layout.n * layout.batch
            first = f"{column} * 4u" if along == "across" else f"{start} + {column} * 4u"
            reads = (f"{layout.real}({name}_with[min({first} + {q}u, {last - 1}u)])" for q in range(4))
            arguments.append(f"V({', '.join(reads)})")
        else:
            arguments.append(f"V({name}_with[{column if along == 'across' else f'{start} + {column}'}])")
    return f"finish({', '.join(arguments)})"
