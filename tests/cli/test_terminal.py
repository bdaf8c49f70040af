"""What a shell and a terminal get: completion, the width of a report, its colours, and what switches them off."""

import os
import pty
import subprocess
import sys

import pytest

from gpubench.result.store import save
from tests.forking import outside
from tests.unit.report.samples import full_run

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


ESCAPE = "\x1b"


@pytest.fixture
def folder(tmp_path):
    save(full_run(), tmp_path / "full.json")
    return tmp_path


@pytest.fixture
def on_terminal(folder, starter):
    """What `gpubench report` writes to a terminal of its own."""

    def written(*arguments, **environ):
        above, below = pty.openpty()
        unset = ("NO_COLOR", "FORCE_COLOR", "CI", "COLUMNS")
        clean = {name: value for name, value in outside().items() if name not in unset}
        clean |= {"TERM": "xterm-256color", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), **environ}
        with starter.begin(
            "report", "full.json", "--full", *arguments, cwd=folder, env=clean,
            stdout=below, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        ):  # fmt: skip
            os.close(below)
            parts = []
            try:
                while part := os.read(above, 65536):
                    parts.append(part)
            except OSError:  # the other end is closed
                pass
        os.close(above)
        return b"".join(parts).decode().replace("\r\n", "\n")

    return written


@pytest.mark.parametrize(("arguments", "environ", "colored"), [([], {}, True), ([], {"NO_COLOR": "1"}, False)])
def test_colour(on_terminal, arguments, environ, colored):
    text = on_terminal(*arguments, **environ)
    assert "the GPU" in text
    assert (ESCAPE in text) == colored
    assert "─" in text  # tables, not plain text
