"""What the release page counts on: a changelog whose newest section is the version, and Pythons that are tried."""

import functools
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpubench import __version__
from tests.scripts import script

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## \[([^]]+)\] - (\S+)$", CHANGELOG, re.M)

pytestmark = pytest.mark.check


def test_the_newest_section_is_this_version() -> None:
    assert SECTIONS
    assert SECTIONS[0][0] == __version__
    assert len(re.findall(r"^## ", CHANGELOG, re.M)) == len(SECTIONS)


def test_every_python_that_the_package_names_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {found for text in project["classifiers"] if (found := text.rpartition(":: ")[2]).startswith("3.")}
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    assert set(jobs["linux"]["strategy"]["matrix"]["python"]) == named
    assert min(named, key=lambda text: int(text[2:])) == project["requires-python"].removeprefix(">=")
    elsewhere = jobs["elsewhere"]["strategy"]["matrix"]
    assert set(elsewhere["python"]) <= named
    assert {re.sub(r"-.*", "", system) for system in elsewhere["os"]} == {"macos", "windows"}


@pytest.mark.parametrize("broken", [None, "not committed"])
def test_a_release_is_committed_and_tagged_and_pushed_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str | None
) -> None:
    module = script("release")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "build", lambda source, dist: [dist / "gpubench_cli-1.0.0-py3-none-any.whl"])
    monkeypatch.setattr(module, "check", lambda *_: None)
    git = functools.partial(module.run, "git", cwd=tmp_path)
    for name in module.SOURCES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("") if "." in name else (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "gpubench" / "__init__.py").write_text('__version__ = "0.9.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [1.0.0] - unreleased\n\n- first\n")
    git("init", "--quiet", "--initial-branch", "main")
    for name, value in (("user.name", "a"), ("user.email", "a@example.org")):
        git("config", name, value)
    git("add", ".")
    git("commit", "--quiet", "--message", "before")
    if broken:
        (tmp_path / "new").touch()
        with pytest.raises(SystemExit, match=broken):
            module.main(["1.0.0", "--dist", str(tmp_path / "dist")])
        assert git("log", "--format=%s") == "before"
        return
    module.main(["1.0.0", "--dist", str(tmp_path / "dist")])
    assert git("log", "--format=%s").splitlines() == ["gpubench 1.0.0", "before"]
    assert git("tag", "--list", "-n9").split() == ["v1.0.0", "gpubench", "1.0.0", "-", "first"]
    assert '__version__ = "1.0.0"' in git("show", "v1.0.0:gpubench/__init__.py")
    assert git("show", "v1.0.0:CHANGELOG.md").startswith(f"## [1.0.0] - {datetime.now(UTC).date()}")
    assert git("status", "--porcelain") == ""
    assert "git push origin HEAD:main v1.0.0" in capsys.readouterr().out
