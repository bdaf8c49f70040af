"""`gpubench detect` as users start it."""

import json
import os
import pty
import shutil
import subprocess
import sys

import pytest

from gpubench.detect import picture


@pytest.fixture
def root(plant, host, pci):
    return plant(host | pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 << 30)))


@pytest.mark.check
def test_json_is_one_document_and_nothing_else(in_process, root):
    done = in_process("detect", "--sysroot", str(root), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["name"], document["live"]) == ("gpubench-detect", False)
    assert document["recommendation"]["mode"] == "gpu"
    assert str(root) not in json.dumps({**document, "sysroot": None})


def test_the_result_does_not_depend_on_path_or_visibility_variables(in_process, root):
    hide = {"PATH": "", "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    texts = []
    for env in ({}, hide):
        document = json.loads(in_process("detect", "--sysroot", str(root), "--json", env=env).stdout)
        texts.append({**document, "took_s": 0, "providers": []})
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--sysroot nowhere", 4, ""), ("--records nowhere.json", 4, ""), ("--sysroot . --records x", 2, ""), ("--mode turbo", 2, ""),
        ("--format xml", 2, ""), ("--sysroot . --require gpu", 5, ""), ("--sysroot . --require GPU-unknown", 5, ""),
        ("--sysroot . --require 0000:01:00.0", 5, ""), ("--sysroot . --require cpu", 0, ""), ("--sysroot . --record .", 4, ""),
        *((f"--records {n}.json", 4, "") for n in range(5)),
        # A requirement that cannot be meant is answered with what can.
        *((f"--sysroot . --require {typed}", 2, f"did you mean {meant!r}?")
          for typed, meant in (("gppu", "gpu"), ("CPU", "cpu"), ("cuppy", "cupy"), ("wpgu:1", "wgpu"))),
        ("--sysroot . --require bogus", 2, "possible: cpu, gpu, numpy, cupy, wgpu"),
        ("--sysroot root --require pci:0000:30:00.0", 5, "did you mean 'pci:0000:03:00.0'?"),
    ],
)  # fmt: skip
@pytest.mark.check
def test_exit_codes(in_process, root, tmp_path, arguments, code, said):
    for n, text in enumerate(
        ("[{", "[]", '{"records": 1}', '{"records": [{}]}', '{"records": [{"source": 1}]}')
    ):
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


@pytest.mark.parametrize(
    "options",
    [[], ["--ascii"], ["--explain"], ["--format", "markdown"], ["--format", "plain"], ["--color", "always"]],
)
def test_the_first_line_says_which_mode_and_why_and_a_pipe_gets_plain_text(in_process, root, options):
    text = in_process("detect", "--sysroot", str(root), *options).stdout
    advice = "Recommended mode: gpu, compute on the GPU. At least 4 GiB of usable GPU memory."
    assert advice in text.splitlines()[0]
    drawn = [c for c in text if "\N{BOX DRAWINGS LIGHT HORIZONTAL}" <= c <= "\N{RIGHT ONE EIGHTH BLOCK}"]
    assert not drawn
    assert "+--" not in text
    assert text.isascii() or "--ascii" not in options
    assert ("\x1b[" in text) is ("--color" in options)


def test_a_terminal_gets_the_drawing(root, tmp_path):
    text = on_a_terminal(["detect", "--sysroot", str(root)], tmp_path)
    assert text.startswith("Recommended mode: gpu")
    assert "\nMode   gpu on GPU 0" in text.replace("\r", "")


def on_a_terminal(arguments, folder):
    """What the program writes to a terminal of 100 columns."""
    leader, follower = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUBENCH_")}
    env = {**kept, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen([sys.executable, "-m", "gpubench", *arguments], stdout=follower, stdin=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, cwd=folder, env=env):  # fmt: skip
        os.close(follower)
        parts = []
        try:
            while part := os.read(leader, 1 << 16):
                parts.append(part)
        except OSError:  # how the end of a terminal reads on Linux
            pass
        finally:
            os.close(leader)
    return b"".join(parts).decode()


def test_explain_gives_every_fact_its_source_and_control_characters_reach_no_terminal(in_process, root):
    lines = in_process("detect", "--sysroot", str(root), "--explain").stdout.splitlines()
    assert "gpus[0].device_id = 744c  <- /sys/bus/pci/devices/0000:03:00.0/device" in lines
    assert picture.clean("a\x1b[31mb\n") == "a?[31mb?"


def traced(trace, calls, *arguments):
    """What strace saw of `gpubench detect`, and what the program printed."""
    command = [
        "strace",
        "-f",
        "-e",
        f"trace={calls}",
        "-o",
        str(trace),
        sys.executable,
        "-m",
        "gpubench",
        "detect",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=trace.parent)
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    return trace.read_text().splitlines(), done.stdout


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_default_detection_starts_no_program_and_opens_no_device(tmp_path):
    lines, out = traced(tmp_path / "trace", "execve,openat,open", "--json")
    document = json.loads(out)
    ran = [line for line in lines if "execve(" in line and "ENOENT" not in line]
    assert all(sys.executable in line or "python" in line for line in ran)
    if not document["gpus"]:
        assert len(ran) == len(
            document["providers"]
        )  # ours, and the probe of a BLAS whose threads are in doubt
        assert not [line for line in lines for node in ("nvidia", "dri", "kfd") if f'"/dev/{node}' in line]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_sleeping_gpu_is_left_alone(plant, host, pci, tmp_path):
    files = {"power__runtime_status": "suspended", "current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe",
             "mem_info_vram_total": "1", "mem_info_vram_used": "1", "config": "x", "gpu_busy_percent": "0"}  # fmt: skip
    root = plant(host | pci("0000:03:00.0", "1002", "744c", "amdgpu", **files))
    lines, _ = traced(tmp_path / "trace", "openat,open", "--sysroot", str(root))
    # Of what was opened only the files of the machine count: gpubench has a module called config, too.
    text = "\n".join(line for line in lines if str(root) in line)
    assert "runtime_status" in text
    for name in ("link_speed", "vram_used", "/config", "busy_percent"):
        assert name not in text
