"""Where results are put and found again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from gpubench import store
from gpubench.model.machine import Cpu, Fact, Gpu, Machine
from gpubench.model.result import Run
from gpubench.store.files import machine_name


def test_the_newest_goes_by_the_time_in_its_name(tmp_path: Path) -> None:
    for name in (
        "m/20260101T000000Z-aaaa.json",
        "n/20270101T000000Z-bbbb.json.gz",
        "o/20250101T000000Z-c.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "n" / "notes.txt").touch()
    (tmp_path / "o" / "20280101T000000Z-dddd.json").mkdir()
    old = tmp_path / "mine.json"
    old.touch()
    os.utime(old, (0, 0))
    found = store.newest([tmp_path / "absent", tmp_path])
    assert found == tmp_path / "n" / "20270101T000000Z-bbbb.json.gz"


def test_other_names_go_by_file_time(tmp_path: Path) -> None:
    for seconds, name in ((200, "a.json"), (100, "b.json")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    assert store.newest([tmp_path]) == tmp_path / "a.json"


def test_nothing_is_none(tmp_path: Path) -> None:
    assert store.newest([]) is None
    assert store.newest([tmp_path, tmp_path / "absent"]) is None


def test_a_run_gets_a_path_of_its_own(tmp_path: Path, run: Run) -> None:
    run = msgspec.structs.replace(run, started_at="2026-11-20T20:00:00+01:00")
    path = store.result_path(tmp_path / "results", run)
    assert path == tmp_path / "results" / "cpu-no-gpu-c0ffee" / "20261120T190000Z-123e4567.json"
    store.save(run, path)
    assert store.newest([tmp_path / "results"]) == path
    assert store.result_path(tmp_path / "results", run) == path, "the machine's folder is there by now"


def test_machine_names_are_fit_for_folders() -> None:
    cpu = Cpu(model=Fact("Intel(R) Xeon(R) Platinum 8480C @ 2.0GHz/../..", "ok", "proc"))
    gpu = Gpu(id="pci:0", name=Fact("NVIDIA H200", "ok", "nvml"))
    name = machine_name(Machine(cpu=cpu, gpus=[gpu]), "0123456789")
    assert name == "intel-r-xeon-r-platinum-8480c-2-0ghz-nvidia-h200-012345"
    # 40 letters of each model; what is cut ends in no hyphen.
    names = [("C" * 41, "G" * 39 + " 2"), ("c" * 40, "g" * 39)]
    long = [
        Machine(cpu=Cpu(model=Fact(c, "ok", "p")), gpus=[Gpu(id="0", name=Fact(g, "ok", "p"))])
        for c, g in names
    ]
    assert {machine_name(machine, "0123456789") for machine in long} == {f"{'c' * 40}-{'g' * 39}-012345"}


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", {"HOME": "/h"}, "/h/.local/share/gpubench"),
        ("linux", {"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/gpubench"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Application Support/gpubench"),
        ("win32", {"USERPROFILE": "/u", "LOCALAPPDATA": "/l"}, "/l/gpubench"),
        ("win32", {"USERPROFILE": "/u"}, "/u/AppData/Local/gpubench"),
    ],
)
def test_the_data_folder_of_each_platform(platform: str, environ: dict[str, str], folder: str) -> None:
    assert store.user_data_dir(environ, platform) == Path(folder)


def test_results_stay_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert store.default_results_dir({}) == Path("results")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert store.default_results_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/gpubench/results")


def test_all_results_the_newest_first_and_each_once(tmp_path: Path) -> None:
    names = ["m/20260101T000000Z-aaaa.json", "m/20270101T000000Z-bbbb.json", "20250101T000000Z-cccc.json.gz"]
    (tmp_path / "m").mkdir()
    for name in names:
        (tmp_path / name).touch()
    found = store.newest_first([tmp_path, tmp_path / "m"])
    assert found == [tmp_path / names[1], tmp_path / names[0], tmp_path / names[2]]


def test_a_result_whose_place_fails_goes_to_the_data_folder_then_to_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    places = list(store.rescue_dirs({"HOME": "/h", "XDG_DATA_HOME": str(tmp_path / "data")}))
    assert places[-1] == tmp_path / "tmp" / "gpubench" / "results"
    assert places[0] == store.user_data_dir({"HOME": "/h", "XDG_DATA_HOME": str(tmp_path / "data")}) / "results"
    assert len(places) == 2
