"""Files that cannot be used, as the user of `report` meets them: three lines, exit 4, nothing on stdout."""

import os
from pathlib import Path

import pytest

from gpubench.base.errors import ExitCode

FIXTURE = Path(__file__).parents[1] / "unit" / "store" / "fixtures" / "version-4.json"
GOOD = FIXTURE.read_bytes()


def assert_refused(ended, code, *parts):
    assert [line[:7] for line in ended.stderr.splitlines()] == ["error: ", "  why: ", "  fix: "]
    assert (ended.stdout, ended.returncode) == ("", code)
    for part in parts:
        assert part in ended.stderr


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"), (GOOD[:-30], "truncated"), (b"speedup: 200x", "not JSON"),
        (GOOD.replace(b'"schema_version": 4', b'"schema_version": 7', 1), "upgrade gpubench"),
        (GOOD.replace(b'"schema_version": 4', b'"schema_version": 1', 1), "measure again"),
        (b'{"name": "gpubench-detect", "schema_version": 1}', "gpubench-detect"), (b"[1, 2]", "gpubench-result"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (GOOD.replace(b'"reason": "unavailable"', b'"reason": "melted"', 1), "Invalid enum value 'melted'"),
    ],
)  # fmt: skip
def test_unusable_results(gpubench, tmp_path, content, part):
    (tmp_path / "bad.json").write_bytes(content)
    assert_refused(gpubench("report", "bad.json"), ExitCode.INPUT, "bad.json", part)


def test_a_folder_is_reported_without_what_is_no_result(gpubench, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "good.json").write_bytes(GOOD)
    (tmp_path / "r" / "package.json").write_text('{"name": "another program"}')
    alone = gpubench("report", "good.json", cwd=tmp_path / "r")
    ended = gpubench("report", "r")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (ExitCode.OK, alone.stdout.splitlines()[0])
    assert ended.stderr.startswith("left out: r/package.json cannot be used: ")
    (tmp_path / "r" / "half.json").write_bytes(GOOD[:-30])
    ended = gpubench("report", "r", "--quiet")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (ExitCode.INPUT, alone.stdout.splitlines()[0])
    assert ended.stderr.splitlines() == [
        "left out: r/half.json cannot be used: it ends in the middle: the JSON is truncated"
    ]


def test_a_missing_file_and_a_folder(gpubench, tmp_path):
    assert_refused(gpubench("report", "absent.json"), ExitCode.INPUT, "no such file")
    assert_refused(gpubench("report", "."), ExitCode.INPUT, "folder")


def test_no_result_anywhere(gpubench):
    assert_refused(gpubench("report"), ExitCode.INPUT, "gpubench run")


def test_standard_input(gpubench):
    ended = gpubench("report", "-", "--format", "markdown", input=GOOD.decode())
    assert ended.returncode == ExitCode.OK
    assert ended.stdout.endswith("\n")
    assert_refused(gpubench("report", "-", input=""), ExitCode.INPUT, "standard input")


def test_a_file_that_detect_is_named_and_is_no_result(gpubench, tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    assert_refused(gpubench("detect", "--results", "empty.json"), ExitCode.INPUT, "empty.json")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--format", "tabel"), "did you mean 'table'?"), (("-o", "no/such/folder/report.md"), "does not exist"),
        (("--format", "csv", "-o", "."), "folder"), (("--format", "csv", "-o", os.devnull), "regular file"),
    ],
)  # fmt: skip
def test_reports_that_cannot_be_written(gpubench, arguments, part):
    assert_refused(gpubench("report", str(FIXTURE), *arguments), ExitCode.USAGE, part)


def test_the_newest_result_is_found(gpubench, tmp_path, home):
    for path in (
        tmp_path / "results" / "m" / "20260101T000000Z-aaaaaaaa.json",
        home / ".local" / "share" / "gpubench" / "results" / "x.json",
    ):
        path.parent.mkdir(parents=True)
        path.write_bytes(GOOD)
        assert gpubench("report", "--format", "plain").returncode == ExitCode.OK
        path.unlink()


NO_FILE_HAS_THIS = "a" * 300  # like a folder that one may not enter, it cannot even be asked for


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", NO_FILE_HAS_THIS), ("compare", f"{NO_FILE_HAS_THIS}=base.json", "new.json"),
        ("advise", "matmul", "--size", "64", "--from", NO_FILE_HAS_THIS), ("noise", NO_FILE_HAS_THIS),
        ("merge", NO_FILE_HAS_THIS, "-o", "all.json"), ("detect", "--results", NO_FILE_HAS_THIS),
    ],
)  # fmt: skip
def test_files_that_cannot_be_looked_at(gpubench, arguments):
    assert_refused(gpubench(*arguments), ExitCode.INPUT)


def test_folders_that_cannot_be_looked_at(gpubench):
    ended = gpubench("report", str(FIXTURE), "--plots", NO_FILE_HAS_THIS)
    assert_refused(ended, ExitCode.USAGE, "File name too long")
    ended = gpubench("run", "--dry-run", "--backends", "numpy", "--results-dir", NO_FILE_HAS_THIS)
    assert_refused(ended, ExitCode.USAGE, "File name too long")


def test_a_configuration_that_cannot_be_looked_at_is_none(gpubench):
    ended = gpubench("report", str(FIXTURE), env={"XDG_CONFIG_HOME": f"/{NO_FILE_HAS_THIS}"})
    assert ended.returncode == ExitCode.OK, ended.stderr
