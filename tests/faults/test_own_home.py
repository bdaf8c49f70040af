"""Tests neither read nor touch what the user of this machine keeps: settings, results, caches."""

import os
import subprocess
import sys
from pathlib import Path

from gpubench.base import installation
from gpubench.result import store
from tests.forking import outside
from tests.unit.report.samples import full_run

ROOT = Path(__file__).parents[2]
# Each looks for settings or results where no folder is named; all failed where a user had kept some. The folders lie
# where both `HOME` and the variables of XDG point, so a test that reads either of them meets what is planted.
LOOKING = (
    "tests/faults/test_hostile_surroundings.py::test_a_deleted_working_folder[report-4]",
    "tests/unit/report/test_command.py::test_no_result_at_all",
)
SETTINGS = "[run]\nsessions = 'none'\n[report]\nformat = 'none'\n"


def test_what_the_user_keeps_changes_no_test(tmp_path):
    user = tmp_path / "user"
    folders = {
        name: user / folder
        for name, folder in (
            ("XDG_CONFIG_HOME", ".config"), ("XDG_DATA_HOME", ".local/share"), ("XDG_CACHE_HOME", ".cache"),
        )
    }  # fmt: skip
    env = {**outside(), "HOME": str(user), **{name: str(path) for name, path in folders.items()}}
    planted = {
        folders["XDG_CONFIG_HOME"] / "gpubench" / "config.toml": SETTINGS.encode(),
        folders["XDG_DATA_HOME"] / "gpubench" / "results" / "r.json": store.dumps(full_run()),
        folders["XDG_CACHE_HOME"] / "gpubench" / "planted": b"",
    }
    for path, data in planted.items():
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *LOOKING],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert {path: path.read_bytes() for path in user.rglob("*") if path.is_file()} == planted


def test_each_test_has_folders_of_its_own(home):
    assert list(home.iterdir()) == []
    assert store.user_data_dir().is_relative_to(home)
    configuration = installation.user_folder(installation.CONFIGURATION, os.environ, sys.platform)
    assert configuration is not None
    assert configuration.is_relative_to(home)
