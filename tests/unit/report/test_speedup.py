"""Speedups, wall against wall, over a baseline that has a name; break-evens whose right answer is known, one for each
verdict and each reason."""

import math

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.speedup import about_equal, blas_text, cpu_limit, cpu_line, cpu_threads, earliest
from gpubench.analysis.thresholds import threshold_text
from gpubench.base.errors import ExitCode, InputError
from gpubench.report.document import report_document
from gpubench.result.machine import Fact
from gpubench.result.run import Blas, Device, RunWarning
from tests.unit.report.builders import CPU, GPU, case, curve, failed, measured, run_of, skipped

ON_CPU, ON_GPU = measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)
TUNED_CPU, QUICK_GPU = measured(case(implementation="tuned"), 2e-3), measured(case(device="cupy:0"), 1e-4)
TORCH = Device(id="torch:cpu", backend="torch", kind="cpu", name="Test CPU", api="host")


def headlines(run, **words):
    return [row for row in analyse(run, **words).speedups if row.kind == "headline"]


def test_a_ratio_uses_the_sessions_that_both_sides_have():
    gpu, first = replace(ON_GPU, blocks=ON_GPU.blocks[1:2]), replace(ON_CPU, blocks=ON_CPU.blocks[:1])
    assert analyse(run_of([ON_CPU, gpu])).speedups[0].ratio == pytest.approx(2)
    assert not analyse(run_of([first, gpu])).speedups


def test_the_baseline_names_implementation_blas_and_threads():
    blas = "OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"
    assert analyse(run_of([ON_CPU, ON_GPU])).baseline == f"vs numpy library, {blas}"
    for own, other, compiler in (("numba, 2 threads", None, "numba, "), (None, "numba", "")):
        named = run_of([replace(ON_CPU, kernel=own), replace(ON_GPU, kernel=other)])
        assert cpu_line(named) == f"numpy, {compiler}{blas}"
    bare = replace(run_of([ON_CPU, ON_GPU], with_machine=False), sessions=[])
    assert analyse(bare).baseline == "vs numpy library, BLAS unknown, threads unknown"


@pytest.mark.parametrize(("name", "expected"), [
    ("library", 40.0), ("numpy:0", 20.0), ("tuned@numpy", 20.0), ("library@numpy:0", 40.0), ("tuned", 20.0),
])  # fmt: skip
def test_the_baseline_can_be_chosen(name, expected):
    run = run_of([measured(case(), 4e-3), TUNED_CPU, QUICK_GPU])
    assert [row.ratio for row in headlines(run, baseline=name)] == [pytest.approx(expected)]


def test_a_baseline_that_was_not_measured_is_an_input_error():
    with pytest.raises(InputError) as caught:
        analyse(run_of([ON_CPU]), baseline="tpu:0")
    assert (caught.value.exit_code, "library@numpy:0" in caught.value.hint) == (ExitCode.INPUT, True)


def two_cpus(**options):
    """PyTorch is the faster CPU at 128, NumPy's tuned implementation at 64."""
    times = {"numpy:0": (1e-3, 4e-3), "torch:cpu": (2e-3, 2e-3), "cupy:0": (1e-4, 1e-4)}
    codes = {"numpy:0": "tuned"}
    cases = [
        measured(case(n=n, device=device, implementation=codes.get(device, "library")), seconds)
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
    others = (Blas(library="blis"), Blas(library="Accelerate", kernel="AMX"))
    assert [*map(blas_text, others)] == ["BLIS", "Accelerate (AMX)"]


@pytest.mark.parametrize(("warnings", "said"), [
    ([RunWarning(code="cpu-not-compiled", message="the CPU is not at its best (numba is not installed)")], "numba"),
    ([RunWarning(code="unavailable", message=f"{name} was left out", data={"backend": name, "reason": "unavailable"})
      for name in ("torch", "cupy")], "torch"), ([], None),
])  # fmt: skip
def test_what_would_make_the_cpu_faster_is_named_beside_the_baseline(warnings, said):
    ending = f"; not installed: {said}, with which the CPU may be faster"
    baseline = analyse(two_cpus(warnings=warnings)).baseline
    assert baseline.endswith(ending) if said else "not installed" not in baseline


@pytest.mark.parametrize(("threads", "quota", "limit", "said"), [
    (2, None, None, "2 of 2 threads"), (1, None, "the baseline uses 1 of 2 usable CPUs", "1 of 2 threads (cpu-limited)"),
    (2, 1.5, "a quota leaves 1.5 of 2 CPUs to the baseline", "2 of 2 threads (cpu-limited)"), (2, 2.0, None, "2 of 2 threads"),
    (2, 3.0, None, "2 of 2 threads"), (None, None, None, "threads unknown"), (3, "none", None, "3 of 2 threads"),
    (1, 1.0, "the baseline uses 1 of 2 usable CPUs", "1 of 2 threads (cpu-limited)"),
])  # fmt: skip
def test_a_cpu_side_that_is_not_the_whole_machine_says_so(threads, quota, limit, said):
    run = run_of([ON_CPU, ON_GPU], threads=threads)
    usable = replace(run.machine.cpu, quota_cpus=Fact(quota, "ok", "cgroup"))
    run = replace(run, machine=replace(run.machine, cpu=usable))
    assert (cpu_limit(run), cpu_line(run)) == (limit, f"numpy, OpenBLAS 0.3.29 (Haswell), {said}")
    assert cpu_threads(run) == cpu_threads(run, "numpy:0") == threads
    assert cpu_threads(run, "cupy:0") is None


def test_the_fewest_threads_of_all_sessions_and_cpus_count():
    run = two_cpus()
    workers = [replace(one, threads=1) if one.device_id == TORCH.id else one for one in run.sessions[3].workers]
    fewer = [*run.sessions[:3], replace(run.sessions[3], workers=workers), *run.sessions[4:]]
    run = replace(run, sessions=fewer)
    assert [cpu_threads(run, name) for name in (None, CPU.id, TORCH.id)] == [1, 2, 1]
    assert cpu_limit(run) == "the baseline uses 1 of 2 usable CPUs"
    assert cpu_line(replace(run, devices=[])) == "numpy, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"


@pytest.mark.parametrize(("ratio", "lo", "hi", "state", "equal"), [
    (1.1, 1.0, 1.2, "tie", True), (1.1, math.nextafter(1, 2), 1.2, "win", True), (0.9, 0.8, 1.0, "tie", True), (0.9, 0.8, math.nextafter(1, 0), "loss", True),
    (1.15, 1.1, 1.2, "win", True), (math.nextafter(1.15, 2), 1.1, 1.2, "win", False), (1 / 1.15, 0.8, 0.9, "loss", True), (math.nextafter(1 / 1.15, 0), 0.8, 0.9, "loss", False),
    (1.0, 1 / 1.5, 1.5, "tie", True), (1.0, math.nextafter(1 / 1.5, 0), 1.5, "tie", False), (1.0, 1 / 1.5, math.nextafter(1.5, 2), "tie", False),
])  # fmt: skip
def test_a_speedup_is_a_win_a_loss_or_about_none_at_its_very_limits(ratio, lo, hi, state, equal):
    (row,) = headlines(run_of([ON_CPU, ON_GPU]))
    row = replace(row, ratio=ratio, lo=lo, hi=hi)
    assert (row.state, row.about_equal) == (state, equal)
    assert about_equal(ratio) or not equal


# ---------------------------------------------------------------- break-evens

WIDE = (0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2, 1.3)
BEATEN = measured(case(n=128, device="cupy:0"), 9e-4, factors=WIDE, discarded={"1": "throttled"})


def verdict(ratios, **kind):
    (found,) = analyse(run_of(curve(ratios, **kind))).break_even
    return found


@pytest.mark.parametrize(("ratios", "n", "mixed"), [
    ({64: 0.25, 256: 4.0, 1024: 30.0}, 128, False), ({100: 0.5, 400: 8.0}, 100 * 4 ** (1 / 4), False),  # a power of the size
    # Of several crossings the last one counts; the last curve wins at first, too.
    ({64: 0.25, 256: 4.0, 1024: 0.25, 4096: 4.0}, 2048, True), ({64: 4.0, 256: 0.25, 1024: 4.0}, 529, True),
])  # fmt: skip
def test_a_threshold_lies_where_the_curves_cross(ratios, n, mixed):
    found, sizes = verdict(ratios), sorted(ratios)
    assert (found.verdict, found.mixed) == ("at", mixed)
    assert found.n == pytest.approx(n, rel=0.03)
    assert sizes[0] < found.lo < found.n < found.hi < sizes[-1]
    assert threshold_text(found).endswith(", mixed") == mixed


@pytest.mark.parametrize(("ratios", "text"), [
    ({64: 0.25, 128: 0.98, 256: 4.0}, "129² (116-147²)"), ({64: 0.25, 256: 0.5}, "> 256²"), ({64: 2.0, 256: 4.0}, "< 64²"),
    ({64: 1.0, 256: 1.0}, "about equal"), ({64: 4.0, 256: 0.25}, "? (wins and loses by turns)"),
])  # fmt: skip
def test_the_document_says_it_as_tables_do(ratios, text):
    assert [row.text for row in report_document([analyse(run_of(curve(ratios)))]).break_even] == [text]


@pytest.mark.parametrize(("outcomes", "reason", "more"), [
    *((curve(ratios), reason, {}) for ratios, reason in (
        ({64: 0.5, 16384: 4.0}, "few-sizes"), ({64: 1.0, 256: 1.0}, "about-equal"), ({64: 0.5, 256: 1.0}, "about-equal"), ({64: 1.0, 256: 4.0}, "noise"),
        ({64: 4.0, 256: 0.25}, "loses-again"))),
    ([*curve({16: 0.8, 4096: 1.3}), failed(case(n=64, device="cupy:0"))], "failed-cases", {}),
    (curve({64: 0.8, 16384: 1.3}), "budget", {"exit_reason": "budget"}),
    *(([*curve({64: 0.8, 16384: 1.3}), skipped(case(n=512, device="cupy:0"), why)], reason, {}) for why, reason in (
        ("budget", "budget"), ("out-of-memory", "few-sizes"))),
    ([*curve({64: 0.9}), measured(case(n=128), 1e-3), BEATEN], "throttled", {}),
])  # fmt: skip
def test_undecided(outcomes, reason, more):
    (found,) = analyse(run_of(outcomes, **more)).break_even
    assert (found.verdict, found.reason) == ("undecided", reason)


def test_a_bracket_below_a_threshold_is_the_earlier_one():
    wide, late, none = map(verdict, ({64: 0.5, 16384: 4.0}, {4096: 0.5, 8192: 4.0}, {64: 0.25, 256: 0.5}))
    assert (wide.verdict, late.verdict, none.verdict) == ("undecided", "at", "no-size")
    assert earliest([none, late, wide]) is wide
    assert earliest([none, late]) is late
    assert earliest([verdict({64: 1.0, 256: 4.0}), late]) is late, "where it lies is known"
