"""Run <-> bytes: round trips, digits, refusals, upgrades, and as much as each limit says."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.base.disk import as_utf8
from gpubench.base.errors import ExitCode, InputError
from gpubench.base.installation import upgrade_command
from gpubench.result import store
from gpubench.result.run import SCHEMA_VERSION, Device, Peak, Run, RunWarning
from gpubench.result.store import document
from tests.examples import CHARACTERS
from tests.raising import raised
from tests.unit.store.test_journal import with_sessions

ROOT = Path(__file__).parents[3]
STORED = sorted([*(ROOT / "results").rglob("*.json*"), *(ROOT / "benchmarks" / "pools").glob("*.json.gz")])


@given(samples=st.lists(st.floats(1e-12, 1e6), max_size=20), label=st.none() | st.text(CHARACTERS, max_size=20))
def test_round_trip(make_run, samples, label):
    if label is not None and any(0xD800 <= ord(letter) <= 0xDFFF for letter in label):
        return  # no text of an operating system that says UTF-8
    data = store.dumps(make_run(samples, label=label))
    back = store.loads(data, "x")
    assert (data.count(b"\n"), data[-2:], store.dumps(back)) == (1, b"}\n", data)
    assert back.label == label
    assert back.outcomes[0].blocks[0].wall_s == [float(f"{sample:.6g}") for sample in samples]  # type: ignore[union-attr]
    assert store.loads(store.dumps(back), "x") == back


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused_with_their_place(make_run, bad):
    with pytest.raises(ValueError, match=r"outcomes\[0\]\.blocks\[0\]\.wall_s\[1\] is"):
        store.dumps(make_run([1.0, bad]))


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
    assert ('it has no "name"' in refused.why) == (data == b"{}")
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
    plain["machine"]["recommendation"] = {"measured": measured}
    upgraded = store.loads(json.dumps(plain).encode(), "x")
    evidence = upgraded.machine.recommendation.measured
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


def test_a_file_that_ends_in_the_middle_is_told_as_such(run):
    data = store.dumps(run)
    for end in (1, len(data) // 2, data.index(b'"outcomes"'), len(data) - 2):
        assert refusal(data[:end]).code == "truncated-file"


# ---------------------------------------------------------------- what a document may hold
def with_blocks(run, count):
    """A run of one case with one block in each of so many sessions; each block has two samples."""
    measured, *_ = run.outcomes
    blocks = [replace(measured.blocks[0], session=i) for i in range(count)]
    return replace(run, outcomes=[replace(measured, blocks=blocks)])


def with_cases(run, count):
    return replace(run, outcomes=run.outcomes[:1] * count)


def beside_sessions(run):
    """With five things beside the sessions."""
    first = replace(run.sessions[0], workers=[0, 0], peaks=[0, 0])
    return replace(run, sessions=[first, *run.sessions[1:]], warnings=[WARNING])


DEVICE = Device(id="numpy:0", backend="numpy", kind="cpu", name="one", api="numpy")
WARNING = RunWarning(code="a-code", message="a sentence")
MADE: dict[str, Callable[[Run, int], Run]] = {
    "MAX_CASES": with_cases, "MAX_SESSIONS": with_sessions,
    "MAX_DEVICES": lambda run, count: replace(run, devices=[DEVICE] * count),
    "MAX_WARNINGS": lambda run, count: replace(run, warnings=[WARNING] * count), "MAX_BLOCKS": with_blocks, "MAX_SAMPLES": lambda run, count: with_blocks(run, count // 2),
    # One case against so many sessions, and the same with what stands beside sessions.
    "MAX_LOOKUPS": lambda run, count: beside_sessions(with_sessions(run, count - 5))}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_run_holds_as_much_as_the_limit(monkeypatch, run, name):
    most = 6
    one = with_cases(run, 1)
    monkeypatch.setattr(document, name, most)
    document.require_runs([MADE[name](one, most)], "a.json")
    error = raised(InputError, document.require_runs, [MADE[name](one, most + 2)], "a.json")
    assert f"at most {most} are read" in error.why


@pytest.mark.parametrize(("name", "make"), [
    ("MAX_VALUES", lambda n: b"[" + b",".join([b"1"] * n) + b"]"),
    ("MAX_VALUES", lambda n: b"{" * n), ("MAX_STRINGS", lambda n: b"[" + b",".join([rb'"\\\""'] * n) + b"]"),
    ("MAX_STRINGS", lambda n: b"[" + b",".join([b'""'] * n) + b"]"),
    ("MAX_CONTAINERS", lambda n: b"[" + b",".join([b"{}"] * (n - 1)) + b"]"),
    ("MAX_STRING_BYTES", lambda n: b'"' + b"a" * n + b'"'),
    ("MAX_TEXT_BYTES", lambda n: b'["' + b"a" * (n - 2) + b'","bb"]'),
    ("MAX_TEXT_BYTES", lambda n: b'["aa","' + b"b" * (n - 2) + b'"]'),
    ("MAX_LARGE_INTEGERS", lambda n: b"[" + b",".join([b"9" + b"0" * 18] * (n + 1)) + b"]"), ("MAX_DEPTH", lambda n: b"[" * n + b"]" * n)])  # fmt: skip
def test_a_text_holds_as_much_as_the_limit(monkeypatch, name, make):
    most = 8
    monkeypatch.setattr(document, name, most)
    document.require_json(make(most), "a.json")
    assert str(most) in raised(InputError, document.require_json, make(most + 1), "a.json").why


@pytest.mark.parametrize(("text", "read"), [
    (b"9223372036854775807", True), (b"9223372036854775808", False), (b"-9223372036854775807", True),
    (b"10000000000000000000000", False), (b"1e99", True), (b"1e100", False), (b"1E-099", True), (b"1e-100", False),
    (b"0." + b"0" * 98 + b"1", True), (b"0." + b"0" * 99 + b"1", False), (b'"1e400"', True)])  # fmt: skip
def test_numbers_lie_where_what_is_made_of_two_is_finite(text, read):
    whole = b'{"x": [' + text + b"]}"
    if read:
        document.require_json(whole, "a.json")
    else:
        raised(InputError, document.require_json, whole, "a.json")


def test_toml(monkeypatch):
    monkeypatch.setattr(document, "MAX_TOML_BYTES", 10)
    assert document.toml(b"answer =42") == {"answer": 42}
    assert "at most 10" in str(raised(ValueError, document.toml, b"answer = 42"))


@pytest.mark.parametrize("place", ["%s = 1", "[%s]"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_toml_stands_so_deep(place, encoding):
    document.toml(as_utf8((place % ".".join("a" * document.MAX_DEPTH)).encode(encoding)))
    with pytest.raises(ValueError, match="deep inside"):
        document.toml(as_utf8((place % ".".join("a" * (document.MAX_DEPTH + 1))).encode(encoding)))


PART = b'{"name":"gpubench-part","schema_version":1}\n'


@pytest.mark.parametrize(("lines", "why"), [
    # Each line keeps a million blocks that the first one brought: copies of them took a quarter of an hour.
    ([b'{"id":"a","outcome":{"blocks":[%s]}}' % b",".join([b"1"] * 1_000_000)], "1,000,000 blocks, and at most 100,000"),
    ([b"1"] * 2_000_001, "2,000,002 lines, and at most 2,000,000")])  # fmt: skip
def test_a_part_beyond_a_limit_is_refused_while_it_is_read(tmp_path, lines, why):
    path = tmp_path / "a.json.part"
    path.write_bytes(PART + b"\n".join(lines) + b"\n")
    error = raised(InputError, store.read, path)
    assert (error.code, why in error.why) == ("too-large", True)


def test_lines_that_build_on_what_stands_cost_what_they_hold():
    """Each of 20,000 lines keeps 90,000 blocks. A copy of them for each line would take minutes and not end here."""
    lines = [b'{"head":{}}', b'{"id":"a","outcome":{"blocks":[%s]}}' % b",".join([b"1"] * 90_000),
             *[b'{"id":"a","outcome":{"blocks":[2]},"blocks":90000}'] * 20_000,
             b'{"id":"a","outcome":{"blocks":[3]},"blocks":90000}', b""]  # fmt: skip
    found = msgspec.json.decode(document.join_lines(PART + b"\n".join(lines), "x"))
    assert found["outcomes"] == [{"blocks": [1] * 90_000 + [3]}]
    lines = [
        b'{"head":{}}',
        *(b'{"index":%d,"session":%d}' % (i, 10 - i) for i in (2, 0, 1)),
        *(b'{"id":"%s","outcome":{}}' % name for name in (b"a", b"b")),
        b'{"forgotten":"a"}',
        b"",
    ]
    assert msgspec.json.decode(document.join_lines(PART + b"\n".join(lines), "x")) == {
        "sessions": [10, 9, 8],
        "outcomes": [{}],
    }
    assert (
        raised(InputError, document.join_lines, PART.replace(b"1", b"9") + b"\n".join(lines), "x").code
        == "too-new"
    )
