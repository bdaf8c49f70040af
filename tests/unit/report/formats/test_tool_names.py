"""Entries of the formats for tools: which cases there are, and names that stay the same from run to run."""

import json

import pytest
from msgspec.structs import replace

from gpubench.report import render
from gpubench.result.run import Git
from tests.consumers import go_text
from tests.unit.report.builders import case, failed, measured, planned, run_of, skipped
from tests.unit.report.samples import full_run, tool_run

NAMES = {
    "gha-smaller": lambda text: [row["name"] for row in json.loads(text)],
    "gha-bigger": lambda text: [row["name"].removesuffix(" rate").removesuffix(" speedup") for row in json.loads(text)],
    "bmf": lambda text: list(json.loads(text)),
    "pytest-benchmark": lambda text: [row["fullname"] for row in json.loads(text)["benchmarks"]],
    "hyperfine": lambda text: [row["command"] for row in json.loads(text)["results"]],
    "google-benchmark": lambda text: [row["run_name"] for row in json.loads(text)["benchmarks"]],
    "go": lambda text: [row.name for row in go_text.read(text)],
}  # fmt: skip


def names(run, format):
    return list(dict.fromkeys(NAMES[format](render([run], format))))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_names_do_not_depend_on_when_and_from_what_a_run_was_made(name):
    run = full_run()
    other = replace(
        run, id="11111111-1111-4111-8111-111111111111", started_at="2031-12-31T23:59:59Z", label="nightly", tags=["x"],
        tool={"gpubench": "9.9", "numpy": "9.9"},
        environment=replace(run.environment, git=Git(commit="f" * 40, branch="other", dirty=True)),
        devices=[replace(device, name="another", driver="9") for device in run.devices],
    )  # fmt: skip
    assert names(other, name) == names(run, name)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_has_no_estimate_is_left_out(name):
    quick = measured(case(device="cupy:0"), 1e-9, repeat=1)  # 2 GFLOP in a nanosecond
    peak = replace(
        run_of([quick]).devices[1], theoretical=replace(run_of([]).devices[1].theoretical, flops_per_s={"float32": 1e13}),
    )  # fmt: skip
    run = run_of(
        [skipped(case("add")), failed(case("mul")), planned(case("sub")), quick],
        devices=(run_of([]).devices[0], peak),
    )
    assert names(run, name) == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_filter_keeps_the_speedup_of_what_it_keeps(name):
    text = render([tool_run()], name, keep=lambda one: one.device_id == "cupy:0" and one.op == "matmul")
    assert len(set(NAMES[name](text))) == 1
    if name == "gha-bigger":
        assert "resident-queued@cupy:0 speedup" in text
