"""Warnings about a run, and the line of its machine. Its sentences stand in tests/golden/screens.txt."""

from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.findings import findings
from gpubench.report import render
from gpubench.result.run import Settings
from tests.unit.report.builders import CPU, SOFTWARE, case, measured, run_of

WILD = [0.5] * 5 + [1.5] * 5


def test_a_section_that_a_run_has_nothing_for_says_so():
    run = run_of([measured(case(), 1e-3)], devices=(CPU,), with_machine=False)
    assert "This run has nothing for --sections map." in render([run], "plain", sections=["map"])
    both = render([run, replace(run, id="other")], "markdown", sections=["map", "hybrid"])
    assert "These runs have nothing for --sections map,hybrid." in both


def codes(run):
    return {finding.code for finding in findings(analyse(run))}


def with_sizes(run):
    return replace(run, selection=replace(run.selection, sizes={"matmul": [64]}))


def test_warnings_about_the_run():
    assert codes(run_of([measured(case(), 1e-3, sessions=5)], sessions=5)) == set()
    few = run_of([measured(case(), 1e-6, repeat=1)])
    assert codes(few) == set(), "a search does not warn of its own defaults"
    assert codes(with_sizes(few)) == {"few-sessions", "too-short"}
    assert "budget" not in codes(run_of([measured(case(), 1e-3)]))


def test_every_derived_warning_gives_advice_and_names_no_option_that_was_given():
    rows = [measured(case(), 1e-3, factors=WILD), measured(case(device="wgpu:0"), 1e-6, repeat=1)]
    found = findings(analyse(with_sizes(run_of(rows, threads=1, devices=(CPU, SOFTWARE)))))
    assert {finding.code for finding in found} >= {"unstable", "software-device", "too-short", "cpu-limited"}
    assert all(finding.hint for finding in found)
    rigorous = Settings(preset="rigorous")
    run = run_of([measured(case(), 1e-3, factors=WILD, sessions=10)], sessions=10, settings=rigorous)
    assert not [finding for finding in findings(analyse(run)) if "--rigorous" in finding.hint]
