"""Speedups: wall against wall, fastest form against fastest form, and a baseline that has a name."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.errors import ExitCode, InputError
from gpubench.report.analysis import analyse
from gpubench.report.analysis.baseline import baseline_line
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, measured, run_of


def test_the_headline_pairs_the_fastest_forms():
    run = run_of([
        measured(case(), 4e-3), measured(case(form="tuned"), 2e-3),
        measured(case(device="cupy:0"), 1e-4), measured(case(form="tuned", device="cupy:0"), 2e-4),
    ])  # fmt: skip
    rows = {row.kind: row for row in analyse(run).speedups}
    assert rows["headline"].ratio.estimate == pytest.approx(20)
    assert rows["headline"].baseline.id == "matmul/n=1024/float32/tuned/resident@numpy:0"
    assert rows["headline"].case.id == "matmul/n=1024/float32/library/resident@cupy:0"
    assert rows["library"].ratio.estimate == pytest.approx(40)
    assert rows["case"].ratio.estimate == pytest.approx(10)


@pytest.mark.parametrize("regime", ["resident", "transfer-once", "transfer-always"])
def test_the_resident_cpu_case_is_the_baseline_of_every_regime(regime):
    run = run_of([measured(case(), 2e-3), measured(case(regime=regime, device="cupy:0"), 1e-3)])
    row = analyse(run).speedups[0]
    assert row.ratio.estimate == pytest.approx(2)
    assert row.baseline.case.regime == "resident"


def test_device_time_never_enters_a_ratio():
    run = run_of([measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3, cold_s=1e-6)])
    assert analyse(run).speedups[0].ratio.estimate == pytest.approx(2)


def test_each_gpu_has_its_own_row():
    other = msgspec.structs.replace(GPU, id="cupy:1")
    run = run_of(
        [
            measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3), measured(case(device="cupy:1"), 5e-4),
        ],
        devices=(CPU, GPU, other),
    )  # fmt: skip
    headline = [row for row in analyse(run).speedups if row.kind == "headline"]
    assert [row.case.case.device_id for row in headline] == ["cupy:0", "cupy:1"]


def test_software_and_unstable_cases_take_no_headline():
    run = run_of([measured(case(), 2e-3), measured(case(device="wgpu:0"), 1e-3)], devices=(CPU, SOFTWARE))
    analysis = analyse(run)
    assert [row.headline for row in analysis.speedups if row.kind == "headline"] == [False]
    assert not analysis.break_even
    wild = run_of(
        [measured(case(), 2e-3, factors=[0.5] * 5 + [1.5] * 5), measured(case(device="cupy:0"), 1e-3)]
    )
    assert [row.headline for row in analyse(wild).speedups if row.kind == "headline"] == [False]


def test_a_ratio_uses_the_sessions_that_both_sides_have():
    cpu, gpu = measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)
    gpu = msgspec.structs.replace(gpu, blocks=gpu.blocks[1:2])
    row = analyse(run_of([cpu, gpu])).speedups[0]
    assert row.ratio.estimate == pytest.approx(2)
    nothing = msgspec.structs.replace(cpu, blocks=cpu.blocks[:1])
    assert not analyse(run_of([nothing, gpu])).speedups


def test_the_baseline_names_form_blas_and_threads():
    run = run_of([measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)])
    assert baseline_line(run, analyse(run).speedups) == (
        "vs numpy library, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"
    )
    bare = run_of([measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)], with_machine=False)
    bare = msgspec.structs.replace(bare, sessions=[])
    assert analyse(bare).baseline == "vs numpy library, BLAS unknown, threads unknown"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("library", 40.0), ("numpy:0", 20.0), ("tuned@numpy", 20.0), ("library@numpy:0", 40.0), ("tuned", 20.0)],
)
def test_the_baseline_can_be_chosen(name, expected):
    run = run_of([
        measured(case(), 4e-3), measured(case(form="tuned"), 2e-3), measured(case(device="cupy:0"), 1e-4),
    ])  # fmt: skip
    rows = [row for row in analyse(run, baseline=name).speedups if row.kind == "headline"]
    assert [row.ratio.estimate for row in rows] == [pytest.approx(expected)]


def test_a_gpu_as_baseline_pays_for_its_own_regime():
    other = msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu")
    run = run_of(
        [
            measured(case(device="cupy:0"), 1e-4), measured(case(regime="transfer-always", device="cupy:0"), 8e-4),
            measured(case(regime="transfer-always", device="wgpu:0"), 4e-4),
        ],
        devices=(CPU, GPU, other),
    )  # fmt: skip
    rows = [row for row in analyse(run, baseline="cupy:0").speedups if row.kind == "headline"]
    assert [row.ratio.estimate for row in rows] == [pytest.approx(2)]


def test_a_baseline_that_was_not_measured_is_an_input_error():
    with pytest.raises(InputError) as caught:
        analyse(run_of([measured(case(), 1e-3)]), baseline="tpu:0")
    assert caught.value.exit_code == ExitCode.INPUT
    assert "library@numpy:0" in caught.value.hint
