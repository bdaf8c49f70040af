"""Scratch folders of killed runs do not pile up; those of living ones stay, and so does everything else."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from gpubench.measure.scratch import Scratch

_KILLED = """
import os, pathlib, sys, tempfile
tempfile.tempdir = sys.argv[1]
from gpubench.measure.scratch import Scratch
made = Scratch()
(made.folder / "x.npy").write_bytes(b"x")
print(made.folder, flush=True)
if sys.argv[2] == "lives":
    sys.stdin.read()
os._exit(9)
"""


def start(folder, word):
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(folder), word],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_of_the_dead_is_removed_and_one_of_the_living_is_not(temporary):
    killed, orphan = start(temporary, "dies")
    killed.wait()
    living, used = start(temporary, "lives")
    made = Scratch()
    assert sorted(map(str, temporary.iterdir())) == sorted([used, str(made.folder)])
    assert orphan not in map(str, temporary.iterdir())
    living.communicate()
    made.remove()
    assert [str(path) for path in temporary.iterdir()] == [used]


@pytest.mark.parametrize("name", ["gpubench-2026-results", "gpubench-999999-abc", "gpubench-scratch-notes"])
def test_a_folder_that_is_not_ours_stays(temporary, name):
    theirs = temporary / name
    theirs.mkdir()
    (theirs / "x.npy").write_bytes(b"theirs")
    Scratch().remove()
    assert (theirs / "x.npy").read_bytes() == b"theirs"


def test_a_link_to_a_folder_of_ours_is_not_followed(temporary, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    process, orphan = start(elsewhere, "dies")
    process.wait()
    (temporary / "gpubench-scratch-link").symlink_to(orphan)
    Scratch().remove()
    assert (elsewhere / orphan.rpartition("/")[2] / "x.npy").exists()
