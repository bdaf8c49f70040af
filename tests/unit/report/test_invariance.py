"""What a file says does not depend on the order in which anything in it stands, nor on how its sessions are numbered."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.report import render
from gpubench.result.run import Measurement
from tests.examples import examples
from tests.unit.report.samples import full_run, hybrid_run
from tests.unit.report.test_decisions import crossing


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
    run = crossing(seed % 100, sessions=3)
    before, after = documents(run, rearranged(run, order))
    for name in before:
        assert after[name] == before[name], name


@pytest.mark.parametrize("make", [full_run, hybrid_run])
def test_the_report_of_every_kind_of_case_is_the_same(make):
    """Of a split session 0 has chosen the share."""
    before, after = documents(make(), rearranged(make(), 3, renumbered=False))
    for name in before:
        assert after[name] == before[name], name
