"""Where results are put and found again."""

import errno
import os
import re
import shutil
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench.base.errors import UsageError
from gpubench.result import store
from gpubench.result.machine import Cpu, Fact, Gpu, Machine
from gpubench.result.store.files import machine_name
from tests.raising import raised
from tests.unit.store.test_files import failing


def test_the_newest_goes_by_the_time_in_its_name(tmp_path):
    names = ("n/20270101T000000Z-bbbb.json.gz", "m/20260101T000000Z-aaaa.json", "o/20250101T000000Z-c.json", "a.json", "b.json", "mine.json")  # fmt: skip
    for name in (names[1], names[0], names[2]):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "n" / "notes.txt").touch()
    (tmp_path / "o" / "20280101T000000Z-dddd.json").mkdir()
    for seconds, name in ((0, "mine.json"), (200, "a.json"), (100, "b.json")):  # others go by the file's time
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    found = store.newest_first([tmp_path / "absent", tmp_path, tmp_path / "m"])
    assert found == [tmp_path / name for name in names]
    assert store.newest([tmp_path / "absent", tmp_path]) == tmp_path / names[0]
    assert (store.newest([]), store.newest([tmp_path / "absent"])) == (None, None)


def test_a_run_gets_a_path_of_its_own(tmp_path, run):
    run = replace(run, started_at="2026-11-20T20:00:00+01:00")
    path = store.result_path(tmp_path / "results", run)
    assert path == tmp_path / "results" / "cpu-no-gpu-c0ffee" / "20261120T190000Z-123e4567.json"
    store.save(run, path)
    assert store.newest([tmp_path / "results"]) == path
    assert store.result_path(tmp_path / "results", run) == path, "the machine's folder is there by now"


def test_machine_names_are_fit_for_folders():
    cpu = Cpu(model=Fact("Intel(R) Xeon(R) Platinum 8480C @ 2.0GHz/../..", "ok", "proc"))
    gpu = Gpu(id="pci:0", name=Fact("NVIDIA H200", "ok", "nvml"))
    name = machine_name(Machine(cpu=cpu, gpus=[gpu]), "0123456789")
    assert name == "intel-r-xeon-r-platinum-8480c-2-0ghz-nvidia-h200-012345"
    # 40 letters of each model; what is cut ends in no hyphen.
    names = [("C" * 41, "G" * 39 + " 2"), ("c" * 40, "g" * 39)]
    long = [Machine(cpu=Cpu(model=Fact(c, "ok", "p")), gpus=[Gpu(id="0", name=Fact(g, "ok", "p"))])
            for c, g in names]  # fmt: skip
    assert {machine_name(machine, "0123456789") for machine in long} == {f"{'c' * 40}-{'g' * 39}-012345"}


@pytest.mark.parametrize(("platform", "environ", "folder"), [
    ("linux", {"HOME": "/h"}, "/h/.local/share/gpubench"),
    ("linux", {"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/gpubench"),
    ("darwin", {"HOME": "/h"}, "/h/Library/Application Support/gpubench"),
    ("win32", {"USERPROFILE": "/u", "LOCALAPPDATA": "/l"}, "/l/gpubench"),
    ("win32", {"USERPROFILE": "/u"}, "/u/AppData/Local/gpubench")])  # fmt: skip
def test_the_data_folder_of_each_platform(platform, environ, folder):
    assert store.user_data_dir(environ, platform) == Path(folder)


def test_results_stay_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store.default_results_dir({}) == Path("results")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert store.default_results_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/gpubench/results")


def test_a_result_whose_place_fails_goes_to_the_data_folder_then_to_a_temporary_one(tmp_path, run, monkeypatch):
    temporary, data = tmp_path / "tmp", tmp_path / "data"
    temporary.mkdir()
    planted = tmp_path / "planted"
    planted.mkdir()
    (temporary / "gpubench").symlink_to(planted)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    environ = {"HOME": "/h", "XDG_DATA_HOME": str(data)}
    saved = store.rescue(run, environ)
    assert saved.is_relative_to(store.user_data_dir(environ) / "results")
    shutil.rmtree(data)
    data.touch()  # no folder can be made there
    saved = store.rescue(run, environ)
    assert (saved.is_relative_to(temporary), store.load(saved).id) == (True, run.id)
    if os.name != "nt":
        assert stat.S_IMODE(saved.parents[1].stat().st_mode) == 0o700
    assert list(planted.iterdir()) == [], "a link that somebody planted in the shared folder is not followed"
    assert store.rescue(run, environ).parents[1] != saved.parents[1]


def test_a_rescue_that_fails_leaves_no_folder(tmp_path, run, monkeypatch):
    monkeypatch.setattr("gpubench.result.store.files.write_whole", failing(errno.ENOSPC))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert store.rescue(run, {"HOME": str(tmp_path / "home")}) is None
    assert not list(tmp_path.glob("gpubench-*"))


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_folder_that_links_to_itself_or_nowhere_is_refused_before_anything_is_measured(tmp_path, run):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere")
    for name, why in (("loop", "Too many levels"), ("loop/below", "Too many"), ("lost", "leads nowhere")):
        assert why in raised(UsageError, store.check_folder, tmp_path / name).why
    raised(UsageError, store.check_writable, tmp_path / "loop")
    results = tmp_path / "results"
    store.check_result_path(results, run)
    results.mkdir()
    folder = store.result_path(results, run).parent
    folder.rmdir()
    folder.touch()
    assert "is not a folder" in raised(UsageError, store.check_result_path, results, run).why


@pytest.mark.parametrize("started_at", ["2026-11-20T19:00:00Z", "yesterday", "9999-12-31T23:59:59-14:00"])
def test_a_result_has_a_name_whatever_its_time_reads(tmp_path, run, started_at):
    named = store.result_name(replace(run, started_at=started_at))
    assert re.fullmatch(r"\d{8}T\d{6}Z-123e4567\.json", named), named


def test_suffixes_are_compared_without_case(tmp_path, run):
    for name in ("a.JSON", "b.Json.GZ"):
        assert store.is_result_name(name)
        store.save(run, tmp_path / name)
        assert store.load(tmp_path / name).id == run.id
    for name in ("._a.json", ".ipynb_checkpoints/a-checkpoint.json"):  # of macOS and of Jupyter
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert (tmp_path / "b.Json.GZ").read_bytes().startswith(b"\x1f\x8b")
    assert {path.name for path in store.newest_first([tmp_path])} == {"a.JSON", "b.Json.GZ"}
    assert not store.is_result_name("a.md")
