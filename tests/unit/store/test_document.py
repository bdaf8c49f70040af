"""Run <-> bytes: round trips, digits, refusals and upgrades."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.base.errors import ExitCode, InputError
from gpubench.base.installation import upgrade_command
from gpubench.result import store
from gpubench.result.machine import SCHEMA_VERSION as machine_version
from gpubench.result.machine import Machine
from gpubench.result.run import SCHEMA_VERSION, Peak, Run
from gpubench.result.store import document
from tests.raising import raised

ROOT = Path(__file__).parents[3]
STORED = sorted([*(ROOT / "results").rglob("*.json*"), *(ROOT / "benchmarks" / "pools").glob("*.json.gz")])


@given(samples=st.lists(st.floats(1e-12, 1e6), max_size=20), label=st.none() | st.text(max_size=20))
def test_round_trip(make_run, samples, label):
    if label is not None and any(0xD800 <= ord(letter) <= 0xDFFF for letter in label):
        return  # no text of an operating system that says UTF-8
    data = store.dumps(make_run(samples, label=label))
    back = store.loads(data, "x")
    assert (data.count(b"\n"), data[-2:], store.dumps(back)) == (1, b"}\n", data)
    assert back.label == label
    got = back.outcomes[0].blocks[0].wall_s  # type: ignore[union-attr]
    assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(got, samples, strict=True))
    assert store.loads(store.dumps(back), "x") == back


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused_with_their_place(make_run, bad):
    with pytest.raises(ValueError, match=r"outcomes\[0\]\.blocks\[0\]\.wall_s\[1\] is"):
        store.dumps(make_run([1.0, bad]))


def test_unknown_fields_are_ignored_and_absent_ones_default(run):
    plain = json.loads(store.dumps(run))
    plain["from_the_future"] = {"deep": [1, 2]}
    plain["outcomes"][0]["novelty"] = "x"
    del plain["warnings"]
    assert store.loads(json.dumps(plain).encode(), "x") == store.loads(store.dumps(run), "x")


def refusal(data):
    error = raised(InputError, store.loads, data, "some.json")
    assert (error.exit_code, "some.json" in error.message) == (ExitCode.INPUT, True)
    assert error.why
    assert error.hint
    return error


@pytest.mark.parametrize(("data", "code"), [
    (b"", "empty-file"), (b" \n", "empty-file"), (b"hello", "not-json"), (b"<a href='1'>#e110</a>", "not-json"), (b"\xff\xfe\x00", "not-json"),
    (b"{'a': 1}", "not-json"), (b'{"a":' * 100_000, "not-json"), (b"[]", "bad-document"),
    (b"null", "bad-document"), (b"{}", "wrong-document"),
    (b'{"name": "gpubench-detect", "schema_version": 1}', "wrong-document"), (b'{"name": 3}', "wrong-document"),
    (b'{"name": "gpubench-result"}', "bad-document"),
    (b'{"name": "gpubench-result", "schema_version": "1"}', "bad-document"),
    (b'{"name": "gpubench-result", "schema_version": true}', "bad-document"),
    (b'{"name": "gpubench-result", "schema_version": 0}', "bad-document"),
    (b'{"name": "gpubench-result", "schema_version": 4}', "bad-document"),
    (b'{"name": "gpubench-result", "schema_version": 99, "news": []}', "too-new")])  # fmt: skip
def test_what_is_no_result_is_refused(data, code):
    refused = refusal(data)
    assert refused.code == code
    assert code != "too-new" or upgrade_command() in refused.hint
    assert code != "empty-file" or refused.hint.startswith("run `gpubench run` again")
    other = "it is a gpubench-detect document, not a gpubench-result document"
    assert b"-detect" not in data or refused.why == other


def test_a_case_occurs_once(run):
    twice = replace(run, outcomes=[*run.outcomes, run.outcomes[0]])
    assert f"{run.outcomes[0].id!r} occurs twice" in refusal(store.dumps(twice)).why


@pytest.mark.parametrize(("name", "value", "why"), [
    *(("params", params, "size n") for params in ({}, {"m": 4}, {"n": 0}, {"n": -1})), ("flops", "many", "flops")])  # fmt: skip
def test_every_case_has_a_size_and_a_wrong_value_is_named(run, name, value, why):
    plain = json.loads(store.dumps(run))
    (plain["outcomes"][0] if name == "flops" else plain["outcomes"][1]["case"])[name] = value
    refused = refusal(json.dumps(plain).encode())
    assert (refused.code, why in refused.why) == ("bad-document", True), refused


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_each_stored_result_loads(path):
    assert store.load(path).outcomes


@pytest.mark.parametrize("name", ["gpubench-result", "gpubench-fleet", "gpubench-noise"])
def test_a_file_of_version_1_is_refused_with_what_to_do(name):
    data = json.dumps({"name": name, "schema_version": 1}).encode()
    error = raised(InputError, document.loads_as, Run, data, "x", name=name, newest=SCHEMA_VERSION)
    assert (error.code, error.exit_code) == ("too-old", 4)
    assert ("schema version 1" in error.why, "measure again: gpubench" in error.hint) == (True, True), error


def test_blocks_of_a_search_in_version_2_are_dropped(run):
    plain = json.loads(store.dumps(run))
    plain["schema_version"] = 2
    (measured,) = [outcome for outcome in plain["outcomes"] if outcome["type"] == "measurement"]
    kept = measured["blocks"]
    searched = {**measured, "id": "searched", "blocks": [{**kept[0], "phase": "search"}]}
    measured["blocks"] = [*kept, {**kept[0], "phase": "estimate"}]
    plain["outcomes"].append(searched)
    del plain["settings"]["protocol"]
    upgraded = store.loads(json.dumps(plain).encode(), "x")
    assert (upgraded.outcomes, upgraded.settings.protocol) == (store.loads(store.dumps(run), "x").outcomes, 1)


def test_names_of_before_version_4_are_read(run):
    session = {"index": 0, "started_at": "", "ceilings": [{"device_id": "gang"}]}
    before_4 = {"schema_version": 3, "label": "gang", "twins": [], "sessions": [session]}
    plain = {**json.loads(store.dumps(run)), **before_4}
    (case,) = [outcome["case"] for outcome in plain["outcomes"] if outcome["type"] == "measurement"]
    case |= {"device_id": "gang:cupy:0+1", "form": case.pop("implementation")}
    case["params"]["form"] = 3  # a user's own word
    plain["fingerprint"]["device"]["fields"] = {"gang:cupy:0+1": "2 x H200"}
    split = {"op": "add", "dtype": "float32", "regime": "transfer-always", "n": 8, "device_id": "hybrid:cupy:0",
             "gain": 1.2, "lo": 1.1, "hi": 1.3, "fraction": 0.75}  # fmt: skip
    measured = {"date": "2026-01-02", "split": 0.75, "splits": [split]}
    plain["machine"] |= {"schema_version": 1, "recommendation": {"measured": measured}}
    upgraded = store.loads(json.dumps(plain).encode(), "x")
    machine = json.dumps(plain["machine"]).encode()
    detected = store.loads_as(Machine, machine, "x", name="gpubench-detect", newest=machine_version)
    for evidence in (upgraded.machine.recommendation.measured, detected.recommendation.measured):
        assert (evidence.gpu_share, evidence.splits[0].gpu_share) == (0.75, 0.75)
    assert "group:cupy:0+1" in [outcome.case.device_id for outcome in upgraded.outcomes]
    assert (upgraded.label, upgraded.identical_gpus) == ("gang", [])
    assert upgraded.sessions[0].peaks == [Peak(device_id="group")]
    assert upgraded.fingerprint.device.fields == {"group:cupy:0+1": "2 x H200"}
    assert 3 in [outcome.case.params.get("form") for outcome in upgraded.outcomes]


def test_results_in_a_fleet_are_upgraded_too(run):
    plain = {**json.loads(store.dumps(run)), "schema_version": 2}
    fleet = {"schema_version": 2, "nodes": [{"result": plain}, {"result": None, "error": "x"}]}
    upgraded = document.upgrade(fleet, "gpubench-fleet")
    versions = [node["result"] and node["result"]["schema_version"] for node in upgraded["nodes"]]
    assert versions == [SCHEMA_VERSION, None]
    plain["schema_version"] = 1
    assert "no longer read" in str(raised(TypeError, document.upgrade, fleet, "gpubench-fleet"))


def test_floats_keep_six_significant_digits(run):
    back = store.loads(store.dumps(run), "x")
    assert back.outcomes[0].blocks[0].wall_s == [0.0123457, 0.0125]  # type: ignore[union-attr]


def test_a_file_that_ends_in_the_middle_is_told_as_such(run):
    data = store.dumps(run)
    for end in (1, len(data) // 2, data.index(b'"outcomes"'), len(data) - 2):
        assert refusal(data[:end]).code == "truncated-file"
