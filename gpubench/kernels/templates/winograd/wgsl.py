"""Winograd's products in WGSL."""

from __future__ import annotations

from gpubench.kernels.contract.kernel import Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE
from gpubench.kernels.templates import ceil_div, fold, require_bindings
from gpubench.kernels.templates.wgsl import elements, require_storage, shader
from gpubench.kernels.templates.winograd import (
    CHUNK,
    FILTER_THREADS,
    FILTERS,
    PRODUCTS,
    THREADS,
    TILES,
    grid,
    tiles,
)

NAME = "winograd"
# Quads of a stage: of the filters' numbers, and of all that it holds.
_OF_FILTERS = CHUNK * PRODUCTS * FILTERS // 4
_STAGE = _OF_FILTERS + CHUNK * PRODUCTS * TILES // 4
_ROOM_BYTES = 2 * 4 * CHUNK * PRODUCTS * (FILTERS + TILES)


def fits(limits: Limits) -> bool:
    """A group of the device holds what a block needs."""
    return limits.max_workgroup_bytes >= _ROOM_BYTES and limits.max_workgroup_threads >= THREADS


def program(n: int, channels: int, filters: int, side: int, dtype: str, limits: Limits) -> WgslProgram:
    """As in CUDA. WGSL hands nothing from thread to thread without memory, so each thread reads the two rows of a tile
    that its row of numbers is made of. Raises Unsupported."""
    require_storage(dtype, limits)
    storage, size = elements(dtype), ITEMSIZE[dtype]
    across, down, _ = grid(n, filters, side)
    padded = ceil_div(channels, CHUNK) * CHUNK
    count = padded * down * FILTERS
    scratch = {"numbers": 4 * PRODUCTS * count}
    sizes = {"x": size * n * channels * side**2, "w": size * 9 * filters * channels}
    require_bindings({**sizes, "out": size * n * filters * side**2, **scratch}, limits)
    buffers, even = {"w_": storage.stored, "numbers_": "f32"}, side % 2 == 0
    transform = shader(
        buffers, FILTER_THREADS, _WGSL_FILTERS, params="channels filters padded count", writes=("numbers_",)
    )
    unit = f"vec2<{storage.stored}>" if even else storage.stored
    text = shader(
        {"x_": storage.stored, "numbers_": "vec4<f32>", "out_": unit}, THREADS,
        _wgsl_tiles(even).replace("STORED", storage.stored), params="channels filters edge across count rounds",
        before=f"var<workgroup> room: array<vec4<f32>, {2 * _STAGE}>;",
    )  # fmt: skip
    return WgslProgram(
        (
            WgslPass(transform, fold(ceil_div(count, FILTER_THREADS), limits), ("w", "numbers"),
                     uniform=(channels, filters, padded, count)),
            WgslPass(text, (*fold(across, limits)[:2], down), ("x", "numbers", "out"),
                     uniform=(channels, filters, side, ceil_div(side, 2), n * tiles(side), padded // CHUNK)),
        ),
        scratch,
    )  # fmt: skip


_WGSL_FILTERS = f"""
  let i = (group.y * groups.x + group.x) * {FILTER_THREADS}u + thread;
  if (i >= p.count) {{ return; }}
  let block = i / (p.padded * {FILTERS}u);
  let channel = i / {FILTERS}u % p.padded;
  let filter_ = block * {FILTERS}u + i % {FILTERS}u;
  var tap = array<f32, 9>();
  if (channel < p.channels && filter_ < p.filters) {{
    for (var k = 0u; k < 9u; k++) {{ tap[k] = f32(w_[(filter_ * p.channels + channel) * 9u + k]); }}
  }}
  let at = (block * p.padded + channel) * {PRODUCTS * FILTERS}u + i % {FILTERS}u;
  for (var row = 0u; row < 4u; row++) {{
    var half = vec3<f32>();
    for (var k = 0u; k < 3u; k++) {{
      let even = (tap[k] + tap[6u + k]) * 0.5;
      let odd = tap[3u + k] * 0.5;
      half[k] = select(select(even - odd, even + odd, row == 1u), tap[select(6u, 0u, row == 0u) + k],
                       row == 0u || row == 3u);
    }}
    let to = at + row * {4 * FILTERS}u;
    numbers_[to] = half.x;
    numbers_[to + {FILTERS}u] = (half.x + half.y + half.z) * 0.5;
    numbers_[to + {2 * FILTERS}u] = (half.x - half.y + half.z) * 0.5;
    numbers_[to + {3 * FILTERS}u] = half.z;
  }}
"""


def _wgsl_tiles(even: bool) -> str:
    """`even`: the side of an image is, so that two pixels of the result are written at once."""
    quads, of_filters, stage = FILTERS // 4, _OF_FILTERS, _STAGE
    sums = "\n".join(f"  var s{i}{h} = vec4<f32>();" for i in range(8) for h in range(2))
    multiply = "\n".join(
        f"      s{i}{h} += a{i // 4}.{'xyzw'[i % 4]} * b{h};" for i in range(8) for h in range(2)
    )
    rows = "\n".join(
        f"    if ((inside & {1 << bit}u) != 0u && there) {{ e{bit % 4} += {sign}f32(x_[from_{row} + {bit % 4}u]); }}"
        for row, sign in ((0, ""), (1, "sign * "))
        for bit in range(4 * row, 4 * row + 4)
    )
    store = "\n".join(
        f"    at = to + {k * TILES}u; room[at / 4u][at % 4u] = {value};"
        for k, value in enumerate(("e0 - e2", "e1 + e2", "e2 - e1", "e1 - e3"))
    )
    parts = "\n".join(_wgsl_part(part, even) for part in range(4))
    return f"""
  let warp = thread / 32u;
  let lane = thread % 32u;
  let own = p.across * p.across;
  let plane = p.edge * p.edge;
  let first = (group.y * groups.x + group.x) * {TILES}u;
  // What a thread loads: two rows of a tile, in every fourth channel, and two quads of the filters' numbers.
  let row = lane / 8u;
  let tile = warp % 4u * 8u + lane % 8u;
  let from_channel = warp / 4u;
  let one = first + tile;
  let image = one / own;
  let within = one % own;
  let top = i32(within / p.across * 2u) - 1;
  let left = i32(within % p.across * 2u) - 1;
  let row_0 = top + i32(select(row, 1u, row == 3u));
  let row_1 = top + i32(select(select(3u, 1u, row == 2u), 2u, row < 2u));
  let sign = select(-1.0, 1.0, row == 1u);
  var inside = 0u;
  for (var e = 0; e < 4; e++) {{
    if (one < p.count && left + e >= 0 && left + e < i32(p.edge)) {{
      if (row_0 >= 0 && row_0 < i32(p.edge)) {{ inside |= 1u << u32(e); }}
      if (row_1 >= 0 && row_1 < i32(p.edge)) {{ inside |= 16u << u32(e); }}
    }}
  }}
  // These may lie outside; then nothing is read there.
  var from_0 = (image * p.channels + from_channel) * plane + u32(row_0 * i32(p.edge) + left);
  var from_1 = (image * p.channels + from_channel) * plane + u32(row_1 * i32(p.edge) + left);
  var of_quads = group.z * p.rounds * {of_filters}u + thread;
  let kept = {4 * of_filters}u + (from_channel * {PRODUCTS}u + 4u * row) * {TILES}u + (tile + 8u * row) % {TILES}u;
  // What it multiplies: two quads of filters by two quads of tiles, which are turned by eight for each row of products,
  // or threads that store them would meet in one bank.
  let filters = lane % 8u;
  let pixels = lane / 8u;
  let near = (pixels + 2u * (warp / 4u)) % {TILES // 4}u;
  let far = (near + {TILES // 8}u) % {TILES // 4}u;
{sums}
  for (var round = 0u; round <= p.rounds; round++) {{
    var w0 = vec4<f32>();
    var w1 = vec4<f32>();
    var e0 = 0.0;
    var e1 = 0.0;
    var e2 = 0.0;
    var e3 = 0.0;
    if (round < p.rounds) {{
      w0 = numbers_[of_quads];
      w1 = numbers_[of_quads + {THREADS}u];
      of_quads += {of_filters}u;
      let there = round * {CHUNK}u + from_channel < p.channels;
{rows}
      from_0 += {CHUNK}u * plane;
      from_1 += {CHUNK}u * plane;
    }}
    if (round > 0u) {{
      let stage = (round - 1u) % 2u * {stage}u;
      for (var channel = 0u; channel < {CHUNK}u; channel++) {{
        let product = channel * {PRODUCTS}u + warp;
        let a0 = room[stage + product * {quads}u + filters];
        let a1 = room[stage + product * {quads}u + filters + {quads // 2}u];
        let b0 = room[stage + {of_filters}u + product * {TILES // 4}u + near];
        let b1 = room[stage + {of_filters}u + product * {TILES // 4}u + far];
{multiply}
      }}
    }}
    if (round < p.rounds) {{
      let stage = round % 2u * {stage}u;
      room[stage + thread] = w0;
      room[stage + thread + {THREADS}u] = w1;
      let to = 4u * stage + kept;
      var at = 0u;
{store}
    }}
    workgroupBarrier();
  }}
  let mine = first + lane;
  let picture = mine / own;
  let y = mine % own / p.across * 2u;
  let z = mine % own % p.across * 2u;
{parts}
"""


def _wgsl_part(part: int, even: bool) -> str:
    """The 16 sums of a tile and a filter meet in one thread, a quarter of the filters at a time."""
    pitch = TILES // 4 + 1
    store = "\n".join(
        f"    room[(warp * 16u + lane % 4u * 4u + {i}u) * {pitch}u + pixels + {4 * h}u] = s{part // 2 * 4 + i}{h};"
        for i in range(4)
        for h in range(2)
    )
    fold_rows = "\n".join(
        f"    let m{k}{i} = room[({4 * i + k}u * 16u + warp) * {pitch}u + lane / 4u][lane % 4u];"
        for k in range(4)
        for i in range(4)
    )
    upper = "\n".join(f"    let u{k} = m{k}0 + m{k}1 + m{k}2;" for k in range(4))
    lower = "\n".join(f"    let v{k} = m{k}1 - m{k}2 - m{k}3;" for k in range(4))
    pairs = {name: (f"{name}0 + {name}1 + {name}2", f"{name}1 - {name}2 - {name}3") for name in "uv"}
    if even:
        write = "\n".join(
            f"      out_[(at + {step}) / 2u] = vec2<STORED>(STORED({a}), STORED({b}));"
            for step, (a, b) in zip(("0u", "p.edge"), pairs.values(), strict=True)
        )
    else:
        write = f"""      out_[at] = STORED({pairs["u"][0]});
      if (z + 1u < p.edge) {{ out_[at + 1u] = STORED({pairs["u"][1]}); }}
      if (y + 1u < p.edge) {{ out_[at + p.edge] = STORED({pairs["v"][0]}); }}
      if (y + 1u < p.edge && z + 1u < p.edge) {{ out_[at + p.edge + 1u] = STORED({pairs["v"][1]}); }}"""
    return f"""  if (lane % 8u / 4u == {part % 2}u) {{
{store}
  }}
  workgroupBarrier();
  {{
{fold_rows}
{upper}
{lower}
    let filter_ = group.z * {FILTERS}u + {16 * part}u + warp;
    if (mine < p.count && filter_ < p.filters) {{
      let at = (picture * p.filters + filter_) * plane + y * p.edge + z;
{write}
    }}
  }}
  workgroupBarrier();"""
