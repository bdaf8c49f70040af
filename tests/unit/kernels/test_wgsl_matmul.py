"""The WGSL matmul as text: which tiles a device may choose from, and who carries what, without a device."""

import itertools
import re

import msgspec
import pytest

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.templates.matmul import TILES, WIDE_TILES, Tile, able, promising, rank, sequence, split
from tests.shapes import WEBGPU

OP = kernels.load("matmul")
REGISTER, TILED, NAIVE = OP.tuned["wgpu"]
# As an H200 tells them through WebGPU: without the number of its multiprocessors.
H200 = Limits(
    max_buffer_bytes=4292870144, max_binding_bytes=2147483644, max_workgroup_bytes=49152, max_workgroup_threads=1024,
    float16=True, float64=True,
)  # fmt: skip
SOFTWARE = msgspec.structs.replace(H200, software=True)


@pytest.mark.parametrize("order", ["serpentine", "paired", "interleaved"])
@pytest.mark.parametrize("block", [(8, 8), (8, 4), (4, 4)])
def test_an_order_takes_every_product_once_and_neighbours_share_an_operand(order, block):
    found = sequence(Tile(32, 32, 16, *block, order=order))
    assert sorted(found) == [(row, column) for row in range(block[0]) for column in range(block[1])]
    for one, two in itertools.pairwise(found):
        assert one[0] == two[0] or one[1] == two[1]


@pytest.mark.parametrize(("n", "k", "dtype", "alone"), [
    (512, 2048, "float32", True), (513, 2048, "float32", False), (512, 2049, "float32", False), (1024, 2048, "float16", True),
])  # fmt: skip
def test_weights_that_are_read_within_a_launch_leave_no_choice(n, k, dtype, alone):
    """4 MiB of them in a product of one row."""
    params = {"m": 1, "n": n, "k": k}
    assert (len(REGISTER.candidates(params, dtype, H200)) == 1) is alone


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("device", [H200, SOFTWARE])
def test_candidates_differ_in_name_and_in_text_and_the_default_is_what_build_returns(dtype, device):
    params = {"n": 512, "m": 300, "k": 70, "batch": 2}
    candidates = REGISTER.candidates(params, dtype, device)
    assert len({candidate.name for candidate in candidates}) == len(candidates) > 1
    texts = [candidate.build().passes[-1].source for candidate in candidates]
    assert len(set(texts)) == len(candidates)
    assert REGISTER.build(params, dtype, device) == candidates[0].build()
    for candidate in candidates:  # a choice is remembered for other sizes too
        assert not re.search("512|300|70", candidate.name)


def test_the_tiles_that_a_device_can_hold():
    assert able(TILES, 4, H200) == list(TILES)
    small = able(TILES, 4, WEBGPU)
    assert small
    assert len(small) < len(TILES)
    for tile in TILES:
        fits = 16 * tile.vectors <= 16384 and tile.threads <= 256
        assert (tile in small) == fits, tile.name
    for tile in TILES:
        just = {"max_workgroup_bytes": 16 * tile.vectors, "max_workgroup_threads": tile.threads}
        assert tile.fits(4, msgspec.structs.replace(H200, **just)), tile.name
        for name, value in just.items():
            assert not tile.fits(4, msgspec.structs.replace(H200, **{**just, name: value - 1})), tile.name
    few = msgspec.structs.replace(H200, max_workgroup_threads=64)
    assert all(tile.threads <= 64 for tile in able(TILES, 4, few))
    # Doubles take twice the memory.
    assert WIDE_TILES[0] in able(WIDE_TILES, 4, WEBGPU)
    assert WIDE_TILES[0] not in able(WIDE_TILES, 8, WEBGPU)


DEFAULTS = [
    (64, "32x32x32, 4x4, 2 slices"), (256, "32x32x32, 4x4, 2 slices"), (512, "32x64x64, 8x8, 4 slices"),
    (1024, "64x128x32, 8x8, 2 slices"), (2048, "128x128x16, 8x8, paired"), (4096, "64x128x16, 8x8, interleaved"),
    (8192, "64x128x16, 8x8, interleaved"),
]  # fmt: skip


@pytest.mark.parametrize(("n", "name"), DEFAULTS)
def test_the_default_follows_the_size(n, name):
    assert REGISTER.candidates({"n": n}, "float32", H200)[0].name == name


EIGHT = msgspec.structs.replace(H200, multiprocessors=8)  # seven groups fill it
BLOCK, LARGE, SMALL = Tile(64, 64, 16, 8, 8), Tile(128, 128, 16, 8, 8), Tile(32, 32, 32, 4, 4, slices=2)
PLAIN, THIN = Tile(32, 32, 32, 4, 4), Tile(64, 16, 64, 4, 4, slices=4)


@pytest.mark.parametrize(("tile", "groups", "tried"), [
    # Half of the device idle; many small groups, which a large block may have, and a narrow one.
    *((tile, groups, groups > 3) for tile in (BLOCK, LARGE, SMALL, THIN) for groups in (3, 4)), (BLOCK, 448, True),
    (BLOCK, 449, False), (LARGE, 449, True), (THIN, 449, True), (SMALL, 28, True), (SMALL, 29, False),
    (msgspec.structs.replace(SMALL, splits=2), 8, False), (msgspec.structs.replace(BLOCK, splits=2), 2, True),
    (msgspec.structs.replace(BLOCK, splits=2), 225, False),
])  # fmt: skip
def test_the_tiles_worth_a_trial(tile, groups, tried):
    assert promising(tile.rows * groups, tile.columns, 1, [tile], EIGHT) == [tile] * tried
    assert promising(tile.rows, tile.columns, groups, [tile], EIGHT) == [tile] * tried


@pytest.mark.parametrize(("m", "n", "first"), [
    (128 * 98, 128, LARGE), (128 * 97, 128, BLOCK), (64 * 14, 64, BLOCK), (64 * 13, 64, PLAIN), (32 * 14, 32, PLAIN),
    (32 * 13, 32, SMALL), (32 * 7, 32, SMALL), (32 * 6, 32, SMALL),
])  # fmt: skip
def test_the_default_is_the_first_tile_with_enough_groups(m, n, first):
    tiles = [LARGE, BLOCK, PLAIN, SMALL]
    assert rank(m, n, 1, tiles, EIGHT) == [first, *(tile for tile in tiles if tile is not first)]
    assert rank(m, n, 1, tiles, msgspec.structs.replace(EIGHT, software=True)) == tiles[::-1]
    assert rank(m, n, 1, [THIN, *tiles], EIGHT) == [THIN, *tiles]


@pytest.mark.parametrize(("groups", "k", "splits"), [
    (3, 32, None), (3, 64, 2), (3, 128, 4), (3, 256, 4), (1, 1 << 12, 8), (6, 128, 2), (7, 128, None), (4, 256, 2),
])  # fmt: skip
def test_k_is_split_while_groups_are_few_and_tiles_come_out_whole(groups, k, splits):
    scalar = msgspec.structs.replace(BLOCK, scalar_stores=True)
    cut = split(64 * groups, 64, k, [scalar, BLOCK], EIGHT)
    assert [tile.splits for tile in cut] == ([splits] if splits else [])


LADDER = (REGISTER, TILED, NAIVE)
OF_A_BINDING = r"maxStorageBufferBindingSize|maxComputeWorkgroupsPerDimension"
REFUSED = [
    ([REGISTER], {"n": 1024}, "float32", {"max_workgroup_bytes": 4096}, "limit", r"4096 bytes \(maxComputeWorkgroupStorageSize\)"),
    *((LADDER, {"n": 64}, dtype, {}, "no-dtype", dtype) for dtype in ("float16", "float64", "bfloat16")),
    *((LADDER, params, "float32", {}, "limit", OF_A_BINDING)
      for params in ({"n": 6000}, {"n": 8, "m": 8, "k": 2**23}, {"n": 2**22 + 64, "m": 8, "k": 8})),
    ([REGISTER], {"n": 512, "batch": 200}, "float32", {}, "limit", "maxStorageBufferBindingSize"),
    ([REGISTER], {"n": 4, "batch": 65536}, "float32", {}, "limit", "65536 groups exceed 65535"),
    # A's rows of 3 take 96 MiB of a binding's 128 MiB, rows of 4 take all of it and 32 KiB more.
    ([REGISTER], {"n": 1, "m": 2**23 + 2**11, "k": 3}, "float32", {"max_groups_per_dimension": 2**20}, "limit", "a_padded has 134250496 bytes"),
    ([TILED, NAIVE], {"n": 64, "batch": 2}, "float32", {}, "no-implementation", "one product"),
    *(([REGISTER], params, "float32", {}, "shape", "without elements")
      for params in ({"n": 0}, {"n": 4, "m": 0}, {"n": 4, "k": 0}, {"n": 4, "batch": 0})),
]  # fmt: skip


@pytest.mark.parametrize(("refusing", "params", "dtype", "limits", "reason", "words"), REFUSED)
def test_what_a_device_or_a_kernel_cannot_is_refused_by_name(refusing, params, dtype, limits, reason, words):
    for kernel in refusing:
        with pytest.raises(Unsupported, match=words) as caught:
            kernel.build(params, dtype, msgspec.structs.replace(WEBGPU, **limits))
        assert caught.value.reason == reason


def test_what_is_just_within_the_limits_is_built():
    assert REGISTER.build({"n": 3, "batch": 65535}, "float32", WEBGPU).passes[0].grid[2] == 65535
    assert all(kernel.build({"n": 64, "batch": 1}, "float32", H200).passes for kernel in (TILED, NAIVE))
