"""Children: what they import, what they write, and when they end, each shown by real processes."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from gpubench.base import processes
from gpubench.measure import protocol
from gpubench.measure.targets import list_devices
from gpubench.measure.worker_pool import Worker, WorkerGone
from tests.faults.packages import copy_gpubench, install, started
from tests.forking import is_alive

RUN = "run --devices fake:cpu,fake:gpu --ops add --sizes 1k --quick --no-progress --no-save".split()
PATIENCE_S = 120  # of a machine that stalls; what is waited for takes parts of a second
BACKEND = """
import os
from gpubench.backends.hidden.fake import FakeBackend
class Backend(FakeBackend):
    name = {name!r}
    def devices(self): {devices}
BACKEND = Backend()
"""
_WHERE = "from gpubench.base import processes; print(processes.run(processes.python('reported'), 60).output)"
_REPORTED = "import json, sys; from gpubench.base import errors; print(json.dumps([errors.__file__, sys.path]))"


def backend(folder, devices, name="strange"):
    """A package with a backend that does `devices` when it is asked for its devices."""
    return install(folder, name, BACKEND.format(name=name, devices=devices), backends={name: f"{name}:BACKEND"})


def eventually(true):
    until = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


# ---------------------------------------------------------------- what a child imports
@pytest.mark.parametrize("command", [("detect", "--deep"), RUN], ids=["detect --deep", "run"])
def test_nothing_is_imported_from_the_working_folder(gpubench, tmp_path, command):
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("msgspec", "queue", "typing", "numpy", "threadpoolctl", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'imported')!r}, 'a').write(__name__ + ' ')")
    gpubench(*command, cwd=folder, status=0)
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of an environment into which the package was copied, and whose site-packages shadow Python's own."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    copy_gpubench(site)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "reported.py").write_text(_REPORTED)
    for name in ("queue", "typing", "subprocess", "runpy", "json", "ctypes"):
        (site / f"{name}.py").write_text(f"raise SystemExit('{name} of site-packages')")
    return home / "bin" / "python"


def test_site_packages_do_not_shadow_the_standard_library(installed, tmp_path):
    done = started([installed, "-m", "gpubench", *RUN], tmp_path)
    assert (done.returncode, "site-packages" in done.stderr) == (0, False), done.stderr
    assert "crashed" not in done.stdout


def place(python, cwd, **environ):
    """Where a child of the package that is imported in `cwd` has it from, and the path of that child."""
    done = started([python, "-c", _WHERE], cwd, **environ)
    assert done.returncode == 0, done.stderr
    origin, found = json.loads(done.stdout)
    return Path(origin), found


def test_a_child_has_the_package_of_its_parent(installed, tmp_path):
    other = tmp_path / "other"
    (other / "gpubench" / "base").mkdir(parents=True)
    (other / "reported.py").write_text(_REPORTED)
    (other / "gpubench" / "__init__.py").write_text("")
    (other / "gpubench" / "base" / "errors.py").write_text("raise RuntimeError('of another package')")
    checkout = tmp_path / "checkout"
    copy_gpubench(checkout)

    origin, path = place(sys.executable, checkout, PYTHONPATH=str(other))
    assert origin == checkout / "gpubench" / "base" / "errors.py"
    assert path[0] == str(other), "what the user asked for comes first"
    standard = path.index(os.path.dirname(os.__file__))
    sites = [at for at, entry in enumerate(path) if entry.endswith("site-packages")]
    assert standard < path.index(str(checkout)) < min(sites)

    origin, path = place(installed, tmp_path)
    site = origin.parents[2]
    assert site.name == "site-packages"
    assert [Path(entry) for entry in path].count(site) == 1, "it is on the path already"


# ---------------------------------------------------------------- what a child writes
def test_endless_stderr_costs_neither_disk_nor_memory(tmp_path, monkeypatch):
    """A file of 1 MiB would end the worker by a signal: it writes a hundred times as much, and answers."""
    floods = "os.write(2, b'the first line\\n'); [os.write(2, b'x' * 65536) for _ in range(1600)]"
    ends = "os.write(2, b'\\nthe last line\\n'); os._exit(7)"
    monkeypatch.setenv("PYTHONPATH", str(backend(tmp_path, f"{floods}; {ends}")))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with contextlib.closing(Worker()) as worker, pytest.raises(WorkerGone) as gone:
            worker.ask(protocol.ListDevices(id=worker.next_id, backend="strange"), PATIENCE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "exited with status 7" in gone.value.detail
    assert gone.value.stderr_tail.endswith("the last line")
    assert len(gone.value.stderr_tail) <= processes.STDERR_TAIL


# ---------------------------------------------------------------- when a child ends
_STUCK = """
import ctypes, os, pathlib
pathlib.Path({mark!r}).write_text(str(os.getpid()))
{hang}
"""
_HANGS = {
    "in a call that holds the interpreter lock": "ctypes.PyDLL(None).sleep(3600)",
    "deaf to signals": "import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; ctypes.PyDLL(None).sleep(3600)",
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child notices the end of stdin alone")
@pytest.mark.parametrize(("what", "hang"), [
    ("worker", "deaf to signals"), ("op", "in a call that holds the interpreter lock")])  # fmt: skip
def test_a_child_that_is_stuck_dies_with_a_killed_parent(tmp_path, what, hang):
    """All children end alike: each kind once, and each way to be stuck."""
    mark, site = tmp_path / "pid", tmp_path / "site"
    stuck = _STUCK.format(mark=str(mark), hang=_HANGS[hang])
    if what == "worker":
        install(site, "strange", stuck, backends={"strange": "strange:BACKEND"})
        command = ["run", "--backends", "strange", "--ops", "add"]
    else:
        install(site, "strange", stuck, ops={"strange": "strange:OP"})
        command = ["ops"]
    parent = subprocess.Popen([sys.executable, "-m", "gpubench", *command], cwd=tmp_path,
                              env={**os.environ, "PYTHONPATH": str(site)}, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        assert eventually(lambda: mark.exists() and bool(mark.read_text()))
        child = int(mark.read_text())
        assert is_alive(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert eventually(lambda: not is_alive(child))


def test_a_child_whose_parent_is_another_than_it_was_told_ends_before_it_imports_anything():
    command = processes.python("gpubench.measure.worker.main")
    command[command.index(str(os.getpid()))] = "1"
    assert processes.run(command, PATIENCE_S).status == 1


@pytest.mark.check
def test_children_of_threads_live_as_long_as_these():
    """The kernel ends a child with the thread that started it: devices are listed by threads that wait for the answer."""
    with ThreadPoolExecutor(4) as pool:
        reported = list(pool.map(lambda _: list_devices(["fake", "numpy"]), range(4)))
    assert all(listing.reason is None for listings in reported for listing in listings)
    found = []
    command = processes.python("gpubench.detect.probes.libraries", "blas")
    thread = threading.Thread(target=lambda: found.append(processes.run(command, PATIENCE_S).status))
    thread.start()
    thread.join()
    assert found == [0]


def test_a_worker_that_ends_itself_is_told_with_its_own_status(tmp_path, monkeypatch):
    """Its pipes close before it ends, as those of a process with much to give back do. A child of it holds them on."""
    slowly = "import time; os.fork() or time.sleep(3600); os.closerange(0, 100); time.sleep(0.3); os._exit(7)"
    monkeypatch.setenv("PYTHONPATH", str(backend(tmp_path, slowly)))
    (listing,) = list_devices(["strange"])
    assert (listing.reason, "exited with status 7" in listing.detail) == ("worker-crashed", True)


def test_the_shared_memory_of_a_worker_is_freed(monkeypatch):
    """Its group gets the signal while the number of the worker is still its own, and no stranger's."""
    own, killpg = [], os.killpg
    monkeypatch.setattr(
        os, "killpg", lambda pid, number: (own.append(psutil.pid_exists(pid)), killpg(pid, number))
    )
    text = "import os; from multiprocessing.shared_memory import SharedMemory as M; m = M(create=True, size=9)"
    command = [sys.executable, "-c", f"{text}; print(m.name, flush=True); os._exit(7)"]
    child = processes.Child(command, framed=False)
    name = child.lines.get(timeout=PATIENCE_S).decode().strip()
    child.settle(time.monotonic() + PATIENCE_S)
    assert (own, child.wait(0)) == ([True], 7)
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)
