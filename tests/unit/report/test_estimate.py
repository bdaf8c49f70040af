"""Which samples count, what the estimate is, and which label a case gets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.findings import findings
from gpubench.curves import stats
from gpubench.result.machine import Fact, Gpu, Link
from gpubench.result.run import (
    DeviceClock,
    Measurement,
    Parts,
    Peak,
    Run,
    SessionRecord,
    Settings,
    Stop,
    Theoretical,
)
from tests.examples import examples
from tests.unit.report.builders import (
    CPU,
    GPU,
    QUIET,
    SOFTWARE,
    case,
    failed,
    measured,
    planned,
    run_of,
    skipped,
)


def row_of(run: Run, index: int = 0) -> CaseResult:
    return analyse(run).cases[index]


def with_sessions(run: Run, **fields: object) -> Run:
    sessions = [msgspec.structs.replace(session, **fields) for session in run.sessions]
    return msgspec.structs.replace(run, sessions=sessions)


def with_blocks(outcome: Measurement, **fields: object) -> Measurement:
    blocks = [msgspec.structs.replace(block, **fields) for block in outcome.blocks]
    return msgspec.structs.replace(outcome, blocks=blocks)


def test_warm_up_never_counts():
    row = row_of(run_of([measured(case(), 1e-3)]))
    assert row.time is not None
    assert row.time.estimate == pytest.approx(1e-3)
    assert (row.sample_count, len(row.sessions), row.label) == (30, 3, "ok")


def test_superseded_sessions_do_not_count():
    run = run_of([measured(case(), 1e-3)])
    sessions = [msgspec.structs.replace(s, superseded=s.index == 1) for s in run.sessions]
    assert list(row_of(msgspec.structs.replace(run, sessions=sessions)).sessions) == [0, 2]


def test_a_device_time_is_the_median_of_the_session_medians():
    """Not the median of all its samples: the session with the most of them would decide."""
    what = measured(case(device="cupy:0"), 1e-3, cold_s=1e-4, hot_s=1e-4)
    times = ([1e-4] * 3, [2e-4] * 3, [9e-4] * 9)
    blocks = [
        msgspec.structs.replace(block, device_cold_s=cold, device_hot_s=[t / 2 for t in cold])
        for block, cold in zip(what.blocks, times, strict=True)
    ]
    row = row_of(run_of([msgspec.structs.replace(what, blocks=blocks)]))
    assert (row.device_cold_s, row.device_hot_s) == (2e-4, 1e-4)


def test_the_shortest_session_says_whether_samples_are_too_short():
    what = measured(case(), 1e-3, repeat=10)
    short = [
        msgspec.structs.replace(b, repeat=1, wall_s=[5e-4] * 11) if b.session == 2 else b for b in what.blocks
    ]
    assert "too-short" not in row_of(run_of([what])).findings
    assert "too-short" in row_of(run_of([msgspec.structs.replace(what, blocks=short)])).findings


def test_samples_of_a_sweep_do_not_count():
    good = measured(case(), 1e-3)
    sweep = [msgspec.structs.replace(block, phase="sweep", wall_s=[9.0] * 11) for block in good.blocks]
    row = row_of(run_of([msgspec.structs.replace(good, blocks=[*good.blocks, *sweep])]))
    assert row.time is not None
    assert row.time.high < 1.1e-3


def in_blocks(levels: Sequence[Sequence[float]]):
    """A case of 1 ms whose sessions have a block at each of these levels."""
    what = measured(case(), 1e-3, sessions=len(levels))
    blocks = [
        msgspec.structs.replace(block, round=i, wall_s=[value * level for value in block.wall_s])
        for block, ours in zip(what.blocks, levels, strict=True)
        for i, level in enumerate(ours)
    ]
    return msgspec.structs.replace(what, blocks=blocks)


@pytest.mark.parametrize(
    ("levels", "label"),
    [
        ([[1.0, 1.0, 1.0, 1.0]], "ok"),
        ([[0.9, 1.1, 0.95, 1.05]], "noisy"),
        ([[0.7, 1.3, 0.8, 1.2]], "unstable"),
        ([[0.7, 1.3, 0.8, 1.2], [1.0] * 4, [1.0] * 4], "ok"),
        ([[0.9, 1.1, 0.95, 1.05], [0.9, 1.1, 0.95, 1.05], [1.0] * 4], "noisy"),
        ([[0.7], [1.3], [1.0]], "ok"),
    ],
)
def test_noise_is_how_far_blocks_lie_apart_in_most_sessions(levels, label):
    """However quiet the samples inside each are. How far sessions differ stands in the interval, not in a label."""
    assert row_of(run_of([in_blocks(levels)])).label == label


def test_blocks_are_the_observations():
    """Ten samples in one block are one of them; in four blocks, four, whatever their number of samples."""
    one, four = row_of(run_of([in_blocks([[1.0]])])), row_of(run_of([in_blocks([[1.0] * 4])]))
    prior = stats.prior_of(1e-3, 5e-6)
    assert math.log(one.time.high / one.time.estimate) == pytest.approx(1.96 * math.hypot(*prior), rel=5e-3)
    assert four.time.high < one.time.high
    assert four.time.high == pytest.approx(stats.run_interval([[1e-3] * 4], prior).high)
    assert (one.time.n, four.time.n) == (10, 40)


@settings(max_examples=examples(30), deadline=None)
@given(
    # Further apart the slowest would count as interrupted.
    st.lists(
        st.lists(st.floats(0.7, 0.7 * 0.99 * stats.INTERRUPTED), min_size=1, max_size=4), min_size=1, max_size=7
    ),
    st.randoms(use_true_random=False),
)
def test_an_interval_is_that_of_the_blocks_of_all_sessions_in_any_order(levels, shuffle):
    run = run_of([in_blocks(levels)], sessions=len(levels))
    found = row_of(run)
    values = [[stats.median([1e-3 * level * factor for factor in QUIET]) for level in ours] for ours in levels]
    expected = stats.run_interval(values, found.prior)
    assert (found.time.low, found.time.estimate, found.time.high) == pytest.approx(expected[:3])
    assert found.time.median_s == pytest.approx(stats.median(map(stats.median, values)))
    assert found.time.low <= found.time.estimate <= found.time.high
    mixed = [shuffle.sample(ours, len(ours)) for ours in levels]
    shuffle.shuffle(mixed)
    again = row_of(run_of([in_blocks(mixed)], sessions=len(levels))).time
    assert (again.low, again.estimate, again.high) == pytest.approx(expected[:3])


def test_a_launch_that_costs_little_more_than_an_empty_one_has_a_wider_prior():
    """An empty launch of the builder's devices takes 5 us."""
    found = [row_of(run_of([measured(case(), seconds, sessions=1)])) for seconds in (1e-6, 2e-5, 1e-3)]
    assert [tuple(row.prior) for row in found] == [(0.15, 0.1), (0.15, 0.05), (0.08, 0.05)]
    widths = [row.time.high / row.time.low for row in found]
    assert widths == sorted(widths, reverse=True)


def test_the_order_of_blocks_and_sessions_changes_nothing():
    one, two = measured(case(), 1e-3), measured(case(form="tuned"), 2e-3)
    first = run_of([one, two])
    second = msgspec.structs.replace(
        run_of([two, msgspec.structs.replace(one, blocks=one.blocks[::-1])]), sessions=first.sessions[::-1]
    )
    assert analyse(first).cases == analyse(second).cases


@pytest.mark.parametrize(
    ("width", "label"),
    [(0.04, "ok"), (0.0442, "ok"), (0.0443, "noisy"), (0.08, "noisy"), (0.1106, "noisy"), (0.1107, "unstable")],
)
@pytest.mark.parametrize("noisy", [(0, 1, 2), (0, 1)])
def test_noise_labels(width, label, noisy):
    """The quartiles of the ten samples of one block lie 2 x `width` of the median apart, which more samples would show
    as 10 / 8.85 of that, in all sessions or in most."""
    what = measured(case(), 1e-3)
    blocks = [
        msgspec.structs.replace(b, wall_s=[1.0, *[1e-3 * (1 - width)] * 5, *[1e-3 * (1 + width)] * 5])
        if b.session in noisy else b for b in what.blocks
    ]  # fmt: skip
    assert row_of(run_of([msgspec.structs.replace(what, blocks=blocks)])).label == label


def test_a_throttled_case_keeps_all_its_samples():
    row = row_of(run_of([measured(case(), 1e-3, discarded={"2": "throttled"})]))
    assert (row.label, row.sample_count) == ("throttled", 30)


def test_enough_unthrottled_samples_leave_the_throttled_ones_out():
    outcome = measured(case(), 1e-3, factors=[*QUIET, 5.0], discarded={"11": "throttled"})
    run = run_of([outcome])
    row = row_of(run)
    assert (row.label, row.sample_count) == ("ok", 30)
    (reported,) = [finding for finding in findings(analyse(run)) if finding.code == "throttled"]
    assert (reported.severity, reported.ids) == ("info", (outcome.id,))
    assert "set aside" in reported.message


@pytest.mark.parametrize("reason", ["timeout", "budget"])
def test_a_deadline_before_the_minimum_gives_no_number(reason):
    row = row_of(run_of([measured(case(), 1e-3, factors=QUIET[:4], stop=reason)]))
    assert (row.time, row.reason) == (None, reason)


def test_max_time_before_the_minimum_still_gives_a_number():
    row = row_of(run_of([measured(case(), 1e-3, factors=QUIET[:4], stop="max-time")]))
    assert row.time is not None


def test_an_interrupted_case_gives_no_number():
    outcome = msgspec.structs.replace(measured(case(), 1e-3, factors=QUIET[:4], sessions=1), stops=[])
    row = row_of(run_of([outcome], complete=False))
    assert (row.time, row.reason) == (None, "no-samples")


def test_one_session_that_was_cut_short_does_not_spoil_the_others():
    good = measured(case(), 1e-3)
    blocks = [*good.blocks[:2], msgspec.structs.replace(good.blocks[2], wall_s=[1.0, 9.0])]
    stops = [*good.stops[:2], Stop(session=2, reason="budget")]
    row = row_of(run_of([msgspec.structs.replace(good, blocks=blocks, stops=stops)]))
    assert list(row.sessions) == [0, 1]


@pytest.mark.parametrize(("repeat", "label"), [(1, "too-short"), (10_000, "ok")])
def test_short_samples_are_marked(repeat, label):
    assert row_of(run_of([measured(case(), 1e-5, repeat=repeat)])).label == label


def test_foreign_load_is_marked():
    run = with_sessions(run_of([measured(case(), 1e-3)]), foreign_cpu_share=0.2)
    assert row_of(run).label == "contended"


def test_software_adapters_are_labelled():
    assert row_of(run_of([measured(case(device="wgpu:0"), 1e-3)], devices=(SOFTWARE,))).label == "software"


def test_no_clock_is_told_of_devices_without_one():
    mute = msgspec.structs.replace(GPU, clock=None)
    outcome = measured(case(device="cupy:0"), 1e-3)
    assert "no-device-clock" in row_of(run_of([outcome], devices=(mute,))).findings
    assert "no-device-clock" not in row_of(run_of([outcome])).findings


def test_rates_above_a_measured_peak_are_implausible():
    run = run_of([measured(case(n=1000, device="cupy:0"), 1e-3)])  # 2 TFLOP/s
    slow = with_sessions(run, peaks=[Peak(device_id="cupy:0", dtype="float32", flops_per_s=1.5e12)])
    fine = with_sessions(run, peaks=[Peak(device_id="cupy:0", dtype="float32", flops_per_s=1.9e12)])
    assert (row_of(slow).label, row_of(fine).label) == ("implausible", "ok")
    assert row_of(slow).detail == "2e+12 FLOP/s is above 1.10 x the measured peak of 1.5e+12"


def test_rates_above_a_theoretical_peak_are_implausible():
    device = msgspec.structs.replace(GPU, theoretical=Theoretical(flops_per_s={"float32": 1e12}))
    run = run_of([measured(case(n=1000, device="cupy:0"), 1e-3)], devices=(CPU, device))
    assert row_of(run).label == "implausible"


@pytest.mark.parametrize(("vendor", "reached"), [(1.7e12, 5e12), (5e12, 1.7e12)])
def test_the_lower_of_two_peaks_counts(vendor, reached):
    device = msgspec.structs.replace(GPU, theoretical=Theoretical(flops_per_s={"float32": vendor}))
    run = run_of([measured(case(n=1000, device="cupy:0"), 1e-3)], devices=(CPU, device))
    peak = [Peak(device_id="cupy:0", dtype="float32", flops_per_s=reached)]
    assert row_of(with_sessions(run, peaks=peak)).label == "implausible"


def test_a_peak_belongs_to_the_hardware_and_not_to_the_library_that_found_it():
    """cuBLAS found it; a kernel that wgpu runs on the same card cannot be faster, on another card it can."""
    cuda = msgspec.structs.replace(GPU, gpu_id="GPU-a")
    vulkan = msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu", api="vulkan", gpu_id="GPU-a")
    peak = [Peak(device_id="cupy:0", dtype="float32", flops_per_s=1.5e12)]
    outcome = measured(case(n=1000, device="wgpu:0"), 1e-3)
    same = run_of([outcome], devices=(CPU, cuda, vulkan))
    other = run_of([outcome], devices=(CPU, cuda, msgspec.structs.replace(vulkan, gpu_id="GPU-b")))
    assert row_of(with_sessions(same, peaks=peak)).label == "implausible"
    assert row_of(with_sessions(other, peaks=peak)).label == "ok"


@pytest.mark.parametrize(("device", "label"), [("wgpu:0", "implausible"), ("cupy:0", "ok")])
def test_the_multiply_adds_of_one_backend_are_no_peak_of_tensor_cores_in_another(device, label):
    cuda = msgspec.structs.replace(GPU, gpu_id="GPU-a")
    vulkan = msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu", api="vulkan", gpu_id="GPU-a")
    chain = [Peak(device_id="wgpu:0", dtype="float32", flops_per_s=1.5e12, own=True)]
    run = run_of([measured(case(n=1000, device=device), 1e-3)], devices=(CPU, cuda, vulkan))
    assert row_of(with_sessions(run, peaks=chain)).label == label


@pytest.mark.parametrize(
    ("foreign", "label"), [(None, "implausible"), (0.02, "implausible"), (0.5, "contended")]
)
def test_what_a_cpu_reached_while_others_used_it_is_no_peak(foreign, label):
    peak = [Peak(device_id="numpy:0", dtype="float32", flops_per_s=0.9e12)]
    run = run_of([measured(case(n=1000), 1e-3)])
    assert row_of(with_sessions(run, peaks=peak, foreign_cpu_share=foreign)).label == label


def test_a_peak_that_was_not_found_refuses_nothing():
    run = run_of([measured(case(n=1000, device="cupy:0"), 1e-3)])
    none = [
        Peak(device_id="cupy:0", dtype="float32", reason="no time"),
        Peak(device_id="cupy:0", reason="x"),
    ]
    assert row_of(with_sessions(run, peaks=none)).label == "ok"


def test_the_memory_peak_counts_above_four_caches_of_the_device():
    peak = [Peak(device_id="cupy:0", bytes_per_s=1e9)]
    outcome = measured(case("relu", 2**24, device="cupy:0"), 1e-3)  # 192 MiB
    known = msgspec.structs.replace(GPU, cache_bytes=40 * 2**20)
    small = with_sessions(run_of([outcome], devices=(CPU, known)), peaks=peak)
    large = with_sessions(run_of([outcome]), peaks=peak)
    assert (row_of(small).label, row_of(large).label) == ("implausible", "ok")


LINK = Peak(device_id="cupy:0", upload_bytes_per_s=5e10, download_bytes_per_s=4e10)


def copied(seconds, regime="transfer-always", *, n=2**20, calls=None, device="cupy:0", **fields):
    """relu of n elements: as many bytes up as down, in one iteration of `seconds`."""
    one = msgspec.structs.replace(case("relu", n, device=device), regime=regime, calls=calls)
    outcome = measured(one, seconds / (calls or 1))
    return msgspec.structs.replace(outcome, bytes=8 * n, output_bytes=4 * n, **fields)


@pytest.mark.parametrize(("regime", "calls"), [("transfer-always", None), ("transfer-once", 10)])
@pytest.mark.parametrize(("share", "label"), [(1.2, "implausible"), (1.05, "ok")])
def test_a_call_that_copies_faster_than_the_link_is_implausible(regime, calls, share, label):
    """Both ways one after the other: at most at the rate of the better direction."""
    row = row_of(with_sessions(run_of([copied(2**23 / 5e10 / share, regime, calls=calls)]), peaks=[LINK]))
    assert row.label == label
    if label != "ok":
        assert row.detail == "6e+10 B/s over the link is above 1.10 x the measured peak of 5e+10"


@pytest.mark.parametrize(
    ("upload_s", "download_s", "label"),
    [
        (2**22 / 5e10, 2**22 / 4e10, "ok"), (2**22 / 6e10, 2**22 / 4e10, "implausible"), (2**22 / 5e10, 2**22 / 5e10, "implausible"),
    ],
)  # fmt: skip
def test_each_direction_has_the_rate_of_its_own(upload_s, download_s, label):
    parts = [Parts(session=0, upload_s=[upload_s] * 5, download_s=[download_s] * 5)]
    assert row_of(with_sessions(run_of([copied(1e-3, parts=parts)]), peaks=[LINK])).label == label


def test_where_the_file_does_not_say_what_came_back_both_directions_share_one_time():
    parts = [Parts(session=0, upload_s=[4e-5], download_s=[4e-5])]  # 8 MiB in 80 us: 105 GB/s
    outcome = copied(1e-3, parts=parts)
    old = msgspec.structs.replace(outcome, output_bytes=None)
    assert row_of(with_sessions(run_of([old]), peaks=[LINK])).label == "implausible"


def test_small_copies_and_resident_data_meet_no_link():
    small = copied(1e-9, n=2**16)
    resident = copied(1e-6, regime="resident")
    for outcome in (small, resident):
        assert row_of(with_sessions(run_of([outcome]), peaks=[LINK])).label != "implausible"


def test_the_link_belongs_to_the_card_and_not_to_the_library_that_measured_it():
    cuda = msgspec.structs.replace(GPU, gpu_id="GPU-a")
    vulkan = msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu", api="vulkan", gpu_id="GPU-a")
    run = run_of([copied(1e-4, device="wgpu:0")], devices=(CPU, cuda, vulkan))
    assert row_of(with_sessions(run, peaks=[LINK])).label == "implausible"


@pytest.mark.parametrize(("rate", "label"), [(70e9, "implausible"), (60e9, "ok")])
def test_where_no_link_was_measured_that_of_the_detection_counts(rate, label):
    """PCIe 5.0 with 16 lanes: 63 GB/s."""
    fifth, lanes = (Fact(value, "ok", "sysfs") for value in (5, 16))
    gpu = Gpu(id="GPU-a", link=Link(gen_max=fifth, width_max=lanes))
    run = run_of([copied(2**23 / rate)], devices=(CPU, msgspec.structs.replace(GPU, gpu_id="GPU-a")))
    run = msgspec.structs.replace(run, machine=msgspec.structs.replace(run.machine, gpus=[gpu]))
    assert row_of(run).label == label
    slow = [msgspec.structs.replace(LINK, upload_bytes_per_s=4e10)]
    assert row_of(with_sessions(run, peaks=slow)).label == "implausible", "what was measured says more"
    unknown = msgspec.structs.replace(run.machine, gpus=[Gpu(id="GPU-a")])
    assert row_of(msgspec.structs.replace(run, machine=unknown)).label == "ok"


def test_an_upload_alone_meets_the_link():
    one = msgspec.structs.replace(case("upload", 2**26, device="cupy:0"), group="overhead")
    for seconds, label in ((2**26 / 7e10, "implausible"), (2**26 / 5e10, "ok")):
        outcome = msgspec.structs.replace(measured(one, seconds), bytes=2**26)
        assert row_of(with_sessions(run_of([outcome]), peaks=[LINK])).label == label


def test_a_sample_below_a_hundred_clock_steps_is_implausible():
    coarse = run_of([measured(case(), 1e-3, repeat=1)])
    workers = [msgspec.structs.replace(w, clock_step_s=1.1e-5) for w in coarse.sessions[0].workers]
    row = row_of(with_sessions(coarse, workers=workers))
    assert row.label == "implausible"
    assert "too-short" in row.findings
    assert row.detail == "a sample takes 0.001 s, less than 100 steps of its clock (1.1e-05 s)"
    fine = [msgspec.structs.replace(w, clock_step_s=0.9e-5) for w in coarse.sessions[0].workers]
    assert row_of(with_sessions(coarse, workers=fine)).label == "ok"


def test_the_power_cap_is_told_and_is_no_label():
    row = row_of(run_of([with_blocks(measured(case(device="cupy:0"), 1e-3), throttle=["sw_power_cap"])]))
    assert (row.label, row.findings) == ("ok", ("power-cap",))


def test_the_peaks_of_float32_are_none_of_tf32():
    """Tensor cores do what no float32 unit does; with the memory's peak it is another matter."""
    device = msgspec.structs.replace(GPU, theoretical=Theoretical(flops_per_s={"float32": 1e12}))
    tf32 = msgspec.structs.replace(case(n=1000, device="cupy:0"), variant="tf32")
    run = run_of([measured(tf32, 1e-3)], devices=(CPU, device))
    assert row_of(run).label == "ok"
    peak = [Peak(device_id="cupy:0", dtype="float32", flops_per_s=1e12)]
    assert row_of(with_sessions(run, peaks=peak)).label == "ok"


def test_the_memory_peak_ignores_what_fits_into_a_cache():
    peak = [Peak(device_id="cupy:0", bytes_per_s=1e9)]
    small = with_sessions(run_of([measured(case("relu", 1000, device="cupy:0"), 1e-6)]), peaks=peak)
    large = with_sessions(run_of([measured(case("relu", 2**30, device="cupy:0"), 1e-3)]), peaks=peak)
    assert (row_of(small).label, row_of(large).label) == ("ok", "implausible")


def test_a_launch_shorter_than_an_empty_one_is_implausible():
    parts = Parts(session=0, single_s=[1e-6])
    assert row_of(run_of([measured(case(device="cupy:0"), 1e-6, parts=parts)])).label == "implausible"


def test_implausible_cases_enter_no_ratio():
    run = run_of([measured(case(n=1000), 1e-2), measured(case(n=1000, device="cupy:0"), 1e-3)])
    peak = [Peak(device_id="cupy:0", dtype="float32", flops_per_s=1e12)]
    assert analyse(run).speedups
    assert not analyse(with_sessions(run, peaks=peak)).speedups


def test_first_slow_and_drift():
    slow = row_of(run_of([measured(case(), 1e-3, factors=(3.0, *QUIET))]))
    assert slow.findings == ("first-slow",)
    rising = [1 + i * 1e-3 for i in range(20)]
    assert row_of(run_of([measured(case(), 1e-3, factors=rising)])).findings == ("drift",)


@pytest.mark.parametrize(
    ("count", "step", "found"), [(20, 1e-3, ("drift",)), (20, -1e-3, ("drift",)), (19, 1e-3, ()), (20, 0.0, ())]
)
def test_values_that_trend_with_order_drift_in_either_direction_from_20_samples_on(count, step, found):
    factors = [1.0 + i * step for i in range(count)]
    assert row_of(run_of([measured(case(), 1e-3, factors=factors)])).findings == found


@pytest.mark.parametrize(("first", "found"), [(1.2, ("first-slow",)), (0.8, ()), (1.009, ())])
def test_only_a_first_sample_that_is_slower_by_more_than_a_percent_is_slow(first, found):
    factors = (first, *(1.0 + 1e-5 * (i % 3) for i in range(12)))
    assert row_of(run_of([measured(case(), 1e-3, factors=factors)])).findings == found


@pytest.mark.parametrize(("z", "found"), [(9.9, ()), (10.1, ("first-slow",))])
def test_a_slow_first_sample_has_a_modified_z_score_above_ten(z, found):
    """Iglewicz and Hoaglin 1993: 0.6745 (x - median) / MAD; here the median is 1 and the MAD 1 %."""
    others = (0.98, 0.99, 0.99, 1.0, 1.0, 1.01, 1.01, 1.02)
    row = row_of(run_of([measured(case(), 1e-3, factors=(1 + z * 0.01 / 0.6745, *others))]))
    assert row.findings == found


@pytest.mark.parametrize("field", ["foreign_cpu_share", "steal_share"])
@pytest.mark.parametrize(("share", "label"), [(0.051, "contended"), (0.05, "ok"), (None, "ok")])
def test_load_of_others_counts_above_five_percent(field, share, label):
    assert row_of(with_sessions(run_of([measured(case(), 1e-3)]), **{field: share})).label == label


def test_the_gravest_finding_is_the_label():
    outcome = measured(case(device="wgpu:0"), 1e-5, factors=[0.8] * 5 + [1.2] * 5, repeat=1)
    run = with_sessions(run_of([outcome], devices=(SOFTWARE,)), foreign_cpu_share=0.5)
    row = row_of(run)
    assert row.label == "software"
    assert set(row.findings) == {"unstable", "too-short", "contended", "software"}


def test_rates_name_their_clock():
    wall = row_of(run_of([measured(case(n=1000), 1e-3)]))
    cold = row_of(run_of([measured(case(n=1000, device="cupy:0"), 1e-3, cold_s=5e-4)]))
    assert wall.rates is not None
    assert (wall.rates.clock, wall.rates.flops_per_s) == ("wall", pytest.approx(2e12))
    assert cold.rates is not None
    assert (cold.rates.clock, cold.rates.flops_per_s) == ("device_cold", pytest.approx(4e12))


def test_what_was_not_measured_is_a_row_with_a_reason():
    rows = analyse(run_of([skipped(case()), failed(case(n=2)), planned(case(n=4))], complete=False)).cases
    assert {(row.outcome, row.reason) for row in rows} == {
        ("skip", "out-of-memory"), ("failure", "wrong-result"), ("planned", "not-reached"),
    }  # fmt: skip
    assert all(row.time is None for row in rows)


def test_five_sessions_speak_for_themselves():
    row = row_of(run_of([measured(case(), 1e-3, sessions=5)], sessions=5))
    assert row.time is not None
    assert row.time.kind == "sessions"


def test_a_run_without_session_records_still_reports():
    run = msgspec.structs.replace(run_of([measured(case(), 1e-3)], settings=Settings()), sessions=[])
    assert row_of(run).time is not None


def test_a_session_that_only_the_blocks_know_is_left_out():
    run = run_of([measured(case(), 1e-3)])
    known = msgspec.structs.replace(run, sessions=[SessionRecord(index=0, started_at="2026-01-02T03:04:05Z")])
    assert list(row_of(known).sessions) == [0]


def test_a_sample_of_transfer_once_is_all_its_launches():
    what = case(regime="transfer-once", device="cupy:0")
    assert row_of(run_of([measured(what, 2e-4, repeat=10)])).label == "ok"
    assert row_of(run_of([measured(what, 5e-5, repeat=10)])).label == "too-short"


def test_a_first_sample_that_hardly_differs_is_no_finding():
    assert row_of(run_of([measured(case(), 1e-3, factors=(1.001, *[1.0] * 12))])).findings == ()


@pytest.mark.parametrize(
    ("hot", "label"), [([1.2e-3, 1.3e-3], "implausible"), ([0.9e-3, 1.3e-3], "ok"), ([1.05e-3], "ok")]
)
def test_a_device_time_surely_above_wall_time_is_implausible(hot, label):
    """A few percent above it is chance: default runs have a single sample of the device."""
    outcome = with_blocks(measured(case(device="cupy:0"), 1e-3), device_hot_s=hot)
    assert row_of(run_of([outcome])).label == label


def test_what_is_derived_from_wall_times_does_not_contradict_them():
    """Noise may carry it above the wall time or a peak; the wall time itself is held against the peak."""
    mute = msgspec.structs.replace(GPU, clock=DeviceClock(kind="derived", step_s=1e-9))
    peak = [Peak(device_id="cupy:0", dtype="float32", flops_per_s=1.9e12)]
    for hot_s in (1.2e-3, 0.7e-3):
        run = run_of([measured(case(n=1000, device="cupy:0"), 1e-3, hot_s=hot_s)], devices=(CPU, mute))
        row = row_of(with_sessions(run, peaks=peak))
        assert (row.label, row.findings) == ("ok", ("no-device-clock",))
        honest = run_of([measured(case(n=1000, device="cupy:0"), 1e-3, hot_s=hot_s)])
        assert row_of(with_sessions(honest, peaks=peak)).label == "implausible"
