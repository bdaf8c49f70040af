"""The verdict in words, with and without a GPU, and the warnings beside it."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.analysis.analyse import analyse
from gpubench.analysis.machine import machine_line
from gpubench.model.result import RunWarning, Settings
from gpubench.report import render
from tests.unit.report.builders import (
    CPU,
    GPU,
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
    return analyse(run_of(outcomes, **kind)).verdicts


def together(*curves):
    return list({outcome.id: outcome for outcomes in curves for outcome in outcomes}.values())


def test_regimes_share_one_sentence():
    found = words(together(curve({64: 0.25, 256: 4.0}), curve({64: 0.1, 256: 4.0}, regime="transfer-always")))
    assert found == (
        (
            "matmul float32: measured up to n = 256, the GPU pays from n = 130 [64, 256] with calls queued on the GPU, "
            "pays from n = 150 [64, 256] when every call copies both ways."
        ),
    )


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        (
            {64: 2.0, 256: 4.0, 1024: 4.0},
            "measured up to n = 1024, the GPU pays at every measured size (from n = 64) with calls queued on the GPU.",
        ),
        (
            {64: 0.3, 256: 0.3, 1024: 0.3},
            "measured up to n = 1024, the GPU pays at no size with calls queued on the GPU.",
        ),
        (
            {64: 0.1, 256: 0.3, 1024: 0.9},
            "the GPU does not pay yet but comes closer with size with calls queued on the GPU.",
        ),
        (
            {64: 0.3, 256: 4.0, 1024: 0.3, 4096: 4.0},
            "from n = 2000 [1024, 4096], mixed below (also crosses at n = 122, 538) with calls queued on the GPU.",
        ),
        (
            {64: 0.5, 1024: 4.0, 4096: 9.0},
            "the GPU pays from somewhere between n = 64 and 1024 with calls queued on the GPU.",
        ),
        ({64: 1.0, 256: 1.0, 1024: 1.0}, "matmul float32: measured up to n = 1024, undecided (too noisy)."),
        (
            {64: 0.5, 1024: 4.0},
            "matmul float32: the GPU wins at n = 1024 and loses at n = 64 with calls queued",
        ),
        ({64: 4.0}, "matmul float32: the GPU wins at n = 64 with calls queued on the GPU."),
        ({64: 0.3, 256: 0.5}, "matmul float32: the GPU loses at n = 64 and 256 with calls queued on the GPU."),
        ({64: 1.0, 256: 2.0}, "the GPU wins at n = 256 and neither wins nor loses for sure at n = 64 (1x ["),
    ],
)
def test_each_verdict_has_words(ratios, expected):
    assert expected in words(curve(ratios))[0]


TWO = (CPU, GPU, msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu"))


def test_the_earliest_device_of_each_regime_is_named():
    found = words(
        together(
            curve({64: 0.5, 256: 4.0}), curve({64: 0.25, 256: 4.0}, device="wgpu:0"),
            curve({64: 0.3, 256: 0.3, 1024: 0.3}, regime="transfer-always"),
            curve({64: 0.1, 256: 0.9, 1024: 9.0}, regime="transfer-always", device="wgpu:0"),
        ), devices=TWO,
    )  # fmt: skip
    assert found == (
        (
            "matmul float32: measured up to n = 256..1024, the GPU pays from n = 100 [64, 256] with calls queued on the GPU (cupy:0), "
            "pays from n = 270 [256, 1024] when every call copies both ways (wgpu:0)."
        ),
    )


def test_what_holds_for_all_devices_names_none():
    wins = {64: 2.0, 256: 4.0, 1024: 4.0}
    win = together(curve(wins), curve(wins, device="wgpu:0"))
    assert words(win, devices=TWO)[0].endswith("(from n = 64) with calls queued on the GPU (every device).")
    lose = {64: 0.3, 256: 0.3, 1024: 0.3}
    found = words(together(curve(lose), curve(lose, device="wgpu:0")), devices=TWO)
    assert found == (
        "matmul float32: measured up to n = 1024, the GPU pays at no size with calls queued on the GPU.",
    )


def test_an_undecided_device_leaves_the_question_open():
    never, tie = {64: 0.3, 256: 0.3, 1024: 0.3}, {64: 1.0, 256: 1.0, 1024: 1.0}
    found = words(together(curve(never), curve(tie, device="wgpu:0")), devices=TWO)
    assert found == ("matmul float32: measured up to n = 1024, undecided (too noisy).",)


def test_undecided_regimes_are_said_once():
    tie = {64: 1.0, 256: 1.0, 1024: 1.0}
    found = words(together(curve(tie), curve(tie, regime="transfer-always")))
    assert found == ("matmul float32: measured up to n = 1024, undecided (too noisy).",)
    found = words(
        together(
            curve({64: 2.0, 256: 4.0, 1024: 4.0}),
            curve(tie, regime="transfer-once"),
            curve(tie, regime="transfer-always"),
        )
    )
    assert found[0].endswith(
        "with calls queued on the GPU; undecided when 10 calls share one copy and when every call copies both ways "
        "(too noisy)."
    )


def ops(*names):
    found = []
    for i, op in enumerate(names):
        for n, factor in ((64 * 2**i, 0.25), (256 * 2**i, 4.0)):
            found.append(measured(case(op, n), 1e-3))
            found.append(measured(case(op, n, device="cupy:0"), 1e-3 / factor))
    return found


def test_ops_with_the_same_verdict_share_a_sentence():
    tie = [
        measured(case(op, n, device=device), 1e-3)
        for op in "ab"
        for n in (64, 256, 1024)
        for device in ("numpy:0", "cupy:0")
    ]
    assert words(tie) == ("a, b float32: measured up to n = 1024, undecided (too noisy).",)


def test_one_screen_holds_the_verdict_of_many_ops():
    run = run_of(ops(*(f"op{i}" for i in range(14))))
    text = render([run], "plain", sections=["verdict"])
    assert len(text.splitlines()) < 24
    assert all(f"op{i} float32" in text for i in range(14))
    assert "[64, 256]" not in text
    assert all("[" in sentence for sentence in analyse(run).verdicts)


def test_cpu_only_says_so_and_why():
    warning = RunWarning(code="unavailable", message="cupy: no CUDA driver was found")
    assert words([measured(case(), 1e-3)], devices=(CPU,)) == (
        "CPU: no GPU was measured (no GPU backend was asked for, or none was found).",
    )
    assert words([measured(case(), 1e-3)], devices=(CPU,), warnings=[warning]) == (
        "CPU: no GPU was measured (cupy: no CUDA driver was found).",
    )
    unavailable = skipped(case(device="cupy:0"), "unavailable", "cupy is not installed")
    assert words([measured(case(), 1e-3), unavailable], devices=(CPU,)) == (
        "CPU: no GPU was measured (cupy:0: cupy is not installed).",
    )


def test_a_software_adapter_is_no_gpu():
    found = words([measured(case(), 1e-3), measured(case(device="wgpu:0"), 1e-4)], devices=(CPU, SOFTWARE))
    assert "No GPU was measured: llvmpipe (LLVM 15) is a software adapter" in found[0]


def test_nothing_measured_and_gpu_without_cpu():
    assert words([]) == ("Nothing was measured (no case was planned).",)
    assert "no CPU case of the same work" in words([measured(case(device="cupy:0"), 1e-3)])[0]
    assert "Nothing was measured (cupy:0: largest error" in words([failed(case(device="cupy:0"))])[0]
    assert "Nothing was measured" in words([planned(case())])[0]


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
        "CPU: no GPU was measured (the time budget was used up first).",
    )  # fmt: skip
    assert "no tuned kernel" in words([measured(case(), 1e-3), usual])[0]
    assert "no case was planned for cupy:0" in words([measured(case(), 1e-3)])[0]


def test_a_selection_without_the_gpu_does_not_deny_it():
    found = analyse(run_of(curve({64: 0.25, 256: 4.0})), keep=lambda case: case.device_id == "numpy:0").verdicts
    assert found == ("CPU: no case of a GPU is among those shown.",)


def checked(what):
    return msgspec.structs.replace(measured(what, 1e-3), blocks=[], stops=[])


def test_a_run_that_only_checks_has_right_cases_and_no_complaint():
    run = run_of([checked(case()), checked(case(device="cupy:0"))])
    assert analyse(run).verdicts == ("2 cases are right; nothing was timed (--check-only).",)
    text = render([run], "plain")
    assert "Skipped and failed" not in text
    assert "no estimate" not in text
    assert words([checked(case()), failed(case(n=64))])[0].startswith("1 case is right;")
    cut = run_of([checked(case()), planned(case(n=64))], complete=False, exit_reason="interrupted")
    assert "no-samples" in render([cut], "plain")
    cut = msgspec.structs.replace(cut, argv=["run", "--check-only"])
    assert analyse(cut).verdicts[0].startswith("1 case is right;")


def test_overheads_alone_are_no_reason_to_say_that_nothing_was_planned():
    sync = case("sync", 1, device="cupy:0")
    assert words([checked(sync)]) == ("1 case is right; nothing was timed (--check-only).",)
    assert words([skipped(sync, "no-dtype", "float32 only")]) == (
        "Nothing was measured (cupy:0: float32 only).",
    )
    assert words([measured(sync, 1e-5), failed(case(), "build-error", "no compiler")]) == (
        "Only overheads were measured (numpy:0: no compiler).",
    )


def codes(run):
    return {finding.code for finding in analyse(run).findings}


def test_warnings_about_the_run():
    assert codes(run_of([measured(case(), 1e-3, sessions=5)], sessions=5)) == set()
    assert codes(run_of([measured(case(), 1e-3)])) == {"few-sessions"}
    assert "cpu-limited" in codes(run_of([measured(case(), 1e-3)], threads=1))
    zeros = run_of([measured(case(), 1e-3)], settings=Settings(inputs="zeros"))
    assert "inputs-not-random" in codes(zeros)
    assert "budget" in codes(run_of([measured(case(), 1e-3)], exit_reason="budget"))


def test_a_stored_warning_is_not_repeated():
    stored = RunWarning(code="few-sessions", severity="info", message="told by the run")
    found = analyse(run_of([measured(case(), 1e-3)], warnings=[stored])).findings
    assert [finding.message for finding in found] == ["told by the run"]


def test_every_derived_warning_gives_advice():
    wild = [0.5] * 5 + [1.5] * 5
    run = run_of(
        [measured(case(), 1e-3, factors=wild), measured(case(device="wgpu:0"), 1e-6, repeat=1)], threads=1,
        devices=(CPU, SOFTWARE),
    )  # fmt: skip
    found = analyse(run).findings
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
    assert not [finding for finding in analyse(run).findings if "--rigorous" in finding.hint]


def test_a_limited_cpu_is_named_beside_every_speedup():
    run = run_of(curve({64: 2.0, 256: 4.0}), threads=1)
    assert analyse(run).baseline == "vs numpy library, OpenBLAS 0.3.29 (Haswell), 1 of 2 threads (cpu-limited)"


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({1000: 0.99, 1010: 1.03}, "n = 1003"),
        ({10000: 0.5, 14000: 1.7}, "n = 12100"),
        ({4: 0.5, 6: 1.5}, "n = 5"),
    ],
)
def test_a_threshold_has_the_digits_that_it_earns(ratios, expected):
    assert expected in words(curve(ratios, factors=[1.0] * 10))[0]
