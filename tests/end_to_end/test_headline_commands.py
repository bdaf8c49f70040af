"""The three headline commands as a user types them, on NumPy and a software adapter, in an empty folder."""

import itertools
import json
import re

import pytest

from tests.forking import environment

pytestmark = pytest.mark.vulkan

SHORT = "--quick --max-time 50ms --min-samples 5 --max-samples 10"
RUN = f"run --full --ops matmul --sizes 64,128 --backends numpy,wgpu {SHORT}".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def ran(folder, starter):
    return starter.run(*RUN, cwd=folder, env=environment(folder))


def test_detect(gpubench):
    ended = gpubench("detect", status=0)
    assert "CPU" in ended.stdout
    assert "Traceback" not in ended.stderr
    document = json.loads(gpubench("detect", "--deep", "--json").stdout)
    assert document["name"] == "gpubench-detect"
    assert document["recommendation"]["mode"] in ("cpu", "gpu", "hybrid")
    assert any("llvmpipe" in str(renderer) for renderer in document["software_renderers"])


def test_run_measures_both_backends_and_ends_with_the_tables(ran, folder):
    assert ran.returncode == 0, ran.stderr
    (path,) = folder.glob("results/*/*.json")
    result = json.loads(path.read_text())
    assert result["complete"]
    cases = ("resident-waited", "resident-queued", "transfer-once-10", "transfer-always")
    assert {o["id"] for o in result["outcomes"] if o["type"] == "measurement"} == {
        f"matmul/n={n}/float32/{case}"
        for n in (64, 128)
        for case in ("library/resident@numpy:0", *(f"tuned/{regime}@wgpu:0" for regime in cases))
    }
    for outcome in result["outcomes"]:
        if "resident-queued@wgpu" in outcome["id"]:
            assert outcome["blocks"][0]["device_hot_s"], "the adapter has a clock"
    for heading in ("CPU: library", "Where the time goes", "Warnings", "Environment"):
        assert re.search(rf"^{heading}", ran.stdout, re.MULTILINE), heading
    assert re.search(r"^vs numpy library, \w+", ran.stdout, re.MULTILINE), "the baseline is named"
    own_table = r"^matmul +float32 +numpy:0 +64 +[\d.]+ [mun]?s"
    assert re.search(own_table, ran.stdout, re.MULTILINE), "the CPU's own table"
    reported = re.findall(r"^\[ *\d+/\d+\] (\S+)", ran.stderr, re.MULTILINE)
    assert len(set(reported)) == 10  # a busy machine tells them again: its session is repeated
    assert re.search(r"^saved results/", ran.stderr, re.MULTILINE)


def test_report_says_the_same_in_each_format(ran, folder, in_process):
    ended = in_process("report", "--format", "markdown", "--full", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    tables = [line for line in ended.stdout.splitlines() if "|" in line]
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in tables]
    for n, data in itertools.product(("64", "128"), ("waited", "10 calls", "copied")):
        (row,) = [cells for cells in lines if data in cells and n in cells]
        assert "wgpu:0" in row
        ratio = r"(CPU|adapter|equal) ?[\d.]*x? \[[\d.]+, [\d.]+\]"
        assert any(re.match(ratio, cell) for cell in row), row
    document = json.loads(in_process("report", "--format", "json", cwd=folder).stdout)
    assert (document["name"], len(document["cases"])) == ("gpubench-report", 10)
    assert document["break_even"] == [], "an adapter without a GPU breaks even nowhere"
    lines = in_process("report", "--format", "csv", cwd=folder).stdout.splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("run_id,case_id,op,n,")
