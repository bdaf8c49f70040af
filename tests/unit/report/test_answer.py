"""The final screen: its sentence, its cells, its shapes, and that it stays on one screen."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpubench.analysis.answer import answer
from gpubench.analysis.thresholds import ROUGHLY, Gain, both_text, cell_text, range_text, size_text
from gpubench.base.units import parse_sizes
from gpubench.cli.rendering import report_command
from gpubench.report import analyse_runs, render
from gpubench.report.layout import RenderOptions, visible
from gpubench.report.sections.answer import answer_screen
from gpubench.report.sections.answer_text import asked_size_text, factor_text, gain_text, rough_size_text
from gpubench.result import store
from gpubench.result.run import Check, Failure, RunWarning
from tests.examples import examples
from tests.unit.report.answer_runs import (
    ALWAYS,
    QUEUED,
    SECOND,
    SUITE,
    VECTOR,
    WAITED,
    WEBGPU,
    answer_run,
    named_run,
    no_gpu_run,
    one_op_run,
    op_case,
    op_rows,
    rising,
    suite_run,
)
from tests.unit.report.builders import CPU, GPU, NETWORK, case, failed, measured, planned, skipped
from tests.unit.report.samples import cpu_run, full_run, software_run

# Ratios at the bottom, in the middle and at the top of the ladder of vectors.
ENDS = (1024, 131072, 16777216)
WINS, LOSES = dict.fromkeys(ENDS, 9.0), dict.fromkeys(ENDS, 0.2)
OPEN_LOSS = {1024: 0.1, 4096: 0.2}
APART = (0.4, 0.8, 1.0, 1.25, 2.5)  # sessions that tell no winner of sides within 2x


def screen(run, **look):
    return render([run], "plain", sections=("answer",), **look).splitlines()


def sentence(run, **look):
    """What stands above the line of the two sides."""
    lines = screen(run, **look)
    end = next(i for i, line in enumerate(lines) if " against " in line or " CPU thread" in line)
    return " ".join(lines[:end])


def cells(run, op, regime=WAITED, **look):
    row = next(row for row in answer(analyse_runs([run])[0]).rows if row.op == op)
    return row.cells[regime]


def ops(ratios, *, regime=WAITED, names=SUITE, **more):
    """A run of as many ops as there are ratios by size."""
    vectors = [name for name in names if name != "matmul"]
    found = []
    for op, by_size in zip(vectors, ratios, strict=False):
        found += op_rows(op, {regime: by_size}, **more)
    return answer_run(found)


# Sizes and gains


@pytest.mark.parametrize(
    ("n", "text"),
    [(512, "512"), (1024, "1 K"), (1536, "1.5 K"), (16384, "16 K"), (154_000, "150 K"), (999_700, "1 M"), (900_000, "879 K"),
     (1_048_576, "1 M"), (4_400_000, "4.2 M"), (16_777_216, "16 M"), (2**30, "1 G")],
)  # fmt: skip
def test_k_is_1024_and_m_is_1024_k(n, text):
    assert size_text(n, "elements") == text


@pytest.mark.parametrize("text", ["1.1 K", "586 K", "16 M", "1.5 M", "1,000,000", "1,000", "3", "2 G"])
def test_a_size_that_was_asked_for_prints_as_it_was(text):
    (n,) = parse_sizes(text.replace(" ", "").replace(",", "_"))
    assert asked_size_text(n, "elements") == text


@given(st.integers(1, 2**36))
def test_what_a_screen_calls_a_size_is_near_it(n):
    """It is a size that --sizes takes, half of its last digit away at most."""
    (read,) = parse_sizes(size_text(n, "elements").replace(" ", ""))
    assert read == pytest.approx(n, rel=0.05)


@pytest.mark.parametrize(
    ("n", "text"), [(700_000, "0.7 M"), (60_000, "60 K"), (1500, "1 K"), (300, "300"), (2**21, "2 M")]
)
def test_a_rough_size_has_one_digit(n, text):
    assert rough_size_text(n) == text


def test_a_square_matrix_prints_its_side():
    assert size_text(182, "side") == "182²"
    assert visible(size_text(182, "side"), ascii_only=True) == "182^2"
    assert range_text(128, 512, "side") == "128-512²"
    assert size_text(182, "plain") == "182"
    assert size_text(20_195, "plain") == "20 K"
    assert range_text(464, 20_195, "plain") == "464-20 K"
    assert asked_size_text(10_000, "plain") == "10,000"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(16384, 46000, "16-45 K"), (131072, 1048576, "128 K-1 M"), (1024, 1025, "1 K"), (600, 900, "600-900")],
)
def test_a_range_says_a_common_unit_once(low, high, text):
    assert range_text(low, high, "elements") == text


@pytest.mark.parametrize(
    ("factor", "text"), [(14.4, "14x"), (2.13, "2.1x"), (7.0, "7.0x"), (9.96, "10x"), (127.0, "130x")]
)
def test_a_gain_has_two_digits(factor, text):
    assert factor_text(factor) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(18, 22, "GPU 20x"), (16, 22, "GPU ~20x"), (18, 24, "GPU ~20x"), (0.9, 40, "GPU ~20x ?")],
)
def test_a_gain_that_is_not_known_within_15_percent_is_told_as_about(low, high, text):
    winner = "gpu" if low > 1 else "noisy"
    gain = Gain(n=1024, ratio=20.0, low=low, high=high, winner=winner, cpu_s=20.0, gpu_s=1.0, top=True)
    assert gain_text(gain) == text


# Cells


def test_all_sizes_needs_both_ends_of_the_ladder():
    assert cells(ops([WINS]), "add").kind == "all-sizes"
    assert cells(ops([LOSES]), "add").kind == "no-size"
    without_top = dict.fromkeys(VECTOR[:-1], 9.0)
    assert cells(ops([without_top]), "add").kind == "below"
    without_low = dict.fromkeys(VECTOR[1:], 9.0)
    assert cells(ops([without_low]), "add").kind == "below"
    assert cells(ops([dict.fromkeys(VECTOR[:-1], 0.2)]), "add").kind == "above"


def test_below_the_size_1_there_is_none():
    rows = op_rows("add", {WAITED: {1: 3.0, 64: 9.0}})
    lines = screen(answer_run([*rows, *op_rows("mul", {WAITED: WINS})]))
    assert next(line for line in lines if line.startswith("add")).split()[1] == "1"


def test_an_op_that_is_unknown_here_has_no_ends():
    run = answer_run(op_rows("from_elsewhere", {WAITED: WINS}))
    assert cells(run, "from_elsewhere").kind == "below"
    assert "at every size measured, from 1 K to 16 M." in sentence(run)


def test_the_width_of_the_interval_says_how_a_threshold_is_printed():
    """A number, about a number, or a range; the number lies in it."""
    curves = {
        "sharp": rising([1024, 15_000, 18_000, 16777216], 16_000, 2.0), "rough": rising(VECTOR, 30_000),
        "wide": {1024: 0.1, 16777216: 20.0},
    }  # fmt: skip
    shown = {name: cells(ops([curve]), "add") for name, curve in curves.items()}
    assert [shown[name].kind for name in curves] == ["at", "at", "range"]
    assert [shown[name].sharp for name in curves] == [True, False, False]
    for cell in shown.values():
        assert cell.low < cell.n < cell.high
        assert (cell.high <= cell.low * ROUGHLY) == (cell.kind == "at")
    assert [cell_text(cell, "elements") for cell in shown.values()] == [
        size_text(shown["sharp"].n, "elements"),
        "~" + size_text(shown["rough"].n, "elements"),
        range_text(shown["wide"].low, shown["wide"].high, "elements"),
    ]
    assert both_text(shown["wide"], "elements").startswith(f"~{size_text(shown['wide'].n, 'elements')} (")


def test_a_threshold_without_an_upper_end_says_from_where_on():
    """It loses below, and at the top either side may be the faster one."""
    open_top = {1024: 0.1, 131072: 0.3, 16777216: 1.3}
    cell = cells(ops([open_top], shifts=APART), "add")
    assert (cell.kind, cell.high) == ("open", None)
    low = size_text(cell.low, "elements")
    assert cell_text(cell, "elements") == f"> {low}"
    assert f"the GPU does not pay below {low} (" in sentence(ops([open_top], shifts=APART))


def test_gains_of_many_sizes_have_a_column_for_them():
    """A gain of its own size beside most of one size; a column where no size is that of most."""

    def tops(*sizes):
        return screen(ops([{1024: 0.1, 8192: 0.4, top: 20.0} for top in sizes]))

    few = tops(2**20, 2**20, 2**20, 2**18)
    assert any("at 1 M" in line for line in few)
    assert any(line.endswith("x at 256 K") for line in few)
    many = tops(2**20, 2**19, 2**18, 2**17)
    assert not any(" at " in line for line in many if line.startswith(("add", "chain")))
    assert [line.split()[1:3] for line in many if line.startswith("add ")] == [["1", "M"]]


def test_how_sure_the_thresholds_are_stands_below_the_table():
    sharp, wide = rising([1024, 15_000, 18_000, 16777216], 16_000, 2.0), {1024: 0.1, 16777216: 20.0}
    run = ops([sharp, rising(VECTOR, 30_000), rising(VECTOR, 40_000), wide, WINS])
    said = " ".join(" ".join(screen(run)).split())
    assert "Thresholds: 1 within 1.5x, 2 within 2x, 1 within a range. 5 sessions, 55 s." in said
    assert "noisy" not in said


def test_more_than_one_crossing_is_mixed():
    ratios = {1024: 0.2, 8192: 3.0, 65536: 0.3, 90_000: 5.0, 16777216: 9.0}
    wide = {1024: 0.2, 8192: 3.0, 65536: 0.3, 1048576: 5.0, 16777216: 9.0}
    for curve in (ratios, wide):
        cell = cells(ops([curve]), "add")
        assert (cell.kind in ("at", "range"), cell.mixed) == (True, True)
    assert ", mixed" in "\n".join(screen(ops([ratios, WINS])))


def test_a_question_mark_has_its_reason_below_the_table():
    again = {1024: 0.2, 4096: 4.0, 16384: 0.2}
    lines = screen(ops([again, WINS]))
    assert any(line.startswith("add") and " ? " in line for line in lines)
    assert "? no threshold: add (wins and loses by turns)." in lines


def test_a_tie_at_the_largest_size_is_no_noise():
    tied = {1024: 0.2, 131072: 0.6, 16777216: 1.0}
    lines = screen(ops([tied, WINS]))
    assert next(line for line in lines if line.startswith("add")).split() == ["add", "about", "equal"]
    assert not any(line.startswith("?") for line in lines)
    assert sentence(ops([tied])) == "add: with data on the GPU both are about equal at 16 M, the largest size."


def test_a_gain_whose_interval_holds_1_is_in_doubt():
    run = ops([{**WINS, 16777216: 1.4}, WINS], shifts=APART)
    assert cells(run, "add").gain.winner == "noisy"
    assert " ?" in next(line for line in screen(run) if line.startswith("add"))


def test_within_fifteen_percent_is_about_equal_where_that_is_known():
    run = ops([{**WINS, 16777216: 1.12}, WINS])
    assert cells(run, "add").gain.winner == "equal"
    assert next(line for line in screen(run) if line.startswith("add")).endswith("equal")
    doubtful = ops([{**WINS, 16777216: 1.0}, WINS], shifts=APART)
    assert cells(doubtful, "add").gain.winner == "noisy"
    assert next(line for line in screen(doubtful) if line.startswith("add")).endswith("equal ?")


def test_a_gain_at_another_size_says_so():
    lines = screen(ops([WINS, WINS, {1024: 0.1, 4096: 3.0}]))
    heading = next(line for line in lines if "pays from" in line)
    assert "at 16 M" in heading
    assert next(line for line in lines if line.startswith("copy")).endswith("GPU 3.0x at 4 K")


# The sentence


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([WINS] * 3, "With data on the GPU the GPU wins all 3."),
        ([LOSES] * 3, "With data on the GPU the CPU wins all 3."),
        ([LOSES, LOSES, OPEN_LOSS], "With data on the GPU the CPU wins all 3 as far as measured."),
        ([LOSES, LOSES, {**WINS, 16777216: 1.0}], "With data on the GPU the GPU wins none of 3 (copy about equal)."),
        ([WINS, WINS, LOSES, LOSES, LOSES], "With data on the GPU the GPU wins 2 of 5: add and chain."),
        ([WINS] * 6 + [LOSES], "With data on the GPU the GPU wins 6 of 7, not mul, half of the 6 from about 1 K elements."),
        ([WINS] * 5 + [LOSES] * 4, "With data on the GPU the GPU wins 5 of 9, half of them from about 1 K elements."),
        ([WINS, LOSES, OPEN_LOSS], "With data on the GPU the GPU wins 1 of 3: add (copy loses as far as measured)."),
        ([WINS, OPEN_LOSS, OPEN_LOSS], "With data on the GPU the GPU wins 1 of 3: add (chain and copy lose as far as measured)."),
        ([WINS, WINS], "With data on the GPU the GPU wins both."),
        ([WINS] * 4 + [OPEN_LOSS], "With data on the GPU the GPU wins 4 of 5: add, chain, copy and div, half of the 4 from about 1 K elements (dot loses as far as measured)."),
        ([WINS] * 5 + [OPEN_LOSS] * 4, "With data on the GPU the GPU wins 5 of 9, half of them from about 1 K elements (4 lose as far as measured)."),
    ],
)  # fmt: skip
def test_the_sentence_of_one_situation(ratios, said):
    assert sentence(ops(ratios)) == said


def test_the_second_situation_says_it_only_of_the_gpu():
    both = [*op_rows("add", {WAITED: WINS, ALWAYS: LOSES}), *op_rows("copy", {WAITED: WINS, ALWAYS: WINS})]
    assert sentence(answer_run(both)).endswith("the GPU wins both; copied at every call it wins 1 of 2: copy.")
    late = [*op_rows("add", {WAITED: LOSES, ALWAYS: LOSES}), *op_rows("copy", {WAITED: LOSES, ALWAYS: WINS})]
    assert sentence(answer_run(late)).endswith(
        "the CPU wins both; copied at every call the GPU wins 1 of 2: copy."
    )


def test_the_sentence_names_its_ops_where_the_table_has_more():
    right = [row for op in ("mul", "relu") for row in op_rows(op, {WAITED: WINS})]
    wrong = [failed(op_case("add", 1024, WAITED, "cupy:0")), measured(op_case("add", 1024), 1e-3)]
    assert sentence(answer_run([*right, *wrong])) == "With data on the GPU the GPU wins mul and relu."
    more = [row for op in SUITE if op not in ("add", "matmul") for row in op_rows(op, {WAITED: WINS})]
    assert "the GPU wins all 12 that have times" in sentence(answer_run([*more, *wrong]))


def test_one_size_is_told_as_one():
    run = answer_run(op_rows("add", {WAITED: {1024: 3.0}, ALWAYS: {1024: 0.2}}))
    assert "the GPU wins at the one size measured, 1 K" in sentence(run)
    assert "the CPU wins at the one size measured, 1 K" in sentence(run)


def test_of_many_dtypes_the_line_of_both_sides_has_the_number():
    dtypes = ("float64", "float32", "float16")
    run = answer_run([row for dtype in dtypes for row in op_rows("add", {WAITED: WINS}, dtype=dtype)])
    assert any(line.endswith(", 3 dtypes.") for line in screen(run))


def test_what_is_noisy_is_counted_as_such():
    noisy = op_rows("tanh", {WAITED: dict.fromkeys(ENDS, 1.3)}, shifts=APART)
    run = answer_run([*ops([WINS, WINS]).outcomes, *noisy])
    assert sentence(run).endswith("wins 2 of 3: add and chain (1 too noisy to say).")


def test_half_of_the_ops_are_told_by_their_likely_thresholds():
    """With one digit; of four the second."""
    run = ops([rising(VECTOR, at) for at in (300_000, 5_000, 60_000, 20_000)])
    assert "half of them from about 20 K elements" in sentence(run)


def test_half_is_not_said_of_few_ops_nor_of_unknown_thresholds():
    assert "half" not in sentence(ops([WINS] * 3))
    unknown = {1024: 1.3, 131072: 1.4, 16777216: 9.0}
    assert "half" not in sentence(ops([unknown] * 4, shifts=APART))


def test_several_types_have_a_sentence_each():
    found = [
        one
        for dtype in ("float16", "float32")
        for op in ("add", "copy")
        for one in op_rows(op, {WAITED: WINS}, dtype=dtype)
    ]
    lines = screen(answer_run(found))
    assert lines[0] == "float16: with data on the GPU the GPU wins both."
    assert lines[1] == "float32: with data on the GPU the GPU wins both."
    assert any(line.startswith("add f16") for line in lines)


def test_the_sentence_takes_three_lines_at_most():
    found = []
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        for i, op in enumerate(SUITE):
            ratios = {WAITED: WINS if i % 2 else OPEN_LOSS, ALWAYS: WINS if i % 3 else LOSES}
            found += op_rows(op, ratios, dtype=dtype) if op != "matmul" else []
    lines = screen(answer_run(found))
    side = next(i for i, line in enumerate(lines) if " against " in line)
    assert side <= 4
    assert lines[0].startswith("bfloat16: the GPU wins 7 of 13 with data on it")


# Devices


def test_one_backend_has_the_whole_screen():
    found = op_rows("add", {WAITED: WINS, ALWAYS: LOSES})
    found += op_rows("add", {WAITED: dict.fromkeys(ENDS, 5.0), ALWAYS: LOSES}, device="wgpu:0", cpu=False)
    run = answer_run(found, devices=(CPU, GPU, WEBGPU))
    text = "\n".join(screen(run))
    assert "Test GPU (CuPy)" in text
    assert "WebGPU: --by-device" in text
    assert "Measured too: WebGPU (--by-device)." in render([run], "plain")
    better = op_rows("add", {WAITED: dict.fromkeys(ENDS, 20.0), ALWAYS: LOSES}, device="wgpu:0", cpu=False)
    run = answer_run([*op_rows("add", {WAITED: WINS, ALWAYS: LOSES}), *better], devices=(CPU, GPU, WEBGPU))
    assert "Test GPU (WebGPU)" in "\n".join(screen(run))


def test_queued_calls_choose_no_backend():
    found = op_rows("add", {WAITED: WINS, QUEUED: WINS, ALWAYS: LOSES})
    more = {WAITED: dict.fromkeys(ENDS, 5.0), QUEUED: dict.fromkeys(ENDS, 50.0), ALWAYS: LOSES}
    found += op_rows("add", more, device="wgpu:0", cpu=False)
    assert answer(analyse_runs([answer_run(found, devices=(CPU, GPU, WEBGPU))])[0]).devices == ("cupy:0",)


def test_equal_gpus_are_one_row_and_others_have_one_each():
    same = [*op_rows("add", {WAITED: WINS}), *op_rows("add", {WAITED: WINS}, device="cupy:1", cpu=False)]
    other = [
        *op_rows("copy", {WAITED: WINS}),
        *op_rows("copy", {WAITED: dict.fromkeys(ENDS, 3.0)}, device="cupy:1", cpu=False),
    ]
    lines = screen(answer_run([*same, *other], devices=(CPU, GPU, SECOND)))
    assert "2 x Test GPU (CuPy)" in "\n".join(lines)
    labels = [line.split("  all sizes")[0].rstrip() for line in lines if "all sizes" in line]
    assert labels == ["add   2 x CuPy", "copy  CuPy 0", "      CuPy 1"]
    assert "wins both" in lines[0]


def test_one_gpu_that_backends_name_differently_is_one():
    """As on Apple, where WebGPU knows the chip and PyTorch calls it `Apple GPU`."""
    found = op_rows("add", {WAITED: WINS, ALWAYS: LOSES})
    found += op_rows("add", {WAITED: dict.fromkeys(ENDS, 5.0), ALWAYS: LOSES}, device="wgpu:0", cpu=False)
    one = [
        msgspec.structs.replace(GPU, gpu_id="g"),
        msgspec.structs.replace(WEBGPU, gpu_id="g", name="Apple GPU"),
    ]
    text = "\n".join(screen(answer_run(found, devices=(CPU, *one)), by_device=True))
    assert "Test GPU (CuPy, WebGPU) against " in text
    assert "Apple GPU" not in text


def test_two_adapters_of_one_gpu_are_not_two_gpus():
    """Both were named: they are contenders, and equally fast."""
    found = [*op_rows("add", {WAITED: WINS}), *op_rows("add", {WAITED: WINS}, device="cupy:1", cpu=False)]
    one = [msgspec.structs.replace(device, gpu_id="g") for device in (GPU, SECOND)]
    text = "\n".join(screen(answer_run(found, devices=(CPU, *one)), by_device=True))
    assert "2 x" not in text
    assert "Test GPU (CuPy) against" in text


def test_which_adapter_of_a_gpu_was_measured_is_said_on_the_screen():
    message = "wgpu lists this GPU twice (RADV, AMDVLK); RADV was measured; the other: --devices wgpu:1"
    run = answer_run(op_rows("add", {WAITED: WINS}))
    run = msgspec.structs.replace(
        run, warnings=[RunWarning(code="listed-twice", severity="info", message=message)]
    )
    assert f"{message}." in " ".join(" ".join(screen(run)).split())


def test_a_failed_backend_is_one_line_and_the_next_has_the_screen():
    found = [
        failed(op_case("add", n, WAITED, "cupy:0"), "worker-crashed", "the driver is too old") for n in ENDS
    ]
    found += op_rows("add", {WAITED: WINS}, device="wgpu:0")
    text = screen(answer_run(found, devices=(CPU, GPU, WEBGPU)))
    assert any("(WebGPU)" in line for line in text)
    assert "CuPy gave no time: the driver is too old" in text


def test_a_wrong_result_has_no_time_and_no_gain():
    wrong = []
    for regime in (WAITED, ALWAYS):
        for n in ENDS:
            what = op_case("gelu", n, regime, "cupy:0")
            check = Check(ok=False, max_error=0.031, limit=1e-4, scale="value")
            wrong.append(
                Failure(
                    id=what.id, case=what, reason="wrong-result", detail="wrong", phase="check", check=check
                )
            )
    gelu = [measured(op_case("gelu", n), 1e-3, sessions=5) for n in ENDS]
    run = answer_run(
        [
            *op_rows("add", {WAITED: WINS, ALWAYS: WINS}),
            *op_rows("copy", {WAITED: WINS, ALWAYS: WINS}),
            *gelu,
            *wrong,
        ]
    )
    lines = screen(run)
    row = next(line for line in lines if line.startswith("gelu") and "wrong numbers" not in line)
    assert row.split() == ["gelu", "wrong", "wrong"]
    assert "gelu on CuPy gave wrong numbers (error 0.031, limit 0.0001): not timed" in lines
    assert "wins add and copy" in lines[0]


def test_a_wrong_size_is_not_hidden_by_right_ones():
    what = op_case("add", 16777216, WAITED, "cupy:0")
    found = op_rows("add", {WAITED: {1024: 0.2, 131072: 9.0}})
    found += [measured(op_case("add", 16777216), 1e-3, sessions=5), failed(what)]
    assert cells(answer_run(found), "add").kind == "wrong"


def test_what_failed_and_what_could_not_run_differ():
    found = op_rows("add", {WAITED: WINS}) + [
        measured(op_case(op, 1024), 1e-3, sessions=5) for op in ("mul", "tanh")
    ]
    found += [failed(op_case("mul", 1024, WAITED, "cupy:0"), "timeout", "no answer within 60 s")]
    found += [skipped(op_case("tanh", 1024, WAITED, "cupy:0"))]
    lines = screen(answer_run(found))
    assert next(line for line in lines if line.startswith("mul ")).split() == ["mul", "failed"]
    assert "mul on CuPy failed: no answer within 60 s" in lines
    assert "? no threshold: tanh (too little memory)." in lines


def test_a_software_adapter_never_headlines():
    text = screen(software_run())
    assert text[0].startswith("No GPU here: compute on the CPU.")
    assert "Looked for: WebGPU (llvmpipe: not a GPU)." in text
    assert not any("(WebGPU) against" in line for line in text)


def test_without_a_gpu_the_cpu_forms_are_compared():
    lines = screen(no_gpu_run())
    assert " ".join(lines[:2]).endswith("exists for 2 of 3 ops: gelu and softmax.")
    assert next(line for line in lines if line.startswith("add")).split()[1:] == ["plain", "plain"]
    all_better = [one for one in no_gpu_run().outcomes if one.case.op != "add"]
    assert "exists for both ops: gelu and softmax." in sentence(
        answer_run(all_better, devices=(CPU,), with_machine=False)
    )
    assert next(line for line in lines if line.startswith("softmax")).endswith("2.1x")
    assert "Looked for: CuPy (there is no NVIDIA driver)." in lines


TORCH = msgspec.structs.replace(CPU, id="torch:cpu", backend="torch")
THREE = {"add": (8192, 2**20, 2**24), "dot": (8192, 2**20, 2**22), "matmul": (96, 1024, 4096)}


def three_sizes_run(*, named=False):
    """The tuned form is 1, 2 and 3 times as fast as plain NumPy at three sizes, PyTorch half as fast; other sizes lie
    between them."""
    found = []
    for op, sizes in THREE.items():
        for i, n in enumerate([*sizes, sizes[1] * 3 // 2]):
            found.append(measured(op_case(op, n), 1e-3, sessions=5))
            found.append(measured(op_case(op, n, form="tuned"), 1e-3 / (1 + i), sessions=5))
            found.append(measured(op_case(op, n, device="torch:cpu"), 2e-3, sessions=5))
    sizes = {"add": [8192, 2**20]} if named else {}
    found = [
        one for one in found if not named or (one.case.op == "add" and one.case.params["n"] in sizes["add"])
    ]
    return answer_run(found, devices=(CPU, TORCH), with_machine=False, named=sizes)


def test_without_a_gpu_three_sizes_have_their_best_form():
    forms = answer(analyse_runs([three_sizes_run()])[0]).forms
    assert {op: [form.n for form in forms if form.op == op] for op in THREE} == {
        op: list(sizes) for op, sizes in THREE.items()
    }
    assert [(form.form, form.ratio and round(form.ratio)) for form in forms[:3]] == [
        ("", None),
        ("tuned", 2),
        ("tuned", 3),
    ]
    lines = screen(three_sizes_run())
    heading = next(line for line in lines if "8 K" in line)
    assert re.split(r" {2,}", heading.strip()) == ["about 8 K", "1 M", "16 M"]
    rows = {line.split()[0]: line.split() for line in lines if line.startswith(tuple(THREE))}
    assert [word for word in rows["add"] if word in ("plain", "tuned")] == ["plain", "tuned", "tuned"]
    assert "4" in rows["dot"], "a size that is not near that of its heading is written"
    assert "96²" not in rows["matmul"]


def test_without_a_gpu_the_sentence_says_that_most_ops_were_not_reached():
    run = answer_run([measured(op_case("add", 8192), 1e-3, sessions=5)], devices=(CPU,), with_machine=False)
    selection = msgspec.structs.replace(run.selection, ops=["add", "dot", "tanh"])
    text = sentence(msgspec.structs.replace(run, selection=selection))
    assert "The time sufficed for 1 of 3 ops: no faster code than plain NumPy there." in text


def test_one_op_and_named_sizes_have_a_row_for_each_size():
    lines = screen(three_sizes_run(named=True))
    assert [line.split()[-1] for line in lines if re.match(r"(add)? +[81] [KM] ", line)] == ["good", "2.0x"]


def test_that_plain_numpy_allocates_its_result_is_said_of_the_ops_where_it_does():
    """The result of `dot` is one number."""
    said = " ".join(" ".join(screen(three_sizes_run())).split())
    assert "Plain NumPy allocates its result of add and matmul at every call" in said
    alone = [one for one in no_gpu_run().outcomes if one.case.form == "library"]
    assert "allocates" not in "\n".join(screen(answer_run(alone, devices=(CPU,), with_machine=False)))


def test_what_was_looked_for_names_each_backend_once():
    left_out = "wgpu:0 (llvmpipe (LLVM 15.0.6, 256 bits)) is a software adapter, not a GPU: it was left out"
    missing = "cupy was left out: CuPy cannot be imported: No module named 'cupy'"
    warnings = [
        RunWarning(code="unavailable", message=missing, data={"backend": "cupy"}),
        RunWarning(code="software-device", message=left_out),
    ]
    run = msgspec.structs.replace(no_gpu_run(), warnings=warnings)
    assert "Looked for: CuPy (not installed), WebGPU (llvmpipe: not a GPU)." in screen(run)


def test_smaller_tops_are_one_note():
    halved = [
        RunWarning(
            code="top-halved",
            message=f"{op}/float32 is measured up to n = 1024, not 4096: that would take long",
        )
        for op in ("add", "gelu")
    ]
    plain = [
        RunWarning(code="not-compiled", message=f"measured as written: {op} (calls xp.{op})") for op in "ab"
    ]
    run = msgspec.structs.replace(no_gpu_run(), warnings=halved + plain)
    text = " ".join(render([run], "plain", sections=("warnings",)).split())
    assert text.count("top-halved") == 1
    assert "2 ops are measured up to smaller sizes" in text
    assert "add/float32 up to n = 1024, gelu/float32 up to n = 1024" in text
    drawn = answer_screen(analyse_runs([run])[0], RenderOptions(), saved=["x.json"])
    lines = ["".join(cell.text for cell in line) for line in drawn]
    assert any("2 notes: " in line for line in lines)
    assert "measured as written: a (calls xp.a), b (calls xp.b)" in text


def test_another_form_is_not_called_plain_numpy():
    run = answer_run(
        [measured(case("add", 1024, "tuned"), 1e-3, sessions=5)], devices=(CPU,), with_machine=False
    )
    assert next(line for line in screen(run) if line.startswith("add")).split() == [
        "add",
        "1",
        "K",
        "-",
        "tuned",
        "1.00",
        "ms",
        "-",
    ]
    assert screen(run)[0] == "No GPU here: compute on the CPU."


def test_a_gpu_that_was_not_asked_for_is_not_denied():
    run = answer_run([measured(case("add", 1024), 1e-3, sessions=5)], devices=(CPU,))
    assert screen(run)[0].startswith("No GPU was measured.")


def test_overheads_alone_are_no_comparison():
    run = answer_run([measured(case("launch", 1, device="cupy:0"), 6e-6, sessions=5)])
    assert screen(run)[0].startswith("Overheads were measured, and no op")


# Shapes


def test_one_op_shows_all_its_situations():
    lines = screen(one_op_run())
    assert " ".join(lines[:2]).startswith("add: with data on the GPU the GPU pays from ~")
    labels = ["on the GPU, queued", "on the GPU, waited", "10 calls a copy", "copied at every call"]
    assert [label for line in lines for label in labels if line.startswith(label)] == labels


CLOSE = rising([1024, 15_000, 18_000, 16777216], 16_000, 2.0)
TOP, FAR = {16777216: 9.0}, {1024: 0.1, 16777216: 20.0}
TOGETHER = "; measured up to 16 M"


@pytest.mark.parametrize(
    ("waited", "copied", "said", "last"),
    [
        (CLOSE, LOSES, ("the GPU pays from {}", "the CPU wins at all sizes"), TOGETHER),
        (rising(VECTOR, 30_000), rising(VECTOR, 3e6), ("the GPU pays from {}", "the GPU pays from {}"), TOGETHER),
        (rising(VECTOR, 30_000), rising(VECTOR[:6], 1e5),
         ("the GPU pays from {}, measured up to 16 M", "the GPU pays from {}, measured up to 1 M"), ""),
        (FAR, LOSES, ("the GPU pays from somewhere in {}", "the CPU wins at all sizes"), TOGETHER),
        (WINS, LOSES, ("the GPU wins at all sizes up to 16 M", "the CPU wins at all sizes up to 16 M"), ""),
        ({4096: 9.0, 65536: 9.0}, OPEN_LOSS,
         ("the GPU wins at every size measured, from 4 K to 64 K", "the CPU wins up to 4 K"), ""),
        (TOP, LOSES, ("the GPU wins at the one size measured, 16 M", "the CPU wins at all sizes up to 16 M"), ""),
        (rising(VECTOR, 30_000), {1024: 0.1, 16777216: 1.0},
         ("the GPU pays from {}", "both are about equal at 16 M, the largest size"), TOGETHER),
    ],
)  # fmt: skip
def test_the_sentence_of_one_op_claims_no_size_that_was_not_measured(waited, copied, said, last):
    """Of a threshold it says both ends, and of a side that wins up to which size it does."""
    run = answer_run(op_rows("add", {WAITED: waited, ALWAYS: copied}))
    home, away = (
        text.format((cell_text if cell.kind == "range" else both_text)(cell, "elements"))
        for text, cell in zip(said, (cells(run, "add"), cells(run, "add", ALWAYS)), strict=True)
    )
    assert sentence(run) == f"add: with data on the GPU {home}; copied at every call {away}{last}."


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ({1024: 6.7}, "add at n = 1 K, data on the GPU: the GPU wins, 6.7x."),
        ({1024: 0.25}, "add at n = 1 K, data on the GPU: the CPU wins, 4.0x."),
        ({1024: 1.02}, "add at n = 1 K, data on the GPU: both are about equal."),
        ({1024: 0.2, 2048: 0.5}, "add, data on the GPU: the CPU wins at both sizes, 2.0x to 5.0x."),
        ({1024: 2.0, 2048: 3.0, 4096: 4.0}, "add, data on the GPU: the GPU wins at all 3 sizes, 2.0x to 4.0x."),
        ({1024: 0.9, 2048: 3.0}, "add, data on the GPU: about equal to GPU 3.0x."),
    ],
)  # fmt: skip
def test_who_wins_at_named_sizes(ratios, said):
    run = answer_run(op_rows("add", {WAITED: ratios}), named={"add": list(ratios)})
    assert sentence(run) == said


def test_of_named_sizes_nobody_asked_for_larger_ones():
    outcomes = [*op_rows("add", {WAITED: {1024: 0.5}}), *op_rows("gelu", {WAITED: {1024: 2.0}})]
    run = answer_run(outcomes, named={"add": [1024], "gelu": [1024]})
    assert sentence(run) == "With data on the GPU the GPU wins 1 of 2: gelu (add loses)."


def test_a_named_size_that_is_noisy_says_so():
    run = answer_run(op_rows("add", {WAITED: {1024: 2.0}}, shifts=APART), named={"add": [1024]})
    assert sentence(run).endswith("(too noisy).")


def test_named_sizes_that_were_not_reached_are_told():
    late = [skipped(op_case("gelu", n), reason="budget") for n in (1024, 2048)]
    timed = [*op_rows("add", {WAITED: {4096: 2.0}}), *op_rows("gelu", {WAITED: {4096: 2.0}})]
    run = answer_run([*timed, *late], named={"add": [4096], "gelu": [1024, 2048, 4096]})
    said = "Not measured in time: gelu at n = 1 K and gelu at n = 2 K. A larger --budget measures more."
    assert said in " ".join(" ".join(screen(run)).split())


def test_an_op_that_no_gpu_can_take_has_its_time_below_the_table():
    host = [measured(op_case("gelu", 1000), 2e-3)]
    host += [skipped(op_case("gelu", 1000, regime, GPU.id), reason="host-stage") for regime in (WAITED, ALWAYS)]
    lines = screen(answer_run([*op_rows("add", {WAITED: WINS}), *op_rows("copy", {WAITED: WINS}), *host]))
    assert "wins both" in lines[0]
    assert "On the host in any case: gelu 2.00 ms at n = 1,000." in lines
    assert not any(line.startswith("gelu") for line in lines)


def test_an_op_whose_cases_were_all_skipped_for_the_budget_is_told():
    late = [skipped(op_case("gelu", 1024), reason="budget")]
    run = answer_run([*op_rows("add", {WAITED: {4096: 2.0}}), *late])
    assert "Not measured in time: gelu. A larger --budget measures more." in screen(run)


def test_a_budget_that_ends_before_anything_is_timed_is_told():
    run = answer_run([])
    run = msgspec.structs.replace(run, settings=msgspec.structs.replace(run.settings, budget_s=2.0))
    lines = screen(run)
    assert lines[0] == "Nothing was measured (the time budget was used up first)."
    assert "2 s end before anything is timed: raise --budget." in lines


def test_an_interrupt_before_the_first_case_leaves_no_file_to_go_on_with():
    run = answer_run([], complete=False, exit_reason="interrupted")
    lines = screen(msgspec.structs.replace(run, settings=msgspec.structs.replace(run.settings, budget_s=60.0)))
    assert lines[0] == "Nothing was measured (it was interrupted)."
    assert "--append" not in " ".join(lines)


def test_sizes_that_were_named_have_a_gain_each():
    lines = screen(named_run())
    assert (
        " ".join(lines[:2])
        == "matmul, data on the GPU: the GPU wins at both sizes, 6.7x to 22x; copied at every call: CPU 4.0x to GPU 7.0x."
    )
    assert [line.split()[0] for line in lines if "CPU" in line or "GPU" in line][-2:] == ["matmul", "4096²"]
    assert len(lines) <= 10


def test_more_sizes_have_a_row_each():
    sizes = [1000, 2000, 3000]
    ratios = {n: n / 1500 for n in sizes}
    run = answer_run(op_rows("add", {WAITED: ratios, ALWAYS: ratios}), named={"add": sizes})
    rows = [line for line in screen(run) if re.match(r"(add)? +\d,000 ", line)]
    assert len(rows) == len(sizes)
    assert sum(line.startswith("add ") for line in rows) == 1


def test_an_interrupted_run_says_what_is_missing_and_how_to_go_on():
    found = [*op_rows("add", {WAITED: WINS}), *op_rows("copy", {WAITED: WINS})]
    found += [
        planned(op_case("tanh", 1024, regime, device))
        for regime, device in (("resident", "numpy:0"), (WAITED, "cupy:0"))
    ]
    run = answer_run(found, complete=False, exit_reason="interrupted")
    lines = screen(run)
    assert "wins both" in lines[0]
    assert "Stopped at 55 s: 1 of 3 ops not measured. Go on: gpubench run --append FILE" in lines
    assert not any(line.startswith("tanh") for line in lines)


def test_ops_that_the_time_did_not_suffice_for_are_named():
    run = ops([WINS])
    run = msgspec.structs.replace(
        run, selection=msgspec.structs.replace(run.selection, ops=["add", "dot", "tanh"])
    )
    assert "Not measured in time: dot and tanh. A larger --budget measures more." in screen(run)
    named = [*op_rows("add", {WAITED: WINS}), *op_rows("copy", {WAITED: WINS})]
    assert "in time" not in render([answer_run(named)], "plain", keep=lambda case: case.op == "add")


def test_a_run_says_where_its_file_is_and_commands_name_it_where_they_would_not_find_it():
    analysis = analyse_runs([suite_run()])[0]

    def lines(path):
        command = report_command(path, store.default_results_dir())
        drawn = answer_screen(analysis, RenderOptions(command=command), saved=[path])
        return ["".join(cell.text for cell in line) for line in drawn]

    assert "saved x.json" in lines("x.json")
    assert lines("x.json")[-1] == "all: gpubench report x.json --full   page: -o r.html"
    assert lines("a b.json")[-1].startswith("all: gpubench report 'a b.json'")
    kept = str(store.default_results_dir() / "machine" / "run.json")
    assert lines(kept)[-1] == "all: gpubench report --full   page: -o r.html"
    long = f"{'x' * 90}.json"
    assert lines(long)[-1] == f"all: gpubench report {long} --full"


def test_queued_calls_have_a_line_where_they_pay_earlier():
    assert "Calls queued without waiting pay from about 4 times smaller sizes." in screen(suite_run())
    assert not any("queued" in line for line in screen(ops([WINS] * 5)))


# It stays on one screen


def too_large(run, width=80, most=24, **look):
    lines = screen(run, width=width, **look)
    return [line for line in lines if cell_len(line) > width] + lines[most:]


SHAPES = st.sampled_from(
    ["win", "lose", "open", "cross", "mixed", "again", "equal", "wrong", "failed", "skip", "huge", "bracket"]
)


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
    beside = {
        "wrong": failed(what),
        "failed": failed(what, "timeout", "no answer " * 20),
        "skip": skipped(what),
    }
    return [measured(op_case(op, low), 1e-3, sessions=5), beside[shape]]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(SHAPES, SHAPES), min_size=14, max_size=14), st.booleans(), st.booleans(),
    st.sampled_from(["", "results/intel-r-xeon-r-processor-nvidia-h200-d0f62e/20260101T000000Z-00000001.json"]),
)  # fmt: skip
@pytest.mark.slow
def test_fourteen_ops_fit_one_screen(shapes, interrupted, ascii_only, saved):
    found = {}
    for op, pair in zip(SUITE, shapes, strict=True):
        for shape, regime in zip(pair, (WAITED, ALWAYS), strict=True):
            found |= {one.id: one for one in shaped(op, shape, regime)}
    ending = {"complete": False, "exit_reason": "interrupted"} if interrupted else {}
    run = answer_run(list(found.values()), **ending)
    assert not too_large(run, ascii_only=ascii_only)
    (analysis,) = analyse_runs([run])
    options = RenderOptions(ascii_only=ascii_only, command=report_command(saved or None))
    drawn = answer_screen(analysis, options, saved=[saved] if saved else [])
    assert len(drawn) <= 24
    texts = ["".join(cell.text for cell in line) for line in drawn]
    # The name of a file is of no use without its end.
    assert max(cell_len(text) for text in texts if not saved or saved not in text) <= 80
    for row in answer(analysis).rows:
        top = 4096 if row.op == "matmul" else 16777216
        for cell in row.cells.values():
            if cell.kind in ("all-sizes", "no-size"):
                assert cell.gain.n >= top
    if ascii_only:
        assert "\n".join(screen(run, ascii_only=True)).isascii()


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from([suite_run, one_op_run, named_run, no_gpu_run, full_run, cpu_run, software_run]),
    st.text(min_size=1, max_size=120) | st.sampled_from(["x" * 200, "日本語" * 30]), st.integers(60, 120),
    st.sampled_from(["plain", "table"]),
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(make, name, width, format):
    run = make()
    devices = [msgspec.structs.replace(device, name=name) for device in run.devices]
    text = render([msgspec.structs.replace(run, devices=devices)], format, sections=("answer",), width=width)
    assert not [line for line in text.splitlines() if cell_len(line) > width]


def test_the_table_is_the_same_from_64_columns_up():
    def table(width):
        lines = screen(suite_run(), width=width)
        start = next(i for i, line in enumerate(lines) if "pays from" in line)
        return lines[start : start + 15]

    assert table(64) == table(80) == table(120)


def test_no_line_of_the_default_suite_is_cut_at_60_columns():
    assert not [line for line in screen(suite_run(), width=60) if line.endswith("...")]


def test_more_rows_than_a_screen_repeat_the_sentence():
    found = []
    for i in range(30):
        found += op_rows(f"op{i:02}", {WAITED: WINS})
    lines = screen(answer_run(found))
    assert len([line for line in lines if line.startswith("op")]) == 30
    assert lines[-1] == lines[0] or lines[-2:] == lines[:2]


def test_a_terminal_shows_what_plain_text_says_with_colour_beside_it():
    run = suite_run()
    plain = render([run], "plain", sections=("answer",))
    assert render([run], "table", sections=("answer",)) == plain
    assert "\x1b[38;5;75m" in render([run], "table", sections=("answer",), color=True)


@pytest.mark.parametrize("format", ["markdown", "html"])
def test_pages_have_the_answer_as_sentences_and_a_table(format):
    text = render([suite_run()], format, sections=("answer",))
    assert "the GPU wins all 14" in text
    # A page has the situation in a heading above both of its columns.
    assert ("data on the GPU: pays from" in text) == (format == "markdown")
    assert "data on the GPU" in text
    assert "pays from" in text


@pytest.mark.parametrize("name", ["table", "plain"])
def test_a_report_leads_with_the_sentence_and_says_nothing_that_stands_below(name):
    text = render([suite_run()], name)
    assert text.startswith("With data on the GPU the GPU wins all 14, ")
    assert "gpubench report --sections warnings" not in text
    assert (
        sum(
            line.startswith("Run: ")
            for line in render([suite_run()] * 2, name, sections=("answer",)).splitlines()
        )
        == 2
    )


@pytest.mark.slow
def test_the_sentence_is_the_same_in_every_format():
    run = suite_run()
    said = json.loads(render([run], "json"))["verdicts"]
    assert len(said) == 1
    for name in ("plain", "markdown", "html"):
        assert said[0] in " ".join(render([run], name).split())


def test_by_device_has_a_row_for_each_backend_and_the_op_once():
    found = op_rows("add", {WAITED: WINS, ALWAYS: LOSES})
    found += op_rows("add", {WAITED: dict.fromkeys(ENDS, 5.0), ALWAYS: LOSES}, device="wgpu:0", cpu=False)
    lines = screen(answer_run(found, devices=(CPU, GPU, WEBGPU)), by_device=True)
    rows = [line.split("  all sizes")[0].strip() for line in lines if "  all sizes" in line]
    assert rows == ["add  CuPy", "WebGPU"]
    assert any(line.startswith("Test GPU (CuPy, WebGPU) against ") for line in lines)
    assert lines[0].startswith("add: with data on the GPU the GPU wins at all sizes")


def test_rows_and_tokens_of_a_network_are_counted_one_by_one():
    """They are no elements, and 4096 of them are not said to be 4 K."""
    run = answer_run([one for name in NETWORK for one in op_rows(name, {WAITED: {16: 0.5, 4096: 3.0}})])
    text = "\n".join(screen(run))
    assert "elements" not in sentence(run)
    assert "at 4096" in text
    assert "4 K" not in text


def test_a_hang_within_a_small_budget_is_no_lack_of_time():
    case = op_case("gelu", 1024)
    hung = Failure(
        id=case.id, case=case, reason="timeout", detail="no answer within 4 s while in phase first launch"
    )
    run = answer_run([hung, skipped(op_case("gelu", 64), reason="budget")])
    run = msgspec.structs.replace(run, settings=msgspec.structs.replace(run.settings, budget_s=2.0))
    text = " ".join(screen(run))
    assert "no answer within 4 s" in text
    assert "raise --budget" not in text
