"""Identical GPUs beside the one that was measured in full: a slow one is named, equal ones are not blamed."""

import random

import msgspec
import pytest

from gpubench.analysis.analyse import analyse
from gpubench.multi.collectives import identical_gpu_checks
from gpubench.result.run import Device, IdenticalGpuTimes, RunWarning
from tests.unit.report.builders import run_of

OPS = ("upload/n=1/float32/tuned/resident", "copy/n=1/float32/library/resident-queued",
       "matmul/n=1/float32/library/resident-queued")  # fmt: skip


def checked(count, slow=None, *, noise=0.005, spread=0.0, seed=1, reasons=None, warnings=(), burst=None):
    """What is said of so many GPUs. `slow`: by how much longer some take in each case; `burst`: only in the first half
    of the rounds."""
    rng = random.Random(seed)
    own = [rng.gauss(1.0, spread) for _ in range(count)]
    found = []
    for case in OPS:
        for gpu in range(count):
            factor = own[gpu] * (slow or {}).get(gpu, 1.0)
            blocks = [1e-3 * factor * rng.gauss(1.0, noise) for _ in range(8)]
            if burst == gpu:
                blocks = [2 * one if i < 4 else one for i, one in enumerate(blocks)]
            reason = (reasons or {}).get(gpu)
            ids = {"case_id": f"{case}@fake:gpu{gpu}", "device_id": f"fake:gpu{gpu}", "gpu_id": f"gpu{gpu}"}
            found.append(IdenticalGpuTimes(**ids, blocks_s=[] if reason else blocks, reason=reason))
    first = Device(id="fake:gpu0", backend="fake", kind="gpu", name="Scripted gpu", api="fake")
    said = {"devices": [first], "identical_gpus": found, "warnings": list(warnings)}
    [one] = identical_gpu_checks(analyse(msgspec.structs.replace(run_of([]), **said)))
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
