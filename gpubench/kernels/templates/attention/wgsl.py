"""Fused causal attention in WGSL: the loops over a head's elements are written out, so that they lie in registers."""

from __future__ import annotations

import math

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import ceil_div, require_bindings
from gpubench.kernels.templates.attention import KEYS, LANES, LOWEST, Heads, QueryLayout, layout
from gpubench.kernels.templates.wgsl import Storage, require_storage, shader, whole_units


def build(of: Heads, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch, none without tokens. Raises Unsupported for what the device or the kernel does not hold."""
    require_storage(dtype, limits, exact=False)
    size = ITEMSIZE[dtype] * of.n * of.width
    require_bindings({"qkv": 3 * size, "out": size}, limits)
    found = layout(of, 4, limits)
    grid = (ceil_div(of.n, found.group_rows), of.heads, 1)
    if max(grid) > limits.max_groups_per_dimension:
        raise Unsupported(
            f"{grid[0]} x {grid[1]} groups exceed {limits.max_groups_per_dimension}", reason="limit"
        )
    if of.n == 0:
        return WgslProgram(())
    storage = whole_units(dtype, of.e)
    return WgslProgram((WgslPass(_Text(of, found, storage).source(), grid, ("qkv", "out"), uniform=(of.n,)),))


class _Text(msgspec.Struct, frozen=True):
    of: Heads
    layout: QueryLayout
    storage: Storage

    @property
    def units(self) -> int:
        """Loads of one head of one token."""
        return self.of.e // self.storage.width

    @property
    def parts(self) -> int:
        """Values that such a load is computed in."""
        return self.units * self.storage.parts

    def source(self) -> str:
        lines = [*self._begin(), *self._queries(), *self._keys()]
        half = self.layout.parts // 2
        while half:
            lines += self._merge(half)
            half //= 2
        body, before = "\n".join([*lines, *self._write()]), [*self._shared(), *self.storage.functions]
        buffers = {"qkv_": self.storage.unit, "out_": self.storage.unit}
        return shader(buffers, self.layout.threads, body, params="n", before="\n".join(before))

    def _shared(self) -> list[str]:
        storage, shared = self.storage, []
        if self.layout.parts > 1:
            pairs = self.layout.parts // 2 * self.layout.group_rows
            shared = [
                f"var<workgroup> handed: array<{storage.part}, {pairs * self.parts}>;",
                f"var<workgroup> tops: array<f32, {pairs}>;",
                f"var<workgroup> totals: array<f32, {pairs}>;",
            ]
        return shared

    def _begin(self) -> list[str]:
        return [
            f"  let lane = thread & {LANES - 1}u;",
            f"  let part = thread / {LANES}u;",
            # The row blocks with the most keys come first: the last ones to end are short.
            f"  let first = (groups.x - 1u - group.x) * {self.layout.group_rows}u;",
            f"  let head = group.y * {self.units}u;",
        ]

    def _line(self, token: str, which: int) -> str:
        """The first unit of the head of a token's query, key or value (0, 1, 2)."""
        across = self.of.heads * self.units
        return f"{token} * {3 * across}u + {which * across}u + head"

    def _parts(self, name: str, start: str) -> list[str]:
        """`name0`, `name1`, ...: all parts of a head that begins at unit `start`."""
        lines = []
        for u in range(self.units):
            lines.append(f"let {name}_unit{u} = qkv_[{start} + {u}u];")
            for i, part in enumerate(self.storage.decoded(f"{name}_unit{u}")):
                lines.append(f"let {name}{u * self.storage.parts + i} = {part};")
        return lines

    def _queries(self) -> list[str]:
        lines = []
        for r in range(self.layout.rows):
            lines += [f"  let row{r} = first + {r * LANES}u + lane;"]
            lines += [f"  let query{r} = {self._line(f'min(row{r}, p.n - 1u)', 0)};"]
            lines += [f"  {line}" for line in self._parts(f"given{r}_", f"query{r}")]
            for i in range(self.parts):
                lines.append(f"  let q{r}_{i} = given{r}_{i} * {1 / math.sqrt(self.of.e)!r};")
                lines.append(f"  var o{r}_{i} = {self.storage.part}();")
            lines += [f"  var top{r} = f32({LOWEST});", f"  var total{r} = 0.0;"]
        return lines

    def _keys(self) -> list[str]:
        rows, step = range(self.layout.rows), self.layout.parts * KEYS
        lines = [
            f"  let behind = min(first + {self.layout.group_rows}u, p.n);",
            f"  for (var j = part * {KEYS}u; j < behind; j += {step}u) {{",
        ]
        for t in range(KEYS):
            lines += [f"    var s{r}_{t}: f32;" for r in rows]
            lines += ["    {", f"      let key = {self._line(f'min(j + {t}u, p.n - 1u)', 1)};"]
            lines += [f"      {line}" for line in self._parts("k", "key")]
            for r in rows:
                score = " + ".join(self.storage.product(f"q{r}_{i}", f"k{i}") for i in range(self.parts))
                lines.append(f"      s{r}_{t} = select(f32({LOWEST}), {score}, j + {t}u <= row{r});")
            lines.append("    }")
        for r in rows:
            highest = f"top{r}"
            for t in range(KEYS):
                highest = f"max({highest}, s{r}_{t})"
            lines += [f"    let high{r} = {highest};", f"    let before{r} = exp(top{r} - high{r});"]
            lines += [f"    top{r} = high{r};"]
            lines += [f"    let p{r}_{t} = exp(s{r}_{t} - high{r});" for t in range(KEYS)]
            total = " + ".join(f"p{r}_{t}" for t in range(KEYS))
            lines += [f"    total{r} = total{r} * before{r} + ({total});"]
            lines += [f"    o{r}_{i} *= before{r};" for i in range(self.parts)]
        for t in range(KEYS):
            lines += ["    {", f"      let value = {self._line(f'min(j + {t}u, p.n - 1u)', 2)};"]
            lines += [f"      {line}" for line in self._parts("v", "value")]
            lines += [f"      o{r}_{i} += p{r}_{t} * v{i};" for r in rows for i in range(self.parts)]
            lines.append("    }")
        return [*lines, "  }"]

    def _merge(self, half: int) -> list[str]:
        """The parts from `half` on hand their results to those before them."""
        lines = ["  workgroupBarrier();", f"  if (part >= {half}u && part < {2 * half}u) {{"]
        lines += [
            f"    {line}" for r in range(self.layout.rows) for line in self._handing(r, f"part - {half}u")
        ]
        lines += ["  }", "  workgroupBarrier();", f"  if (part < {half}u) {{"]
        lines += [f"    {line}" for r in range(self.layout.rows) for line in self._taking(r)]
        return [*lines, "  }"]

    def _place(self, r: int, part: str) -> str:
        return f"(({part}) * {self.layout.rows}u + {r}u) * {LANES}u + lane"

    def _handing(self, r: int, part: str) -> list[str]:
        pairs = self.layout.parts // 2 * self.layout.group_rows
        return [
            f"let at{r} = {self._place(r, part)};",
            f"tops[at{r}] = top{r};",
            f"totals[at{r}] = total{r};",
            *(f"handed[at{r} + {i * pairs}u] = o{r}_{i};" for i in range(self.parts)),
        ]

    def _taking(self, r: int) -> list[str]:
        pairs = self.layout.parts // 2 * self.layout.group_rows
        return [
            f"let at{r} = {self._place(r, 'part')};",
            f"let high{r} = max(top{r}, tops[at{r}]);",
            f"let mine{r} = exp(top{r} - high{r});",
            f"let theirs{r} = exp(tops[at{r}] - high{r});",
            f"top{r} = high{r};",
            f"total{r} = total{r} * mine{r} + totals[at{r}] * theirs{r};",
            *(
                f"o{r}_{i} = o{r}_{i} * mine{r} + handed[at{r} + {i * pairs}u] * theirs{r};"
                for i in range(self.parts)
            ),
        ]

    def _write(self) -> list[str]:
        lines = ["  if (part > 0u) { return; }"] if self.layout.parts > 1 else []
        for r in range(self.layout.rows):
            lines += [f"  if (row{r} < p.n) {{", f"    let by{r} = 1.0 / total{r};"]
            for u in range(self.units):
                parts = (f"o{r}_{u * self.storage.parts + i} * by{r}" for i in range(self.storage.parts))
                lines.append(
                    f"    out_[row{r} * {self.of.heads * self.units}u + head + {u}u] = {self.storage.encoded(*parts)};"
                )
            lines.append("  }")
        return lines
