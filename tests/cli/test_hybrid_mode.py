"""`run --mode`: which sides are planned, what is refused, and what detection is quoted for."""

import json

import pytest

SMALL = ("--ops", "add", "--sizes", "1k", "--regimes", "resident-queued")


@pytest.fixture
def no_gpu(tmp_path):
    """An environment in which CuPy cannot be imported and Vulkan finds no driver."""
    blocked = tmp_path / "blocked"
    for name in ("cupy", "wgpu"):
        (blocked / name).mkdir(parents=True)
        failure = f"raise ImportError('{name} is not installed (a test says so)')\n"
        (blocked / name / "__init__.py").write_text(failure)
    return {"PYTHONPATH": str(blocked)}


@pytest.mark.parametrize("mode", ["gpu", "hybrid"])
def test_a_gpu_that_is_not_there_is_exit_5_with_the_reason(gpubench, no_gpu, mode):
    ended = gpubench("run", *SMALL, "--mode", mode, "--dry-run", env=no_gpu)
    assert ended.returncode == 5
    first, why, fix = ended.stderr.splitlines()[-3:]
    assert f"--mode {mode}: there is no GPU" in first
    assert "a test says so" in why
    assert "gpubench detect" in fix
    bare = "No GPU was found: there is nothing to install" in gpubench("detect", env=no_gpu).stdout
    assert ("nothing to install" in fix) == bare
    assert ended.stdout == ""


def test_backends_that_may_be_absent_and_all_are_say_why(gpubench, no_gpu):
    ended = gpubench("run", *SMALL, "--backends", "cupy?,wgpu?", "--dry-run", env=no_gpu)
    first, why, _ = ended.stderr.splitlines()[-3:]
    assert (ended.returncode, "has a device" in first, why.count("a test says so")) == (5, True, 2)


def test_auto_says_what_detection_recommends_and_takes_it(gpubench, no_gpu):
    reported = json.loads(gpubench("detect", "--json", env=no_gpu).stdout)["recommendation"]
    ended = gpubench("run", *SMALL, "--mode", "auto", "--dry-run", env=no_gpu)
    assert ended.returncode == 0, ended.stderr
    advice = f"{reported['mode']} ({reported['confidence']}): {reported['reasons'][0]['text']}"
    assert f"--mode auto takes {advice}" in ended.stderr
    assert "@numpy:0" in ended.stdout


def test_a_split_that_was_named_is_required_and_auto_leaves_splits_out(gpubench, no_gpu):
    ended = gpubench("run", *SMALL, "--devices", "numpy:0,hybrid:cupy:0", "--dry-run", env=no_gpu)
    assert (ended.returncode, "hybrid:cupy:0" in ended.stderr) == (5, True)
    ended = gpubench("run", *SMALL, "--allow-software", "--dry-run")
    assert (ended.returncode, "hybrid" in ended.stdout) == (0, False), ended.stderr


def test_a_mode_that_contradicts_the_file_is_refused(gpubench, tmp_path):
    made = gpubench("run", *SMALL, "--mode", "cpu", "--check-only", "-o", "r.json")
    assert made.returncode == 0, made.stderr
    more = gpubench("run", "--mode", "hybrid", "--append", "r.json", "--dry-run")
    assert more.returncode == 2
    assert "--mode contradicts --append r.json" in more.stderr
    assert gpubench("run", "--mode", "cpu", "--append", "r.json", "--dry-run").returncode == 0
