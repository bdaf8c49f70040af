"""What is told of sizes that were not tried."""

import pytest

from gpubench.functions.describe import extrapolate


@pytest.mark.parametrize(
    ("points", "n", "value"),
    [
        ([(64, 64)], 1000, 1000),
        ([(64, 4096)], 1000, 1_000_000),
        ([(64, 10)], 1000, 10),
        ([(64, 64), (256, 256)], 1000, 1000),
        ([(64, 7), (256, 7)], 1000, 7),
        ([(64, 64**2), (256, 256**2)], 1000, 1_000_000),
        ([(64, 62), (256, 254), (1024, 1022)], 5000, 4998),
        ([(64, 300), (256, 1190), (1024, 4700)], 2**20, 4700 * 1024),  # not a parabola through noise
    ],
)
def test_sizes_between_and_beyond(points, n: int, value: float) -> None:
    assert extrapolate(points, n) == pytest.approx(value, rel=1e-9)
