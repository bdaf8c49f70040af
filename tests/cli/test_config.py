"""Options come from the command line, the environment, the project's file, the user's file, in this order."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpubench.base import disk, installation
from gpubench.base.errors import ConfigError
from gpubench.cli.command import read_settings, user_file
from tests.raising import raised


@pytest.fixture
def place(tmp_path):
    """A repository with a folder deep inside, and a home outside of it."""
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "a" / "b").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "gpubench").mkdir(parents=True)
    return tmp_path


def settings(place, command="run", *, environ=None, file=None, files_wanted=True, folder=None):
    found = read_settings(
        command=command, environ={"HOME": str(place / "home"), **(environ or {})}, file=file, files_wanted=files_wanted,
        folder=folder or place / "repo" / "a" / "b",
    )  # fmt: skip
    return {name: setting.value for name, setting in found.items()}


def write(path, text):
    path.write_text(text)
    return path


def test_precedence(place):
    write(place / "home" / ".config" / "gpubench" / "config.toml", "[run]\nsessions = 1\nops = 'add'\n")
    assert settings(place) == {"sessions": "1", "ops": "add"}
    write(place / "repo" / "gpubench.toml", "[run]\nsessions = 2\n")
    assert settings(place) == {"sessions": "2", "ops": "add"}
    write(place / "repo" / "a" / "pyproject.toml", "[tool.gpubench.run]\nsessions = 3\n")
    assert settings(place)["sessions"] == "3"
    assert settings(place, environ={"GPUBENCH_SESSIONS": "4"})["sessions"] == "4"
    assert settings(place, files_wanted=False) == {}


def test_no_folder_and_a_project_that_cannot_be_read(place, monkeypatch, in_process):
    assert read_settings(command="run", environ={}, file=None, files_wanted=True, folder=None) == {}
    write(place / "repo" / "pyproject.toml", "[tool.gpubench.run]\nsessions = 3\n")
    monkeypatch.setattr(disk, "read_regular", Mock(side_effect=PermissionError(13, "refused")))
    assert "pyproject.toml" in raised(ConfigError, settings, place).message
    monkeypatch.setattr(Path, "cwd", Mock(side_effect=FileNotFoundError))
    assert in_process("schema").returncode == 0


def test_files_outside_the_repository_are_not_read(place):
    write(place / "gpubench.toml", "[run]\nsessions = 9\n")
    write(place / "repo" / "pyproject.toml", "[tool.other]\nx = 1\n")
    assert settings(place) == {}
    outside = place / "elsewhere" / "deep"
    outside.mkdir(parents=True)
    assert settings(place, folder=outside) == {}


@pytest.mark.parametrize(("text", "found"), [
    ("[tool.gpubench.run]\nsessions = 3\n", {"sessions": "3"}), ("it is broken, and nothing of ours", {}),
])  # fmt: skip
def test_a_project_that_does_not_name_us_is_not_read(place, text, found):
    write(place / "repo" / "pyproject.toml", text)
    assert settings(place) == found


def test_a_named_file_is_the_only_one(place):
    write(place / "repo" / "gpubench.toml", "[run]\nsessions = 2\n")
    text = "[run]\nops = ['matmul', 'add']\ntag = ['a', 'b']\n[common]\nquiet = true\n"
    named = write(place / "mine.toml", text)
    assert settings(place, file=str(named)) == {"ops": "matmul,add", "tag": ["a", "b"], "quiet": True}
    assert settings(place, environ={"GPUBENCH_CONFIG": str(named)}) == settings(place, file=str(named))
    assert settings(place, environ={"GPUBENCH_CONFIG": "absent.toml"}, files_wanted=False) == {}
    for words in ({"file": "absent.toml"}, {"environ": {"GPUBENCH_CONFIG": "absent.toml"}}, {"file": ""}):
        with pytest.raises(ConfigError, match="cannot be read"):
            settings(place, **words)
    with pytest.raises(ConfigError, match="contradict"):
        settings(place, file="absent.toml", files_wanted=False)


def test_each_command_takes_its_own_table(place):
    tables = "[run]\nsessions = 2\n[ops]\nformat = 'json'\n[common]\ncolor = 'never'\n"
    write(place / "repo" / "gpubench.toml", tables)
    assert settings(place, "ops") == {"format": "json", "color": "never"}


def test_variables(place):
    environ = {"TAG": "a b", "DRY_RUN": "1", "OPS": "add,mul", "SESSIONS": ""}
    given = settings(place, environ={f"GPUBENCH_{name}": text for name, text in environ.items()})
    assert given == {"tag": ["a", "b"], "dry_run": "1", "ops": "add,mul"}


@pytest.mark.parametrize(("text", "part"), [
    ("[run]\nsesions = 2\n", "did you mean 'sessions'?"), ("[rnu]\nsessions = 2\n", "did you mean 'run'?"),
    ("[common]\nsessions = 2\n", "'sessions' in [common]"), ("[ops]\nsessions = 2\n", "'sessions' in [ops]"),
    ("[run]\ndry-run = 'yes'\n", "true or false"), ("[run]\nsessions = true\n", "a number"),
    ("[run]\nsessions = {a = 1}\n", "a number"), ("[run]\ndry-run = [true]\n", "true or false"),
    ('[run]\nops = ["add", "a\\u0000.py"]', "without a null"), ("run = 3\n", "[run]"), ("quiet = true\n", "'quiet' outside of a table"), ("[run\n", "cannot be read"), ("\x00", "cannot be read"),
    ("[tool]\ngpubench = 3\n", "is not a table"), ("tool = 'gpubench'\n", "is not a table"),
])  # fmt: skip
def test_mistakes_in_files(place, text, part):
    name = "pyproject.toml" if "tool" in text else "gpubench.toml"
    write(place / "repo" / name, text)
    error = raised(ConfigError, settings, place)
    assert part in f"{error.message} {error.why} {error.hint}"
    assert name in error.message


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_as_windows_writes_them(place, encoding):
    write(place / "repo" / "gpubench.toml", "").write_bytes("[run]\nsessions = 2\n".encode(encoding))
    assert settings(place) == {"sessions": "2"}


def test_the_program_obeys(in_process, tmp_path):
    write(tmp_path / "gpubench.toml", "[ops]\nformat = 'json'\n")
    assert json.loads(in_process("ops").stdout)["name"] == "gpubench-ops"
    assert in_process("ops", "--format", "markdown").stdout.startswith("| op |")
    assert in_process("ops", env={"GPUBENCH_FORMAT": "markdown"}).stdout.startswith("| op |")
    assert in_process("ops", "--no-config").stdout.startswith("vector")
    write(tmp_path / "gpubench.toml", "[run\n")
    assert (in_process("ops", "--help").returncode, in_process("ops").returncode) == (0, 2), "a broken file"


def test_show_config_names_each_source(in_process, tmp_path):
    write(tmp_path / "gpubench.toml", "[common]\nascii = true\n")
    shown = in_process("ops", "--show-config", "--format", "json", env={"GPUBENCH_COLOR": "never"})
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == "[ops]"
    assert 'format = "json"  # option' in lines
    assert 'color = "never"  # GPUBENCH_COLOR' in lines
    assert "quiet = false  # default" in lines
    assert any(line.startswith("ascii = true  # ") and "gpubench.toml" in line for line in lines)


def test_a_list_may_come_in_parts_and_the_command_line_replaces_that_of_a_file(in_process, tmp_path):
    write(tmp_path / "gpubench.toml", '[run]\nops = ["sub", "div"]\ndtypes = "f16"\n')
    shown = in_process(
        "run", "--ops", "add", "--ops=mul,dot", "--show-config", env={"GPUBENCH_DEVICES": "a,b"}
    ).stdout
    assert [f'{key} = "{value}"  # ' in shown for key, value in
            {"ops": "add,mul,dot", "dtypes": "f16", "devices": "a,b"}.items()] == [True] * 3  # fmt: skip
    assert 'ops = "sub,div"  # ' in in_process("run", "--show-config").stdout


@pytest.mark.parametrize("name", ["GPUBENCH_COLOR", "GPUBENCH_MODE", "GPUBENCH_SESSIONS", "gpubench.toml"])
def test_a_bad_value_names_where_it_stands(in_process, tmp_path, name):
    """One that the command refuses, one that is no number, one of a file."""
    write(tmp_path / "gpubench.toml", "[run]\nbudget = 'soon'\n" if name == "gpubench.toml" else "")
    ended = in_process("run", "--dry-run", "--calls", "3", env={} if name == "gpubench.toml" else {name: "x"})
    assert (ended.returncode, name in ended.stderr.splitlines()[0]) == (2, True), ended.stderr
    assert ("override it with --sessions" in ended.stderr) == ("SESSIONS" in name)


@pytest.mark.parametrize(("platform", "environ", "path"), [
    ("linux", {"HOME": "/h"}, "/h/.config/gpubench/config.toml"), ("win32", {"APPDATA": "/r"}, "/r/gpubench/config.toml"),
    ("linux", {"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/gpubench/config.toml"),
    ("darwin", {"HOME": "/h"}, "/h/Library/Application Support/gpubench/config.toml"),
])  # fmt: skip
def test_the_user_file_of_each_platform(platform, environ, path):
    assert user_file(environ, platform) == Path(path)
    assert user_file({}, platform) is None


@pytest.mark.parametrize(("platform", "name"), [("linux", "XDG_CACHE_HOME"), ("darwin", "HOME")])
def test_a_message_names_the_variable_that_gives_the_cache_folder(monkeypatch, platform, name):
    monkeypatch.setattr(installation.os, "environ", {"XDG_CACHE_HOME": "/x", "HOME": "/h"})
    monkeypatch.setattr(installation.sys, "platform", platform)
    assert installation.cache_variable() == name
