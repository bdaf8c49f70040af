"""Whole runs with an assigned workload: the first session chooses, the others measure; a mixture wins here."""

import io

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.measure import protocol
from gpubench.measure.worker import device as workers_device
from gpubench.measure.worker import timer
from gpubench.measure.worker.main import DeviceWorker
from gpubench.result.case import Case

DEVICES = "fake:cpu,fake:gpu,hybrid:fake:gpu"
ASSIGNED = "mlp_forward/n=16/float32/tuned/{}@hybrid:fake:gpu"
REGIMES = ("resident-waited", "transfer-always")


def test_the_first_session_tries_what_is_predicted_and_all_measure_what_was_fastest(run):
    """Both sides alone are measured with it in every block."""
    command = f"--ops mlp_forward --sizes 16 --devices {DEVICES} --sessions 2 --max-samples 5 --regimes"
    ran = run(*command.split(), ",".join((*REGIMES, "resident-queued")))
    assert ran.code == 0, ran.err
    for regime in REGIMES:
        outcome = ran.outcomes[ASSIGNED.format(regime)]
        (assignment_times,) = outcome["assignment_times"]
        swept = [block for block in outcome["blocks"] if block.get("phase") == "sweep"]
        main = [block for block in outcome["blocks"] if block.get("phase", "main") == "main"]
        assert [{block["session"] for block in phase} for phase in (swept, main)] == [{0}, {0, 1}]
        assert [block["assignment"] for block in swept] == list(assignment_times["predicted_s"])
        times = {block["assignment"]: min(block["wall_s"]) for block in swept}
        assert {block["assignment"] for block in main} == {min(times, key=times.__getitem__)}
        assert set(main[0]["assignment"]) == {"c", "g"}, "a mixture wins"
        assert all(set(block["beside_s"]) == {"cpu", "gpu"} for block in outcome["blocks"])
        assert all(min(block["beside_s"].values()) > 1.05 * max(block["wall_s"]) for block in main)
    assert not [key for key in ran.outcomes if "queued" in key and "hybrid" in key], "it has no queued regime"


@pytest.mark.parametrize("time_it", [False, True])
def test_a_check_times_neither_side(tmp_path, monkeypatch, time_it):
    sides, whole, chosen = set(), timer.calibrate, workers_device.gate
    monkeypatch.setattr(timer, "calibrate", lambda one, within: (sides.add(one.split), whole(one, within))[1])
    monkeypatch.setattr(workers_device, "gate", lambda *asked: replace(chosen(*asked), tune_s=2.0))
    worker, device = DeviceWorker(io.BytesIO()), "hybrid:fake:gpu"
    asked = {"threads": 1, "seed": 1, "inputs": "random", "scratch": str(tmp_path), "since": 0.0}
    worker.answer(protocol.Open(id=1, device_id=device, **asked))
    case = Case("ffn", kernels.load("ffn").group, {"n": 2}, "float32", "tuned", "transfer-always", device)
    reply = worker.answer(protocol.Prepare(id=2, case=case, session=0, time_it=time_it))
    assert isinstance(reply, protocol.Prepared), reply
    assert reply.tune_s == 4.0, "of both sides"
    assert worker.device.kept.of_case(case.id).timers[case.id].split == reply.split
    assert {frozenset(side) for side in sides} == ({frozenset("c"), frozenset("g")} if time_it else set())
