"""Every op in every dtype is right at the top of its ladder, where sums are longest and a count may exceed a dtype.

The command is `gpubench run --check-only --ops all,layers,network --dtypes float32,float64,float16,bfloat16`, which a
machine with a GPU runs as it stands. Here the CPU and a software adapter take those that take little.
"""

import json

import pytest

from gpubench import kernels

OPS = [
    name
    for name in kernels.names()
    if (op := kernels.load(name)).overhead is None and op.collective is None
]  # fmt: skip
# What the plan says of a case that cannot be: these are no reasons of the check.
USUAL = {"no-dtype", "no-implementation", "too-slow", "out-of-memory", "limit", "shape"}
# Ops of more (matrices, networks, images) are what made these tests long: `conv2d` alone takes 35 s of two cores, four
# ops of vectors and rows 3 s together. Their sums at the top are those of `linear` and its gradients, which are here.
MOST_FLOPS = 5e9


def tops(names):
    return [part for name in names for part in ("--sizes", f"{name}={kernels.load(name).sizes.high}")]


def fits(name, dtype):
    op = kernels.load(name)
    return dtype in op.dtypes and op.flops({"n": op.sizes.high}) <= MOST_FLOPS


def check(gpubench, tmp_path, names, *arguments):
    """Check the tops of these ops; return the ops of which a case was right, and those of no case."""
    ended = gpubench(
        "run", "--check-only", "--ops", ",".join(names), *tops(names), *arguments, "-o", "r.json", timeout=3000
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcomes = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    assert {outcome["reason"] for outcome in outcomes if outcome["type"] != "measurement"} <= USUAL
    return {outcome["case"]["op"] for outcome in outcomes if outcome["type"] == "measurement"}


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_cpu_is_right_at_the_top_of_every_ladder(gpubench, tmp_path, dtype):
    names = [name for name in OPS if fits(name, dtype)]
    assert check(gpubench, tmp_path, names, "--backends", "numpy", "--dtypes", dtype) == {*names}


@pytest.mark.fuzz
@pytest.mark.vulkan
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_webgpu_is_right_at_the_top_of_every_ladder(gpubench, tmp_path, dtype):
    names = [name for name in OPS if fits(name, dtype) and kernels.load(name).tuned.get("wgpu")]
    assert check(gpubench, tmp_path, names, "--backends", "numpy,wgpu", "--allow-software", "--dtypes", dtype)


def test_a_mean_over_65536_rows_in_float16_is_right(gpubench, tmp_path):
    """One of the tops that were wrong; the long tests hold all of them."""
    names = ["cross_entropy"]
    assert check(gpubench, tmp_path, names, "--backends", "numpy", "--dtypes", "float16") == {*names}
