"""Symmetric positive definite systems of up to some dozen rows, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

Vector = Sequence[float]
# A pivot is never smaller: two sizes so close that rounding decides count as one.
LEAST_PIVOT = 1e-12


def dot(a: Vector, b: Vector) -> float:
    """The sum of the products; of vectors of unequal length, of the beginning of the longer one."""
    return sum(map(mul, a, b), 0.0)


def cholesky(matrix: Sequence[Vector]) -> list[list[float]]:
    """The lower triangular L with L L' = `matrix`, its rows as long as they are; only the lower half is read."""
    rows: list[list[float]] = []
    for i, values in enumerate(matrix):
        row: list[float] = []
        for j in range(i):
            row.append((values[j] - dot(row, rows[j])) / rows[j][j])
        row.append(math.sqrt(max(values[i] - dot(row, row), LEAST_PIVOT)))
        rows.append(row)
    return rows


def solve_lower(lower: Sequence[Vector], right: Vector) -> list[float]:
    """The x with L x = `right`."""
    x: list[float] = []
    for row, value in zip(lower, right, strict=True):
        x.append((value - dot(x, row)) / row[len(x)])
    return x


def solve_upper(lower: Sequence[Vector], right: Vector) -> list[float]:
    """The x with L' x = `right`."""
    x = list(right)
    for i in range(len(x) - 1, -1, -1):
        x[i] /= lower[i][i]
        for j in range(i):
            x[j] -= lower[i][j] * x[i]
    return x
