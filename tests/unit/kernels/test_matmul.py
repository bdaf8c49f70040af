"""matmul: shapes, batches and halves up to a checked launch on NumPy; the tiles of its WGSL that a device may choose from, as text."""

import itertools
import re

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.numpy import BACKEND
from gpubench.backends.shared.host import random_inputs
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.templates import matmul
from gpubench.kernels.templates.matmul import TILES, WIDE_TILES, Tile, able, promising, rank, sequence, split
from gpubench.kernels.templates.matmul.register import Layout
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import Case
from tests.shapes import WEBGPU

OP = kernels.load("matmul")
SHAPES = [
    {"n": 7}, {"n": 5, "m": 2}, {"n": 5, "k": 1}, {"n": 33, "m": 1, "k": 70}, {"n": 1, "m": 1, "k": 1},
    {"n": 6, "batch": 1}, {"n": 6, "batch": 5}, {"n": 4, "m": 9, "k": 3, "batch": 2},
]  # fmt: skip


@pytest.fixture(scope="module")
def session():
    opened = BACKEND.open("numpy:0")
    yield opened
    opened.close()


@pytest.mark.parametrize("params", SHAPES, ids=str)
def test_the_scale_of_usual_inputs_is_near_the_product_of_the_norms(params):
    a, b = random_inputs(OP, params, "float64", 1)
    norms = np.linalg.norm(a, axis=-1)[..., :, None] * np.linalg.norm(b, axis=-2)[..., None, :]
    ratio = OP.tolerance.scale(np, a, b) / norms
    assert np.all((ratio >= 1) & (ratio < 1.5))


@pytest.mark.parametrize("kind", ["few large terms", "one sign"])
def test_a_sum_in_order_passes_where_its_partial_sums_stay_large(kind):
    """As the gradient of a weight, over tokens of which few have a label, or of values that are positive."""
    k, generator = 4096, np.random.default_rng(1)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((64, k), (k, 64)))
    if kind == "one sign":
        a, b = np.abs(a), np.abs(b)
    else:
        a[:, 0], b[0], b[1:] = 16, 1, b[1:] / 4096
    total = np.zeros((64, 64), np.float32)
    for t in range(k):
        total += a[:, t : t + 1] * b[t]
    wide = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(total - wide[0] @ wide[1]) / 2.0**-24
    assert np.all(error <= OP.tolerance.units * OP.tolerance.scale(np, *wide))
    norms = np.linalg.norm(wide[0], axis=1)[:, None] * np.linalg.norm(wide[1], axis=0)
    assert np.any(error > OP.tolerance.units * norms), "the norms alone would not do"


@pytest.mark.parametrize("turned", [{"ta": 1}, {"tb": 1}, {"ta": 1, "tb": 1}], ids=str)
@pytest.mark.parametrize("params", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("implementation", ["library", "tuned"])
def test_a_matrix_may_be_stored_transposed(session, params, turned, dtype, implementation, tmp_path):
    plain, params = OP.inputs[0].shape(params), {**params, **turned}
    assert OP.inputs[0].shape(params)[-2:] == (plain[-2:][::-1] if "ta" in turned else plain[-2:])
    case = Case("matmul", "matrix", params, dtype, implementation, "resident", "numpy:0")
    if session.supports(OP, case) is None:
        gate(Workspace(session, OP, case, 1, "random", tmp_path), case, lambda phase: None)
    a, b = random_inputs(OP, params, "float64", 1)
    got = OP.at(params).expr(np, a, b)
    a, b = (np.swapaxes(x, -1, -2) if name in turned else x for x, name in ((a, "ta"), (b, "tb")))
    np.testing.assert_array_equal(got, a @ b)


def test_a_flag_is_0_or_1():
    assert OP.fits({"n": 4, "ta": 2}) is not None
    assert OP.fits({"n": 4, "ta": 1, "tb": 0}) is None


# ---------------------------------------------------------------------- WGSL


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
    assert (len(REGISTER.candidates({"m": 1, "n": n, "k": k}, dtype, H200)) == 1) is alone


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


@pytest.mark.parametrize(("m", "n", "ta", "tb", "inside"), [
    (64, 125, False, False, True), (64, 124, False, False, False), (63, 128, False, False, False),
    (66, 128, False, False, True), (66, 128, True, False, False), (64, 127, False, True, False), (68, 128, True, True, True),
])  # fmt: skip
def test_a_block_moves_back_inside_where_c_has_a_whole_one(m, n, ta, tb, inside):
    tile = Tile(64, 128, 16, 8, 8)
    assert Layout(tile, "float32", m, n, 16, 1, ta, tb, (), None, None).inside == inside


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


@pytest.mark.parametrize(("n", "name"), [
    (64, "32x32x32, 4x4, 2 slices"), (256, "32x32x32, 4x4, 2 slices"), (512, "32x64x64, 8x8, 4 slices"),
    (1024, "64x128x32, 8x8, 2 slices"), (2048, "128x128x16, 8x8, paired"), (4096, "64x128x16, 8x8, interleaved"),
    (8192, "64x128x16, 8x8, interleaved"),
])  # fmt: skip
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
    software = msgspec.structs.replace(EIGHT, software=True)
    assert rank(m, n, 1, tiles, software) == [matmul.SOFTWARE_TILE, *tiles[::-1]]
    assert rank(m, n, 1, [THIN, *tiles], EIGHT) == [THIN, *tiles]


@pytest.mark.parametrize(("groups", "k", "splits"), [
    (3, 32, None), (3, 64, 2), (3, 128, 4), (3, 256, 4), (1, 1 << 12, 8), (6, 128, 2), (7, 128, None), (4, 256, 2),
])  # fmt: skip
def test_k_is_split_while_groups_are_few_and_tiles_come_out_whole(groups, k, splits):
    cut = split(64 * groups, 64, k, [msgspec.structs.replace(BLOCK, scalar_stores=True), BLOCK], EIGHT)
    assert [tile.splits for tile in cut] == ([splits] if splits else [])


LADDER = (REGISTER, TILED, NAIVE)
OF_A_BINDING = r"maxStorageBufferBindingSize|maxComputeWorkgroupsPerDimension"


@pytest.mark.parametrize(("refusing", "params", "dtype", "limits", "reason", "words"), [
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
])  # fmt: skip
def test_what_a_device_or_a_kernel_cannot_is_refused_by_name(refusing, params, dtype, limits, reason, words):
    for kernel in refusing:
        with pytest.raises(Unsupported, match=words) as caught:
            kernel.build(params, dtype, msgspec.structs.replace(WEBGPU, **limits))
        assert caught.value.reason == reason


def test_what_is_just_within_the_limits_is_built():
    assert REGISTER.build({"n": 3, "batch": 65535}, "float32", WEBGPU).passes[0].grid[2] == 65535
    assert all(kernel.build({"n": 64, "batch": 1}, "float32", H200).passes for kernel in (TILED, NAIVE))
