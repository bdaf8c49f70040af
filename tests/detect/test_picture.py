"""What people see: names, memory, drivers, what is usable and why not; in colour, in ASCII, in 60 columns."""

from __future__ import annotations

import io
import sys

import msgspec
import pytest

from gpubench import detect
from gpubench.detect import picture

GIB = 1 << 30


@pytest.fixture
def laptop(look, host, pci):
    host |= pci("0000:00:02.0", "8086", "46a6", "i915")
    host |= pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 * GIB), mem_info_vram_used=str(2 * GIB),
                mem_info_vram_vendor="samsung", max_link_speed="16.0 GT/s PCIe", max_link_width="16")  # fmt: skip
    return look(host | pci("0000:04:00.0", "10de", "2684", "vfio-pci"))


def draw(machine, monkeypatch, columns=80, format="table", **options):
    monkeypatch.setenv("COLUMNS", str(columns))
    return detect.render(machine, format, **({"color": "never"} | options))


@pytest.mark.parametrize("format", ["table", "plain"])
def test_the_picture_tells_name_memory_driver_and_what_is_usable(laptop, monkeypatch, format):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    text = " ".join(draw(laptop, monkeypatch, 100, format).split())
    for part in ("Test CPU", "2 usable", "8.0 GiB, 6.0 GiB usable", "Navi 31", "25% used", "driver amdgpu", "PCIe 4 x16", "gpu on GPU 1",
                 "✓ 8.0 GiB for one process", "✗ not usable: PASSED_THROUGH.", "✗ not chosen: INTEGRATED_UNMEASURED.",
                 "not GPU 0: INTEGRATED_UNMEASURED", "not GPU 2: PASSED_THROUGH"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("format", ["table", "plain"])
def test_it_fits_and_says_the_same_in_any_width(laptop, monkeypatch, columns, ascii, format):
    text = draw(laptop, monkeypatch, columns, format, ascii=ascii)
    assert max(map(len, text.splitlines())) <= columns
    assert text.isascii() or not ascii
    assert "?" not in text
    assert "\x1b" not in text
    for code in ("PASSED_THROUGH", "VRAM_GE_4GIB"):
        assert code in "".join(text.split())


def test_colour_only_repeats_what_signs_say(laptop, monkeypatch):
    colored = draw(laptop, monkeypatch, color="always")
    assert "\x1b[" in colored


def test_equal_gpus_are_one_section(look, host, pci, monkeypatch):
    for number in range(8):
        host |= pci(
            f"0000:{number:02x}:00.0",
            "1002",
            "744c",
            "amdgpu",
            mem_info_vram_total=str(8 * GIB),
            board_info="x",
        )
    host |= pci("0000:09:00.0", "1002", "744c", "vfio-pci")
    text = draw(look(host), monkeypatch, 100, ascii=True)
    assert "GPU 0-7" in text
    assert "8 x AMD Navi 31" in text
    assert "8.0 GiB each" in text
    assert "| GPU 8 " in text
    assert "gpu on GPU 0-7" in text


@pytest.mark.parametrize(
    ("mode", "said"),
    [("cpu", "on the CPU"), ("gpu", "on the GPU (GPU 1)"), ("hybrid", "on CPU and GPU together (GPU 1)")],
)
def test_the_advice_leads_in_every_mode(laptop, monkeypatch, mode, said):
    reported = msgspec.structs.replace(laptop.recommendation, mode=mode)
    if mode == "cpu":
        reported = msgspec.structs.replace(reported, device_ids=[])
    machine = msgspec.structs.replace(laptop, recommendation=reported)
    for format in ("table", "plain"):
        first = draw(machine, monkeypatch, 100, format).splitlines()[0]
        assert first.startswith(f"Recommended mode: {mode}, compute {said}. At least 4 GiB")


def test_a_machine_of_which_nothing_is_known_is_drawn_too(look, monkeypatch):
    text = draw(look({"/proc/nothing": ""}), monkeypatch, ascii=True)
    assert "GPU_UNKNOWN" in text
    assert "number of CPUs unknown" in text


def test_a_sleeping_gpu_is_shown_asleep(look, host, pci, monkeypatch):
    machine = look(host | pci("0000:01:00.0", "10de", "2684", "nvidia", power__runtime_status="suspended"))
    text = draw(machine, monkeypatch, 100, ascii=True)
    assert "asleep (suspended)" in text
    assert "detect --wake" in text


def test_every_fact_is_explained(laptop):
    lines = list(picture.explained(laptop))
    facts = [line for line in lines if not line.startswith("reason ")]
    assert all(" = " in line for line in facts)
    assert len(facts) > 100
