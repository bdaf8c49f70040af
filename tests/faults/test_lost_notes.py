"""Standard error that cannot be written: a run measures on, prints its answer and saves its file."""

import os
import pty
import subprocess

import pytest

from gpubench.result import store
from tests.forking import environment
from tests.unit.report.samples import full_run

RUN = "run --devices fake:cpu,fake:gpu --ops add --sizes 1k,4k --quick --max-samples 10 -o r.json"


def full_disk():
    return os.open("/dev/full", os.O_WRONLY), lambda: None


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


LOST = (full_disk, reader_that_leaves, terminal_that_goes)


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


@pytest.mark.parametrize(("command", "code"), [
    ("report r.json --columns nothing --verbose", 2), ("compare r.json r.json", 0), ("", 2),
    ("report r.json --annotations always --min-speedup *=1e6", 3), ("run --devices fake:nothing", 5)])  # fmt: skip
def test_every_other_command_ends_as_it_would(starter, tmp_path, command, code):
    (tmp_path / "r.json").write_bytes(store.dumps(full_run()))
    assert end_of(starter, tmp_path, full_disk, command)[0] == code
