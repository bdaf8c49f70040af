"""Standard error that cannot be written: a run measures on, prints its answer and saves its file."""

import json
import os
import pty
import subprocess

import msgspec
import pytest

from gpubench.result import store
from tests.faults.test_hostile_surroundings import shell
from tests.forking import environment
from tests.unit.report.samples import full_run

RUN = "run --devices fake:cpu,fake:gpu --ops add --sizes 1k,4k --quick --max-samples 10 -o r.json"


def full_disk():
    return os.open("/dev/full", os.O_WRONLY), lambda: None


def reader_that_never_was():
    reader, writer = os.pipe()
    os.close(reader)
    return writer, lambda: None


def _left(reader, writer):
    """`writer`, whose reader goes after some characters."""

    def leave():
        os.read(reader, 40)
        os.close(reader)

    return writer, leave


def reader_that_leaves():
    return _left(*os.pipe())


def terminal_that_goes():
    """The live display is drawn there."""
    return _left(*pty.openpty())


LOST = (full_disk, reader_that_never_was, reader_that_leaves, terminal_that_goes)


def end_of(starter, folder, lost, command):
    """The exit code and the output of a command whose notes go nowhere."""
    notes, leave = lost()
    env = {**environment(folder), "TERM": "xterm"}
    env.pop("CI", None)
    with starter.begin(*command.split(), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=notes) as process:
        os.close(notes)
        leave()
        output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost.__name__)
@pytest.mark.check
def test_a_run_measures_on_and_prints_its_answer(starter, tmp_path, lost):
    code, output = end_of(starter, tmp_path, lost, RUN)
    assert code == 0
    assert "GPU" in output
    assert store.load(tmp_path / "r.json").complete
    assert not (tmp_path / "r.json.part").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("report r.json --columns nothing", 2), ("report r.json --columns nothing --verbose", 2),
        ("report r.json --annotations always --min-speedup *=1e6", 3), ("report nothing.json", 4),
        ("compare r.json r.json", 0), ("merge r.json r.json -o m.json", 4), ("noise r.json", 4), ("detect --debug", 0),
        ("run --devices fake:nothing", 5), ("nothing", 2), ("", 2),
    ],
)  # fmt: skip
def test_every_other_command_ends_as_it_would(starter, tmp_path, command, code):
    (tmp_path / "r.json").write_bytes(store.dumps(full_run()))
    assert end_of(starter, tmp_path, full_disk, command)[0] == code


def test_the_exit_code_is_the_commands_own(tmp_path):
    """Python itself ends with 120 where it cannot write at its end what waits for standard error."""
    assert shell("$gpubench report nothing.json 2> /dev/full", tmp_path).returncode == 4


@pytest.mark.parametrize(
    ("command", "encoding"),
    [
        (f"{RUN} --label '\u2192 \u96ea'", "ascii:strict"), ("report r.json", "cp1252:strict"),
        ("report r.json --format json", "cp1252:strict"), ("detect --json", "cp1252"), ("n\xf6thing\u2192", "cp1252:strict"),
    ],
)  # fmt: skip
def test_an_encoding_without_a_character_ends_nothing(tmp_path, command, encoding):
    (tmp_path / "r.json").write_bytes(store.dumps(msgspec.structs.replace(full_run(), label="\u2192 \u96ea")))
    code = shell(f"$gpubench {command} > out 2> notes", tmp_path, PYTHONIOENCODING=encoding).returncode
    notes = (tmp_path / "notes").read_text(encoding.partition(":")[0])
    assert code == (2 if "thing" in command else 0), notes
    assert "Traceback" not in notes
    if command.endswith(("--json", "format json")):
        json.loads((tmp_path / "out").read_text("utf-8"))
