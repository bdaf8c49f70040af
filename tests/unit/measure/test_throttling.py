"""Which readings speak for which samples: times and clocks made up, every answer known."""

from __future__ import annotations

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


def test_a_sample_is_judged_by_the_readings_during_it():
    found = judge_block(block(4, 2), TIMES, [read(1.5), read(2.5, FULL, "hw_slowdown"), read(3.5)], FULL)
    assert found.discarded == {"2": "throttled"}
    assert found.clock_hz == [FULL, FULL]
    assert found.throttle == ["hw_slowdown"]


def test_between_two_readings_the_nearer_one_counts():
    found = judge_block(block(4, 2), TIMES, [read(1.9), read(4.05, FULL, "hw_thermal_slowdown")], FULL)
    assert found.discarded == {"3": "throttled"}


def test_heat_during_the_warm_up_alone_spoils_nothing():
    found = judge_block(
        block(4, 2), TIMES, [read(0.5, FULL, "hw_thermal_slowdown"), read(2.2), read(3.2)], FULL
    )
    assert found.discarded == {}
    assert found.throttle == ["hw_thermal_slowdown"]


def test_without_readings_the_block_stays_as_it_is():
    assert judge_block(block(4, 2), TIMES, [], None) == block(4, 2)


def test_a_clock_that_the_device_counted_itself_stays_and_heat_is_read_all_the_same():
    counted = msgspec.structs.replace(block(4, 2), clock_hz=[1.9e9, 1.8e9])
    found = judge_block(counted, TIMES, [read(2.5), read(3.5, FULL, "hw_slowdown")], FULL)
    assert found.clock_hz == [1.9e9, 1.8e9]
    assert found.discarded == {"3": "throttled"}


def test_a_device_that_does_not_tell_its_clock_has_none_in_the_file():
    assert judge_block(block(4, 2), TIMES, [read(2.5, None)], None).clock_hz is None


@pytest.mark.parametrize("reason", sorted(SLOWED))
def test_every_reason_of_heat_or_power_slows(reason):
    assert is_slowed_down(read(0.0, FULL, reason), None)


@pytest.mark.parametrize("reason", ["applications_clocks", "sync_boost", "display_clocks", "sw_power_cap"])
def test_settings_and_the_software_power_cap_are_no_fault(reason):
    assert not is_slowed_down(read(0.0, FULL, reason), FULL)


@pytest.mark.parametrize(
    ("clock", "usual", "is_slow"), [(0.91, 1.0, False), (0.89, 1.0, True), (0.1, None, False)]
)
def test_the_clock_is_compared_with_nine_tenths_of_the_usual_one(clock, usual, is_slow):
    assert is_slowed_down(read(0.0, clock * FULL), usual and usual * FULL) == is_slow


def test_the_power_cap_explains_a_low_clock():
    assert not is_slowed_down(read(0.0, 0.5 * FULL, "sw_power_cap"), FULL)


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
    st.integers(0, 4),
    st.integers(1, 6),
    st.lists(st.tuples(st.floats(-1, 12), clocks, reasons), max_size=8),
    clocks,
)
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
