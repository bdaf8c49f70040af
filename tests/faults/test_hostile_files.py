"""Files that someone made, or that a disk spoiled, as a user meets them: real processes, real files."""

import functools
import json
import os

import pytest

from gpubench.base.errors import ExitCode
from gpubench.result import store
from gpubench.result.store import document as limits
from tests.unit.report.samples import full_run

GIB = 2**30
DIRECTION_MARKS = "؜‎‏‪‫‬‭‮⁦⁧⁨⁩"
# A terminal obeys or does not show them: DEL, controls of C1 (U+009B begins an escape sequence), no width, lines' ends.
UNSEEN = "\x7f\x80\x85\x90\x9b\x9d\x9f\xad\u180e\u200b\u2028\u2029\u2060\ufeff\U000e0001\U000e0041"
NESTED = "[" * 5_000 + "]" * 5_000


@functools.cache
def good():
    """A result as it is saved."""
    return store.dumps(full_run())


def plain_run():
    return json.loads(good())


def assert_refused(ended, *parts, code=ExitCode.INPUT):
    assert "Traceback" not in ended.stderr
    assert ended.returncode == code, ended.stderr
    assert [line[:7] for line in ended.stderr.splitlines()[-3:]] == ["error: ", "  why: ", "  fix: "]
    assert not [part for part in parts if part not in ended.stderr]


def edited(**fields):
    return json.dumps(plain_run() | fields).encode()


# tests/unit/store/test_document.py tries each limit.
TOO_LARGE = {"escaped text": (lambda: edited(label='"\\' * limits.MAX_STRING_BYTES),
                              f"{limits.MAX_STRING_BYTES:,}"),
             "integer": (lambda: edited(exit_code=limits.MAX_INTEGER + 1), str(limits.MAX_INTEGER)),
             "depth": (lambda: edited(x=json.loads("[" * 60 + "]" * 60)), f"{limits.MAX_DEPTH} deep")}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_with_its_limit(in_process, tmp_path, name):
    make, part = TOO_LARGE[name]
    (tmp_path / "large.json").write_bytes(make())
    assert_refused(in_process("report", "large.json"), "large.json", part)


READERS = [
    "report bad.json", "compare good.json bad.json", "merge bad.json good.json -o all.json", "advise matmul --size 64 --from bad.json",
    "noise bad.json", "run --like bad.json --dry-run", "report good.json --claims bad.json",
    "compare good.json good.json --thresholds bad.json", "detect --records bad.json"]  # fmt: skip


@pytest.mark.parametrize("command", [*READERS, "run --append bad.json"])
def test_every_reader_has_the_same_limits(in_process, tmp_path, command):
    (tmp_path / "good.json").write_bytes(good())
    (tmp_path / "bad.json").write_bytes(TOO_LARGE["integer"][0]())
    assert_refused(in_process(*command.split()), "bad.json")


# All files are opened by one function, of which tests/unit/base/test_disk.py tries each kind; who went past it would hang.
@pytest.mark.skipif(os.name == "nt", reason="Windows has no FIFO in a folder")
@pytest.mark.parametrize("command", [
    *READERS, "report good.json --config bad.json", "merge good.json good.json -o f.json --nodes @bad.json"])  # fmt: skip
def test_what_is_no_file_is_refused_at_once(in_process, tmp_path, command):
    (tmp_path / "good.json").write_bytes(good())
    os.mkfifo(tmp_path / "bad.json")
    usage = "--config" in command or "--nodes" in command
    assert_refused(in_process(*command.split()), "bad.json", code=ExitCode.USAGE if usage else ExitCode.INPUT)


@pytest.mark.parametrize("text", [f"a = {NESTED}", "x = {" + "a." * 100_000 + "a = 1}"])
def test_deeply_nested_toml(in_process, tmp_path, text):
    (tmp_path / "good.json").write_bytes(good())
    (tmp_path / "claims.toml").write_text(text)
    assert_refused(in_process("report", "good.json", "--claims", "claims.toml"), "claims.toml", "deep")
    (tmp_path / "gpubench.toml").write_text(text)
    assert_refused(in_process("report", "good.json"), "gpubench.toml", "deep", code=ExitCode.USAGE)
    (tmp_path / "gpubench.toml").unlink()
    (tmp_path / "pyproject.toml").write_text(f"# gpubench\n{text}")
    assert_refused(in_process("report", "good.json"), "pyproject.toml", "deep", code=ExitCode.USAGE)


@pytest.mark.parametrize(("where", "value", "part"), [
    ("selection.ops", ["no_such_op"], "no_such_op"), ("selection.implementations", ["tunned"], "tunned"),
    ("selection.regimes", ["resident-waited", "nowhere"], "nowhere"),
    ("selection.dtypes", ["float31"], "float31"), ("selection.devices", ["jax:0"], "jax"),
    ("selection.devices", ["numpy"], "numpy"), ("case.op", "no_such_op", "no_such_op"),
    ("case.device_id", "jax:0", "jax"), ("case.regime", "nowhere", "nowhere"),
    ("case.implementation", "tunned", "tunned")])  # fmt: skip
def test_a_plan_with_an_unknown_word(in_process, tmp_path, where, value, part):
    run = plain_run()
    holder, _, name = where.rpartition(".")
    (run["outcomes"][0]["case"] if holder == "case" else run[holder])[name] = value
    (tmp_path / "plan.json").write_text(json.dumps(run))
    assert_refused(in_process("run", "--append", "plan.json", "--dry-run"), "plan.json", part)


@pytest.mark.parametrize("command", [
    "report FILE --format json", "report FILE --format jsonl", "compare FILE FILE --advisory --format json",
    "advise matmul --size 1k --from FILE --format json", "noise FILE FILE", "merge FILE FILE -o m.json"])  # fmt: skip
def test_what_is_printed_shows_in_its_order(in_process, tmp_path, command):
    """The formats alone: tests/unit/report/test_formats.py."""
    run = plain_run()
    name = f"GPU {DIRECTION_MARKS}{UNSEEN} name"
    devices = [device | {"name": name} for device in run["devices"]]
    run |= {"label": name, "devices": devices, "warnings": [{"code": "noisy", "message": name}]}
    (tmp_path / "r.json").write_text(json.dumps(run))
    ended = in_process(*command.replace("FILE", "r.json").split())
    assert not {*DIRECTION_MARKS, *UNSEEN} & {*ended.stdout, *ended.stderr}
    if command.endswith((" json", " jsonl")):
        lines = ended.stdout.splitlines() if command.endswith("jsonl") else [ended.stdout]
        assert name in json.dumps([json.loads(line) for line in lines], ensure_ascii=False)


def test_only_regular_files_of_a_folder_are_read(in_process, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    os.mkfifo(folder / "20990101T000000Z-aaaaaaaa.json")
    (folder / "20990101T000001Z-aaaaaaaa.json").mkdir()
    (folder / "20990101T000003Z-aaaaaaaa.json").symlink_to("/dev/zero")
    for command in ("report", "advise matmul --size 64"):
        assert_refused(in_process(*command.split()))
    (folder / "r.json").write_bytes(good())
    for command in ("report --format csv", "detect"):
        assert in_process(*command.split()).returncode == ExitCode.OK
