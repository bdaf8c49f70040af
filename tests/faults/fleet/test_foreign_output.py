"""Children among others' code: what it prints into our pipes, what it does to the streams, and what we then say."""

import contextlib
import json
import os
import sys

import pytest

from gpubench.base import processes
from gpubench.detect.inspection import ProbeRequest, run_probes
from gpubench.fleet import node
from gpubench.fleet.cluster import NODE_ARGUMENTS
from gpubench.kernels.contract import foreign
from gpubench.measure import protocol
from gpubench.measure.targets import list_devices
from gpubench.measure.worker_pool import Spares, Worker, WorkerGone
from tests.faults.packages import install

PATIENCE_S = 120
START_UP = {
    "writes in each way":
        "import ctypes, os, sys; print('hello'); print('hello', file=sys.stderr); os.write(1, bytes(range(256)))\n"
        'ctypes.CDLL(None).printf(b\'hello\'); print(\'{"records": []}\'); print(\'{"kind": "phase", "name": "x"}\')\n'
        "import atexit, pathlib, site, tempfile; atexit.register(print, 'bye')\n"
        "folder = pathlib.Path(tempfile.mkdtemp())\n"
        "(folder / 'x.pth').write_text('import sys; print(1); sys.stdout.flush()'); site.addsitedir(str(folder))\n"
        "os.write(1, b'no end of a line')",
    "writes much": "import os; [os.write(1, b'x' * 65536) for _ in range(40)]",
    "goes on":
        "import os, threading\ndef noise():\n while True: os.write(1, b'noise')\n"
        "threading.Thread(target=noise, daemon=True).start()",
    "keeps a copy":
        "import os, threading, time\ncopy = os.dup(1)\n"
        "def noise():\n while True: os.write(copy, b'noise'); time.sleep(0.001)\n"
        "threading.Thread(target=noise, daemon=True).start()",
    "no streams": "import sys; sys.stdout.close(); sys.stderr = None",
    "an owner of descriptor 1": "import os, sys; sys.stdout = os.fdopen(1, 'w'); print('hello')",
    "closes descriptors": "import os; os.close(1); os.close(2)", "reads": "import sys; sys.stdin.read()",
    "exits": "raise SystemExit(3)"}  # fmt: skip
OP = "from gpubench.kernels import load\nfrom msgspec.structs import replace\nOP = replace(load('add'), name='{}')\n"
# All children start and speak alike; what each of them does with its parent's pipes differs here.
EVERY_CHILD = ("writes much", "closes descriptors", "reads")


def list_numpy():
    (listing,) = list_devices(["numpy"], PATIENCE_S)
    assert listing.reason is None, (listing.detail, listing.hint)
    return [device.id for device in listing.devices]


@pytest.mark.parametrize("kind", START_UP)
def test_start_up_code_of_others_costs_no_child(kind, tmp_path, monkeypatch):
    op = tmp_path.name
    site = install(tmp_path, op, OP.format(op), ops={op: f"{op}:OP"})
    (site / "sitecustomize.py").write_text(START_UP[kind])
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    assert list_numpy() == ["numpy:0"]
    if kind not in EVERY_CHILD:
        return
    (blas,) = run_probes([ProbeRequest("blas", PATIENCE_S)])
    assert (blas.provider.status, blas.provider.error_code) == ("ok", None), blas.provider.hint
    assert foreign.load(op).name == op


def test_a_node_of_a_cluster_reports_without_what_others_print(tmp_path, monkeypatch):
    noise = "import ctypes; print('hello'); ctypes.CDLL(None).printf(b'hello')"
    (tmp_path / "sitecustomize.py").write_text(noise)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    sent = list(node.messages(NODE_ARGUMENTS))
    result = b"".join(message[1:] for message in sent if message[:1] == node.RESULT)
    assert json.loads(result)["name"] == "gpubench-detect"


def interpreter(folder, before, then='exec "$PYTHON" "$@"'):
    """A program that stands where Python should, as a wrapper of a cluster's modules does."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nPYTHON={sys.executable}\n{before}\n{then}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("before", ["printf hello", "head -c 200000 /dev/zero"])
def test_what_is_written_before_python_starts_is_told_apart(before, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", interpreter(tmp_path, before))
    assert list_numpy() == ["numpy:0"]


def test_a_worker_that_says_nothing_of_ours_names_what_it_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", interpreter(tmp_path, "echo 'license \033[31mexpired'", "exit 0"))
    (listing,) = list_devices(["numpy"], PATIENCE_S)
    assert listing.reason == "worker-crashed"
    assert "its output is not ours: 'license [31mexpired'" in listing.detail
    assert "sitecustomize" in listing.detail
    (blas,) = run_probes([ProbeRequest("blas", PATIENCE_S)])
    assert blas.provider.status == "invalid"
    assert "license" in (blas.provider.hint or "")
    assert "sitecustomize" in (blas.provider.hint or "")


def test_a_message_of_any_length_comes_whole():
    code = ("from gpubench.base.child_main import Messages; import os\n"
            "messages = Messages()\n"
            "for size in (0, 1, 65525, 65526, 65527, 65536, 1 << 20): messages.write(b'y' * size)\n"
            "os.write(1, b'noise'); messages.write(b'end')")  # fmt: skip
    child = processes.Child([sys.executable, "-c", code])
    try:
        heard = [len((child.lines.get(timeout=PATIENCE_S) or b"").rstrip(b"\n")) for _ in range(8)]
    finally:
        child.kill()
    assert (heard, child.noise()) == ([0, 1, 65525, 65526, 65527, 65536, 1 << 20, 3], "")


# ---------------------------------------------------------------- spare workers
def test_a_spare_that_dies_while_it_imports_is_dropped(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    spares = Spares()
    with contextlib.ExitStack() as ends:
        ends.callback(spares.end)
        spares.keep("numpy", alive := Worker())
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        spares.keep("numpy", dead := Worker())
        spares.keep("wgpu", dead_too := Worker())
        dead_too.kill()
        spares.settle(PATIENCE_S)
        assert spares.take("numpy").worker is alive
        assert (spares.take("numpy"), spares.take("wgpu")) == (None, None)
        with pytest.raises(WorkerGone):
            dead.ask(protocol.ListDevices(id=dead.next_id, backend="numpy"), PATIENCE_S)
        alive.kill()
