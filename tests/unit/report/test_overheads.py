"""Overheads and variants: rows of their own, no part in verdicts, break-even, speedups or baselines."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.winners import evidence
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from tests.unit.report.builders import case, curve, measured, run_of

CURVE = curve({64: 0.25, 256: 4.0})
OVERHEADS = [
    measured(case("upload", 2**20, implementation, device="cupy:0"), 1e-4)
    for implementation in ("library", "tuned")
]
VARIANTS = [
    measured(case(n=256, implementation="tuned", variant="naive", device="cupy:0"), 1e-9),
    measured(case(n=256, variant="tf32", device="cupy:0"), 1e-9),
    measured(case(n=256, implementation="tuned", variant="blocked"), 1e-9),
]


@pytest.mark.parametrize("rows", [OVERHEADS, VARIANTS], ids=["overheads", "variants"])
def test_overheads_and_variants_are_compared_with_nothing(rows):
    plain, found = analyse(run_of(CURVE)), analyse(run_of([*CURVE, *rows]))
    for say in (lambda a: a.speedups, lambda a: a.break_even, answer_sentences, evidence):
        assert say(found) == say(plain) != ()
    assert [row.id for row in overheads(found).rows] == [row.id for row in rows if rows is OVERHEADS]
    assert not [row for row in roofline(found).rows if row.case.case.group == "overhead"]
    text = render([found.run], "csv")
    assert ("tuned-naive" in text, "library-tf32" in text) == (rows is VARIANTS, rows is VARIANTS)


def test_an_empty_launch_is_that_of_the_middle_session():
    """The typical one of a session, the middle one of the sessions; a superseded one does not count."""
    run = run_of(curve({64: 0.25}), sessions=3)
    reported = {"numpy:0": 1e-6, "cupy:0": 8e-6}
    sessions = []
    for i, record in enumerate(run.sessions):
        own = [
            replace(one, overhead_s=[reported[one.device_id] * (1 + i)] * 3 + [1.0]) for one in record.workers
        ]
        sessions.append(replace(record, workers=own, superseded=i == 2))
    found = overheads(analyse(replace(run, sessions=sessions)))
    assert found.empty == pytest.approx({"numpy:0": 1.5e-6, "cupy:0": 12e-6})


@pytest.mark.parametrize("op", ["relu", None])
def test_without_add_another_elementwise_op_serves(op):
    rows = [measured(case("allocate", 2**20, "tuned", device="cupy:0"), 1e-6)]
    rows += [measured(case(op, 2**20, device="cupy:0"), 2e-5)] if op else []
    found = overheads(analyse(run_of(rows))).pools
    assert [(one.op.case.op, one.allocate.case.params) for one in found] == ([(op, {"n": 2**20})] if op else [])
