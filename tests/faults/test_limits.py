"""Limits of memory, threads, processes and files: each is named, and none of them is called a bug."""

import errno
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from gpubench.base import processes
from gpubench.base.errors import NO_TASKS
from gpubench.detect.inspection import ProbeRequest, run_probes
from gpubench.measure.targets import list_devices
from gpubench.measure.worker_pool import DeviceGone, Spares, Worker, WorkerGone, WorkerPool
from gpubench.result.machine import Machine
from gpubench.result.run import Settings

EAGAIN = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_child_without_a_thread_to_read_it_is_ended(monkeypatch):
    started, popen = [], subprocess.Popen

    def note(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    count = iter(range(9))
    start = threading.Thread.start

    def second_refused(thread):
        if next(count):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(subprocess, "Popen", note)
    monkeypatch.setattr(threading.Thread, "start", second_refused)
    with pytest.raises(OSError, match="starts no more processes or threads"):
        processes.Child([sys.executable, "-c", "import time; time.sleep(60)"])
    assert started[0].poll() is not None


@pytest.fixture
def no_processes(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=EAGAIN))


@pytest.mark.usefixtures("no_processes")
def test_where_no_process_can_be_started_each_who_needs_one_says_so(tmp_path):
    (numpy,) = list_devices(["numpy"])
    assert (numpy.reason, NO_TASKS in numpy.detail) == ("worker-crashed", True)
    with pytest.raises(WorkerGone, match="cannot be started"):
        Worker()
    answers = run_probes([ProbeRequest("blas", 5.0), ProbeRequest("wgpu", 5.0)])
    assert [answer.provider.status for answer in answers] == ["crashed"] * 2
    assert all(NO_TASKS in (answer.provider.hint or "") for answer in answers)
    Spares().keep_ahead(["numpy"], 2, 2, None)  # spares are no need
    pool = WorkerPool(Settings(), tmp_path, {}, (), Machine())
    pool.open_all(["numpy:0"])
    with pytest.raises(DeviceGone, match="starts no more processes"):
        pool.worker("numpy:0")
    pool.close()


@pytest.mark.parametrize(("kilobytes", "arguments"), [
    (200_000, "detect --deep"), (100_000, "run --devices fake:cpu --ops add --sizes 64 --quick --no-save")])  # fmt: skip
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit addresses")
def test_a_shell_that_limits_memory_meets_no_bug(kilobytes, arguments, tmp_path):
    """Whatever fails there, and how far it came, depends on the libraries; what is said of it does not."""
    line = f"ulimit -v {kilobytes}; exec {sys.executable} -m gpubench {arguments} --no-progress"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 5), said
    assert ("this is a bug" in said, "Traceback" in said) == (False, False), said
