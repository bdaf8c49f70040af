"""The roofline: peaks from copy and matmul alone, shared by backends of one GPU, never clipped, never derived."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.roofline import roofline
from tests.examples import examples
from tests.unit.report.builders import CPU, case, measured, run_of
from tests.unit.report.parts import LARGE, SHARED, copied, multiplied


def peaks_of(*outcomes, devices=SHARED):
    return roofline(analyse(run_of(outcomes, devices=devices)))


def test_backends_of_one_device_share_its_peak():
    webgpu = copied(4200, implementation="tuned", device="wgpu:0")
    found = peaks_of(copied(4000, device="cupy:0"), webgpu, multiplied(50, device="cupy:0"))
    (peak,) = found.peaks
    assert peak.device_ids == ("cupy:0", "wgpu:0")
    assert (peak.bytes_per_s, peak.flops_per_s) == (pytest.approx(4.2e12), pytest.approx(5e13))
    assert peak.ridge == pytest.approx(5e13 / 4.2e12)
    shares = {row.case.id: row.share for row in found.rows}
    assert shares[case("copy", LARGE, device="cupy:0").id] == pytest.approx(4000 / 4200)
    found = peaks_of(
        copied(80),
        copied(100, device="torch:cpu"),
        devices=[CPU, replace(CPU, id="torch:cpu", backend="torch")],
    )
    assert ([peak.device_ids for peak in found.peaks], found.rows[0].share) == (
        [("numpy:0", "torch:cpu")],
        pytest.approx(0.8),
    )


@given(st.floats(1e-6, 1e3), st.floats(1e9, 1e13), st.floats(1e9, 1e15))
@settings(max_examples=examples(50), deadline=None)
def test_the_peak_is_the_minimum_of_both(seconds, bytes_per_s, flops_per_s):
    found = peaks_of(
        measured(case("copy", LARGE, device="cupy:0"), 1e6, hot_s=8 * LARGE / bytes_per_s),
        measured(case(n=8192, device="cupy:0"), 1e6, hot_s=2 * 8192**3 / flops_per_s),
        measured(case("add", LARGE, device="cupy:0"), 1e6, hot_s=seconds),
    )
    row = next(row for row in found.rows if row.case.case.op == "add")
    memory_s, compute_s = 12 * LARGE / bytes_per_s, LARGE / flops_per_s
    assert row.share == pytest.approx(max(memory_s, compute_s) / seconds, rel=1e-6)
    assert row.bound == ("memory" if memory_s >= compute_s else "compute")


def test_a_cached_copy_is_no_peak_where_a_larger_one_was_measured():
    small = copied(9000, 2**20, device="cupy:0")
    found = peaks_of(small, copied(4000, device="cupy:0"))
    (peak,) = found.peaks
    assert (peak.bytes_per_s, peak.cache_sized) == (pytest.approx(4e12), False)
    rows = {row.case.id == small.id: row for row in found.rows}
    assert rows[True].share == pytest.approx(9 / 4)  # more than all of it: marked, and not clipped
    assert (rows[True].in_cache, rows[False].in_cache) == (True, False)


def test_no_dtype_takes_the_compute_peak_of_another():
    double = multiplied(58, dtype="float64", device="cupy:0")
    single = measured(case(n=64, device="cupy:0", implementation="tuned"), 1.0, hot_s=1.0)
    found = peaks_of(copied(4000, device="cupy:0"), double, replace(single, flops=10**15))
    peaks = {peak.dtype: peak for peak in found.peaks}
    flops_per_s = {dtype: peak.flops_per_s for dtype, peak in peaks.items()}
    assert flops_per_s == pytest.approx({"float64": 5.8e13, "float32": 1e15})
    assert peaks["float64"].bytes_per_s == peaks["float32"].bytes_per_s  # bytes are bytes
    without = peaks_of(copied(4000, device="cupy:0"), double)
    assert {peak.dtype: peak.flops_per_s for peak in without.peaks}["float32"] is None


def test_the_ratio_to_the_vendor_library_is_device_time_against_device_time():
    library = measured(case("add", LARGE, device="cupy:0"), 9.0, hot_s=4e-4)
    ours = measured(case("add", LARGE, implementation="tuned", device="wgpu:0"), 5.0, hot_s=2e-4)
    host = measured(case("add", LARGE), 1.0)
    ratios = {row.case.case.device_id: row.to_library for row in peaks_of(library, ours, host).rows}
    assert ratios == {"cupy:0": None, "wgpu:0": pytest.approx(2.0), "numpy:0": None}
