"""What a file says does not depend on the order in which anything in it stands, nor on how its sessions are numbered."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.report import render
from gpubench.result.run import Measurement, Parts
from tests.examples import examples
from tests.unit.report.builders import case, measured, run_of, skipped
from tests.unit.report.samples import full_run, hybrid_run

SESSIONS = 5


def noisy_run(seed):
    """A CPU and a GPU over four sizes and three regimes, with fresh timings around a break-even and a skip."""
    draw, found = random.Random(seed), []
    for n in (64, 256, 1024, 4096):
        cpu_s, gpu_s, copy_s = 3e-6 + 2 * n**3 / 8e11, 12e-6 + 2 * n**3 / 4.5e13, 2e-5 + 16 * n * n / 1e10
        parts = Parts(
            session=0, alloc_s=[1e-6], upload_s=[copy_s * 0.7], launch_s=[4e-6], sync_s=[2e-6],
            single_s=[gpu_s], download_s=[copy_s * 0.3],
        )  # fmt: skip
        always, once = (case(n=n, regime=r, device="cupy:0") for r in ("transfer-always", "transfer-once"))
        found += [
            measured(case(n=n), cpu_s, sessions=SESSIONS), measured(case(n=n, implementation="tuned"), cpu_s * 0.9, sessions=SESSIONS),
            measured(case(n=n, device="cupy:0"), gpu_s, sessions=SESSIONS, cold_s=gpu_s * 0.9),
            measured(once, gpu_s + copy_s / 10, sessions=SESSIONS), measured(always, gpu_s + copy_s, sessions=SESSIONS, parts=parts),
        ]  # fmt: skip

    def shaken(block):
        level = draw.gauss(1, 0.02)
        return replace(block, wall_s=[v * level * draw.gauss(1, 0.02) for v in block.wall_s])

    found = [replace(outcome, blocks=[shaken(block) for block in outcome.blocks]) for outcome in found]
    return run_of([*found, skipped(case(n=2**15, device="cupy:0"))], sessions=SESSIONS)


def rearranged(run, seed, *, renumbered=True):
    """The same measurements, with outcomes, blocks and sessions in another order and the sessions numbered anew."""
    draw = random.Random(seed)
    old = [record.index for record in run.sessions]
    numbers = dict(zip(old, draw.sample(old, len(old)) if renumbered else old, strict=True))
    outcomes = []
    for outcome in draw.sample(run.outcomes, len(run.outcomes)):
        if isinstance(outcome, Measurement):
            lists = {name: getattr(outcome, name) for name in ("blocks", "parts", "stops")}
            outcome = replace(outcome, **{
                name: [replace(x, session=numbers[x.session]) for x in draw.sample(kept, len(kept))] for name, kept in lists.items()
            })  # fmt: skip
        outcomes.append(outcome)
    records = [replace(x, index=numbers[x.index]) for x in run.sessions]
    return replace(run, outcomes=outcomes, sessions=draw.sample(records, len(records)))


def documents(*runs):
    return [json.loads(render([run], "json")) for run in runs]


@settings(max_examples=examples(5), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_report_is_the_same(seed, order):
    run = noisy_run(seed)
    before, after = documents(run, rearranged(run, order))
    for name in before:
        assert after[name] == before[name], name


@pytest.mark.parametrize("make", [full_run, hybrid_run])
def test_the_report_of_every_kind_of_case_is_the_same(make):
    """Of a split session 0 has chosen the share."""
    before, after = documents(make(), rearranged(make(), 3, renumbered=False))
    for name in before:
        assert after[name] == before[name], name
