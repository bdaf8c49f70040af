"""The examples run as their texts say, against the package as it is."""

import functools
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpubench import kernels
from tests.forking import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def python(*arguments, cwd, **environ):
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment(cwd, environ), capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture
def gpubench_beside(starter, tmp_path):
    """gpubench_beside(SITE, ARGUMENTS): the program where the packages of the folder are installed."""
    return lambda site, *arguments: starter.run(
        *arguments, cwd=tmp_path, env=environment(tmp_path, {"PYTHONPATH": site})
    )


def installed(tmp_path, example):
    """An example's package where Python finds it, with the metadata that pip would write from its pyproject.toml."""
    source = EXAMPLES / example
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


def without(site, *libraries):
    """The same folder, before libraries whose backends tell a test nothing: to import PyTorch takes seconds."""
    for library in libraries:
        (Path(site) / f"{library}.py").write_text("raise ImportError('left out')\n")
    return site


@pytest.fixture
def site(tmp_path):
    return installed(tmp_path, "op_package")


@pytest.fixture
def halves(tmp_path):
    return installed(tmp_path, "backend_package")


def test_the_authors_check_of_an_op_covers_sizes_dtypes_implementations_and_normal_inputs(site, tmp_path):
    done = python(
        "-m", "gpubench.measure.conformance", "leaky_relu", cwd=tmp_path, PYTHONPATH=without(site, "wgpu")
    )
    assert done.returncode == 0, done.stderr + done.stdout
    checked = re.findall(r"^checked leaky_relu/n=(\d+)/(\w+)/(\w+)/resident@numpy:0$", done.stdout, re.M)
    sizes, implementations = ("1", "1000", "1024", "1048576"), ("library", "tuned")
    dtypes = set(kernels.load("relu").dtypes) - {"bfloat16"}
    assert set(checked) == set(itertools.product(sizes, dtypes, implementations))
    for implementation in implementations:
        refused = f"refused leaky_relu/bfloat16/{implementation}/resident@numpy:0: no-dtype\n"
        assert refused in done.stdout, "NumPy has no such arrays; PyTorch's CPU has, where it is installed"
    if importlib.util.find_spec("torch"):
        case = "checked leaky_relu/n={}/bfloat16/library/resident@torch:cpu\n"
        assert all(case.format(n) in done.stdout for n in sizes)
    assert "0 findings" in done.stdout


def test_a_backend_of_another_package_keeps_the_contract(halves, tmp_path):
    fewer = "from gpubench.measure import conformance as c; c.VECTOR_SIZES, c.MATRIX_SIZES, c.LARGE_BYTES = (1, 1000), (17,), 1 << 20"
    done = python("-c", f"{fewer}; raise SystemExit(c.main('halves'))", cwd=tmp_path, PYTHONPATH=halves)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    own_kernel = r"^checked add/n=1000/float16/tuned/resident@halves:0$"
    assert re.search(own_kernel, done.stdout, re.M)


def test_a_backend_of_another_package_is_wherever_ours_are(halves, gpubench_beside):
    gpubench = functools.partial(gpubench_beside, without(halves, "torch", "wgpu"))
    ops = json.loads(gpubench("ops", "--format", "json").stdout)["ops"]
    of_halves = {op["name"]: op["implementations"].get("halves") for op in ops}
    assert (of_halves["add"], of_halves["mul"]) == (["library", "tuned"], ["library"])
    assert "halves" in gpubench("run", "--help").stdout
    assert "did you mean 'halves'?" in gpubench("run", "--backends", "halvs", "--ops", "add").stderr
    machine = json.loads(gpubench("detect", "--format", "json").stdout)
    assert [p["status"] for p in machine["providers"] if p["name"] == "halves"] == ["ok"]
    assert gpubench("detect", "--require", "halves").returncode == 0
    refused = gpubench("detect", "--require", "halves:1")
    assert refused.returncode == 5
    assert "halves has no such device; there are: halves:0" in refused.stderr
    run = "run --ops add --dtypes f64,f32,f16 --sizes 1k,1000,1M --no-progress --check-only --format json --no-save"
    done = gpubench(*run.split())
    assert done.returncode == 0, done.stderr
    for dtype, implementation in itertools.product(("float64", "float32", "float16"), ("library", "tuned")):
        for n in (1000, 1024, 1 << 20):
            assert f"add/n={n}/{dtype}/{implementation}/resident@halves:0" in done.stdout


def test_a_named_kernel_that_a_backend_brings_is_a_variant(halves, gpubench_beside):
    module = Path(halves) / "gpubench_halves.py"
    declared = '(Kernel("halves", add_halves),)'
    assert declared in module.read_text()
    both = '(Kernel("halves", add_halves), Kernel("halves", add_halves, variant="other_half"))'
    module.write_text(module.read_text().replace(declared, both))
    gpubench = functools.partial(gpubench_beside, halves)
    (add,) = [op for op in json.loads(gpubench("ops", "--format", "json").stdout)["ops"] if op["name"] == "add"]
    assert add["variants"]["halves"] == ["default", "other_half"]
    run = "run --ops add,mul --sizes 1k --check-only --no-progress --format json --no-save".split()
    done = gpubench(*run, "--backends", "halves", "--variant", "other_half")
    assert done.returncode == 0, done.stderr
    assert "add/n=1024/float32/tuned-other_half/resident@halves:0" in done.stdout
    assert "mul/n=1024/float32/tuned-other_half" not in done.stdout
    mistyped = gpubench(*run, "--backends", "halves", "--variant", "other_haf")
    assert (mistyped.returncode, mistyped.stdout) == (2, "")
    assert "did you mean 'other_half'?" in mistyped.stderr
    elsewhere = gpubench(*run, "--backends", "numpy", "--variant", "other_half")
    assert elsewhere.returncode == 2, "a backend that was not asked for brings nothing"


def test_the_documented_op_and_the_whole_backend_which_is_short_are_the_examples():
    page = (EXAMPLES.parent / "docs" / "extending.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    assert (EXAMPLES / "op_package" / "gpubench_leaky_relu.py").read_text(encoding="utf-8").endswith(block)
    backend = (EXAMPLES / "backend_package" / "gpubench_halves.py").read_text(encoding="utf-8")
    assert len(list(filter(None, backend.splitlines()))) < 40
    assert f"```python\n{backend}```" in page


def test_an_op_of_another_package_is_listed_and_right(site, gpubench_beside):
    listed = gpubench_beside(site, "ops")
    assert re.search(r"^  leaky_relu ", listed.stdout.partition("activation\n")[2].partition("\n\n")[0], re.M)
    run = "run --ops leaky_relu --sizes 1000 --backends numpy,wgpu? --allow-software --check-only --no-save"
    done = gpubench_beside(site, *run.split(), "--no-progress", "--format", "plain")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "ailed" not in done.stdout


def test_the_policy_example_runs_without_a_measurement_and_with_one(gpubench, tmp_path):
    done = python(str(EXAMPLES / "policy.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no measurement yet" in done.stderr
    assert re.fullmatch(r"trace of the product: -?\d+\.\d{3}\n", done.stdout)
    run = "run --ops matmul --sizes 128,512 --backends numpy --quick --max-time 20ms --no-progress"
    assert gpubench(*run.split()).returncode == 0
    done = python(str(EXAMPLES / "policy.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
