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
    subprocess.run(["umount", "-l", str(folder)], check=False)


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


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def assert_rescued(ended: subprocess.CompletedProcess[str], wished: Path, places: Path, why: str) -> Path:
    """The report was printed, the message names both places, the cause and the next command; the result is whole."""
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "add" in ended.stdout
    (found,) = [path for path in places.rglob("*.json") if path.stat().st_size]
    last = ended.stderr.split("error:")[-1]
    assert str(wished.name) in last
    assert str(found) in last
    assert why in last
    assert f"gpubench run --append {found}" in last
    run = store.load(found)
    assert run.complete
    assert len(run.sessions) == 3
    assert all(getattr(outcome, "blocks", [1]) for outcome in run.outcomes)
    return found


def test_a_disk_that_fills_up(spoiled: Spoil, disk: Path, tmp_path: Path, gpubench: Any) -> None:
    home = tmp_path / "somebody"
    home.mkdir()
    ended = spoiled(disk, "-o", str(disk / "r.json"), spoil=lambda: fill(disk), home=home)
    found = assert_rescued(ended, disk / "r.json", home, "No space left on device")
    assert gpubench("run", "--append", str(found), "--sessions", "1", "-q").returncode == 0


def test_a_disk_that_turns_read_only(spoiled: Spoil, disk: Path, tmp_path: Path) -> None:
    home = tmp_path / "somebody"
    home.mkdir()

    def freeze() -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(disk)], check=True)

    try:
        ended = spoiled(disk, "-o", str(disk / "r.json"), spoil=freeze, home=home)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "Read-only file system" in ended.stderr
    assert [store.load(path).complete for path in home.rglob("*.json")] == [True]


def test_the_folder_is_deleted(spoiled: Spoil, tmp_path: Path) -> None:
    home, folder = tmp_path / "somebody", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    ended = spoiled(folder, "-o", str(folder / "r.json"), spoil=lambda: shutil.rmtree(folder), home=home)
    assert_rescued(ended, folder / "r.json", home, "No such file or directory")


def test_the_results_folder_is_deleted(spoiled: Spoil, tmp_path: Path) -> None:
    home, folder = tmp_path / "somebody", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    ended = spoiled(
        folder, "--results-dir", str(folder / "results"), spoil=lambda: shutil.rmtree(folder), home=home
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert [store.load(path).complete for path in home.rglob("*.json")] == [True]


def test_a_limit_on_the_size_of_files(spoiled: Spoil, tmp_path: Path) -> None:
    """As `ulimit -f` sets it: no place at all takes the result, and nothing but the result is lost."""
    home, folder, temporary = tmp_path / "somebody", tmp_path / "work", tmp_path / "tmp"
    for path in (home, folder, temporary):
        path.mkdir()
    ended = spoiled(
        folder, "-o", str(folder / "r.json"), spoil=lambda: None, home=home, temporary=temporary,
        largest_file=24 << 10,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "File too large" in ended.stderr
    assert "neither your data folder nor the temporary folder takes it" in ended.stderr
    assert "add" in ended.stdout, "the report is printed all the same"


def test_the_temporary_folder_takes_it_where_the_home_fails_too(
    spoiled: Spoil, disk: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ended = spoiled(disk, "-o", str(disk / "r.json"), spoil=lambda: fill(disk), home=disk, temporary=temporary)
    assert_rescued(ended, disk / "r.json", temporary, "No space left on device")


def test_a_place_that_comes_back_gets_the_result(spoiled: Spoil, disk: Path, tmp_path: Path) -> None:
    home = tmp_path / "somebody"
    home.mkdir()

    def fill_for_a_while() -> None:
        fill(disk)
        time.sleep(0.2)
        (disk / "ballast").unlink()

    ended = spoiled(disk, "--sessions", "4", "-o", str(disk / "r.json"), spoil=fill_for_a_while, home=home)
    assert ended.returncode == 0, ended.stderr
    assert store.load(disk / "r.json").complete
    assert sorted(path.name for path in disk.iterdir()) == ["r.json"]


def test_a_report_that_cannot_be_written_costs_neither_result_nor_screen(
    spoiled: Spoil, disk: Path, tmp_path: Path
) -> None:
    home = tmp_path / "somebody"
    home.mkdir()
    ended = spoiled(
        home, "-o", "r.json", "-o", str(disk / "r.md"), "-o", str(disk / "r.jsonl"), spoil=lambda: fill(disk),
        home=home,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "r.md" in ended.stderr
    assert "r.jsonl" in ended.stderr
    assert "add" in ended.stdout
    assert store.load(home / "r.json").complete
