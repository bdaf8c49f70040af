"""Runs, devices, cases, measurements and blocks as files have them."""

import io

from gpubench.measure import protocol
from gpubench.measure.worker.main import DeviceWorker
from gpubench.result import run as document
from gpubench.result.case import Case
from gpubench.result.machine import Machine

RIGHT = document.Check(ok=True, max_error=0.0, limit=0.0, scale="value")


def empty_run(*outcomes, **fields):
    """A run of these outcomes, of which nothing else is known."""
    same = document.Fingerprint(hash="0", fields={})
    usual = {
        "id": "x", "started_at": "2026-01-01T00:00:00Z", "machine": Machine(), "settings": document.Settings(),
        "selection": document.Selection(ops=["add"]),
        "fingerprint": document.Fingerprints(machine=same, device=same, software=same),
    }  # fmt: skip
    return document.Run(outcomes=[*outcomes], **usual | fields)


def device(device_id, kind="gpu", api="host", **fields):
    """A device of the backend that its id names."""
    usual = {"backend": device_id.partition(":")[0], "kind": kind, "name": device_id, "api": api}
    return document.Device(id=device_id, **usual | fields)


def case(n, device_id, regime="resident", op="add", implementation="library"):
    """A case of a vector of floats."""
    return Case(op, "vector", {"n": n}, "float32", implementation, regime, device_id)


def measured(case, *blocks, **fields):
    """The case with these blocks."""
    usual = {"flops": 1, "bytes": 1, "op_hash": "0", "check": RIGHT}
    return document.Measurement(id=case.id, case=case, blocks=[*blocks], **usual | fields)


def block(wall_s=(1.0,), **fields):
    """One of these samples."""
    usual = {"session": 0, "round": 0, "position": 0, "repeat": 1}
    return document.Block(wall_s=[*wall_s], **usual | fields)


def stage_times(session):
    """The times of no stage in this session, in a chain and on two sides."""
    own = {"session": session, "clock": "host", "stages": []}
    whole = {name: [] for name in ("alone_s", "chain_s", "span_s", "wall_s", "empty_s")}
    sides = {name: [] for name in ("cpu_s", "gpu_s", "cpu_whole_s", "gpu_whole_s", "enter_s")}
    ways = {name: {} for name in ("up_s", "down_s", "predicted_s")}
    return document.StageTimes(**own, **whole), document.AssignmentTimes(free_s=0.0, **own, **sides, **ways)


def opened_worker(device_id, folder, messages=None, **more):
    """A worker in the process of the tests, on this device."""
    worker = DeviceWorker(messages or io.BytesIO())
    usual = {"threads": 1, "seed": 1, "inputs": "random", "since": 0.0}
    worker.answer(protocol.Open(id=1, device_id=device_id, scratch=bytes(folder), **usual | more))
    return worker
