from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpubench.base.messages import DETECTION
from gpubench.detect import inspection, recommend
from gpubench.detect.facts import ABSENT, make_fact
from gpubench.result.machine import (
    Access,
    Api,
    Compute,
    Cpu,
    Gpu,
    GpuMemory,
    Machine,
    Power,
    Provider,
    Recommendation,
)

GIB = 1 << 30


def card(size, number=0, **more):
    memory = GpuMemory(
        usable_bytes=make_fact(size, "t") if size is not None else ABSENT,
        dedicated_bytes=make_fact(size, "t") if size is not None else ABSENT,
        unified=make_fact(more.pop("unified", False), "t"),
    )
    return Gpu(
        id=f"g{number}",
        vendor=make_fact(more.pop("vendor", "amd"), "t"),
        kind=make_fact(more.pop("kind", "discrete"), "t"),
        memory=memory,
        **more,
    )


def advise(*gpus, threads=8, override=None, late=None):
    providers = [Provider(name=late, status="timeout")] if late else []
    machine = Machine(
        gpus=list(gpus), cpu=Cpu(available=make_fact(threads, "t")), gpu_count=make_fact(len(gpus), "t"), providers=providers,
    )  # fmt: skip
    return recommend.recommend(machine, override)


@pytest.mark.parametrize(
    ("size", "wanted", "code"),
    [(4080 << 20, "gpu", "VRAM_GE_4GIB"), (4 * GIB * 15 // 16, "gpu", "VRAM_GE_4GIB"), (3 * GIB, "hybrid", "VRAM_2_TO_4GIB"),
     (2 * GIB * 15 // 16, "hybrid", "VRAM_2_TO_4GIB"), (GIB, "cpu", "VRAM_LT_2GIB")],
)  # fmt: skip
def test_bounds_are_nominal_sizes(size, wanted, code):
    advice = advise(card(size))
    assert (advice.mode, advice.reasons[0].code) == (wanted, code)


def test_the_largest_decides_and_sizes_are_never_summed():
    assert advise(card(3 * GIB), card(3 * GIB, 1)).mode == "hybrid"
    advice = advise(card(4 * GIB), card(8 * GIB, 1), card(3 * GIB, 2))
    assert advice.device_ids == ["g1", "g0"]


def test_integrated_gpus_must_prove_themselves():
    assert advise(card(16 * GIB, kind="integrated")).rejected[0].code == "INTEGRATED_UNMEASURED"
    assert advise(card(16 * GIB, kind="integrated", apis={"cuda": Api()})).mode == "gpu"
    large = card(16 * GIB, kind="integrated", compute=Compute(units=make_fact(40, "t")))
    assert advise(large).mode == "gpu"


@pytest.mark.parametrize(
    ("vendor", "late", "mode", "code"),
    [
        ("nvidia", "nvml", "gpu", "SOURCE_LATE"), ("nvidia", "cuda", "gpu", "SOURCE_LATE"),
        ("amd", "drm", "gpu", "SOURCE_LATE"), ("intel", "drm", "gpu", "SOURCE_LATE"),
        ("nvidia", "blas", "cpu", "VRAM_UNKNOWN"), ("amd", "nvml", "cpu", "VRAM_UNKNOWN"),
    ],
)  # fmt: skip
def test_a_source_that_is_late_has_not_said_no(vendor, late, mode, code):
    advice = advise(card(None, vendor=vendor), card(None, 1, vendor=vendor), late=late)
    assert (advice.mode, [reason.code for reason in advice.reasons]) == (mode, [code] * 2)
    assert advice.device_ids == (["g0", "g1"] if mode == "gpu" else [])
    assert [refused.code for refused in advice.rejected] == ([] if mode == "gpu" else [code] * 2)
    assert ("nvidia-smi -pm 1" in advice.reasons[0].text) == (mode == "gpu")


def test_a_late_source_overrules_nothing_that_is_known():
    known_size = advise(card(8 * GIB), card(None, 1, vendor="nvidia"), late="nvml")
    assert (known_size.mode, known_size.device_ids) == ("gpu", ["g0"])
    assert [refused.code for refused in known_size.rejected] == ["SOURCE_LATE"]
    refused = card(None, vendor="nvidia", usable=make_fact(False, "t"), why_not=["NOT_EXPOSED"])
    assert advise(refused, late="nvml").mode == "cpu"
    asleep = card(None, vendor="nvidia", power=Power(state=make_fact("suspended", "t")))
    assert advise(asleep, late="nvml").reasons[0].code == "GPU_ASLEEP"


def test_a_late_cuda_leaves_an_integrated_nvidia_gpu_in_the_race():
    chip = card(16 * GIB, kind="integrated", vendor="nvidia")
    assert advise(chip).mode == "cpu"
    assert advise(chip, late="cuda").mode == "gpu"


def test_where_files_list_no_gpu_a_late_nvml_leaves_it_open():
    advice = advise(late="nvml")  # as under WSL
    assert (advice.mode, advice.device_ids, advice.reasons[0].code) == ("gpu", [], "SOURCE_LATE")
    assert advise(late="wgpu").mode == "cpu", "files say that there is none"
    unlisted = Machine(gpu_count=ABSENT, providers=[Provider(name="wgpu", status="timeout")])  # as on macOS
    assert recommend.recommend(unlisted).mode == "gpu"


def test_small_gpus_alone_where_sharing_gains_nothing():
    shared = card(3 * GIB, kind="integrated", unified=True, apis={"wgpu:metal": Api()})
    assert [r.code for r in advise(shared).reasons][1] == "SHARED_BANDWIDTH"
    assert advise(card(3 * GIB), threads=1).mode == "gpu"


def test_the_users_choice_is_echoed():
    advice = advise(card(8 * GIB), override="cpu")
    assert (advice.mode, advice.overrides, advice.reasons[0].code, advice.device_ids) == (
        "cpu",
        ["cpu"],
        "OVERRIDE",
        [],
    )


def test_verified_needs_every_listed_device():
    advice = Recommendation(mode="gpu", device_ids=["a", "b"])
    assert recommend.verify(advice, frozenset({"a"})).confidence == "provisional"
    assert recommend.verify(advice, frozenset({"a", "b"})).confidence == "verified"


def test_busy_memory_is_noted():
    busy = card(8 * GIB)
    busy = msgspec.structs.replace(
        busy, memory=msgspec.structs.replace(busy.memory, free_bytes=make_fact(GIB, "t"))
    )
    assert [r.code for r in advise(busy).reasons] == ["VRAM_GE_4GIB", "MEMORY_BUSY"]


def test_the_documentation_lists_every_code():
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text()
    assert [code for code, text in DETECTION.items() if f"| `{code}` | {text} |" not in page] == []


@pytest.mark.parametrize(
    ("access", "code", "named"),
    [
        (Access(hidden_by_env=make_fact("CUDA_VISIBLE_DEVICES", "x")), "HIDDEN_BY_ENV", "unset it"),
        (
            Access(hidden_by_env=make_fact("ONEAPI_DEVICE_SELECTOR", "x")),
            "HIDDEN_BY_ENV",
            "ONEAPI_DEVICE_SELECTOR",
        ),
        (
            Access(device_node=make_fact("no_permission", "/dev/dri/renderD129")),
            "NO_PERMISSION",
            "/dev/dri/renderD129",
        ),
        (Access(device_node=make_fact("absent", "/dev/nvidia3")), "NOT_EXPOSED", "/dev/nvidia3"),
    ],
)
def test_a_reason_names_the_variable_or_the_node(access, code, named):
    gpu = card(8 * GIB, usable=make_fact(False, "t"), why_not=[code], access=access)
    advice = advise(gpu)
    assert (advice.mode, advice.reasons[0].code) == ("cpu", code)
    assert named in advice.reasons[0].text
    lack = inspection.lacks(Machine(gpus=[gpu]), "gpu")
    assert lack is not None
    assert named in lack.hint
    assert lack.why.endswith(code)
