"""The CPU side has a name wherever it is held against a GPU: numba, a BLAS, PyTorch, each with its threads."""

import functools

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.analysis.advice import answer as advice
from gpubench.analysis.analyse import analyse
from gpubench.analysis.contenders import Key
from gpubench.analysis.speedup import CpuCode, cpu_codes
from gpubench.report import analyse_runs
from gpubench.report.advice import render as render_advice
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.answer import answer_screen
from tests.unit.report.answer_runs import WAITED
from tests.unit.report.builders import GPU, case
from tests.unit.report.parts import CONTEST, OPENBLAS_TEXT, contest, on, without_numba


@functools.cache
def analysed(name="Test GPU"):
    return analyse_runs([CONTEST if name == "Test GPU" else contest(gpu=replace(GPU, name=name))])


def sides(analyses, width=80):
    drawn = answer_screen(analyses[0], RenderOptions(width=width))
    lines = ["".join(cell.text for cell in line) for line in drawn]
    return next(line for line in lines if "CPU thread" in line), lines


@pytest.mark.parametrize(("row", "code"), [
    (on(case("add", implementation="tuned"), 1.0, "numba, 1 thread"), CpuCode("numpy", "numba")),
    (on(case("add", implementation="tuned"), 1.0, "NumPy in blocks"), CpuCode("numpy", "")), (on(case("add"), 1.0), CpuCode("numpy", "")),
    (on(case("mine.pca"), 1.0, "sklearn"), CpuCode("numpy", "sklearn", own=True)), (on(case(), 1.0), CpuCode("numpy", OPENBLAS_TEXT)),
    (on(case(dtype="int32"), 1.0), CpuCode("numpy", "")), (on(case(dtype="float16"), 1.0), CpuCode("numpy", "")),
    (on(case(dtype="float16", implementation="tuned"), 1.0), CpuCode("numpy", OPENBLAS_TEXT)),
    (on(case(device="torch:cpu"), 1.0), CpuCode("torch", "MKL 2024.2")), (on(case("add", device="torch:cpu"), 1.0), CpuCode("torch", "")),
    (on(case("conv2d"), 1.0), CpuCode("numpy", OPENBLAS_TEXT)), (on(case("conv2d", device="torch:cpu"), 1.0), CpuCode("torch", "")),
    # Of an op that nobody knows the file says whether the BLAS computes it.
    (replace(on(case("an-op-of-a-package"), 1.0), blas=True), CpuCode("numpy", OPENBLAS_TEXT)),
    (replace(on(case("an-op-of-a-package"), 1.0), blas=False), CpuCode("numpy", "")), (on(case(device="cupy:0"), 1.0), None),
])  # fmt: skip
def test_a_case_says_what_computes_it(row, code):
    (found,) = analyse(replace(CONTEST, outcomes=[row])).cases
    assert cpu_codes(CONTEST, [found]) == ((code,) if code else ())


def test_a_workload_is_of_the_blas_if_one_of_its_stages_is():
    for op in map(kernels.load, kernels.names()):
        if op.stages:
            assert {*op.blas} == {name for stage in op.stages for name in kernels.load(stage.op).blas}


def test_the_screen_names_what_the_gpu_is_held_against_in_one_line_of_any_width():
    line, _ = sides(analysed(), 120)
    assert line == "Test GPU (CuPy) against 16 CPU threads (numba, OpenBLAS, PyTorch with MKL), float32."
    for width in range(60, 125):
        line, lines = sides(analysed("NVIDIA H200"), width)
        assert max(map(len, lines)) <= width
        assert line.startswith("NVIDIA H200 (CuPy) ")
        assert " 55 s." in " ".join(map(str.strip, lines))


@pytest.mark.parametrize(
    ("baseline", "said"),
    [("library", "library, OpenBLAS"), ("tuned", "tuned, numba, OpenBLAS"), ("library@numpy:0", "library, OpenBLAS")],
)  # fmt: skip
def test_the_library_implementation_is_not_what_numba_compiled(baseline, said):
    assert analyse(CONTEST, baseline=baseline).baseline.startswith(f"vs numpy {said}")


@pytest.mark.parametrize(("op", "n", "said"), [
    ("add", 65536, "CPU: numba (numpy:0, 16 threads)."),
    ("relu", 65536, "CPU: PyTorch (torch:cpu, 16 threads), numba (numpy:0, 16 threads)."),
    ("matmul", 1500, "CPU: PyTorch with MKL (torch:cpu, 16 threads), OpenBLAS (numpy:0, 16 threads)."),
    ("matmul", 32, "CPU: OpenBLAS (numpy:0, 16 threads), PyTorch with MKL (torch:cpu, 16 threads)."),
    ("add", 2**26, None),
])  # fmt: skip
def test_advice_names_it_where_it_has_a_time_of_a_cpu(op, n, said):
    text = " ".join(render_advice(advice([CONTEST], Key(op, "float32"), n, WAITED), "table").split())
    assert text.startswith(f"{op} float32, n = {n}, data on the device, waited: ")
    assert said in text if said else "CPU: " not in text


def test_advice_says_that_numba_is_absent():
    text = render_advice(advice([without_numba()], Key("add", "float32"), 65536, WAITED), "table")
    assert "CPU: NumPy without numba (numpy:0, 16 threads)." in " ".join(text.split())
