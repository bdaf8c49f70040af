"""Which mode is recommended: by rule, by each kind of result, and whether a result is of this machine."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.policy import Policy
from gpubench.analysis.winners import recommend_mode
from gpubench.base.errors import InputError
from gpubench.base.messages import DETECTION
from gpubench.cli.detect import read_result
from gpubench.detect import differences, host, picture, recommend
from gpubench.detect.facts import ABSENT, make_fact, missing
from gpubench.result import machine as documents
from gpubench.result import store
from gpubench.result.case import MAPPED, ORDERED, QUEUED, RESIDENT, WAITED
from gpubench.result.identity import compare, measured_gpus, uuid_digest
from gpubench.result.machine import (
    Api,
    Compute,
    Cpu,
    CpuKind,
    Driver,
    Gpu,
    GpuMemory,
    Machine,
    Measured,
    MeasuredBreakEven,
    Memory,
    Platform,
    Power,
    Provider,
    Recommendation,
)
from gpubench.result.store import load, save
from tests.detect.trees import GIB, check
from tests.held import hold
from tests.raising import raised
from tests.unit.report.builders import CPU, GPU, HYBRID, assigned, case, measured, run_of, split

WHERE, DOMINATES, ALONE = "GPU_WHERE_DATA_STAYS", "GPU_DOMINATES", "FASTER_ALONE"


def card(size, number=0, *, vendor="amd", kind="discrete", unified=False, free=None, **more):
    size_fact = make_fact(size, "t") if size is not None else ABSENT
    memory = GpuMemory(usable_bytes=size_fact, dedicated_bytes=size_fact, unified=make_fact(unified, "t"),
                       free_bytes=make_fact(free, "t") if free else ABSENT)  # fmt: skip
    return Gpu(id=f"g{number}", vendor=make_fact(vendor, "t"), kind=make_fact(kind, "t"), memory=memory, **more)


def advise(*gpus, threads=8, override=None, late=None, arch="t"):
    providers = [Provider(name=late, status="timeout")] if late else []
    available = ABSENT if threads is None else make_fact(threads, "t")
    machine = Machine(gpus=list(gpus), cpu=Cpu(available=available), gpu_count=make_fact(len(gpus), "t"),
                      platform=Platform(arch=make_fact(arch, "t")), providers=providers)  # fmt: skip
    return recommend.recommend(machine, override)


def chip(size=16 * GIB, **more):
    return card(size, kind="integrated", **more)


NO = make_fact(False, "t")
MODE, CODES, IDS, REJECTED = "mode", "reasons.*.code", "device_ids", "rejected.*.code"
ADVICE = {
    # Bounds are nominal sizes.
    **{f"{size >> 20} MiB": (advise(card(size)), {MODE: mode, CODES: [code]}) for size, mode, code in (
        (4080 << 20, "gpu", "VRAM_GE_4GIB"), (4 * GIB * 15 // 16, "gpu", "VRAM_GE_4GIB"), (3 * GIB, "hybrid", "VRAM_2_TO_4GIB"),
        (2 * GIB * 15 // 16, "hybrid", "VRAM_2_TO_4GIB"), (GIB, "cpu", "VRAM_LT_2GIB"))},
    "sizes are never summed": (advise(card(3 * GIB), card(3 * GIB, 1)), {MODE: "hybrid"}),
    "the largest decides": (advise(card(4 * GIB), card(8 * GIB, 1), card(3 * GIB, 2)), {IDS: ["g1", "g0"]}),
    # Integrated GPUs must prove themselves.
    "integrated": (advise(chip()), {MODE: "cpu", REJECTED: ["INTEGRATED_UNMEASURED"]}),
    **{f"integrated, with Metal beside {arch}": (advise(chip(apis={"wgpu:metal": Api()}), arch=arch), {MODE: mode})
       for arch, mode in (("arm64", "gpu"), ("x86_64", "cpu"))},  # Macs of Intel have Intel's
    "integrated, with CUDA": (advise(chip(apis={"cuda": Api()})), {MODE: "gpu"}),
    **{f"integrated, with {units} units of {vendor}": (advise(chip(vendor=vendor, compute=Compute(units=make_fact(units, "t")))), {MODE: mode})
       for units, vendor, mode in ((32, "amd", "gpu"), (31, "amd", "cpu"), (32, "intel", "cpu"))},
    # Small GPUs alone, where sharing gains nothing.
    "memory that both share": (
        advise(chip(3 * GIB, unified=True, apis={"wgpu:metal": Api()})), {"reasons.1.code": "SHARED_BANDWIDTH"}),
    **{f"{threads} threads": (advise(card(3 * GIB), threads=threads), {MODE: mode, CODES: ["VRAM_2_TO_4GIB", *codes]})
       for threads, mode, codes in ((1, "gpu", ["FEW_CPU_THREADS"]), (2, "hybrid", []), (None, "hybrid", []))},
    "half of the memory is not busy": (advise(card(8 * GIB, free=4 * GIB)), {CODES: ["VRAM_GE_4GIB"]}),
    "busy memory is noted": (advise(card(8 * GIB, free=GIB)), {CODES: ["VRAM_GE_4GIB", "MEMORY_BUSY"]}),
    "the user's choice": (
        advise(card(8 * GIB), override="cpu"), {MODE: "cpu", "overrides": ["cpu"], "reasons.0.code": "OVERRIDE", IDS: []}),
    # A late source overrules nothing that is known.
    "late beside a known size": (
        advise(card(8 * GIB), card(None, 1, vendor="nvidia"), late="nvml"), {MODE: "gpu", IDS: ["g0"], REJECTED: ["SOURCE_LATE"]}),
    **{f"{vendor} and a late {late}": (
        advise(card(None, vendor=vendor), card(None, 1, vendor=vendor), late=late),
        {MODE: "gpu", CODES: ["SOURCE_LATE"] * 2, IDS: ["g0", "g1"], "rejected": []})
       for vendor, late in (("nvidia", "nvml"), ("nvidia", "cuda"), ("amd", "drm"), ("amd", "cuda"), ("intel", "drm"))},
    **{f"{vendor} and a late {late}, which tells nothing of it": (
        advise(card(None, vendor=vendor), late=late), {MODE: "cpu", CODES: ["VRAM_UNKNOWN"], REJECTED: ["VRAM_UNKNOWN"]})
       for vendor, late in (("nvidia", "blas"), ("amd", "nvml"))},
    "late and refused": (advise(card(None, vendor="nvidia", usable=NO, why_not=["NOT_EXPOSED"]), late="nvml"), {MODE: "cpu"}),
    "late and asleep": (
        advise(card(None, vendor="nvidia", power=Power(state=make_fact("suspended", "t"))), late="nvml"), {"reasons.0.code": "GPU_ASLEEP"}),
    "an integrated GPU of NVIDIA": (advise(chip(vendor="nvidia")), {MODE: "cpu"}),
    **{f"which a late CUDA leaves in the race, {vendor} with {units} units": (
        advise(chip(vendor=vendor, compute=Compute(units=make_fact(units, "t"))), late="cuda"), {MODE: mode})
       for vendor, units, mode in (("nvidia", None, "gpu"), ("amd", None, "gpu"), ("amd", 12, "cpu"), ("intel", None, "cpu"))},
    # Where files list no GPU, a late NVML leaves it open, as under WSL; a late wgpu does where nobody lists them, as on macOS.
    "no GPU and a late NVML": (advise(late="nvml"), {MODE: "gpu", IDS: [], "reasons.0.code": "SOURCE_LATE"}),
    "no GPU and a late wgpu": (advise(late="wgpu"), {MODE: "cpu"}),
    **{f"nobody lists GPUs, and a late {late}": (
        recommend.recommend(Machine(gpu_count=ABSENT, providers=[Provider(name=late, status="timeout")])), {MODE: "gpu"})
       for late in ("wgpu", "cuda")}}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_what_is_recommended(name):
    check(*ADVICE[name])
    hold(ADVICE[name][0], Recommendation())


def evidence(splits=(), **winners):
    regimes = {"waited": WAITED, "queued": QUEUED, "copied": "transfer-always", "mapped": MAPPED}
    situations = [documents.MeasuredSituation(regime=regimes[name], winner=won)
                  for name, won in winners.items()]  # fmt: skip
    own = [documents.MeasuredSplit(op="add", dtype="float32", regime=WAITED, n=8, device_id="h", gain=1.5, lo=1, hi=2, reason=why) for why in splits]  # fmt: skip
    return Measured(date="", situations=situations, splits=own)


@pytest.mark.parametrize(("winners", "static", "verdict"), [
    *(({"waited": "gpu", "copied": copied}, "cpu", ("gpu", code))
      for copied, code in (("cpu", WHERE), ("mixed", WHERE), ("gpu", DOMINATES), ("equal", DOMINATES), (None, DOMINATES))),
    ({"waited": "gpu", "mapped": "cpu"}, "cpu", ("gpu", WHERE)), ({"waited": "gpu", "mapped": "cpu", "copied": "gpu"}, "cpu", ("gpu", DOMINATES)),
    ({"waited": "cpu", "copied": "cpu"}, "gpu", ("cpu", "CPU_DOMINATES")), ({"waited": "cpu", "copied": "cpu", "queued": "gpu"}, "gpu", ("cpu", ALONE)),
    ({"waited": "cpu", "copied": "gpu"}, "gpu", ("cpu", ALONE)), ({"waited": "cpu", "queued": "cpu"}, "gpu", ("cpu", ALONE)),
    ({"waited": "equal", "copied": "gpu"}, "cpu", ("gpu", ALONE)), ({"copied": "gpu"}, "cpu", ("gpu", ALONE)), ({"mapped": "gpu"}, "cpu", ("gpu", ALONE)),
    ({"waited": "equal", "copied": "cpu"}, "gpu", ("cpu", ALONE)), ({"waited": "mixed", "copied": "cpu"}, "gpu", None), ({"copied": "cpu"}, "gpu", None),
    ({"splits": ["slower"], "copied": "cpu"}, "hybrid", ("cpu", ALONE)), ({"splits": ["slower"], "copied": "equal"}, "hybrid", ("gpu", ALONE)),
    ({"splits": ["slower"]}, "gpu", None), ({"splits": [None], "waited": "cpu"}, "gpu", ("hybrid", "HYBRID_PAYS")), ({}, "hybrid", None),
    *(({"splits": [why]}, "hybrid", None) for why in ("noise", "selected-in-sample", "throttled", "software"))])  # fmt: skip
def test_what_was_measured_decides(winners, static, verdict):
    told = recommend.judge(evidence(**winners), static)
    assert (told and (told.mode, told.code)) == verdict


def test_the_words_of_what_was_measured():
    names = [f"op{number}" for number in range(5)]
    for count, winner in ((3, "gpu"), (4, "cpu"), (0, "equal")):
        known = documents.MeasuredSituation(regime=WAITED, winner=winner, exceptions=names[:count])
        situations = [known, documents.MeasuredSituation(regime=COPIED, note="too small")]
        advice = recommend.decide(Machine(), Recommendation(), Measured(date="", situations=situations), ["g0"])
        told = None if advice is None else advice.reasons[0].text
        but = ", but for op0, op1 and op2" if count == 3 else ", but for op0, op1, op2 and 1 more ops"
        expected = {
            "gpu": f"GPU for data that stays there{but}",
            "cpu": f"CPU for data that stays on the GPU{but}",
        }
        assert told == (
            (
                winner in expected
                and f"Measured here: {expected[winner]}; not known for calls that copy (too small)."
            )
            or None
        )


def test_verified_needs_every_listed_device_and_the_documentation_lists_every_code():
    advice = documents.Recommendation(mode="gpu", device_ids=["a", "b"])
    confidences = [recommend.verify(advice, frozenset(ids)).confidence for ids in ("a", "ab")]
    assert confidences == ["provisional", "verified"]
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text()
    assert [code for code, text in DETECTION.items() if f"| `{code}` | {text} |" not in page] == []


@pytest.mark.parametrize(("access", "code", "named"), [
    (documents.Access(hidden_by_env=make_fact("CUDA_VISIBLE_DEVICES", "x")), "HIDDEN_BY_ENV", "unset it"),
    (documents.Access(hidden_by_env=make_fact("HIP_VISIBLE_DEVICES", "x")), "HIDDEN_BY_ENV", "HIP_VISIBLE_DEVICES"),
    (documents.Access(device_node=make_fact("no_permission", "/dev/dri/renderD129")), "NO_PERMISSION", "/dev/dri/renderD129"),
    (documents.Access(device_node=make_fact("absent", "/dev/dri/renderD128")), "NOT_EXPOSED", "/dev/dri/renderD128"),
    (documents.Access(device_node=make_fact("absent", "/dev/dri/renderD128")), "NOT_EXPOSED", "--device /dev/kfd"),
    (documents.Access(device_node=make_fact("absent", "/dev/nvmap")), "NOT_EXPOSED", "--runtime nvidia"),
    (documents.Access(), "NO_DRIVER", "it comes with the kernel")])  # fmt: skip
def test_a_reason_names_the_variable_or_the_node(access, code, named):
    gpu = card(8 * GIB, usable=make_fact(False, "t"), why_not=[code], access=access)
    advice = advise(gpu)
    assert (advice.mode, advice.reasons[0].code) == ("cpu", code)
    assert named in advice.reasons[0].text
    # A variable hides nothing from WebGPU: the mode stays, and the reason is told.
    told = [reason.code for reason in advise(card(8 * GIB, access=access)).reasons]
    assert told == ["VRAM_GE_4GIB", *["HIDDEN_BY_ENV"] * (code == "HIDDEN_BY_ENV")]
    lack = recommend.lacks(Machine(gpus=[gpu]), "gpu")
    assert (named in lack.hint, lack.reason.endswith(code)) == (True, True)
    assert recommend.lacks(Machine(gpus=[gpu]), gpu.id) == lack
    for word in ("HIDDEN_BY_ENV", "NO_PERMISSION", "NOT_EXPOSED", "UNUSABLE", "unknown"):
        assert recommend.about(word, card(8 * GIB)) == DETECTION.get(word, ""), "nothing is known of the GPU"
    assert "number or vendor" in recommend.lacks(Machine(gpus=[gpu]), "cupy").reason  # a card of AMD


# ---------------------------------------------------------------- files in, recommendation out
RESULTS = Path(__file__).parents[2] / "results"
ALL = (CPU, GPU, HYBRID)
COPIED = "transfer-always"
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


def advise_by_files(folder, *files, gib=16, devices=ALL):
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
CODE, SURE = "reasons.0.code", "confidence"
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
    "stages on two sides that won": (
        [assigned(FFN, STAGES, "gc", 0.25e-3)], {}, {MODE: "hybrid", "measured.splits.0.assignment": "gc"}, "ffn"),
    "stages on two sides that lost": ([assigned(FFN, STAGES, "gc", 1.5e-3)], {"gib": 3}, {MODE: "gpu"}, ""),
    "a split beside another GPU that is faster alone": (
        [*shared(3e-3, 1e-3, 0.7e-3), measured(case(n=1024, regime=COPIED, device="wgpu:0"), 0.1e-3)], {"devices": (*ALL, OTHER)},
        {MODE: "gpu"}, "")}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_a_file_recommends(tmp_path, name):
    rows, machine, expected, text = ROWS[name]
    advice = advise_by_files(tmp_path, rows, **machine)
    check(advice, expected)
    hold(advice, Recommendation())
    assert text in advice.reasons[0].text


ONLY_QUEUED = ops({"matmul": 30.0, "add": 20.0}, QUEUED)


@pytest.mark.parametrize(("rows", "why", "gib", "mode"), [
    (ops({"matmul": 0.2, "add": 0.2}, WAITED, cpu_s=9e-6)[:2], "too small", 16, "gpu"),
    (ops({"matmul": 6.0, "add": 0.16}, WAITED, cpu_s=9e-6), "share the ops (1 and 1)", 16, "gpu"),
    (ops({"matmul": 1.02, "add": 0.98}, WAITED), "about equal", 16, "gpu"),
    (COPIES_LOSE, "no call that is waited for", 16, "gpu"),
    ([measured(case(n=64), 1e-3)], "it compares no GPU with a CPU", 16, "gpu"),
    *((ONLY_QUEUED, "20260101T000000Z-00000001.json does not tell the mode: no call that is waited for", gib, mode)
      for gib, mode in ((16, "gpu"), (3, "hybrid"), (1, "cpu")))])  # fmt: skip
def test_a_file_that_cannot_tell_says_so_and_changes_nothing(tmp_path, rows, why, gib, mode):
    advice = advise_by_files(tmp_path, rows, gib=gib)
    assert (advice.mode, advice.confidence, advice.measured) == (mode, "provisional", None)
    assert "nothing was measured" not in advice.reasons[0].text
    (note,) = [reason for reason in advice.reasons if reason.code == "RESULT_SILENT"]
    assert why in note.text


def test_an_older_file_that_tells_decides_and_the_newer_one_says_why_it_does_not(tmp_path, monkeypatch):
    files = CPU_WINS, ops({"matmul": 30.0}, QUEUED), [measured(case(n=64), 1e-3)]
    monkeypatch.setattr(recommend, "MOST_FILES", 2)
    assert advise_by_files(tmp_path, *files).measured is None
    monkeypatch.setattr(recommend, "MOST_FILES", 3)
    advice = advise_by_files(tmp_path, *files)
    assert (advice.mode, advice.confidence) == ("cpu", "measured")
    assert advice.measured.file == "20260101T000000Z-00000001.json"
    first, note = advice.reasons
    assert (first.code, note.code) == ("CPU_DOMINATES", "RESULT_SILENT")
    assert note.text.startswith("20260103T000000Z")


def test_the_first_line_says_both_situations_or_what_it_rests_on(tmp_path):
    machine = on_machine(run_of(GPU_WINS), 16).machine
    told = picture.advice(replace(machine, recommendation=advise_by_files(tmp_path, [*GPU_WINS, *COPIES_LOSE])))
    assert "GPU for data that stays there; the CPU for calls that copy, but for matmul from" in told
    assert "By VRAM alone, nothing was measured: `gpubench run`" in picture.advice(machine)


def test_the_default_run_of_an_h200():
    (path,) = RESULTS.glob("*/20261125T000334Z-9aaa659e.json*")
    advice = recommend_mode(analyse(load(path)))
    assert (advice.mode, advice.confidence) == ("gpu", "measured")


# ---------------------------------------------------------------- a result as detect quotes it and as the report reads it
def test_break_even_points_are_quoted_in_words():
    point = MeasuredBreakEven(op="matmul", dtype="float32", backend="cupy", regime="resident-waited", size=128)
    points = [point, replace(point, regime="transfer-always", size=194),
              replace(point, regime="transfer-once-10", size=None, note="never up to n = 64"),
              replace(point, params="m=3", size=64, note="the smallest size measured")]  # fmt: skip
    assert picture.quote(points) == [
        "matmul float32: GPU from n = 128 with data on the GPU, from n = 194 copied at every call, never up to n = 64 with 10 calls a copy",
        "matmul m=3 float32: GPU from n = 64 (the smallest size measured) with data on the GPU"]  # fmt: skip
    for size, words in ((9999, "n = 9999 "), (10_000, "n = 9.8 K ")):
        assert words in picture.quote([replace(point, size=size)])[0]
    for regime in set(ORDERED) - {RESIDENT}:  # each has words
        assert regime not in picture.quote([replace(point, regime=regime)])[0]


def h100(name, *, usable=True):
    memory = GpuMemory(unified=make_fact(False, "t"))
    ids = {"vendor_id": make_fact("10de", "t"), "device_id": make_fact("2330", "t")}
    return Gpu(id=name, **ids, usable=make_fact(usable, "t"), memory=memory)


def with_gpus(*cards, gpu_id):
    """A run on a machine of eight CPUs with these GPUs, of which it measured one."""
    run = run_of(once([*GPU_WINS, *COPIES_LOSE]))
    advice = Recommendation(mode="gpu", device_ids=[cards[0].id])
    cpu = replace(run.machine.cpu, available=make_fact(8, "t"))
    machine = replace(run.machine, gpus=list(cards), cpu=cpu, recommendation=advice)
    devices = [each if each.kind == "cpu" else replace(each, gpu_id=gpu_id) for each in run.devices]
    return replace(run, machine=machine, devices=devices, settings=replace(run.settings, threads=8))


def advise_from(run, folder, here=None):
    save(run, folder / "r.json")
    here = here or run.machine
    return recommend.apply_results(here, here.recommendation, folder, read_result)


def test_a_result_file_of_this_machine_is_quoted_as_the_report_reads_it(in_process, tmp_path):
    run = with_gpus(h100("g0"), gpu_id="g0")
    advice = advise_from(run, tmp_path)
    reported = json.loads(in_process("report", str(tmp_path / "r.json"), "--format", "json").stdout)
    rows = {(row["op"], row["regime"]): row for row in reported["break_even"]}
    sizes = {key: row["first"] if row["verdict"] == "all-sizes" else row["n"] for key, row in rows.items()}
    assert {(p.op, p.regime): p.size for p in advice.measured.break_even} == sizes
    text = json.dumps(msgspec.to_builtins(advice.measured))
    quoted = json.loads(text, parse_float=lambda figure: float(f"{float(figure):.6g}"))
    assert quoted == {**reported["recommendation"]["measured"], "file": "r.json"}
    assert (advice.mode, advice.confidence) == (reported["recommendation"]["mode"], "measured")
    drawn = picture.render(replace(run.machine, recommendation=advice), "markdown")
    assert "matmul float32: GPU from n = " in drawn


def test_a_result_of_a_gpu_that_cannot_be_used_now_changes_nothing(tmp_path):
    run = with_gpus(h100("g0"), h100("g1"), gpu_id="g1")
    advice = advise_from(run, tmp_path)  # not the GPU that the static rule likes; and the report says the same
    assert (advice.confidence, advice.device_ids) == ("measured", ["g1"])
    assert replace(advice, measured=None) == replace(recommend_mode(analyse(run)), measured=None)
    advice = advise_from(run, tmp_path, replace(run.machine, gpus=[h100("g0"), h100("g1", usable=False)]))
    assert (advice.mode, advice.device_ids, advice.measured) == ("gpu", ["g0"], None)
    assert [reason.code for reason in advice.reasons] == ["RESULT_SILENT"]
    nobodys = with_gpus(h100("g0"), h100("g1"), gpu_id="of another machine")
    assert advise_from(nobodys, tmp_path).device_ids == ["g0"], "it speaks for the advised GPUs"


@pytest.mark.parametrize("odd", [{"inputs": "zeros"}, {"cache": "cold"}, {"threads": 0}])
def test_an_experiment_is_no_reason(odd):
    """It says nothing of how a call usually runs."""
    run = with_gpus(h100("g0"), gpu_id="g0")
    assert not isinstance(read_result(run), str)
    assert "it is an experiment" in read_result(replace(run, settings=replace(run.settings, **odd)))


def test_a_file_without_what_decides_and_one_that_is_cut_say_so(tmp_path):
    run = with_gpus(h100("g0"), gpu_id="g0")
    queued = replace(run, selection=replace(run.selection, regimes=[QUEUED]))
    for cut, words in ((0, "no call that is waited for"), (-30, "truncated")):
        save(queued if not cut else run, tmp_path / "r.json")
        (tmp_path / "r.json").write_bytes((tmp_path / "r.json").read_bytes()[: cut or None])
        advice = recommend.apply_results(run.machine, run.machine.recommendation, tmp_path, read_result)
        assert [(reason.code, words in reason.text) for reason in advice.reasons] == [("RESULT_SILENT", True)]


def test_a_folder_without_results_changes_nothing(tmp_path):
    (tmp_path / "notes.json").write_text("{}")
    machine = Machine(gpus=[h100("g0")])
    told = recommend.apply_results(machine, machine.recommendation, tmp_path, read_result)
    assert told is machine.recommendation


# ---------------------------------------------------------------- is a result of this machine?
def fact(value, source="files"):
    return make_fact(value, source) if value is not None else ABSENT


def cpu(model="AMD Ryzen 7 5800X", cores=8, logical=16, available=16, part=None, source="/proc/cpuinfo"):
    kind = CpuKind(rank=0, cores=cores, logical=logical, cpus="0-15", part=part)
    return Cpu(model=fact(model, source), cores=fact(cores), logical=fact(logical), available=fact(available),
               kinds=make_fact([kind], "files"))  # fmt: skip


def gpu(ids=("1002", "7480", "1eae", "7601"), *, uuid=None, name="Navi 33", version=None, gib=8, bdf="0000:0d:00.0", **more):  # fmt: skip
    vendor, device, subvendor, subdevice = (*ids, None, None, None, None)[:4]
    return Gpu(
        id=uuid or more.pop("id", f"pci:{bdf}"), uuid=fact(uuid), bdf=fact(bdf), name=fact(name), vendor_id=fact(vendor),
        device_id=fact(device), subvendor_id=fact(subvendor), subdevice_id=fact(subdevice),
        driver=Driver(name=fact("amdgpu"), version=fact(version)), usable=make_fact(True, "t"),
        memory=GpuMemory(dedicated_bytes=fact(gib and gib * GIB), usable_bytes=fact(16 * GIB), unified=make_fact(False, "t")),
        kind=make_fact("discrete", "t"), **more)  # fmt: skip


def machine(*gpus, **more):
    more = {"cpu": cpu(), "memory": Memory(total_bytes=make_fact(64 * GIB, "t")), **more}
    return Machine(gpus=list(gpus), gpu_count=make_fact(len(gpus), "t"), platform=Platform(arch=fact("x86_64")),
                   **more)  # fmt: skip


UUID, SECOND = "GPU-0123456789abcdef", "GPU-fedcba9876543210"
ARM = cpu(None, 20, 20, 20, part="0xd85")
APPLE = cpu("Apple M2 Max", 12, 12, 12, source="cpuinfo")
HERE = machine(gpu())


def apple(units, name="api:metal:0"):
    return machine(gpu((), gib=None, bdf=None, id=name, compute=Compute(units=fact(units))), cpu=APPLE)


# What is one machine: (here, there), where each side knows something else.
ONE_MACHINE = {
    "another name of the GPU": (HERE, machine(gpu(name="AMD Radeon RX 7600 (RADV NAVI33)"))),
    "no model name, as on 64-bit Arm": (machine(gpu(), cpu=ARM), machine(gpu(), cpu=ARM)),
    "a model name there alone": (machine(gpu(), cpu=ARM), machine(gpu(), cpu=cpu("Cortex-X925", 20, 20, 20))),
    "a placeholder for a name": (HERE, machine(gpu(), cpu=cpu("unknown"))),
    "another spelling of the model": (HERE, machine(gpu(), cpu=cpu("AMD  Ryzen(TM) 7 5800X"))),
    "another source of the model": (HERE, machine(gpu(), cpu=cpu("AMD 5800X", source="cpuinfo"))),
    "a GPU that wgpu alone told of": (HERE, machine(gpu(("1002", "7480"), gib=None, bdf=None, id="api:wgpu-vulkan:0"))),
    "no subsystem here": (machine(gpu(("1002", "7480"))), HERE),
    "Apple without PCI ids": (apple(38), apple(38, "api:wgpu-metal:0")),
    "a uuid and its digest": (machine(gpu(uuid=UUID)), machine(gpu(uuid=uuid_digest(UUID)))),
    "one uuid in another slot": (machine(gpu(uuid=UUID, bdf="0000:01:00.0")), machine(gpu(uuid=UUID))),
    "a second GPU since": (machine(gpu(uuid=UUID), gpu(uuid=SECOND)), machine(gpu(uuid=UUID))),
    "a driver since": (machine(gpu(version="2")), machine(gpu(version="1"))),
    "the kernel's share of memory": (HERE, replace(HERE, memory=Memory(total_bytes=make_fact(63 * GIB, "t")))),
    "GPUs that nobody could list": (replace(machine(), gpu_count=missing("absent")), HERE)}  # fmt: skip
DIFFERENT = {
    "another GPU": ("GPU", HERE, machine(gpu(("1002", "744c")))),
    "another card of that id": ("GPU", HERE, machine(gpu(("1002", "7480", "1043", "05e1")))),
    "twice the memory under one id": ("GPU", machine(gpu(("1002", "7480"))), machine(gpu(("1002", "7480"), gib=16))),
    "the same model with another uuid": ("GPU", machine(gpu(uuid=UUID)), machine(gpu(uuid=SECOND))),
    "another number of compute units": ("GPU", apple(38), apple(30)),
    "no GPU here": ("GPU", machine(), HERE),
    "two GPUs there": ("GPU", HERE, machine(gpu(), gpu(bdf="0000:0e:00.0"))),
    "the GPU in another machine": ("cores", machine(gpu(uuid=UUID)), machine(gpu(uuid=UUID), cpu=cpu(cores=16))),
    "another CPU": ("CPU", HERE, machine(gpu(), cpu=cpu("AMD Ryzen 9 5950X"))),
    "another kind of Arm core": ("CPU parts", machine(cpu=ARM), machine(cpu=cpu(None, 20, 20, 20, part="0xd4f"))),
    "SMT switched off": ("CPUs", HERE, machine(gpu(), cpu=cpu(logical=8))),
    "a container with fewer CPUs": ("usable CPUs", HERE, machine(gpu(), cpu=cpu(available=4))),
    "half the memory": ("memory", HERE, replace(HERE, memory=Memory(total_bytes=make_fact(32 * GIB, "t"))))}  # fmt: skip


@pytest.mark.parametrize("name", ONE_MACHINE)
def test_one_machine_is_one_machine_whoever_was_asked(name, tmp_path):
    here, there = ONE_MACHINE[name]
    assert compare(here, there).differences == {}
    assert compare(here, there).same
    if here.gpus and "driver" not in name:  # whatever the folder is called
        result(tmp_path, there)
        advice = advise_here(here, tmp_path)
        assert (advice.mode, advice.confidence, advice.device_ids) == ("gpu", "measured", [here.gpus[0].id])


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_machine_is_named_by_what_differs_and_its_results_are_left_out(name, tmp_path):
    what, here, there = DIFFERENT[name]
    assert what in compare(here, there).differences
    assert not compare(here, there).same
    if there.gpus and here.gpus and "two" not in name:
        result(tmp_path, there)
        assert advise_here(here, tmp_path) == recommend.recommend(here)
        # A file that the user named is not passed over.
        told = advise_here(here, *tmp_path.glob("*/*.json")).reasons
        notes = [reason.text for reason in told if reason.code == "RESULT_OTHER_MACHINE"]
        assert [f"{what}: " in text for text in notes] == [True]


def test_what_differs_is_told_in_words():
    assert not compare(Machine(), Machine()).same
    other = machine(gpu(), cpu=cpu("Other", available=2), memory=Memory(total_bytes=make_fact(32 * GIB, "t")))
    assert differences(other, HERE) == {
        "CPU": "Other, here AMD Ryzen 7 5800X", "usable CPUs": "2, here 16", "memory": "32 GiB, here 64 GiB"}  # fmt: skip


def result(folder, there, name="20260101T000000Z-00000001.json", place="some-folder", **words):
    """A result whose GPU wins, measured on the machine `there`."""
    run = run_of(GPU_WINS, **words)
    devices = [replace(each, gpu_id=there.gpus[0].id) if each.kind == "gpu" else each for each in run.devices]
    run = replace(run, machine=there, devices=devices, settings=replace(run.settings, threads=None))
    (folder / place).mkdir(exist_ok=True)
    save(run, folder / place / name)
    return run


def advise_here(here, results):
    return recommend.apply_results(here, recommend.recommend(here), results, read_result)


def test_another_driver_is_said(tmp_path):
    here, there = ONE_MACHINE["a driver since"]
    result(tmp_path, there)
    advice = advise_here(here, tmp_path)
    assert advice.confidence == "provisional"
    (note,) = [reason for reason in advice.reasons if reason.code == "RESULT_OTHER_DRIVER"]
    assert "driver 1, here 2" in note.text
    result(tmp_path, here, "20250101T000000Z-00000002.json")
    assert advise_here(here, tmp_path).confidence == "measured", "an older file of this driver"
    assert advise_here(HERE, tmp_path).confidence == "measured", "what one side does not know says nothing"


def test_the_gpu_that_was_measured_is_named_by_its_id_here_and_another_may_be_gone(tmp_path):
    """A result holds digests; of two equal cards it measured the second."""
    first, second = gpu(uuid="GPU-0000000000000001"), gpu(uuid="GPU-0000000000000002", bdf="0000:0e:00.0")
    result(tmp_path, machine(*[gpu(uuid=uuid_digest(card.id), bdf=card.bdf.value) for card in (second, first)]))
    assert advise_here(machine(first, second), tmp_path).device_ids == [second.id]
    assert advise_here(machine(second), tmp_path).confidence == "measured"
    assert advise_here(machine(first), tmp_path).confidence == "provisional"


def test_files_that_cannot_tell_are_not_read_to_their_end(tmp_path, monkeypatch):
    """Their heads tell; this machine's result stands behind ten of another and one of the CPU alone."""
    result(tmp_path, HERE, "20260202T000000Z-00000001.json.gz", devices=(CPU,))
    other = machine(gpu(("10de", "2330")))
    for number in range(10):
        result(tmp_path, other, f"20260201T0000{number:02d}Z-000000{number:02d}.json.gz")
    result(tmp_path, HERE)
    whole, load = [], store.load
    monkeypatch.setattr(store, "load", lambda path: whole.append(path.name) or load(path))
    assert advise_here(HERE, tmp_path).confidence == "measured"
    assert whole == ["20260101T000000Z-00000001.json"]


def test_a_result_of_another_layout_is_found_too(tmp_path):
    """A tool that writes JSON anew may sort its keys."""
    result(tmp_path, HERE)
    (path,) = tmp_path.glob("*/*.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True))
    assert advise_here(HERE, tmp_path).confidence == "measured"


def test_a_policy_takes_no_results_of_another_gpu(tmp_path, monkeypatch):
    result(tmp_path, HERE, devices=(replace(GPU, id="numpy:0", kind="cpu"), GPU))
    monkeypatch.setattr(host, "this_host", lambda: replace(HERE, gpu_count=missing("absent")))
    assert Policy.load(tmp_path).ops
    monkeypatch.setattr(host, "this_host", lambda: machine(gpu(("10de", "2330"))))
    refused = raised(InputError, Policy.load, tmp_path)
    assert (refused.code, "GPU: Navi 33 (1002:7480)" in refused.why) == ("other-machine", True)


def test_the_gpus_of_a_device_group_are_measured_too():
    group = replace(GPU, id="group:cupy:0+1", gpu_id=None, gpu_ids=["a", "b"])
    assert measured_gpus([CPU, replace(GPU, gpu_id="a"), group]) == ["a", "b"]
