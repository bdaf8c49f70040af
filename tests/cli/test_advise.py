"""`gpubench advise` as a user runs it: where it looks, what it refuses, and the example of docs/advice.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench.detect import inspect
from gpubench.result.store import save
from tests.unit.report.builders import case, curve, measured, run_of

ROOT = Path(__file__).parents[2]
QUEUED = [measured(case(n=n, device="cupy:0"), 5e-5) for n in (256, 1024, 4096)]
RUN = run_of([*curve({256: 0.5, 1024: 2.0, 4096: 8.0}, regime="transfer-always"), *QUEUED])


@pytest.fixture
def file(tmp_path):
    save(RUN, tmp_path / "run.json")
    return "run.json"


def test_the_answer_comes_first(in_process, file, tmp_path):
    done = in_process("advise", "matmul", "--size", "1k", "--from", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("matmul float32, n = 1024, copied at every call: cupy:0 (library)\n")
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert in_process("advise", "matmul", "--size", "1024", "--from", "-", input=text).stdout == done.stdout


@pytest.mark.parametrize(("words", "line"), [
    ("", "DEVICE=numpy:0"), ("--data device --queued", "DEVICE=cupy:0"), ("--calls 1000", "DEVICE=cupy:0"),
    ("--calls 1000", "BASIS=interpolated"), ("--data device", "BASIS=unknown"),  # no waited call was measured
])  # fmt: skip
def test_where_the_data_is_decides(in_process, file, words, line):
    done = in_process("advise", "matmul", "--size", "256", *words.split(), "--from", file, "--format", "env")
    assert f"GPUBENCH_ADVICE_{line}\n" in done.stdout


def test_only_results_of_this_machine_answer(in_process, tmp_path):
    foreign, own = tmp_path / "results" / "other", tmp_path / "results" / "own"
    foreign.mkdir(parents=True)
    own.mkdir()
    save(RUN, foreign / "20270101T000000Z-00000002.json")
    done = in_process("advise", "matmul", "--size", "1024")
    assert done.returncode == 4
    assert "no result of this machine" in done.stderr
    assert len(done.stderr.splitlines()) == 3
    here = replace(RUN, machine=inspect(), label="mine")
    save(here, own / "20260101T000000Z-00000001.json")
    done = in_process("advise", "matmul", "--size", "1024")
    assert done.returncode == 0, done.stderr
    assert ", mine;" in done.stdout


def test_what_run_has_just_saved_answers(gpubench):
    run = "run --ops relu --backends numpy --sizes 1k,4k,16k --quick --max-time 50ms -q".split()
    assert gpubench(*run, "--threads", "1").returncode == 0
    assert gpubench(*run).returncode == 0
    measured, between = (gpubench("advise", "relu", "--size", size, "--json") for size in ("1k", "2k"))
    assert json.loads(measured.stdout)["basis"] == "measured"
    found = json.loads(between.stdout)
    assert (found["device_id"], found["basis"], found["confidence"]) == ("numpy:0", "interpolated", "alone")
    assert found["time"]["lo_s"] <= found["time"]["estimate_s"] <= found["time"]["hi_s"]


def test_the_examples_of_the_page_work(gpubench, tmp_path):
    """docs/advice.md: its commands and its program, on the results that a user would have."""
    page = (ROOT / "docs" / "advice.md").read_text(encoding="utf-8")
    here = replace(RUN, machine=inspect())
    (tmp_path / "results").mkdir()
    save(here, tmp_path / "results" / "20260101T000000Z-00000001.json")
    commands = re.findall(r"^gpubench (advise .*?)(?: +#.*)?$", page, re.M)
    assert len(commands) >= 3
    for command in commands:
        done = gpubench(*command.split())
        assert done.returncode == 0, done.stderr
    program = "".join(re.findall(r"```python\n(.*?)```", page, re.S))
    assert "hybrid=True" in program
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["cupy", "numpy"]
