"""The folder of a cluster of our own: nobody else enters it, and what a killed run leaves is removed."""

import os
import stat
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest

from gpubench.base.errors import RequiredUnavailable
from gpubench.fleet.node import LOCAL, RayEngine
from gpubench.measure.scratch import MARKER

# Ray as far as it is asked here: it lets everybody write in its folder, as the real one does.
RAY = """
import os
__version__ = "2.60.0"
def init(**how):
    folder = how["_temp_dir"]
    os.makedirs(folder + "/session_1/sockets", exist_ok=True)
    os.chmod(folder, 0o777)
    open(folder + "/session_1/sockets/raylet", "w").close()
def shutdown(): pass
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    ray = types.ModuleType("ray")
    exec(RAY, vars(ray))
    monkeypatch.setitem(sys.modules, "ray", ray)
    return folder


def killed(temporary: Path, site: Path) -> Path:
    """The folder of a cluster whose run was killed."""
    (site / "ray.py").write_text(RAY)
    program = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from gpubench.fleet.node import RayEngine; RayEngine('local'); os.kill(os.getpid(), 9)"
    )
    before = set(temporary.iterdir())
    env = {**os.environ, "PYTHONPATH": str(site)}
    ended = subprocess.run([sys.executable, "-c", program, str(temporary)], env=env, check=False)
    assert ended.returncode == -9
    (folder,) = set(temporary.iterdir()) - before
    return folder


def test_a_private_folder_stands_above_what_ray_opens_for_all(temporary: Path) -> None:
    engine = RayEngine(LOCAL)
    (folder,) = temporary.iterdir()
    about = folder.stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o700, os.geteuid())
    open_for_all = [path for path in folder.rglob("*") if path.stat().st_mode & 0o022]
    assert (bool(open_for_all), folder in open_for_all) == (True, False)
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert token.parent == folder
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    engine.close()
    assert not list(temporary.iterdir())
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ


def test_what_a_killed_run_left_goes_at_the_next_start_and_nothing_else(temporary, tmp_path):
    orphan = killed(temporary, tmp_path)
    living = RayEngine(LOCAL)
    assert not orphan.exists()
    (used,) = temporary.iterdir()
    strangers = [temporary / name for name in ("gb-empty", "gb-notes", "gb-marked")]
    for path in strangers:
        path.mkdir()
    (strangers[1] / "notes").touch()
    (strangers[2] / MARKER).symlink_to(tmp_path)
    if os.geteuid() == 0:  # another user's
        strangers.append(killed(temporary, tmp_path))
        os.chown(strangers[-1], 65534, 65534)
    again = RayEngine(LOCAL)
    assert used.exists()
    assert all(path.exists() for path in strangers)
    for engine in (living, again):
        engine.close()
    assert sorted(temporary.iterdir()) == sorted(strangers)


def test_a_ray_that_does_not_start_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**how: Any) -> None:
        raise RuntimeError("no ports")

    monkeypatch.setattr(sys.modules["ray"], "init", refuse)
    with pytest.raises(RequiredUnavailable):
        RayEngine(LOCAL)
    assert not list(temporary.iterdir())
