"""The final screen: it stays on one screen, fills while a run goes on, and names the CPU's code."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from gpubench import kernels
from gpubench.analysis import analyse as analysing
from gpubench.analysis.advice import answer as advice
from gpubench.analysis.analyse import analyse
from gpubench.analysis.answer import answer
from gpubench.analysis.contenders import Key
from gpubench.analysis.findings import findings
from gpubench.analysis.policy import Policy
from gpubench.analysis.speedup import CpuCode, cpu_codes
from gpubench.analysis.thresholds import find_threshold, range_text, size_text
from gpubench.cli.delivery import report_command
from gpubench.report import analyse_runs, render
from gpubench.report.advice import render as render_advice
from gpubench.report.contents import AnswerSoFar
from gpubench.report.layout import RenderOptions, visible
from gpubench.report.sections.answer import Screen, answer_screen, answer_sentences, screen_lines
from gpubench.report.sections.answer_text import asked_size_text, factor_text, rough_size_text
from gpubench.result import store
from gpubench.result.run import RunWarning, Selection, Settings
from tests.examples import examples
from tests.unit.report.answer_runs import (
    ALWAYS,
    BOTH,
    ENDS,
    HOST,
    SUITE,
    WAITED,
    WEBGPU,
    WRITTEN,
    answer_run,
    function_run,
    interrupted_answer,
    named_run,
    no_gpu_run,
    one_op_run,
    op_case,
    op_rows,
    seconds,
    suite_run,
)
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, curve, failed, measured, run_of, skipped
from tests.unit.report.parts import CONTEST, OPENBLAS_TEXT, contest, on, without_numba
from tests.unit.report.samples import analysed, drawn


def drawn_lines(analysis, saved=(), **look):
    """The final screen of one run as text."""
    return [
        "".join(cell.text for cell in line)
        for line in answer_screen(analysis, RenderOptions(**look), saved=saved)
    ]


@pytest.mark.parametrize(("of", "text"), [
    *((lambda n=n: size_text(n, "elements"), text) for n, text in {
        512: "512", 1024: "1 K", 1536: "1.5 K", 16384: "16 K", 154_000: "150 K", 999_700: "1 M", 900_000: "879 K", 1_048_576: "1 M",
        4_400_000: "4.2 M", 16_777_216: "16 M", 2**30: "1 G"}.items()),
    *((lambda n=n: rough_size_text(n), text) for n, text in {700_000: "0.7 M", 60_000: "60 K", 1500: "1 K", 300: "300", 2**21: "2 M"}.items()),
    *((lambda ends=ends: range_text(*ends, "elements"), text) for ends, text in {
        (16384, 46000): "16-45 K", (131072, 1048576): "128 K-1 M", (1024, 1025): "1 K", (600, 900): "600-900"}.items()),
    *((lambda x=x: factor_text(x), text) for x, text in {14.4: "14x", 2.13: "2.1x", 7.0: "7.0x", 0.0: "0x", 9.96: "10x", 127.0: "130x"}.items()),
    (lambda: size_text(182, "side"), "182²"), (lambda: visible(size_text(182, "side"), ascii_only=True), "182^2"),
    (lambda: range_text(128, 512, "side"), "128-512²"), (lambda: size_text(182, "plain"), "182"), (lambda: size_text(20_195, "plain"), "20 K"),
    (lambda: size_text(9999, "plain"), "9999"), (lambda: size_text(10_000, "plain"), "9.8 K"), (lambda: range_text(464, 9999, "plain"), "464-9999"),
    (lambda: range_text(464, 20_195, "plain"), "464-20 K"), (lambda: asked_size_text(10_000, "plain"), "10,000"),
    *((lambda n=n: asked_size_text(n, "elements"), text) for n, text in {1126: "1.1 K", 600_000: "600,000", 2**24: "16 M", 2**31: "2 G"}.items()),
])  # fmt: skip
def test_sizes_and_factors_as_text(of, text):
    assert of() == text


def test_a_filter_leaves_out_what_was_not_reached_and_denies_no_gpu():
    both = answer_run(BOTH)
    assert "in time" not in render([both], "plain", keep=lambda case: case.op == "add")
    found = analyse(run_of(curve({64: 0.25, 256: 4.0})), keep=lambda case: case.device_id == "numpy:0")
    plain = "No faster code than plain NumPy was measured."
    assert answer_sentences(found) == (f"No case of a GPU is among those shown. {plain}",)


def test_the_largest_size_of_a_function_is_shown_however_small_it_is():
    sizes = {1024: (1e-6, 2e-6), 2**19: (6e-4, 6e-4), 2**21: (5e-3, 1e-3)}
    timed = [
        on(case("my.f", n, kind), s)
        for n, both in sizes.items()
        for kind, s in zip(("library", "tuned"), both, strict=True)
    ]
    run = run_of(timed, devices=[CPU])
    assert "my.f: up to 5.0x" in answer_sentences(analyse(run))[0]
    places = [
        [item.place for item in answer(analyse(r)).implementations]
        for r in (run, run_of(timed[:4], devices=[CPU]))
    ]
    assert places == [[0, 1, 2], [0, 1]]  # a size has one column


def test_a_run_says_where_its_file_is_and_commands_name_it_where_they_would_not_find_it():
    (analysis,) = analysed(suite_run)
    long, kept = f"{'x' * 90}.json", str(store.default_results_dir() / "machine" / "run.json")
    page = "--full   page: -o r.html"
    for path, last in (("a b.json", f" 'a b.json' {page}"), (kept, f" {page}"), (long, f" {long} --full")):
        lines = drawn_lines(analysis, [path], command=report_command(path, store.default_results_dir()))
        assert (f"saved {path}" in lines, lines[-1]) == (True, f"all: gpubench report{last}")


# ---------------------------------------------------------------- it stays on one screen
SHAPES = st.sampled_from("win lose open cross mixed again equal wrong failed skip huge bracket".split())


def shaped(op, shape, regime):
    """A curve of this kind, or what stands in its place."""
    ladder = (32, 1024, 4096) if op == "matmul" else ENDS
    low, mid, top = ladder
    curves = {
        "win": dict.fromkeys(ladder, 9.0), "lose": dict.fromkeys(ladder, 0.2), "open": {low: 0.1, mid: 0.2},
        "cross": {low: 0.1, mid: 0.5, mid * 2: 3.0, top: 4.0}, "mixed": {low: 0.1, mid: 3.0, mid + 9: 0.3, mid * 2: 3.0, top: 4.0},
        "again": {low: 0.2, mid: 3.0, top: 0.3}, "equal": {low: 9.0, mid: 3.0, top: 1.0},
        "huge": {low: 0.1, mid: 0.5, mid * 2 + 7: 9999.0}, "bracket": {low: 0.1, top: 9.0},
    }  # fmt: skip
    if shape in curves:
        return op_rows(op, {regime: curves[shape]})
    what = op_case(op, low, regime, "cupy:0")
    late = failed(what, "timeout", "no answer " * 20)
    instead = {"wrong": failed(what), "failed": late, "skip": skipped(what)}
    return [measured(op_case(op, low), 1e-3, sessions=5), instead[shape]]


@settings(max_examples=examples(8), deadline=None)
@given(
    st.lists(st.tuples(SHAPES, SHAPES), min_size=14, max_size=14), st.booleans(), st.booleans(),
    st.sampled_from(["", "results/intel-r-xeon-r-processor-nvidia-h200-d0f62e/20260101T000000Z-00000001.json"]),
)  # fmt: skip
@pytest.mark.slow
def test_fourteen_ops_fit_one_screen(shapes, interrupted, ascii_only, saved):
    found = {}
    for op, pair in zip(SUITE, shapes, strict=True):
        for shape, regime in zip(pair, (WAITED, ALWAYS), strict=True):
            found |= {row.id: row for row in shaped(op, shape, regime)}
    run = interrupted_answer(*found.values()) if interrupted else answer_run(list(found.values()))
    (analysis,) = analyse_runs([run])
    command = report_command(saved or None)
    texts = drawn_lines(analysis, [saved] if saved else [], ascii_only=ascii_only, command=command)
    # Gains of 10000x at other sizes beside thresholds that are mixed: a table for each situation, else too wide.
    assert len(texts) <= 24 + 16 * (sum("pays from" in text for text in texts) - 1)
    # The name of a file is of no use without its end.
    assert max(cell_len(text) for text in texts if not saved or saved not in text) <= 80
    assert "\n".join(texts).isascii() or not ascii_only
    for row in answer(analysis).rows:
        top = 4096 if row.op == "matmul" else 16777216
        assert all(cell.gain.n >= top for cell in row.cells.values() if cell.kind in ("all-sizes", "no-size"))


def test_a_head_that_takes_all_lines_leaves_no_note_and_no_error():
    head = tuple(f"line {i}" for i in range(12))
    words = {"sentences": (("The GPU wins.",),), "notes": ((5, "a note"),), "troubles": (), "files": ()}
    assert len(screen_lines(Screen(context=head, table=None, most=10, **words), 60)) == 1 + len(head)


@pytest.mark.parametrize(("foreign", "steal", "line"), [
    ((0.42, 0.42), (0.0, 0.0), "CPU times are too long: other programs took 42 % of the CPU."), ((0.42, 0.05), (0.0, 0.0), ""),
    ((0.0, 0.01), (0.07, 0.2), "CPU times are too long: the hypervisor took 7 % of the CPU."), ((None,) * 2, (None,) * 2, ""),
])  # fmt: skip
def test_a_run_whose_sessions_all_lost_cpu_time_says_so(foreign, steal, line):
    run = answer_run(op_rows("add", {WAITED: {1024: 0.5, 4096: 2.0}}))
    base = run.sessions[0]
    sessions = [
        replace(base, index=i, superseded=i == 2, foreign_cpu_share=part, steal_share=stolen)
        for i, (part, stolen) in enumerate(zip((*foreign, 0.0), (*steal, 0.0), strict=True))
    ]
    drawn = drawn_lines(analyse(replace(run, sessions=sessions)))
    assert [text for text in drawn if "too long" in text] == ([line] if line else [])
    assert ("Noisy: run it again" in " ".join(drawn)) == bool(line), "the first sentence says so, too"
    untimed = replace(run, sessions=sessions, outcomes=[skipped(row.case) for row in run.outcomes])
    assert not [text for text in drawn_lines(analyse(untimed)) if "too long" in text or "Noisy" in text]


def test_backends_are_ranked_at_the_largest_size_that_the_most_of_them_have():
    """wgpu:0 is the faster one at 256, and alone at 16384."""
    rows = op_rows("add", {WAITED: {256: 2.0, 1024: 8.0, 4096: 1.0}})
    rows += op_rows("add", {WAITED: {256: 8.0, 1024: 2.0, 16384: 9.0}}, device="wgpu:0", cpu=False)
    rows.append(measured(op_case("add", 16384), 1e-3, sessions=5))
    found = answer(analyse(answer_run(rows, devices=(CPU, GPU, WEBGPU))))
    assert (found.devices, found.others) == (("cupy:0",), ("wgpu",))
    near = {"add": {"cupy:0": 8.0, "wgpu:0": 7.4}, "mul": {"cupy:0": 4.5, "wgpu:0": 5.0}}
    rows = [row for op, each in near.items() for device, ratio in each.items()
            for row in op_rows(op, {WAITED: {1024: ratio}}, device=device, cpu=device == GPU.id)]  # fmt: skip
    found = answer(analyse(answer_run(rows, devices=(CPU, GPU, WEBGPU))))
    assert found.devices == ("wgpu:0",), "whoever is within a tenth of the best is as good"


# ---------------------------------------------------------------- the answer of a run that goes on
def after(run, count):
    """The run when so many of its outcomes are known."""
    return replace(run, outcomes=run.outcomes[:count], complete=False, finished_at=None)


def lines(run, width=80):
    return AnswerSoFar(RenderOptions()).lines(run, width)


def test_every_op_has_its_row_from_the_first_cell_on():
    run = suite_run()
    run = replace(run, selection=Selection(ops=list(SUITE)))
    assert lines(after(run, 0)) == []
    early = lines(after(run, 60))
    assert [line.split()[0] for line in early[3:]] == sorted(SUITE)
    known = (60, 200, len(run.outcomes))
    pending = [sum(" ..." in line for line in lines(after(run, count))) for count in known]
    assert pending[0] > pending[1] > pending[2] == 0
    # Overheads and ops that stay on the host wait for no row.
    run = answer_run([*BOTH, measured(op_case("gelu", 1000), 2e-3), *HOST])
    run = replace(run, selection=Selection(ops=["add", "copy", "gelu", "launch", "mul"]))
    assert [line.split()[0] for line in lines(run)[3:]] == ["add", "copy", "mul"]


def test_the_whole_table_is_that_of_the_final_screen():
    run = suite_run()
    final = AnswerSoFar(RenderOptions()).lines(run, 80)
    # The screen knows the relatives of an op, and so is surer or less sure.
    screen = drawn(suite_run, sections=("answer",))
    assert {line.replace("~", " ") for line in final} <= set(screen.replace("~", " ").splitlines())


def test_only_ops_with_new_outcomes_are_derived_anew(monkeypatch):
    derived, real = [], analysing.case_results
    monkeypatch.setattr(analysing, "case_results", lambda run: derived.append(run) or real(run))
    run, shown = suite_run(), AnswerSoFar(RenderOptions())
    shown.lines(after(run, len(run.outcomes) - 1), 80)
    assert len(derived) == len(SUITE)
    shown.lines(run, 80)
    (last,) = derived[len(SUITE) :]
    assert {outcome.case.op for outcome in last.outcomes} == {run.outcomes[-1].case.op}


@pytest.mark.parametrize("run", [one_op_run(), named_run(), no_gpu_run()])
@pytest.mark.parametrize("width", [40, 80])
def test_no_state_of_any_run_breaks_the_table(run, width):
    for count in range(0, len(run.outcomes) + 1, 5):
        assert all(len(line) <= width for line in lines(after(run, count), width))


# ---------------------------------------------------------------- warnings about a run
WILD = [0.5] * 5 + [1.5] * 5


@pytest.mark.parametrize(("op", "sizes"), [("relu", [2**13, 2**20, 2**24]), ("matmul", [64, 1024, 4096])])
def test_implementations_are_shown_at_three_sizes(op, sizes):
    run = run_of([measured(case(op, 2**i), 1e-3) for i in range(5, 26)])
    assert [shown.n for shown in answer(analyse(run)).implementations] == sizes


def test_a_section_that_a_run_has_nothing_for_says_so():
    run = run_of([measured(case(), 1e-3)], devices=(CPU,), with_machine=False)
    alone = render([run], "plain", sections=["hybrid"])
    assert ("This run has nothing for --sections hybrid." in alone, "Run: " in alone) == (True, True)
    both = render([run, replace(run, id="other")], "markdown", sections=["map", "hybrid"])
    assert ("These runs have nothing for --sections map,hybrid." in both, "Run: " in both) == (True, False)


def with_sizes(run):
    return replace(run, selection=replace(run.selection, sizes={"matmul": [64]}))


def test_every_derived_warning_gives_advice_and_names_no_option_that_was_given():
    stored = [RunWarning(code="unstable", severity="info", message="m", id=case().id), RunWarning(code="software-device", message="m")]  # fmt: skip
    rows = [measured(what, 1e-3, sessions=1, factors=WILD) for what in (case(), case(n=64))]
    rows.append(measured(case(device="wgpu:0"), 1e-6, repeat=1, sessions=1))
    more = {"settings": Settings(inputs="zeros"), "devices": (CPU, SOFTWARE), "warnings": stored}
    found = findings(analyse(with_sizes(run_of(rows, threads=1, **more))))
    told = [(finding.code, finding.severity, len(finding.ids)) for finding in found if finding.hint]
    assert told == [
        *((code, "warning", 0) for code in ("cpu-limited", "inputs-not-random", "software-device")),
        ("too-short", "warning", 1), ("unstable", "warning", 1), ("few-sessions", "info", 0), ("unstable", "info", 1),
    ]  # fmt: skip
    rigorous = Settings(preset="rigorous")
    run = run_of([measured(case(), 1e-3, factors=WILD, sessions=10)], sessions=10, settings=rigorous)
    assert not [finding for finding in findings(analyse(run)) if "--rigorous" in finding.hint]


# ---------------------------------------------------------------- the CPU side has a name
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
    (analysis,) = analyse_runs([contest(gpu=replace(GPU, name="NVIDIA H200"))])
    for width in range(60, 125):
        lines = drawn_lines(analysis, width=width)
        assert max(map(len, lines)) <= width
        assert next(line for line in lines if "CPU thread" in line).startswith("NVIDIA H200 (CuPy) ")
        assert " 55 s." in " ".join(map(str.strip, lines))


@pytest.mark.parametrize(("baseline", "said"), [
    ("library", "library, OpenBLAS"), ("tuned", "tuned, numba, OpenBLAS"), ("library@numpy:0", "library, OpenBLAS"),
])  # fmt: skip
def test_the_library_implementation_is_not_what_numba_compiled(baseline, said):
    assert analyse(CONTEST, baseline=baseline).baseline.startswith(f"vs numpy {said}")


@pytest.mark.parametrize(("run", "op", "n", "said"), [
    (CONTEST, "add", 65536, "CPU: numba (numpy:0, 16 threads)."), (without_numba(), "add", 65536, "CPU: NumPy without numba (numpy:0, 16 threads)."),
    (CONTEST, "relu", 65536, "CPU: PyTorch (torch:cpu, 16 threads), numba (numpy:0, 16 threads)."),
    (CONTEST, "matmul", 1500, "CPU: PyTorch with MKL (torch:cpu, 16 threads), OpenBLAS (numpy:0, 16 threads)."),
    (CONTEST, "matmul", 32, "CPU: OpenBLAS (numpy:0, 16 threads), PyTorch with MKL (torch:cpu, 16 threads)."), (CONTEST, "add", 2**26, None),
])  # fmt: skip
def test_advice_names_it_where_it_has_a_time_of_a_cpu(run, op, n, said):
    text = " ".join(render_advice(advice([run], Key(op, "float32"), n, WAITED), "table").split())
    assert text.startswith(f"{op} float32, n = {n}, data on the device, waited: ")
    assert said in text if said else "CPU: " not in text


# ---------------------------------------------------------------- a user's own function
COMPILED = {("numpy:0", "tuned"): seconds(1e-6, 1e-9), ("cupy:0", "tuned"): seconds(2e-5, 1e-10)}


def screen_text(run):
    (analysis,) = analyse_runs([run])
    return " ".join(" ".join(drawn_lines(analysis, command="")).split())


def test_the_best_code_of_both_sides_has_a_threshold_of_its_own():
    (curve,) = analyse(function_run(WRITTEN | COMPILED)).best_code
    assert curve.n == pytest.approx(2.1e4, rel=0.2)
    # Where no library runs it on a GPU all code competes, and advice is about code that the caller has.
    compiled = function_run({("numpy:0", "library"): seconds(1e-6, 1e-8)} | COMPILED)
    assert find_threshold([compiled], "f", "waited").n == pytest.approx(2.1e4, rel=0.2)
    answer = Policy([function_run(WRITTEN | COMPILED)]).choose("f", 2**20, regime="resident")
    assert (answer.device_id, answer.implementation) == ("cupy:0", "library")
    assert answer.gain == pytest.approx((1e-6 + 2**20 * 1e-8) / (1e-4 + 2**20 * 1e-10), rel=0.1)


LEFT_OUT = [
    RunWarning(code="bad-function", message=f"{name} is left out: it returns nothing: return the result")
    for name in ("first", "second", "third", "fourth", "fifth")
]


@pytest.mark.parametrize(("count", "words"), [
    (1, "first is left out: it returns nothing: return the result."), (5, "third is left out: it returns nothing: return the result. Left out: fourth and fifth."),
])  # fmt: skip
def test_the_screen_names_functions_that_were_left_out(count, words):
    assert words in screen_text(replace(function_run(WRITTEN), warnings=LEFT_OUT[:count]))


@pytest.mark.parametrize(
    ("device", "sentence"), [("numpy:0", "f at n = 32 M"), ("cupy:0", "f on CuPy at n = 32 M")]
)
def test_the_screen_says_from_which_size_on_a_function_raises(device, sentence):
    detail = "it raises ValueError: too large (mine.py, line 5)"
    raised = [skipped(case("mine.f", device=device, n=n), "bad-function", detail) for n in (2**26, 2**25)]
    timed = function_run(WRITTEN)
    shown = function_run({key: times for key, times in WRITTEN.items() if "numpy:0" in (device, key[0])})
    text = screen_text(replace(shown, outcomes=[*shown.outcomes, *raised]))
    assert f"{sentence}: {detail}." in text
    assert "(bad function)" not in text
    assert (detail in screen_text(replace(timed, outcomes=[*timed.outcomes, *raised]))) == (device == "numpy:0")
    late = [RunWarning(code="bad-function", id="1", message=f"{name} raises late") for name in "ghij"]
    text = screen_text(replace(timed, warnings=late))
    assert [f"{name} raises late." in text for name in "ghij"] == [True, True, True, False]
    assert "Further functions that do not run at some size: 1." in text
