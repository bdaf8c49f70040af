"""Speedups: wall against wall, fastest implementation against fastest implementation, and a baseline that has a name."""

import math

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import about_equal, baseline_line, blas_text, cpu_limit, cpu_line, cpu_threads
from gpubench.base.errors import ExitCode, InputError
from gpubench.result.machine import Fact
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
    for own, other, compiler in (("numba, 2 threads", None, "numba, "), (None, "numba", "")):
        named = run_of([replace(ON_CPU, kernel=own), replace(ON_GPU, kernel=other)])
        assert cpu_line(named) == f"numpy, {compiler}OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"
    bare = replace(run_of([ON_CPU, ON_GPU], with_machine=False), sessions=[])
    assert analyse(bare).baseline == "vs numpy library, BLAS unknown, threads unknown"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("library", 40.0), ("numpy:0", 20.0), ("tuned@numpy", 20.0), ("library@numpy:0", 40.0), ("tuned", 20.0)],
)
def test_the_baseline_can_be_chosen(name, expected):
    run = run_of([measured(case(), 4e-3), TUNED_CPU, QUICK_GPU])
    assert [row.ratio for row in headlines(run, baseline=name)] == [pytest.approx(expected)]


def test_a_baseline_that_was_not_measured_is_an_input_error():
    with pytest.raises(InputError) as caught:
        analyse(run_of([ON_CPU]), baseline="tpu:0")
    assert (caught.value.exit_code, "library@numpy:0" in caught.value.hint) == (ExitCode.INPUT, True)


def test_a_gpu_as_baseline_pays_for_its_own_regime():
    always = {"cupy:0": 8e-4, "wgpu:0": 4e-4}
    rows = [measured(case(regime="transfer-always", device=device), s) for device, s in always.items()]
    run = run_of([QUICK_GPU, *rows], devices=(CPU, GPU, replace(GPU, id="wgpu:0", backend="wgpu")))
    assert [row.ratio for row in headlines(run, baseline="cupy:0")] == [pytest.approx(2)]


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


def test_each_cpu_is_named_with_its_implementation_blas_and_threads():
    run, mkl = two_cpus(), Blas(library="mkl", version="2024.2")
    rows = {row.n: row for row in headlines(run)}
    assert [rows[n].baseline.case.device_id for n in (64, 128)] == [CPU.id, TORCH.id]
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


@pytest.mark.parametrize(
    ("threads", "quota", "limit", "said"),
    [
        (2, None, None, "2 of 2 threads"), (1, None, "the baseline uses 1 of 2 usable CPUs", "1 of 2 threads (cpu-limited)"),
        (2, 1.5, "a quota leaves 1.5 of 2 CPUs to the baseline", "2 of 2 threads (cpu-limited)"), (2, 2.0, None, "2 of 2 threads"),
        (2, 3.0, None, "2 of 2 threads"), (None, None, None, "threads unknown"), (3, "none", None, "3 of 2 threads"),
        (1, 1.0, "the baseline uses 1 of 2 usable CPUs", "1 of 2 threads (cpu-limited)"),
    ],
)  # fmt: skip
def test_a_cpu_side_that_is_not_the_whole_machine_says_so(threads, quota, limit, said):
    run = run_of([ON_CPU, ON_GPU], threads=threads)
    cpu = replace(run.machine.cpu, quota_cpus=Fact(quota, "ok", "cgroup"))
    run = replace(run, machine=replace(run.machine, cpu=cpu))
    assert (cpu_limit(run), cpu_line(run)) == (limit, f"numpy, OpenBLAS 0.3.29 (Haswell), {said}")
    assert cpu_threads(run) == cpu_threads(run, "numpy:0") == threads
    assert cpu_threads(run, "cupy:0") is None


def test_the_fewest_threads_of_all_sessions_and_cpus_count():
    run = two_cpus()
    workers = [replace(one, threads=1) if one.device_id == TORCH.id else one for one in run.sessions[3].workers]
    run = replace(
        run, sessions=[*run.sessions[:3], replace(run.sessions[3], workers=workers), *run.sessions[4:]]
    )
    assert [cpu_threads(run, name) for name in (None, CPU.id, TORCH.id)] == [1, 2, 1]
    assert cpu_limit(run) == "the baseline uses 1 of 2 usable CPUs"
    assert cpu_line(replace(run, devices=[])) == "numpy, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"


@pytest.mark.parametrize(
    ("blas", "said"),
    [
        (None, "BLAS unknown"), (Blas(library="MKL", version="2024.2"), "MKL 2024.2"), (Blas(library="blis"), "BLIS"),
        (Blas(library="Accelerate", kernel="AMX"), "Accelerate (AMX)"),
    ],
)  # fmt: skip
def test_a_blas_has_a_name_and_what_is_known_of_it(blas, said):
    assert blas_text(blas) == said


@pytest.mark.parametrize(
    ("ratio", "lo", "hi", "state", "equal"),
    [
        (1.1, 1.0, 1.2, "tie", True), (1.1, math.nextafter(1, 2), 1.2, "win", True), (0.9, 0.8, 1.0, "tie", True), (0.9, 0.8, math.nextafter(1, 0), "loss", True),
        (1.15, 1.1, 1.2, "win", True), (math.nextafter(1.15, 2), 1.1, 1.2, "win", False), (1 / 1.15, 0.8, 0.9, "loss", True), (math.nextafter(1 / 1.15, 0), 0.8, 0.9, "loss", False),
        (1.0, 1 / 1.5, 1.5, "tie", True), (1.0, math.nextafter(1 / 1.5, 0), 1.5, "tie", False), (1.0, 1 / 1.5, math.nextafter(1.5, 2), "tie", False),
    ],
)  # fmt: skip
def test_a_speedup_is_a_win_a_loss_or_about_none_at_its_very_limits(ratio, lo, hi, state, equal):
    (row,) = headlines(run_of([ON_CPU, ON_GPU]))
    row = replace(row, ratio=ratio, lo=lo, hi=hi)
    assert (row.state, row.about_equal) == (state, equal)
    assert about_equal(ratio) or not equal
