"""The results that this repository holds, measured on a real GPU, in every format that programs read."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import pandas as pd
import pytest

from gpubench import store
from gpubench.report import render
from gpubench.report.formats._events import EventLine
from gpubench.store.schemas import document_schema
from tests.consumers import go_text
from tests.consumers.test_published_schemas import BENCHER, GITHUB_ACTION

FOLDER = Path(__file__).parents[2] / "results"
FILES = sorted(FOLDER.glob("*/2026112*.json"))[:3]  # three sessions; all ops; a search


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def run(request):
    return store.load(request.param)


def test_there_are_some():
    assert len(FILES) == 3


def test_csv(run):
    table = pd.read_csv(io.StringIO(render([run], "csv")))
    timed = table.dropna(subset=["time_s"])
    assert len(table) == table["case_id"].nunique()
    assert (timed["lo_s"] <= timed["time_s"]).all()
    assert (timed["time_s"] <= timed["hi_s"]).all()
    assert table["n"].dtype == "int64"


def test_published_schemas(run):
    jsonschema.Draft7Validator(BENCHER).validate(json.loads(render([run], "bmf")))
    for name in ("gha-smaller", "gha-bigger"):
        jsonschema.Draft202012Validator(GITHUB_ACTION).validate(json.loads(render([run], name)))


def test_go(run):
    found = go_text.read(render([run], "go"))
    counted = [row for row in run.sessions if not row.superseded]
    assert {row.configuration["goarch"] for row in found} == {"amd64"}
    assert len(found) <= len(counted) * len(run.outcomes)
    assert all(value > 0 for row in found for value in row.values.values())


def test_events(run):
    validator = jsonschema.Draft202012Validator(document_schema("gpubench-events", EventLine))
    for line in render([run], "jsonl").splitlines():
        validator.validate(json.loads(line))
