"""Standard error that cannot be written: a run measures on, prints its answer and saves its file."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpubench.result import store
from tests.faults.test_hostile_surroundings import shell
from tests.forking import Starter, environment
from tests.unit.report.samples import full_run

RUN = (
    "run", "--devices", "fake:cpu,fake:gpu", "--ops", "add", "--sizes", "1k,4k", "--quick", "--max-samples", "10",
    "-o", "r.json",
)  # fmt: skip


def full_disk() -> tuple[int, Callable[[], object]]:
    return os.open("/dev/full", os.O_WRONLY), lambda: None


def reader_that_never_was() -> tuple[int, Callable[[], object]]:
    reader, writer = os.pipe()
    os.close(reader)
    return writer, lambda: None


def reader_that_leaves() -> tuple[int, Callable[[], object]]:
    reader, writer = os.pipe()

    def leave() -> None:
        os.read(reader, 40)
        os.close(reader)

    return writer, leave


def terminal_that_goes() -> tuple[int, Callable[[], object]]:
    """The live display is drawn there."""
    master, slave = pty.openpty()

    def leave() -> None:
        os.read(master, 40)
        os.close(master)

    return slave, leave


LOST = (full_disk, reader_that_never_was, reader_that_leaves, terminal_that_goes)


def end_of(
    starter: Starter,
    folder: Path,
    lost: Callable[[], tuple[int, Callable[[], object]]],
    *command: str,
    **env: str,
) -> tuple[int, str]:
    """The exit code and the output of a command whose notes go nowhere."""
    notes, leave = lost()
    env = {**environment(folder), "TERM": "xterm", **env}
    env.pop("CI", None)
    with starter.begin(*command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=notes) as process:
        os.close(notes)
        leave()
        output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost.__name__)
@pytest.mark.check
def test_a_run_measures_on_and_prints_its_answer(
    starter: Starter, tmp_path: Path, lost: Callable[[], tuple[int, Callable[[], object]]]
) -> None:
    code, output = end_of(starter, tmp_path, lost, *RUN)
    assert code == 0
    assert "GPU" in output
    assert store.load(tmp_path / "r.json").complete
    assert not (tmp_path / "r.json.part").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("report r.json --columns nothing", 2),
        ("report r.json --columns nothing --verbose", 2),
        ("report r.json --annotations always --min-speedup *=1e6", 3),
        ("report nothing.json", 4),
        ("compare r.json r.json", 0),
        ("merge r.json r.json -o m.json", 4),
        ("noise r.json", 4),
        ("detect --debug", 0),
        ("run --devices fake:nothing", 5),
        ("nothing", 2),
        ("", 2),
    ],
)
def test_every_other_command_ends_as_it_would(
    starter: Starter, tmp_path: Path, command: str, code: int
) -> None:
    (tmp_path / "r.json").write_bytes(store.dumps(full_run()))
    for lost in (full_disk, reader_that_never_was):
        assert end_of(starter, tmp_path, lost, *command.split())[0] == code


def test_the_exit_code_is_the_commands_own(tmp_path: Path) -> None:
    """Python itself ends with 120 where it cannot write at its end what waits for standard error."""
    (tmp_path / "r.json").write_bytes(store.dumps(full_run()))
    for redirection in ("2> /dev/full", "2>&-"):
        assert shell(f"$gpubench report nothing.json {redirection}", tmp_path).returncode == 4
        assert shell(f"$gpubench report r.json {redirection}", tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("command", "encoding"),
    [
        (" ".join([*RUN, "--label", "'\u2192 \u96ea'"]), "ascii:strict"),
        ("report r.json", "cp1252:strict"),
        ("report r.json --format json", "cp1252:strict"),
        ("detect", "ascii:strict"),
        ("detect --json", "cp1252"),
        ("ops", "ascii"),
        ("n\xf6thing\u2192", "cp1252:strict"),
    ],
)
def test_an_encoding_without_a_character_ends_nothing(tmp_path: Path, command: str, encoding: str) -> None:
    run = msgspec.structs.replace(full_run(), label="\u2192 \u96ea")
    (tmp_path / "r.json").write_bytes(store.dumps(run))
    code = shell(f"$gpubench {command} > out 2> notes", tmp_path, PYTHONIOENCODING=encoding).returncode
    notes = (tmp_path / "notes").read_text(encoding.partition(":")[0])
    assert code == (2 if "thing" in command else 0), notes
    assert "Traceback" not in notes
    if command.endswith(("--json", "format json")):
        json.loads((tmp_path / "out").read_text("utf-8"))
