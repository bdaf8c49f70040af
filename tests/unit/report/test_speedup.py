"""Speedups: wall against wall, fastest implementation against fastest implementation, and a baseline that has a name."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import baseline_line
from gpubench.base.errors import ExitCode, InputError
from gpubench.result.run import Blas, Device, RunWarning
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, measured, run_of

ON_CPU, ON_GPU = measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)
TUNED_CPU, QUICK_GPU = measured(case(implementation="tuned"), 2e-3), measured(case(device="cupy:0"), 1e-4)
TORCH = Device(id="torch:cpu", backend="torch", kind="cpu", name="Test CPU", api="host")


def headlines(run, **words):
    return [row for row in analyse(run, **words).speedups if row.kind == "headline"]


def test_the_headline_pairs_the_fastest_implementations():
    slower = measured(case(implementation="tuned", device="cupy:0"), 2e-4)
    run = run_of([measured(case(), 4e-3), TUNED_CPU, QUICK_GPU, slower])
    rows = {row.kind: row for row in analyse(run).speedups}
    assert rows["headline"].baseline.id == "matmul/n=1024/float32/tuned/resident@numpy:0"
    assert rows["headline"].case.id == "matmul/n=1024/float32/library/resident-queued@cupy:0"
    assert {kind: row.ratio for kind, row in rows.items()} == pytest.approx(
        {"headline": 20, "library": 40, "case": 10}
    )


@pytest.mark.parametrize("regime", ["resident", "transfer-once", "transfer-always"])
def test_the_resident_cpu_case_is_the_baseline_of_every_regime_by_wall_time(regime):
    row = analyse(run_of([ON_CPU, measured(case(regime=regime, device="cupy:0"), 1e-3, cold_s=1e-6)])).speedups[
        0
    ]
    assert (row.ratio, row.baseline.case.regime) == (pytest.approx(2), "resident")


def test_software_cases_take_no_headline_and_unstable_ones_do():
    run = run_of([ON_CPU, measured(case(device="wgpu:0"), 1e-3)], devices=(CPU, SOFTWARE))
    assert [row.headline for row in headlines(run)] == [False]
    assert not analyse(run).break_even
    wild = run_of([measured(case(), 2e-3, factors=[0.5] * 5 + [1.5] * 5), ON_GPU])
    assert [row.headline for row in headlines(wild)] == [True]


def test_a_ratio_uses_the_sessions_that_both_sides_have():
    gpu = replace(ON_GPU, blocks=ON_GPU.blocks[1:2])
    assert analyse(run_of([ON_CPU, gpu])).speedups[0].ratio == pytest.approx(2)
    assert not analyse(run_of([replace(ON_CPU, blocks=ON_CPU.blocks[:1]), gpu])).speedups


def test_the_baseline_names_implementation_blas_and_threads():
    run = run_of([ON_CPU, ON_GPU])
    said = "vs numpy library, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"
    assert baseline_line(run, analyse(run).speedups) == said
    bare = replace(run_of([ON_CPU, ON_GPU], with_machine=False), sessions=[])
    assert analyse(bare).baseline == "vs numpy library, BLAS unknown, threads unknown"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("library", 40.0), ("numpy:0", 20.0), ("tuned@numpy", 20.0), ("library@numpy:0", 40.0), ("tuned", 20.0)],
)
def test_the_baseline_can_be_chosen(name, expected):
    run = run_of([measured(case(), 4e-3), TUNED_CPU, QUICK_GPU])
    assert [row.ratio for row in headlines(run, baseline=name)] == [pytest.approx(expected)]


def test_a_gpu_as_baseline_pays_for_its_own_regime():
    always = {"cupy:0": 8e-4, "wgpu:0": 4e-4}
    rows = [measured(case(regime="transfer-always", device=device), s) for device, s in always.items()]
    run = run_of([QUICK_GPU, *rows], devices=(CPU, GPU, replace(GPU, id="wgpu:0", backend="wgpu")))
    assert [row.ratio for row in headlines(run, baseline="cupy:0")] == [pytest.approx(2)]


def test_a_baseline_that_was_not_measured_is_an_input_error():
    with pytest.raises(InputError) as caught:
        analyse(run_of([ON_CPU]), baseline="tpu:0")
    assert (caught.value.exit_code, "library@numpy:0" in caught.value.hint) == (ExitCode.INPUT, True)


def two_cpus(**options):
    """PyTorch is the faster CPU at 128, NumPy's tuned implementation at 64."""
    times = {"numpy:0": (1e-3, 4e-3), "torch:cpu": (2e-3, 2e-3), "cupy:0": (1e-4, 1e-4)}
    cases = [
        measured(
            case(n=n, device=device, implementation="tuned" if device == "numpy:0" else "library"), seconds
        )
        for device, by_size in times.items()
        for n, seconds in zip((64, 128), by_size, strict=True)
    ]
    return run_of(cases, devices=(CPU, TORCH, GPU), **options)


def test_the_baseline_is_the_fastest_cpu_of_each_row():
    rows = {(row.kind, row.case.case.params["n"]): row for row in analyse(two_cpus()).speedups}
    devices = [rows["headline", n].baseline.case.device_id for n in (64, 128)]
    assert devices == ["numpy:0", "torch:cpu"]
    ratios = [rows[kind, n].ratio for kind in ("headline", "library") for n in (64, 128)]
    assert ratios == pytest.approx([10.0, 20.0, 20.0, 20.0])


def test_each_cpu_is_named_with_its_implementation_blas_and_threads():
    run, mkl = two_cpus(), Blas(library="mkl", version="2024.2")
    workers = [replace(one, blas=mkl) if one.device_id == TORCH.id else one for one in run.sessions[0].workers]
    run = replace(run, sessions=[replace(one, workers=workers) for one in run.sessions])
    numpy, torch = analyse(run).baseline.removeprefix("vs ").split("; ")
    assert numpy.startswith("numpy tuned, OpenBLAS")
    assert torch == "torch library, MKL 2024.2, 2 of 2 threads"


@pytest.mark.parametrize(
    ("warnings", "said"),
    [
        ([RunWarning(code="cpu-not-compiled", message="the CPU is not at its best (numba is not installed)")], "numba"),
        ([RunWarning(code="unavailable", message=f"{name} was left out", data={"backend": name, "reason": "unavailable"})
          for name in ("torch", "cupy")], "torch"), ([], None),
    ],
)  # fmt: skip
def test_what_would_make_the_cpu_faster_is_named_beside_the_baseline(warnings, said):
    ending = f"; not installed: {said}, with which the CPU may be faster"
    baseline = analyse(two_cpus(warnings=warnings)).baseline
    assert baseline.endswith(ending) if said else "not installed" not in baseline
