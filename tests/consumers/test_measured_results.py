"""The results that this repository holds, measured on a real GPU, in every format that programs read."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import pandas as pd
import pytest

from gpubench import store
from gpubench.analysis.estimate import case_results
from gpubench.analysis.labels import link_ceiling
from gpubench.report import render
from gpubench.report.events import EventLine
from gpubench.store.document import document_schema
from tests.consumers import go_text
from tests.consumers.test_published_schemas import BENCHER, GITHUB_ACTION

FOLDER = Path(__file__).parents[2] / "results"
FILES = [next(FOLDER.glob(f"*/*-{name}.json")) for name in ("0fdc27ac", "4f6e82eb", "2e9bf34d")]
# Three sessions; a default run with its searches; all ops.


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


# Measured before gpubench measured ceilings, or with cases too small for one: no kernel of theirs met one. A new
# measurement of docs/performance.md, docs/advice.md or docs/breakeven.md takes its file out of this list.
KERNELS_WITHOUT = {
    "0fdc27ac", "2e9bf34d", "1a0282f3", "6a00c47e", "0ca11bec", "f40d8b2f", "c14de8f9", "5a98deb3", "0a2db48a",
    "5a4c7a10", "3ccf61e5", "bfc63284", "021b6287", "2eed26f3", "f3ed3761", "36fd9944", "37e322e9", "93cc7702",
}  # fmt: skip
CPU_ALONE = {"2eed26f3"}  # it has no link, either


def test_every_result_carries_ceilings_but_for_the_old_ones_by_name():
    kernels, transfers = set(), set()
    for path in sorted(FOLDER.glob("*/*.json")):
        run, name = store.load(path), path.stem[-8:]
        measured = [c for session in run.sessions for c in session.ceilings if c.bytes_per_s or c.flops_per_s]
        told = [d for d in run.devices if d.theoretical.bytes_per_s or d.theoretical.flops_per_s]
        kernels |= {name} if measured or told else set()
        gpus = [device for device in run.devices if device.kind == "gpu"]
        transfers |= {name} if gpus and all(any(link_ceiling(run, d.id)) for d in gpus) else set()
    names = {path.stem[-8:] for path in FOLDER.glob("*/*.json")}
    assert names - kernels == KERNELS_WITHOUT
    assert names - transfers == CPU_ALONE


def test_no_number_of_a_result_is_beyond_its_ceilings():
    for path in sorted(FOLDER.glob("*/*.json")):
        run = store.load(path)
        assert [row.id for row in case_results(run) if row.label == "implausible"] == [], path.name
