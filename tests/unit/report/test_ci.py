"""What a CI reads: verdict and counts, messages, outputs, Markdown that fits."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.cli import ci
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.report import analyse_runs, draw_report
from gpubench.report.ci import (
    MOST,
    CiOutcome,
    add_marker,
    fit_text,
    messages,
    of_comparison,
    of_reports,
    outputs,
)
from tests.examples import examples
from tests.unit.report.builders import case, curve, failed, measured, run_of
from tests.unit.report.samples import full_run
from tests.unit.report.sides import CASES, pair

QUIET = CiOutcome(verdict="ok", slower=0, faster=0, unsure=0, exit_code=0)


def compared(slow=None, *, options=None, k=5, broken=(), sigma=0.01):
    base, new = pair(slow, k=k, sigma=sigma)
    outcomes = [failed(row.case) if row.id in broken else row for row in new.outcomes]
    new = msgspec.structs.replace(new, outcomes=outcomes)
    return of_comparison(compare(("a", base), [("b", new)], options or CompareOptions()))


def test_a_comparison_in_a_few_words():
    found = compared({CASES[0].id: 1.3, CASES[1].id: 0.7})
    assert (found.verdict, found.slower, found.faster, found.unsure, found.exit_code) == ("slower", 1, 1, 0, 3)
    assert found.errors == (f"slower: FAILED: {CASES[0].id}",)
    assert compared().verdict == "ok"


def test_a_broken_case_outweighs_a_slower_one_and_that_an_unsure_one():
    found = compared({CASES[0].id: 1.3}, broken=[CASES[1].id])
    assert (found.verdict, found.exit_code, len(found.errors)) == ("failed", 3, 2)
    few = compared(k=3)
    assert (few.verdict, few.unsure, few.exit_code) == ("unsure", 4, 0)
    assert sum("UNSURE (few-sessions)" in text for text in few.warnings) == 4
    # Whoever ignores all cases reads of none of them.
    muted = compared(k=3, options=CompareOptions(ignored=(lambda case: True,)))
    assert (muted.verdict, muted.unsure) == ("ok", 0)
    assert not any("UNSURE" in text for text in muted.warnings)


def test_reports_in_a_few_words():
    plain = of_reports(analyse_runs([run_of(curve({64: 0.5, 256: 4.0}))]), 0)
    assert (plain.verdict, plain.slower, plain.faster, plain.unsure, plain.gpu_wins) == (
        "ok",
        None,
        None,
        None,
        1,
    )
    gated = of_reports(analyse_runs([run_of(curve({64: 0.5}))], gates=ci.gates(["matmul=2"], None)), 3)
    assert (gated.verdict, gated.exit_code) == ("failed", 3)
    assert gated.errors[0].startswith("min-speedup matmul=2: FAILED: below 2x: matmul/n=64/")
    near = of_reports(
        analyse_runs([run_of(curve({64: 1.001}, sessions=3))], gates=ci.gates(["matmul=1"], None)), 0
    )
    assert (near.verdict, near.errors) == ("unsure", ())
    assert near.warnings[0].startswith("min-speedup matmul=1: passed, but ")
    for code in (1, 0):  # of `run`; of `report`, which succeeds in telling it
        wrong = of_reports(
            analyse_runs([run_of([measured(case(), 1e-3), failed(case(device="cupy:0"))])]), code
        )
        assert (wrong.verdict, len(wrong.errors), wrong.exit_code) == ("failed", 1, code)


@pytest.mark.parametrize("count", [0, 1, MOST, MOST + 1, 40])
def test_at_most_ten_messages_of_each_kind(count):
    found = msgspec.structs.replace(
        QUIET, errors=tuple(f"e{i}" for i in range(count)), warnings=tuple(f"w{i}" for i in range(count))
    )
    lines = list(messages(found))
    for kind in ("error", "warning"):
        ours = [line for line in lines if line.startswith(f"::{kind} title=gpubench::")]
        assert len(ours) == min(count, MOST + 1)
        assert (f"and {count - MOST} more" in ours[-1]) if count > MOST else True
    assert lines == sorted(lines, key=lambda line: line.startswith("::warning"))


@given(st.text())
def test_a_message_is_one_line_that_the_runner_reads_back(text):
    (line,) = messages(msgspec.structs.replace(QUIET, errors=(text,)))
    assert "\n" not in line
    assert "\r" not in line
    body = line.removeprefix("::error title=gpubench::")
    text = "".join(c if c.isprintable() or c in "\r\n" else " " for c in text)
    # As the runner undoes it: the percent sign last.
    assert body.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%") == text or "%" in text
    assert body.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%").count("%") == text.count("%")


def read_back(text):
    """As the runner reads $GITHUB_OUTPUT: name=value, or name<<END to END."""
    lines, found = iter(text.split("\n")), {}
    for line in lines:
        name, equals, value = line.partition("=")
        head, heredoc, end = line.partition("<<")
        if heredoc and (not equals or len(head) < len(name)):
            body = []
            while (inner := next(lines)) != end:
                body.append(inner)
            found[head] = "\n".join(body)
        elif equals:
            found[name] = value
    return found


@given(st.text(st.characters(codec="utf-8")))
def test_outputs_are_read_back_whatever_the_file_is_called(name):
    found = read_back(outputs(QUIET, name))
    assert found == {
        "verdict": "ok", "slower": "0", "faster": "0", "unsure": "0", "gpu_wins": "", "exit-code": "0",
        "result-file": name,
    }  # fmt: skip


def test_a_result_that_was_not_kept_has_no_name():
    assert read_back(outputs(QUIET, None))["result-file"] == ""


FOLDED = "<details>\n<summary>{}</summary>\n\n{}\n\n</details>"


def document(*parts):
    return "## gpubench report\n\n" + "\n\n".join(parts) + "\n"


def test_the_last_folded_sections_go_first():
    text = document("lead", FOLDED.format("one", "a" * 500), "between", FOLDED.format("two", "b" * 500), "end")
    assert fit_text(text, len(text)) == text
    short = fit_text(text, len(text) - 1)
    assert "a" * 500 in short
    assert "b" * 500 not in short
    assert "**truncated**: 1 folded section left out" in short
    assert all(word in short for word in ("lead", "between", "end"))
    none = fit_text(text, 400)
    assert "2 folded sections left out" in none
    assert "<details>" not in none


def test_what_is_still_too_long_is_cut_at_a_line():
    text = document(*(f"line {i}" for i in range(200)))
    short = fit_text(text, 500)
    assert len(short) <= 500
    assert "the end of the report left out" in short
    assert all(line in text.splitlines() for line in short.splitlines() if not line.startswith("**truncated**"))
    assert fit_text(text, 20) == ""


@given(st.integers(0, 30_000), st.lists(st.text(max_size=40), max_size=20))
@settings(max_examples=examples(60))
def test_it_always_fits(limit, parts):
    report = document(*(FOLDED.format(i, part.replace("<", "&lt;")) for i, part in enumerate(parts)))
    assert len(fit_text(report, limit).encode("utf-8", "surrogatepass")) <= limit


@pytest.mark.parametrize("limit", [1000, 3000, 6000, 10_000])
def test_a_real_report_fits_and_has_no_half_of_a_section(limit):
    text = add_marker(draw_report(analyse_runs([full_run()]), "markdown"), "x")
    short = fit_text(text, limit)
    assert len(short.encode()) <= limit
    assert short.startswith("<!-- gpubench:x -->\n## gpubench report\n")
    assert short.count("<details>") == short.count("</details>")
