"""The simulated default run of benchmarks/minute.py: the real passes on curves of stored runs."""

from pathlib import Path

import pytest

from benchmarks.minute import COSTS, Minute, Truth
from gpubench.analysis.analyse import analyse
from gpubench.result.store import files

ROOT = Path(__file__).parents[3]
RUNS = sorted((ROOT / "results").glob("*/20261123T0800*.json.gz"))


@pytest.fixture(scope="module")
def runs():
    return [files.load(path) for path in RUNS]


@pytest.fixture(scope="module")
def truth(runs):
    return Truth(runs)


def test_a_simulated_run_has_the_cells_of_the_real_one_ends_in_time_and_repeats(runs, truth, monkeypatch):
    monkeypatch.setattr(Minute, "choosing_clock", lambda minute: 0.0)
    first, second = (Minute(truth, runs[0], 2, 12.0, COSTS["after"]) for _ in range(2))
    run = first.run()
    assert run.outcomes == second.run().outcomes
    cells, real = (
        {(row.op, row.regime, row.device_id) for row in analyse(one).break_even} for one in (run, runs[0])
    )
    assert cells <= real
    assert len(cells) > len(real) / 2
    assert first.answered_s <= first.ladder_s <= first.ended_s <= 14


def test_a_threshold_of_the_truth_lies_between_the_sizes_that_lose_and_win(runs, truth):
    for row in analyse(runs[0]).break_even:
        n = truth.crossing(row) if row.verdict == "at" else None
        assert n is None or row.first <= n <= row.last
