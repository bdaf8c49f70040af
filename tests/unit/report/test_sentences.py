"""Warnings about a run, and the line of its machine. Its sentences stand in tests/golden/screens.txt."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.findings import findings
from gpubench.analysis.machine import machine_line
from gpubench.report import render
from gpubench.result.run import Settings
from tests.unit.report.builders import CPU, SOFTWARE, case, measured, planned, run_of
from tests.unit.report.screens import SCREENS, checked

WILD = [0.5] * 5 + [1.5] * 5


def test_a_section_that_a_run_has_nothing_for_says_so():
    run = run_of([measured(case(), 1e-3)], devices=(CPU,), with_machine=False)
    assert "This run has nothing for --sections map." in render([run], "plain", sections=["map"])
    both = render([run, replace(run, id="other")], "markdown", sections=["map", "hybrid"])
    assert "These runs have nothing for --sections map,hybrid." in both


def test_a_run_that_only_checks_has_no_complaint():
    text = render([SCREENS["checked"]()], "plain")
    assert not [word for word in ("Skipped and failed", "no estimate") if word in text]
    cut = run_of([checked(case()), planned(case(n=64))], complete=False, exit_reason="interrupted")
    assert "no-samples" in render([cut], "plain")


def codes(run):
    return {finding.code for finding in findings(analyse(run))}


def with_sizes(run):
    """Return the run as if somebody had named its sizes."""
    return replace(run, selection=replace(run.selection, sizes={"matmul": [64]}))


def test_warnings_about_the_run():
    assert codes(run_of([measured(case(), 1e-3, sessions=5)], sessions=5)) == set()
    few = run_of([measured(case(), 1e-6, repeat=1)])
    assert codes(few) == set(), "a search does not warn of its own defaults"
    assert codes(with_sizes(few)) == {"few-sessions", "too-short"}
    assert "budget" not in codes(run_of([measured(case(), 1e-3)]))


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("cpu-limited", {"threads": 1}), ("inputs-not-random", {"settings": Settings(inputs="zeros")}),
        ("budget", {"exit_reason": "budget"}),
    ],
)  # fmt: skip
def test_a_warning_of_the_whole_run(code, more):
    assert code in codes(run_of([measured(case(), 1e-3)], **more))


def test_every_derived_warning_gives_advice_and_names_no_option_that_was_given():
    rows = [measured(case(), 1e-3, factors=WILD), measured(case(device="wgpu:0"), 1e-6, repeat=1)]
    found = findings(analyse(with_sizes(run_of(rows, threads=1, devices=(CPU, SOFTWARE)))))
    assert {finding.code for finding in found} >= {"unstable", "software-device", "too-short", "cpu-limited"}
    assert all(finding.hint for finding in found)
    rigorous = Settings(preset="rigorous")
    run = run_of([measured(case(), 1e-3, factors=WILD, sessions=10)], sessions=10, settings=rigorous)
    assert not [finding for finding in findings(analyse(run)) if "--rigorous" in finding.hint]


def two_gpus():
    run = run_of([])
    return replace(run, machine=replace(run.machine, gpus=run.machine.gpus * 2))


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (run_of([]), "Test CPU, 2 CPUs, 8 GiB RAM; Test GPU, 16 GiB"),
        (run_of([], with_machine=False, devices=()), "unknown CPU; no GPU"),
        (run_of([], with_machine=False), "Test CPU; Test GPU, 16 GiB"),
        (two_gpus(), "Test CPU, 2 CPUs, 8 GiB RAM; 2 x Test GPU, 16 GiB"),
        (run_of([], with_machine=False, devices=(CPU, SOFTWARE)), "Test CPU; llvmpipe (LLVM 15) (software, no GPU)"),
    ],
)  # fmt: skip
def test_the_machine_line_tolerates_everything_missing(run, line):
    assert machine_line(run) == line
