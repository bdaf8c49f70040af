"""Overheads and variants: rows of their own, no part in verdicts, break-even, speedups or baselines."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.analysis.analyse import analyse
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.winners import evidence
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.run import Parts
from tests.unit.report.builders import CPU, GPU, case, curve, measured, run_of

ADD = 2**20


def test_overheads_are_compared_with_nothing():
    plain = analyse(run_of(curve({64: 0.25, 256: 4.0})))
    rows = [measured(case("upload", 2**20, form, device="cupy:0"), 1e-4) for form in ("library", "tuned")]
    found = analyse(run_of([*curve({64: 0.25, 256: 4.0}), *rows]))
    assert (found.speedups, found.break_even, answer_sentences(found)) == (
        plain.speedups, plain.break_even, answer_sentences(plain),
    )  # fmt: skip
    assert [row.id for row in overheads(found).rows] == [row.id for row in rows]
    assert not [row for row in roofline(found).rows if row.case.case.group == "overhead"]


def test_an_empty_launch_is_told_for_each_device_of_a_gpus_report():
    """The typical one of a session, the middle one of the sessions; a superseded one does not count."""
    run = run_of(curve({64: 0.25}), sessions=3)
    reported = {"numpy:0": 1e-6, "cupy:0": 8e-6}
    sessions = []
    for i, record in enumerate(run.sessions):
        own = [
            msgspec.structs.replace(worker, overhead_s=[reported[worker.device_id] * (1 + i)] * 3 + [1.0])
            for worker in record.workers
            if worker.device_id in reported
        ]
        sessions.append(msgspec.structs.replace(record, workers=own, superseded=i == 2))
    run = msgspec.structs.replace(run, sessions=sessions)
    assert overheads(analyse(run)).empty == pytest.approx({"numpy:0": 1.5e-6, "cupy:0": 12e-6})
    assert "An empty launch and its wait: cupy:0 12.0 us, numpy:0 1.50 us." in render([run], "plain", width=200)
    alone = run_of([measured(case(n=64), 1e-3)], devices=(CPU,))
    assert "empty launch" not in render([alone], "plain", width=200)


def test_variants_are_neither_contender_nor_baseline():
    plain = analyse(run_of(curve({64: 0.25, 256: 4.0})))
    rows = [
        measured(case(n=256, form="tuned", variant="naive", device="cupy:0"), 1e-9),
        measured(case(n=256, variant="tf32", device="cupy:0"), 1e-9),
        measured(case(n=256, form="tuned", variant="blocked"), 1e-9),
    ]
    found = analyse(run_of([*curve({64: 0.25, 256: 4.0}), *rows]))
    assert (found.speedups, found.break_even, answer_sentences(found)) == (
        plain.speedups, plain.break_even, answer_sentences(plain),
    )  # fmt: skip
    text = render([found.run], "csv")
    assert "tuned-naive" in text
    assert "library-tf32" in text


def test_the_recommendation_reads_no_variant():
    rows = curve({64: 0.25, 256: 4.0})
    fast = measured(case(n=256, variant="tf32", device="cupy:0"), 1e-9)
    plain = evidence(analyse(run_of(rows)))
    assert plain is not None
    assert evidence(analyse(run_of([*rows, fast]))) == plain


def test_overheads_alone_say_that_there_is_no_verdict():
    run = run_of([measured(case("sync", 1, device="cupy:0"), 5e-6)], devices=(CPU, GPU))
    text = render([run], "plain", width=120)
    assert "Overheads were measured" in text
    assert "sync" in text


@pytest.mark.parametrize(
    ("device", "op", "form", "words"),
    [
        ("cupy:0", "upload", "library", "upload, pageable"),
        ("cupy:0", "download", "tuned", "download, pinned"),
        ("wgpu:0", "upload", "library", "upload, plain call"),
        ("wgpu:0", "download", "tuned", "download, staging"),
        ("wgpu:0", "allocate", "library", "allocate, fresh"),
        ("cupy:0", "allocate", "tuned", "allocate, pool"),
        ("fake:gpu", "upload", "tuned", "upload, tuned"),
        ("cupy:0", "launch", "library", "launch"),
    ],
)
def test_words_of_the_forms(device, op, form, words):
    run = run_of([measured(case(op, 2**20, form, device=device), 1e-3)])
    assert f"  {words}  " in render([run], "plain", sections=["breakdown"])


def test_transfers_have_a_rate_and_a_size_in_binary_units():
    run = run_of([measured(case("upload", 2**30, "tuned", device="cupy:0"), 2**30 / 55e9)])
    text = render([run], "plain", sections=["breakdown"])
    assert "1 GiB" in text
    assert "55.0 GB/s" in text


def test_a_terminal_shows_three_sizes_and_markdown_all():
    sizes = [2**10, 2**14, 2**18, 2**20, 2**24, 2**30]
    run = run_of([measured(case("upload", n, device="cupy:0"), 1e-5 + n / 1e10) for n in sizes])
    short, full = render([run], "plain"), render([run], "markdown")
    assert [size for size in ("1 KiB", "16 KiB", "1 MiB", "16 MiB", "1 GiB") if f" {size} " in short] == [
        "1 KiB", "1 MiB", "1 GiB",
    ]  # fmt: skip
    assert all(f"| {size} |" in full for size in ("16 KiB", "256 KiB", "16 MiB"))


def test_the_pool_is_held_against_an_elementwise_op():
    rows = [
        measured(case("allocate", 2**22, "tuned", device="cupy:0"), 4e-7),
        measured(case("allocate", 2**22, device="cupy:0"), 4e-4),
        measured(case("add", ADD, device="cupy:0"), 2e-5),
        measured(case("add", ADD, "tuned", device="cupy:0"), 1e-5),
        measured(case("add", ADD), 1e-9),
        measured(case("mul", ADD, device="cupy:0"), 1e-9),
    ]
    (pool,) = overheads(analyse(run_of(rows))).pools
    assert pool.share == pytest.approx(0.04)
    assert pool.op.case.op == "add"
    assert "Pool overhead on cupy:0: 4.0% of add at 1 Mi elements" in render([run_of(rows)], "plain")
    assert not overheads(analyse(run_of(rows[:2]))).pools
    rows[0] = measured(case("allocate", 2**22, "tuned", device="cupy:0"), 1e-9)
    assert "less than 0.1% of add" in render([run_of(rows)], "plain", width=120)


def test_the_pool_is_held_against_one_call_that_is_waited_for_too():
    parts = Parts(session=0, single_s=[3e-5, 2e-5, 9e-5, 2e-5])
    rows = [
        measured(case("allocate", 2**22, "tuned", device="cupy:0"), 1e-6),
        measured(case("add", ADD, "tuned", device="cupy:0"), 1e-5, parts=parts),
    ]
    (pool,) = overheads(analyse(run_of(rows))).pools
    assert pool.share == pytest.approx(0.1)
    assert pool.single_share == pytest.approx(0.04)
    text = render([run_of(rows)], "plain", width=120)
    assert "4.0% (10% of launches in a row) of add at 1 Mi elements" in text


def test_without_add_another_elementwise_op_serves():
    rows = [
        measured(case("allocate", 2**20, "tuned", device="cupy:0"), 1e-6),
        measured(case("relu", ADD, device="cupy:0"), 2e-5),
    ]
    (pool,) = overheads(analyse(run_of(rows))).pools
    assert (pool.op.case.op, pool.allocate.case.params) == ("relu", {"n": 2**20})
