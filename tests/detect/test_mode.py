from pathlib import Path

import pytest

from gpubench.base.messages import DETECTION
from gpubench.detect import inspection, recommend
from gpubench.detect.facts import ABSENT, make_fact
from gpubench.result import machine as documents
from gpubench.result.case import MAPPED, QUEUED, WAITED
from gpubench.result.machine import Api, Compute, Cpu, Gpu, GpuMemory, Machine, Measured, Power, Provider
from tests.detect.trees import check

GIB = 1 << 30
WHERE, DOMINATES, ALONE = "GPU_WHERE_DATA_STAYS", "GPU_DOMINATES", "FASTER_ALONE"


def card(size, number=0, *, vendor="amd", kind="discrete", unified=False, free=None, **more):
    size_fact = make_fact(size, "t") if size is not None else ABSENT
    memory = GpuMemory(usable_bytes=size_fact, dedicated_bytes=size_fact, unified=make_fact(unified, "t"),
                       free_bytes=make_fact(free, "t") if free else ABSENT)  # fmt: skip
    return Gpu(id=f"g{number}", vendor=make_fact(vendor, "t"), kind=make_fact(kind, "t"), memory=memory, **more)


def advise(*gpus, threads=8, override=None, late=None):
    providers = [Provider(name=late, status="timeout")] if late else []
    available = ABSENT if threads is None else make_fact(threads, "t")
    machine = Machine(gpus=list(gpus), cpu=Cpu(available=available), gpu_count=make_fact(len(gpus), "t"),
                      providers=providers)  # fmt: skip
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
       for vendor, late in (("nvidia", "nvml"), ("nvidia", "cuda"), ("amd", "drm"), ("intel", "drm"))},
    **{f"{vendor} and a late {late}, which tells nothing of it": (
        advise(card(None, vendor=vendor), late=late), {MODE: "cpu", CODES: ["VRAM_UNKNOWN"], REJECTED: ["VRAM_UNKNOWN"]})
       for vendor, late in (("nvidia", "blas"), ("amd", "nvml"))},
    "late and refused": (advise(card(None, vendor="nvidia", usable=NO, why_not=["NOT_EXPOSED"]), late="nvml"), {MODE: "cpu"}),
    "late and asleep": (
        advise(card(None, vendor="nvidia", power=Power(state=make_fact("suspended", "t"))), late="nvml"), {"reasons.0.code": "GPU_ASLEEP"}),
    "an integrated GPU of NVIDIA": (advise(chip(vendor="nvidia")), {MODE: "cpu"}),
    "which a late CUDA leaves in the race": (advise(chip(vendor="nvidia"), late="cuda"), {MODE: "gpu"}),
    # Where files list no GPU, a late NVML leaves it open, as under WSL; a late wgpu does where nobody lists them, as on macOS.
    "no GPU and a late NVML": (advise(late="nvml"), {MODE: "gpu", IDS: [], "reasons.0.code": "SOURCE_LATE"}),
    "no GPU and a late wgpu": (advise(late="wgpu"), {MODE: "cpu"}),
    "nobody lists GPUs": (
        recommend.recommend(Machine(gpu_count=ABSENT, providers=[Provider(name="wgpu", status="timeout")])), {MODE: "gpu"})}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_what_is_recommended(name):
    check(*ADVICE[name])


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
    (documents.Access(device_node=make_fact("absent", "/dev/nvidia3")), "NOT_EXPOSED", "/dev/nvidia3")])  # fmt: skip
def test_a_reason_names_the_variable_or_the_node(access, code, named):
    gpu = card(8 * GIB, usable=make_fact(False, "t"), why_not=[code], access=access)
    advice = advise(gpu)
    assert (advice.mode, advice.reasons[0].code) == ("cpu", code)
    assert named in advice.reasons[0].text
    lack = inspection.lacks(Machine(gpus=[gpu]), "gpu")
    assert (named in lack.hint, lack.why.endswith(code)) == (True, True)
