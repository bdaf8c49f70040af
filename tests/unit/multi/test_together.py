"""What identical GPUs do at once: rates over the window in which all of them worked, against each alone."""

import msgspec
import pytest

from gpubench.multi.scaling import Window, common, rate, weak
from gpubench.result.run import Telemetry, TogetherTimes
from tests.unit.report.builders import run_of

AT_S = 100.0  # of the session
CASE = "matmul/n=8192/float32/library/resident-queued"


def worked(gpu, launch_s, *, phase="together", gpus=2, begin=0.0, seconds=10.0, session=0, slower_after=None, by=1.0):  # fmt: skip
    """Samples of ten launches for so many seconds; from `slower_after` on each takes `by` times as long."""
    ends, now = [], begin
    while now < begin + seconds:
        now += 10 * launch_s * (by if slower_after is not None and now >= slower_after else 1.0)
        ends.append(now)
    return TogetherTimes(
        session=session, case_id=f"{CASE}@fake:gpu{gpu}", device_id=f"fake:gpu{gpu}", phase=phase, gpus=gpus,
        repeat=10, at_s=AT_S, begin_s=begin, ends_s=ends,
    )  # fmt: skip


def alone(gpu, launch_s, **more):
    return worked(gpu, launch_s, phase="alone", gpus=1, seconds=3.0, **more)


def rows(*times):
    return weak(msgspec.structs.replace(run_of([]), together=list(times)))


def test_gpus_that_do_at_once_what_they_do_alone_keep_everything():
    [row] = rows(alone(0, 1e-2), alone(1, 1e-2), worked(0, 1e-2), worked(1, 1e-2))
    assert (row.early, row.late) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (row.op, row.n, row.gpus, row.alone_s) == ("matmul", 8192, 2, pytest.approx(1e-2))
    assert row.device_ids == ("fake:gpu0", "fake:gpu1")
    [row] = rows(alone(0, 1e-2), alone(1, 1e-2), worked(0, 2e-2), worked(1, 2e-2))
    assert (row.early, row.late) == (pytest.approx(0.5), pytest.approx(0.5)), "they share something"
    times = []  # a session that is slower as a whole keeps its efficiency
    for session, factor in enumerate((1.0, 1.5, 2.0)):
        times += [alone(gpu, factor * launch_s, session=session) for gpu, launch_s in enumerate((1e-2, 4e-2))]
        times += [worked(gpu, factor * launch_s, session=session) for gpu, launch_s in enumerate((2e-2, 4e-2))]
    [row] = rows(*times)
    assert row.early == pytest.approx((50 + 25) / (100 + 25), rel=0.02), "rates add up where GPUs differ"
    assert row.early_hi - row.early_lo < 0.1


def test_heat_shows_at_the_end_and_names_the_gpu():
    [row] = rows(alone(0, 1e-2), alone(1, 1e-2), worked(0, 1e-2), worked(1, 1e-2, slower_after=5.0, by=1.25))
    assert (row.early, row.late) == (pytest.approx(1.0), pytest.approx((1 + 0.8) / 2, rel=0.01))
    assert (row.least_id, row.least_share) == ("fake:gpu1", pytest.approx(0.8, rel=0.01))
    assert row.early_lo <= row.early <= row.early_hi
    assert row.late_lo <= row.late <= row.late_hi


def test_only_the_common_window_counts():
    """The late one has the GPUs' link for itself when the others have ended."""
    early, late = worked(0, 1e-2), worked(1, 1e-2, begin=2.0)
    assert common([early, late]) == Window(2.0, pytest.approx(10.0, abs=0.11))
    slow_before = worked(0, 2e-2, slower_after=2.0, by=0.5)
    [row] = rows(alone(0, 1e-2), alone(1, 1e-2), slow_before, late)
    assert row.early == pytest.approx(1.0)
    assert common([worked(0, 1e-2, seconds=1.0), worked(1, 1e-2, begin=5.0)]) is None
    seconds = worked(0, 0.1, seconds=5.0)  # samples of one second: those across an edge are left out
    assert (rate(seconds, Window(0.5, 3.5)), rate(seconds, Window(0.2, 1.1))) == (pytest.approx(10.0), None)


def test_a_session_that_lacks_a_gpu_does_not_count():
    assert rows(alone(0, 1e-2), worked(0, 1e-2), worked(1, 1e-2)) == ()
    lost = TogetherTimes(session=0, case_id=f"{CASE}@fake:gpu1", device_id="fake:gpu1", reason="lost")
    assert (rows(alone(0, 1e-2), worked(0, 1e-2), lost), rows()) == ((), ())


def test_the_state_of_each_gpu_is_that_of_its_part_of_the_work():
    times = [alone(0, 1e-2), alone(1, 1e-2), worked(0, 1e-2), worked(1, 1e-2)]
    run = msgspec.structs.replace(run_of([], sessions=1), together=times)
    ticks = [AT_S - 50.0, *(AT_S + tick for tick in range(11))]
    hot = Telemetry(
        device_id="fake:gpu1", t_s=ticks, clock_hz=[9e9] + [2e9 - 1e8 * tick for tick in range(11)],
        throttle=[["nobody asked"]] + [["sw_power_cap"] if tick > 5 else [] for tick in range(11)],
        pcie_generation=[1] + [5] * 11, pcie_width=[16] * 12,
    )  # fmt: skip
    session = msgspec.structs.replace(run.sessions[0], telemetry=[hot])
    [row] = weak(msgspec.structs.replace(run, sessions=[session]))
    found = {(one.device_id, one.part): one for one in row.conditions}
    assert set(found) == {("fake:gpu1", part) for part in ("alone", "early", "late")}
    early, late = found["fake:gpu1", "early"], found["fake:gpu1", "late"]
    assert early.clock_hz > late.clock_hz
    assert (early.throttle, late.throttle) == ((), ("sw_power_cap",))
    assert (late.pcie_generation, late.pcie_width, late.power_w) == (5, 16, None)
    earlier = [msgspec.structs.replace(worked, at_s=None) for worked in times]  # files that tell no state
    assert rows(*earlier)[0].conditions == ()
