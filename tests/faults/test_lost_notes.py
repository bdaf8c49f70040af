"""Standard error that cannot be written: a run measures on, prints its answer and saves its file."""

import os
import pty
import subprocess

import pytest

from gpubench.result import store
from tests.forking import environment
from tests.unit.report.samples import full_run

RUN = "run --devices fake:cpu,fake:gpu --ops add --sizes 1k,4k --quick --max-samples 10 -o r.json"


def _left(reader, writer):
    """`writer`, whose reader goes after some characters."""

    def leave():
        os.read(reader, 40)
        os.close(reader)

    return writer, leave


# The live display is drawn in a terminal.
LOST = {
    "full disk": lambda: (os.open("/dev/full", os.O_WRONLY), lambda: None),
    "reader that leaves": lambda: _left(*os.pipe()), "terminal that goes": lambda: _left(*pty.openpty())}  # fmt: skip


def end_of(starter, folder, lost, command):
    """The exit code and the output of a command whose notes go nowhere."""
    notes, leave = LOST[lost]()
    env = {**environment(folder), "TERM": "xterm"}
    env.pop("CI", None)
    with starter.begin(*command.split(), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=notes) as process:
        os.close(notes)
        leave()
        output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.check
def test_a_run_measures_on_and_prints_its_answer(starter, tmp_path, lost):
    code, output = end_of(starter, tmp_path, lost, RUN)
    assert (code, "GPU" in output) == (0, True), output
    assert store.load(tmp_path / "r.json").complete
    assert not (tmp_path / "r.json.part").exists()


@pytest.mark.parametrize(("command", "code"), [
    ("report r.json --columns nothing --verbose", 2), ("compare r.json r.json", 0), ("", 2),
    ("report r.json --annotations always --min-speedup *=1e6", 3), ("run --devices fake:nothing", 5)])  # fmt: skip
def test_every_other_command_ends_as_it_would(starter, tmp_path, command, code):
    (tmp_path / "r.json").write_bytes(store.dumps(full_run()))
    assert end_of(starter, tmp_path, "full disk", command)[0] == code
