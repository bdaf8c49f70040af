"""What a document may hold: as much as each limit says is read, one more is refused with the limit."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.base.disk import as_utf8
from gpubench.base.errors import InputError
from gpubench.result import store
from gpubench.result.run import Device, Measurement, Run, RunWarning
from gpubench.result.store import document
from gpubench.result.store import document as limits
from tests.raising import raised
from tests.unit.store.test_unfinished import with_sessions


def with_blocks(run, count):
    """A run of one case with one block in each of so many sessions; each block has two samples."""
    (measured,) = [outcome for outcome in run.outcomes if isinstance(outcome, Measurement)]
    blocks = [replace(measured.blocks[0], session=i) for i in range(count)]
    return replace(run, outcomes=[replace(measured, blocks=blocks)])


def with_cases(run, count):
    (measured,) = [outcome for outcome in run.outcomes if isinstance(outcome, Measurement)]
    return replace(run, outcomes=[measured] * count)


DEVICE = Device(id="numpy:0", backend="numpy", kind="cpu", name="one", api="numpy")
WARNING = RunWarning(code="a-code", message="a sentence")
MADE: dict[str, Callable[[Run, int], Run]] = {
    "MAX_CASES": with_cases, "MAX_SESSIONS": with_sessions,
    "MAX_DEVICES": lambda run, count: replace(run, devices=[DEVICE] * count),
    "MAX_WARNINGS": lambda run, count: replace(run, warnings=[WARNING] * count), "MAX_BLOCKS": with_blocks, "MAX_SAMPLES": lambda run, count: with_blocks(run, count // 2),
    # One case against so many sessions, and the same with what stands beside sessions.
    "MAX_LOOKUPS": with_sessions}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_run_holds_as_much_as_the_limit(monkeypatch, run, name):
    most = 6
    one = with_cases(run, 1)
    monkeypatch.setattr(limits, name, most)
    limits.require_runs([MADE[name](one, most)], "a.json")
    error = raised(InputError, limits.require_runs, [MADE[name](one, most + 2)], "a.json")
    assert f"at most {most} are read" in error.why


@pytest.mark.parametrize(("name", "document"), [
    ("MAX_VALUES", lambda n: b"[" + b",".join([b"1"] * n) + b"]"),
    ("MAX_STRINGS", lambda n: b"[" + b",".join([b'""'] * n) + b"]"),
    ("MAX_CONTAINERS", lambda n: b"[" + b",".join([b"{}"] * (n - 1)) + b"]"),
    ("MAX_STRING_BYTES", lambda n: b'"' + b"a" * n + b'"'),
    ("MAX_TEXT_BYTES", lambda n: b'["' + b"a" * (n - 2) + b'","bb"]'),
    ("MAX_TEXT_BYTES", lambda n: b'["aa","' + b"b" * (n - 2) + b'"]'),
    ("MAX_DEPTH", lambda n: b"[" * n + b"]" * n)])  # fmt: skip
def test_a_text_holds_as_much_as_the_limit(monkeypatch, name, document):
    most = 8
    monkeypatch.setattr(limits, name, most)
    limits.require_json(document(most), "a.json")
    assert str(most) in raised(InputError, limits.require_json, document(most + 1), "a.json").why


@pytest.mark.parametrize(("text", "read"), [
    (b"9223372036854775807", True), (b"9223372036854775808", False), (b"-9223372036854775807", True),
    (b"10000000000000000000000", False), (b"1e99", True), (b"1e100", False), (b"1E-099", True), (b"1e-100", False),
    (b"0." + b"0" * 98 + b"1", True), (b"0." + b"0" * 99 + b"1", False), (b'"1e400"', True)])  # fmt: skip
def test_numbers_lie_where_what_is_made_of_two_is_finite(text, read):
    document = b'{"x": [' + text + b"]}"
    if read:
        limits.require_json(document, "a.json")
    else:
        raised(InputError, limits.require_json, document, "a.json")


def test_toml(monkeypatch):
    monkeypatch.setattr(limits, "MAX_TOML_BYTES", 10)
    assert limits.toml(b"answer =42") == {"answer": 42}
    assert "at most 10" in str(raised(ValueError, limits.toml, b"answer = 42"))


@pytest.mark.parametrize("place", ["%s = 1", "[%s]"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_toml_stands_so_deep(place, encoding):
    limits.toml(as_utf8((place % ".".join("a" * limits.MAX_DEPTH)).encode(encoding)))
    with pytest.raises(ValueError, match="deep inside"):
        limits.toml(as_utf8((place % ".".join("a" * (limits.MAX_DEPTH + 1))).encode(encoding)))


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


def test_so_many_large_integers_are_looked_at(monkeypatch):
    monkeypatch.setattr(limits, "MAX_LARGE_INTEGERS", 3)
    large = b"9" + b"0" * 18
    limits.require_json(b"[" + b",".join([large] * 4) + b"]", "a.json")
    raised(InputError, limits.require_json, b"[" + b",".join([large] * 5) + b"]", "a.json")
