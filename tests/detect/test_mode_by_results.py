"""Files in, recommendation out: which mode each kind of result means, and which files tell none."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.winners import recommend_mode
from gpubench.cli.detect import read_result
from gpubench.detect import picture, recommend
from gpubench.detect.facts import make_fact
from gpubench.result.machine import GpuMemory
from gpubench.result.store import load, save
from tests.detect.trees import check
from tests.unit.report.builders import CPU, GPU, HYBRID, assigned, case, measured, run_of, split

GIB = 2**30
RESULTS = Path(__file__).parents[2] / "results"
ALL = (CPU, GPU, HYBRID)
WAITED, QUEUED, COPIED = "resident-waited", "resident-queued", "transfer-always"
WILD = (0.5, 1.5, 0.6, 1.4, 1.0, 1.0, 0.7, 1.3, 0.8, 1.2)
SIZES = {"matmul": (256, 1024, 4096), "add": (65536, 1048576, 16777216), "relu": (65536, 1048576, 16777216)}


def ops(ratios, regime, *, cpu_s=1e-3, factors=None):
    """Each op at its sizes on both sides; `ratios`: CPU time / GPU time by op, at all sizes or factor for each."""
    words = {} if factors is None else {"factors": factors}
    outcomes = []
    for op, ratio in ratios.items():
        by_size = ratio if isinstance(ratio, tuple) else (ratio,) * 3
        for n, factor in zip(SIZES[op], by_size, strict=True):
            outcomes.append(measured(case(op, n), cpu_s))
            outcomes.append(measured(case(op, n, regime=regime, device="cupy:0"), cpu_s / factor, **words))
    return outcomes


def once(outcomes):
    """The outcomes of several situations in one run: a CPU case stands for all of them."""
    return list({outcome.id: outcome for outcome in outcomes}.values())


def shared(cpu_s, gpu_s, split_s, regime=COPIED):
    """One op on either side alone, and split over both."""
    on_gpu = case(n=1024, regime=regime, device="cupy:0")
    on_both = case(n=1024, implementation="tuned", regime=regime, device="hybrid:cupy:0")
    return [measured(case(n=1024), cpu_s), measured(on_gpu, gpu_s), split(on_both, (cpu_s, gpu_s), split_s)]


def on_machine(run, gib):
    """The run on a machine whose GPU has so much memory, and eight usable CPUs."""
    memory = GpuMemory(usable_bytes=make_fact(gib * GIB, "t"), unified=make_fact(False, "t"))
    gpus = [replace(run.machine.gpus[0], memory=memory, kind=make_fact("discrete", "t"))]
    machine = replace(run.machine, gpus=gpus, cpu=replace(run.machine.cpu, available=make_fact(8, "t")))
    machine = replace(machine, recommendation=recommend.recommend(machine))
    return replace(run, machine=machine, settings=replace(run.settings, threads=8))


def advised(folder, *files, gib=16, devices=ALL):
    """Return what `detect` recommends on the machine of these results, the oldest first."""
    for day, outcomes in enumerate(files, 1):
        run = on_machine(run_of(once(outcomes), devices=devices), gib)
        run = replace(run, started_at=f"2026-01-{day:02d}T00:00:00Z")
        save(run, folder / f"202601{day:02d}T000000Z-0000000{day}.json")
    machine = run.machine
    return recommend.apply_results(machine, machine.recommendation, folder, read_result)


GPU_WINS = ops({"matmul": 30.0, "add": 20.0, "relu": 25.0}, WAITED)
COPIES_LOSE = ops({"matmul": (0.3, 1.5, 8.0), "add": 0.2, "relu": 0.2}, COPIED)
CPU_WINS = [*ops({"matmul": 0.3, "add": 0.5, "relu": 0.4}, WAITED), *ops({"matmul": 0.2, "add": 0.1}, COPIED)]
SPLIT = case(n=1024, implementation="tuned", regime=COPIED, device="hybrid:cupy:0")
FFN = case("ffn", 4096, regime=WAITED, device="hybrid:cupy:0")
STAGES = {"first": (1e-3, 0.1e-3), "second": (0.1e-3, 1e-3)}
OTHER = replace(GPU, id="wgpu:0", backend="wgpu")
WON = shared(1e-3, 1e-3 / 1.5, 0.4e-3)[2:]
MODE, CODE, SURE = "mode", "reasons.0.code", "confidence"
TELLS = {MODE: "gpu", SURE: "measured"}
# Outcomes of one file, what the machine is, what is recommended, and a part of the first reason.
ROWS = {
    "a GPU where data stays, the CPU for copies": (
        [*GPU_WINS, *COPIES_LOSE], {},
        {**TELLS, CODE: "GPU_WHERE_DATA_STAYS", "measured.situations.*.regime": [WAITED, COPIED],
         "measured.situations.*.winner": ["gpu", "cpu"], "measured.situations.*.gpu": [3, 1], "measured.situations.*.cpu": [0, 2]},
        "Measured here: GPU for data that stays there; the CPU for calls that copy, but for matmul from "),
    "a GPU that wins both": ([*GPU_WINS, *ops({"matmul": 8.0, "add": 3.0}, COPIED)], {},
        {**TELLS, CODE: "GPU_DOMINATES"}, "GPU for data that stays there; the GPU for calls that copy"),
    **{f"a GPU of {gib} GiB that loses everything": (
        CPU_WINS, {"gib": gib}, {MODE: "cpu", "device_ids": [], CODE: "CPU_DOMINATES"},
        "CPU for data that stays on the GPU; the CPU for calls that copy") for gib in (16, 3, 1)},
    "queued calls alone decide for no GPU": (
        [*CPU_WINS, *ops({"matmul": 3.0, "add": 4.0, "relu": 3.0}, QUEUED)], {}, {MODE: "cpu", SURE: "measured"},
        "only calls that are queued, with one wait for many, are faster on the GPU"),
    **{f"a split that won with {gib} GiB, {regime}": (
        shared(3e-3, 1e-3, 0.7e-3, regime), {"gib": gib}, {MODE: "hybrid", CODE: "HYBRID_PAYS", "measured.gpu_share": 0.75},
        "1 of 1 measured splits pay") for gib in (16, 3) for regime in (WAITED, QUEUED, COPIED)},
    "a split that is slower than the CPU alone": ([*GPU_WINS, *COPIES_LOSE, *shared(3e-3, 1e-3, 0.7e-3)[2:]], {}, {MODE: "gpu"}, ""),
    "a split that won beside everything else": (
        [*GPU_WINS, *COPIES_LOSE, *WON], {}, {MODE: "hybrid"}, "Alone: GPU for data that stays there; the CPU for calls that copy"),
    # The rule of 2 to 4 GiB says hybrid; the side that is faster alone is left.
    **{f"a split that lost to the {mode}": (shared(3e-3, gpu_s, 2 * min(3e-3, gpu_s)), {"gib": 3}, {MODE: mode}, "")
       for gpu_s, mode in ((1e-3, "gpu"), (10e-3, "cpu"))},
    "splits that lost": ([*GPU_WINS, *shared(1e-3, 1e-3 / 1.5, 2e-3)[1:]], {}, {MODE: "gpu"}, "; no split that was measured pays."),
    "a split that noise hides": (
        [measured(case(n=1024), 3e-3), split(SPLIT, (3e-3, 1e-3), 0.9e-3, factors=WILD)], {"gib": 3},
        {MODE: "hybrid", SURE: "provisional"}, ""),
    # Rates that lie close are no reason to share the work, with separate memories and many threads as well.
    **{f"a ratio of {ratio}": (ops({"matmul": ratio, "add": ratio}, WAITED), {}, {MODE: mode}, "")
       for ratio, mode in ((2.0, "gpu"), (0.5, "cpu"))},
    "stages on two sides that won": (
        [assigned(FFN, STAGES, "gc", 0.25e-3)], {}, {MODE: "hybrid", "measured.splits.0.assignment": "gc"}, "ffn"),
    "stages on two sides that lost": ([assigned(FFN, STAGES, "gc", 1.5e-3)], {"gib": 3}, {MODE: "gpu"}, ""),
    "a split beside another GPU that is faster alone": (
        [*shared(3e-3, 1e-3, 0.7e-3), measured(case(n=1024, regime=COPIED, device="wgpu:0"), 0.1e-3)], {"devices": (*ALL, OTHER)},
        {MODE: "gpu"}, ""),
    "equal sides, and copies that lose": (
        [*ops({"matmul": 1.0, "add": 1.0}, WAITED), *ops({"matmul": 0.2, "add": 0.2}, COPIED)], {}, {MODE: "cpu"}, ""),
    "a GPU that wins with copies wins without them": (ops({"matmul": 8.0, "add": 3.0}, COPIED), {}, TELLS, "")}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_a_file_recommends(tmp_path, name):
    rows, machine, expected, text = ROWS[name]
    advice = advised(tmp_path, rows, **machine)
    check(advice, expected)
    assert text in advice.reasons[0].text


ONLY_QUEUED = ops({"matmul": 30.0, "add": 20.0}, QUEUED)


@pytest.mark.parametrize(("rows", "why", "gib", "mode"), [
    (ops({"matmul": 0.2, "add": 0.2}, WAITED, cpu_s=2e-6)[:2], "too small", 16, "gpu"),
    (ops({"matmul": 6.0, "add": 0.16}, WAITED), "share the ops (1 and 1)", 16, "gpu"),
    (ops({"matmul": 1.02, "add": 0.98}, WAITED), "about equal", 16, "gpu"),
    (COPIES_LOSE, "no call that is waited for", 16, "gpu"),
    ([measured(case(n=64), 1e-3)], "it compares no GPU with a CPU", 16, "gpu"),
    *((ONLY_QUEUED, "20260101T000000Z-00000001.json does not tell the mode: no call that is waited for", gib, mode)
      for gib, mode in ((16, "gpu"), (3, "hybrid"), (1, "cpu")))])  # fmt: skip
def test_a_file_that_cannot_tell_says_so_and_changes_nothing(tmp_path, rows, why, gib, mode):
    advice = advised(tmp_path, rows, gib=gib)
    assert (advice.mode, advice.confidence, advice.measured) == (mode, "provisional", None)
    assert "nothing was measured" not in advice.reasons[0].text
    (note,) = [reason for reason in advice.reasons if reason.code == "RESULT_SILENT"]
    assert why in note.text


def test_an_older_file_that_tells_decides_and_the_newer_one_says_why_it_does_not(tmp_path):
    advice = advised(tmp_path, CPU_WINS, ops({"matmul": 30.0}, QUEUED), [measured(case(n=64), 1e-3)])
    assert (advice.mode, advice.confidence) == ("cpu", "measured")
    assert advice.measured.file == "20260101T000000Z-00000001.json"
    first, note = advice.reasons
    assert (first.code, note.code) == ("CPU_DOMINATES", "RESULT_SILENT")
    assert note.text.startswith("20260103T000000Z")


def test_the_first_line_says_both_situations_or_what_it_rests_on(tmp_path):
    machine = on_machine(run_of(GPU_WINS), 16).machine
    told = picture.advice(replace(machine, recommendation=advised(tmp_path, [*GPU_WINS, *COPIES_LOSE])))
    assert "GPU for data that stays there; the CPU for calls that copy, but for matmul from" in told
    assert "By VRAM alone, nothing was measured: `gpubench run`" in picture.advice(machine)


def test_the_default_run_of_an_h200():
    (path,) = RESULTS.glob("*/20261125T000334Z-9aaa659e.json*")
    advice = recommend_mode(analyse(load(path)))
    assert (advice.mode, advice.confidence) == ("gpu", "measured")
