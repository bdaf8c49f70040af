"""What a CI reads: gates, verdict and counts, messages, outputs, Markdown that fits."""

import pytest
from msgspec.structs import replace

from gpubench.analysis import findings
from gpubench.cli import ci
from gpubench.cli.ci import MOST, CiOutcome, fit_text, messages, outputs
from gpubench.report import analyse_runs
from tests.unit.report.builders import CPU, case, curve, measured, planned, run_of, skipped

QUIET = CiOutcome(verdict="ok", slower=0, faster=0, unsure=0, exit_code=0)


@pytest.mark.parametrize("count", [1, MOST, MOST + 1])
def test_at_most_ten_messages_of_each_kind(count):
    errors, warnings = (tuple(f"{kind}{i}" for i in range(count)) for kind in "ew")
    lines = list(messages(replace(QUIET, errors=errors, warnings=warnings)))
    kinds = ["error" if line.startswith("::error title=gpubench::") else "warning" for line in lines]
    assert kinds == [kind for kind in ("error", "warning") for _ in range(min(count, MOST + 1))]
    assert ("and 1 more" in lines[-1]) == (count > MOST)


def test_outputs_are_a_line_each_whatever_the_file_is_called():
    """A result that was not kept has no name; a line's end in a name sets no other output."""
    lines = "verdict=ok\nslower=0\nfaster=0\nunsure=0\ngpu_wins=\nexit-code=0\n"
    assert outputs(QUIET, None) == f"{lines}result-file=\n"
    assert outputs(QUIET, "a\nb=c") == f"{lines}result-file=a b=c\n"


FOLDED = "<details>\n<summary>{}</summary>\n\n{}\n\n</details>"


def document(*parts):
    return "## gpubench report\n\n" + "\n\n".join(parts) + "\n"


def test_the_last_folded_sections_go_first():
    text = document("lead", FOLDED.format("one", "a" * 500), "between", FOLDED.format("two", "b" * 500), "end")
    assert fit_text(text, len(text)) == text
    assert ["a" * 500 in (short := fit_text(text, len(text) - 1)), "b" * 500 in short] == [True, False]
    short = fit_text(text, 400)
    assert ("<details>" in short, "**truncated**: folded sections left out" in short) == (False, True)
    assert all(word in short for word in ("lead", "between", "end"))


def test_what_is_still_too_long_is_cut_at_a_line():
    text = document(*(f"line {i}" for i in range(200)))
    short = fit_text(text, 500)
    assert len(short) <= 500
    assert "**truncated**: the end of the report left out" in short
    assert all(line in text.splitlines() for line in short.splitlines() if not line.startswith("**truncated**"))
    assert fit_text(text, 20) == ""


# ---------------------------------------------------------------- gates
WIDE = (0.5, 2.0, 0.6, 1.9, 0.7, 1.4, 1.0, 1.0, 0.9, 1.1)


def gates(outcomes, *min_speedups, fail_on=None, **kind):
    (analysis,) = analyse_runs([run_of(outcomes, **kind)], gates=ci.parse_gates(min_speedups, fail_on))
    return findings.gates(analysis)


def gpu(n, **what):
    return case(n=n, device="cupy:0", **what)


CPU_64 = measured(case(n=64), 1e-3)


def test_fail_on():
    noisy = measured(gpu(64), 1e-4, factors=WIDE)
    rows = [CPU_64, noisy, skipped(gpu(128)), planned(gpu(256))]
    found = gates(rows, fail_on="incomplete, noisy,skipped", complete=False, exit_reason="interrupted")
    told = [(gate.name, gate.low) for gate in found]
    assert told == [("noisy", (noisy.id,)), ("skipped", (gpu(128).id,)), ("incomplete", (gpu(256).id,))]
    assert found[2].reason == "the run ended early (interrupted)"
    assert all(gate.passed for gate in gates(curve({64: 2.0}), fail_on="noisy,skipped,incomplete"))
    assert not gates(curve({64: 2.0}), fail_on="incomplete", exit_reason="budget")[0].passed
    assert gates([CPU_64], fail_on="noisy", devices=[CPU])[0].passed, "a CPU alone has nothing to ask"


def test_a_speedup_is_asked_of_the_fastest_cpu_code_and_of_the_whole_interval():
    tuned = measured(case(n=64, implementation="tuned"), 5e-4)
    rows = [CPU_64, tuned, measured(gpu(64), 1e-4), planned(gpu(128))]
    assert [(gate.low, gate.missing) for gate in gates(rows, "matmul=7")] == [((gpu(64).id,), (gpu(128).id,))]
    spans = [("a", 2.0, 3.0), ("b", 1.0, 2.0), ("c", 1.0, 1.5)]
    assert findings.fall_short(ci.parse_gates(["*=2"], None).min_speedups[0], spans) == (("c",), ("b",))
