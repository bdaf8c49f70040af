"""What a file says does not depend on the order in which anything in it stands, nor on how its sessions are numbered."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.report import render
from gpubench.result.run import Measurement, Parts, Run
from tests.examples import examples
from tests.unit.report.builders import case, measured, run_of, skipped

SESSIONS = 5
SIZES = (64, 256, 1024, 4096)
LISTS = ("alloc_s", "upload_s", "launch_s", "sync_s", "single_s", "download_s")


def noisy_run(seed: int) -> Run:
    """A CPU and a GPU over four sizes and three regimes, with fresh timings around a break-even and a skip."""
    draw = random.Random(seed)
    found = []
    for n in SIZES:
        cpu_s, gpu_s, copy_s = 3e-6 + 2 * n**3 / 8e11, 12e-6 + 2 * n**3 / 4.5e13, 2e-5 + 16 * n * n / 1e10
        parts = Parts(
            session=0, alloc_s=[1e-6], upload_s=[copy_s * 0.7], launch_s=[4e-6], sync_s=[2e-6],
            single_s=[gpu_s], download_s=[copy_s * 0.3],
        )  # fmt: skip
        always, once = (case(n=n, regime=r, device="cupy:0") for r in ("transfer-always", "transfer-once"))
        found += [
            measured(case(n=n), cpu_s, sessions=SESSIONS), measured(case(n=n, implementation="tuned"), cpu_s * 0.9, sessions=SESSIONS),
            measured(case(n=n, device="cupy:0"), gpu_s, sessions=SESSIONS, cold_s=gpu_s * 0.9),
            measured(once, gpu_s + copy_s / 10, sessions=SESSIONS),
            measured(always, gpu_s + copy_s, sessions=SESSIONS, parts=parts),
        ]  # fmt: skip
    found = [shaken(outcome, draw) for outcome in found]
    return run_of([*found, skipped(case(n=2**15, device="cupy:0"))], sessions=SESSIONS)


def shaken(outcome: Measurement, draw: random.Random) -> Measurement:
    """Add noise between and within sessions."""
    blocks = []
    for block in outcome.blocks:
        level = draw.gauss(1, 0.02)
        blocks.append(
            msgspec.structs.replace(block, wall_s=[v * level * draw.gauss(1, 0.02) for v in block.wall_s])
        )
    return msgspec.structs.replace(outcome, blocks=blocks)


def rearranged(run: Run, seed: int) -> Run:
    """The same measurements, with outcomes, blocks and sessions in another order and the sessions numbered anew."""
    draw = random.Random(seed)
    numbers = draw.sample(range(SESSIONS), SESSIONS)
    outcomes = []
    for outcome in draw.sample(run.outcomes, len(run.outcomes)):
        if isinstance(outcome, Measurement):
            renumbered = {
                name: [
                    msgspec.structs.replace(x, session=numbers[x.session]) for x in draw.sample(kept, len(kept))
                ]
                for name, kept in (
                    ("blocks", outcome.blocks),
                    ("parts", outcome.parts),
                    ("stops", outcome.stops),
                )
            }
            outcome = msgspec.structs.replace(outcome, **renumbered)
        outcomes.append(outcome)
    records = [msgspec.structs.replace(x, index=numbers[x.index]) for x in run.sessions]
    return msgspec.structs.replace(run, outcomes=outcomes, sessions=draw.sample(records, len(records)))


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_report_is_the_same(seed, order):
    run = noisy_run(seed)
    before, after = (json.loads(render([one], "json")) for one in (run, rearranged(run, order)))
    for name in before:
        assert after[name] == before[name], name


def slowed(run: Run, factor: float) -> Run:
    """The same run on a machine on which everything takes `factor` times as long."""

    def times(values: list[float] | None) -> list[float] | None:
        return None if values is None else [value * factor for value in values]

    outcomes = []
    for outcome in run.outcomes:
        if isinstance(outcome, Measurement):
            blocks = [
                msgspec.structs.replace(
                    x,
                    wall_s=times(x.wall_s),
                    device_cold_s=times(x.device_cold_s),
                    device_hot_s=times(x.device_hot_s),
                )
                for x in outcome.blocks
            ]
            parts = [
                msgspec.structs.replace(
                    x, **{name: times(getattr(x, name)) for name in x.__struct_fields__ if name in LISTS}
                )
                for x in outcome.parts
            ]
            outcome = msgspec.structs.replace(outcome, blocks=blocks, parts=parts)
        outcomes.append(outcome)
    return msgspec.structs.replace(run, outcomes=outcomes)


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2.0, 64.0]))
def test_what_is_a_ratio_does_not_depend_on_the_unit_of_time(seed, factor):
    """Nothing but times and rates changes; a power of two keeps every digit."""
    run = noisy_run(seed)
    before, after = (json.loads(render([one], "json")) for one in (run, slowed(run, factor)))
    for name in ("speedups", "means"):
        assert after[name] == before[name], name
    # What is known of how calls scatter before they are timed knows long calls from short ones.
    for one, other in zip(before["break_even"], after["break_even"], strict=True):
        assert [other[key] for key in ("op", "regime", "first", "last")] == [
            one[key] for key in ("op", "regime", "first", "last")
        ]
        assert (other["n"] is None) == (one["n"] is None)
        assert one["n"] is None or other["n"] == pytest.approx(one["n"], rel=0.25)
    calls = [
        [{key: row[key] for key in ("op", "n", "verdict", "calls", "lo", "hi")} for row in one["amortization"]]
        for one in (before, after)
    ]
    assert before["speedups"]
    assert before["break_even"]
    assert calls[0] == calls[1] != []
