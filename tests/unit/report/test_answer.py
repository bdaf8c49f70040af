"""The final screen: word for word of many small runs, and that it stays on one screen."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from gpubench.analysis.analyse import analyse
from gpubench.analysis.answer import answer
from gpubench.analysis.thresholds import range_text, size_text
from gpubench.cli.delivery import report_command
from gpubench.report import analyse_runs, render
from gpubench.report.layout import RenderOptions, visible
from gpubench.report.sections.answer import Screen, answer_screen, answer_sentences, screen_lines
from gpubench.report.sections.answer_text import asked_size_text, factor_text, rough_size_text
from gpubench.result import store
from tests.examples import examples
from tests.unit.report import screens
from tests.unit.report.answer_runs import ALWAYS, SUITE, WAITED, WEBGPU, answer_run, op_case, op_rows, suite_run
from tests.unit.report.builders import CPU, GPU, curve, failed, measured, run_of, skipped
from tests.unit.report.samples import analysed
from tests.unit.report.screens import ENDS


def screen(run, **look):
    return render([run], "plain", sections=("answer",), **look).splitlines()


@pytest.mark.parametrize(("of", "text"), [
    *((lambda n=n: size_text(n, "elements"), text) for n, text in {
        512: "512", 1024: "1 K", 1536: "1.5 K", 16384: "16 K", 154_000: "150 K", 999_700: "1 M", 900_000: "879 K", 1_048_576: "1 M",
        4_400_000: "4.2 M", 16_777_216: "16 M", 2**30: "1 G"}.items()),
    *((lambda n=n: rough_size_text(n), text) for n, text in {700_000: "0.7 M", 60_000: "60 K", 1500: "1 K", 300: "300", 2**21: "2 M"}.items()),
    *((lambda ends=ends: range_text(*ends, "elements"), text) for ends, text in {
        (16384, 46000): "16-45 K", (131072, 1048576): "128 K-1 M", (1024, 1025): "1 K", (600, 900): "600-900"}.items()),
    *((lambda x=x: factor_text(x), text) for x, text in {14.4: "14x", 2.13: "2.1x", 7.0: "7.0x", 9.96: "10x", 127.0: "130x"}.items()),
    (lambda: size_text(182, "side"), "182²"), (lambda: visible(size_text(182, "side"), ascii_only=True), "182^2"),
    (lambda: range_text(128, 512, "side"), "128-512²"), (lambda: size_text(182, "plain"), "182"), (lambda: size_text(20_195, "plain"), "20 K"),
    (lambda: range_text(464, 20_195, "plain"), "464-20 K"), (lambda: asked_size_text(10_000, "plain"), "10,000"),
    *((lambda n=n: asked_size_text(n, "elements"), text) for n, text in {1126: "1.1 K", 600_000: "600,000", 2**24: "16 M", 2**31: "2 G"}.items()),
])  # fmt: skip
def test_sizes_and_factors_as_text(of, text):
    assert of() == text


def test_a_filter_leaves_out_what_was_not_reached_and_denies_no_gpu():
    both = answer_run(screens.BOTH)
    assert "in time" not in render([both], "plain", keep=lambda case: case.op == "add")
    found = analyse(run_of(curve({64: 0.25, 256: 4.0})), keep=lambda case: case.device_id == "numpy:0")
    plain = "No faster code than plain NumPy was measured."
    assert answer_sentences(found) == (f"No case of a GPU is among those shown. {plain}",)


def test_a_run_says_where_its_file_is_and_commands_name_it_where_they_would_not_find_it():
    (analysis,) = analysed(suite_run)
    long, kept = f"{'x' * 90}.json", str(store.default_results_dir() / "machine" / "run.json")
    page = "--full   page: -o r.html"
    for path, last in (("a b.json", f" 'a b.json' {page}"), (kept, f" {page}"), (long, f" {long} --full")):
        command = report_command(path, store.default_results_dir())
        drawn = answer_screen(analysis, RenderOptions(command=command), saved=[path])
        lines = ["".join(cell.text for cell in line) for line in drawn]
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
    run = screens.interrupted(*found.values()) if interrupted else answer_run(list(found.values()))
    (analysis,) = analyse_runs([run])
    options = RenderOptions(ascii_only=ascii_only, command=report_command(saved or None))
    drawn = answer_screen(analysis, options, saved=[saved] if saved else [])
    texts = ["".join(cell.text for cell in line) for line in drawn]
    # Gains of 10000x at other sizes beside thresholds that are mixed: a table for each situation, else too wide.
    tables = sum("pays from" in text for text in texts)
    assert len(drawn) <= 24 + 16 * (tables - 1)
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


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(("share", "end"), [
    (0.42, " Noisy: other programs use 42 % of the CPUs."), (0.0, " Noisy: run it again on an idle machine."), (None, ""),
])  # fmt: skip
def test_a_first_figure_from_an_unstable_case_is_said_to_be_noisy(gpu, share, end):
    wild = {} if share is None else {"factors": (0.5, 1.0, 1.0, 1.6)}
    fast = op_case("add", 1024, WAITED, "cupy:0") if gpu else op_case("add", 1024, implementation="tuned")
    rows = [measured(op_case("add", 1024), 1e-3, sessions=5), measured(fast, 1e-4, sessions=5, **wild)]
    run = answer_run(rows, named={"add": [1024]})
    run = replace(run, sessions=[replace(session, foreign_cpu_share=share) for session in run.sessions])
    (first, *_) = answer_sentences(analyse_runs([run])[0])
    assert re.search(r"10x\b", first)
    assert first.endswith(end or "10x.")


def test_an_unstable_case_that_does_not_stand_first_is_not_said_to_be_noisy():
    gpu, tuned = (op_case("add", 1024, WAITED, "cupy:0", implementation=name) for name in ("library", "tuned"))
    rows = [measured(what, s, sessions=5) for what, s in ((op_case("add", 1024), 1e-3), (gpu, 1e-4))]
    slow = measured(tuned, 1e-2, sessions=5, factors=(0.5, 1.0, 1.0, 1.6))
    (analysis,) = analyse_runs([answer_run([*rows, slow], named={"add": [1024]})])
    assert any("unstable" in row.findings for row in analysis.cases)
    assert "Noisy" not in answer_sentences(analysis)[0]


def test_backends_are_ranked_at_the_largest_size_that_the_most_of_them_have():
    """wgpu:0 is the faster one at 256, and alone at 16384."""
    rows = op_rows("add", {WAITED: {256: 2.0, 1024: 8.0, 4096: 1.0}})
    rows += op_rows("add", {WAITED: {256: 8.0, 1024: 2.0, 16384: 9.0}}, device="wgpu:0", cpu=False)
    rows.append(measured(op_case("add", 16384), 1e-3, sessions=5))
    found = answer(analyse(answer_run(rows, devices=(CPU, GPU, WEBGPU))))
    assert (found.devices, found.others) == (("cupy:0",), ("wgpu",))


def test_where_none_of_the_usual_situations_was_measured_two_others_are_shown():
    once = op_case("add", 1024, "transfer-once", "cupy:0")
    rows = [measured(replace(once, calls=calls), 1e-4, sessions=5) for calls in (10, 20, 30)]
    found = answer(analyse(answer_run([measured(op_case("add", 1024), 1e-3, sessions=5), *rows])))
    assert found.regimes == ("transfer-once-10", "transfer-once-20")
