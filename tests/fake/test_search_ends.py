"""The search for sizes: a size that gives no time is tried once."""

from __future__ import annotations

import time

import pytest

from gpubench import detect, kernels
from gpubench.measure import runner
from gpubench.measure.document import new_run
from gpubench.measure.plan import MEMORY_SHARE, Scope, Target
from gpubench.model.result import Device, Measurement, Selection, Settings

BUDGET_S = 20.0
LARGEST = 4096


@pytest.fixture
def sizes_planned(monkeypatch):
    """The sizes for which the runner asked the plan, in order."""
    asked = []
    plan = runner.workload

    def counted(series, n, scope):
        asked.append(n)
        return plan(series, n, scope)

    monkeypatch.setattr(runner, "workload", counted)
    return asked


def test_a_size_that_is_too_large_for_the_memory_is_not_asked_for_again_and_again(sizes_planned):
    """The GPU still loses at the largest size that fits: the search wants larger ones, and there are none."""
    op = kernels.load("add")
    targets = tuple(
        Target(Device(id=f"fake:{word}", backend="fake", kind=kind, name=word, api="fake"), ("library",))
        for word, kind in (("cpu", "cpu"), ("gpu", "gpu"))
    )
    settings = Settings(
        sessions=1, min_samples=5, max_samples=5, max_time_s=0.05, warmup_s=0.0, budget_s=BUDGET_S
    )
    selection = Selection(ops=["add"], regimes=["resident"], devices=[t.device.id for t in targets])
    operands = op.bytes({"n": LARGEST}, "float32")
    run = new_run(
        argv=[], selection=selection, settings=settings, machine=detect.inspect(extra_records=[]),
        devices=[t.device for t in targets], versions={}, label=None, tags=[], context={}, environ={},
    )  # fmt: skip
    began = time.monotonic()
    scope = Scope(targets, selection, round(7 * operands / MEMORY_SHARE) + 100, settings=settings)
    finished = runner.run(
        runner.Request(run=run, ops={"add": op}, scope=scope, began=began), lambda event: None, lambda run: None
    )
    measured = {o.case.params["n"] for o in finished.outcomes if isinstance(o, Measurement)}
    assert max(measured) == LARGEST
    assert len(sizes_planned) < 12
    assert time.monotonic() - began < BUDGET_S / 2
