"""A wing is a folder that nothing imports: without it the program works, and a package brings one as gpubench does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.base import plugins
from gpubench.base.plugins import wings
from tests.faults.packages import copy_gpubench

ROOT = Path(__file__).parents[2]


def program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the copy of gpubench in `folder`, whatever is installed."""
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); from gpubench.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-P", "-c", start, *words], capture_output=True, text=True, timeout=300, cwd=folder,
        env={**os.environ, "GPUBENCH_FAKE": "1", "COLUMNS": "100"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> Path:
    """A copy of the package without all wings; that none needs another one is a contract of the imports."""
    folder = tmp_path_factory.mktemp("without")
    copy_gpubench(folder)
    for name in wings.OWN:
        shutil.rmtree(folder / "gpubench" / name)
    return folder


RUN = ("run", "--devices", "fake:cpu,fake:gpu", "--ops", "add", "--sizes", "1k", "--quick", "-o", "r.json")
EVERYTHING = """
import importlib, pkgutil, gpubench
for module in pkgutil.walk_packages(gpubench.__path__, "gpubench."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_a_program_without_wings_measures_and_reports(without: Path) -> None:
    detect = ("detect", "--sysroot", ".", "--json")
    for words in (RUN, ("report", "r.json"), detect, ("ops",), ("compare", "r.json", "r.json"), ("schema",)):
        ended = program(without, *words)
        assert ended.returncode == 0, (words, ended.stderr)
        assert "the wing" not in ended.stderr
    # No module imports a wing, not even in a function: the import contracts say the rest.
    start = f"import sys; sys.path.insert(0, {str(without)!r})\n{EVERYTHING}"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", start], capture_output=True, text=True, timeout=300, cwd=without
    )
    assert ended.returncode == 0, ended.stderr


# What plans, measures, derives and shows, in seconds.
SAMPLE = (
    "tests/unit/kernels/test_declarations.py::test_the_declaration_is_complete", "tests/unit/measure/test_plan.py",
    "tests/unit/report/test_derived.py", "tests/unit/report/test_formats.py::test_golden",
)  # fmt: skip


# It quotes the folder that is installed, which is not the copy.
INSTALLED = "tests/unit/report/test_charts.py::test_the_command_without_the_libraries_says_how_to_get_them"


@pytest.mark.parametrize("places", [SAMPLE, pytest.param(("tests",), marks=pytest.mark.fuzz, id="all")])
def test_checks_of_the_core_pass_without_all_wings(tmp_path: Path, places: tuple[str, ...]) -> None:
    """Tests of a wing lie in folders of its name, one for each kind of tests."""
    copy = tmp_path / "copy"
    made = (".git", ".venv", ".setup", ".hypothesis", ".*_cache", "*.pyc.*")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*made))
    for wing in wings.OWN:
        for folder in (copy / "gpubench" / wing, *(copy / "tests").glob(f"*/{wing}")):
            shutil.rmtree(folder)
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "check", *places,
         f"--deselect={INSTALLED}"],
        capture_output=True, text=True, timeout=500 if places is SAMPLE else 6000, cwd=copy,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert " passed" in ended.stdout


@pytest.mark.parametrize(("broken", "command", "said"), [
    ("multi/ops.py", ("ops",), "the part gpubench.multi.ops of a wing"),
    ("workloads/stage_assignments.py", RUN, "the part gpubench.workloads.stage_assignments of a wing"),
])  # fmt: skip
def test_a_wing_that_breaks_costs_itself(
    tmp_path: Path, broken: str, command: tuple[str, ...], said: str
) -> None:
    copy_gpubench(tmp_path)
    (tmp_path / "gpubench" / broken).write_text('raise RuntimeError("torn")\n')
    ended = program(tmp_path, *command)
    assert ended.returncode == 0, ended.stderr
    torn = [line for line in ended.stderr.splitlines() if "torn" in line]
    assert torn == [f"warning: {said} cannot be used: RuntimeError: torn"]


OUTSIDE = """
from gpubench.base import streams
from gpubench.cli.declaration import WHAT, option
from gpubench.cli.options import CommonOptions
from gpubench.base.plugins.wings import Wing


class GreetOptions(CommonOptions):
    whom: str = option("NAME", WHAT, "Who is greeted.", default="world", brief=True)
    purpose = "Greet somebody."
    module = "greeting"


def greet(options: GreetOptions) -> int:
    streams.put(f"hello {options.whom}\\n")
    return 0


WING = Wing(commands={"greet": "greeting:GreetOptions"})
"""


def test_another_package_brings_a_command_in_the_same_way(tmp_path: Path) -> None:
    copy_gpubench(tmp_path)
    (tmp_path / "greeting.py").write_text(OUTSIDE)
    info = tmp_path / "greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{plugins.WINGS}]\ngreeting = greeting:WING\n")
    ended = program(tmp_path, "greet", "--whom", "you")
    assert (ended.returncode, ended.stdout) == (0, "hello you\n"), ended.stderr


def test_what_only_a_wing_has_is_unknown_without_it(without: Path) -> None:
    (without / "f.json").write_text(json.dumps({"name": "gpubench-fleet", "schema_version": 2}))
    for words, code, said in (
        (("merge", "a.json", "-o", "b.json"), 2, "there is no command 'merge'"), (("run", "--cluster", "local"), 2, "there is no option --cluster"),
        (("report", "f.json"), 4, "why: "), (("run", "--devices", "fake:cpu", "--ops", "ffn,allreduce"), 2, "'ffn'"),
    ):  # fmt: skip
        ended = program(without, *words)
        ending = (ended.returncode, said in ended.stderr, "Traceback" in ended.stderr)
        assert ending == (code, True, False), ended.stderr
