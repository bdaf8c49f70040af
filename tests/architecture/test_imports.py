"""What each command loads, as a user's process sees it: start-up is a promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.base.plugins import wings
from gpubench.cli.options import commands
from gpubench.result.store import save
from tests.unit.report import sides

FIXTURE = Path(__file__).parents[1] / "unit" / "store" / "fixtures" / "version-4.json"
HEAVY = {
    "numpy", "cupy", "cupyx", "torch", "wgpu", "rich", "altair", "vl_convert", "pynvml", "cpuinfo",
    "threadpoolctl",
}  # fmt: skip
NEVER = {"pydantic", "scipy", "pandas", "matplotlib", "asyncio"}

_PROGRAM = """
import sys
from gpubench.cli import main
code = main(sys.argv[1:])
sys.stdout.flush()
print("MODULES", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def loaded(arguments: list[str], cwd: Path) -> set[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUBENCH_")}
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    reported, _, modules = ended.stderr.partition("MODULES")
    assert ended.returncode == 0, reported[-2000:]
    return set(modules.split())


@pytest.mark.parametrize(
    ("arguments", "also_absent"),
    [
        (["--version"], {"typer", "msgspec", "psutil", "argparse", "gpubench.base.errors", "gpubench.cli.exit"}),
        (["--help"], {"msgspec", "psutil", "gpubench.result", "gpubench.measure", "tomllib"}),
        (["ops"], {"psutil", "msgspec", "gpubench.result", "gpubench.measure", "gpubench.detect", "gpubench.kernels.contract"}),
        (["schema"], {"psutil", "gpubench.measure", "gpubench.detect", "gpubench.kernels.templates"}),
        (["report", str(FIXTURE), "--format", "markdown"], {"psutil", "gpubench.measure", "gpubench.kernels.templates"}),
        (["report", str(FIXTURE), "--format", "json"], {"psutil", "gpubench.measure"}),
        (["detect", "--sysroot", ".", "--format", "json"], {"gpubench.measure"}),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value) if isinstance(value, list) else "",
)  # fmt: skip
@pytest.mark.check
def test_what_stays_unimported(tmp_path: Path, arguments: list[str], also_absent: set[str]) -> None:
    modules = loaded(arguments, tmp_path)
    assert not modules & (HEAVY | NEVER | also_absent)


@pytest.mark.parametrize("command", commands())
def test_the_help_of_a_command_loads_its_options_alone(tmp_path: Path, command: str) -> None:
    modules = loaded([command, "--help"], tmp_path)
    assert not modules & (HEAVY | NEVER | {"msgspec", "psutil", "tomllib"})
    ours = {name.split(".")[1] for name in modules if name.startswith("gpubench.")}
    assert ours <= {"cli", "base", *wings.OWN}
    of_wings = {
        name.partition(".")[2] for name in modules if name.split(".")[1:2] in [[wing] for wing in wings.OWN]
    }
    assert of_wings - {"fleet.merge"} == {*wings.OWN, "fleet.options", "multi.options", "energy.options"}


@pytest.mark.parametrize(
    ("arguments", "also_absent"),
    [
        (["merge", "base.json", "new.json", "-o", "all.json"], {"gpubench.measure"}),
        (["noise", "base.json"], set()),
        (["report", "base.json", "--format", "json"], {"gpubench.compare.two_runs", "gpubench.fleet.nodes"}),
        (
            ["report", "base.json", "--format", "markdown"],
            {"gpubench.compare.two_runs", "gpubench.fleet.nodes"},
        ),
        (
            ["advise", "matmul", "--size", "64", "--from", "base.json"],
            {
                "gpubench.measure",
                "gpubench.compare.two_runs",
                "gpubench.fleet.nodes",
                "gpubench.analysis.policy",
            },
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_reading_result_files_loads_what_it_takes_and_no_array_library(
    tmp_path: Path, arguments: list[str], also_absent: set[str]
) -> None:
    for name, run in zip(("base.json", "new.json"), sides.pair(k=10), strict=True):
        save(run, tmp_path / name)
    assert not loaded(arguments, tmp_path) & (HEAVY | NEVER | also_absent | {"psutil"})


@pytest.mark.parametrize("format", ["plain", "html"])
def test_comparing_loads_what_reporting_does(tmp_path: Path, format: str) -> None:
    for name, run in zip(("base.json", "new.json"), sides.pair(), strict=True):
        save(run, tmp_path / name)
    modules = loaded(["compare", "base.json", "new.json", "--format", format], tmp_path)
    assert not modules & (
        HEAVY | NEVER | {"psutil", "gpubench.measure", "gpubench.kernels.templates", "gpubench.detect"}
    )


def test_the_package_itself_imports_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import gpubench; print(*sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert ended.stdout.split() == ["gpubench"]
