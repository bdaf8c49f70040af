"""Shapes that meet each branch of a kernel, for tests of several backends."""

from __future__ import annotations

# Rows and classes of an argmax: a group a row and a warp a row, whole and ragged ones, fewer classes than lanes.
ROWS_OF_CLASSES = ((1, 1), (3, 65), (128, 257), (129, 2048), (200, 70), (1000, 3), (1, 2048))

# A token over a cache: few keys, of which several threads make each score; several steps of keys; heads that no vector
# holds a whole number of; one whose elements are as many as a group's threads, but for one.
CACHES = (
    {"n": 1},
    {"n": 17, "room": 32},
    {"n": 300, "room": 777},
    {"n": 40, "width": 15, "heads": 5},
    {"n": 600, "width": 48, "heads": 1},
    {"n": 1000, "width": 96, "heads": 3},
    {"n": 33, "width": 256, "heads": 1},
    {"n": 40, "width": 255, "heads": 1},
)
