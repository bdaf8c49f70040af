"""benchmarks/advice.py: what an answer for a size that is left out costs, and what no rule could know of it."""

import pytest
from msgspec.structs import replace

from benchmarks.advice import again, questions
from gpubench.result.store import files
from tests.unit.report.builders import CPU, GPU, case, measured, run_of

WGPU = replace(GPU, id="wgpu:0", backend="wgpu")


def saved(folder, name, *, wgpu_at_1024):
    """The CPU takes 1 ms, cupy:0 0.1 ms, and wgpu:0 0.2 ms, but at n = 1024; four sessions of one block."""
    found = []
    for n in (256, 1024, 4096):
        seconds = {"numpy:0": 1e-3, "cupy:0": 1e-4, "wgpu:0": wgpu_at_1024 if n == 1024 else 2e-4}
        for device, taken in seconds.items():
            regime = "resident" if device == "numpy:0" else "transfer-always"
            found.append(measured(case(n=n, regime=regime, device=device), taken, sessions=4))
    path = folder / name
    files.save(replace(run_of(found, devices=(CPU, GPU, WGPU), sessions=4), id=name), path)
    return path


@pytest.mark.parametrize(
    ("wgpu_s", "cost", "shown"), [(2e-4, 0.0, False), (9.4e-5, 6 / 94, False), (5e-5, 1.0, True)]
)
def test_an_answer_costs_what_was_measured_and_the_interval_shows_whether_it_is_wrong(
    tmp_path, wgpu_s, cost, shown
):
    path = saved(tmp_path, "a.json", wgpu_at_1024=wgpu_s)
    (one,) = (
        one
        for one in questions([path])
        if not one.alone and one.cost is not None and one.regime == "transfer-always"
    )
    assert (one.n, one.basis, one.between) == (
        1024,
        "interpolated",
        True,
    )  # the ends of a ladder have no answer
    assert (one.cost, one.side, one.shown) == (pytest.approx(cost), 0.0, shown)
    assert one.times.halves() == (0.0, 0.0)  # all blocks are alike


def test_the_fastest_of_one_file_is_judged_in_the_other_of_the_machine(tmp_path):
    paths = [saved(tmp_path, f"{s}.json", wgpu_at_1024=s) for s in (5e-5, 2e-4)]
    assert again(list(questions(paths))).endswith(": 100.0%, 100.0% of 2 pairs")
    alike = [saved(tmp_path, f"alike-{i}.json", wgpu_at_1024=5e-5) for i in range(3)]
    assert again(list(questions(alike))).endswith(": 0.0%, 0.0% of 6 pairs")
