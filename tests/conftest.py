"""What all tests share: the program as users start it, and tiers that need hardware.

TESTS_EXPECT names tiers (`vulkan`, `cuda`) whose hardware this job promises: there its absence fails
instead of skipping. `make test` promises a software Vulkan adapter.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine may stall for longer than any deadline that would tell something.
settings.register_profile("gpubench", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("gpubench")

# What a step of GitHub Actions sets is for the step: programs under test would write into its summary and its log.
for variable in [name for name in os.environ if name.startswith("GITHUB_")]:
    del os.environ[variable]

# A job in the background of a script ignores Ctrl-C, and so would every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PROBES = {
    "vulkan": "import wgpu; assert any(a.info['backend_type'] == 'Vulkan'"
    " for a in wgpu.gpu.enumerate_adapters_sync()), 'no Vulkan adapter'",
    "consumers": "import pathlib, shutil; assert shutil.which('hyperfine'), 'no hyperfine';"
    " assert pathlib.Path('/usr/share/benchmark/compare.py').exists(), 'no libbenchmark-tools'",
    "chromium": "from tests.browser import chromium; chromium.probe()",
    "cuda": "import cupy; assert cupy.cuda.runtime.getDeviceCount(), 'no CUDA device'",
}


@functools.cache
def _missing(tier: str) -> str:
    """Why this machine lacks what the tier needs, or an empty text. Asked in a process of its own."""
    probe = subprocess.run(
        [sys.executable, "-c", _PROBES[tier]],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return "" if probe.returncode == 0 else (probe.stderr.strip().splitlines() or ["it crashed"])[-1]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tier in _PROBES:
        if item.get_closest_marker(tier) and _missing(tier):
            if tier in os.environ.get("TESTS_EXPECT", "").split():
                pytest.fail(f"this job promises {tier}, but: {_missing(tier)}", pytrace=False)
            pytest.skip(f"needs {tier}: {_missing(tier)}")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tests let the program remember stays among the tests: workers and other children inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("GPUBENCH_CACHE_DIR", str(folder))
        yield folder


Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gpubench(tmp_path: Path, cache_folder: Path) -> Program:
    """Run `python -m gpubench ARGUMENTS` as a user would, in an empty folder and without any settings."""

    def run(
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        input: str = "",
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUBENCH_", "XDG_"))}
        return subprocess.run(
            [sys.executable, "-m", "gpubench", *arguments],
            env={
                **kept,
                "HOME": str(home),
                "COLUMNS": "100",
                "GPUBENCH_CACHE_DIR": str(cache_folder),
                **(env or {}),
            },
            cwd=cwd or tmp_path,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
