"""A convolution with filters of 3 x 3 by Winograd's products: 16 multiplications for 2 x 2 pixels, not 36.

A tile of 4 x 4 pixels, of which it shares two rows or columns with each neighbour, and a filter become 16 numbers each.
These are multiplied and added up over the channels, as 16 matrix products, and become 2 x 2 pixels of the result.
Source: A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks (2015), section 4.1, F(2 x 2, 3 x 3).
Its numbers are sums of up to four pixels or nine weights: of float32 the largest error was 1.5 units of round-off times
the norms of patch and filter, where a convolution may have 8 (an H200, eight shapes).

One launch writes the filters' numbers, the other does the rest. A block has 32 tiles and 64 filters; each of its 16
warps has one of the 16 products, so that nothing but tiles and results crosses from warp to warp.
"""

from __future__ import annotations

from gpubench.kernels.templates import ceil_div

TILES, FILTERS = 32, 64  # of a block
CHUNK = 4  # channels that a block takes at a time
PRODUCTS, THREADS = 16, 512
FILTER_THREADS = 256  # of a block that makes the filters' numbers


def tiles(side: int) -> int:
    """Tiles of an image."""
    return ceil_div(side, 2) ** 2


def grid(n: int, filters: int, side: int) -> tuple[int, int, int]:
    """Blocks for n images."""
    return ceil_div(n * tiles(side), TILES), ceil_div(filters, FILTERS), 1
