"""A temporary folder without room costs the cases that need it, and the reason names the folder and the remedy."""

import subprocess

import pytest

from gpubench.result import store
from gpubench.result.run import Failure


@pytest.fixture
def temporary(tmp_path):
    """A temporary folder of 256 KiB."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)],
                             capture_output=True, check=False)  # fmt: skip
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.parametrize("size", ["64k", "4M"])  # written as a file, and through memory
def test_a_reference_that_the_temporary_folder_does_not_take(gpubench, tmp_path, temporary, size):
    ended = gpubench("run", "--devices", "fake:cpu", "--ops", "add", "--sizes", f"1k,{size}", "--quick",
                     "--max-samples", "5", "--min-samples", "5", "--no-progress", "-o", "r.json",
                     env={"TMPDIR": str(temporary)})  # fmt: skip
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    outcomes = store.load(tmp_path / "r.json").outcomes
    failure = next(outcome for outcome in outcomes if isinstance(outcome, Failure))
    assert f"the temporary folder {temporary} does not take the reference" in failure.detail
    assert "No space left on device" in failure.detail
    assert failure.hint.startswith("free some space there, or name another folder in TMPDIR")
    assert not list(temporary.iterdir())
