"""The simulated default run of benchmarks/minute.py: the real search on curves of stored runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.minute import Minute, Truth, answered
from gpubench.analysis.analyse import curves
from gpubench.store import files

ROOT = Path(__file__).parents[3]
RUNS = sorted((ROOT / "results").glob("*/20261123T0800*.json.gz"))


@pytest.fixture(scope="module")
def runs():
    return [files.load(path) for path in RUNS]


@pytest.fixture(scope="module")
def truth(runs):
    return Truth(runs)


@pytest.mark.slow
def test_a_simulated_run_has_the_cells_of_the_real_one_and_every_top(runs, truth):
    cells, real = (curves(run).break_even for run in (Minute(truth, runs[0], 1, 60.0).run(), runs[0]))

    def names(rows):
        return {(row.op, row.regime, row.device_id): row.last for row in rows}

    assert names(cells) == names(real)
    # Of the real runs half of the cells and more are answered: no simulation of them is far from that.
    assert 0.4 < sum(map(answered, cells)) / len(cells) < 0.8


def test_the_same_seed_is_the_same_run(runs, truth):
    first, second = (Minute(truth, runs[0], 2, 20.0).run() for _ in range(2))
    assert first.outcomes == second.outcomes


def test_a_threshold_of_the_truth_lies_between_the_sizes_that_lose_and_win(runs, truth):
    for row in curves(runs[0]).break_even:
        n = truth.crossing(row) if row.verdict == "at" else None
        if n is not None:
            assert row.first <= n <= row.last
