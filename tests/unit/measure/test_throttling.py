"""Which readings speak for which samples: times and clocks made up, every answer known."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.measure.monitor import SLOWED, Monitor, Reading, is_slowed_down, judge_block
from gpubench.result.run import Block

FULL = 2e9


def block(entries, warmup):
    return Block(session=0, round=0, position=0, repeat=1, warmup=warmup, wall_s=[1.0] * entries)


def read(t_s, clock_hz=FULL, *throttle):
    return Reading("cupy:0", t_s, clock_hz, throttle=list(throttle))


TIMES = [0.0, 1.0, 2.0, 3.0, 4.0]  # warm-up until 2, two samples


HOT, SLOW = "hw_thermal_slowdown", "hw_slowdown"


@pytest.mark.parametrize(
    ("counted", "readings", "discarded", "clock_hz", "throttle"),
    [
        (None, [read(1.5), read(2.5, FULL, SLOW), read(3.5)], {"2": "throttled"}, [FULL, FULL], [SLOW]),
        (
            None,
            [read(1.9), read(4.05, FULL, HOT)],
            {"3": "throttled"},
            [FULL, FULL],
            [HOT],
        ),  # the nearer one counts
        (None, [read(0.5, FULL, HOT), read(2.2), read(3.2)], {}, [FULL, FULL], [HOT]),  # in the warm-up alone
        ([1.9e9, 1.8e9], [read(2.5), read(3.5, FULL, SLOW)], {"3": "throttled"}, [1.9e9, 1.8e9], [SLOW]),
        (None, [read(2.5, None)], {}, None, []),  # a device that does not tell its clock
    ],
)
def test_a_sample_is_judged_by_the_readings_during_it(counted, readings, discarded, clock_hz, throttle):
    """A clock that the device counted itself stays, and heat is read all the same."""
    found = judge_block(msgspec.structs.replace(block(4, 2), clock_hz=counted), TIMES, readings, FULL)
    assert (found.discarded, found.clock_hz, found.throttle or []) == (discarded, clock_hz, throttle)


def test_without_readings_the_block_stays_as_it_is():
    assert judge_block(block(4, 2), TIMES, [], None) == block(4, 2)


@pytest.mark.parametrize(
    ("reading", "usual", "is_slow"),
    [
        *((read(0.0, FULL, reason), None, True) for reason in sorted(SLOWED)),
        *((read(0.0, FULL, reason), FULL, False)
          for reason in ("applications_clocks", "sync_boost", "display_clocks", "sw_power_cap")),
        (read(0.0, 0.91 * FULL), FULL, False), (read(0.0, 0.89 * FULL), FULL, True), (read(0.0, 0.1 * FULL), None, False),
        (read(0.0, 0.5 * FULL, "sw_power_cap"), FULL, False),  # which explains a low clock
    ],
    ids=str,
)  # fmt: skip
def test_heat_and_power_slow_and_a_clock_below_nine_tenths_of_the_usual_one(reading, usual, is_slow):
    assert is_slowed_down(reading, usual) == is_slow


def test_a_block_is_compared_with_the_clocks_of_the_blocks_before_it():
    monitor = Monitor([], 0.0)
    shares = [1.0, 0.98, 0.85, 0.97, 0.95]
    judgements = [monitor.judge("cupy:0", block(4, 2), TIMES, [read(2.5, share * FULL)]) for share in shares]
    assert [bool(found.discarded) for found in judgements] == [False, False, True, False, False]
    other = monitor.judge("wgpu:0", block(4, 2), TIMES, [read(2.5, 0.5 * FULL)])
    assert not other.discarded, "another device has a clock of its own"


clocks = st.floats(1e8, 3e9)
reasons = st.sets(st.sampled_from(["hw_slowdown", "sw_power_cap", "hw_power_brake", "sync_boost"]))


@given(
    st.integers(0, 4), st.integers(1, 6), st.lists(st.tuples(st.floats(-1, 12), clocks, reasons), max_size=8), clocks,
)  # fmt: skip
def test_only_used_samples_are_discarded_and_nothing_else_changes(warmup, samples, readings, usual):
    before = block(warmup + samples, warmup)
    times = [float(i) for i in range(warmup + samples + 1)]
    found = judge_block(
        before, times, [read(t, hz, *words) for t, hz, words in sorted(readings, key=str)], usual
    )
    assert found.wall_s == before.wall_s
    assert {int(index) for index in found.discarded} <= set(range(warmup, warmup + samples))
    if readings:
        assert len(found.clock_hz or []) == samples
