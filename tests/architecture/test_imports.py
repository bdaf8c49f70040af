"""What each command loads, as a user's process sees it: start-up is a promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.base.plugins import wings
from gpubench.cli.options import commands
from gpubench.result.store import save
from tests.unit.report import sides

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
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    ended = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    reported, _, modules = ended.stderr.partition("MODULES")
    assert ended.returncode in (0, 3), reported[-2000:]
    return set(modules.split())


MEASURE, TEMPLATES, DETECT = "gpubench.measure", "gpubench.kernels.templates", "gpubench.detect"
OTHERS = {"psutil", "gpubench.compare.two_runs", "gpubench.fleet.nodes", "typing_extensions", "html"}
ABSENT = {
    "--version": {"typer", "msgspec", "psutil", "argparse", "gpubench.base.errors", "gpubench.cli.exit"},
    "--help": {"msgspec", "psutil", "gpubench.result", MEASURE, "tomllib"},
    "ops": {"psutil", "msgspec", "gpubench.result", MEASURE, DETECT, "gpubench.kernels.contract"},
    "schema": {"psutil", MEASURE, DETECT, TEMPLATES},
    **{f"report base.json --format {name}": {*OTHERS, MEASURE, "json", "gpubench.report.plots"} for name in ("markdown", "json")},
    "detect --sysroot . --format json": {MEASURE}, "merge base.json new.json -o all.json": {"psutil", "typing_extensions", MEASURE},
    "noise base.json": {"psutil"},
    "advise matmul --size 64 --from base.json": {*OTHERS, MEASURE, "gpubench.analysis.policy"},
    **{f"compare base.json new.json --format {name}": {"psutil", MEASURE, TEMPLATES, DETECT} for name in ("plain", "html")},
}  # fmt: skip


@pytest.mark.parametrize("command", ABSENT)
@pytest.mark.check
def test_what_stays_unimported(tmp_path: Path, command: str) -> None:
    for name, run in zip(("base.json", "new.json"), sides.pair(k=10), strict=True):
        save(run, tmp_path / name)
    assert not loaded(command.split(), tmp_path) & (HEAVY | NEVER | ABSENT[command])


@pytest.mark.parametrize("command", commands())
def test_the_help_of_a_command_loads_its_options_alone(tmp_path: Path, command: str) -> None:
    modules = loaded([command, "--help"], tmp_path)
    assert not modules & (HEAVY | NEVER | {"msgspec", "psutil", "tomllib"})
    ours = {name.split(".")[1] for name in modules if name.startswith("gpubench.")}
    assert ours <= {"cli", "base", *wings.OWN}
    of_wings = {name.partition(".")[2] for name in modules if {*name.split(".")[1:2]} & {*wings.OWN}}
    assert of_wings - {"fleet.merge"} == {*wings.OWN, "fleet.options", "multi.options", "energy.options"}


def test_the_package_itself_imports_nothing() -> None:
    program = "import sys; before = set(sys.modules); import gpubench; listed = dir(gpubench); print(*sorted(set(sys.modules) - before)); print(*listed)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    loaded, listed = ended.stdout.splitlines()
    assert loaded == "gpubench"
    assert {"Policy", "bench", "detect", "function", "load", "pair", "run"} <= {*listed.split()}
