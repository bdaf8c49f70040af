"""The WGSL matmul as text: which tiles a device may choose from, and who carries what, without a device."""

import itertools
import re

import msgspec
import pytest

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.templates.matmul import (
    NARROW,
    NARROW_TILES,
    TILES,
    WIDE_TILES,
    Tile,
    able,
    promising,
    rank,
    sequence,
    split,
    wgsl,
)
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
    few = msgspec.structs.replace(H200, max_workgroup_threads=64)
    assert all(tile.threads <= 64 for tile in able(TILES, 4, few))
    # Doubles take twice the memory.
    assert WIDE_TILES[0] in able(WIDE_TILES, 4, WEBGPU)
    assert WIDE_TILES[0] not in able(WIDE_TILES, 8, WEBGPU)


@pytest.mark.parametrize("device", [H200, SOFTWARE])
@pytest.mark.parametrize("n", [1, 256, 1024, 8192])
def test_the_order_of_the_tiles_keeps_all_of_them(n, device):
    assert sorted(tile.name for tile in rank(n, n, 1, list(TILES), device)) == sorted(t.name for t in TILES)


DEFAULTS = [
    (64, "32x32x32, 4x4, 2 slices"), (256, "32x32x32, 4x4, 2 slices"), (512, "32x64x64, 8x8, 4 slices"),
    (1024, "64x128x32, 8x8, 2 slices"), (2048, "128x128x16, 8x8, paired"), (4096, "64x128x16, 8x8, interleaved"),
    (8192, "64x128x16, 8x8, interleaved"),
]  # fmt: skip


@pytest.mark.parametrize(("n", "name"), DEFAULTS)
def test_the_default_follows_the_size(n, name):
    assert REGISTER.candidates({"n": n}, "float32", H200)[0].name == name


def test_the_default_counts_the_groups_of_the_whole_batch():
    assert (
        REGISTER.candidates({"n": 512, "batch": 64}, "float32", H200)[0].name == "64x128x16, 8x8, interleaved"
    )
    assert REGISTER.candidates({"n": 512, "batch": 16}, "float32", H200)[0].name == "128x128x16, 8x8, paired"


def test_thin_products_may_split_k_over_groups():
    tiles = able(TILES, 4, H200)
    for m, n, k in [(64, 4096, 4096), (256, 256, 256), (1, 1, 65536), (100, 36, 2048)]:
        found = split(m, n, k, tiles, H200)
        assert found
        for tile in found:
            assert k % (2 * tile.splits * tile.depth) == 0, "two whole steps of K for each split at least"
            assert tile.groups(m, n) < 112
            assert tile.splits * tile.groups(m, n) <= 2 * 112
        names = [candidate.name for candidate in REGISTER.candidates({"n": n, "m": m, "k": k}, "float32", H200)]
        assert "splits" not in names[0]
        worth = [tile for tile in found if n > NARROW or tile.columns <= 4 * NARROW]
        assert {tile.name for tile in promising(m, n, 1, worth, H200)} <= set(names)
    for m, n, k in [(4096, 4096, 4096), (64, 64, 64), (64, 64, 68)]:  # wide enough; too short; no whole steps
        assert not [t for t in split(m, n, k, tiles, H200) if t.depth >= 32]
    for params, device in [({"n": 64, "k": 4096, "batch": 2}, H200), ({"n": 64, "k": 4096}, SOFTWARE)]:
        assert not [c for c in REGISTER.candidates(params, "float32", device) if "splits" in c.name]


def test_only_promising_tiles_are_tried():
    """Each trial costs a compilation: small blocks are left out where large ones fill the device, and vice versa."""
    tried = {n: [c.name for c in REGISTER.candidates({"n": n}, "float32", H200)] for n in (64, 512, 1024, 8192)}
    assert len(tried[64]) == 1
    assert any("4x4" in name for name in tried[512])
    assert not any("4x4" in name for name in tried[1024])
    assert not any(name.startswith(("32x", "64x64")) for name in tried[8192])
    assert all(2 <= len(names) <= 8 for n, names in tried.items() if n > 64)


@pytest.mark.parametrize("k", [4096, 4094])
def test_the_splits_of_k_are_added_up_by_a_pass_of_their_own(k):
    (tile,) = split(64, 64, 4096, [Tile(32, 32, 32, 4, 4)], H200)
    program = wgsl.program(wgsl.Product(64, 64, k, 1, "float16"), H200, tile)
    *_, multiply, add = program.passes
    assert multiply.grid == (2, 2, tile.splits)
    assert multiply.bindings[-1] == "partials"
    assert program.scratch["partials"] == tile.splits * 64 * 64 * 4  # float32: rounded once, at the end
    assert add.bindings == ("partials", "out")
    assert add.source.count("in_[i + ") == tile.splits
    assert len(program.passes) == (2 if k % 4 == 0 else 4)


def test_few_columns_take_a_narrow_tile():
    """A classifier's last layer, and the gradient of its weights, which splits K over groups, too."""
    names = {tile.name for tile in NARROW_TILES}
    for params in (
        {"n": 10, "m": 16384, "k": 512},
        {"n": 10, "m": 512, "k": 16384, "ta": 1},
        {"n": 16, "m": 64},
    ):
        found = [c.name for c in REGISTER.candidates(params, "float32", H200)]
        assert found[0] in names
        assert not any("x128x" in name for name in found)
        assert any("splits" in name and f"x{NARROW}x" in name for name in found) == ("ta" in params)
    wider = REGISTER.candidates({"n": NARROW + 1, "m": 16384}, "float32", H200)
    assert not names & {c.name for c in wider}


@pytest.mark.parametrize(
    ("params", "bindings"),
    [
        ({"n": 64, "m": 64, "k": 33, "ta": 1}, ["a", "b", "out"]),  # K goes along no line
        ({"n": 64, "m": 64, "k": 33, "tb": 1}, ["a_padded", "b_padded", "out"]),
        ({"n": 10, "m": 64, "k": 33, "ta": 1}, ["a", "b", "out"]),  # lines so short are read one by one
        ({"n": 64, "m": 66, "k": 33, "ta": 1}, ["a_padded", "b", "out"]),
        ({"n": 10, "m": 64, "k": 32}, ["a", "b", "out"]),
        ({"n": 10, "m": 64, "k": 33}, ["a_padded", "b_padded", "out"]),
    ],
    ids=str,
)
def test_a_transposed_matrix_is_read_as_it_lies(params, bindings):
    program = REGISTER.build(params, "float32", H200)
    assert list(program.passes[-1].bindings) == bindings
    assert len(program.passes) == 1 + sum(name.endswith("_padded") for name in bindings)


def test_a_software_adapter_gets_the_shortest_text():
    for n in (5, 512, 4096):
        assert REGISTER.candidates({"n": n}, "float32", SOFTWARE)[0].name == TILES[-1].name


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
def test_what_a_device_does_not_hold_or_a_kernel_does_not_do_is_refused_with_the_limit(
    refusing, params, dtype, limits, reason, words
):
    for kernel in refusing:
        with pytest.raises(Unsupported, match=words) as caught:
            kernel.build(params, dtype, msgspec.structs.replace(WEBGPU, **limits))
        assert caught.value.reason == reason


def test_what_is_just_within_the_limits_is_built():
    assert REGISTER.build({"n": 3, "batch": 65535}, "float32", WEBGPU).passes[0].grid[2] == 65535
    assert all(kernel.build({"n": 64, "batch": 1}, "float32", H200).passes for kernel in (TILED, NAIVE))


def test_rows_of_multiples_of_four_need_no_copies():
    whole, ragged = (REGISTER.build({"n": n, "k": k}, "float32", H200) for n, k in ((260, 40), (260, 41)))
    assert [len(whole.passes), dict(whole.scratch)] == [1, {}]
    assert [step.bindings[-1] for step in ragged.passes] == ["a_padded", "b_padded", "out"]
    assert dict(ragged.scratch) == {"a_padded": 4 * 260 * 44, "b_padded": 4 * 44 * 260}
