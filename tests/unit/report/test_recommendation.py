"""Which mode a measured file recommends, by what its own report shows: speedups, break-evens and splits."""

from __future__ import annotations

import json
import math
import random

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.hybrid import hybrids
from gpubench.analysis.winners import evidence, recommend_mode
from gpubench.report import render
from gpubench.report.document import ReportDocument
from gpubench.result.machine import Fact, Recommendation
from tests.unit.report.builders import CPU, GPU, HYBRID, case, curve, measured, run_of, split

WILD = (0.5, 1.5, 0.6, 1.4, 1.0, 1.0, 0.7, 1.3, 0.8, 1.2)
ALL = (CPU, GPU, HYBRID)


def both(cpu_s, gpu_s, split_s, *, n=1024, regime="resident-waited", sessions=5):
    """One size on either side alone, and split with 75 % on the GPU."""
    return [
        measured(case(n=n), cpu_s, sessions=sessions),
        measured(case(n=n, regime=regime, device="cupy:0"), gpu_s, sessions=sessions),
        split(case(n=n, implementation="tuned", regime=regime, device="hybrid:cupy:0"), (cpu_s, gpu_s), split_s, sessions=sessions),
    ]  # fmt: skip


def reported(outcomes, **words):
    found = recommendation_of(run_of(outcomes, **words))
    assert found is not None
    return found


def recommendation_of(run, **words):
    return recommend_mode(analyse(run, **words))


def with_threads(run, count):
    cpu = replace(run.machine.cpu, available=Fact(count, "ok", "proc"))
    return replace(run, machine=replace(run.machine, cpu=cpu))


@pytest.mark.parametrize(
    ("ratio", "threads", "mode"), [(20.0, 2, "gpu"), (0.2, 2, "cpu"), (2.0, 8, "gpu"), (0.5, 8, "cpu")]
)
def test_without_splits_the_waited_calls_decide(ratio, threads, mode):
    run = run_of(curve({64: 1.0, 1024: ratio}, regime="resident-waited"))
    found = recommendation_of(with_threads(run, threads))
    assert found is not None
    assert (found.mode, found.confidence) == (mode, "measured")
    assert found.device_ids == ([] if mode == "cpu" else ["cupy:0"])
    assert found.measured is not None
    assert found.measured.s == pytest.approx(1 / ratio)


@given(st.floats(0.5, 3.0))
def test_it_is_hybrid_just_where_the_report_recommends_a_split(gain):
    run = with_threads(run_of(both(3e-3, 1e-3, 1e-3 / gain), devices=ALL, sessions=5), 8)
    analysis = analyse(run)
    (row,) = hybrids(analysis)
    found = recommend_mode(analysis)
    assert found is not None
    assert (found.mode == "hybrid") == row.recommended == (row.lo > 1.05)
    assert found.measured is not None
    assert found.measured.split == (0.75 if row.recommended else None)
    assert found.measured.splits[0].reason == row.reason


def test_a_split_that_one_session_chose_and_measured_decides_against_it():
    run = with_threads(run_of(both(3e-3, 1e-3, 0.5e-3, sessions=1), devices=ALL, sessions=1), 8)
    found = recommendation_of(run)
    assert found is not None
    assert (found.mode, found.reasons[0].code) == ("gpu", "GPU_DOMINATES")


def test_a_split_with_copies_is_a_reason_even_if_nothing_resident_was_compared():
    found = reported(both(3e-3, 1e-3, 0.7e-3, regime="transfer-always"), devices=ALL, sessions=5)
    assert (found.mode, found.confidence) == ("hybrid", "measured")
    assert found.measured is not None
    assert found.measured.s is None
    assert "transfer-always" in found.reasons[0].text


def test_the_ratio_is_the_mean_over_the_ops_at_their_largest_common_size():
    waited = "resident-waited"
    found = evidence(
        analyse(
            run_of(
                [
                    *curve({64: 1 / 8, 128: 4.0}, regime=waited),
                    measured(case(n=4096), 1.0),
                    measured(case("relu", n=64), 1e-3),
                    measured(case("relu", n=64, device="cupy:0", regime=waited), 4e-3),
                    *curve({256: 100.0}, regime="transfer-always"),
                ]
            )
        )
    )
    assert found is not None
    assert found.s == pytest.approx(1.0)


def test_a_label_takes_no_part():
    """`relu` is within 15 %, however its samples scatter inside blocks that agree."""
    rows = [
        *curve({64: 2.0}, regime="resident-waited"),
        measured(case("relu", n=128), 1e-3),
        measured(case("relu", n=128, device="cupy:0", regime="resident-waited"), 9e-4, factors=WILD),
    ]
    found = evidence(analyse(run_of(rows)))
    assert found.s == pytest.approx(math.sqrt(0.5 * 0.9), rel=1e-5)
    assert [(one.gpu, one.equal, one.unsure) for one in found.situations] == [(1, 1, 0)]


def test_the_break_evens_are_those_of_the_report():
    rows = [
        *curve({64: 0.5, 256: 2.0, 1024: 8.0}),
        *curve({64: 0.1, 256: 0.1, 1024: 0.1}, regime="transfer-always")[1::2],
        measured(case("relu", n=64), 1e-3),
        measured(case("relu", n=64, device="cupy:0"), 1e-4),
        measured(case("relu", n=256), 1e-3),
        measured(case("relu", n=256, device="cupy:0"), 1e-4),
    ]
    analysis = analyse(run_of(rows))
    assert evidence(analysis) is not None
    found = {(p.op, p.regime): p for p in evidence(analysis).break_even}
    (at,) = (row for row in analysis.break_even if row.verdict == "at")
    here = found["matmul", "resident-queued"]
    assert (here.size, here.note, here.backend) == (at.n, f"measured up to n = {at.last}", "cupy")
    assert (here.cpu_s, here.gpu_s) == (pytest.approx(1e-3), pytest.approx(5e-4))
    never = found["matmul", "transfer-always"]
    assert (never.size, never.note, never.gpu_s) == (None, "no size up to n = 1024", pytest.approx(1e-2))
    always = found["relu", "resident-queued"]
    assert (always.size, always.note) == (64, "the smallest size measured, up to n = 256")


def test_an_undecided_break_even_says_between_which_sizes_it_lies():
    rows = curve({64: 0.5, 1024: 2.0})
    analysis = analyse(run_of(rows))
    (curved,) = analysis.break_even
    assert curved.verdict == "undecided"
    rows += [measured(case("add", 1024), 1e-3), measured(case("add", 1024, device="cupy:0"), 1e-4)]
    found = evidence(analyse(run_of(rows)))
    assert found is not None
    (hidden,) = (p for p in found.break_even if p.op == "matmul")
    assert (hidden.size, hidden.note) == (curved.n, f"~{curved.n}² ({curved.lo}-{curved.hi}²)")


def test_of_several_gpus_the_earliest_break_even_counts():
    other = replace(GPU, id="wgpu:0", backend="wgpu")
    waited = {"regime": "resident-waited"}
    rows = [*curve({64: 0.5, 256: 2.0}, **waited), *curve({64: 0.7, 256: 5.0}, device="wgpu:0", **waited)[1::2]]
    found = evidence(analyse(run_of(rows, devices=(CPU, GPU, other))))
    assert found is not None
    (point,) = found.break_even
    assert point.backend == "wgpu"
    assert found.s == pytest.approx(0.2)


def test_where_nothing_was_compared_detection_at_the_start_of_the_run_stands():
    run = run_of([measured(case(n=64), 1e-3)], devices=(CPU,))
    assert recommendation_of(run) is None
    said = Recommendation(mode="gpu", reasons=[{"code": "VRAM_GE_4GIB"}])
    said = msgspec.convert(msgspec.to_builtins(said), Recommendation)
    known = replace(run, machine=replace(run.machine, recommendation=said))
    assert recommendation_of(known) == said


def test_what_is_shown_changes_no_recommendation():
    slower = [measured(case(n=n, implementation="tuned"), 5e-3) for n in (64, 256)]
    run = run_of([*curve({64: 0.5, 256: 2.0}, regime="resident-waited"), *slower])
    plain = recommendation_of(run)
    assert plain is not None
    assert recommendation_of(run, baseline="tuned") == plain
    assert recommendation_of(run, keep=lambda case: case.params["n"] < 100) == plain


@pytest.mark.parametrize("words", [{}, {"baseline": "library"}, {"keep": lambda case: True}])
@pytest.mark.parametrize("odd", [{"inputs": "zeros"}, {"cache": "cold"}, {"threads": 2}])
def test_an_experiment_recommends_nothing(odd, words):
    """As for `gpubench detect`: it shows something else than what a call usually takes."""
    run = with_threads(run_of(curve({64: 0.5, 256: 20.0}, regime="resident-waited")), 8)
    usual = recommendation_of(run, **words)
    assert usual is not None
    assert usual.confidence == "measured"
    changed = replace(run, settings=replace(run.settings, **odd))
    assert recommendation_of(changed, **words) is None
    assert evidence(analyse(changed)) is None
    newer = replace(changed, id="00000000-0000-4000-8000-000000000002", started_at="2026-02-01T00:00:00Z")
    assert json.loads(render([run, newer], "json"))["recommendation"]["mode"] == usual.mode


def test_the_order_of_outcomes_says_nothing():
    rows = [*curve({64: 0.5, 256: 2.0}), *both(3e-3, 1e-3, 0.7e-3)]
    run = run_of(rows, devices=ALL, sessions=5)
    shuffled = list(run.outcomes)
    random.Random(3).shuffle(shuffled)
    assert evidence(analyse(replace(run, outcomes=shuffled))) == evidence(analyse(run))


def test_the_document_has_it_by_its_schema():
    run = run_of(both(3e-3, 1e-3, 0.7e-3), devices=ALL, sessions=5)
    found = json.loads(render([run], "json"))
    jsonschema.validate(found, msgspec.json.schema(ReportDocument))
    assert (found["recommendation"]["mode"], found["recommendation"]["confidence"]) == ("hybrid", "measured")
    assert found["recommendation"]["measured"]["splits"][0]["reason"] is None
    (row,) = found["hybrid"]
    assert row["recommended"]


def test_of_several_files_the_newest_that_measured_speaks_and_of_several_machines_none():
    waited = {"regime": "resident-waited"}
    old = run_of(curve({64: 20.0}, **waited))
    new = replace(
        run_of(curve({64: 0.1}, **waited)),
        id="00000000-0000-4000-8000-000000000002",
        started_at="2026-02-01T00:00:00Z",
    )
    newest = replace(
        run_of([measured(case(n=64), 1e-3)]),
        id="00000000-0000-4000-8000-000000000003",
        started_at="2026-03-01T00:00:00Z",
    )
    for runs in ([old, new, newest], [newest, old, new]):
        found = json.loads(render(runs, "json"))["recommendation"]
        assert (found["mode"], found["measured"]["date"]) == ("cpu", "2026-02-01T00:00:00Z")
    elsewhere = replace(
        old, fingerprint=replace(old.fingerprint, machine=replace(old.fingerprint.machine, hash="f" * 12))
    )
    assert json.loads(render([new, elsewhere], "json"))["recommendation"] is None
