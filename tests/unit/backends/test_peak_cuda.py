"""The vendor's peaks by attributes of real devices, beside what their data sheets say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.backends.cupy import (
    CLOCK_KHZ,
    MEMORY_BUS_BITS,
    MEMORY_CLOCK_KHZ,
    MULTIPROCESSORS,
    vendor_peaks,
)
from gpubench.result.run import Theoretical


def reported(clock_mhz, multiprocessors, memory_mhz, bits):
    return {
        CLOCK_KHZ: clock_mhz * 1000, MULTIPROCESSORS: multiprocessors, MEMORY_CLOCK_KHZ: memory_mhz * 1000,
        MEMORY_BUS_BITS: bits,
    }.__getitem__  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "attributes", "bytes_per_s", "flops_per_s"),
    [
        ((9, 0), (1980, 132, 2619, 5120), 3.35e12, 67e12),  # H100 SXM
        ((8, 0), (1410, 108, 1593, 5120), 2.04e12, 19.5e12),  # A100 80 GB
        ((6, 0), (1480, 56, 715, 4096), 732e9, 10.6e12),  # P100 SXM
    ],
)
def test_data_sheets_agree_within_a_percent(capability, attributes, bytes_per_s, flops_per_s):
    found = vendor_peaks(reported(*attributes), capability)
    assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)
    assert found.flops_per_s == {"float32": pytest.approx(flops_per_s, rel=0.01)}
    assert found.source


@pytest.mark.parametrize(
    ("capability", "attributes", "bytes_per_s"),
    [
        ((12, 0), (2400, 170, 14001, 512), 1.79e12),  # unknown units
        ((8, 9), (2520, 128, 10501, 384), 1.008e12),  # RTX 4090: it runs faster than CUDA tells
        ((7, 5), (1590, 40, 5001, 256), 320e9),
    ],
)
def test_a_clock_that_is_no_limit_sets_no_peak_of_arithmetic(capability, attributes, bytes_per_s):
    found = vendor_peaks(reported(*attributes), capability)
    assert found.flops_per_s == {}
    assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)


def test_a_board_whose_memory_is_the_cpu_s_has_none():
    assert vendor_peaks(reported(1300, 16, 1600, 256), (8, 7)) == Theoretical()


@given(
    st.sets(st.sampled_from([CLOCK_KHZ, MULTIPROCESSORS, MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS]), min_size=1),
    st.booleans(),
)
def test_what_is_not_told_sets_no_peak(missing, raises):
    def attribute(number):
        if number not in missing:
            return 1000
        if raises:
            raise RuntimeError("invalid attribute")
        return 0

    found = vendor_peaks(attribute, (9, 0))
    assert (found.bytes_per_s is None) == bool(missing & {MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS})
    assert (found.flops_per_s == {}) == bool(missing & {CLOCK_KHZ, MULTIPROCESSORS})
    if len(missing) == 4:
        assert found == Theoretical()
