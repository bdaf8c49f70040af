"""Formats whose readers cannot be installed here, held against what they publish about their input."""

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
    "$schema": "http://json-schema.org/draft-07/schema", "type": "object",
    "patternProperties": {".+": {"type": "object", "patternProperties": {".+": {
        "type": "object", "required": ["value"],
        "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
    }}}},
    "propertyNames": {"minLength": 1, "maxLength": 1024},
}  # fmt: skip
# The interface BenchmarkResult of github-action-benchmark; its action fails on an empty array.
GITHUB_ACTION = {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "array", "minItems": 1,
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


@pytest.mark.parametrize("make", RUNS)
@pytest.mark.parametrize("name", ["gha-smaller", "gha-bigger"])
def test_github_action_benchmark(make, name):
    found = json.loads(render([make()], name))
    jsonschema.Draft202012Validator(GITHUB_ACTION).validate(found)
    names = [row["name"] for row in found]
    assert len(set(names)) == len(names)
    for row in found:
        assert float(RANGE.fullmatch(row["range"])[1]) >= 0
