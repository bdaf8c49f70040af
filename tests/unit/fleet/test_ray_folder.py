"""The folder of a cluster of our own: nobody else enters it."""

import os
import stat
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest

from gpubench.base.errors import RequiredUnavailable
from gpubench.fleet.node import LOCAL, RayEngine

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


def test_a_ray_that_does_not_start_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**how: Any) -> None:
        raise RuntimeError("no ports")

    monkeypatch.setattr(sys.modules["ray"], "init", refuse)
    with pytest.raises(RequiredUnavailable):
        RayEngine(LOCAL)
    assert not list(temporary.iterdir())
