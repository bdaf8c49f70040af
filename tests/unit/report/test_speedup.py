"""Speedups: wall against wall, fastest implementation against fastest implementation, and a baseline that has a name."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import baseline_line
from gpubench.base.errors import ExitCode, InputError
from gpubench.result.run import Blas, Device, RunWarning
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, measured, run_of


def test_the_headline_pairs_the_fastest_implementations():
    run = run_of([
        measured(case(), 4e-3), measured(case(implementation="tuned"), 2e-3),
        measured(case(device="cupy:0"), 1e-4), measured(case(implementation="tuned", device="cupy:0"), 2e-4),
    ])  # fmt: skip
    rows = {row.kind: row for row in analyse(run).speedups}
    assert rows["headline"].ratio == pytest.approx(20)
    assert rows["headline"].baseline.id == "matmul/n=1024/float32/tuned/resident@numpy:0"
    assert rows["headline"].case.id == "matmul/n=1024/float32/library/resident-queued@cupy:0"
    assert rows["library"].ratio == pytest.approx(40)
    assert rows["case"].ratio == pytest.approx(10)


@pytest.mark.parametrize("regime", ["resident", "transfer-once", "transfer-always"])
def test_the_resident_cpu_case_is_the_baseline_of_every_regime(regime):
    run = run_of([measured(case(), 2e-3), measured(case(regime=regime, device="cupy:0"), 1e-3)])
    row = analyse(run).speedups[0]
    assert row.ratio == pytest.approx(2)
    assert row.baseline.case.regime == "resident"


def test_device_time_never_enters_a_ratio():
    run = run_of([measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3, cold_s=1e-6)])
    assert analyse(run).speedups[0].ratio == pytest.approx(2)


def test_each_gpu_has_its_own_row():
    other = replace(GPU, id="cupy:1")
    run = run_of(
        [
            measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3), measured(case(device="cupy:1"), 5e-4),
        ],
        devices=(CPU, GPU, other),
    )  # fmt: skip
    headline = [row for row in analyse(run).speedups if row.kind == "headline"]
    assert [row.case.case.device_id for row in headline] == ["cupy:0", "cupy:1"]


def test_software_cases_take_no_headline_and_unstable_ones_do():
    run = run_of([measured(case(), 2e-3), measured(case(device="wgpu:0"), 1e-3)], devices=(CPU, SOFTWARE))
    analysis = analyse(run)
    assert [row.headline for row in analysis.speedups if row.kind == "headline"] == [False]
    assert not analysis.break_even
    wild = run_of(
        [measured(case(), 2e-3, factors=[0.5] * 5 + [1.5] * 5), measured(case(device="cupy:0"), 1e-3)]
    )
    assert [row.headline for row in analyse(wild).speedups if row.kind == "headline"] == [True]


def test_a_ratio_uses_the_sessions_that_both_sides_have():
    cpu, gpu = measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)
    gpu = replace(gpu, blocks=gpu.blocks[1:2])
    row = analyse(run_of([cpu, gpu])).speedups[0]
    assert row.ratio == pytest.approx(2)
    nothing = replace(cpu, blocks=cpu.blocks[:1])
    assert not analyse(run_of([nothing, gpu])).speedups


def test_the_baseline_names_implementation_blas_and_threads():
    run = run_of([measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)])
    assert baseline_line(run, analyse(run).speedups) == (
        "vs numpy library, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"
    )
    bare = run_of([measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)], with_machine=False)
    bare = replace(bare, sessions=[])
    assert analyse(bare).baseline == "vs numpy library, BLAS unknown, threads unknown"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("library", 40.0), ("numpy:0", 20.0), ("tuned@numpy", 20.0), ("library@numpy:0", 40.0), ("tuned", 20.0)],
)
def test_the_baseline_can_be_chosen(name, expected):
    run = run_of([
        measured(case(), 4e-3), measured(case(implementation="tuned"), 2e-3), measured(case(device="cupy:0"), 1e-4),
    ])  # fmt: skip
    rows = [row for row in analyse(run, baseline=name).speedups if row.kind == "headline"]
    assert [row.ratio for row in rows] == [pytest.approx(expected)]


def test_a_gpu_as_baseline_pays_for_its_own_regime():
    other = replace(GPU, id="wgpu:0", backend="wgpu")
    run = run_of(
        [
            measured(case(device="cupy:0"), 1e-4), measured(case(regime="transfer-always", device="cupy:0"), 8e-4),
            measured(case(regime="transfer-always", device="wgpu:0"), 4e-4),
        ],
        devices=(CPU, GPU, other),
    )  # fmt: skip
    rows = [row for row in analyse(run, baseline="cupy:0").speedups if row.kind == "headline"]
    assert [row.ratio for row in rows] == [pytest.approx(2)]


def test_a_baseline_that_was_not_measured_is_an_input_error():
    with pytest.raises(InputError) as caught:
        analyse(run_of([measured(case(), 1e-3)]), baseline="tpu:0")
    assert caught.value.exit_code == ExitCode.INPUT
    assert "library@numpy:0" in caught.value.hint


TORCH = Device(id="torch:cpu", backend="torch", kind="cpu", name="Test CPU", api="host")


def two_cpus(**options):
    """PyTorch is the faster CPU at 128, NumPy's tuned implementation at 64."""
    times = {
        "numpy:0": {64: 1e-3, 128: 4e-3}, "torch:cpu": {64: 2e-3, 128: 2e-3}, "cupy:0": {64: 1e-4, 128: 1e-4},
    }  # fmt: skip
    implementations = {"numpy:0": "tuned"}
    cases = [
        measured(case(n=n, device=device, implementation=implementations.get(device, "library")), seconds)
        for device, by_size in times.items()
        for n, seconds in by_size.items()
    ]
    return run_of(cases, devices=(CPU, TORCH, GPU), **options)


def test_the_baseline_is_the_fastest_cpu_of_each_row():
    analysis = analyse(two_cpus())
    headline = {row.case.case.params["n"]: row for row in analysis.speedups if row.kind == "headline"}
    assert {n: row.baseline.case.device_id for n, row in headline.items()} == {64: "numpy:0", 128: "torch:cpu"}
    assert [headline[n].ratio for n in (64, 128)] == pytest.approx([10.0, 20.0])
    library = {row.case.case.params["n"]: row.ratio for row in analysis.speedups if row.kind == "library"}
    assert library == pytest.approx({64: 20.0, 128: 20.0})


def test_each_cpu_is_named_with_its_implementation_blas_and_threads():
    run = two_cpus()
    mkl = Blas(library="mkl", version="2024.2")
    workers = [replace(one, blas=mkl) if one.device_id == TORCH.id else one for one in run.sessions[0].workers]
    sessions = [replace(one, workers=workers) for one in run.sessions]
    analysis = analyse(replace(run, sessions=sessions))
    numpy, torch = analysis.baseline.removeprefix("vs ").split("; ")
    assert numpy.startswith("numpy tuned, OpenBLAS")
    assert torch == "torch library, MKL 2024.2, 2 of 2 threads"


def test_a_cpu_whose_kernels_numba_compiled_says_so():
    run = two_cpus()
    outcomes = [
        replace(one, kernel="numba, 2 threads") if one.case.implementation == "tuned" else one
        for one in run.outcomes
    ]
    baseline = analyse(replace(run, outcomes=outcomes)).baseline
    assert baseline.startswith("vs numpy tuned, numba, OpenBLAS")
    lacking = RunWarning(code="cpu-not-compiled", message="the CPU is not at its best (numba is not installed)")
    assert analyse(two_cpus(warnings=[lacking])).baseline.endswith(
        "; not installed: numba, with which the CPU may be faster"
    )


def test_a_cpu_contender_that_was_left_out_is_named_beside_the_baseline():
    left_out = [
        RunWarning(
            code="unavailable", message=f"{name} was left out", data={"backend": name, "reason": "unavailable"}
        )
        for name in ("torch", "cupy")
    ]
    analysis = analyse(two_cpus(warnings=left_out))
    assert analysis.baseline.endswith("; not installed: torch, with which the CPU may be faster")
    analysis = analyse(two_cpus())
    assert "not installed" not in analysis.baseline
