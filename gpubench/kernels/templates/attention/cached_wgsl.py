"""One token's attention over a cache, in WGSL: the algorithm of CUDA's."""

from __future__ import annotations

import math

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import require_bindings
from gpubench.kernels.templates.attention import (
    CACHE_THREADS,
    LOWEST,
    CacheGroup,
    Heads,
    cache_group,
    require_threads,
)
from gpubench.kernels.templates.wgsl import Storage, require_storage, shader, whole_units


def build(append: bool, of: Heads, room: int, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch. Raises Unsupported for what the device does not hold."""
    require_storage(dtype, limits, threads=CACHE_THREADS, exact=False)
    require_threads(of)
    if of.heads > limits.max_groups_per_dimension:
        raise Unsupported(f"{of.heads} groups exceed {limits.max_groups_per_dimension}", reason="limit")
    require_bindings({"cache": 2 * room * of.width * ITEMSIZE[dtype]}, limits)
    storage = whole_units(dtype, of.e)
    text = _source(append, cache_group(of.e // storage.width, room), storage, of)
    step = WgslPass(text, (of.heads, 1, 1), ("qkv", "position", "cache", "out"), uniform=(room,))
    return WgslProgram((step,))


def _source(append: bool, group: CacheGroup, storage: Storage, of: Heads) -> str:
    units, shares, parts = group.units, group.shares, range(storage.parts)
    across = of.width // storage.width  # loads of a row of all heads
    mine = range(units // shares)
    queries, products = [], []
    for i in mine:
        place = f"head + share + {i * shares}u"
        queries.append(f"  let query{i} = qkv_[{place}];")
        products.append(f"      let key{i} = row_at(j, count - 1u, 0u, {place});")
        pairs = zip(storage.decoded(f"query{i}"), storage.decoded(f"key{i}"), strict=True)
        products += [f"      part += {storage.product(a, b)};" for a, b in pairs]
    score = " + ".join(f"scores[{shares}u * i + {s}u]" for s in range(shares))
    new = f"  if (j == last) {{ return qkv_[(1u + which) * {across}u + place]; }}\n" * append
    kept = f"""
  for (var i = thread; i < {2 * units}u; i += {CACHE_THREADS}u) {{
    let which = i / {units}u;
    let unit = head + i % {units}u;
    cache_[(2u * count - 2u + which) * {across}u + unit] = qkv_[(1u + which) * {across}u + unit];
  }}"""
    lines = {
        "begin": "\n".join(f"  var own{i} = {storage.part}();" for i in parts),
        "less": " ".join(f"own{i} *= less;" for i in parts),
        "add": " ".join(f"own{i} += power * {v};" for i, v in enumerate(storage.decoded("value"))),
        "hand": " ".join(f"sums[thread * {storage.parts}u + {i}u] = own{i} * less;" for i in parts),
    }
    found = f"sums[(i * {units}u + lane) * {storage.parts}u + {{}}u]"
    ended = " ".join(f"sum{i} += {found.format(i)};" for i in parts)
    before = f"""{chr(10).join(storage.functions)}
var<workgroup> scores: array<f32, {CACHE_THREADS}>;
var<workgroup> tops: array<f32, {group.teams}>;
var<workgroup> totals: array<f32, {group.teams}>;
var<workgroup> sums: array<{storage.part}, {CACHE_THREADS * storage.parts}>;
// A unit of the key (0) or value (1) of token j; those of the last one may not be in the cache yet.
fn row_at(j: u32, last: u32, which: u32, place: u32) -> {storage.unit} {{
{new}  return cache_[(2u * j + which) * {across}u + place];
}}
fn score_of(i: u32) -> f32 {{ return {score}; }}
"""
    body = f"""
  let head = group.x * {units}u;
  let count = min(u32(position[0]), p.room - 1u) + 1u;
  let share = thread % {shares}u;
  let team = thread / {units}u;
  let lane = thread % {units}u;{kept * append}
{chr(10).join(queries)}
  var top = f32({LOWEST});
  var total = 0.0;
{lines["begin"]}
  for (var base = 0u; base < count; base += {group.held}u) {{
    let j = base + thread / {shares}u;
    var value = row_at(min(base + team, count - 1u), count - 1u, 1u, head + lane);
    if (j < count) {{
      var part = 0.0;
{chr(10).join(products)}
      scores[thread] = part * {1 / math.sqrt(of.e)!r};
    }}
    workgroupBarrier();
    let behind = min(count - base, {group.held}u);
    if (team < {group.teams}u) {{
      let before = top;
      for (var i = team; i < behind; i += {group.teams}u) {{ top = max(top, score_of(i)); }}
      let less = exp(before - top);
      total *= less;
      {lines["less"]}
      for (var i = team; i < behind; i += {group.teams}u) {{
        let next = row_at(min(base + i + {group.teams}u, count - 1u), count - 1u, 1u, head + lane);
        let power = exp(score_of(i) - top);
        total += power;
        {lines["add"]}
        value = next;
      }}
    }}
    workgroupBarrier();
  }}
  if (team < {group.teams}u && lane == 0u) {{ tops[team] = top; }}
  workgroupBarrier();
  var highest = tops[0];
  for (var i = 1u; i < {group.teams}u; i++) {{ highest = max(highest, tops[i]); }}
  let less = exp(top - highest);
  {lines["hand"]}
  if (team < {group.teams}u && lane == 0u) {{ totals[team] = total * less; }}
  workgroupBarrier();
  if (thread >= {units}u) {{ return; }}
  var all = 0.0;
{chr(10).join(f"  var sum{i} = {storage.part}();" for i in parts)}
  for (var i = 0u; i < {group.teams}u; i++) {{ all += totals[i]; {ended} }}
  out_[head + thread] = {storage.encoded(*(f"sum{i} / all" for i in parts))};
"""
    buffers = {"qkv_": storage.unit, "position": "i32", "cache_": storage.unit, "out_": storage.unit}
    return shader(
        buffers, CACHE_THREADS, body, params="room", before=before, writes=("out_", "cache_")[: 1 + append]
    )
