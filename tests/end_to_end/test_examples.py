"""The examples run as their texts say, against the package as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def python(*arguments, cwd, **environ):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUBENCH_")}
    clean |= {"XDG_DATA_HOME": str(cwd / "data"), "XDG_CONFIG_HOME": str(cwd / "config"), "HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env={**clean, **environ}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture
def site(tmp_path):
    """The op's package where Python finds it, with the metadata that pip would write from its pyproject.toml."""
    source = EXAMPLES / "op_package"
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = project["name"].replace("-", "_")
    info = tmp_path / "site" / f"{name}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module in source.glob("*.py"):
        (tmp_path / "site" / module.name).write_text(module.read_text(encoding="utf-8"))
    return str(tmp_path / "site")


def test_an_op_of_another_package_is_listed_and_right(site, tmp_path):
    listed = python("-m", "gpubench", "ops", cwd=tmp_path, PYTHONPATH=site)
    assert re.search(r"^leaky_relu +activation ", listed.stdout, re.M)
    done = python(
        "-m", "gpubench", "run", "--ops", "leaky_relu", "--sizes", "1000", "--backends", "numpy,wgpu?",
        "--allow-software", "--check-only", "--no-save", "--no-progress", "--format", "plain",
        cwd=tmp_path, PYTHONPATH=site,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "ailed" not in done.stdout


def test_without_the_package_there_is_no_such_op(tmp_path):
    assert "leaky_relu" not in python("-m", "gpubench", "ops", cwd=tmp_path).stdout
    done = python("-m", "gpubench", "run", "--ops", "leaky_relu", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_package_that_is_broken_costs_its_own_row_only(site, tmp_path):
    (Path(site) / "gpubench_leaky_relu.py").write_text("raise RuntimeError('half an upgrade')\n")
    done = python("-m", "gpubench", "ops", cwd=tmp_path, PYTHONPATH=site)
    assert done.returncode == 0
    assert "matmul" in done.stdout
    assert "leaky_relu" not in done.stdout
    assert "half an upgrade" in done.stderr


def test_the_policy_example_runs_without_a_measurement(tmp_path):
    done = python(str(EXAMPLES / "policy.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no measurement yet" in done.stderr
    assert re.fullmatch(r"trace of the product: -?\d+\.\d{3}\n", done.stdout)


def test_the_policy_example_runs_with_a_measurement(tmp_path):
    measured = python(
        "-m", "gpubench", "run", "--ops", "matmul", "--sizes", "128,512", "--backends", "numpy", "--quick",
        "--max-time", "20ms", "--no-progress", cwd=tmp_path,
    )  # fmt: skip
    assert measured.returncode == 0, measured.stderr
    done = python(str(EXAMPLES / "policy.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
