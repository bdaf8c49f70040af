"""Where splitting an op pays: the gain of sessions that did not choose the share, and the reason where it loses."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse
from gpubench.analysis.hybrid import Hybrid, hybrids
from gpubench.analysis.roofline import roofline
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.run import Run
from tests.unit.report.builders import CPU, GPU, HYBRID, case, measured, run_of, split
from tests.unit.report.samples import hybrid_run

NOISY = (0.6, 1.4, 0.7, 1.3, 0.8, 1.2, 1.0, 1.0, 0.65, 1.35)
DEVICES = (CPU, GPU, HYBRID)


def run_with(
    cpu_s: float, gpu_s: float, both_s: float, *, op: str = "matmul", n: int = 1024, regime: str = "resident",
    sessions: int = 6, resident_s: float | None = None, **split_options: object,
) -> Run:  # fmt: skip
    what = case(op, n, "tuned", regime, "hybrid:cupy:0")
    found = [
        measured(case(op, n), cpu_s, sessions=sessions),
        measured(case(op, n, regime=regime, device="cupy:0"), gpu_s, sessions=sessions),
        split(what, (cpu_s, gpu_s), both_s, sessions=sessions, **split_options),  # type: ignore[arg-type]
    ]
    if resident_s is not None:
        found.append(measured(case(op, n, device="cupy:0"), resident_s, sessions=sessions))
    return run_of(found, devices=DEVICES, sessions=sessions)


def only(run: Run) -> Hybrid:
    (row,) = hybrids(analyse(run))
    return row


def test_a_split_that_pays_is_recommended_with_its_gain_over_the_better_side() -> None:
    row = only(run_with(3e-3, 1e-3, 0.78e-3))
    assert row.recommended
    assert row.reason is None
    assert row.gain == pytest.approx(1 / 0.78, rel=1e-6)
    assert row.lo > 1.05
    assert row.baseline_id == "matmul/n=1024/float32/library/resident-queued@cupy:0"
    assert row.ideal_gain == pytest.approx(4 / 3)
    assert row.efficiency == pytest.approx(0.75 / 0.78)
    assert row.fraction == 0.75
    assert not row.selected_in_sample


def test_the_session_that_chose_the_share_does_not_estimate_the_gain() -> None:
    run = run_with(3e-3, 1e-3, 0.78e-3)
    outcomes = list(run.outcomes)
    flattered = outcomes[2]
    blocks = [
        msgspec.structs.replace(b, wall_s=[v / 10 for v in b.wall_s]) if b.session == 0 else b
        for b in flattered.blocks  # type: ignore[union-attr]
    ]
    outcomes[2] = msgspec.structs.replace(flattered, blocks=blocks)  # type: ignore[type-var]
    assert only(msgspec.structs.replace(run, outcomes=outcomes)).gain == only(run).gain


def test_one_session_is_marked_and_never_recommended() -> None:
    row = only(run_with(3e-3, 1e-3, 0.5e-3, sessions=1))
    assert row.selected_in_sample
    assert row.reason == "selected-in-sample"
    assert not row.recommended


def test_a_share_that_another_file_chose_is_estimated_by_all_sessions() -> None:
    row = only(run_with(3e-3, 1e-3, 0.6e-3, sessions=1, sweep=False))
    assert not row.selected_in_sample
    assert row.recommended


def test_without_the_sides_alone_the_ends_of_the_sweep_stand_for_them() -> None:
    what = case(implementation="tuned", device="hybrid:cupy:0")
    one = only(run_of([split(what, (3e-3, 1e-3), 0.78e-3, sessions=1)], devices=DEVICES, sessions=1))
    assert one.baseline_id is None
    assert one.gain == pytest.approx(1 / 0.78, rel=0.02)
    assert not one.recommended
    # The other sessions hold no such ends, and a gain needs both sides in one session.
    assert hybrids(analyse(run_of([split(what, (3e-3, 1e-3), 0.78e-3)], devices=DEVICES))) == ()


@pytest.mark.parametrize(
    ("run", "reported"),
    [
        (run_with(1.0, 1e-2, 1.1e-2), "gpu-dominates"),
        (run_with(1e-2, 1.0, 1.1e-2), "cpu-dominates"),
        (run_with(3e-3, 1e-3, 0.95e-3, sessions=2), "noise"),
        (run_with(3e-3, 1e-3, 1.02e-3), "overhead-bound"),
        (
            run_with(3e-3, 1e-3, 1.2e-3, sides={"cpu_alone_s": [7e-4], "cpu_beside_s": [1.2e-3]}),
            "cpu-starved",
        ),
        (
            run_with(3e-3, 1e-3, 1.2e-3, op="add", n=1 << 20, regime="transfer-always",
                     sides={"cpu_alone_s": [7e-4], "cpu_beside_s": [1.2e-3]}),
            "shared-bandwidth",
        ),
        (run_with(3e-3, 1e-3, 1.2e-3, regime="transfer-always", resident_s=1e-4), "transfer-bound"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_where_it_loses_the_report_says_why(run: Run, reported: str) -> None:
    row = only(run)
    assert row.reason == reported
    assert not row.recommended
    for name in ("plain", "markdown"):
        assert reported in render([run], name)


def test_an_adapter_that_is_the_cpu_is_never_recommended() -> None:
    run = run_with(3e-3, 1e-3, 0.5e-3)
    devices = [msgspec.structs.replace(d, kind="software") if d.kind == "hybrid" else d for d in run.devices]
    assert only(msgspec.structs.replace(run, devices=devices)).reason == "software"


@given(
    st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(0.1, 0.9), st.floats(0.5, 2.0)
)
def test_the_figures_are_those_of_the_model_and_do_not_depend_on_the_unit(
    cpu_s: float, gpu_s: float, both_s: float, fraction: float, scale: float
) -> None:
    row = only(run_with(cpu_s, gpu_s, both_s, fraction=fraction))
    assert row.ideal_gain == pytest.approx(1 + min(cpu_s, gpu_s) / max(cpu_s, gpu_s))
    assert row.gain == pytest.approx(min(cpu_s, gpu_s) / both_s)
    assert row.efficiency == pytest.approx(max(fraction * gpu_s, (1 - fraction) * cpu_s) / both_s)
    assert row.recommended == (row.lo > 1.05)
    scaled = only(run_with(cpu_s * scale, gpu_s * scale, both_s * scale, fraction=fraction))
    assert scaled.gain == pytest.approx(row.gain)


def test_the_order_of_outcomes_and_blocks_says_nothing() -> None:
    run = hybrid_run()
    outcomes = []
    for outcome in run.outcomes:
        blocks = list(getattr(outcome, "blocks", []))
        random.Random(1).shuffle(blocks)
        outcomes.append(msgspec.structs.replace(outcome, blocks=blocks) if blocks else outcome)
    random.Random(2).shuffle(outcomes)
    assert hybrids(analyse(msgspec.structs.replace(run, outcomes=outcomes))) == hybrids(analyse(run))


def test_a_split_has_a_section_of_its_own_and_no_break_even_and_no_peak() -> None:
    found = analyse(hybrid_run())
    assert {row.device_id for row in found.break_even} == {"cupy:0"}
    assert all("hybrid" not in device for peak in roofline(found).peaks for device in peak.device_ids)
    assert any("split over CPU and GPU it is 1.28x as fast" in text for text in answer_sentences(found))
    plain = render([hybrid_run()], "plain")
    assert "Hybrid: one op split over CPU and GPU" in plain
    assert "pays" in plain


def test_the_document_has_the_rows() -> None:
    rows = json.loads(render([hybrid_run()], "json"))["hybrid"]
    assert [row["recommended"] for row in rows] == [True, False, False]
    first = rows[0]
    assert first["gain"] == pytest.approx(1.282, abs=1e-3)
    assert first["lo"] <= first["gain"] <= first["hi"]
    assert (first["fraction"], first["n"], first["regime"]) == (0.75, 1024, "resident-queued")
    assert [share for share, _ in first["curve"]] == [0.0, 0.7, 0.75, 0.8, 1.0]
    assert [row["reason"] for row in rows] == [None, "cpu-starved", "gpu-dominates"]
