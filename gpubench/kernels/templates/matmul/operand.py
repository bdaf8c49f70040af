"""How a tile of A or B comes from memory to workgroup memory, in the text of the register-blocked WGSL matmul.

In workgroup memory a tile has a line for each step of K, so that a thread reads what it multiplies as vec4. Memory that
has such lines itself (B's, and A's if that is stored transposed) is copied as it lies. Other lines are turned on the
way, in registers. Lines of memory are read as vec4, or, if they are short and no multiple of 4 long, element by
element; longer ones were padded before.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.kernels.templates import ceil_div, log2
from gpubench.kernels.templates.matmul import Tile
from gpubench.kernels.templates.wgsl import LANES


class Carried(msgspec.Struct, frozen=True):
    """One vec4 that a thread carries."""

    name: str  # variable of the vec4
    ahead: int  # lines from the first one of the thread to this one


class OperandTile(msgspec.Struct, frozen=True):
    """The reads of a group from A or B."""

    name: Literal["a", "b"]  # operand that is read
    tile: Tile  # block of C that the group computes
    real: str  # type of the arithmetic
    extent: int  # rows or columns beside K
    k: int  # a multiple of 4 where the operand is turned
    turned: bool  # a line of memory goes along K, and holds k / 4 vec4s; else it goes along the extent
    loose: bool  # it is read element by element
    begin: str  # text of the group's first row or column, counted in vec4s unless it is `turned`
    inside: bool  # no group looks past an edge
    # the beginning of a call that reads four neighbours of a line, where memory has no such line
    gather: str = ""

    @property
    def length(self) -> int:
        """Rows or columns of the tile."""
        return self.tile.rows if self.name == "a" else self.tile.columns

    @property
    def pitch(self) -> int:
        """vec4s from line to line in workgroup memory: one more than it takes if the tile is turned, so that the lines
        begin in different banks."""
        return self.length // 4 + self.turned

    @property
    def vector(self) -> str:
        return f"vec4<{self.real}>"

    @property
    def across(self) -> int:
        """Units of memory in a line: vec4s, or elements if it is loose."""
        if self.loose:
            return self.extent
        return self.k // 4 if self.turned else ceil_div(self.extent, 4)

    @property
    def lines(self) -> int:
        """Lines of the whole operand."""
        return self.extent if self.turned else self.k

    @property
    def carried(self) -> list[Carried]:
        """Return what each thread carries: squares of 4 x 4 to be turned where they come out even, else single
        vec4s."""
        ahead = [
            4 * (i // 4) * self._apart + i % 4 if self._squares else i * self._apart for i in range(self._each)
        ]
        return [Carried(f"{self.name}{i}", lines) for i, lines in enumerate(ahead)]

    @property
    def _each(self) -> int:
        """vec4s that a thread carries."""
        return (self.length if self.turned else self.tile.depth) // self._apart

    @property
    def _squares(self) -> bool:
        """They are whole squares to be turned."""
        return self.turned and self._each % 4 == 0

    @property
    def _quads(self) -> int:
        """vec4s of memory's lines that the tile holds."""
        return (self.tile.depth if self.turned else self.length) // 4

    @property
    def _apart(self) -> int:
        """Lines that all threads read at once."""
        return self.tile.threads // self._quads

    @property
    def _place(self) -> str:
        """The thread's vec4 of each of its lines."""
        return f"(thread & {self._quads - 1}u)"

    def _line(self, load: Carried) -> str:
        """Its line of the tile."""
        first = f"(thread >> {log2(self._quads)}u)"
        return f"({first}{' * 4u' if self._squares else ''} + {load.ahead}u)"

    def functions(self) -> list[str]:
        """Return the function that reads four neighbours of a loose line. Past its end the last element is repeated."""
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
        """Units of memory from one product to the next; from one split of K to the next, which is `steps` long."""
        if self.tile.splits == 1:
            return self.lines * self.across
        return steps // 4 if self.turned else steps * self.across

    def addresses(self, start: int) -> list[str]:
        """Return where the first vec4 lies in memory, and where it goes in workgroup memory, whose tile begins at
        `start`."""
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
        """The tile at `step` (in vec4s of K) into registers."""
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
        """Both in the matrix: what lies past its edge along the extent repeats the last one there."""
        if self.turned:
            return f"min({self.begin} + {line}, {self.extent - 1}u)", place
        return line, f"min({self.begin} + {place}, {ceil_div(self.extent, 4) - 1}u)"

    def fetch_rest(self, start: int) -> list[str]:
        """The steps of K from `start` on, which fill no tile. What lies past their end repeats the last one."""
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
        """From registers to workgroup memory."""
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
