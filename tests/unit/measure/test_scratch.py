"""Scratch folders of killed runs do not pile up; those of living ones stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from gpubench.measure import scratch


def test_only_the_folders_of_the_dead_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = tmp_path / f"gpubench-{ended.pid}-abc"
    living = tmp_path / f"gpubench-{os.getpid()}-abc"
    other = tmp_path / "gpubench-notes-abc"
    for folder in (dead, living, other):
        folder.mkdir()
        (folder / "x.npy").write_bytes(b"x")
    made = scratch.new_folder()
    assert {made, living, other} == set(tmp_path.iterdir())
