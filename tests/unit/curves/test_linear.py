"""Linear algebra of some dozen rows, against NumPy."""

import numpy as np
import pytest

from gpubench.curves.time_curve import cholesky, dot, solve_lower


def positive(rows, seed):
    """A symmetric positive definite matrix."""
    square = np.random.default_rng(seed).normal(size=(rows, rows))
    return square @ square.T + rows * np.eye(rows)


@pytest.mark.parametrize("rows", [1, 2, 7, 24])
def test_a_system_is_solved_as_numpy_solves_it(rows):
    matrix, right = positive(rows, rows), np.random.default_rng(99).normal(size=rows)
    lower = cholesky(matrix.tolist())
    assert [len(row) for row in lower] == list(range(1, rows + 1))
    square = np.zeros((rows, rows))
    for i, row in enumerate(lower):
        square[i, : i + 1] = row
    np.testing.assert_allclose(square, np.linalg.cholesky(matrix), rtol=1e-10, atol=1e-10)
    solved = solve_lower(lower, right.tolist())
    np.testing.assert_allclose(square @ np.array(solved), right, rtol=1e-9)


def test_only_the_lower_half_is_read():
    matrix = positive(5, 5).tolist()
    half = [row[: i + 1] for i, row in enumerate(matrix)]
    assert cholesky(half) == cholesky(matrix)


def test_two_sizes_that_are_one_are_no_error():
    """The rows are the same: the matrix is singular."""
    lower = cholesky([[1.0], [1.0, 1.0]])
    assert lower[1][1] > 0
    assert solve_lower(lower, [1.0, 1.0])[0] == 1.0


def test_of_vectors_of_unequal_length_the_beginning_counts():
    assert dot([1.0, 2.0], [3.0, 4.0, 5.0]) == 11.0
