from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpubench.catalogue import DETECTION
from gpubench.detect import inspection, recommend
from gpubench.detect.records import known
from gpubench.model.machine import Access, Api, Compute, Cpu, Gpu, GpuMemory, Machine, Recommendation

GIB = 1 << 30


def card(size, number=0, **more):
    memory = GpuMemory(
        usable_bytes=known(size, "t"),
        dedicated_bytes=known(size, "t"),
        unified=known(more.pop("unified", False), "t"),
    )
    return Gpu(
        id=f"g{number}",
        vendor=known("amd", "t"),
        kind=known(more.pop("kind", "discrete"), "t"),
        memory=memory,
        **more,
    )


def advise(*gpus, threads=8, override=None):
    machine = Machine(gpus=list(gpus), cpu=Cpu(available=known(threads, "t")), gpu_count=known(len(gpus), "t"))
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
    large = card(16 * GIB, kind="integrated", compute=Compute(units=known(40, "t")))
    assert advise(large).mode == "gpu"


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
    assert recommend.mark_verified(advice, frozenset({"a"})).confidence == "provisional"
    assert recommend.mark_verified(advice, frozenset({"a", "b"})).confidence == "verified"


def test_busy_memory_is_noted():
    busy = card(8 * GIB)
    busy = msgspec.structs.replace(
        busy, memory=msgspec.structs.replace(busy.memory, free_bytes=known(GIB, "t"))
    )
    assert [r.code for r in advise(busy).reasons] == ["VRAM_GE_4GIB", "MEMORY_BUSY"]


def test_every_code_has_a_text():
    assert all(text.endswith(".") for text in DETECTION.values())


def test_the_documentation_lists_every_code():
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text()
    assert [code for code, text in DETECTION.items() if f"| `{code}` | {text} |" not in page] == []


@pytest.mark.parametrize(
    ("access", "code", "named"),
    [
        (Access(hidden_by_env=known("CUDA_VISIBLE_DEVICES", "x")), "HIDDEN_BY_ENV", "unset it"),
        (Access(hidden_by_env=known("ONEAPI_DEVICE_SELECTOR", "x")), "HIDDEN_BY_ENV", "ONEAPI_DEVICE_SELECTOR"),
        (
            Access(device_node=known("no_permission", "/dev/dri/renderD129")),
            "NO_PERMISSION",
            "/dev/dri/renderD129",
        ),
        (Access(device_node=known("absent", "/dev/nvidia3")), "NOT_EXPOSED", "/dev/nvidia3"),
    ],
)
def test_a_reason_names_the_variable_or_the_node(access, code, named):
    gpu = card(8 * GIB, usable=known(False, "t"), why_not=[code], access=access)
    advice = advise(gpu)
    assert (advice.mode, advice.reasons[0].code) == ("cpu", code)
    assert named in advice.reasons[0].text
    lack = inspection.lacks(Machine(gpus=[gpu]), "gpu")
    assert lack is not None
    assert named in lack.hint
    assert lack.why.endswith(code)
