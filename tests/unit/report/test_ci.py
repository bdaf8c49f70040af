"""What a CI reads: verdict and counts, messages, outputs, Markdown that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.cli import ci
from gpubench.cli.ci import MOST, CiOutcome, add_marker, fit_text, messages, of_comparison, of_reports, outputs
from gpubench.compare.comparison import CompareOptions
from gpubench.report import analyse_runs
from tests.unit.report.builders import case, curve, failed, measured, run_of
from tests.unit.report.samples import drawn, full_run
from tests.unit.report.sides import CASES, compared, pair

QUIET = CiOutcome(verdict="ok", slower=0, faster=0, unsure=0, exit_code=0)
FIRST, SECOND = (what.id for what in CASES[:2])
MUTED = CompareOptions(ignored=(lambda case: True,))


def told(slow=None, *, options=None, k=5, broken=()):
    base, new = pair(slow, k=k)
    outcomes = [failed(row.case) if row.id in broken else row for row in new.outcomes]
    return of_comparison(compared(base, replace(new, outcomes=outcomes), options))


@pytest.mark.parametrize(
    ("words", "verdict", "counts", "code", "errors", "unsure"),
    [
        ({"slow": {FIRST: 1.3, SECOND: 0.7}}, "slower", (1, 1, 0), 3, 1, 0), ({}, "ok", (0, 0, 0), 0, 0, 0),
        # A broken case outweighs a slower one, and that an unsure one; whoever ignores all cases reads of none.
        ({"slow": {FIRST: 1.3}, "broken": [SECOND]}, "failed", (1, 0, 0), 3, 2, 0), ({"k": 3}, "unsure", (0, 0, 4), 0, 0, 4),
        ({"k": 3, "options": MUTED}, "ok", (0, 0, 0), 0, 0, 0),
    ],
)  # fmt: skip
def test_a_comparison_in_a_few_words(words, verdict, counts, code, errors, unsure):
    found = told(**words)
    assert (found.verdict, (found.slower, found.faster, found.unsure), found.exit_code) == (
        verdict, counts, code,
    )  # fmt: skip
    assert (len(found.errors), sum("UNSURE (few-sessions)" in text for text in found.warnings)) == (
        errors,
        unsure,
    )
    assert verdict != "slower" or found.errors == (f"slower: FAILED: {FIRST}",)


def reported(outcomes, code, *gates):
    return of_reports(analyse_runs([run_of(outcomes)], gates=ci.parse_gates(gates, None)), code)


def test_reports_in_a_few_words():
    plain = reported(curve({64: 0.5, 256: 4.0}), 0)
    assert (plain.verdict, plain.slower, plain.faster, plain.unsure, plain.gpu_wins) == (
        "ok", None, None, None, 1,
    )  # fmt: skip
    gated = reported(curve({64: 0.5}), 3, "matmul=2")
    assert (gated.verdict, gated.exit_code) == ("failed", 3)
    assert gated.errors[0].startswith("min-speedup matmul=2: FAILED: below 2x: matmul/n=64/")
    near = reported(curve({64: 1.001}, sessions=3), 0, "matmul=1")
    assert (near.verdict, near.errors) == ("unsure", ())
    assert near.warnings[0].startswith("min-speedup matmul=1: passed, but ")
    for code in (1, 0):  # of `run`; of `report`, which succeeds in telling it
        wrong = reported([measured(case(), 1e-3), failed(case(device="cupy:0"))], code)
        assert (wrong.verdict, len(wrong.errors), wrong.exit_code) == ("failed", 1, code)


@pytest.mark.parametrize("count", [0, 1, MOST, MOST + 1, 40])
def test_at_most_ten_messages_of_each_kind(count):
    errors, warnings = (tuple(f"{kind}{i}" for i in range(count)) for kind in "ew")
    lines = list(messages(replace(QUIET, errors=errors, warnings=warnings)))
    for kind in ("error", "warning"):
        ours = [line for line in lines if line.startswith(f"::{kind} title=gpubench::")]
        assert len(ours) == min(count, MOST + 1)
        assert (f"and {count - MOST} more" in ours[-1]) if count > MOST else True
    assert lines == sorted(lines, key=lambda line: line.startswith("::warning"))


@given(st.text())
def test_a_message_is_one_line_that_the_runner_reads_back(text):
    (line,) = messages(replace(QUIET, errors=(text,)))
    assert not {"\n", "\r"} & {*line}
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
            found[head] = "\n".join(iter(lines.__next__, end))
        elif equals:
            found[name] = value
    return found


@given(st.text(st.characters(codec="utf-8")) | st.none())
def test_outputs_are_read_back_whatever_the_file_is_called(name):
    """A result that was not kept has no name."""
    assert read_back(outputs(QUIET, name)) == {
        "verdict": "ok", "slower": "0", "faster": "0", "unsure": "0", "gpu_wins": "", "exit-code": "0", "result-file": name or "",
    }  # fmt: skip


FOLDED = "<details>\n<summary>{}</summary>\n\n{}\n\n</details>"


def document(*parts):
    return "## gpubench report\n\n" + "\n\n".join(parts) + "\n"


def test_the_last_folded_sections_go_first():
    text = document("lead", FOLDED.format("one", "a" * 500), "between", FOLDED.format("two", "b" * 500), "end")
    assert fit_text(text, len(text)) == text
    short, none = fit_text(text, len(text) - 1), fit_text(text, 400)
    assert ("a" * 500 in short, "b" * 500 in short) == (True, False)
    assert all(word in short for word in ("**truncated**: 1 folded section left out", "lead", "between", "end"))
    assert ("2 folded sections left out" in none, "<details>" in none) == (True, False)


def test_what_is_still_too_long_is_cut_at_a_line():
    text = document(*(f"line {i}" for i in range(200)))
    short = fit_text(text, 500)
    assert len(short) <= 500
    assert "the end of the report left out" in short
    assert all(line in text.splitlines() for line in short.splitlines() if not line.startswith("**truncated**"))
    assert fit_text(text, 20) == ""


@pytest.mark.parametrize("limit", [1000, 3000, 6000, 10_000])
def test_a_real_report_fits_and_has_no_half_of_a_section(limit):
    short = fit_text(add_marker(drawn(full_run, format="markdown"), "x"), limit)
    assert len(short.encode()) <= limit
    assert short.startswith("<!-- gpubench:x -->\n## gpubench report\n")
    assert short.count("<details>") == short.count("</details>")
