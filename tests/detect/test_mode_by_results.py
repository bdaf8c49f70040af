"""Files in, recommendation out: which mode each kind of result means, and which files tell none."""

from __future__ import annotations

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
    return [
        measured(case(n=1024), cpu_s),
        measured(case(n=1024, regime=regime, device="cupy:0"), gpu_s),
        split(case(n=1024, form="tuned", regime=regime, device="hybrid:cupy:0"), (cpu_s, gpu_s), split_s),
    ]


def on_machine(run, gib):
    """The run on a machine whose GPU has so much memory, and eight usable CPUs."""
    memory = GpuMemory(usable_bytes=make_fact(gib * GIB, "t"), unified=make_fact(False, "t"))
    gpus = [replace(run.machine.gpus[0], memory=memory, kind=make_fact("discrete", "t"))]
    cpu = replace(run.machine.cpu, available=make_fact(8, "t"))
    machine = replace(run.machine, gpus=gpus, cpu=cpu)
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


def test_gpu_for_data_that_stays_and_cpu_for_copies(tmp_path):
    advice = advised(tmp_path, [*GPU_WINS, *COPIES_LOSE])
    assert (advice.mode, advice.confidence, advice.reasons[0].code) == (
        "gpu",
        "measured",
        "GPU_WHERE_DATA_STAYS",
    )
    assert advice.reasons[0].text.startswith(
        "Measured here: GPU for data that stays there; the CPU for calls that copy, but for matmul from "
    )
    stays, copies = advice.measured.situations
    assert (stays.regime, stays.winner, stays.gpu, stays.cpu) == (WAITED, "gpu", 3, 0)
    assert (copies.regime, copies.winner, copies.gpu, copies.cpu) == (COPIED, "cpu", 1, 2)


def test_a_gpu_that_wins_in_both_situations(tmp_path):
    advice = advised(tmp_path, [*GPU_WINS, *ops({"matmul": 8.0, "add": 3.0}, COPIED)])
    assert (advice.mode, advice.reasons[0].code) == ("gpu", "GPU_DOMINATES")
    assert "whether the data stays there or each call copies" in advice.reasons[0].text


@pytest.mark.parametrize("gib", [16, 3, 1])
def test_a_small_gpu_that_loses_everything(tmp_path, gib):
    advice = advised(tmp_path, CPU_WINS, gib=gib)
    assert (advice.mode, advice.device_ids, advice.reasons[0].code) == ("cpu", [], "CPU_DOMINATES")
    assert "CPU, whether the data stays on the GPU or each call copies" in advice.reasons[0].text


def test_queued_calls_alone_decide_for_no_gpu(tmp_path):
    advice = advised(tmp_path, [*CPU_WINS, *ops({"matmul": 3.0, "add": 4.0, "relu": 3.0}, QUEUED)])
    assert (advice.mode, advice.confidence) == ("cpu", "measured")
    assert "only calls that are queued, with one wait for many, are faster on the GPU" in advice.reasons[0].text


@pytest.mark.parametrize(("gib", "mode"), [(16, "gpu"), (3, "hybrid"), (1, "cpu")])
def test_a_file_of_queued_calls_tells_no_mode(tmp_path, gib, mode):
    advice = advised(tmp_path, ops({"matmul": 30.0, "add": 20.0}, QUEUED), gib=gib)
    assert (advice.mode, advice.confidence, advice.measured) == (mode, "provisional", None)
    (note,) = [reason for reason in advice.reasons if reason.code == "RESULT_SILENT"]
    assert "20260101T000000Z-00000001.json does not tell the mode: only queued calls" in note.text


@pytest.mark.parametrize("gib", [16, 3])
@pytest.mark.parametrize("regime", [WAITED, QUEUED, COPIED])
def test_a_split_that_won_beyond_its_interval(tmp_path, gib, regime):
    advice = advised(tmp_path, [*shared(3e-3, 1e-3, 0.7e-3, regime)], gib=gib)
    assert (advice.mode, advice.reasons[0].code, advice.measured.split) == ("hybrid", "HYBRID_PAYS", 0.75)
    assert "1 of 1 measured splits pay" in advice.reasons[0].text


def test_a_split_that_won_beside_everything_else(tmp_path):
    advice = advised(tmp_path, [*GPU_WINS, *COPIES_LOSE, *shared(3e-3, 1e-3, 0.7e-3)[2:]])
    assert advice.mode == "gpu", "this split is slower than the CPU alone"
    won = [*GPU_WINS, *COPIES_LOSE, *shared(1e-3, 1e-3 / 1.5, 0.4e-3)[2:]]
    advice = advised(tmp_path, won)
    assert advice.mode == "hybrid"
    assert "Alone: GPU for data that stays there; the CPU for calls that copy" in advice.reasons[0].text


def test_splits_that_lost_are_evidence_against_hybrid(tmp_path):
    """The rule of 2 to 4 GiB says hybrid; the side that is faster alone is left."""
    for gpu_s, mode in ((1e-3, "gpu"), (10e-3, "cpu")):
        lost = shared(3e-3, gpu_s, 2 * min(3e-3, gpu_s))
        assert advised(tmp_path, lost, gib=3).mode == mode
    advice = advised(tmp_path, [*GPU_WINS, *shared(1e-3, 1e-3 / 1.5, 2e-3)[1:]])
    assert advice.mode == "gpu"
    assert advice.reasons[0].text.endswith("; no split that was measured pays.")


def test_a_split_that_noise_hides_is_evidence_for_nothing(tmp_path):
    cpu_s, gpu_s = 3e-3, 1e-3
    what = case(n=1024, form="tuned", regime=COPIED, device="hybrid:cupy:0")
    rows = [measured(case(n=1024), cpu_s), split(what, (cpu_s, gpu_s), 0.9e-3, factors=WILD)]
    advice = advised(tmp_path, rows, gib=3)
    assert (advice.mode, advice.confidence) == ("hybrid", "provisional")


def test_rates_that_lie_close_are_no_reason_to_share_the_work(tmp_path):
    """With separate memories and many threads as well."""
    assert advised(tmp_path, ops({"matmul": 2.0, "add": 2.0}, WAITED)).mode == "gpu"
    assert advised(tmp_path, ops({"matmul": 0.5, "add": 0.5}, WAITED)).mode == "cpu"


def test_an_assignment_that_won_is_hybrid(tmp_path):
    stages = {"first": (1e-3, 0.1e-3), "second": (0.1e-3, 1e-3)}
    what = case("ffn", 4096, regime=WAITED, device="hybrid:cupy:0")
    advice = advised(tmp_path, [assigned(what, stages, "gc", 0.25e-3)])
    assert (advice.mode, advice.measured.splits[0].assignment) == ("hybrid", "gc")
    assert "ffn" in advice.reasons[0].text
    slower = assigned(what, stages, "gc", 1.5e-3)
    assert advised(tmp_path, [slower], gib=3).mode == "gpu"


def test_a_split_is_no_gain_where_another_gpu_is_faster_alone(tmp_path):
    other = replace(GPU, id="wgpu:0", backend="wgpu")
    rows = [*shared(3e-3, 1e-3, 0.7e-3), measured(case(n=1024, regime=COPIED, device="wgpu:0"), 0.1e-3)]
    advice = advised(tmp_path, rows, devices=(*ALL, other))
    assert advice.mode == "gpu"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (ops({"matmul": 0.2, "add": 0.2}, WAITED, cpu_s=2e-6)[:2], "too small"),
        (ops({"matmul": 6.0, "add": 0.16}, WAITED), "share the ops (1 and 1)"),
        (ops({"matmul": 1.02, "add": 0.98}, WAITED), "about equal"),
        (COPIES_LOSE, "only calls that copy were measured"),
        ([measured(case(n=64), 1e-3)], "it compares no GPU with a CPU"),
    ],
)
def test_a_file_that_cannot_tell_says_so_and_changes_nothing(tmp_path, rows, why):
    advice = advised(tmp_path, rows)
    assert (advice.mode, advice.confidence, advice.reasons[0].code) == ("gpu", "provisional", "VRAM_GE_4GIB")
    assert "nothing was measured" not in advice.reasons[0].text
    (note,) = [reason for reason in advice.reasons if reason.code == "RESULT_SILENT"]
    assert why in note.text


def test_an_older_file_that_tells_decides_and_the_newer_one_says_why_it_does_not(tmp_path):
    queued = ops({"matmul": 30.0}, QUEUED)
    advice = advised(tmp_path, CPU_WINS, queued, [measured(case(n=64), 1e-3)])
    assert (advice.mode, advice.confidence) == ("cpu", "measured")
    assert advice.measured.file == "20260101T000000Z-00000001.json"
    first, note = advice.reasons
    assert (first.code, note.code) == ("CPU_DOMINATES", "RESULT_SILENT")
    assert note.text.startswith("20260103T000000Z")


def test_equal_sides_are_no_reason_for_a_gpu_whose_copies_lose(tmp_path):
    rows = [*ops({"matmul": 1.0, "add": 1.0}, WAITED), *ops({"matmul": 0.2, "add": 0.2}, COPIED)]
    assert advised(tmp_path, rows).mode == "cpu"


def test_a_gpu_that_wins_with_copies_wins_without_them(tmp_path):
    advice = advised(tmp_path, ops({"matmul": 8.0, "add": 3.0}, COPIED))
    assert (advice.mode, advice.confidence) == ("gpu", "measured")


def test_the_first_line_says_both_situations_or_what_it_rests_on(tmp_path):
    advice = advised(tmp_path, [*GPU_WINS, *COPIES_LOSE])
    run = on_machine(run_of(GPU_WINS), 16)
    first = picture.advice(replace(run.machine, recommendation=advice))
    assert "GPU for data that stays there; the CPU for calls that copy, but for matmul from" in first
    for gib in (16, 3, 1):
        before = picture.advice(on_machine(run_of(GPU_WINS), gib).machine)
        assert "By VRAM alone, nothing was measured: `gpubench run`" in before


DEFAULT_RUNS = ("20261123T075857Z-065cc26c", "20261124T202823Z-456973dc", "20261125T000334Z-9aaa659e")


@pytest.mark.parametrize("name", DEFAULT_RUNS)
def test_the_default_runs_of_an_h200_agree(name):
    (path,) = RESULTS.glob(f"*/{name}.json*")
    run = load(path)
    advice = recommend_mode(analyse(run))
    assert (advice.mode, advice.confidence) == ("gpu", "measured")
