"""What a run says that compares nothing, and the warnings beside it."""

from __future__ import annotations

import msgspec

from gpubench.analysis.analyse import analyse
from gpubench.analysis.findings import findings
from gpubench.analysis.machine import machine_line
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.run import RunWarning, Settings
from tests.unit.report.builders import (
    CPU,
    SOFTWARE,
    case,
    curve,
    failed,
    measured,
    planned,
    run_of,
    skipped,
)


def words(outcomes, **kind):
    return answer_sentences(analyse(run_of(outcomes, **kind)))


PLAIN = "No faster code than plain NumPy was measured."


def test_without_a_gpu_the_cpu_is_the_answer():
    alone = {"devices": (CPU,), "with_machine": False}
    assert words([measured(case(), 1e-3)], **alone) == (f"No GPU here: compute on the CPU. {PLAIN}",)
    assert words([measured(case(), 1e-3)]) == (f"No GPU was measured. {PLAIN}",)
    unavailable = skipped(case(device="cupy:0"), "unavailable", "cupy is not installed")
    found = words([measured(case(), 1e-3), unavailable])
    assert found == (f"The GPU gave no time (cupy:0: cupy is not installed). {PLAIN}",)


def test_a_software_adapter_is_no_gpu():
    run = run_of(
        [measured(case(), 1e-3), measured(case(device="wgpu:0"), 1e-4)], devices=(CPU, SOFTWARE),
        with_machine=False,
    )  # fmt: skip
    lines = render([run], "plain", sections=["answer"]).splitlines()
    assert lines[0].startswith("No GPU here: compute on the CPU.")
    assert "Looked for: WebGPU (llvmpipe: not a GPU)." in lines


def test_nothing_measured_and_gpu_without_cpu():
    assert words([]) == ("Nothing was measured (no case was planned).",)
    assert "no CPU beside it" in words([measured(case(device="cupy:0"), 1e-3)])[0]
    assert "Nothing was measured (cupy:0: largest error" in words([failed(case(device="cupy:0"))])[0]
    assert "Nothing was measured" in words([planned(case())])[0]


def test_gpus_alone_have_their_times_in_a_row_each():
    devices = ("cupy:0", "wgpu:0")
    rows = [measured(case(n=n, device=one), n * 1e-6) for n in (64, 256) for one in devices]
    run = run_of([*rows, measured(case(op="add", device="cupy:0"), 1e-6)])
    lines = render([run], "plain", sections=["answer"]).splitlines()
    heading = next(i for i, line in enumerate(lines) if line.split()[:2] == ["size", "GPU"])
    assert [line.split()[-3:] for line in lines[heading + 1 : heading + 4]] == [
        ["CuPy", "1.00", "us"], ["CuPy", "256", "us"], ["WebGPU", "256", "us"],
    ]  # fmt: skip
    assert lines[heading + 3].split()[0] == "WebGPU"  # the op and the size stand there once
    assert not any("64.0 us" in line for line in lines)


def test_a_section_that_a_run_has_nothing_for_says_so():
    run = run_of([measured(case(), 1e-3)], devices=(CPU,), with_machine=False)
    assert "This run has nothing for --sections map." in render([run], "plain", sections=["map"])
    assert "These runs have nothing for --sections map,hybrid." in render(
        [run, msgspec.structs.replace(run, id="other")], "markdown", sections=["map", "hybrid"]
    )


OUT_OF_TIME = "the time budget was used up before this case"


def test_nothing_measured_names_what_happened_to_the_cases_themselves():
    absent = RunWarning(code="unavailable", message="cupy: the package cupy is not installed")
    few = [measured(case(), 1e-3, factors=(1.0,) * 3, stop="budget", sessions=1)]
    spent = [skipped(case(n=n), "budget", OUT_OF_TIME) for n in (64, 256)]
    for outcomes in (few, spent, [*few, *spent]):
        found = words(outcomes, exit_reason="budget", warnings=[absent])
        assert found == ("Nothing was measured (the time budget was used up first).",)
    unstopped = msgspec.structs.replace(few[0], stops=[])
    assert "no GPU backend" not in words([unstopped], exit_reason="budget")[0]
    broken = [failed(case(), "build-error", "no compiler"), skipped(case(device="cupy:0"))]
    assert words(broken) == (
        "Nothing was measured (numpy:0: no compiler; cupy:0: needs 9 GiB of 4 GiB).",
    )  # fmt: skip
    early = words([planned(case())], complete=False, exit_reason="interrupted", warnings=[absent])
    assert early == ("Nothing was measured (the run was interrupted).",)
    assert words([], warnings=[absent]) == ("Nothing was measured (cupy: the package cupy is not installed).",)


def test_a_gpu_that_ran_out_of_budget_is_not_said_to_be_absent():
    usual = skipped(case(form="tuned", device="cupy:0"), "no-implementation", "no tuned kernel")
    spent = skipped(case(device="cupy:0"), "budget", OUT_OF_TIME)
    assert words([measured(case(), 1e-3), usual, spent]) == (
        f"The GPU gave no time (the time budget was used up first). {PLAIN}",
    )  # fmt: skip
    assert "no tuned kernel" in words([measured(case(), 1e-3), usual])[0]


def test_a_selection_without_the_gpu_does_not_deny_it():
    found = analyse(run_of(curve({64: 0.25, 256: 4.0})), keep=lambda case: case.device_id == "numpy:0")
    assert answer_sentences(found) == (f"No case of a GPU is among those shown. {PLAIN}",)


def checked(what):
    return msgspec.structs.replace(measured(what, 1e-3), blocks=[], stops=[])


def test_a_run_that_only_checks_has_right_cases_and_no_complaint():
    run = run_of([checked(case()), checked(case(device="cupy:0"))])
    assert answer_sentences(analyse(run)) == ("2 cases are right; nothing was timed (--check-only).",)
    text = render([run], "plain")
    assert "Skipped and failed" not in text
    assert "no estimate" not in text
    assert words([checked(case()), failed(case(n=64))])[0].startswith("1 case is right;")
    cut = run_of([checked(case()), planned(case(n=64))], complete=False, exit_reason="interrupted")
    assert "no-samples" in render([cut], "plain")
    cut = msgspec.structs.replace(cut, argv=["run", "--check-only"])
    assert answer_sentences(analyse(cut))[0].startswith("1 case is right, 1 was not checked;")
    spent = [skipped(case(n=size), "budget", OUT_OF_TIME) for size in (64, 128)]
    assert words([checked(case()), *spent])[0].startswith("1 case is right, 2 were not checked;")


def test_overheads_alone_are_no_reason_to_say_that_nothing_was_planned():
    sync = case("sync", 1, device="cupy:0")
    assert words([checked(sync)]) == ("1 case is right; nothing was timed (--check-only).",)
    assert words([skipped(sync, "no-dtype", "float32 only")]) == (
        "Nothing was measured (cupy:0: float32 only).",
    )
    assert words([measured(sync, 1e-5), failed(case(), "build-error", "no compiler")]) == (
        "Overheads were measured, and no op (numpy:0: no compiler): there is nothing to compare.",
    )


def codes(run):
    return {finding.code for finding in findings(analyse(run))}


def with_sizes(run):
    """Return the run as if somebody had named its sizes."""
    return msgspec.structs.replace(
        run, selection=msgspec.structs.replace(run.selection, sizes={"matmul": [64]})
    )


def test_warnings_about_the_run():
    assert codes(run_of([measured(case(), 1e-3, sessions=5)], sessions=5)) == set()
    few = run_of([measured(case(), 1e-6, repeat=1)])
    assert codes(few) == set(), "a search does not warn of its own defaults"
    assert codes(with_sizes(few)) == {"few-sessions", "too-short"}
    assert "cpu-limited" in codes(run_of([measured(case(), 1e-3)], threads=1))
    zeros = run_of([measured(case(), 1e-3)], settings=Settings(inputs="zeros"))
    assert "inputs-not-random" in codes(zeros)
    assert "budget" in codes(run_of([measured(case(), 1e-3)], exit_reason="budget"))


def test_a_stored_warning_is_not_repeated():
    stored = RunWarning(code="few-sessions", severity="info", message="reported by the run")
    found = findings(analyse(run_of([measured(case(), 1e-3)], warnings=[stored])))
    assert [finding.message for finding in found] == ["reported by the run"]


def test_every_derived_warning_gives_advice():
    wild = [0.5] * 5 + [1.5] * 5
    run = run_of(
        [measured(case(), 1e-3, factors=wild), measured(case(device="wgpu:0"), 1e-6, repeat=1)], threads=1,
        devices=(CPU, SOFTWARE),
    )  # fmt: skip
    found = findings(analyse(with_sizes(run)))
    assert {finding.code for finding in found} >= {"unstable", "software-device", "too-short", "cpu-limited"}
    assert all(finding.hint for finding in found)


def test_the_machine_line_tolerates_everything_missing():
    assert machine_line(run_of([])) == "Test CPU, 2 CPUs, 8 GiB RAM; Test GPU, 16 GiB"
    assert machine_line(run_of([], with_machine=False, devices=())) == "unknown CPU; no GPU"
    assert machine_line(run_of([], with_machine=False)) == "Test CPU; Test GPU, 16 GiB"
    both = run_of([])
    both = msgspec.structs.replace(
        both, machine=msgspec.structs.replace(both.machine, gpus=both.machine.gpus * 2)
    )
    assert machine_line(both) == "Test CPU, 2 CPUs, 8 GiB RAM; 2 x Test GPU, 16 GiB"
    software = machine_line(run_of([], with_machine=False, devices=(CPU, SOFTWARE)))
    assert software == "Test CPU; llvmpipe (LLVM 15) (software, no GPU)"


def test_advice_names_no_option_that_was_given():
    wild = [0.5] * 5 + [1.5] * 5
    run = run_of(
        [measured(case(), 1e-3, factors=wild, sessions=10)], sessions=10, settings=Settings(preset="rigorous")
    )
    assert not [finding for finding in findings(analyse(run)) if "--rigorous" in finding.hint]


def test_a_limited_cpu_is_named_beside_every_speedup():
    run = run_of(curve({64: 2.0, 256: 4.0}), threads=1)
    assert analyse(run).baseline == "vs numpy library, OpenBLAS 0.3.29 (Haswell), 1 of 2 threads (cpu-limited)"


def test_no_side_is_named_that_has_no_time():
    run = run_of([measured(case(device="wgpu:0"), 1e-4)], devices=(CPU, SOFTWARE), with_machine=False)
    lines = render([run], "plain", sections=["answer"]).splitlines()
    assert lines[0] == "No GPU here: compute on the CPU."
    assert not any(line.startswith(("The CPU", "2 CPU")) for line in lines)
