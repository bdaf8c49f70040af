"""The hot time of a device without a clock, on sessions whose costs are known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import backends
from gpubench.measure.worker import timer


class Session:
    """A sample costs `fixed_s` once and `launch_s` for each launch; `late` samples are interrupted for a second."""

    def __init__(self, fixed_s, launch_s, late=()):
        self.now, self.fixed_s, self.launch_s = 0.0, fixed_s, launch_s
        self.late, self.samples, self.launches = set(late), 0, 0

    def clock(self):
        return self.now

    def run(self, launch, repeat):
        self.now += repeat * self.launch_s + (1.0 if self.samples in self.late else 0.0)
        self.samples, self.launches = self.samples + 1, self.launches + repeat

    def sync(self):
        self.now += self.fixed_s


@given(st.floats(0, 1e-2), st.floats(1e-7, 1e-1), st.integers(1, 1000))
def test_what_a_sample_costs_besides_is_not_inside(fixed_s, launch_s, repeat):
    session = Session(fixed_s, launch_s)
    assert timer.derived_hot_s(session, None, repeat) == pytest.approx(launch_s, rel=1e-6, abs=1e-9)
    assert session.launches == 4 * repeat


def test_a_difference_that_is_no_time_is_none():
    assert timer.derived_hot_s(Session(0.0, 1e-3, late=[0]), None, 10) is None
    assert timer.derived_hot_s(Session(0.0, 1e-3, late=[1]), None, 10) > 1e-3


@given(st.floats(0, 1e-2), st.floats(1e-7, 1.0))
def test_launches_last_long_enough_and_not_much_longer(fixed_s, launch_s):
    repeat = timer.launches(Session(fixed_s, launch_s), None, 2048)
    assert 1 <= repeat <= 2048
    assert repeat * launch_s + fixed_s >= timer.SPAN_S or repeat == 2048
    assert repeat == 1 or repeat * launch_s <= 2 * timer.SPAN_S


@pytest.mark.parametrize(("device", "so"), [("fake:no-clock", True), ("fake:gpu", False), ("fake:cpu", False)])
def test_only_a_gpu_without_a_clock_needs_it(device, so):
    assert timer.derives(backends.load("fake").open(device)) is so
    assert not timer.derives(SimpleNamespace(device=SimpleNamespace(kind="hybrid", clock=None))), (
        "nor does a split"
    )
