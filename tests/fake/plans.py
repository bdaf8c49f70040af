"""Requests of runs in the process of the tests, on scripted devices."""

import time

from gpubench import detect, kernels
from gpubench.measure import runner
from gpubench.measure.plan import Constraints, Target
from gpubench.measure.recorder import Origin, new_run
from gpubench.measure.schedule import RunSpec
from gpubench.result.run import Device, Selection, Settings

BRIEF = {"sessions": 1, "min_samples": 5, "max_samples": 5, "max_time_s": 0.05, "warmup_s": 0.0}


def device(device_id):
    backend, _, word = device_id.partition(":")
    return Device(id=device_id, backend=backend, kind="cpu" if word == "cpu" else "gpu", name=word, api="fake")


QUEUED = ("resident-queued",)


def plan(devices, sizes=(1024,), op=None, regimes=QUEUED, host_bytes=None, settings=None, **fields):
    """Ask for one op, or `add`, on devices or their ids at these sizes; without sizes the run chooses them."""
    op, settings = op or kernels.load("add"), Settings(**{**BRIEF, **(settings or {})})
    devices = [device(place) if isinstance(place, str) else place for place in devices]
    chosen, ids = {op.name: list(sizes)} if sizes else {}, [place.id for place in devices]
    selection = Selection(ops=[op.name], sizes=chosen, regimes=list(regimes), devices=ids)
    run = new_run(selection, settings, detect.inspect(extra_records=[]), devices, Origin())
    targets = tuple(Target(place, ("library",)) for place in devices)
    constraints = Constraints(targets, selection, host_bytes, settings=settings)
    return RunSpec(run=run, ops={op.name: op}, constraints=constraints, began=time.monotonic(), **fields)


def carry_out(request, tell=lambda event: None):
    """The run, which nobody saves."""
    return runner.run(request, tell, lambda run: None)
