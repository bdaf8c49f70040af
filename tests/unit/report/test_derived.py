"""Figures of estimates: speedups, break-evens, amortization, splits, means, overheads, scatter and the mode."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.hybrid import hybrids
from gpubench.analysis.machine import machine_line
from gpubench.analysis.roofline import overheads
from gpubench.analysis.samples import components
from gpubench.analysis.speedup import cpu_limit, cpu_line, cpu_threads, earliest
from gpubench.analysis.thresholds import Costs, amortizations
from gpubench.analysis.winners import evidence, recommend_mode
from gpubench.report import render
from gpubench.report.document import report_document
from gpubench.report.sections.break_even import calls_text
from gpubench.result.machine import Fact
from gpubench.result.run import Parts
from tests.unit.report.builders import CPU, GPU, HYBRID, case, curve, failed, measured, run_of, skipped, split

ON_CPU, ON_GPU = measured(case(), 2e-3), measured(case(device="cupy:0"), 1e-3)


def test_a_ratio_uses_the_sessions_that_both_sides_have():
    gpu, first = replace(ON_GPU, blocks=ON_GPU.blocks[1:2]), replace(ON_CPU, blocks=ON_CPU.blocks[:1])
    assert analyse(run_of([ON_CPU, gpu])).speedups[0].ratio == pytest.approx(2)
    assert not analyse(run_of([first, gpu])).speedups


def test_the_baseline_names_implementation_blas_and_threads():
    blas = "OpenBLAS 0.3.29 (Haswell), 2 of 2 threads"
    assert analyse(run_of([ON_CPU, ON_GPU])).baseline == f"vs numpy library, {blas}"
    for own, other, compiler in (("numba, 2 threads", None, "numba, "), (None, "numba", "")):
        named = run_of([replace(ON_CPU, kernel=own), replace(ON_GPU, kernel=other)])
        assert cpu_line(named) == f"numpy, {compiler}{blas}"
    bare = replace(run_of([ON_CPU, ON_GPU], with_machine=False), sessions=[])
    assert analyse(bare).baseline == "vs numpy library, BLAS unknown, threads unknown"


def test_gpus_that_nobody_detected_are_counted_once():
    devices = [replace(GPU, id=f"{name}:{i}", backend=name) for name in ("cupy", "wgpu") for i in (0, 1)]
    run = run_of([], devices=(*devices, HYBRID, replace(GPU, backend="group")), with_machine=False)
    assert machine_line(run).endswith("; 2 x Test GPU, 16 GiB")


@pytest.mark.parametrize(("threads", "quota", "limit", "said"), [
    (2, None, None, "2 of 2 threads"), (1, None, "the baseline uses 1 of 2 usable CPUs", "1 of 2 threads (cpu-limited)"),
    (2, 1.5, "a quota leaves 1.5 of 2 CPUs to the baseline", "2 of 2 threads (cpu-limited)"), (2, 2.0, None, "2 of 2 threads"),
    (2, 3.0, None, "2 of 2 threads"), (None, None, None, "threads unknown"), (3, None, None, "3 of 2 threads"),
    (1, 1.0, "the baseline uses 1 of 2 usable CPUs", "1 of 2 threads (cpu-limited)"),
])  # fmt: skip
def test_a_cpu_side_that_is_not_the_whole_machine_says_so(threads, quota, limit, said):
    run = run_of([ON_CPU, ON_GPU], threads=threads)
    usable = replace(run.machine.cpu, quota_cpus=Fact(quota, "ok", "cgroup"))
    run = replace(run, machine=replace(run.machine, cpu=usable))
    assert (cpu_limit(run), cpu_line(run)) == (limit, f"numpy, OpenBLAS 0.3.29 (Haswell), {said}")
    assert cpu_threads(run) == cpu_threads(run, "numpy:0") == threads
    assert cpu_threads(run, "cupy:0") is None


# ---------------------------------------------------------------- break-evens
WIDE = (0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2, 1.3)
BEATEN = measured(case(n=128, device="cupy:0"), 9e-4, factors=WIDE, discarded={"1": "throttled"})


def verdict(ratios, **kind):
    (found,) = analyse(run_of(curve(ratios, **kind))).break_even
    return found


@pytest.mark.parametrize(("ratios", "text"), [
    ({64: 0.25, 128: 0.98, 256: 4.0}, "129² (117-147²)"), ({64: 0.25, 256: 0.5}, "> 256²"), ({64: 2.0, 256: 4.0}, "< 64²"),
    ({64: 1.0, 256: 1.0}, "about equal"), ({64: 4.0, 256: 0.25}, "? (wins and loses by turns)"),
])  # fmt: skip
def test_the_document_says_it_as_tables_do(ratios, text):
    assert [row.text for row in report_document([analyse(run_of(curve(ratios)))]).break_even] == [text]


@pytest.mark.parametrize(("outcomes", "reason", "more"), [
    *((curve(ratios), reason, {}) for ratios, reason in (
        ({64: 0.5, 16384: 4.0}, "few-sizes"), ({64: 1.0, 256: 1.0}, "about-equal"), ({64: 0.5, 256: 1.0}, "about-equal"), ({64: 1.0, 256: 4.0}, "noise"),
        ({64: 4.0, 256: 0.25}, "loses-again"))),
    ([*curve({16: 0.8, 4096: 1.3}), failed(case(n=64, device="cupy:0"))], "failed-cases", {}),
    (curve({64: 0.8, 16384: 1.3}), "budget", {"exit_reason": "budget"}),
    *(([*curve({64: 0.8, 16384: 1.3}), skipped(case(n=512, device="cupy:0"), why)], reason, {}) for why, reason in (
        ("budget", "budget"), ("out-of-memory", "few-sizes"))),
    ([*curve({64: 0.9}), measured(case(n=128), 1e-3), BEATEN], "throttled", {}),
])  # fmt: skip
def test_undecided(outcomes, reason, more):
    (found,) = analyse(run_of(outcomes, **more)).break_even
    assert (found.verdict, found.reason) == ("undecided", reason)


def test_a_bracket_below_a_threshold_is_the_earlier_one():
    wide, late, none = map(verdict, ({64: 0.5, 16384: 4.0}, {4096: 0.5, 8192: 4.0}, {64: 0.25, 256: 0.5}))
    assert (wide.verdict, late.verdict, none.verdict) == ("undecided", "at", "no-size")
    assert earliest([none, late, wide]) is wide
    assert earliest([none, late]) is late
    assert earliest([verdict({64: 1.0, 256: 4.0}), late]) is late, "where it lies is known"


# ---------------------------------------------------------------- from how many calls a transfer the GPU pays
UNSTABLE = (0.5, 0.7, 1.0, 1.0, 1.4, 1.6)
CALLS = 10  # of the builders' transfer-once
TIGHT = (0.999, 1.001, 1.0, 1.0, 0.9995, 1.0005)
ALWAYS, ONCE = (case(regime=regime, device="cupy:0") for regime in ("transfer-always", "transfer-once"))


def gpu(transfer_s, launch_s, *, timed_s=None, alloc_s=0.0, single_s=None, factors=TIGHT, sessions=1):
    """Both transfer regimes of a device on which a copy costs `transfer_s` and a call `launch_s`.

    `timed_s`: what the copies cost when they are timed singly. `single_s`: one call that is waited for.
    """
    timed = transfer_s if timed_s is None else timed_s
    parts = Parts(
        session=0, alloc_s=[alloc_s], upload_s=[timed * 0.6], launch_s=[launch_s / 2], sync_s=[timed * 0.1],
        single_s=[single_s or launch_s], download_s=[timed * 0.3],
    )  # fmt: skip
    kept = {"factors": factors, "sessions": sessions}
    always = measured(ALWAYS, alloc_s + transfer_s + launch_s, parts=parts, **kept)
    return [always, measured(ONCE, (transfer_s + CALLS * launch_s) / CALLS, **kept)]


def amortization(cpu_s, *outcomes, factors=TIGHT, sessions=1):
    cpu = measured(case(), cpu_s, factors=factors, sessions=sessions)
    (row,) = amortizations(analyse(run_of([cpu, *outcomes], sessions=sessions)))
    return row


# 1 ms to copy and 0.1 ms a call, where nothing else is said.
@pytest.mark.parametrize(("cpu_s", "words", "verdict", "calls", "text"), [
    (4e-4, {}, "at", 4, None),  # 1 / (0.4 - 0.1) = 3.33
    (5e-3, {}, "already", 1, "1"), (1e-4 + 1e-3 / 1.5, {}, "at", 2, None), (5e-5, {"sessions": 5}, "never", None, "never"),
    (4e-4, {"alloc_s": 5e-4}, "at", 4, None), (2.2e-4, {}, "at", 9, "9 [5, 55]"),  # an allocation is no transfer
    *((1e-4 + 1e-3 / n, {"sessions": 5}, verdict, n if verdict == "at" else None, None) for n, verdict in ((900_000, "at"), (1_100_000, "never"))),
    # Past the calls that were measured the parts bear the count out: 20 calls, where ten were measured and are too few.
    *((1.52e-4, {"timed_s": s, "sessions": 5}, verdict, 20 if verdict == "at" else None, None if verdict == "at" else "> 10")
      for s, verdict in ((1.0e-3, "at"), (0.95e-3, "at"), (1.2e-3, "beyond"), (0.8e-3, "beyond"))),
    # Up to them nothing has to: four calls lie between one and ten.
    (4e-4, {"timed_s": 0.5e-3}, "at", 4, None), (4e-4, {"timed_s": 2e-3}, "at", 4, None),
    # Never stands whatever the parts leave open: spread over nine calls it cannot make up for a call that is too slow.
    (5e-5, {"timed_s": 1.2e-3, "sessions": 5}, "never", None, "never"), (9.9e-5, {"timed_s": 1.2e-3}, "beyond", None, "> 10"),
    # An unstable side gives the count of its interval, and one that ends before it matters is told.
    (1.9e-4, {"factors": UNSTABLE}, "at", 11, None), (1e-2, {"factors": UNSTABLE}, "already", 1, "1"),
])  # fmt: skip
def test_the_count_is_what_the_costs_say(cpu_s, words, verdict, calls, text):
    row = amortization(cpu_s, *gpu(1e-3, 1e-4, **words), sessions=words.get("sessions", 1))
    assert (row.verdict, row.reason, row.shared_by) == (verdict, None, CALLS)
    assert row.calls == (calls if "factors" not in words or calls == 1 else row.calls)
    if calls is None:
        assert verdict == "beyond" or (row.lo, row.hi) == (None, None)
    elif "factors" not in words:
        assert row.lo <= calls <= row.hi
        assert (row.transfer_s, row.launch_s) == (pytest.approx(1e-3, rel=0.01), pytest.approx(1e-4, rel=0.02))
    assert text is None or calls_text(row) == text


@pytest.mark.parametrize(("cpu_s", "calls"), [(1.0, math.inf), (1.5, 2.0), (0.5, math.inf)])
def test_a_call_that_costs_the_same_on_both_sides_never_pays_for_its_transfer(cpu_s, calls):
    assert Costs(one=2.0, many=11.0, cpu=cpu_s).pays_from(10) == calls


# ---------------------------------------------------------------- where splitting an op pays
DEVICES = (CPU, GPU, HYBRID)
STARVED, AS_QUICK = ({"cpu_alone_s": [7e-4], "cpu_beside_s": [7e-4 * factor]} for factor in (1.11, 1.09))


def run_with(
    cpu_s, gpu_s, both_s, *, op="matmul", n=1024, regime="resident", sessions=6, resident_s=None, devices=DEVICES, **words
):  # fmt: skip
    what = case(op, n, "tuned", regime, "hybrid:cupy:0")
    found = [
        measured(case(op, n), cpu_s, sessions=sessions), measured(case(op, n, regime=regime, device="cupy:0"), gpu_s, sessions=sessions),
        split(what, (cpu_s, gpu_s), both_s, sessions=sessions, **words),
    ]  # fmt: skip
    if resident_s is not None:
        found.append(measured(case(op, n, device="cupy:0"), resident_s, sessions=sessions))
    return run_of(found, devices=devices, sessions=sessions)


def only(run):
    (row,) = hybrids(analyse(run))
    return row


@pytest.mark.parametrize(("beside_s", "gain", "better", "device"), [
    ({"gpu": 0.6e-3}, 0.6 / 0.5, "gpu", "cupy:0"), ({"gpu": 0.6e-3, "cpu": 0.55e-3}, 0.55 / 0.5, "cpu", "numpy:0"),
    ({"gpu": 2e-3, "cpu": 4e-3}, 1 / 0.5, "gpu", "cupy:0"),
])  # fmt: skip
def test_a_side_that_is_faster_alone_beside_the_split_is_what_the_gain_is_over(beside_s, gain, better, device):
    run = run_with(3e-3, 1e-3, 0.5e-3)
    *alone, chosen = run.outcomes
    blocks = [replace(b, gpu_pieces=8, beside_s=beside_s) if b.phase == "main" else b for b in chosen.blocks]
    row = only(replace(run, outcomes=[*alone, replace(chosen, blocks=blocks)]))
    assert row.gain == pytest.approx(gain, rel=0.02)
    assert (row.gpu_pieces, row.better, row.baseline_device) == (8, better, device)
    assert only(run).gpu_pieces == 1


@pytest.mark.parametrize(("reported", "seconds", "words"), [
    ("gpu-dominates", (1.0, 1e-2, 1.1e-2), {}), ("cpu-dominates", (1e-2, 1.0, 1.1e-2), {}),
    ("noise", (3e-3, 1e-3, 0.95e-3), {"sessions": 2}), ("overhead-bound", (3e-3, 1e-3, 1.02e-3), {"sides": AS_QUICK}),
    # Below ten operations for each byte a CPU waits for memory: products of 64 have 10.7, those of 56 have 9.3.
    ("cpu-starved", (3e-3, 1e-3, 1.2e-3), {"n": 64, "sides": STARVED}),
    ("shared-bandwidth", (3e-3, 1e-3, 1.2e-3), {"n": 56, "regime": "transfer-always", "sides": STARVED}),
    ("transfer-bound", (3e-3, 1e-3, 1.2e-3), {"regime": "transfer-always", "resident_s": 1e-4}),
    # Whatever it gains: where one session chose the share and gave the time, and on an adapter that is the CPU.
    ("selected-in-sample", (3e-3, 1e-3, 0.5e-3), {"sessions": 1}), ("software", (3e-3, 1e-3, 0.5e-3), {"devices": (CPU, GPU, replace(HYBRID, kind="software"))}),
])  # fmt: skip
def test_where_it_loses_the_report_says_why(reported, seconds, words):
    run = run_with(*seconds, **words)
    row = only(run)
    assert (row.reason, row.recommended, row.selected_in_sample) == (reported, False, "sample" in reported)
    assert all(reported in render([run], name, sections=["hybrid"]) for name in ("plain", "markdown"))


@given(*[st.floats(1e-6, 1.0)] * 3, st.floats(0.1, 0.9), st.floats(0.5, 2.0))
def test_figures_are_those_of_the_model_in_any_unit(cpu_s, gpu_s, both_s, gpu_share, scale):
    row = only(run_with(cpu_s, gpu_s, both_s, gpu_share=gpu_share))
    assert row.ideal_gain == pytest.approx(1 + min(cpu_s, gpu_s) / max(cpu_s, gpu_s))
    assert row.gain == pytest.approx(min(cpu_s, gpu_s) / both_s)
    assert row.efficiency == pytest.approx(max(gpu_share * gpu_s, (1 - gpu_share) * cpu_s) / both_s)
    assert row.recommended == (row.lo > 1.05)
    scaled = only(run_with(cpu_s * scale, gpu_s * scale, both_s * scale, gpu_share=gpu_share))
    assert scaled.gain == pytest.approx(row.gain)


# ---------------------------------------------------------------- means, overheads and variants


def test_an_empty_launch_is_that_of_the_middle_session():
    """The typical one of a session, the middle one of the sessions; a superseded one does not count."""
    run = run_of(curve({64: 0.25}), sessions=3)
    reported = {"numpy:0": 1e-6, "cupy:0": 8e-6}
    sessions = [
        replace(record, superseded=i == 2, workers=[
            replace(one, overhead_s=[reported[one.device_id] * (1 + i)] * 3 + [1.0]) for one in record.workers
        ])
        for i, record in enumerate(run.sessions)
    ]  # fmt: skip
    found = overheads(analyse(replace(run, sessions=sessions)))
    assert found.empty == pytest.approx({"numpy:0": 1.5e-6, "cupy:0": 12e-6})


# ---------------------------------------------------------------- how far times scatter
def scattered(
    draw, seconds, *, sessions=4, blocks=4, levels=(0.10, 0.10, 0.02), device="numpy:0", n=64, samples=5
):
    """A case whose sessions, blocks and samples scatter by these standard deviations."""
    what = measured(case("add", n, device=device), seconds, sessions=sessions)
    found = []
    for block in what.blocks:
        session = seconds * draw.lognormvariate(0, levels[0])
        for i in range(blocks):
            level = session * draw.lognormvariate(0, levels[1])
            wall = [level * draw.lognormvariate(0, levels[2]) for _ in range(samples)]
            found.append(replace(block, round=i, warmup=0, wall_s=wall))
    return replace(what, blocks=found)


@pytest.mark.parametrize(("levels", "samples"), [
    ((0.10, 0.10, 0.02), (5,)), ((0.02, 0.15, 0.02), (5,)), *(((0.10, 0.08, 0.2), (5, count)) for count in (1, 2, 3, 4, 6)),
])  # fmt: skip
def test_each_component_is_what_was_put_in(levels, samples):
    draw = random.Random(1)
    counts = [samples[n % len(samples)] for n in range(149)]
    cases = [scattered(draw, 1e-5, levels=levels, n=1 + n, samples=count) for n, count in enumerate(counts)]
    far = scattered(draw, 1e-9, levels=(0, 0, 45 * levels[2]), n=150)
    (row,) = components(run_of([*cases, far], sessions=4))
    assert (row.device_id, row.launches, row.cases) == ("numpy:0", "short", 150)
    assert (row.within_degrees, row.blocks_degrees, row.sessions_degrees) == (
        16 * (sum(counts) - 145),
        150 * 12,
        150 * 3,
    )
    assert (row.sessions, row.blocks) == pytest.approx(levels[:2], rel=0.15, abs=0.015)
    assert row.within == pytest.approx(
        1.045 * levels[2], rel=0.05 if samples[1:] else 0.01
    )  # the last case counts as 4 deviations away


# ---------------------------------------------------------------- which mode a file recommends
WAITED = "resident-waited"


def recommended(run, **words):
    return recommend_mode(analyse(run, **words))


def of(rows, **words):
    return evidence(analyse(run_of(rows, **words)))


def pair(op, n, gpu_s, regime="resident", **words):
    """1 ms on the CPU beside `gpu_s`."""
    on_gpu = measured(case(op, n=n, device="cupy:0", regime=regime), gpu_s, **words)
    return [measured(case(op, n=n), 1e-3), on_gpu]


def later(run, month, name):
    return replace(run, id=f"00000000-0000-4000-8000-{name:012}", started_at=f"2026-{month:02}-01T00:00:00Z")


def test_the_ratio_is_the_mean_over_the_ops_at_their_largest_common_size():
    matmul = curve({64: 1 / 8, 128: 4.0}, regime=WAITED)
    rows = [*matmul, measured(case(n=4096), 1.0), *pair("relu", 64, 4e-3, WAITED)]
    assert of([*rows, *curve({256: 100.0}, regime="transfer-always")]).s == pytest.approx(1.0)


def test_the_break_evens_are_those_of_the_report():
    sizes = (64, 256, 1024)
    copied = curve(dict.fromkeys(sizes, 0.1), regime="transfer-always")[1::2]
    rows = [*curve({64: 0.5, 256: 2.0, 1024: 8.0}), *copied, *pair("relu", 64, 1e-4), *pair("relu", 256, 1e-4)]
    rows += [*curve({64: 0.2, 2**14: 8.0}, op="add"), *curve({64: 0.2, 256: 0.6, 1024: 1.0}, op="mul")]
    found = {(p.op, p.regime): p for p in of(rows).break_even}
    (at,) = (row for row in analyse(run_of(rows)).break_even if row.verdict == "at")
    here, never, always = (found[key] for key in (
        ("matmul", "resident-queued"), ("matmul", "transfer-always"), ("relu", "resident-queued")))  # fmt: skip
    assert (here.size, here.note, here.backend) == (at.n, f"measured up to n = {at.last}", "cupy")
    assert (here.cpu_s, here.gpu_s) == (pytest.approx(1e-3), pytest.approx(5e-4))
    assert (never.size, never.note, never.gpu_s) == (None, "no size up to n = 1024", pytest.approx(1e-2))
    assert (always.size, always.note) == (64, "the smallest size measured, up to n = 256")
    wide, equal = (found[op, "resident-queued"] for op in ("add", "mul"))
    assert (64 < wide.size < 2**14, wide.note[:13]) == (True, "somewhere in ")
    assert (equal.size, equal.note) == (None, "about equal")


@pytest.mark.parametrize("odd", [{"inputs": "zeros"}, {"cache": "cold"}, {"threads": 2}])
def test_an_experiment_recommends_nothing(odd):
    """As for `gpubench detect`: it shows something else than what a call usually takes."""
    run = run_of(curve({64: 0.5, 256: 20.0}, regime=WAITED))
    cpu = replace(run.machine.cpu, available=Fact(8, "ok", "proc"))
    run = replace(run, machine=replace(run.machine, cpu=cpu))
    usual, changed = recommended(run), replace(run, settings=replace(run.settings, **odd))
    assert usual.confidence == "measured"
    assert (recommended(changed), evidence(analyse(changed))) == (None, None)
    assert json.loads(render([run, later(changed, 2, 2)], "json"))["recommendation"]["mode"] == usual.mode


def test_of_several_files_the_newest_that_measured_speaks_and_of_several_machines_none():
    old, new = (run_of(curve({64: ratio}, regime=WAITED)) for ratio in (20.0, 0.1))
    new, newest = later(new, 2, 2), later(run_of([measured(case(n=64), 1e-3)]), 3, 3)
    for runs in ([old, new, newest], [newest, old, new]):
        found = json.loads(render(runs, "json"))["recommendation"]
        assert (found["mode"], found["measured"]["date"]) == ("cpu", "2026-02-01T00:00:00Z")
    mark = replace(old.fingerprint.machine, fields={"cpu": "Another CPU"})
    elsewhere = replace(old, fingerprint=replace(old.fingerprint, machine=mark))
    assert json.loads(render([new, elsewhere], "json"))["recommendation"] is None
