"""Which WGSL matmul runs: the tile by size and limits, and the ladder naive -> tiled -> register-blocked.

On an H200 the register-blocked kernel reaches 0.90 to 0.98 of cuBLAS (float32, TF32 off) from 512 to 8192
if the tile fits the size, and 0.36 if it does not: 128 x 128 at n = 1024 leaves half the device idle.
"""

from __future__ import annotations

from gpubench.errors import Unsupported
from gpubench.kernels import _matmul_ladder, _matmul_register
from gpubench.kernels._limits import ceil_div, multiprocessors, require_bindings, require_dtype
from gpubench.kernels._matmul_register import Layout, Tile
from gpubench.model.kernel import Limits, WgslPass, WgslProgram

# Largest first. Best measured tiles: 32 x 32 at 512, 64 x 128 at 1024, 128 x 128 from 2048 up.
TILES = (
    Tile(rows=128, columns=128, depth=16, thread_rows=16, thread_columns=8),
    Tile(rows=64, columns=128, depth=16, thread_rows=8, thread_columns=8),
    Tile(rows=64, columns=64, depth=16, thread_rows=8, thread_columns=8),
    Tile(rows=32, columns=32, depth=32, thread_rows=4, thread_columns=4),
)
BINDINGS = ("a", "b", "out")


def choose_tile(m: int, n: int, limits: Limits) -> Tile:
    """The largest tile that the limits hold and that still gives about one group per multiprocessor.

    "About" is 7/8: 64 x 128 at n = 1024 gives 128 groups to 132 multiprocessors and is the best there. On
    a software adapter the smallest: its compiler takes seconds for the long texts. Raises Unsupported.
    """
    able = [
        tile
        for tile in TILES
        if tile.threads <= limits.max_workgroup_threads
        and tile.workgroup_bytes(padded=False) <= limits.max_workgroup_bytes
    ]
    if not able:
        raise Unsupported(
            f"the smallest tile needs {TILES[-1].workgroup_bytes(padded=False)} bytes of workgroup memory and"
            f" {TILES[-1].threads} threads; the device has {limits.max_workgroup_bytes} bytes"
            f" (maxComputeWorkgroupStorageSize) and {limits.max_workgroup_threads} threads"
        )
    if limits.software:
        return able[-1]
    enough = multiprocessors(limits) * 7 // 8
    for tile in able:
        if ceil_div(m, tile.rows) * ceil_div(n, tile.columns) >= enough:
            return tile
    return able[-1]


def register(m: int, n: int, k: int, dtype: str, limits: Limits, tile: Tile | None = None) -> WgslProgram:
    """The register-blocked kernel for A (m x k) and B (k x n), with the given or the chosen tile."""
    _require(m, n, k, dtype, limits)
    tile = tile or choose_tile(m, n, limits)
    vectors = n % 4 == 0 and k % 4 == 0
    layout = Layout(
        tile=tile,
        padded=tile.workgroup_bytes(padded=True) <= limits.max_workgroup_bytes,
        vectors=vectors,
        whole_depth=vectors and k % tile.depth == 0,
        whole_output=vectors and m % tile.rows == 0 and n % tile.columns == 0,
        # Sizes as constants are worth 4 % to the 16 x 8 tile and nothing to the others, which so keep one
        # pipeline for all sizes.
        sizes=(m, n, k) if tile is TILES[0] else None,
    )
    grid = _grid(ceil_div(n, tile.columns), ceil_div(m, tile.rows), limits)
    uniform = () if layout.sizes else (m, n, k)
    return WgslProgram((WgslPass(_matmul_register.source(layout), grid, BINDINGS, uniform=uniform),))


def tiled(m: int, n: int, k: int, dtype: str, limits: Limits) -> WgslProgram:
    """For teaching: one element a thread, both tiles shared through workgroup memory."""
    return _ladder(_matmul_ladder.tiled, m, n, k, dtype, limits)


def naive(m: int, n: int, k: int, dtype: str, limits: Limits) -> WgslProgram:
    """For teaching: one element a thread, everything read from global memory."""
    return _ladder(_matmul_ladder.naive, m, n, k, dtype, limits)


def _ladder(source: str, m: int, n: int, k: int, dtype: str, limits: Limits) -> WgslProgram:
    _require(m, n, k, dtype, limits)
    side = _matmul_ladder.SIDE
    if side * side > limits.max_workgroup_threads:
        raise Unsupported(f"{side * side} threads a group exceed {limits.max_workgroup_threads}")
    grid = _grid(ceil_div(n, side), ceil_div(m, side), limits)
    return WgslProgram((WgslPass(source, grid, BINDINGS, uniform=(m, n, k)),))


def _require(m: int, n: int, k: int, dtype: str, limits: Limits) -> None:
    require_dtype(dtype, ("float32",))
    require_bindings({"a": 4 * m * k, "b": 4 * k * n, "out": 4 * m * n}, limits)


def _grid(x: int, y: int, limits: Limits) -> tuple[int, int, int]:
    if max(x, y) > limits.max_groups_per_dimension:
        raise Unsupported(
            f"{x} x {y} groups exceed {limits.max_groups_per_dimension} a dimension"
            " (maxComputeWorkgroupsPerDimension)"
        )
    return (x, y, 1)
