"""What all tests share: the program as users start it, tiers that need hardware, and tests that run alone.

TESTS_EXPECT names tiers (`vulkan`, `cuda`, `torch`) that this job promises: there its absence fails instead of
skipping. `make test` promises a software Vulkan adapter.
"""

import contextlib
import functools
import gc
import io
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gpubench import cli
from gpubench.backends.shared.choices import FILE_NAME
from gpubench.base.streams import RUNNERS
from gpubench.result.store import cache
from tests.forking import Starter, environment

# The workers of pytest-xdist inherit what is left of the environment below.
if "CI" in os.environ:
    os.environ["TESTS_REPEAT"] = "1"
# A shared machine may stall for longer than any deadline that would tell something.
settings.register_profile("gpubench", deadline=None, derandomize="TESTS_REPEAT" in os.environ, max_examples=50)
# A property that has a number of examples of its own gets its share of them: tests/examples.py.
settings.register_profile("check", settings.get_profile("gpubench"), max_examples=20)
settings.register_profile("fuzz", settings.get_profile("gpubench"), max_examples=500, derandomize=False)
settings.load_profile("gpubench")

# What a CI job sets is for the job: programs under test would write into its summary and its log, and be stricter.
for variable in [name for name in os.environ if name.startswith("GITHUB_") or name in RUNNERS]:
    del os.environ[variable]

# Where the user's own files are is the fixture `home`'s to say.
for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
    os.environ.pop(variable, None)

# Where this environment is activated, hints say `pip` alone; tests expect the words of where it is not.
os.environ["PATH"] = os.pathsep.join(
    folder for folder in os.environ["PATH"].split(os.pathsep) if folder != str(Path(sys.executable).parent)
)

# A job in the background of a script ignores Ctrl-C, and so would every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_UNIT = Path(__file__).parent / "unit"
# Machine code stays here from run to run: it is named by a hash of its source, so none of it gets old, and numba finds
# it again in the same folder only.
_CACHE = Path(__file__).parents[1] / ".setup" / "cache"
_KNOWN = "lacks-"  # what begins so in that folder is what the tiers of a run lack
_PROBES = {
    "vulkan": "import wgpu; assert any(a.info['backend_type'] == 'Vulkan'"
    " for a in wgpu.gpu.enumerate_adapters_sync()), 'no Vulkan adapter'",
    "consumers": "import pathlib, shutil; assert shutil.which('hyperfine'), 'no hyperfine';"
    " assert pathlib.Path('/usr/share/benchmark/compare.py').exists(), 'no libbenchmark-tools'",
    "chromium": "from tests.browser import chromium; chromium.probe()",
    "torch": "import torch",
    "ray": "import subprocess, ray; subprocess.run(['unshare', '-n', 'true'], check=True, capture_output=True)",
    "cuda": "import cupy; assert cupy.cuda.runtime.getDeviceCount(), 'no CUDA device'",
}


@functools.cache
def _missing(tier: str) -> str:
    """Why this machine lacks what the tier needs, or an empty text. One worker of pytest-xdist asks for all: to import
    PyTorch or to start a browser takes seconds."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return _asked(tier)
    _CACHE.mkdir(parents=True, exist_ok=True)
    known = _CACHE / f"{_KNOWN}{tier}-{run}"
    known.touch()
    with _locked(known, alone=True):
        if not known.stat().st_size:
            known.write_text(f"{_asked(tier)}\n", encoding="utf-8")
        return known.read_text(encoding="utf-8").strip()


def _asked(tier: str) -> str:
    """In a process of its own."""
    probe = subprocess.run(
        [sys.executable, "-c", _PROBES[tier]],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return "" if probe.returncode == 0 else (probe.stderr.strip().splitlines() or ["it crashed"])[-1]


def pytest_configure() -> None:
    """What was the fastest on another day, or by other code, decides nothing now; nor what this machine lacked then."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for old in (_CACHE / f"{FILE_NAME}{cache.SUFFIX}", *_CACHE.glob(f"{_KNOWN}*")):
            old.unlink(missing_ok=True)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unit = {path for path in {item.path for item in items} if path.is_relative_to(_UNIT)}
    for item in items:
        if item.path in unit and not item.get_closest_marker("slow"):
            item.add_marker("check")
    if not config.option.markexpr:  # minutes and hours, which nobody wants who names a folder
        fuzz = [item for item in items if item.get_closest_marker("fuzz")]
        config.hook.pytest_deselected(items=fuzz)
        items[:] = [item for item in items if not item.get_closest_marker("fuzz")]
    items.sort(key=_runs_alone)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Thousands of tests stay to the end: the garbage collector need look at them neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        gc.enable()


def _runs_alone(item: pytest.Item) -> bool:
    return any(item.iter_markers("serial")) or (any(item.iter_markers("cuda")) and not _missing("cuda"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest-timeout: waiting costs a test nothing
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Beside other workers of pytest-xdist: a test that runs alone waits for the others, and no new one begins.

    A pytest that a test starts is part of that test, and waits for nobody."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with contextlib.ExitStack() as held:
        with _locked(
            Path(__file__), alone=True
        ):  # one behind the other, else one that runs alone might wait for ever
            held.enter_context(_locked(Path(__file__).parent, alone=_runs_alone(item)))
        return (yield)


@contextlib.contextmanager
def _locked(path: Path, *, alone: bool) -> Iterator[None]:
    """The lock that the kernel keeps of a file or folder, shared unless `alone`; it ends with the process too."""
    import fcntl

    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would leave it with a fork of this process
        os.close(descriptor)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tier in _PROBES.keys() & {mark.name for mark in item.iter_markers()}:
        if _missing(tier):
            if tier in os.environ.get("TESTS_EXPECT", "").split():
                pytest.fail(f"this job promises {tier}, but: {_missing(tier)}", pytrace=False)
            pytest.skip(f"needs {tier}: {_missing(tier)}")


# Machine code that libraries keep in the home by default: each test has a home of its own, and compiles nothing twice.
_KEPT_BY_LIBRARIES = {
    "GPUBENCH_CACHE_DIR": "", "MESA_SHADER_CACHE_DIR": "mesa", "CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "nv",
    "TRITON_CACHE_DIR": "triton",
}  # fmt: skip


def _live_in(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Make `home` the folder below which the program finds the user's settings, results and caches, on every system."""
    home.mkdir(parents=True)
    for variable in ("HOME", "USERPROFILE"):
        patch.setenv(variable, str(home))
    patch.setenv("APPDATA", str(home / "AppData" / "Roaming"))
    patch.setenv("LOCALAPPDATA", str(home / "AppData" / "Local"))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled code, which children inherit. All workers of pytest share it, and its files outlive them, so
    that each kernel is compiled once. What fixtures of a module or of the session start lives in a home of the session."""
    with pytest.MonkeyPatch.context() as patch:
        browsers = Path.home() / ".cache" / "ms-playwright"  # where playwright has put a browser of its own
        if browsers.is_dir() and "PLAYWRIGHT_BROWSERS_PATH" not in os.environ:
            patch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(browsers))
        _CACHE.mkdir(parents=True, exist_ok=True)
        for variable, folder in _KEPT_BY_LIBRARIES.items():
            patch.setenv(variable, str(_CACHE / folder))
        _live_in(tmp_path_factory.getbasetemp() / "homes" / "session", patch)
        yield _CACHE


_HOMES = itertools.count()


@pytest.fixture(autouse=True)
def home(cache_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, empty at first: no test reads or writes what the user, or another test, has kept,
    and none tells what another has found in the cache."""
    cache.forget()
    folder = tmp_path_factory.getbasetemp() / "homes" / str(next(_HOMES))
    _live_in(folder, monkeypatch)
    return folder


Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def starter(cache_folder: Path) -> Iterator[Starter]:
    """Starts programs, most of them in a tenth of the time that Python and its imports take."""
    with contextlib.closing(Starter()) as starter:
        yield starter


@pytest.fixture
def forked_children(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers and the other children of runs in the process of the tests are forked too."""
    monkeypatch.setattr(subprocess, "Popen", starter.children())


@pytest.fixture
def gpubench(tmp_path: Path, home: Path, starter: Starter) -> Program:
    """Run `python -m gpubench ARGUMENTS` as a user would, in an empty folder without settings; it has to end with `status`."""

    def run(
        *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, **options: Any
    ) -> Any:
        return starter.run(
            *arguments, cwd=cwd or tmp_path, env=environment(home, env), **{"input": "", **options}
        )

    return run


@pytest.fixture
def in_process(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> Program:
    """`gpubench` in the process of the tests, for what starts no worker: a tenth of what a fork of it costs."""

    def run(
        *arguments: str, env: Any = None, cwd: Path | None = None, input: str = "", status: Any = None
    ) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(cwd or tmp_path)
            for name in [
                name for name in os.environ if name.startswith("GPUBENCH_") and name != "GPUBENCH_CACHE_DIR"
            ]:
                patch.delenv(name)
            for name, value in {"COLUMNS": "100", **(env or {})}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode()), encoding="utf-8"))
            for stream in ("stdout", "stderr"):  # a command wraps them for as long as its process lives
                patch.setattr(sys, stream, getattr(sys, stream))
            code = cli.main(arguments)
        out, err = capsys.readouterr()
        assert status in (None, code), err
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run
