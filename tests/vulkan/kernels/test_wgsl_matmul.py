"""The WGSL matmul through wgpu against float64: every tile and dtype, and every branch of the generator.

A software adapter compiles a long text in seconds; so each tile meets one shape, and what depends on no tile a short text.
"""

import msgspec
import numpy as np
import pytest

from gpubench import kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.kernels.templates.matmul import NARROW_TILES, SOFTWARE_TILE, TILES, WIDE_TILES, Tile, wgsl
from tests.shapes import WEBGPU
from tests.vulkan.computing import check_program, of_op

pytestmark = pytest.mark.vulkan

OP = kernels.load("matmul")
SHORT = Tile(32, 32, 16, 4, 4, slices=2)
SCALAR = msgspec.structs.replace(SHORT, scalar_stores=True)


@pytest.mark.parametrize(("tile", "k"), [(SOFTWARE_TILE, 16385), (NARROW_TILES[1], 16380)])
def test_a_long_sum_of_one_sign_is_added_up_in_blocks(session, tile, k):
    """A gradient of weights adds up a batch. One accumulator of 16,384 terms is off by 43 units of round-off and more."""
    product = wgsl.Product(40, 10, k, 1, "float32", ta=True)
    params = {"m": 40, "n": 10, "k": k, "batch": 1, "ta": 1}
    inputs = [abs(x) for x in random_inputs(OP, params, "float32", seed=11)]
    got = of_op(session, OP, wgsl.program(product, session.limits, tile), params, "float32", inputs)
    a, b = (x.astype(np.float64) for x in inputs)
    np.testing.assert_allclose(got, np.moveaxis(a, -1, -2) @ b, rtol=10 * 2**-24)


# The dtype, a tile and its splits, what is stored transposed, then m, n, k and batch. Each is there for what stands
# beside it.
@pytest.mark.parametrize(("dtype", "tile", "splits", "turned", "shape"), [
    ("float32", TILES[0], 1, "", (130, 132, 36, 1)),  # blocks moved back inside, and a rest of K
    ("float32", SCALAR, 1, "", (16, 40, 36, 1)),  # thinner than a block, stored by element
    ("float32", TILES[1], 1, "", (200, 264, 100, 2)),  # a batch whose blocks overlap
    ("float32", TILES[2], 1, "", (70, 140, 68, 1)),  # the second slice has nothing in the last step
    ("float32", TILES[3], 1, "", (33, 70, 65, 1)),  # four slices, the last step is one vec4 of padding
    ("float32", TILES[4], 1, "", (256, 16, 20, 3)),  # narrower than a block
    ("float32", TILES[5], 1, "", (5, 100, 85, 2)),  # K is padded in a batch, a part of the second slice is in the rest
    ("float32", SOFTWARE_TILE, 1, "", (7, 5, 3, 1)),  # K shorter than a step
    ("float32", SOFTWARE_TILE, 1, "", (33, 35, 37, 1)),  # no multiple of 4: padded copies, stores by element
    ("float32", NARROW_TILES[0], 1, "", (130, 10, 68, 1)),  # B is read one by one
    ("float32", NARROW_TILES[1], 1, "", (129, 3, 70, 1)),  # and padded, where K is, too
    # Halves take the same texts with other types in the loads and stores; the shortest ones do.
    ("float16", SHORT, 1, "", (33, 70, 65, 2)),  # padded, stored by element
    ("float16", SOFTWARE_TILE, 1, "", (64, 100, 40, 1)),  # stored as vec4
    ("float64", WIDE_TILES[0], 1, "", (65, 68, 20, 1)), ("float64", WIDE_TILES[1], 1, "", (129, 131, 133, 2)),
    ("float64", WIDE_TILES[2], 1, "", (100, 36, 32, 3)),
    # K split over groups: each dtype adds up in its own type of arithmetic.
    ("float32", SOFTWARE_TILE, 4, "", (36, 100, 1024, 1)),
    ("float32", SHORT, 2, "", (33, 35, 253, 1)),  # padded, and stored by element
    ("float16", SHORT, 4, "", (31, 64, 256, 1)), ("float64", WIDE_TILES[2], 2, "", (32, 30, 128, 1)),
    # Stored transposed.
    ("float32", Tile(16, 16, 32, 4, 4), 1, "ta tb", (36, 72, 64, 2)),  # B turns in two squares a thread, blocks moved back inside
    ("float32", TILES[6], 1, "tb", (33, 66, 36, 1)),  # lines of B that no vec4 of C ends with
    ("float32", SHORT, 2, "ta", (34, 96, 256, 1)),  # A's lines are padded
    ("float32", SHORT, 1, "ta", (10, 64, 33, 2)),  # A's lines are short: read one by one
    ("float32", NARROW_TILES[0], 2, "ta", (130, 10, 256, 1)),  # a gradient of a classifier's weights
    ("float32", NARROW_TILES[0], 1, "tb", (70, 11, 68, 1)),  # B turns in single vec4s
    ("float16", SHORT, 1, "ta", (33, 9, 35, 1)), ("float64", WIDE_TILES[1], 1, "tb", (66, 34, 44, 1)),
], ids=str)  # fmt: skip
def test_every_tile(session, dtype, tile, splits, turned, shape):
    if dtype != "float32" and not getattr(session.limits, dtype):
        pytest.skip(f"the adapter has no {dtype} in shaders")
    flags = dict.fromkeys(turned.split(), 1)
    params = {**dict(zip(("m", "n", "k", "batch"), shape, strict=True)), **flags}
    product = wgsl.Product(*shape, dtype, *(name in flags for name in OP.takes))
    program = wgsl.program(product, session.limits, msgspec.structs.replace(tile, splits=splits))
    check_program(session, OP, program, params, dtype)


@pytest.mark.parametrize(
    "params", [{"m": 33, "n": 35, "k": 37}, {"n": 31, "m": 70}, {"n": 60, "k": 7, "batch": 3}], ids=str
)
def test_what_the_op_chooses(session, params):
    """On a GPU: a software adapter's choice is what its suite launches."""
    program = OP.tuned["wgpu"][0].build(params, "float32", WEBGPU)
    check_program(session, OP, program, params, "float32")


@pytest.mark.parametrize("variant", [1, 2], ids=["tiled", "naive"])
def test_the_lower_rungs_of_the_ladder(session, variant):
    for m, n, k in [(1, 1, 1), (64, 64, 64), (130, 132, 68), (1, 260, 5), (129, 1, 257)]:
        params = {"n": n, "m": m, "k": k}
        program = OP.tuned["wgpu"][variant].build(params, "float32", session.limits)
        check_program(session, OP, program, params, "float32")


def test_infinity_and_nan_stay_in_their_rows_and_columns(session):
    """Nothing that is read past an edge or for padding takes part in the sums."""
    for m, n, k in [(33, 35, 37), (7, 5, 3)]:
        inputs = random_inputs(OP, {"n": n, "m": m, "k": k}, "float32", seed=3)
        inputs[0][m - 1, k - 1] = np.inf
        inputs[1][k - 1, n - 1] = np.nan
        program = OP.tuned["wgpu"][0].build({"n": n, "m": m, "k": k}, "float32", session.limits)
        got = of_op(session, OP, program, {"n": n, "m": m, "k": k}, "float32", inputs)
        with np.errstate(invalid="ignore"):
            want = inputs[0] @ inputs[1]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
