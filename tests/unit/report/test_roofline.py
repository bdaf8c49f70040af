"""The roofline: peaks from copy and matmul alone, shared by backends of one GPU, never clipped, never derived."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse
from gpubench.analysis.roofline import OUT_OF_CACHE_BYTES, Roofline, roofline
from gpubench.report import render
from gpubench.result.run import DeviceClock, Measurement
from tests.examples import examples
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, measured, run_of

LARGE = 2**26  # a copy of float32 moves 512 MiB
SHARED = (
    CPU,
    msgspec.structs.replace(GPU, gpu_id="GPU-1"),
    msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu", gpu_id="GPU-1"),
)


def peaks_of(*outcomes: Measurement, devices=SHARED) -> Roofline:
    return roofline(analyse(run_of(outcomes, devices=devices)))


def copied(gb_per_s: float, n: int = LARGE, **where) -> Measurement:
    what = case("copy", n, **where)
    return measured(what, 2 * 8 * n / gb_per_s / 1e9, hot_s=8 * n / gb_per_s / 1e9)


def multiplied(tflops: float, n: int = 4096, **where) -> Measurement:
    seconds = 2 * n**3 / tflops / 1e12
    return measured(case(n=n, **where), 2 * seconds, hot_s=seconds)


def shares(found):
    return {row.case.id: row.share for row in found.rows}


def test_backends_of_one_gpu_share_its_peak():
    found = peaks_of(
        copied(4000, device="cupy:0"),
        copied(4200, form="tuned", device="wgpu:0"),
        multiplied(50, device="cupy:0"),
    )
    (peak,) = found.peaks
    assert peak.device_ids == ("cupy:0", "wgpu:0")
    assert peak.bytes_per_s == pytest.approx(4.2e12)
    assert peak.flops_per_s == pytest.approx(5e13)
    assert peak.ridge == pytest.approx(5e13 / 4.2e12)
    assert shares(found)[case("copy", LARGE, device="cupy:0").id] == pytest.approx(4000 / 4200)


def test_other_gpus_and_the_cpu_have_peaks_of_their_own():
    apart = tuple(msgspec.structs.replace(device, gpu_id=None) for device in SHARED)
    rows = (copied(4000, device="cupy:0"), copied(4200, device="wgpu:0"), copied(80))
    assert [peak.device_ids for peak in peaks_of(*rows, devices=apart).peaks] == [
        ("numpy:0",), ("cupy:0",), ("wgpu:0",),
    ]  # fmt: skip


def test_the_device_clock_counts_and_wall_time_where_there_is_none():
    found = peaks_of(copied(4000, device="cupy:0"), measured(case("copy", LARGE), 8 * LARGE / 80e9))
    clocks = {row.case.case.device_id: row.clock for row in found.rows}
    assert clocks == {"cupy:0": "device_hot", "numpy:0": "wall"}
    assert [round(peak.bytes_per_s / 1e9) for peak in found.peaks] == [80, 4000]


def test_a_case_is_bound_by_the_lower_peak():
    low = measured(case("add", LARGE, device="cupy:0"), 1.0, hot_s=12 * LARGE / 2e12)
    high = multiplied(25, 2048, device="cupy:0")
    found = peaks_of(copied(4000, device="cupy:0"), multiplied(50, device="cupy:0"), low, high)
    rows = {row.case.id: row for row in found.rows}
    assert (rows[low.id].bound, rows[high.id].bound) == ("memory", "compute")
    assert rows[low.id].share == pytest.approx(0.5)
    assert rows[high.id].share == pytest.approx(0.5)


@given(st.floats(1e-6, 1e3), st.floats(1e9, 1e13), st.floats(1e9, 1e15))
@settings(max_examples=examples(50), deadline=None)
def test_the_peak_is_the_minimum_of_both(seconds, bytes_per_s, flops_per_s):
    found = peaks_of(
        measured(case("copy", LARGE, device="cupy:0"), 1e6, hot_s=8 * LARGE / bytes_per_s),
        measured(case(n=8192, device="cupy:0"), 1e6, hot_s=2 * 8192**3 / flops_per_s),
        measured(case("add", LARGE, device="cupy:0"), 1e6, hot_s=seconds),
    )
    share = next(row.share for row in found.rows if row.case.case.op == "add")
    assert share == pytest.approx(max(12 * LARGE / bytes_per_s, LARGE / flops_per_s) / seconds, rel=1e-6)


def test_a_cached_copy_is_no_peak_where_a_larger_one_was_measured():
    small = copied(9000, 2**20, device="cupy:0")
    found = peaks_of(small, copied(4000, device="cupy:0"))
    (peak,) = found.peaks
    assert peak.bytes_per_s == pytest.approx(4e12)
    assert not peak.cache_sized
    row = next(row for row in found.rows if row.case.id == small.id)
    assert row.share == pytest.approx(9 / 4)  # more than all of it: marked, and not clipped
    assert row.in_cache
    assert next(row for row in found.rows if row.case.id != small.id).in_cache is False


def test_a_peak_of_small_copies_says_so():
    found = peaks_of(copied(9000, 2**20, device="cupy:0"), copied(100, 2**10, device="cupy:0"))
    (peak,) = found.peaks
    assert peak.cache_sized
    assert peak.bytes_per_s == pytest.approx(9e12)
    run = run_of([copied(9000, 2**20, device="cupy:0")], devices=SHARED)
    assert "* of small sizes" in render([run], "plain", sections=["roofline"])


def test_256_mib_are_out_of_cache():
    n = OUT_OF_CACHE_BYTES // 8
    assert not peaks_of(copied(4000, n, device="cupy:0")).peaks[0].cache_sized
    assert peaks_of(copied(4000, n - 1, device="cupy:0")).peaks[0].cache_sized


def test_no_dtype_takes_the_compute_peak_of_another():
    double = multiplied(58, dtype="float64", device="cupy:0")
    single = measured(case(n=64, device="cupy:0", form="tuned"), 1.0, hot_s=1.0)
    found = peaks_of(copied(4000, device="cupy:0"), double, msgspec.structs.replace(single, flops=10**15))
    peaks = {peak.dtype: peak for peak in found.peaks}
    assert peaks["float64"].flops_per_s == pytest.approx(5.8e13)
    assert peaks["float32"].flops_per_s == pytest.approx(1e15)
    assert peaks["float64"].bytes_per_s == peaks["float32"].bytes_per_s  # bytes are bytes
    without = peaks_of(copied(4000, device="cupy:0"), double)
    assert {peak.dtype: peak.flops_per_s for peak in without.peaks}["float32"] is None


def test_variants_make_no_peak_and_tf32_has_none():
    tf32 = multiplied(300, variant="tf32", device="cupy:0")
    naive = multiplied(5, variant="naive", form="tuned", device="wgpu:0")
    found = peaks_of(multiplied(50, device="cupy:0"), tf32, naive)
    (peak,) = found.peaks
    assert peak.flops_per_s == pytest.approx(5e13)
    assert shares(found)[tf32.id] is None
    assert shares(found)[naive.id] == pytest.approx(0.1)


def test_transfers_and_implausible_cases_stand_below_no_peak():
    always = measured(case("copy", LARGE, regime="transfer-always", device="cupy:0"), 1.0)
    impossible = measured(case("copy", LARGE, form="tuned", device="cupy:0"), 1e-3, hot_s=1.0)
    found = peaks_of(copied(4000, device="cupy:0"), always, impossible)
    assert [row.case.id for row in found.rows] == [case("copy", LARGE, device="cupy:0").id]


def test_the_ratio_to_the_vendor_library_is_device_time_against_device_time():
    library = measured(case("add", LARGE, device="cupy:0"), 9.0, hot_s=4e-4)
    ours = measured(case("add", LARGE, form="tuned", device="wgpu:0"), 5.0, hot_s=2e-4)
    host = measured(case("add", LARGE), 1.0)
    ratios = {row.case.case.device_id: row.to_library for row in peaks_of(library, ours, host).rows}
    assert ratios == {"cupy:0": None, "wgpu:0": pytest.approx(2.0), "numpy:0": None}


def test_a_hot_time_derived_from_wall_times_says_so_and_is_no_side_of_a_ratio_of_device_times():
    mute = msgspec.structs.replace(SHARED[2], clock=DeviceClock(kind="derived", step_s=1e-9))
    run = run_of(
        [copied(4000, device="cupy:0"), copied(4000, form="tuned", device="wgpu:0")],
        devices=(*SHARED[:2], mute),
    )
    rows = {row.case.case.device_id: row for row in roofline(analyse(run)).rows}
    assert {name: row.clock for name, row in rows.items()} == {"cupy:0": "device_hot", "wgpu:0": "derived"}
    assert rows["wgpu:0"].time_s == pytest.approx(rows["cupy:0"].time_s)
    assert rows["wgpu:0"].to_library is None
    text = render([run], "markdown")
    assert "100% d" in text
    assert "d: derived from wall times, the device has no clock" in text


def test_without_copy_and_matmul_there_is_a_hint():
    run = run_of([measured(case("add", LARGE, device="cupy:0"), 1e-3)])
    text = render([run], "plain", sections=["roofline"])
    assert "not measured: gpubench run --ops roofline" in text


def test_one_peak_alone_judges_its_own_kind():
    add = measured(case("add", LARGE, device="cupy:0"), 1.0, hot_s=12 * LARGE / 2e12)
    assert shares(peaks_of(multiplied(50, device="cupy:0"), add))[add.id] is None
    product = multiplied(50, device="cupy:0")
    assert shares(peaks_of(copied(4000, device="cupy:0"), add))[add.id] == pytest.approx(0.5)
    assert shares(peaks_of(product, add))[product.id] == pytest.approx(1.0)


def test_the_order_of_the_file_changes_nothing():
    rows = [
        copied(4000, device="cupy:0"), copied(4000, form="tuned", device="wgpu:0"), copied(80),
        multiplied(50, device="cupy:0"), multiplied(50, 8192, device="wgpu:0", form="tuned"),
    ]  # fmt: skip
    assert peaks_of(*rows) == peaks_of(*reversed(rows))


def test_a_run_made_for_its_peaks_leads_with_them():
    run = run_of([copied(4000, device="cupy:0"), multiplied(50, device="cupy:0")])
    made = msgspec.structs.replace(run.selection, ops=["copy", "matmul"], regimes=["resident-queued"])
    text = render([msgspec.structs.replace(run, selection=made)], "plain")
    assert text.index("Roofline") < text.index("The GPU was measured")
    text = render([run], "plain")
    assert text.index("The GPU was measured") < text.index("Roofline")


def test_a_terminal_shows_the_largest_size_and_markdown_all():
    rows = [copied(4000, n, device="cupy:0") for n in (2**24, LARGE)]
    run = run_of(rows, devices=(CPU, GPU, SOFTWARE))
    assert " 16 M " not in render([run], "plain").partition("Roofline")[2]
    assert " 16 M " in render([run], "plain", sections=["roofline"])
    assert " 16 M " in render([run], "markdown").partition("Roofline")[2]


def test_below_a_peak_of_small_sizes_a_terminal_shows_no_case():
    rows = [copied(9000, 2**20, device="cupy:0"), multiplied(18, 512, device="cupy:0")]
    run = run_of(rows, devices=SHARED)
    assert all(row.weak_peak for row in roofline(analyse(run)).rows)
    text = render([run], "plain")
    assert "18.0 TFLOP/s *" in text
    assert "Left out: cases below a peak of small sizes alone" in text
    assert "100%" not in text.partition("Roofline")[2]
    assert "100%" in render([run], "plain", sections=["roofline"])
    strong = peaks_of(*rows, copied(4000, device="cupy:0"), multiplied(50, 2048, device="cupy:0"))
    assert not any(row.weak_peak for row in strong.rows)


def test_variants_that_were_asked_for_have_a_row_whatever_the_peak():
    small = run_of(
        [
            multiplied(9, 256, form="tuned", device="cupy:0"),
            multiplied(1, 256, form="tuned", device="cupy:0", variant="naive"),
            multiplied(9, 256, form="tuned", device="wgpu:0", dtype="float64"),
        ],
        devices=SHARED,
    )
    text = render([small], "plain")
    assert "tuned naive" in text
    assert "* of small sizes" in text
    shown = text.partition("Cases\n")[2]
    assert "cupy:0  tuned " in shown
    assert "float64" not in shown.partition("Warnings")[0], "no ladder there, and no peak yet"


def test_tf32_has_a_row_without_a_peak():
    run = run_of(
        [multiplied(50, device="cupy:0"), multiplied(300, device="cupy:0", variant="tf32")], devices=SHARED
    )
    (line,) = [line for line in render([run], "plain").splitlines() if "lib tf32" in line]
    assert "300 TFLOP/s" in line
    assert "%" not in line


def test_a_cpu_is_occupied_by_smaller_products():
    assert not peaks_of(multiplied(0.3, 512)).peaks[0].small_matmul
    assert peaks_of(multiplied(0.3, 256)).peaks[0].small_matmul
