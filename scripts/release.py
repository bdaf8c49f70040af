"""Make a release: `make release VERSION=0.1.0`. Add `ARGS=--dry-run` to try all steps without a change.

The files are built from a copy of the sources with the new version and date, and checked in a clean
environment. After that the checkout gets a commit and a tag. Nothing is pushed or uploaded: the script prints
the commands for that at the end.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The files and folders of the source archive.
SOURCES = ("gpubench", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "pyproject.toml")
INIT, CHANGELOG = "gpubench/__init__.py", "CHANGELOG.md"
MOST_LINES = 30  # the largest number of lines of a release in the changelog
SMALL = ("--ops", "add", "--sizes", "1k", "--backends", "numpy", "--quick", "--max-samples", "5")
# The first commands of a user of the release. None of them needs a GPU.
HEADLINES: tuple[tuple[str, ...], ...] = (
    ("--version",), ("detect",), ("run", *SMALL, "-o", "result.json"),
    ("report", "result.json", "--format", "markdown"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the release that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="as 0.1.0; the newest section of the changelog has it")
    parser.add_argument("--dry-run", action="store_true", help="build and check, but commit and tag nothing")
    parser.add_argument("--offline", action="store_true", help="take what gpubench needs from this environment")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")
    options = parser.parse_args(arguments)
    version, day = options.version, datetime.now(UTC).date().isoformat()
    notes = release_notes((ROOT / CHANGELOG).read_text(encoding="utf-8"), version)
    if not options.dry_run:
        require_ready(version)
    with tempfile.TemporaryDirectory(prefix="gpubench-release-") as folder:
        copy = Path(folder) / "source"
        copy_sources(copy)
        set_version(copy, version, day)
        files = build(copy, options.dist)
        check(next(file for file in files if file.suffix == ".whl"), version, Path(folder), options.offline)
    if options.dry_run:
        print(f"{version} can be released: {', '.join(file.name for file in files)} in {options.dist}")
        return
    set_version(ROOT, version, day)
    run("git", "commit", "--quiet", "--message", f"gpubench {version}", INIT, CHANGELOG)
    run(
        "git",
        "tag",
        "--annotate",
        f"v{version}",
        "--cleanup=whitespace",
        "--message",
        f"gpubench {version}\n\n{notes}",
    )
    print(
        f"gpubench {version} is committed and tagged here. Nothing was pushed; these commands publish it:\n"
        f"  git push origin HEAD:main v{version}\n"
        f"  python -m twine upload {' '.join(str(file) for file in files)}"
    )


def release_notes(changelog: str, version: str) -> str:
    """Return the section of this version in the changelog.

    Ends the program if the section is not the newest one, or has more than MOST_LINES lines.
    """
    sections = re.split(r"^## \[", changelog, flags=re.M)
    if len(sections) < 2 or not sections[1].startswith(f"{version}] - "):
        fail(f"{CHANGELOG} has no newest section [{version}]", "write it first: it is the text of the release")
    notes = sections[1].partition("\n")[2].strip()
    count = sum(bool(line) for line in notes.splitlines())
    if count > MOST_LINES:
        fail(
            f"the section of {version} has {count} lines",
            f"cut it to {MOST_LINES}: one line for what a user notices",
        )
    return notes


def require_ready(version: str) -> None:
    """End the program if the checkout has changes, is not on the branch main, or has the tag of this version."""
    if run("git", "status", "--porcelain"):
        fail("the checkout has changes that are not committed", "commit or remove them")
    if run("git", "branch", "--show-current") != "main":
        fail("the checkout is not on the branch main", "git switch main")
    if run("git", "tag", "--list", f"v{version}"):
        fail(f"the tag v{version} is there already", "a release is never made anew: take the next number")


def copy_sources(folder: Path) -> None:
    """Copy the files of the source archive to `folder`."""
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


def set_version(folder: Path, version: str, day: str) -> None:
    """Write the version into the package in `folder`, and the date into the newest section of its changelog."""
    for name, pattern, text in (
        (INIT, r'^__version__ = ".*"$', f'__version__ = "{version}"'),
        (CHANGELOG, r"^## \[.*$", f"## [{version}] - {day}"),
    ):
        path = folder / name
        path.write_text(
            re.sub(pattern, text, path.read_text(encoding="utf-8"), count=1, flags=re.M), encoding="utf-8"
        )


def build(source: Path, dist: Path) -> list[Path]:
    """Build the source archive and the wheel in the folder `dist`, and return their paths."""
    dist.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(source / "dist"), str(source))
    return [Path(shutil.copy(file, dist)) for file in sorted((source / "dist").iterdir())]


def check(wheel: Path, version: str, folder: Path, offline: bool) -> None:
    """Install the wheel in a clean environment in `folder`, and run the first commands of a new user."""
    home = folder / "a clean home"
    run(sys.executable, "-m", "venv", *(["--without-pip"] if offline else []), str(home / "venv"))
    programs = home / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [sys.executable, "-m", "pip", f"--python={programs / 'python'}", "install", "--quiet"]
    if offline:
        run(*pip, "--no-deps", "--no-index", str(wheel.resolve()))
        packages = next((home / "venv").glob("[lL]ib/**/site-packages"))
        (packages / "offline.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    else:
        run(*pip, str(wheel.resolve()))
    for command in HEADLINES:
        shown = run(str(programs / "gpubench"), *command, cwd=home)
        print(f"gpubench {' '.join(command)}: {len(shown.splitlines())} lines")
        if command == ("--version",) and shown != f"gpubench {version}":
            fail(f"the installed program is {shown!r}", f"it should be gpubench {version}")


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command and return its stdout. `cwd` is its folder, or None for the checkout. Ends the program if
    the command fails."""
    ended = subprocess.run(command, cwd=cwd or ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        fail(f"{' '.join(command)} ended with {ended.returncode}", (ended.stderr or ended.stdout)[-2000:])
    return ended.stdout.strip()


def fail(what: str, remedy: str) -> None:
    """End the program with a message that states what is wrong and what to do."""
    sys.exit(f"error: {what}\n  fix: {remedy}")


if __name__ == "__main__":
    main()
