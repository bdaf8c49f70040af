"""A small run to write and read."""

from collections.abc import Callable
from typing import Any

import pytest

from gpubench.result import run as results
from gpubench.result.case import Case
from gpubench.result.machine import Machine
from gpubench.result.run import Block, Check, Fingerprint, Fingerprints, Measurement, Run, Selection, Settings


def _case(device_id: str) -> Case:
    return Case(op="matmul", group="matmul", params={"n": 1024}, dtype="float32", implementation="library",
                regime="resident", device_id=device_id)  # fmt: skip


def _run(samples: list[float], **changes: Any) -> Run:
    case, absent = _case("numpy:0"), _case("cupy:0")
    same = Fingerprint(hash="c0ffee0123", fields={"cpu": "Example"})
    measured = Measurement(id=case.id, case=case, flops=2 * 1024**3, bytes=12 * 1024**2, op_hash="0a1b2c",
                           check=Check(ok=True, max_error=1.5e-7, limit=4.77e-7, scale="terms", index=[0, 3]),
                           blocks=[Block(session=1, round=1, position=0, repeat=4, warmup=1, wall_s=samples)])  # fmt: skip
    skip = results.Skip(id=absent.id, case=absent, reason="unavailable", detail="no CUDA driver",
                        hint="install one")  # fmt: skip
    return Run(**{
        "id": "123e4567-e89b-42d3-a456-426614174000", "started_at": "2026-11-20T19:00:00Z", "machine": Machine(),
        "selection": Selection(ops=["matmul"], sizes={"matmul": [1024]}), "settings": Settings(),
        "fingerprint": Fingerprints(machine=same, device=same, software=same), "outcomes": [measured, skip], **changes})  # fmt: skip


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    return _run


@pytest.fixture
def run() -> Run:
    return _run([0.0123456789, 0.0125])
