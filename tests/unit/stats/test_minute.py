"""The simulated default run of benchmarks/minute.py: the real passes on curves of stored runs."""

from pathlib import Path

import pytest

from benchmarks.minute import COSTS, Minute, Truth, width
from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import WIDEST_INTERVAL
from gpubench.result.store import files

ROOT = Path(__file__).parents[3]
RUNS = sorted((ROOT / "results").glob("*/20261123T0800*.json.gz"))


@pytest.fixture(scope="module")
def runs():
    return [files.load(path) for path in RUNS]


@pytest.fixture(scope="module")
def truth(runs):
    return Truth(runs)


@pytest.mark.slow
def test_a_simulated_run_has_the_cells_of_the_real_one_and_ends_in_time(runs, truth):
    minute = Minute(truth, runs[0], 1, 60.0, COSTS["after"])
    cells, real = (analyse(run).break_even for run in (minute.run(), runs[0]))

    def names(rows):
        return {(row.op, row.regime, row.device_id) for row in rows}

    assert names(cells) == names(real)
    assert minute.answered_s < minute.ladder_s < minute.ended_s <= 62
    assert sum(width(row) <= WIDEST_INTERVAL for row in cells) / len(cells) > 0.6


def test_the_same_seed_is_the_same_run(runs, truth, monkeypatch):
    monkeypatch.setattr(Minute, "choosing_clock", lambda minute: 0.0)
    first, second = (Minute(truth, runs[0], 2, 18.0, COSTS["after"]).run() for _ in range(2))
    assert first.outcomes == second.outcomes


def test_a_threshold_of_the_truth_lies_between_the_sizes_that_lose_and_win(runs, truth):
    for row in analyse(runs[0]).break_even:
        n = truth.crossing(row) if row.verdict == "at" else None
        if n is not None:
            assert row.first <= n <= row.last
