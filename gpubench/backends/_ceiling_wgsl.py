"""The ceiling of arithmetic in WGSL: chains of multiply-adds with no memory between them (measurement.md, section 7).

Each thread keeps eight vectors of four apart, so that none waits for the one before it, and turns x into b - x again
and again. With b = 1 and x a multiple of 1/1024 every step is exact, and an even number of them changes nothing.
"""

from __future__ import annotations

from gpubench.errors import Unsupported
from gpubench.model.kernel import Limits, WgslPass, WgslProgram
from gpubench.model.op import Array, Dtype

# Several times as many threads as any GPU holds at once: the last, unfilled wave is a small part of them.
THREADS = 1 << 20
GROUP = 256
CHAINS, LANES = 8, 4
# Steps that stand in the text: the loop around them is then no part of what is measured.
UNROLLED = 8
GRAIN = 1024


def program(dtype: Dtype, rounds: int, limits: Limits, threads: int = THREADS) -> WgslProgram:
    """One dispatch of `rounds` times UNROLLED steps of every chain, into float32 `out` of shape (threads,).

    The text does not depend on `rounds`. Kernels compute float16 in float32, and so does this. Raises Unsupported for a
    dtype that the device has not.
    """
    if dtype == "bfloat16" or (dtype == "float64" and not limits.float64):
        raise Unsupported(f"this device has no {dtype} in WGSL", reason="no-dtype")
    group = min(GROUP, limits.max_workgroup_threads)
    groups = -(-threads // group)
    wide = min(groups, 1 << 12)
    grid = (wide, -(-groups // wide), 1)
    return WgslProgram(
        (WgslPass(source(_real(dtype), group, wide), grid, ("out",), uniform=(rounds, threads, 1)),)
    )


def flops(rounds: int, threads: int = THREADS) -> int:
    """Multiplications and additions of one launch."""
    return 2 * threads * CHAINS * LANES * UNROLLED * rounds


def source(real: str, group: int, wide: int) -> str:
    """The shader text: `real` is f32 or f64. The factors come from the uniform: no compiler knows that they are 1."""
    vector = f"vec{LANES}<{real}>"
    starts = ", ".join(f"{real}((k + {lane}u) % {GRAIN}u) / {real}({GRAIN})" for lane in range(LANES))
    names = [f"x{chain}" for chain in range(CHAINS)]
    steps = [f"    {name} = fma({name}, a, b);" for _ in range(UNROLLED) for name in names]
    return "\n".join(
        [
            "struct Params { rounds: u32, n: u32, one: u32, }",
            "@group(0) @binding(0) var<storage, read_write> out_: array<f32>;",
            "@group(0) @binding(1) var<uniform> p: Params;",
            f"fn start(k: u32) -> {vector} {{ return {vector}({starts}); }}",
            f"@compute @workgroup_size({group})",
            "fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) l: u32) {",
            f"  let i = (w.y * {wide}u + w.x) * {group}u + l;",
            "  if (i >= p.n) { return; }",
            f"  let b = {vector}({real}(p.one));",
            "  let a = -b;",
            *(f"  var {name} = start(i + {chain * LANES}u);" for chain, name in enumerate(names)),
            "  for (var round = 0u; round < p.rounds; round++) {",
            *steps,
            "  }",
            f"  let sum = {' + '.join(names)};",
            f"  out_[i] = f32({' + '.join(f'sum.{lane}' for lane in 'xyzw'[:LANES])});",
            "}",
        ]
    ) + "\n"  # fmt: skip


def expected(threads: int = THREADS) -> Array:
    """What `out` has to hold, bit for bit: float32 of shape (threads,)."""
    import numpy as np

    found = np.zeros(threads, np.float32)
    first = np.arange(threads, dtype=np.uint32)
    for place in range(CHAINS * LANES):
        found += ((first + place) % GRAIN).astype(np.float32) / GRAIN
    return found


def _real(dtype: Dtype) -> str:
    return "f64" if dtype == "float64" else "f32"
