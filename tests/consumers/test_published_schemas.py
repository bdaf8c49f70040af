"""Formats whose readers cannot be installed here, held against what they publish about their input."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from gpubench.report import render
from tests.consumers.conftest import small_run
from tests.unit.report.samples import cpu_run, full_run, interrupted_run, software_run

RUNS = [full_run, cpu_run, software_run, interrupted_run, small_run]
# Bencher publishes this at bencher.dev/bmf.json; a benchmark's name has at most 1024 characters.
BENCHER = {
    "$schema": "http://json-schema.org/draft-07/schema",
    "type": "object",
    "patternProperties": {".+": {"type": "object", "patternProperties": {".+": {
        "type": "object", "required": ["value"],
        "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
    }}}},
    "propertyNames": {"minLength": 1, "maxLength": 1024},
}  # fmt: skip
# The interface BenchmarkResult of github-action-benchmark; its action fails on an empty array.
GITHUB_ACTION = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object", "required": ["name", "value", "unit"], "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "value": {"type": "number"}, "unit": {"type": "string"},
                       "range": {"type": "string"}, "extra": {"type": "string"}},
    },
}  # fmt: skip
# What it takes a range for: a sign, and then nothing but a number.
RANGE = re.compile(r"(?:\+-|±)\s*(\d.*)")


@pytest.mark.parametrize("make", RUNS)
def test_bencher(make):
    found = json.loads(render([make()], "bmf"))
    jsonschema.Draft7Validator(BENCHER).validate(found)
    assert found
    for measures in found.values():
        assert {"latency", "throughput"} <= measures.keys() <= {"latency", "throughput", "speedup"}
        for metric in measures.values():
            assert metric["lower_value"] <= metric["value"] <= metric["upper_value"]
        assert measures["throughput"]["value"] == pytest.approx(1e9 / measures["latency"]["value"], rel=1e-5)


def test_bencher_gets_nanoseconds():
    found = json.loads(render([small_run(1e-3)], "bmf"))
    row = found["matmul/n=1024/float32/library/resident-queued@cupy:0"]
    assert row["latency"]["value"] == 1e6
    assert row["throughput"]["value"] == 1000
    assert row["speedup"]["value"] == pytest.approx(4)
    assert "speedup" not in found["matmul/n=1024/float32/library/resident@numpy:0"]


@pytest.mark.parametrize("make", RUNS)
@pytest.mark.parametrize("name", ["gha-smaller", "gha-bigger"])
def test_github_action_benchmark(make, name):
    found = json.loads(render([make()], name))
    jsonschema.Draft202012Validator(GITHUB_ACTION).validate(found)
    names = [row["name"] for row in found]
    assert len(set(names)) == len(names)
    for row in found:
        assert float(RANGE.fullmatch(row["range"])[1]) >= 0


def test_times_are_always_milliseconds():
    rows = json.loads(render([full_run()], "gha-smaller"))
    assert {row["unit"] for row in rows} == {"ms"}
    times = {row["name"]: row["value"] for row in rows}
    assert times["open/n=1/float32/library/resident@cupy:0"] == 400
    assert times["allocate/n=4194304/float32/tuned/resident@cupy:0"] == 0.0006


def test_what_should_grow_is_a_speedup_or_a_rate():
    rows = {row["name"]: row for row in json.loads(render([full_run()], "gha-bigger"))}
    assert {(name.rpartition(" ")[2], row["unit"]) for name, row in rows.items()} == {
        ("speedup", "x"), ("rate", "GFLOP/s"), ("rate", "GB/s"),
    }  # fmt: skip
    case = "matmul/n=4096/float32/library/resident-queued@cupy:0"
    assert rows[f"{case} speedup"]["value"] == pytest.approx(54.35, rel=1e-3)
    assert rows[f"{case} rate"]["unit"] == "GFLOP/s"
    assert "by the device clock" in rows[f"{case} rate"]["extra"]
    assert "open/n=1/float32/library/resident@cupy:0 rate" not in rows
