"""Broken folders, streams, environments and libraries around the program: the documented exit code and the true reason."""

import os
import pty
import subprocess
import sys

import pytest

from gpubench.base.errors import ExitCode
from gpubench.result import store
from tests.forking import environment, outside
from tests.unit.report.samples import full_run

PROGRAM = f"{sys.executable} -m gpubench"
FAKE = "run --backends fake --ops add --sizes 1k --quick --min-samples 5 --max-time 50ms"
RUN = f"{FAKE.replace('fake', 'numpy')} --implementations library -o n.json"
API = '\'import gpubench; gpubench.run("add", sizes=64, devices="fake:cpu")\''
ODD_TIMES = "class Error(Exception): pass\ndef cpu_times(percpu=False): return [None]\nclass Process:\n    pass"


@pytest.fixture
def result(tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(store.dumps(full_run()))
    return str(path)


def shell(script, folder, program=PROGRAM, **environment):
    """A script of bash in which $gpubench is the program."""
    env = {**outside(), "gpubench": program, **environment}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip


@pytest.mark.parametrize(("command", "code"), [("detect", ExitCode.OK), (FAKE, ExitCode.USAGE)])
def test_a_deleted_working_folder(tmp_path, command, code):
    ended = shell(f"mkdir gone && cd gone && rmdir ../gone && $gpubench {command}", tmp_path)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    if code == ExitCode.USAGE:
        assert "the working folder is no longer there" in ended.stderr


@pytest.mark.parametrize(("command", "reader"), [
    ("--version", "true"), ("schema gpubench-result", "head -c 1")])  # fmt: skip
def test_a_reader_that_leaves(tmp_path, command, reader, starter):
    script = f"$gpubench {command} | {reader} > /dev/null; exit ${{PIPESTATUS[0]}}"
    ended = shell(script, tmp_path, starter.command())
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, "")


@pytest.mark.parametrize(("command", "code", "closed"), [
    ("--version", 0, "<&- >&- 2>&-"), ("report {result}", 0, "<&- >&- 2>&-"), ("report no.json", 4, "2>&-"),
    ("report - -o {result} < {result}", 2, "")])  # fmt: skip
def test_closed_streams(tmp_path, result, command, code, closed):
    ended = shell(f"$gpubench {command.format(result=result)} {closed}", tmp_path)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    assert ended.stderr == "" or command.startswith("report")


@pytest.mark.parametrize("command", ["--version", "report {result}"])
def test_a_full_disk_behind_the_output(tmp_path, result, command, starter):
    ended = shell(f"$gpubench {command.format(result=result)} > /dev/full", tmp_path, starter.command())
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr.startswith("error: cannot write to standard output\n  why: No space left on device\n")
    script = f"$gpubench {command.format(result=result)} > /dev/full 2> /dev/full"
    assert shell(script, tmp_path, starter.command()).returncode == ExitCode.FAILED


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_takes_a_part_of_the_output(tmp_path, unbuffered):
    """Without a buffer, Python itself drops what a write leaves over."""
    ended = shell("ulimit -f 1; $gpubench schema > out", tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (ended.returncode, "File too large" in ended.stderr) == (ExitCode.FAILED, True), ended.stderr


def test_a_temporary_folder_that_takes_nothing(tmp_path, result, starter):
    """tempfile itself looks for another one, so that all works as long as there is any."""
    for command in (f"report {result} --format svg --sections speedup", f"{FAKE} -o r.json"):
        ended = shell(f"$gpubench {command} > out", tmp_path, starter.command(), TMPDIR="/proc/self")
        assert (ended.returncode, "Traceback" in ended.stderr) == (ExitCode.OK, False), ended.stderr


def with_module(folder, name, text):
    """The environment in which a module of this text stands before the library of its name."""
    place = folder / "modules"
    place.mkdir(exist_ok=True)
    (place / f"{name}.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.parametrize(("text", "command"), [
    ("raise RuntimeError('broken')", "detect"), (ODD_TIMES, RUN), ("raise SystemExit('bye')", RUN)])  # fmt: skip
def test_a_broken_psutil_and_variables_that_are_no_text(gpubench, tmp_path, text, command):
    variables = {
        "MKL_NUM_THREADS": "\udcff",
        "GITHUB_ACTIONS": "true",
        "ImageOS": "\udcff",
        "TMPDIR": f"{tmp_path}/\udcff",
    }
    os.mkdir(variables["TMPDIR"])
    ended = gpubench(*command.split(), env={**with_module(tmp_path, "psutil", text), **variables})
    assert (ended.returncode, "Traceback" in ended.stderr) == (ExitCode.OK, False), ended.stderr


@pytest.mark.parametrize(("name", "text", "command", "code"), [
    ("msgspec", "x = 1", "detect", 1), ("typer", "x = 1", "ops", 1), ("token", "", "ops", 1), ("queue", "def f(:", FAKE, 1),
    ("numpy", "x = 1", RUN, 5), ("threadpoolctl", "raise OSError(5)", RUN, 5), ("secrets", "", RUN, 1),
    ("llvmlite", "", RUN.replace("library", "all"), 0), ("random", "", API, 1), ("queue", "", API, 1)])  # fmt: skip
def test_a_file_that_is_imported_in_place_of_a_library_is_named(tmp_path, name, text, command, code):
    program = PROGRAM if command != API else f"{sys.executable} -c"
    ended = shell(f"$gpubench {command}", tmp_path, program, **with_module(tmp_path, name, text))
    named = f"the file {tmp_path}/modules/{name}.py is imported in place of" in ended.stderr
    assert (ended.returncode, named, "report" in ended.stderr) == (code, True, False), ended.stderr
    assert "take its folder out of PYTHONPATH" in ended.stderr


BROKEN_DRAWING = {
    "aborts": ("import os\ndef __getattr__(name): os.abort()", "SIGABRT"),
    "cannot be imported": ("raise ImportError('libfoo.so: no such file')", "libfoo.so")}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN_DRAWING)
def test_a_page_without_its_drawing_library_has_no_charts_and_says_why(gpubench, tmp_path, result, how):
    text, why = BROKEN_DRAWING[how]
    env = {**with_module(tmp_path, "vl_convert", text), "GPUBENCH_CACHE_DIR": str(tmp_path / "cache")}
    page = gpubench("report", result, "--format", "html", env=env)
    assert (page.returncode, page.stderr) == (ExitCode.OK, "")
    assert ("There are no charts in this page because" in page.stdout, why in page.stdout) == (True, True)


@pytest.mark.parametrize(("how", "arguments"), [
    ("aborts", "--plots charts"), ("cannot be imported", "--format svg -o r.svg")])  # fmt: skip
def test_a_picture_that_cannot_be_drawn_is_an_error(gpubench, tmp_path, result, how, arguments):
    text, why = BROKEN_DRAWING[how]
    ended = gpubench("report", result, *arguments.split(), env=with_module(tmp_path, "vl_convert", text))
    assert ended.returncode == ExitCode.FAILED
    assert (ended.stderr.startswith("error: the charts cannot be drawn\n"), why in ended.stderr) == (True, True)
    # The answer itself comes before its charts.
    assert ("the GPU wins matmul" in ended.stdout) == ("--plots" in arguments)


# ---------------------------------------------------------------------- standard error that cannot be written


LOST_RUN = "run --devices fake:cpu,fake:gpu --ops add --sizes 1k,4k --quick --max-samples 10 -o r.json"


def _left(reader, writer):
    """`writer`, whose reader goes after some characters."""

    def leave():
        os.read(reader, 40)
        os.close(reader)

    return writer, leave


# The live display is drawn in a terminal.
LOST = {
    "full disk": lambda: (os.open("/dev/full", os.O_WRONLY), lambda: None),
    "reader that leaves": lambda: _left(*os.pipe()), "terminal that goes": lambda: _left(*pty.openpty())}  # fmt: skip


def end_of(starter, folder, lost, command):
    """The exit code and the output of a command whose notes go nowhere."""
    notes, leave = LOST[lost]()
    env = {**environment(folder), "TERM": "xterm"}
    env.pop("CI", None)
    with starter.begin(*command.split(), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=notes) as process:
        os.close(notes)
        leave()
        output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.check
def test_a_run_measures_on_and_prints_its_answer(starter, tmp_path, lost):
    code, output = end_of(starter, tmp_path, lost, LOST_RUN)
    assert (code, "GPU" in output) == (0, True), output
    assert store.load(tmp_path / "r.json").complete
    assert not (tmp_path / "r.json.part").exists()


@pytest.mark.parametrize(("command", "code"), [
    ("report r.json --columns nothing --verbose", 2), ("compare r.json r.json", 0), ("", 2),
    ("report r.json --annotations always --min-speedup *=1e6", 3), ("run --devices fake:nothing", 5)])  # fmt: skip
def test_every_other_command_ends_as_it_would(starter, tmp_path, command, code):
    (tmp_path / "r.json").write_bytes(store.dumps(full_run()))
    assert end_of(starter, tmp_path, "full disk", command)[0] == code
