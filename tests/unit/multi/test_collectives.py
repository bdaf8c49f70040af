"""Several GPUs of one host: what links carry, what all keep at once, and the slow one among identical GPUs."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.multi.collectives import group_sentences, identical_gpu_checks
from gpubench.multi.scaling import Window, common, rate, weak
from gpubench.report import analyse_runs, render
from gpubench.result.case import group_id
from gpubench.result.run import Device, IdenticalGpuTimes, RunWarning, TogetherTimes
from tests.unit.multi.samples import GPUS, GROUP, GROUPS, MIB, PAIR, TEXTS, at_once, exchange, shared_out
from tests.unit.report.builders import run_of


def screen(outcomes, device_groups, **look):
    devices = [replace(GROUP, id=group_id("cupy", ranks)) for ranks in device_groups]
    return render([run_of(outcomes, devices=devices)], "plain", sections=("answer",), **look).splitlines()


def test_a_narrow_screen_keeps_the_largest_sizes():
    lines = screen([exchange("p2p", MIB, 5e10), exchange("p2p", 256 * MIB, 4e11)], [PAIR])
    assert lines[0] == "Between 2 GPUs: p2p 400 GB/s (busbw at 256 MiB)."
    assert lines[1].startswith("2 x H200")
    assert lines[2].split() == ["busbw", "1", "MiB", "256", "MiB"]
    assert lines[3].split() == ["p2p", "0", "to", "1", "50.0", "GB/s", "400", "GB/s"]
    lines = screen([exchange("p2p", MIB, 5e10), exchange("allreduce", 256 * MIB, 4e11)], [PAIR])
    assert "(busbw at the largest size of each)." in " ".join(lines[:2])
    lines = screen([exchange("allreduce", MIB << step, 1e11) for step in range(0, 12, 2)], [PAIR], width=44)
    assert all(len(line) <= 44 for line in lines)
    assert "1 GiB" in " ".join(lines[:4])


def test_what_gpus_keep_at_once_is_said_of_the_most_that_ran():
    pair = list(at_once("matmul", 8192, 1e-2, 1.25))
    [single] = [times for times in pair if (times.device_id, times.phase) == ("cupy:0", "alone")]
    four = [replace(single, device_id=f"cupy:{gpu}", gpus=4, phase="together") for gpu in range(4)]
    alone = [replace(times, gpus=1, phase="alone") for times in four]
    run = replace(run_of([]), together=[*alone, *pair, *four])
    [analysis] = analyse_runs([run])
    assert group_sentences(analysis) == ("4 GPUs at once keep 100 % of their rates alone (matmul).",)


def test_a_curve_of_matrices_with_another_side_leaves_the_unit_of_the_square_ones():
    square = [*shared_out("matmul", {512: (1e-4, 7e-5), 1024: (8e-4, 4.4e-4)})]
    cases = [replace(row.case, params={**row.case.params, "m": 64}) for row in square]
    narrow = [replace(row, case=case, id=case.id) for row, case in zip(square, cases, strict=True)]
    run = run_of([*square, *narrow], devices=[*GPUS[:2], *GROUPS])
    text = render([run], "markdown", sections=("scaling",))
    assert text.count("size measured, from 512² to 1024²") == text.count("size measured, from 512 to 1024") == 1


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name):
    """If a difference is wanted: python -m tests.golden, and look at it."""
    assert TEXTS[name]() == (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- at once, against each alone
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
    return weak(replace(run_of([]), together=list(times)))


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


def test_only_the_common_window_counts():
    """The late one has the GPUs' link for itself when the others have ended."""
    early, late = worked(0, 1e-2), worked(1, 1e-2, begin=2.0)
    assert common([early, late]) == Window(2.0, pytest.approx(10.0, abs=0.11))
    [row] = rows(alone(0, 1e-2), alone(1, 1e-2), worked(0, 2e-2, slower_after=2.0, by=0.5), late)
    assert row.early == pytest.approx(1.0)
    assert common([worked(0, 1e-2, seconds=1.0), worked(1, 1e-2, begin=5.0)]) is None
    seconds = worked(0, 0.1, seconds=5.0)  # samples of one second: those across an edge are left out
    assert (rate(seconds, Window(0.5, 3.5)), rate(seconds, Window(0.2, 1.1))) == (pytest.approx(10.0), None)
    assert rows(alone(0, 1e-2), worked(0, 1e-2), worked(1, 1e-2)) == ()
    lost = TogetherTimes(session=0, case_id=f"{CASE}@fake:gpu1", device_id="fake:gpu1", reason="lost")
    assert (rows(alone(0, 1e-2), worked(0, 1e-2), lost), rows()) == ((), ())


# ---------------------------------------------------------------- beside the one that was measured in full
OPS = ("upload/n=1/float32/tuned/resident", "copy/n=1/float32/library/resident-queued",
       "matmul/n=1/float32/library/resident-queued")  # fmt: skip


def checked(
    count, slow=None, *, noise=0.005, spread=0.0, seed=1, reasons=None, warnings=(), burst=None, blocks=8
):
    """What is said of so many GPUs. `slow`: by how much longer some take in each case; `burst`: only in the first half
    of the rounds."""
    rng = random.Random(seed)
    own = [rng.gauss(1.0, spread) for _ in range(count)]
    found = []
    for case in OPS:
        for gpu in range(count):
            factor = own[gpu] * (slow or {}).get(gpu, 1.0)
            blocks_s = [1e-3 * factor * rng.gauss(1.0, noise) for _ in range(blocks)]
            if burst == gpu:
                blocks_s = [2 * one if i < 4 else one for i, one in enumerate(blocks_s)]
            reason = (reasons or {}).get(gpu)
            ids = {"case_id": f"{case}@fake:gpu{gpu}", "device_id": f"fake:gpu{gpu}", "gpu_id": f"gpu{gpu}"}
            found.append(IdenticalGpuTimes(**ids, blocks_s=[] if reason else blocks_s, reason=reason))
    first = Device(id="fake:gpu0", backend="fake", kind="gpu", name="Scripted gpu", api="fake")
    said = {"devices": [first], "identical_gpus": found, "warnings": list(warnings)}
    [one] = identical_gpu_checks(analyse(replace(run_of([]), **said)))
    return one


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_equal_gpus_are_not_blamed(count):
    for seed in range(10):
        one = checked(count, seed=seed, spread=0.008)
        assert (one.slower, len(one.compared)) == ((), count)
        assert 0 <= one.worst_shortfall < 0.05


@pytest.mark.parametrize(("count", "gpu"), [(4, 3), (8, 0)])
def test_a_slow_one_is_named_with_its_shortfall(count, gpu):
    one = checked(count, {gpu: 1.15})
    assert [slow.device_id for slow in one.slower] == [f"fake:gpu{gpu}"]
    assert one.slower[0].shortfall == pytest.approx(1 - 1 / 1.15, abs=0.01)
    assert (one.slower[0].judged, one.slower[0].gpu_id) == (True, f"gpu{gpu}")
    assert (f"fake:gpu{gpu} is 13 % slower at " in one.text, "--ops health" in one.text) == (True, True)


def test_what_one_half_of_the_blocks_says_alone_and_many_that_differ_are_no_slow_gpus():
    assert (checked(4, burst=2).slower, checked(16, dict.fromkeys(range(7), 1.3)).slower) == ((), ())
    assert identical_gpu_checks(analyse(run_of([]))) == ()


def test_a_gpu_that_failed_or_is_used_by_others_is_named_and_not_judged():
    busy = RunWarning(code="other-gpu-users", message="", data={"devices": "fake:gpu1, fake:gpu9"})
    one = checked(5, {1: 2.0}, reasons={4: "lost: off the bus"}, warnings=[busy])
    assert (one.slower, set(one.left_out)) == ((), {"fake:gpu1", "fake:gpu4"})
    assert one.text.endswith("2 not compared.")
    assert checked(2, reasons={1: "lost: off the bus"}).worst is None
    assert [len(checked(4, blocks=count).compared) for count in (3, 4)] == [0, 4], (
        "a block for each half, twice"
    )


def test_all_alike_is_one_sentence_and_of_two_the_difference_is_told_without_a_verdict():
    two = checked(2, {1: 1.2})
    assert [(slow.device_id, slow.judged) for slow in two.slower] == [("fake:gpu1", False)]
    assert "no verdict" in two.text
    text = checked(8).text
    assert text.startswith("8 x Scripted gpu: fake:gpu0 measured in full, the 7 others within ")
    assert "(worst fake:gpu" in text
    assert checked(2).text.count("fake:gpu1") == 1
    assert "measured in full, fake:gpu1 within " in checked(2).text
    assert "measured in full, those compared within " in checked(5, reasons={4: "lost: off the bus"}).text
