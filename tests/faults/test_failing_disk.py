"""A disk that fails during the run: it measures on, prints the report, and saves where there is room."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubench.result import store
from tests.forking import Starter, environment

PLAN = (
    "--devices", "fake:cpu,fake:gpu", "--ops", "add,mul", "--sizes", "1k,64k", "--sessions", "3", "--regimes", "resident,transfer-once",
    "--min-samples", "5", "--max-samples", "10",
)  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, which tests fill or turn read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root; the file-size limit is tested without it")
    yield folder
    while subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False).returncode == 0:
        pass  # a second mount makes it read-only


Spoil = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def spoiled(starter: Starter) -> Spoil:
    """A run whose place is spoiled once it has measured something."""

    def ended(
        folder: Path, *arguments: str, spoil: Callable[[], None], home: Path, temporary: Path | None = None,
        largest_file: int | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        process = starter.begin(
            "run", *PLAN, *arguments, "--no-progress", cwd=home,
            env=environment(home, {"TMPDIR": str(temporary)} if temporary else {}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if largest_file is not None:  # a program that starts under a limit would start its workers too
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
        until = time.monotonic() + 100
        while not any(folder.rglob("*.part")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        spoil()
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    return ended


def no_space(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def read_only(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)], check=True)


def no_space_for_a_while(folder: Path) -> None:
    no_space(folder)
    time.sleep(0.2)
    (folder / "ballast").unlink()


# What becomes of the place, whether that is a disk of its own, options, and what the message names as the cause.
SPOILED: dict[str, tuple[Callable[[Path], None], bool, tuple[str, ...], str]] = {
    "a disk that fills up": (no_space, True, ("-o", "{place}/r.json"), "No space left on device"),
    "a disk that turns read-only": (read_only, True, ("-o", "{place}/r.json"), "Read-only file system"),
    "a folder that is deleted": (shutil.rmtree, False, ("-o", "{place}/r.json"), "No such file or directory"),
    "a results folder that is deleted": (shutil.rmtree, False, ("--results-dir", "{place}/results"), "No such file or directory"),
    "a home that fails too": (no_space, True, ("-o", "{place}/r.json"), "No space left on device"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_the_result_is_rescued_and_the_message_names_both_places(
    spoiled: Spoil, request: pytest.FixtureRequest, tmp_path: Path, gpubench: Any, name: str
) -> None:
    """The report is printed, the message tells the cause and the next command; the result is whole."""
    spoil, own_disk, options, why = SPOILED[name]
    place = request.getfixturevalue("disk") if own_disk else folder_of(tmp_path, "work")
    home, temporary = folder_of(tmp_path, "somebody"), folder_of(tmp_path, "tmp")
    places = temporary if name == "a home that fails too" else home
    ended = spoiled(
        place, *(option.format(place=place) for option in options), spoil=lambda: spoil(place),
        home=place if places == temporary else home, temporary=temporary,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "add" in ended.stdout
    (found,) = [path for path in places.rglob("*.json") if path.stat().st_size]
    last = ended.stderr.split("error:")[-1]
    assert Path(options[1]).name in last
    assert str(found) in last
    assert why in last
    assert f"gpubench run --append {found}" in last
    run = store.load(found)
    assert (run.complete, len(run.sessions)) == (True, 3)
    assert all(getattr(outcome, "blocks", [1]) for outcome in run.outcomes)
    if name == "a disk that fills up":
        assert gpubench("run", "--append", str(found), "--sessions", "1", "-q").returncode == 0


def folder_of(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_a_limit_on_the_size_of_files(spoiled: Spoil, tmp_path: Path) -> None:
    """As `ulimit -f` sets it: no place at all takes the result, and nothing but the result is lost."""
    home, folder, temporary = (folder_of(tmp_path, name) for name in ("somebody", "work", "tmp"))
    ended = spoiled(
        folder, "-o", str(folder / "r.json"), spoil=lambda: None, home=home, temporary=temporary,
        largest_file=24 << 10,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "File too large" in ended.stderr
    assert "neither your data folder nor the temporary folder takes it" in ended.stderr
    assert "add" in ended.stdout, "the report is printed all the same"


def test_a_place_that_comes_back_gets_the_result(spoiled: Spoil, disk: Path, tmp_path: Path) -> None:
    home = folder_of(tmp_path, "somebody")
    ended = spoiled(
        disk, "--sessions", "4", "-o", str(disk / "r.json"), spoil=lambda: no_space_for_a_while(disk), home=home
    )
    assert ended.returncode == 0, ended.stderr
    assert store.load(disk / "r.json").complete
    assert sorted(path.name for path in disk.iterdir()) == ["r.json"]


def test_a_report_that_cannot_be_written_costs_neither_result_nor_screen(
    spoiled: Spoil, disk: Path, tmp_path: Path
) -> None:
    home = folder_of(tmp_path, "somebody")
    ended = spoiled(
        home, "-o", "r.json", "-o", str(disk / "r.md"), "-o", str(disk / "r.jsonl"), spoil=lambda: no_space(disk),
        home=home,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "r.md" in ended.stderr
    assert "r.jsonl" in ended.stderr
    assert "add" in ended.stdout
    assert store.load(home / "r.json").complete
