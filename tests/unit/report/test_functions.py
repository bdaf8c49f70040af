"""The answer about a user's own function: what is written on both sides, and below it the best code of both."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.policy import Policy
from gpubench.analysis.thresholds import find_threshold
from gpubench.report import analyse_runs
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.answer import answer_screen
from gpubench.result.run import RunWarning
from tests.unit.report.builders import case, measured, run_of, skipped

SIZES = [2**k for k in range(8, 24, 2)]


def seconds(fixed_s, each_s):
    return {n: fixed_s + n * each_s for n in SIZES}


def run(code, on_gpu="resident-waited"):
    """A run of `mine.f` with these times by device and implementation, in one situation on a GPU."""
    rows = []
    for (device, implementation), times in code.items():
        for n, time in times.items():
            regime = "resident" if device in ("numpy:0", "torch:cpu") else on_gpu
            what = case("mine.f", n=n, implementation=implementation, device=device, regime=regime)
            rows.append(measured(replace(what, group="function"), time))
    return run_of(rows)


WRITTEN = {("numpy:0", "library"): seconds(1e-6, 1e-8), ("cupy:0", "library"): seconds(1e-4, 1e-10)}
COMPILED = {("numpy:0", "tuned"): seconds(1e-6, 1e-9), ("cupy:0", "tuned"): seconds(2e-5, 1e-10)}


def screen(run):
    (analysis,) = analyse_runs([run])
    lines = answer_screen(analysis, RenderOptions(command=""))
    return " ".join(" ".join("".join(cell.text for cell in line) for line in lines).split())


def test_the_best_code_of_both_sides_has_a_threshold_of_its_own():
    compiled = "f: compiled as one kernel 10x as fast as NumPy at n = 4 M"
    assert f"{compiled}; at the best of both sides the GPU pays from" in screen(run(WRITTEN | COMPILED))
    (curve,) = analyse(run(WRITTEN | COMPILED)).best_code
    assert curve.n == pytest.approx(2.1e4, rel=0.2)


def test_pytorch_on_the_cpu_is_other_code():
    text = screen(run(WRITTEN | {("torch:cpu", "library"): seconds(1e-6, 5e-9)}))
    assert "f: by PyTorch 2.0x as fast as NumPy" in text


def test_where_no_library_runs_it_on_a_gpu_all_code_competes():
    compiled = run({("numpy:0", "library"): seconds(1e-6, 1e-8)} | COMPILED)
    assert find_threshold([compiled], "f", "waited").n == pytest.approx(2.1e4, rel=0.2)


def test_advice_is_about_code_that_the_caller_has():
    answer = Policy([run(WRITTEN | COMPILED)]).choose("f", 2**20, regime="resident")
    assert (answer.device_id, answer.implementation) == ("cupy:0", "library")
    assert answer.gain == pytest.approx((1e-6 + 2**20 * 1e-8) / (1e-4 + 2**20 * 1e-10), rel=0.1)


LEFT_OUT = [
    RunWarning(code="bad-function", message=f"{name} is left out: it returns nothing: return the result")
    for name in ("first", "second")
]


@pytest.mark.parametrize(("count", "words"), [
    (1, "first is left out: it returns nothing: return the result."), (2, "Left out: first and second."),
])  # fmt: skip
def test_the_screen_names_functions_that_were_left_out(count, words):
    assert words in screen(replace(run(WRITTEN), warnings=LEFT_OUT[:count]))


def test_the_screen_says_from_which_size_on_a_function_raises():
    detail = "it raises ValueError: too large (mine.py, line 5)"
    raised = [skipped(case("mine.f", n=n), "bad-function", detail) for n in (2**26, 2**25)]
    shown = run(WRITTEN)
    text = screen(replace(shown, outcomes=[*shown.outcomes, *raised]))
    assert f"f at n = 32 M: {detail}." in text
