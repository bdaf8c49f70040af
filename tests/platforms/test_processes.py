"""Children and streams on a simulated Windows."""

import time

from tests.forking import is_alive

# A program of gpubench's name is one of the product for the simulation.
_TREE = """
import sys
from gpubench.base import processes
text = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); time.sleep(300)"
child = processes.Child([sys.executable, "-c", text])
import psutil, time
while not (below := psutil.Process(child._process.pid).children()):
    time.sleep(0.02)
print(child._process.pid, below[0].pid, flush=True)
child.kill()
"""


def test_a_child_is_killed_with_those_that_it_started(computer):
    done = computer("win32").run("-c", _TREE)
    assert done.returncode == 0, done.stderr
    numbers = [int(number) for number in done.stdout.split()]
    until = time.monotonic() + 10
    while any(map(is_alive, numbers)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(is_alive, numbers))


def test_a_reader_that_went_is_no_failure(computer):
    process = computer("win32").start("ops")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (0, "")
