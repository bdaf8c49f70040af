"""What people see: names, memory, drivers, what is usable and why not; in colour, in ASCII, in 60 columns."""

from __future__ import annotations

import io
import sys

import msgspec
import pytest

from gpubench import detect
from gpubench.base.installation import install_command
from gpubench.detect import picture
from gpubench.detect.facts import make_fact
from gpubench.result.machine import MachineWarning, Provider

GIB = 1 << 30


@pytest.fixture
def laptop(look, host, pci):
    host |= pci("0000:00:02.0", "8086", "46a6", "i915")
    host |= pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 * GIB), mem_info_vram_used=str(2 * GIB),
                mem_info_vram_vendor="samsung", max_link_speed="16.0 GT/s PCIe", max_link_width="16")  # fmt: skip
    return look(host | pci("0000:04:00.0", "10de", "2684", "vfio-pci"))


def draw(machine, monkeypatch, columns=80, format="table", **options):
    monkeypatch.setenv("COLUMNS", str(columns))
    return detect.render(machine, format, **options)


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
    assert "\x1b[" in draw(laptop, monkeypatch, columns, format, color=True) or format == "plain"


def test_equal_gpus_are_one_section(look, host, pci, monkeypatch):
    """Clocks that differ now set none of them apart."""
    for number in range(8):
        host |= pci(f"0000:{number:02x}:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 * GIB), board_info="x",
                    pp_dpm_sclk=f"0: {500 + number}Mhz *\n1: 2371Mhz")  # fmt: skip
    text = draw(look(host | pci("0000:09:00.0", "1002", "744c", "vfio-pci")), monkeypatch, 100, ascii=True)
    for part in (
        "GPU 0-7",
        "8 x AMD Navi 31",
        "8.0 GiB each",
        "\nGPU 8  ",
        "gpu on GPU 0-7",
        "clock 2.37 GHz at most",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("mode", "said"),
    [("cpu", "on the CPU"), ("gpu", "on the GPU (GPU 1)"), ("hybrid", "on CPU and GPU together (GPU 1)")],
)
def test_the_advice_leads_in_every_mode(laptop, monkeypatch, mode, said):
    ids = [] if mode == "cpu" else laptop.recommendation.device_ids
    advice = msgspec.structs.replace(laptop.recommendation, mode=mode, device_ids=ids)
    machine = msgspec.structs.replace(laptop, recommendation=advice)
    for format in ("table", "plain"):
        first = draw(machine, monkeypatch, 100, format).splitlines()[0]
        assert first.startswith(f"Recommended mode: {mode}, compute {said}. At least 4 GiB")


def test_what_is_not_known_is_said_or_not_shown(look, host, monkeypatch):
    text = draw(look({"/proc/nothing": ""}), monkeypatch, ascii=True)
    assert "GPU_UNKNOWN" in text
    assert "number of CPUs unknown" in text
    text = draw(look(host), monkeypatch)
    for word in ("clock", "governor", "power limit", "ECC", "Missing"):
        assert word not in text


def test_a_sleeping_gpu_is_shown_asleep_and_is_not_asked_for_its_clock(look, host, pci, monkeypatch):
    asleep = {"power__runtime_status": "suspended", "pp_dpm_sclk": "0: 500Mhz *"}
    assert (
        look(host | pci("0000:03:00.0", "1002", "744c", "amdgpu", **asleep)).gpus[0].compute.now_hz.status
        == "not_probed"
    )
    text = draw(
        look(host | pci("0000:03:00.0", "10de", "2684", "nvidia", **asleep)), monkeypatch, 100, ascii=True
    )
    assert "asleep (suspended)" in text
    assert "detect --wake" in text


def test_every_fact_is_explained(laptop):
    lines = list(picture.explain_facts(laptop))
    facts = [line for line in lines if not line.startswith("reason ")]
    assert all(" = " in line for line in facts)
    assert len(facts) > 100


@pytest.mark.parametrize("format", ["table", "plain"])
def test_clocks_governor_nodes_power_and_ecc_are_shown_where_they_are_known(
    look, host, pci, monkeypatch, format
):
    cpu = "/sys/devices/system/cpu/cpufreq/policy0"
    host |= {f"{cpu}/{file}": text for file, text in (
        ("related_cpus", "0 1"), ("cpuinfo_max_freq", "4800000"), ("base_frequency", "1400000"), ("scaling_governor", "powersave"),
    )}  # fmt: skip
    host["/proc/cpuinfo"] = host["/proc/cpuinfo"].replace("flags", "cpu MHz : 2499.998\nflags")
    host |= pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 * GIB), mem_info_vram_vendor="x",
                pp_dpm_sclk="0: 500Mhz *\n1: 2371Mhz", hwmon__hwmon3__power1_cap="300000000")  # fmt: skip
    host |= pci("0000:04:00.0", "8086", "e20b", "xe", tile0__physical_vram_size_bytes=str(12 * GIB),
                tile0__gt0__freq0__cur_freq="1200", tile0__gt0__freq0__rp0_freq="2850")  # fmt: skip
    machine = look(host)
    ecc = msgspec.structs.replace(machine.gpus[0].compute, ecc=make_fact(True, "nvml"))
    gpus = [msgspec.structs.replace(machine.gpus[0], compute=ecc), *machine.gpus[1:]]
    machine = msgspec.structs.replace(machine, gpus=gpus)
    text = " ".join(draw(machine, monkeypatch, 100, format, ascii=True).split())
    for part in ("clock 2.50 GHz now, 1.40 GHz base, 4.80 GHz at most", "governor powersave", "NUMA node 0: CPUs 0-1, 8.0 GiB",
                 "clock 0.50 GHz now, 2.37 GHz at most, power limit 300 W, ECC on", "clock 1.20 GHz now, 2.85 GHz at most"):  # fmt: skip
        assert part in text


def test_many_nodes_are_cut_short(look, host, monkeypatch):
    for number in range(1, 20):
        host[f"/sys/devices/system/node/node{number}/cpulist"] = ""
    text = draw(look(host), monkeypatch, ascii=True)
    assert "NUMA ... 20 nodes in all" in text
    assert "node 8" not in text


def test_what_is_missing_stands_with_the_command_that_installs_it(laptop, monkeypatch):
    text = f"CuPy is not installed, so nothing can be measured through CUDA: {install_command('cuda13')}"
    machine = msgspec.structs.replace(
        laptop, live=True, warnings=[MachineWarning(code="RUNTIME_MISSING", text=text)],
        providers=[Provider(name="nvml", status="absent", hint=f"nvidia-ml-py is not installed: {install_command()}"),
                   Provider(name="wgpu", status="timeout", hint="no answer")],
    )  # fmt: skip
    for format in ("table", "plain", "markdown"):
        drawn = " ".join(draw(machine, monkeypatch, 100, format).replace("│", " ").split())
        assert "Missing" in drawn
        assert "CuPy is not installed" in drawn
        assert "nvml: nvidia-ml-py is not installed: " in drawn
        assert "install" in drawn.partition("CUDA:")[2]
        assert "no answer" not in drawn


@pytest.mark.parametrize("vendor", ["nvidia", "intel"])
def test_a_driver_is_missed_only_beside_its_gpu(laptop, monkeypatch, vendor):
    missing = Provider(
        name="nvml", status="absent", hint="the NVIDIA driver's library libnvidia-ml is not installed"
    )
    gpus = [*laptop.gpus[:2], msgspec.structs.replace(laptop.gpus[2], vendor=make_fact(vendor, "test"))]
    machine = msgspec.structs.replace(laptop, providers=[missing], gpus=gpus)
    assert ("libnvidia-ml" in draw(machine, monkeypatch, 100)) == (vendor == "nvidia")
