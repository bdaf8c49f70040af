"""What people see: names, memory, drivers, what is usable and why not; in colour, in ASCII, in 60 columns."""

import io
import sys

import pytest
from msgspec.structs import replace

from gpubench import detect
from gpubench.base.installation import install_command
from gpubench.detect import picture
from gpubench.detect.facts import make_fact
from gpubench.detect.pci import name_of
from gpubench.result.machine import MachineWarning, Provider
from tests.detect.trees import CPU, GIB, HOST, NODE, big_little, caches, pci, under

VRAM = {"mem_info_vram_total": str(8 * GIB)}
NAVI = ("1002", "744c", "amdgpu")
LAPTOP = (HOST | pci("0000:00:02.0", "8086", "46a6", "i915") | pci("0000:04:00.0", "10de", "2684", "vfio-pci")
          | pci("0000:03:00.0", *NAVI, **VRAM, mem_info_vram_used=str(2 * GIB), max_link_speed="16.0 GT/s PCIe",
                max_link_width="16"))  # fmt: skip
EQUAL = HOST | pci("0000:09:00.0", "1002", "744c", "vfio-pci")
for number in range(8):
    own = f"0: {500 + number}Mhz *\n1: 2371Mhz"
    EQUAL |= pci(f"0000:{number:02x}:00.0", *NAVI, **VRAM, board_info="x", pp_dpm_sclk=own)
CLOCKS = (HOST | {"/proc/cpuinfo": HOST["/proc/cpuinfo"].replace("flags", "cpu MHz : 2499.998\nflags")}
    | under(f"{CPU}/cpufreq/policy0", {"related_cpus": "0 1", "cpuinfo_max_freq": 4800000, "base_frequency": 1400000, "scaling_governor": "powersave"})
    | pci("0000:03:00.0", *NAVI, **VRAM, pp_dpm_sclk="0: 500Mhz *\n1: 2371Mhz", hwmon__hwmon3__power1_cap="300000000")
    | pci("0000:04:00.0", "8086", "e20b", "xe", tile0__physical_vram_size_bytes=str(12 * GIB),
          tile0__gt0__freq0__cur_freq="1200", tile0__gt0__freq0__rp0_freq="2850"))  # fmt: skip
# Files of a machine, what stands in its picture, and what does not.
PICTURES = {
    "a laptop": (
        LAPTOP,
        ["Test CPU", "2 usable", "8.0 GiB, 6.0 GiB usable", "Navi 31", "25% used", "driver amdgpu", "PCIe 4 x16", "gpu on GPU 1",
         "✓ 8.0 GiB for one process", "✗ not usable: PASSED_THROUGH.", "✗ not chosen: INTEGRATED_UNMEASURED.",
         "not GPU 0: INTEGRATED_UNMEASURED", "not GPU 2: PASSED_THROUGH"], []),
    "equal GPUs are one section, and clocks that differ now set none apart": (
        EQUAL, ["GPU 0-7", "8 x AMD Navi 31", "8.0 GiB each", "\nGPU 8  ", "gpu on GPU 0-7", "clock 2.37 GHz at most"], []),
    "two equal GPUs have their own clocks": (
        HOST | pci("0000:03:00.0", *NAVI, **VRAM, pp_dpm_sclk="0: 500Mhz *\n1: 2371Mhz")
        | pci("0000:04:00.0", *NAVI, **VRAM, pp_dpm_sclk="0: 900Mhz *\n1: 2371Mhz"),
        ["clock 0.50 GHz now", "clock 0.90 GHz now"], ["2 x AMD"]),
    "caches": (
        HOST | caches((1, "Data", "48K", "0-1"), (1, "Instruction", "64K", "0-1"), (2, "Unified", "1M", "0-1"), (3, "Unified", "1536K", "0-1")),
        ["L1 48 KiB x1, L2 1 MiB x1, L3 1536 KiB x1"], []),
    "nothing is known": ({"/proc/nothing": ""}, ["GPU_UNKNOWN", "number of CPUs unknown"], []),
    "what is not known is not shown": (HOST, [], ["clock", "governor", "power limit", "ECC", "Missing"]),
    "a sleeping GPU": (HOST | pci("0000:03:00.0", "10de", "2684", "nvidia", power__runtime_status="suspended"), ["asleep (suspended)", "detect --wake"], []),
    "clocks, governor, nodes and power": (
        CLOCKS,
        ["clock 2.50 GHz now, 1.40 GHz base, 4.80 GHz at most", "governor powersave", "NUMA node 0: CPUs 0-1, 8.0 GiB",
         "clock 0.50 GHz now, 2.37 GHz at most, power limit 300 W, ECC on", "clock 1.20 GHz now, 2.85 GHz at most"], []),
    "kinds of cores": (HOST | big_little(["0xd05"] * 4 + ["0xd41"] * 2, "0-5"), ["kinds: 4 cores on CPUs 0-3; 2 cores on CPUs 4-5"], []),
    "many nodes": (HOST | {f"{NODE}/node{n}/cpulist": "" for n in range(1, 20)}, ["NUMA ... 20 nodes in all"], ["node 8"])}  # fmt: skip


@pytest.fixture
def draw(monkeypatch):
    def render(machine, format="table", columns=100, **options):
        monkeypatch.setenv("COLUMNS", str(columns))
        return detect.render(machine, format, **options)

    return render


@pytest.mark.parametrize("format", ["table", "plain"])
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(look, draw, monkeypatch, name, format):
    tree, present, absent = PICTURES[name]
    machine = look(tree)
    if "power" in name:  # no file tells of ECC
        first = replace(machine.gpus[0], compute=replace(machine.gpus[0].compute, ecc=make_fact(True, "nvml")))
        machine = replace(machine, gpus=[first, *machine.gpus[1:]])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    text = draw(machine, format)
    words = " ".join(text.split())
    assert [part for part in present if part not in words and part not in text] == []
    assert [part for part in absent if part in words] == []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert draw(machine, format).isascii(), "signs that a stream lacks are spelled"


@pytest.mark.parametrize(("columns", "ascii", "format"), [
    (40, True, "table"), (60, False, "plain"), (200, False, "table")])  # fmt: skip
def test_it_fits_and_says_the_same_in_any_width(look, draw, columns, ascii, format):
    laptop = look(LAPTOP)
    text = draw(laptop, format, columns, ascii=ascii)
    assert max(map(len, text.splitlines())) <= columns
    assert " ".join(text.split()).startswith("Recommended mode: gpu, compute on the GPU (GPU 1). At least")
    assert text.isascii() or not ascii
    assert not {"?", "\x1b"} & set(text)
    assert not [code for code in ("PASSED_THROUGH", "VRAM_GE_4GIB") if code not in "".join(text.split())]
    assert "\x1b[" in draw(laptop, format, columns, color=True) or format == "plain"
    marked = draw(laptop, "markdown", ascii=ascii)
    assert [f"{sign} 8.0 GiB for one" in marked for sign in "✓+"] == [not ascii, ascii]
    hostile = replace(laptop, cpu=replace(laptop.cpu, model=make_fact("a\x1b[31mb\n", "t")))
    assert "a?[31mb?" in draw(hostile, format, columns)


def test_the_advice_leads_in_every_mode_and_shells_get_variables(look, draw):
    laptop = look(LAPTOP)
    for mode, said in (("cpu", "on the CPU"), ("hybrid", "on CPU and GPU together (GPU 1)")):
        ids = [] if mode == "cpu" else laptop.recommendation.device_ids
        machine = replace(laptop, recommendation=replace(laptop.recommendation, mode=mode, device_ids=ids))
        first = draw(machine, "plain").splitlines()[0]
        assert first.startswith(f"Recommended mode: {mode}, compute {said}. At least 4 GiB")
        variables = picture.render(machine, "env").splitlines()
        assert f"GPUBENCH_MODE={mode}" in variables
        assert ("GPUBENCH_GPU_USABLE_BYTES=''" in variables) == (mode == "cpu"), "what is unknown is empty"


def test_a_machine_in_one_line(look):
    (navi, _), (chip, _) = name_of(None, 0x1002, 0x744C), name_of(None, 0x8086, 0x46A6)
    for tree, line in (
        ({"/proc/nothing": ""}, "unknown CPU, ? of ? CPUs, unknown RAM, GPUs unknown"), (HOST, "Test CPU, 2 of 2 CPUs, 8.0 GiB RAM, no GPU"),
        (HOST | pci("0000:03:00.0", *NAVI, **VRAM) | pci("0000:00:02.0", "8086", "46a6", "i915"),
         f"Test CPU, 2 of 2 CPUs, 8.0 GiB RAM, Intel {chip} (shares RAM, 6.0 GiB usable), AMD {navi} (8.0 GiB)")):  # fmt: skip
        assert detect.machine_line(look(tree)) == line


def test_every_fact_is_explained(look):
    for tree, reason in ((HOST, "reason NO_GPU: "), (LAPTOP, "reason VRAM_GE_4GIB pci:0000:03:00.0: At least")):
        lines = list(picture.explain_facts(look(tree)))
        assert next(line for line in lines if line.startswith("reason ")).startswith(reason)
    facts = [line for line in lines if not line.startswith("reason ")]
    assert all(" = " in line for line in facts)
    assert len(facts) > 100


def test_what_is_missing_stands_with_the_command_that_installs_it(look, draw):
    text = f"CuPy is not installed, so nothing can be measured through CUDA: {install_command('cuda13')}"
    missing = f"nvidia-ml-py is not installed: {install_command()}"
    machine = replace(look(LAPTOP), live=True, warnings=[MachineWarning(code="RUNTIME_MISSING", text=text)],
                      providers=[Provider(name="nvml", status="absent", error_code="ImportError", hint=missing),
                                 Provider(name="wgpu", status="timeout", hint="no answer")])  # fmt: skip
    drawn = " ".join(draw(machine, "markdown").split())
    for part in ("Missing", "CuPy is not installed", "nvml: nvidia-ml-py is not installed: "):
        assert part in drawn
    assert ("install" in drawn.partition("CUDA:")[2], "no answer" in drawn) == (True, False)
    hint = "the NVIDIA driver's library libnvidia-ml is not installed"
    for vendor in ("nvidia", "intel"):
        gpus = [*machine.gpus[:2], replace(machine.gpus[2], vendor=make_fact(vendor, "test"))]
        machine = replace(machine, providers=[Provider(name="nvml", status="absent", hint=hint)], gpus=gpus)
        assert ("libnvidia-ml" in draw(machine)) == (vendor == "nvidia"), "missed beside its GPU alone"
