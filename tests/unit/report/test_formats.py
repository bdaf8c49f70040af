"""Formats: golden reports, hostile names, widths, and what other programs read."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.base.errors import UsageError
from gpubench.base.plugins import sections
from gpubench.base.streams import escape
from gpubench.report import FORMATS, render
from gpubench.report.document import ReportDocument
from gpubench.report.exporters import CSV_COLUMNS
from gpubench.result.run import Selection
from gpubench.result.store import dumps
from tests import golden
from tests.examples import examples
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, curve, measured, run_of
from tests.unit.report.samples import cpu_run, full_run, interrupted_run, software_run

NAMES = [
    "a|b",
    "`rm`",
    "<script>alert(1)</script>",
    "[x](javascript:1)",
    "=1+1",
    "\u202egpu",
    "🔥",
    "a\nb",
    "~~x~~",
]
HOSTILE = st.text(min_size=1, max_size=200) | st.sampled_from([*NAMES, "\\|", "| --- |", "\\", "x" * 200])


@pytest.mark.parametrize(("run", "name"), golden.CASES)
def test_golden(run, name):
    """If the difference is wanted: python -m tests.golden, and look at it."""
    assert golden.text(run, name) == golden.path(run, name).read_text(encoding="utf-8")


def named(name):
    return run_of(
        curve({64: 0.25, 256: 4.0}, sessions=1), devices=(CPU, msgspec.structs.replace(GPU, name=name))
    )


@settings(max_examples=examples(50), deadline=None)
@given(HOSTILE)
def test_markdown_rows_keep_their_shape(name):
    text = render([named(name)], "markdown")
    assert "<script" not in text
    columns = 0
    for line in text.split("\n"):
        if not line.startswith("|"):
            columns = 0
            continue
        found = len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))
        assert columns in (0, found)
        columns = found
    assert re.sub(r"</?(?:details|summary)>", "", text).count("<") == 0


@settings(max_examples=examples(50), deadline=None)
@given(HOSTILE)
def test_other_formats_stand_any_name(name):
    run = named(name)
    for line in render([run], "plain").split("\n"):
        assert len(line) <= 80 or " " not in line.strip()
    rows = list(csv.DictReader(io.StringIO(render([run], "csv"))))
    assert len(rows) == len(run.outcomes)
    assert all(not row["device_name"].startswith("=") for row in rows)
    assert json.loads(render([run], "json"))["name"] == "gpubench-report"
    assert "\x1b" not in render([run], "table")


@pytest.mark.parametrize(
    ("reason", "complete", "state"),
    [
        ("ok", True, "complete"),
        ("budget", True, "complete, budget exhausted"),
        ("wrong-result", True, "complete, wrong results"),
        ("interrupted", False, "interrupted"),
        ("ok", False, "not complete"),
        ("from-the-future", True, "complete, from-the-future"),
    ],
)
def test_the_line_of_the_run_says_how_it_ended(reason, complete, state):
    run = run_of([measured(case(), 1e-3)], complete=complete, exit_reason=reason)
    assert re.search(rf"^Run: .*5 sessions, {state}$", render([run], "plain", width=120), re.M)


def test_an_early_end_tells_what_it_cost():
    assert "Stopped: 4 cases not measured. " in render([interrupted_run()], "plain")
    reached = run_of([measured(case(), 1e-3)], complete=False, exit_reason="interrupted")
    named = Selection(ops=[case().op], sizes={case().op: [case().n]})
    text = " ".join(render([msgspec.structs.replace(reached, selection=named)], "plain").split())
    assert "Stopped: every case was reached, but not in every session. " in text


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_search_that_stopped_early_lacks_no_size_in_a_session(sessions):
    run = run_of(
        [measured(case(), 1e-3, sessions=sessions)],
        sessions=sessions,
        complete=False,
        exit_reason="interrupted",
    )
    searching = msgspec.structs.replace(run, selection=Selection(ops=[case().op]))
    text = " ".join(render([searching], "plain").split())
    assert "Stopped: every op was reached; more sizes would narrow the thresholds. " in text


def test_the_pause_before_a_run_goes_on_is_none_of_its_seconds():
    run = run_of([measured(case(), 1e-3)], complete=False, exit_reason="interrupted")
    run = msgspec.structs.replace(
        run, started_at="2026-01-01T10:00:00Z", finished_at="2026-01-02T10:00:10Z", paused_s=86400.0,
        settings=msgspec.structs.replace(run.settings, budget_s=8.0),
    )  # fmt: skip
    assert "Stopped at 10 s: " in render([run], "plain")


def test_escaping():
    assert escape("a|b`c*d_e~f\\g<h>&") == "a\\|b\\`c\\*d_e\\~f\\\\g&lt;h&gt;&amp;"
    assert escape("_a_ __b") == "\\_a\\_ \\_\\_b"
    assert escape("[x](y)") == "[x]\\(y)"
    assert escape("at 128 [64, 256]") == "at 128 [64, 256]"
    assert escape("[x]: y") == "[x]\\: y"
    assert [escape(text) for text in ("# h", "- i", "1. i", "12) i", "1.5 ms", "= x")] == [
        "\\# h", "\\- i", "1\\. i", "12\\) i", "1.5 ms", "\\= x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "@name", "(@org/team)", "a@b.example.org", "#12", "org/repo#3", "!12", "GH-12", "org/repo@deadbeef",
        "https://example.org/x", "ftp://example.org", "www.example.org", "HTTP://A.B", "mailto:a@b.co", "-@name", "1#1",
    ],
)  # fmt: skip
def test_markdown_tells_nobody_and_links_nothing(text):
    shown = escape(f"a {text} b")
    assert not re.search(r"(?<![A-Za-z0-9])@\w|@[\w-]+\.|@[0-9a-f]{7}|[#!]\d|GH-\d|://|www\.", shown)
    assert html.unescape(shown).replace("\u200b", "").replace("\\", "") == f"a {text} b"
    report = render([named(text)], "markdown")
    assert text not in report
    assert escape(text) in report


def test_case_ids_stay_as_they_are_in_markdown():
    for text in (
        "add/n=64/float32/library/transfer-once-10@cupy:0",
        "CPU @ 2.20GHz",
        "tests/a.py::x",
        "C# 7",
        "a/b",
    ):
        assert escape(text) == text


def test_markdown_holds_no_quick_action():
    assert escape("/close") == "\\/close"


@pytest.mark.parametrize("name", ["table", "plain"])
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("make", [full_run, cpu_run, software_run, interrupted_run])
def test_text_keeps_inside_its_width(name, width, make):
    for line in render([make()], name, width=width).split("\n"):
        assert len(line) <= width, line


@pytest.mark.parametrize("name", FORMATS)
def test_ascii_is_ascii(name):
    run = named("Größe 🔥")
    assert render([run], name, ascii_only=True).isascii() or name == "csv"


def test_colour_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # the caller decides; the environment does not reach this layer
    assert "\x1b" not in render([full_run()], "table")
    colored = render([full_run()], "table", color=True)
    assert "\x1b[32m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored).split() == render([full_run()], "table").split()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("make", [full_run, cpu_run, software_run, interrupted_run, lambda: run_of([])])
def test_every_run_renders_the_same_bytes_twice(name, make):
    text = render([make()], name)
    assert text == render([make()], name)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize("name", FORMATS)
def test_rendering_touches_no_disk(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    render([full_run()], name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["table", "plain", "markdown", "json", "jsonl", "csv", "go"])
def test_two_runs_stand_one_after_the_other(name):
    assert len(render([full_run(), cpu_run()], name)) > len(render([full_run()], name))


def test_every_speedup_table_names_its_baseline():
    line = "vs numpy tuned, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"
    for name in ("plain", "markdown", "table"):
        text = render([full_run()], name, sections=["speedup"])
        assert text.count(line) == 1, "once for all tables, before the first of them"
        assert text.index(line) < text.index("matmul")


def test_markdown_leads_with_what_a_reader_came_for():
    text = render([full_run()], "markdown")
    titles = re.findall(r"^(?:### |<summary>)(.*?)(?:</summary>)?$", text, re.M)
    assert [re.split("[:,]", title)[0] for title in titles] == [
        "Answer", "Break-even", "Speedup", "Machine", "Warnings", "Amortization", "Every speedup",
        "Skipped and failed cases",
        "Where the time goes", "Roofline", "Environment",
    ]  # fmt: skip
    opened = text.index("<details>")
    assert text.index("### Warnings") < opened
    assert "### " not in text[opened:]
    assert text.splitlines()[4].startswith("- With data on the GPU the GPU wins matmul;")
    assert re.search(r"^\| matmul \| ~?\d+² \|", text.split("### Break-even")[0], re.M)
    assert "<img" not in text
    assert "](" not in text


def test_sizes_of_the_search_alone_are_for_who_asks_for_the_section():
    sizes = {64 * 2**i: 0.25 * 2**i for i in range(6)}
    outcomes = [*curve(sizes | {100: 0.4}), *curve(sizes | {200: 0.5}, regime="transfer-once")]
    outcomes += curve(sizes, regime="transfer-always")
    run = run_of(list({outcome.id: outcome for outcome in outcomes}.values()))
    text = render([run], "plain").partition("Speedup: ")[2]
    assert "Sizes that few situations have are left out" in " ".join(text.split())
    assert not re.search(r"^ *(100|200) ", text, re.M)
    assert re.search(r"^ *100 ", render([run], "plain", sections=["speedup"]), re.M)
    text = render([run], "markdown", sections=["speedup"])
    assert "| 100 |" in text
    assert "| 200 |" in text


def test_a_narrow_terminal_has_shorter_cells_and_headings():
    outcomes = [
        outcome
        for regime in ("resident", "transfer-once", "transfer-always")
        for outcome in curve({64000000: 0.25, 256000000: 4.0}, regime=regime)
    ]
    run = run_of(list({outcome.id: outcome for outcome in outcomes}.values()))
    found = {width: render([run], "plain", width=width, sections=["breakeven"]) for width in (60, 80, 120)}
    assert len(re.findall(r"\d{9}² \(\d{8,9}-\d{9}²\)", found[120])) >= 2
    assert "queued on the GPU 10 calls a copy copied at every call" in " ".join(found[120].split())
    assert re.search(r"^matmul( +~?\d{9}²){3}$", found[60], re.M), "without the interval"
    assert "copied: each call copies its inputs in and its output back" in " ".join(found[60].split())


def test_no_field_of_a_row_is_lost_to_the_number_of_its_source():
    for rows in sections.all_rows(()):
        assert "source" not in rows.kind.__struct_fields__, rows.name


def test_each_dtype_has_its_rows_and_large_sizes_are_short():
    outcomes = [
        measured(case("relu", n, device=device, dtype=dtype), 1e-3 / (ratio if device == "cupy:0" else 1))
        for dtype in ("float32", "float16")
        for n, ratio in ((2**22, 0.25), (2**24, 4.0))
        for device in ("numpy:0", "cupy:0")
    ]
    text = render([run_of(outcomes)], "plain", sections=["breakeven"])
    assert len(re.findall(r"~?[\d.]+ M \([\d.]+-[\d.]+ M\)", text)) == 2
    assert re.findall(r" (float\d+) ", text) == ["float16", "float32"]


@pytest.mark.parametrize(("ratio", "cell"), [(4.0, "< 64"), (0.5, "> 64"), (1.0, "about equal")])
def test_a_cell_says_what_is_known(ratio, cell):
    assert cell in render([run_of(curve({64: ratio}))], "plain", sections=["breakeven"])


def test_a_terminal_sees_where_the_time_goes_at_the_largest_size():
    section = ["breakdown"]
    assert len(re.findall(r"^matmul +\d+", render([full_run()], "plain", sections=section), re.M)) == 1
    assert render([full_run()], "markdown", sections=section).count("us |") >= 2


def test_warnings_of_many_cases_stay_short():
    wild = [0.6] * 5 + [1.4] * 5
    run = run_of(curve({2**i: 0.5 for i in range(4, 20)}, factors=wild))
    text = render([run], "plain", sections=["warnings"])
    assert "unstable (16 cases): " in text
    assert len(text.splitlines()) < 20


def test_json_is_the_document():
    text = render([full_run(), cpu_run()], "json")
    found = msgspec.json.decode(text, type=ReportDocument)
    assert len(found.sources) == 2
    assert {row.verdict for row in found.break_even} == {"at", "all-sizes", "no-size"}
    assert {row.kind for row in found.speedups} == {"headline", "library"}
    assert not [row for row in found.speedups if row.headline and "wgpu" in row.id]
    assert "NaN" not in text


def test_the_kernel_that_a_device_took_stands_beside_the_case():
    plain = measured(case(n=64, form="tuned"), 2e-3)
    chosen = msgspec.structs.replace(
        measured(case(n=64, form="tuned", device="wgpu:0"), 1e-3), kernel="64x128x16, 8x8|<b>"
    )
    run = run_of([plain, chosen], devices=(CPU, msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu")))
    rows = {row["id"]: row for row in json.loads(render([run], "json"))["cases"]}
    assert rows[chosen.id]["kernel"] == "64x128x16, 8x8|<b>"
    assert rows[plain.id]["kernel"] is None
    lines = [line for line in render([run], "markdown", sections=["raw"]).splitlines() if "64x128x16" in line]
    assert len(lines) == 1
    assert chosen.id in lines[0]
    assert "<b>" not in lines[0]
    assert "kernel" not in render([run_of([plain])], "markdown", sections=["raw"])


def test_csv_columns_are_those_that_are_documented():
    text = render([full_run()], "csv")
    assert text.split("\n")[0] == ",".join(CSV_COLUMNS)
    rows = {row["case_id"]: row for row in csv.DictReader(io.StringIO(text))}
    row = rows["matmul/n=1024/float32/library/resident-queued@cupy:0"]
    assert (row["n"], row["label"], row["ci_kind"]) == ("1024", "ok", "prior")
    assert float(row["speedup"]) == pytest.approx(43.65, rel=1e-3)
    assert row["baseline_id"] == "matmul/n=1024/float32/tuned/resident@numpy:0"
    assert rows["add/n=1000/float32/tuned/resident-queued@cupy:0"]["time_s"] == ""


def test_every_measured_gpu_row_of_the_csv_has_a_speedup():
    run = run_of([
        measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3),
        measured(case(form="tuned", device="cupy:0"), 5e-4),
    ])  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(render([run], "csv"))))
    assert [row["speedup"] for row in rows] == ["", "2", "4"]


def test_time_unit():
    assert "0.060 ms" in render([full_run()], "markdown", time_unit="ms", sections=["speedup"])
    assert "0.044 ms" in render([full_run()], "plain", time_unit="ms", sections=["speedup"])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"format": "markdwn"}, "did you mean 'markdown'?"),
        ({"format": "plain", "sections": ["speedups"]}, "did you mean 'speedup'?"),
        ({"format": "plain", "time_unit": "min"}, "take one of these for --time-unit"),
    ],
)
def test_unknown_names_get_a_suggestion(arguments, hint):
    with pytest.raises(UsageError) as caught:
        render([full_run()], **arguments)
    assert caught.value.hint == hint


def test_sections_come_in_one_order():
    both = render([full_run()], "plain", sections=["speedup", "answer"])
    assert both == render([full_run()], "plain", sections=["answer", "speedup"])
    assert "Warnings" not in both


def test_a_selection_that_keeps_nothing_is_an_error():
    with pytest.raises(UsageError, match="leave no case"):
        render([full_run()], "plain", keep=lambda case: False)


def test_a_filter_keeps_the_baseline():
    text = render([full_run()], "plain", keep=lambda case: case.device_id == "cupy:0", sections=["breakeven"])
    assert re.search(r"^matmul .*²", text, re.M)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "html"])
def test_rendering_for_files_imports_neither_rich_nor_numpy(name, tmp_path):
    file = tmp_path / "run.json"
    file.write_bytes(dumps(software_run()))
    program = (
        "import sys; from gpubench import report; from gpubench.result import store; "
        f"report.render([store.load({str(file)!r})], {name!r}); "
        "print([m for m in ('rich', 'numpy', 'cupy', 'wgpu') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_a_stored_run_reports_the_same(tmp_path):
    run = run_of([measured(case(), 1e-3), measured(case(device="wgpu:0"), 2e-3)], devices=(CPU, SOFTWARE))
    again = msgspec.json.decode(dumps(run), type=type(run))
    assert render([again], "plain") == render([run], "plain")
