"""Shell completion: the script that a shell loads, and what the program answers it."""

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = [
    sys.executable, "-c", "import sys; sys.argv[0] = 'gpubench'; from gpubench.cli import main; sys.exit(main())",
]  # fmt: skip


def program(*arguments, **environ):
    env = {**os.environ, **environ}
    return subprocess.run([*PROGRAM, *arguments], env=env, capture_output=True, text=True, check=False)


def test_zsh_and_fish_get_the_help_beside_the_name():
    asked = {"_TYPER_COMPLETE_ARGS": "gpubench rep"}
    assert "Render saved results" in program(_GPUBENCH_COMPLETE="complete_zsh", **asked).stdout
    answer = program(_GPUBENCH_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **asked).stdout
    assert answer.startswith("report\t")


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
def test_bash_reads_the_script_that_is_shown():
    # The shell that is asking is found among the parents: the tests may have been started by another.
    asking = ["bash", "-c", '"$@"; exit $?', "bash", *PROGRAM, "--show-completion"]
    shown = subprocess.run(asking, capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert "_GPUBENCH_COMPLETE" in shown.stdout
    done = subprocess.run(["bash", "-n"], input=shown.stdout, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
