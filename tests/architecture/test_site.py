"""The pages build as a site, without a warning: no broken anchor, nothing that the theme cannot show."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The site of mkdocs.yml and docs/ in `folder`. Not `--quiet`: mkdocs counts no warning that it does not print."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = {path.parent.name or "index" for path in (tmp_path / "site").rglob("index.html")}
    assert {"troubleshooting", "measuring", "cli", "reading-the-report"} <= pages
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in ("troubleshooting", "extending", "comparing"):
        assert f'href="{page}/"' in front
