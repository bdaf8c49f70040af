"""The CPU side has a name wherever it is held against a GPU: numba, a BLAS, PyTorch, each with its threads."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpubench import kernels
from gpubench.analysis.advice import answer as advice
from gpubench.analysis.analyse import analyse
from gpubench.analysis.contenders import Key
from gpubench.analysis.speedup import CpuCode, baseline_line, cpu_codes
from gpubench.report import analyse_runs, render
from gpubench.report.advice import render as render_advice
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.answer import answer_screen
from gpubench.report.sections.map import sides_text
from gpubench.report.wording import cpu_names
from gpubench.result.run import Blas, Device, RunWarning
from tests.unit.report.answer_runs import ALWAYS, QUEUED, SIDE, WAITED, answer_run, op_case
from tests.unit.report.builders import CPU, GPU, case, measured

TORCH = Device(id="torch:cpu", backend="torch", kind="cpu", name="Test CPU", api="host")
H200 = msgspec.structs.replace(GPU, name="NVIDIA H200")
OPENBLAS, MKL = (
    Blas(library="openblas", version="0.3.34.0.0", kernel="Haswell"),
    Blas(library="mkl", version="2024.2"),
)


def on(what, seconds, kernel=None):
    return msgspec.structs.replace(measured(what, seconds, sessions=5), kernel=kernel)


def contest(*, gpu=GPU):
    """numba computes `add` and PyTorch `relu`; of matmul OpenBLAS the small sizes and MKL the others."""
    found = []
    for n in (1024, 65536, 16777216):
        tuned = [("add", 1e-6, "numba, 2 threads"), ("relu", 2e-6, "numba, 2 threads")]
        found += [on(case(op, n, "tuned"), scale * n**0.5, kernel) for op, scale, kernel in tuned]
        found += [on(case(op, n), 3e-6 * n**0.5) for op in ("add", "relu")]
        found.append(on(case("relu", n, device="torch:cpu"), 1e-6 * n**0.5))
        for op in ("add", "relu"):
            gains = {WAITED: 1e-4, QUEUED: 1e-5, ALWAYS: 1e-5 * n**0.5}
            gpus = {regime: on(op_case(op, n, regime, "cupy:0"), seconds) for regime, seconds in gains.items()}
            found += [*gpus.values(), on(op_case(op, n, "transfer-once", "cupy:0"), 1e-5 + 1e-6 * n**0.5)]
    for n in SIDE:
        found += [on(case(n=n), 1e-6 * n), on(case(n=n, device="torch:cpu"), 3e-4 + 2e-7 * n)]
        found += [on(op_case("matmul", n, regime, "cupy:0"), 1e-4) for regime in (WAITED, QUEUED, ALWAYS)]
    run = answer_run(found, devices=(CPU, TORCH, gpu))
    blas = {"numpy:0": OPENBLAS, "torch:cpu": MKL}
    sessions = [
        msgspec.structs.replace(
            one, workers=[msgspec.structs.replace(w, blas=blas.get(w.device_id), threads=w.threads and 16) for w in one.workers]
        )
        for one in run.sessions
    ]  # fmt: skip
    return msgspec.structs.replace(run, sessions=sessions)


def sides(run, width=80):
    (analysis,) = analyse_runs([run])
    lines = [
        "".join(cell.text for cell in line) for line in answer_screen(analysis, RenderOptions(width=width))
    ]
    line = next(line for line in lines if "CPU thread" in line)
    return line, lines


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (on(case("add", implementation="tuned"), 1.0, "numba, 1 thread"), CpuCode("numpy", "numba")),
        (on(case("add", implementation="tuned"), 1.0, "NumPy in blocks"), CpuCode("numpy", "")),
        (on(case("add"), 1.0), CpuCode("numpy", "")),
        (on(case("mine.pca"), 1.0, "sklearn"), CpuCode("numpy", "sklearn", own=True)),
        (on(case(), 1.0), CpuCode("numpy", "OpenBLAS 0.3.34.0.0 (Haswell)")),
        (on(case(dtype="int32"), 1.0), CpuCode("numpy", "")),
        (on(case(dtype="float16"), 1.0), CpuCode("numpy", "")),
        (
            on(case(dtype="float16", implementation="tuned"), 1.0),
            CpuCode("numpy", "OpenBLAS 0.3.34.0.0 (Haswell)"),
        ),
        (on(case(device="torch:cpu"), 1.0), CpuCode("torch", "MKL 2024.2")),
        (on(case("add", device="torch:cpu"), 1.0), CpuCode("torch", "")),
        (on(case("conv2d"), 1.0), CpuCode("numpy", "OpenBLAS 0.3.34.0.0 (Haswell)")),
        (on(case("conv2d", device="torch:cpu"), 1.0), CpuCode("torch", "")),
    ],
)
def test_a_case_says_what_computes_it(row, code):
    run = contest()
    (found,) = [one for one in analyse(msgspec.structs.replace(run, outcomes=[row])).cases if one.time]
    assert cpu_codes(run, [found]) == (code,)


def test_what_a_gpu_computes_is_none_of_it():
    (row,) = analyse(answer_run([on(case(device="cupy:0"), 1.0)])).cases
    assert cpu_codes(contest(), [row]) == ()


@pytest.mark.parametrize(("blas", "library"), [(True, "OpenBLAS 0.3.34.0.0 (Haswell)"), (False, "")])
def test_the_file_says_of_an_op_that_nobody_knows_whether_the_blas_computes_it(blas, library):
    row = msgspec.structs.replace(on(case("an-op-of-a-package"), 1.0), blas=blas)
    run = contest()
    (found,) = analyse(msgspec.structs.replace(run, outcomes=[row])).cases
    assert cpu_codes(run, [found]) == (CpuCode("numpy", library),)


def test_a_workload_is_of_the_blas_if_one_of_its_stages_is():
    for op in map(kernels.load, kernels.names()):
        if op.stages:
            assert {*op.blas} == {name for stage in op.stages for name in kernels.load(stage.op).blas}


@pytest.mark.parametrize(
    ("codes", "long", "short"),
    [
        ((("numpy", "numba"), ("numpy", "")), "numba, NumPy", "numba, NumPy"),
        ((("numpy", ""), ("numpy", "OpenBLAS 0.3.34.0.0 (Haswell)")), "NumPy, OpenBLAS", "OpenBLAS"),
        ((("torch", ""), ("numpy", "numba")), "PyTorch, numba", "PyTorch, numba"),
        ((("torch", "MKL 2024.2"), ("torch", "")), "PyTorch with MKL", "PyTorch/MKL"),
    ],
)
def test_codes_have_names(codes, long, short):
    found = [CpuCode(*code) for code in codes]
    assert (", ".join(cpu_names(found)), ", ".join(cpu_names(found, short=True))) == (long, short)


def test_the_screen_names_what_the_gpu_is_held_against():
    line, lines = sides(contest(), 120)
    assert line == "Test GPU (CuPy) against 16 CPU threads (numba, OpenBLAS, PyTorch with MKL), float32."
    assert any(text.endswith("5 sessions, 55 s.") for text in lines)


@pytest.mark.parametrize("width", range(60, 125))
def test_one_line_says_it_in_any_width(width):
    line, lines = sides(contest(gpu=H200), width)
    assert max(map(len, lines)) <= width
    assert line.startswith("NVIDIA H200 (CuPy) ")
    assert " 55 s." in " ".join(map(str.strip, lines))


def test_without_numba_each_place_names_the_weaker_implementation():
    run = contest()
    lacking = RunWarning(code="cpu-not-compiled", message="the CPU is not at its best")
    outcomes = [msgspec.structs.replace(one, kernel=None) for one in run.outcomes]
    run = msgspec.structs.replace(run, outcomes=outcomes, warnings=[lacking])
    line, _ = sides(run, 120)
    assert "(NumPy without numba, OpenBLAS, " in line
    for section, said in (
        ("amortization", "NumPy without numba"), ("breakeven", "NumPy without numba"),
        ("speedup", "the CPU may not be at its best"),
    ):  # fmt: skip
        assert said in " ".join(render([run], "plain", sections=(section,)).split()), section
    found = advice([run], Key("add", "float32"), 65536, WAITED)
    assert "CPU: NumPy without numba (numpy:0, 16 threads)." in " ".join(render_advice(found, "table").split())


def test_the_picture_of_the_map_names_it_with_versions():
    (analysis,) = analyse_runs([contest()])
    assert sides_text(analysis, ["cupy:0"]) == (
        "Test GPU (CuPy) against 16 CPU threads (numba, OpenBLAS 0.3.34, PyTorch with MKL 2024.2)"
    )


def test_the_table_of_the_cpu_tells_its_devices_apart_whatever_an_op_is_called():
    name, devices = "options.a_rather_long_name", ("numpy:0", "torch:cpu")
    run = answer_run([on(case(name, device=device), 1e-3) for device in devices], devices=(CPU, TORCH))
    table = render([run], "plain").partition("library and tuned implementation")[2].partition("\n\n")[0]
    assert all(device in table for device in devices)


def test_the_break_even_table_says_of_each_op_what_computed_it():
    text = " ".join(render([contest()], "plain", sections=("breakeven",)).split())
    assert "CPU, the fastest at each size: numba; matmul: OpenBLAS or PyTorch/MKL; relu: PyTorch " in text


def test_where_all_rows_have_one_cpu_the_line_above_says_it():
    run = contest()
    alone = msgspec.structs.replace(run, outcomes=[one for one in run.outcomes if one.case.op == "add"])
    for format in ("plain", "markdown"):
        text = render([alone], format, sections=("breakeven",))
        assert "fastest at each size" not in text
        assert "| CPU |" not in text
        assert "vs numpy tuned, numba, OpenBLAS" in text


@pytest.mark.parametrize("format", ["plain", "markdown"])
def test_the_table_of_copies_names_it(format):
    names = re.escape("vs 16 CPU threads: ")
    assert re.search(
        f"{names}(numba, PyTorch|PyTorch, numba)$",
        render([contest()], format, sections=("amortization",)),
        re.M,
    )


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        ("library", "vs numpy library, OpenBLAS"),
        ("tuned", "vs numpy tuned, numba, OpenBLAS"),
        ("library@numpy:0", "vs numpy library, OpenBLAS"),
    ],
)
def test_the_library_implementation_is_not_what_numba_compiled(baseline, said):
    assert analyse(contest(), baseline=baseline).baseline.startswith(said)


def test_library_calls_alone_do_not_name_numba():
    run = contest()
    ratios = {op: [row for row in analyse(run).speedups if row.case.case.op == op] for op in ("matmul", "add")}
    assert baseline_line(run, ratios["matmul"]).startswith("vs numpy library, OpenBLAS")
    assert "numba, OpenBLAS" in baseline_line(run, ratios["add"])


@pytest.mark.parametrize(
    ("op", "n", "said"),
    [
        ("add", 65536, "CPU: numba (numpy:0, 16 threads)."),
        ("relu", 65536, "CPU: PyTorch (torch:cpu, 16 threads), numba (numpy:0, 16 threads)."),
        ("matmul", 1500, "CPU: PyTorch with MKL (torch:cpu, 16 threads), OpenBLAS (numpy:0, 16 threads)."),
        ("matmul", 32, "CPU: OpenBLAS (numpy:0, 16 threads), PyTorch with MKL (torch:cpu, 16 threads)."),
    ],
)
def test_advice_names_it(op, n, said):
    found = advice([contest()], Key(op, "float32"), n, WAITED)
    assert said in " ".join(render_advice(found, "table").split())


def test_advice_without_a_time_of_a_cpu_names_none():
    found = advice([contest()], Key("add", "float32"), 2**26, WAITED)
    assert "CPU: " not in render_advice(found, "table")
