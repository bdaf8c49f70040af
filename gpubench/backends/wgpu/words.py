"""Programs over the 32-bit words of whole buffers, four at a time: one fills a buffer, one compares two.

A binding may see less than a buffer: then a program has several passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpubench.backends.contract import Buffer, Session
from gpubench.backends.shared.host import host_dtype
from gpubench.kernels.contract.kernel import Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE, Stored

Run = Callable[[WgslProgram, dict[str, Buffer]], None]

_THREADS, _MOST_GROUPS = 256, 1024

_HEAD = "struct Params { fours: u32, step: u32, even: u32, odd: u32, rest: u32 }\n"
_MAIN = f"""@compute @workgroup_size({_THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
"""
_FILL = f"""{_HEAD}
@group(0) @binding(0) var<storage, read_write> out_: array<vec4<u32>>;
@group(0) @binding(1) var<uniform> p: Params;
{_MAIN}
  for (var i = id.x; i < p.fours; i += p.step) {{ out_[i] = vec4(p.even, p.odd, p.even, p.odd); }}
}}"""
_DIFFER = f"""{_HEAD}
@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out_: array<atomic<u32>>;
@group(0) @binding(3) var<uniform> p: Params;
{_MAIN}
  var differing = vec4(0u);
  for (var i = id.x; i < p.fours; i += p.step) {{ differing |= a[i] ^ b[i]; }}
  if (id.x == 0u && p.rest > 0u) {{
    let last = a[p.fours] ^ b[p.fours];
    differing |= select(vec4(0u), last, vec4(0u, 1u, 2u, 3u) < vec4(p.rest));
  }}
  if (any(differing != vec4(0u))) {{ atomicStore(&out_[0], 1u); }}
}}"""


def filling(size: int, dtype: Stored, value: float, limits: Limits) -> WgslProgram:
    """Return the program that fills `size` bytes of the buffer "out" with a value: two words in turn hold it."""
    import numpy as np

    even, odd = np.full(8 // ITEMSIZE[dtype], value, host_dtype(dtype)).view("u4").tolist()
    return WgslProgram(
        tuple(
            _pass(_FILL, ("out",), ("out",), window, (even, odd), limits) for window in _windows(size, limits)
        )
    )


def differ(session: Session, run: Run, size: int, a: Buffer, b: Buffer) -> bool:
    """Return whether two buffers differ in their first `size` bytes, a multiple of four."""
    result = session.host_array((4,), "int32", "tuned")
    result.fill(0)
    place = session.allocate(result.shape, "int32")
    session.upload(place, result)
    run(_differing(size, session.limits), {"a": a, "b": b, "out": place})
    session.download(place, result)
    session.free(place)
    return bool(result.any())


def _differing(size: int, limits: Limits) -> WgslProgram:
    """Return the program that sets the first word of "out" if "a" and "b" differ."""
    return WgslProgram(
        tuple(
            _pass(_DIFFER, ("a", "b", "out"), ("a", "b"), window, (0, 0), limits)
            for window in _windows(size, limits)
        )
    )


def _windows(size: int, limits: Limits) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the parts that a binding can see."""
    step = limits.max_binding_bytes // limits.binding_alignment * limits.binding_alignment
    for start in range(0, size, step):
        yield start, min(step, size - start)


def _pass(
    source: str, bindings: tuple[str, ...], seen: tuple[str, ...], window: tuple[int, int],
    pattern: tuple[int, int], limits: Limits,
) -> WgslPass:  # fmt: skip
    fours, rest = divmod(window[1] // 4, 4)
    groups = max(1, min(-(-fours // _THREADS), _MOST_GROUPS, limits.max_groups_per_dimension))
    return WgslPass(
        source, (groups, 1, 1), bindings, uniform=(fours, groups * _THREADS, *pattern, rest),
        windows=dict.fromkeys(seen, (window[0], -(-window[1] // 16) * 16)),
    )  # fmt: skip
