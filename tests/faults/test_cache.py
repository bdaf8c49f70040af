"""A cache that is damaged, strange or missing, and a CPU without its compiler: the run goes on, and says what it lacks."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from unittest.mock import Mock

import msgspec
import pytest

from gpubench import backends, kernels
from gpubench.backends.numpy import compiled, machine_code
from gpubench.backends.numpy.compiled import NumbaThreads, NumbaUnusable
from gpubench.result.case import Case
from gpubench.result.store.cache import SUFFIX, SealedFiles
from gpubench.result.store.journal import Lock
from tests.forking import environment

RUN = "run --devices numpy:0 --ops add --sizes 64k --sessions 1 --max-samples 5 --no-autotune -o r.json".split()


@pytest.fixture(scope="module")
def filled(tmp_path_factory, cache_folder, starter):
    """A cache with the kernels of a run. What other tests compiled is in it too."""
    folder = tmp_path_factory.mktemp("filled")
    own = folder / "cache"
    if (cache_folder / machine_code.FOLDER).is_dir():
        shutil.copytree(cache_folder / machine_code.FOLDER, own / machine_code.FOLDER)
    codes_of(starter.run(*RUN, cwd=folder, env=environment(folder, {"GPUBENCH_CACHE_DIR": str(own)})), folder)
    return own


@pytest.fixture
def own_cache(tmp_path, filled):
    """Such a cache for one test to spoil."""
    return shutil.copytree(filled, tmp_path / "cache")


def codes_of(ended, tmp_path):
    """Return the codes of the run's warnings about its cache; the CPU has run its compiled kernel."""
    assert ended.returncode == 0, ended.stderr
    run = json.loads((tmp_path / "r.json").read_text())
    (kernel,) = [outcome["kernel"] for outcome in run["outcomes"] if "/tuned/" in outcome["id"]]
    assert kernel.startswith("numba, ")
    warnings = [warning for warning in run["warnings"] if warning["code"].startswith("cache-")]
    for warning in warnings:
        assert ended.stderr.count(warning["message"]) == 1
        assert str(tmp_path) not in warning["message"]
    return [warning["code"] for warning in warnings]


def test_damaged_kernels_are_compiled_anew_once(gpubench, tmp_path, own_cache):
    """FIFOs, which hang whoever reads them; tests/unit/store/test_cache.py damages files in every other way."""
    for path in own_cache.rglob(f"*{SUFFIX}"):
        path.unlink()
        os.mkfifo(path)
    env = {"GPUBENCH_CACHE_DIR": str(own_cache)}
    assert codes_of(gpubench(*RUN, env=env), tmp_path) == ["cache-damaged"]
    assert codes_of(gpubench(*RUN, env=env), tmp_path) == []


class Planted:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return (open, (self._path, "w"))


def test_a_cache_that_others_may_write_is_not_executed(gpubench, tmp_path, own_cache):
    for path in (own_cache / machine_code.FOLDER).glob(f"*{SUFFIX}"):
        name = f"{machine_code.FOLDER}/{path.name.removesuffix(SUFFIX)}"
        functions = msgspec.msgpack.decode(SealedFiles(own_cache).read(name, ""))
        planted = dict.fromkeys(functions, pickle.dumps(Planted(tmp_path / "executed")))
        SealedFiles(own_cache).write(name, msgspec.msgpack.encode(planted))
    own_cache.chmod(0o777)
    before = sorted(own_cache.rglob("*"))
    ended = gpubench(*RUN, env={"GPUBENCH_CACHE_DIR": str(own_cache)})
    assert codes_of(ended, tmp_path) == ["cache-not-trusted"]
    assert not (tmp_path / "executed").exists()
    assert sorted(own_cache.rglob("*")) == before


def test_without_a_cache_folder_nothing_stays_behind(gpubench, tmp_path):
    """The run's own folder holds the kernels, for all workers, and goes with the run."""
    (tmp_path / "tmp").mkdir()
    env = dict.fromkeys(("GPUBENCH_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "USERPROFILE"), "")
    env["TMPDIR"] = str(tmp_path / "tmp")
    assert codes_of(gpubench(*RUN, env=env), tmp_path) == ["cache-not-kept"]
    assert list((tmp_path / "tmp").iterdir()) == []


# ---------------------------------------------------------------------- no compiler


TUNED_RUN = "run --devices numpy:0 --ops add --sizes 64k --quick -o r.json".split()
BROKEN = {
    "missing": ("raise ModuleNotFoundError(\"No module named 'numba'\", name='numba')", "numba is not installed"),
    "broken": ("raise OSError('libLLVM.so: cannot open shared object')", "numba does not load: OSError: libLLVM"),
    "exits": ("raise SystemExit('bye')", "numba does not load: ImportError: SystemExit: bye"),
    "fatal": ("import os; os.abort()", "a worker ended, or hung, while it loaded numba")}  # fmt: skip


REMEDIES = {
    "missing": r"pip install (\.|\S*gpubench)",
    "fatal": "pip install --upgrade --force-reinstall numpy numba",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_without_numba_the_cpu_has_its_library_alone_and_every_table_says_so(gpubench, tmp_path, kind):
    source, why = BROKEN[kind]
    (tmp_path / "early" / "numba").mkdir(parents=True)
    (tmp_path / "early" / "numba" / "__init__.py").write_text(source)
    ended = gpubench(*TUNED_RUN, env={"PYTHONPATH": str(tmp_path / "early")})
    assert (ended.returncode, ended.stderr.count("the CPU is not at its best")) == (0, 1), ended.stderr
    # The library implementation once more would be no second implementation.
    outcomes = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    assert {(one["type"], one.get("reason"))
            for one in outcomes if "/tuned/" in one["id"]} == {("skip", "not-compiled")}  # fmt: skip
    for format in ("plain", "markdown"):
        report = " ".join(gpubench("report", "r.json", "--format", format).stdout.split())
        assert why in report
        assert re.search(REMEDIES.get(kind, "out of PYTHONPATH"), report), report
        assert "Without numba the CPU is not at its best." in report


@pytest.mark.parametrize(("variable", "why"), [
    ("NUMBA_DISABLE_JIT=1", "NUMBA_DISABLE_JIT keeps numba from compiling"),
    ("NUMBA_CPU_NAME=unheard-of", "NUMBA_CPU_NAME may slow down its compiled kernels")],
    ids=["disabled", "unknown processor"])  # fmt: skip
def test_numba_that_is_there_and_does_not_work_is_said_with_its_cause(gpubench, tmp_path, variable, why):
    ended = gpubench(*TUNED_RUN, env=dict([variable.split("=")]), status=0)
    assert ended.stderr.count("not be at its best" if "may" in why else "not at its best") == 1, ended.stderr
    report = " ".join(gpubench("report", "r.json", "--sections", "warnings").stdout.split())
    assert ("cpu-not-compiled" in report, why in report, "pip install" in report) == (True, True, False), report
    report = gpubench("report", "r.json", "--format", "markdown").stdout
    assert ("not installed: numba" in report, "Without numba" in report) == (False, "may" not in why), report


@pytest.mark.parametrize("threads", [1, 2])
def test_numba_that_computes_wrong_numbers_is_not_taken(monkeypatch, threads):
    right = NumbaThreads.launch
    monkeypatch.setattr(NumbaThreads, "launch", lambda self, program, buffers: (
        (lambda: None) if program.threads == threads else right(self, program, buffers)))  # fmt: skip
    with pytest.raises(NumbaUnusable, match="numba does not work"):
        NumbaThreads(2)


def test_a_worker_that_is_loading_numba_stops_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled.cache, "fallbacks", lambda: [tmp_path])
    mark = Lock(tmp_path / "loading-numpy-1")
    assert mark.take()
    mark.path.write_text("numba")
    (tmp_path / "loading-numpy-2").touch()  # about to be removed by its worker
    with compiled.leave_mark():
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) == len("numba") * 2
        mark.release(keep=True)  # it died
    assert [*tmp_path.iterdir()] == [mark.path]
    with pytest.raises(NumbaUnusable, match="while it loaded"), compiled.leave_mark():
        pass


def test_an_inherited_number_of_threads_does_not_limit_the_cpu():
    program = "from gpubench.backends.numpy.compiled import NumbaThreads; print(NumbaThreads(2).most)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                           env={**os.environ, "NUMBA_NUM_THREADS": "1"})  # fmt: skip
    assert ended.stdout.split() == ["2"]


def test_numba_that_may_not_compile_is_not_taken(monkeypatch):
    monkeypatch.setattr(pytest.importorskip("numba").config, "DISABLE_JIT", 1)
    with pytest.raises(NumbaUnusable, match="NUMBA_DISABLE_JIT keeps"):
        NumbaThreads(1)


@pytest.mark.parametrize(("error", "why"), [
    (ModuleNotFoundError("no", name="llvmlite"), "numba is not installed"), (NumbaUnusable("it is odd"), "it is odd"),
    (OSError("libLLVM"), "numba does not load: OSError: libLLVM; NUMBA_OPT is set"),
])  # fmt: skip
def test_what_numba_raises_is_the_reason_why_nothing_is_compiled(monkeypatch, error, why):
    monkeypatch.setenv("NUMBA_OPT", "0")
    monkeypatch.setattr("gpubench.backends.numpy.NumbaThreads", Mock(side_effect=error))
    session = backends.load("numpy").open("numpy:0", 1)
    refusal = session.supports(
        kernels.load("add"), Case("add", "vector", {"n": 8}, "float32", "tuned", "resident", "numpy:0")
    )
    assert (refusal.reason, why in refusal.detail, why in session.lacks) == ("not-compiled", True, True), (
        refusal.detail
    )
