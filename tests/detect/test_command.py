"""`gpubench detect` as users start it: exit codes, what people see, and what a live detection asks and waits for."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from gpubench import cli, detect
from gpubench.base import installation, processes
from gpubench.base.errors import UsageError
from gpubench.base.installation import install_command
from gpubench.detect import inspection, picture
from gpubench.detect.cpu import blas_warnings, doubtful_blas
from gpubench.detect.facts import Root, TouchedFiles, make_fact, missing, parse_record
from gpubench.detect.host import read_files
from gpubench.detect.inspection import LIMIT_VARIABLE, Gathered
from gpubench.detect.pci import name_of
from gpubench.measure import targets
from gpubench.result import machine as documents
from gpubench.result.machine import NOT_PROBED, Cpu, CpuBlas, Machine, MachineWarning, Provider
from tests.detect.trees import CPU, GIB, HOST, NODE, big_little, caches, check, pci, under
from tests.held import hold


@pytest.fixture
def root(plant):
    return plant(HOST | pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 << 30)))


@pytest.mark.check
def test_json_is_one_document_and_nothing_else_whatever_the_environment_says(in_process, root):
    hide = {"PATH": "", "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    done = in_process("detect", "--sysroot", str(root), "--json", env=hide)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["name"], document["live"]) == ("gpubench-detect", False)
    assert (document["gpus"][0]["usable"]["value"], document["recommendation"]["mode"]) == (None, "gpu")
    assert str(root) not in json.dumps({**document, "sysroot": None})


@pytest.mark.parametrize(("arguments", "code", "said"), [
    ("--sysroot nowhere", 4, ""), ("--records nowhere.json", 4, ""), ("--sysroot . --records x", 2, ""), ("--mode turbo", 2, ""),
    ("--format xml", 2, ""), ("--sysroot . --require gpu", 5, ""), ("--sysroot . --require GPU-unknown", 5, ""),
    ("--sysroot . --require 0000:01:00.0", 5, ""), ("--sysroot . --require cpu", 0, ""), ("--sysroot . --record .", 4, ""),
    *((f"--records {n}.json", 4, "another form") for n in range(1, 5)), ("--records 0.json", 4, "why: Input data was truncated"),
    # A requirement that cannot be meant is answered with what can.
    *((f"--sysroot . --require {typed}", 2, f"did you mean {meant!r}?")
      for typed, meant in (("gppu", "gpu"), ("CPU", "cpu"), ("cuppy", "cupy"), ("wpgu:1", "wgpu"))),
    ("--sysroot . --require bogus", 2, "possible: cpu, gpu, numpy, cupy, wgpu"),
    *((f"--sysroot root --require cupy:{typed}", 5, "no device has this id") for typed in ("²", "x", "")),
    ("--sysroot root --require wgpu:9", 5, "no GPU here has this number"),
    ("--sysroot root --require pci:0000:30:00.0", 5, "did you mean 'pci:0000:03:00.0'?")])  # fmt: skip
@pytest.mark.check
def test_exit_codes(in_process, root, tmp_path, arguments, code, said):
    texts = ("[{", "[]", '{"records": 1}', '{"records": [{}]}', '{"records": [{"source": 1}]}')
    for n, text in enumerate(texts):
        (tmp_path / f"{n}.json").write_text(text)
    done = in_process("detect", *arguments.split())
    assert (done.returncode, done.stdout == "") == (code, code in (2, 4)), done.stderr
    assert "Traceback" not in done.stderr
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(("reason", "asked", "why"), [
    (None, "torch", None), (None, "torch:0", None), (None, "torch:1", "torch has no such device; there are: torch:0"), ("absent", "torch", "PyTorch is not installed")])  # fmt: skip
def test_a_backend_that_no_probe_knows_is_asked_itself(in_process, monkeypatch, reason, asked, why):
    listing = Mock(
        reason=reason, detail="PyTorch is not installed", hint="install it", devices=[Mock(id="torch:0")]
    )
    monkeypatch.setattr(targets, "list_devices", lambda names: [listing])
    done = in_process("detect", "--json", "--require", asked)
    assert (done.returncode, why is None or why in done.stderr) == (5 if why else 0, True)


@pytest.mark.parametrize("options", [[], ["-q"], ["--debug", "-q"]])
def test_what_detection_cannot_tell_is_noted_beside_the_text(in_process, monkeypatch, options):
    providers = [Provider(name="nvml", status="timeout", hint="wait"), Provider(name="drm", status="ok", hint="node 1"), Provider(name="blas", status="ok"),
                 Provider(name="cuda", status="absent", hint="no CuPy")]  # fmt: skip
    machine = Machine(warnings=[MachineWarning(code="NUMA_OVERLAP", text="nodes overlap")], providers=providers)
    monkeypatch.setattr(detect, "inspect", lambda **words: machine)
    monkeypatch.setattr(installation, "find_clash", lambda: ("one", "other"))
    done = in_process("detect", *options)
    notes = [
        "note: nodes overlap",
        "note: the probe nvml ended with timeout: wait",
        "note: the probe drm: node 1",
    ]
    clash = [f"note: {installation.CLASH.format('one other')}: {installation.repair_command('one')}"]
    assert done.stderr.splitlines() == (notes if not options else clash if "--debug" in options else [])


def test_the_results_are_those_of_the_file_or_the_folder_that_run_would_write(
    in_process, root, tmp_path, home, monkeypatch
):
    (tmp_path / "r.json").write_bytes(
        (Path(__file__).parents[1] / "unit" / "store" / "fixtures" / "version-4.json").read_bytes()
    )
    done = in_process("detect", "--sysroot", str(root), "--json", "--results", "r.json")
    codes = [reason["code"] for reason in json.loads(done.stdout)["recommendation"]["reasons"]]
    assert (done.returncode, "RESULT_OTHER_MACHINE" in codes) == (0, True)
    own = home / ".local" / "share" / "gpubench" / "results"
    own.mkdir(parents=True)
    places = []
    monkeypatch.setattr(detect, "inspect", lambda **words: places.append(words["results"]) or Machine())
    for writable in (True, False):
        monkeypatch.setattr(os, "access", lambda path, mode, writable=writable: writable)
        in_process("detect", "--json")
    assert places == [None, own]


def test_records_leave_the_machine_unprobed(in_process, tmp_path):
    records = [{"source": "nvml", "bdf": "junk", "memory_bytes": -1}]
    (tmp_path / "r.json").write_text(json.dumps({"records": records}))
    document = json.loads(in_process("detect", "--records", "r.json", "--json").stdout)
    assert document["cpu"]["logical"]["status"] == document["platform"]["os"]["status"] == "not_probed"
    assert document["gpu_count"]["value"] == 1


@pytest.mark.parametrize("options", [
    [], ["--ascii"], ["--explain"], ["--format", "markdown"], ["--format", "plain"], ["--color", "always"]])  # fmt: skip
def test_the_first_line_says_which_mode_and_why_and_a_pipe_gets_plain_text(in_process, root, options):
    text = in_process("detect", "--sysroot", str(root), *options).stdout
    advice = "Recommended mode: gpu, compute on the GPU. At least 4 GiB of usable GPU memory."
    assert advice in text.splitlines()[0]
    drawn = [c for c in text if "\N{BOX DRAWINGS LIGHT HORIZONTAL}" <= c <= "\N{RIGHT ONE EIGHTH BLOCK}"]
    assert not drawn
    assert "+--" not in text
    assert text.isascii() or "--ascii" not in options
    assert ("\x1b[" in text) is ("--color" in options)
    explained = "gpus[0].device_id = 744c  <- /sys/bus/pci/devices/0000:03:00.0/device"
    assert (explained in text.splitlines()) is ("--explain" in options)


def test_a_terminal_gets_the_drawing(root, monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    drawings = []
    for options in ([], ["--format", "table"], ["--format", "plain"]):
        assert cli.main(["detect", "--sysroot", str(root), *options]) == 0
        drawings.append(capsys.readouterr().out)
    assert drawings[0] == drawings[1] != drawings[2]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_default_detection_starts_no_program_and_opens_no_device(tmp_path):
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-e", "trace=execve,openat,open", "-o", str(trace)]
    command = [*strace, sys.executable, "-m", "gpubench", "detect", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    document, lines = json.loads(done.stdout), trace.read_text().splitlines()
    ran = [line for line in lines if "execve(" in line and "ENOENT" not in line]
    assert all(sys.executable in line or "python" in line for line in ran)
    if not document["gpus"]:  # ours, and the probe of a BLAS whose threads are in doubt
        assert len(ran) == len(document["providers"])
        assert not [line for line in lines for node in ("nvidia", "dri", "kfd") if f'"/dev/{node}' in line]


def test_a_sleeping_gpu_is_left_alone(plant):
    files = {"power__runtime_status": "suspended", "current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe",
             "mem_info_vram_total": "1", "mem_info_vram_used": "1", "config": "x", "gpu_busy_percent": "0"}  # fmt: skip
    trace = TouchedFiles({}, {}, {}, set())
    tree = plant(HOST | pci("0000:03:00.0", "1002", "744c", "amdgpu", **files))
    read_files(Root(str(tree), trace), NOT_PROBED)
    text = "\n".join(trace.files)
    assert "runtime_status" in text
    assert not [name for name in ("link_speed", "vram_used", "/config", "busy_percent") if name in text]


# ---------------------------------------------------------------- what people see
VRAM = {"mem_info_vram_total": str(8 * GIB)}
NAVI = ("1002", "744c", "amdgpu")
LAPTOP = (HOST | pci("0000:00:02.0", "8086", "46a6", "i915") | pci("0000:04:00.0", "10de", "2684", "vfio-pci")
          | pci("0000:03:00.0", *NAVI, **VRAM, mem_info_vram_used=str(2 * GIB), max_link_speed="16.0 GT/s PCIe",
                max_link_width="16")
          | {"/sys/bus/bus/pci/drivers/amdgpu/module/version": "6.8.5"})  # fmt: skip
EQUAL = HOST | pci("0000:0a:00.0", "1002", "744c", "vfio-pci")
for number in range(1, 9):
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
        ["Test CPU", "2 usable", "8.0 GiB, 6.0 GiB usable", "Navi 31", "25% used", "driver amdgpu 6.8.5, PCIe 4 x16", "gpu on GPU 1",
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
        ["L1 48 KiB x1, L2 1 MiB x1, L3 1.5 MiB x1"], []),
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
    hold(text)
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
    assert "a [31mb" in draw(hostile, format, columns)


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
    assert len(lines) > 100
    others = [documents.Alternative("b", "y"), documents.Alternative("c", "z")]
    model = documents.Fact("a", "conflict", "x", "why", others)
    told = [*picture.explain_facts(Machine(cpu=Cpu(model=model, cores=missing("invalid", "/proc"))))]
    assert "cpu.model = a (conflict)  <- x  [why]  (or b <- y)  (or c <- z)" in told
    assert "cpu.cores = invalid  <- /proc" in told


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


# ---------------------------------------------------------------- what a live detection asks, and how long it waits
@pytest.fixture
def plan(plant):
    def ask(tree, **options):
        files = read_files(Root(str(plant(tree))), NOT_PROBED)
        requests, skipped = inspection.plan(files, **({"deep": False, "wake": False} | options))
        return [request.name for request in requests], [provider.name for provider in skipped]

    return ask


def test_a_gpu_is_evidence_for_its_probes_and_a_sleeping_one_against_all_that_wake_it(plan, monkeypatch):
    monkeypatch.setattr(inspection.importlib.util, "find_spec", lambda name: name)  # as if CuPy were installed
    amd = HOST | pci("0000:01:00.0", "1002", "744c", "amdgpu")
    awake, asleep = (HOST | pci("0000:01:00.0", "10de", "2684", "nvidia", power__runtime_status=state)
                     for state in ("active", "suspended"))  # fmt: skip
    nvidia = ["nvml", "cuda", "wgpu"]
    for tree, options, asked, skipped in (
        ({"/proc/nothing": ""}, {}, ["nvml", "wgpu"], []), (HOST, {}, [], []), (HOST, {"deep": True}, ["wgpu"], []), (amd, {"deep": True}, ["cuda", "wgpu"], []), (awake, {}, ["nvml"], []),
        (awake, {"deep": True}, nvidia, []), (NOUVEAU, {"deep": True}, ["nvml", "wgpu"], []), (asleep, {}, [], ["nvml"]), (asleep, {"deep": True}, [], nvidia),
        (asleep, {"deep": True, "wake": True}, nvidia, [])):  # fmt: skip
        assert plan(tree, **options) == (asked, skipped)


def test_render_nodes_are_asked_only_for_what_no_file_told(plant):
    tree = HOST | pci("0000:03:00.0", "8086", "56a0", "i915") | pci("0000:00:02.0", "8086", "4680", "i915")
    tree |= pci("0000:04:00.0", "1002", "15bf", "amdgpu")
    tree |= pci("0000:05:00.0", "1002", "7fff", "amdgpu")
    tree |= pci("0000:06:00.0", "1002", "7fff", "amdgpu", power__runtime_status="suspended")
    for number, place in enumerate(("03:00", "00:02", "04:00", "05:00", "06:00"), 128):
        bdf = f"0000:{place}.0"
        tree[f"/sys/class/drm/renderD{number}/device"] = f"-> ../../../bus/pci/devices/{bdf}"
    records = read_files(Root(str(plant(tree))), NOT_PROBED).records
    for wake, numbers in ((False, (128, 131)), (True, (128, 131, 132))):
        (request,) = inspection.render_queries(records, wake=wake)
        assert [node["node"] for node in request.options["nodes"]] == [f"renderD{n}" for n in numbers]


VULKAN = {"source": "wgpu:vulkan", "vendor_id": "10de", "device_id": "2330"}
GUEST = HOST | {"/proc/version": "Linux version 6.6-microsoft-WSL2", "/sys/bus/vmbus/devices": None}
FIRST, SECOND = (pci(f"0000:0{n}:00.0", "10de", "2330", "nvidia") for n in (1, 2))
NOUVEAU = HOST | pci("0000:01:00.0", "10de", "2330", "nouveau")
LXC = {"/run/systemd/container": "lxc"}
WHY, WHYS, SOURCE = "gpus.0.why_not", "gpus.*.why_not", "gpus.0.usable.source"
REASON, MASK, NODE = "recommendation.reasons.0.code", "CUDA_VISIBLE_DEVICES", "gpus.0.access.device_node"
LISTED = {"source": "nvml", "bdf": "0000:02:00.0", "vendor_id": "10de"}


def shown(*minors):
    return HOST | FIRST | SECOND | {
        f"/proc/driver/nvidia/gpus/0000:0{n + 1}:00.0/information": f"Device Minor: {n}" for n in minors}  # fmt: skip


# Files, device nodes that are not present and variables, how probes ended, what they list; the document, and what CuPy lacks.
LIVE = {
    **{f"{name} that ended with {status}": (HOST | FIRST, {}, {name: status}, [], {WHY: codes, "gpus.0.usable": not codes}, lack)
       for name, status, codes, lack in (
           ("nvml", "mismatch", ["DRIVER_MISMATCH"], "DRIVER_MISMATCH"), ("nvml", "permission", ["NO_PERMISSION"], "NO_PERMISSION"),
           ("nvml", "timeout", [], None), ("nvml", "ok", ["GPU_LOST"], "GPU_LOST"), ("cuda", "timeout", [], None),
           ("cuda", "absent", ["RUNTIME_MISSING"], "RUNTIME_MISSING"), ("cuda", "invalid", ["UNUSABLE"], "UNUSABLE"))},
    # WebGPU needs no CuPy, and reaches what NVML does not list; what it lists alone is no device of CuPy.
    **{f"WebGPU beside {name} that ended with {status}": (HOST | FIRST, {}, {name: status}, [VULKAN], {WHY: codes}, lack)
       for name, status, codes, lack in (
           ("nvml", "mismatch", ["DRIVER_MISMATCH"], "DRIVER_MISMATCH"), ("nvml", "permission", [], None), ("nvml", "ok", [], None),
           ("cuda", "absent", [], "RUNTIME_MISSING"), ("cuda", "ok", [], "UNUSABLE"), ("cuda", "timeout", [], None))},
    **{f"{name}, which no variable of CUDA's hides": (
        HOST | pci("0000:01:00.0", "10de", "2684", name), {MASK: ""}, {}, [], {WHY: []}, "NO_DRIVER") for name in ("nouveau", "NovaCore")},
    "a chip's GPU in a container without its node": (
        HOST | {"/sys/class/drm/renderD128/device/uevent": "DRIVER=v3d"}, {"/dev/dri/renderD128": "absent"}, {}, [], {WHY: ["NOT_EXPOSED"]}, "number or vendor"),
    **{f"a Jetson whose nodes are {state}": (
        HOST | {"/sys/bus/platform/devices/17000000.gpu/uevent": "DRIVER=gk20a"}, {"/dev/nvmap": state}, {}, [], {WHY: codes, SOURCE: "/dev/nvmap"}, lack)
       for state, codes, lack in (("present", [], None), ("absent", ["NOT_EXPOSED"], "--runtime nvidia"), ("no_permission", ["NO_PERMISSION"], "--group-add"))},
    "CuPy of ROCm": (HOST | pci("0000:01:00.0", "1002", "744c", "amdgpu"), {}, {}, [
        {"source": "hip", "bdf": "0000:01:00.0", "vendor_id": "1002"}], {WHY: []}, None),
    "every door is open": (HOST | FIRST, {}, {}, [], {WHY: [], "gpus.0.usable": True, SOURCE: "/dev/nvidiactl"}, None),
    "every door is closed": (
        HOST | SECOND, {"/dev/nvidiactl": "absent", MASK: ""}, {"nvml": "mismatch"}, [LISTED],
        {WHY: ["NOT_EXPOSED", "DRIVER_MISMATCH"], SOURCE: "/dev/nvidiactl"}, "/dev/nvidiactl is not here"),
    # A variable hides a GPU from CUDA, not from WebGPU.
    "a variable": (HOST | SECOND, {MASK: ""}, {"nvml": "ok"}, [LISTED], {WHY: ["HIDDEN_BY_ENV"], SOURCE: MASK}, f"{MASK} hides it"),
    "a variable beside WebGPU": (HOST | FIRST, {MASK: ""}, {}, [VULKAN], {WHY: []}, f"{MASK} hides it"),
    # A process has numbers for those of its GPUs alone: 0 is the first of those that it was given.
    "a container with one of two": (shown(1), {MASK: "0"}, {"nvml": "ok"}, [LISTED], {WHYS: [["NOT_EXPOSED"], []]}, None),
    "a job of Slurm with one of two": (
        shown(0, 1), {"/dev/nvidia0": "no_permission", MASK: "0"}, {"nvml": "ok"}, [LISTED], {WHYS: [["NO_PERMISSION"], []]}, None),
    "one that the driver leaves out": (
        shown(1) | {"/proc/driver/nvidia/gpus/0000:01:00.0/information": "GPU Excluded: Yes"}, {MASK: "0"}, {"nvml": "ok"}, [LISTED], {WHYS: [["EXCLUDED"], []]}, None),
    # CUDA makes this node itself, but not in a container.
    **{f"no node of CUDA's memory, {where}": (
        HOST | FIRST | tree, {"/dev/nvidia-uvm": "absent"}, {}, listed, {WHY: codes}, "/dev/nvidia-uvm is not here" if codes else None)
       for where, tree, listed, codes in (
           ("in a container", LXC, [], ["NOT_EXPOSED"]), ("which Vulkan does not need", LXC, [VULKAN], []), ("on a host", {}, [], []))},
    # Windows' own GPUs are behind one node, which tells nothing of them.
    **{f"a guest of Windows {how}": (GUEST | tree, {}, {"nvml": "absent"}, [], {"gpu_count": "absent", REASON: "GPU_UNKNOWN"}, "In WSL, update")
       for how, tree in (("alone", {}), ("with its adapter", pci("5582:00:00.0", "1414", "008e", "dxgkrnl", pci_class="0302")))},
    "a GPU that a guest of Windows lists": (GUEST, {}, {}, [VULKAN], {"gpu_count": 1, "warnings": [], NODE: "present"}, None),
    "a GPU that Vulkan alone lists": (HOST, {"/dev/none": "absent"}, {}, [VULKAN], {NODE: "not_probed", WHY: []}, None),
    "Windows with a software adapter": (
        {"/proc/nothing": ""}, {}, {"wgpu": "ok"}, [VULKAN | {"adapter_type": "cpu"}], {"gpu_count": "absent", REASON: "SOFTWARE_ONLY"}, "without its driver")}  # fmt: skip


@pytest.mark.parametrize("name", LIVE)
def test_what_a_process_can_use(plant, host, monkeypatch, name):
    tree, nodes, ended, listed, expected, lack = LIVE[name]
    monkeypatch.setattr(inspection, "node_status", lambda path: nodes.get(path, "present"))
    monkeypatch.setattr(inspection, "WSL_NODE", "/" if tree.keys() >= GUEST.keys() else "/dev/none")
    monkeypatch.setattr(inspection.os, "environ", {MASK: nodes[MASK]} if MASK in nodes else {})
    root = Root(str(plant(tree)))
    providers = [Provider(name=name, status=status) for name, status in ended.items()]
    records = [parse_record(record) for record in listed]
    machine = detect.inspect(gathered=Gathered(read_files(root, NOT_PROBED), root, providers, records))
    check(machine, expected)
    lacking = detect.lacks(machine, "cupy")
    assert (lacking is None) if lack is None else (lack in f"{lacking.reason} {lacking.hint}")
    monkeypatch.undo()
    hold(machine, host)


def test_this_machine_is_described_whatever_it_is():
    software = {"source": "wgpu:vulkan", "name": "llvmpipe", "vendor_id": "10005", "adapter_type": "cpu"}
    machine = detect.inspect(extra_records=[software])
    assert machine.live is True
    assert machine.cpu.available.value >= 1
    assert machine.memory.usable_bytes.value <= machine.memory.os_total_bytes.value
    assert machine.providers[0].name == "files"
    assert "llvmpipe" in [renderer.name for renderer in machine.software_renderers]
    assert detect.machine_line(machine)
    assert detect().machine.cpu.logical == machine.cpu.logical


def test_a_node_is_present_if_this_process_may_open_it(tmp_path, monkeypatch):
    file = tmp_path / "node"
    file.touch()
    states = [inspection.node_status(str(path)) for path in (file, tmp_path / "none", file / "below")]
    monkeypatch.setattr(inspection.os, "access", lambda path, mode: mode != os.R_OK | os.W_OK)
    assert [*states, inspection.node_status(str(file))] == [
        "present",
        "absent",
        "no_permission",
        "no_permission",
    ]


# ---------------------------------------------------------------- sources that are late
CARDS = ("01", "41")
RECORDS = [{"source": "nvml", "ordinal": n, "bdf": f"0000:{bus}:00.0", "vendor_id": "10de", "device_id": "20b0", "checked": True,
            "uuid": f"GPU-00000000-0000-0000-0000-0000000000{bus}", "memory_bytes": 40 << 30} for n, bus in enumerate(CARDS)]  # fmt: skip
SLOW = ("import json, sys, time; time.sleep(float(sys.argv[1])); "
        f"records = [record | {{'compute.arch': sys.argv[3]}} for record in {RECORDS}]; "
        "print(json.dumps({'records': records, 'cuda_driver': json.loads(sys.argv[2])}))")  # fmt: skip


@pytest.fixture
def machine(plant, monkeypatch):
    """The document of two NVIDIA GPUs whose NVML answers after so many seconds, and what is told."""

    def inspect(after_s, driver="nvidia", cuda=None, arch="sm_80", **options):
        tree = dict(HOST)
        for bus in CARDS:
            tree |= pci(f"0000:{bus}:00.0", "10de", "20b0", driver)
        plan = inspection.plan

        def slow(files, **words):
            requests, skipped = plan(files, **words)
            waits = [str(after_s if request.name == "nvml" else 0) for request in requests]
            probes = [(sys.executable, "-c", SLOW, wait, json.dumps(cuda), arch) for wait in waits]
            return [r._replace(command=probe) for r, probe in zip(requests, probes, strict=True)], skipped

        monkeypatch.setattr(inspection, "plan", slow)
        monkeypatch.setattr(inspection, "node_status", lambda path: "present")
        monkeypatch.setattr(processes, "SILENT_S", 0.2)
        told: list[str] = []
        gathered = inspection.gather(root=Root(str(plant(tree))), tell=told.append, **options)
        return detect.inspect(gathered=gathered), told

    return inspect


def test_a_driver_that_loads_slowly_is_waited_for_and_named(machine):
    document, told = machine(1)
    advice = document.recommendation
    assert (advice.mode, advice.confidence, advice.reasons[0].code) == ("gpu", "verified", "VRAM_GE_4GIB")
    assert told == ["waiting for NVIDIA's driver (NVML), up to 30 s"]


@pytest.mark.parametrize(("driver", "cuda", "arch", "words"), [
    ("nvidia", None, "sm_80", ["cuda13", "cuda12"]), (None, 12090, "sm_120", ["cuda12"]), (None, 13000, "sm_75", ["cuda13"]), (None, None, "", []),
    (None, 13000, "sm_61", ["cuda12"]), (None, 13000, "sm_72", ["cuda12"]),  # the last driver of Pascal and Volta, which CUDA 13 does not serve
    (None, 11040, "sm_52", ["cuda12", "update NVIDIA's driver"]), (None, 11040, "sm_35", [])])  # which no newer driver serves  # fmt: skip
def test_cupy_is_missed_where_a_driver_answers_or_is_bound(machine, monkeypatch, driver, cuda, arch, words):
    monkeypatch.setattr(
        inspection.importlib.util, "find_spec", lambda name: name not in ("cupy", "numba") or None
    )
    document, _ = machine(0, driver=driver, cuda=cuda, arch=arch)
    texts = [warning.text for warning in document.warnings if warning.refs == ["cupy"]]
    assert ["numba"] in [warning.refs for warning in document.warnings]
    assert [word for word in ("cuda13", "cuda12", "update NVIDIA's driver") if word in "".join(texts)] == words


def test_a_driver_that_is_too_late_costs_the_memory_alone(machine, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "500ms")
    document, _ = machine(60)
    (nvml,) = [provider for provider in document.providers if provider.name == "nvml"]
    assert (nvml.status, nvml.error_code) == ("timeout", "no answer in 0.5 s")
    assert "nvidia-smi -pm 1" in (nvml.hint or "")
    assert LIMIT_VARIABLE in (nvml.hint or "")
    advice = document.recommendation
    assert (advice.mode, [reason.code for reason in advice.reasons]) == ("gpu", ["SOURCE_LATE"] * 2)
    assert advice.device_ids == [gpu.id for gpu in document.gpus]


def test_all_probes_end_within_the_total_and_the_users_limit_holds_for_each(machine, monkeypatch):
    limits = {}

    def note(requests, tell):
        limits.update({request.name: request.limit_s for request in requests})
        return []

    monkeypatch.setattr(inspection, "run_probes", note)
    machine(0, deep=True, blas=True, wake=True)
    assert limits.keys() >= {"nvml", "cuda", "wgpu", "blas"}
    assert min(limits["nvml"], limits["cuda"], limits["wgpu"]) >= 30
    assert max(limits.values()) + inspection.END_S + 2 * processes.LET_GO_S <= inspection.TOTAL_S
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(inspection.time, "perf_counter", lambda: next(ticks))
    machine(0)
    assert 0 < limits["nvml"] < 30, "files that take long leave the probes less"
    monkeypatch.setenv(LIMIT_VARIABLE, "5m")
    machine(0, deep=True)
    assert (limits["nvml"], limits["wgpu"]) == (300.0, 300.0)
    monkeypatch.setenv(LIMIT_VARIABLE, "soon")
    with pytest.raises(UsageError, match=LIMIT_VARIABLE):
        machine(0)


def test_the_screen_says_what_detect_waits_for_and_quiet_does_not(tmp_path, monkeypatch, capsys):
    (tmp_path / "wgpu.py").write_text("import time; time.sleep(1); raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processes, "SILENT_S", 0.3)
    for quiet in ([], ["-q"]):
        assert cli.main(["detect", "--deep", "--json", *quiet]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["recommendation"]
        assert ("WebGPU (wgpu)" in err, err == "") == (not quiet, bool(quiet))


# ---------------------------------------------------------------- BLAS and its threads
def cpu(available=8, limited_by="online", threads=None):
    blas = NOT_PROBED
    if threads:
        blas = make_fact([CpuBlas(library="openblas", version="0.3", threads=threads)], "blas")
    return Cpu(available=make_fact(available, "t"), limited_by=make_fact(limited_by, "t"), blas=blas)


@pytest.mark.parametrize(("machine", "environ", "asked"), [
    (cpu(), {}, False), (cpu(limited_by="affinity"), {}, False), (cpu(limited_by="quota"), {}, True), (cpu(limited_by="cpuset"), {}, True),
    (cpu(available=96), {}, True), (cpu(), {"OMP_NUM_THREADS": "1"}, True), (cpu(), {"OMP_NUM_THREADS": ""}, False), (Cpu(), {}, False)])  # fmt: skip
def test_the_blas_is_asked_where_its_threads_may_not_fit(machine, environ, asked):
    assert doubtful_blas(machine, environ) is asked


def test_threads_that_do_not_fit_are_told_with_the_variable_that_helps():
    for threads, words in ((1, "1 thread,"), (64, "64 threads,")):
        (warning,) = blas_warnings(cpu(threads=threads))
        assert (warning.code, words in warning.text) == ("BLAS_THREADS", True)
        assert "OPENBLAS_NUM_THREADS=8" in warning.text
    assert blas_warnings(cpu(threads=8)) == []
    for machine, part in ((Machine(cpu=cpu()), "BLAS not asked: --deep shows it"),
                          (Machine(cpu=cpu(threads=64)),
                           "BLAS openblas 0.3 with 64 threads: 8 CPUs are usable!")):  # fmt: skip
        assert part in picture.render(machine, "markdown")
    assert "BLAS" not in picture.render(Machine(live=False, cpu=cpu()), "markdown")


def test_a_variable_brings_the_probe_and_the_warning_into_the_default_command(in_process):
    document = json.loads(in_process("detect", "--json", env={"OPENBLAS_NUM_THREADS": "1"}).stdout)
    (blas,) = (b for b in document["cpu"]["blas"]["value"] if b["library"] == "openblas")
    assert blas["threads"] == 1
    warned = any(w["code"] == "BLAS_THREADS" for w in document["warnings"])
    assert warned is (document["cpu"]["available"]["value"] != 1)
