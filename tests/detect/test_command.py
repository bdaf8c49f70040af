"""`gpubench detect` as users start it."""

import json
import shutil
import subprocess
import sys

import pytest

from gpubench import cli
from gpubench.detect.facts import Root, TouchedFiles
from gpubench.detect.host import read_files
from gpubench.result.machine import NOT_PROBED
from tests.detect.trees import HOST, pci


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
    *((f"--records {n}.json", 4, "") for n in range(5)),
    # A requirement that cannot be meant is answered with what can.
    *((f"--sysroot . --require {typed}", 2, f"did you mean {meant!r}?")
      for typed, meant in (("gppu", "gpu"), ("CPU", "cpu"), ("cuppy", "cupy"), ("wpgu:1", "wgpu"))),
    ("--sysroot . --require bogus", 2, "possible: cpu, gpu, numpy, cupy, wgpu"),
    *((f"--sysroot root --require cupy:{typed}", 5, "no device has this id") for typed in ("²", "x", "")),
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
