"""The results that this repository holds, measured on a real GPU, in every format that programs read."""

import functools
from pathlib import Path

import pytest

from gpubench.analysis.estimate import case_results
from gpubench.analysis.samples import link_peak
from gpubench.report import render
from gpubench.result import store
from tests.consumers import go_text

FOLDER = Path(__file__).parents[2] / "results"
FILES = [next(FOLDER.glob(f"*/*-{name}.json*")) for name in ("5cec675a", "9aaa659e", "d6111fff")]
# Three sessions; a default run with its searches; all ops.


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def run(request):
    return store.load(request.param)


def test_go(run):
    found = go_text.read(render([run], "go"))
    counted = [row for row in run.sessions if not row.superseded]
    assert {row.configuration["goarch"] for row in found} == {"amd64"}
    assert len(found) <= len(counted) * len(run.outcomes)
    assert all(value > 0 for row in found for value in row.values.values())


@functools.cache
def measured():
    """The newest runs by path, without those of collectives alone: what links carry is held against no peak."""
    newest = sorted(FOLDER.glob("*/*.json*"), key=lambda path: path.name)[-8:]
    every = {path: store.load(path) for path in newest}
    return {
        path: run for path, run in every.items() if not all(o.case.group == "collective" for o in run.outcomes)
    }


def test_every_result_carries_peaks_that_its_cases_could_come_near():
    kernels, transfers, cpu_alone = set(), set(), set()
    for path, run in measured().items():
        name = path.name.partition(".")[0][-8:]
        peaks = [c for session in run.sessions for c in session.peaks if c.bytes_per_s or c.flops_per_s]
        reported = [d for d in run.devices if d.theoretical.bytes_per_s or d.theoretical.flops_per_s]
        kernels |= {name} if peaks or reported else set()
        gpus = [device for device in run.devices if device.kind == "gpu" and device.backend != "group"]
        cpu_alone |= set() if gpus else {name}  # it has no link
        transfers |= {name} if gpus and all(any(link_peak(run, d.id)) for d in gpus) else set()
    names = {path.name.partition(".")[0][-8:] for path in measured()}
    assert names == kernels
    assert names - transfers == cpu_alone


def test_no_number_of_a_result_is_beyond_its_peaks():
    for path, run in measured().items():
        assert [row.id for row in case_results(run) if row.label == "implausible"] == [], path.name
