"""Where splitting an op pays: the gain of sessions that did not choose the share, and the reason where it loses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.hybrid import hybrids
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from tests.unit.report.builders import CPU, GPU, HYBRID, case, measured, run_of, split

DEVICES = (CPU, GPU, HYBRID)
STARVED = {"cpu_alone_s": [7e-4], "cpu_beside_s": [1.2e-3]}


def run_with(
    cpu_s, gpu_s, both_s, *, op="matmul", n=1024, regime="resident", sessions=6, resident_s=None, **words
):
    what = case(op, n, "tuned", regime, "hybrid:cupy:0")
    found = [
        measured(case(op, n), cpu_s, sessions=sessions), measured(case(op, n, regime=regime, device="cupy:0"), gpu_s, sessions=sessions),
        split(what, (cpu_s, gpu_s), both_s, sessions=sessions, **words),
    ]  # fmt: skip
    if resident_s is not None:
        found.append(measured(case(op, n, device="cupy:0"), resident_s, sessions=sessions))
    return run_of(found, devices=DEVICES, sessions=sessions)


def only(run):
    (row,) = hybrids(analyse(run))
    return row


@pytest.mark.parametrize(("beside_s", "gain", "better", "device"), [
    ({"gpu": 0.6e-3}, 0.6 / 0.5, "gpu", "cupy:0"), ({"gpu": 0.6e-3, "cpu": 0.55e-3}, 0.55 / 0.5, "cpu", "numpy:0"),
    ({"gpu": 2e-3, "cpu": 4e-3}, 1 / 0.5, "gpu", "cupy:0"),
])  # fmt: skip
def test_a_side_that_is_faster_alone_beside_the_split_is_what_the_gain_is_over(beside_s, gain, better, device):
    run = run_with(3e-3, 1e-3, 0.5e-3)
    *alone, chosen = run.outcomes
    blocks = [replace(b, gpu_pieces=8, beside_s=beside_s) if b.phase == "main" else b for b in chosen.blocks]
    row = only(replace(run, outcomes=[*alone, replace(chosen, blocks=blocks)]))
    assert row.gain == pytest.approx(gain, rel=0.02)
    assert (row.gpu_pieces, row.better, row.baseline_device) == (8, better, device)
    assert only(run).gpu_pieces == 1


def test_the_session_that_chose_the_share_does_not_estimate_the_gain():
    run = run_with(3e-3, 1e-3, 0.78e-3)
    *alone, chosen = run.outcomes
    blocks = [replace(b, wall_s=[v / 10 for v in b.wall_s]) if b.session == 0 else b for b in chosen.blocks]
    assert only(replace(run, outcomes=[*alone, replace(chosen, blocks=blocks)])).gain == only(run).gain


def test_one_session_is_marked_and_never_recommended_unless_another_file_chose_the_share():
    row = only(run_with(3e-3, 1e-3, 0.5e-3, sessions=1))
    assert (row.selected_in_sample, row.reason, row.recommended) == (True, "selected-in-sample", False)
    row = only(run_with(3e-3, 1e-3, 0.6e-3, sessions=1, sweep=False))
    assert (row.selected_in_sample, row.recommended) == (False, True)


@pytest.mark.parametrize(("reported", "seconds", "words"), [
    ("gpu-dominates", (1.0, 1e-2, 1.1e-2), {}), ("cpu-dominates", (1e-2, 1.0, 1.1e-2), {}),
    ("noise", (3e-3, 1e-3, 0.95e-3), {"sessions": 2}), ("overhead-bound", (3e-3, 1e-3, 1.02e-3), {}),
    ("cpu-starved", (3e-3, 1e-3, 1.2e-3), {"sides": STARVED}),
    ("shared-bandwidth", (3e-3, 1e-3, 1.2e-3), {"op": "add", "n": 1 << 20, "regime": "transfer-always", "sides": STARVED}),
    ("transfer-bound", (3e-3, 1e-3, 1.2e-3), {"regime": "transfer-always", "resident_s": 1e-4}),
])  # fmt: skip
def test_where_it_loses_the_report_says_why(reported, seconds, words):
    run = run_with(*seconds, **words)
    row = only(run)
    assert (row.reason, row.recommended) == (reported, False)
    assert all(reported in render([run], name, sections=["hybrid"]) for name in ("plain", "markdown"))


def test_an_adapter_that_is_the_cpu_is_never_recommended():
    run = run_with(3e-3, 1e-3, 0.5e-3)
    assert only(replace(run, devices=[CPU, GPU, replace(HYBRID, kind="software")])).reason == "software"


@given(*[st.floats(1e-6, 1.0)] * 3, st.floats(0.1, 0.9), st.floats(0.5, 2.0))
def test_the_figures_are_those_of_the_model_and_do_not_depend_on_the_unit(
    cpu_s, gpu_s, both_s, gpu_share, scale
):
    row = only(run_with(cpu_s, gpu_s, both_s, gpu_share=gpu_share))
    assert row.ideal_gain == pytest.approx(1 + min(cpu_s, gpu_s) / max(cpu_s, gpu_s))
    assert row.gain == pytest.approx(min(cpu_s, gpu_s) / both_s)
    assert row.efficiency == pytest.approx(max(gpu_share * gpu_s, (1 - gpu_share) * cpu_s) / both_s)
    assert row.recommended == (row.lo > 1.05)
    scaled = only(run_with(cpu_s * scale, gpu_s * scale, both_s * scale, gpu_share=gpu_share))
    assert scaled.gain == pytest.approx(row.gain)


@pytest.mark.parametrize(("both_s", "end"), [
    (0.78e-3, "; split over CPU and GPU it is 1.28x as fast as the better of the two."), (0.99e-3, "CPU and GPU are about equal."),
])  # fmt: skip
def test_the_first_sentence_tells_a_split_that_pays(both_s, end):
    run = run_with(1e-3, 1e-3, both_s, regime="transfer-always", gpu_share=0.5)
    run = replace(run, selection=replace(run.selection, ops=["matmul"], sizes={"matmul": [1024]}))
    first = answer_sentences(analyse(run))[0]
    assert first.startswith("matmul at side 1024, copied at every call: CPU and GPU are about equal")
    assert first.endswith(end)
