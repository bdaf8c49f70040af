"""Providers that sleep, abort, print junk or never stop printing: each through a real child process."""

import os
import sys
import time

import pytest

from gpubench.base import processes
from gpubench.detect import inspection
from gpubench.detect.inspection import ProbeRequest
from tests.forking import is_alive

GOOD = "import json; print(json.dumps({'records': [{'source': 'nvml', 'ordinal': 0}], 'version': '1'}))"


def run(*programs, limit=3.0):
    commands = [(sys.executable, "-c", code) for code in programs]
    return inspection.run_probes([ProbeRequest(f"p{n}", limit, {}, own) for n, own in enumerate(commands)])


@pytest.mark.parametrize(("code", "status", "reported"), [
    ("import os; os.abort()", "crashed", "signal 6"),
    ("import sys; print('first'); print('no such library', file=sys.stderr); sys.exit(3)", "crashed", "exit status 3"),
    ("import sys; print(\"can't start new thread\\nbye\", file=sys.stderr); sys.exit(1)", "crashed", "exit status 1"),
    ("print('Segmentation fault lol')", "invalid", "JSON"), ("print('[1, 2')", "invalid", "JSON"), ("pass", "invalid", "JSON"),
    ('print(\'{"records": [{"no": "source"}]}\')', "invalid", "JSON"), ("print('{\"records\": 7}')", "invalid", "JSON")])  # fmt: skip
def test_a_broken_provider_is_marked_and_costs_nothing_else(code, status, reported):
    broken, good = run(code, GOOD)
    assert (broken.provider.status, broken.records) == (status, [])
    assert reported in (broken.provider.error_code or "")
    assert (good.provider.status, [record.source for record in good.records]) == ("ok", ["nvml"])
    assert ("ulimit -u" in (broken.provider.hint or "")) == ("thread" in code), "a limit of the system is named"
    assert broken.provider.hint == "no such library" or "no such library" not in code


@pytest.mark.serial
def test_a_sleeper_costs_its_limit_and_its_group_dies_with_it(tmp_path):
    place = tmp_path / "pid"
    inner = f"import os, time; open({str(place)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {inner!r}]); time.sleep(60)"
    start = time.monotonic()
    asleep, good = run(code, GOOD, limit=2.0)
    assert time.monotonic() - start < 30, "not the minute that it sleeps"
    assert (asleep.provider.status, good.provider.status) == ("timeout", "ok")
    while is_alive(int(place.read_text())):
        assert time.monotonic() - start < 30
        time.sleep(0.01)


def test_endless_output_costs_time_and_no_memory(monkeypatch):
    monkeypatch.setattr(processes, "SILENT_S", 0.1)
    (answer,) = run("import sys\nwhile True: sys.stdout.write('x' * 65536)", limit=0.5)
    assert answer.provider.status == "timeout"


def test_nothing_is_said_of_probes_that_answer():
    told: list[str] = []
    inspection.run_probes([ProbeRequest("wgpu", 30.0, {}, (sys.executable, "-c", GOOD))], told.append)
    assert told == []


@pytest.mark.parametrize(("library", "text", "probe", "status", "hint"), [
    ("threadpoolctl", "import os; print('hello'); os.write(1, b'native noise'); threadpool_info = list", "blas", "ok", ""),
    ("cupy", "raise ImportError('libnvrtc is missing')", "cuda", "absent", "pip install")])  # fmt: skip
def test_a_library_prints_or_lacks_a_part(tmp_path, monkeypatch, library, text, probe, status, hint):
    (tmp_path / f"{library}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (answer,) = inspection.run_probes([ProbeRequest(probe, 20.0)])
    assert (answer.provider.status, hint in (answer.provider.hint or "")) == (status, True)
    assert probe != "blas" or answer.message.blas == []


def test_providers_run_side_by_side(tmp_path):
    """Each ends when the file of the other is there."""
    meets = "import pathlib, sys, time; pathlib.Path({0!r}).touch()\nwhile not pathlib.Path({1!r}).exists(): time.sleep(0.01)\n{2}"
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    answers = run(meets.format(first, second, GOOD), meets.format(second, first, GOOD), limit=60.0)
    assert [answer.provider.status for answer in answers] == ["ok"] * 2
