"""The three headline commands as a user types them, on NumPy and a software adapter, in an empty folder."""

import json
import re

import pytest

pytestmark = pytest.mark.vulkan


def test_detect(gpubench):
    ended = gpubench("detect", status=0)
    assert "CPU" in ended.stdout
    assert "Traceback" not in ended.stderr
    document = json.loads(gpubench("detect", "--deep", "--json").stdout)
    assert document["name"] == "gpubench-detect"
    assert document["recommendation"]["mode"] in ("cpu", "gpu", "hybrid")
    assert any("llvmpipe" in str(renderer) for renderer in document["software_renderers"])


def test_run_measures_both_backends_and_ends_with_the_tables_that_report_shows(gpubench, tmp_path):
    short = "--quick --max-time 50ms --min-samples 5 --max-samples 10"
    ran = gpubench(*f"run --full --ops matmul --sizes 64,128 --backends numpy,wgpu {short}".split(), status=0)
    (path,) = tmp_path.glob("results/*/*.json")
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
    reported = gpubench("report", "--format", "csv", status=0).stdout.splitlines()
    assert len(reported) == 1 + 10
