"""Which mode a measured file recommends, by what its own report shows: speedups, break-evens and splits."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.winners import evidence, recommend_mode
from gpubench.report import render
from gpubench.result.machine import Fact, Recommendation
from tests.unit.report.builders import CPU, case, curve, measured, run_of

WAITED = "resident-waited"


def recommended(run, **words):
    return recommend_mode(analyse(run, **words))


def of(rows, **words):
    return evidence(analyse(run_of(rows, **words)))


def pair(op, n, gpu_s, regime="resident", **words):
    """1 ms on the CPU beside `gpu_s`."""
    on_gpu = measured(case(op, n=n, device="cupy:0", regime=regime), gpu_s, **words)
    return [measured(case(op, n=n), 1e-3), on_gpu]


def later(run, month, name):
    return replace(run, id=f"00000000-0000-4000-8000-{name:012}", started_at=f"2026-{month:02}-01T00:00:00Z")


def test_the_ratio_is_the_mean_over_the_ops_at_their_largest_common_size():
    matmul = curve({64: 1 / 8, 128: 4.0}, regime=WAITED)
    rows = [*matmul, measured(case(n=4096), 1.0), *pair("relu", 64, 4e-3, WAITED)]
    assert of([*rows, *curve({256: 100.0}, regime="transfer-always")]).s == pytest.approx(1.0)


def test_the_break_evens_are_those_of_the_report():
    sizes = (64, 256, 1024)
    copied = curve(dict.fromkeys(sizes, 0.1), regime="transfer-always")[1::2]
    rows = [*curve({64: 0.5, 256: 2.0, 1024: 8.0}), *copied, *pair("relu", 64, 1e-4), *pair("relu", 256, 1e-4)]
    rows += [*curve({64: 0.2, 2**14: 8.0}, op="add"), *curve({64: 0.2, 256: 0.6, 1024: 1.0}, op="mul")]
    found = {(p.op, p.regime): p for p in of(rows).break_even}
    (at,) = (row for row in analyse(run_of(rows)).break_even if row.verdict == "at")
    here, never, always = (found[key] for key in (
        ("matmul", "resident-queued"), ("matmul", "transfer-always"), ("relu", "resident-queued")))  # fmt: skip
    assert (here.size, here.note, here.backend) == (at.n, f"measured up to n = {at.last}", "cupy")
    assert (here.cpu_s, here.gpu_s) == (pytest.approx(1e-3), pytest.approx(5e-4))
    assert (never.size, never.note, never.gpu_s) == (None, "no size up to n = 1024", pytest.approx(1e-2))
    assert (always.size, always.note) == (64, "the smallest size measured, up to n = 256")
    wide, equal = (found[op, "resident-queued"] for op in ("add", "mul"))
    assert (64 < wide.size < 2**14, wide.note[:13]) == (True, "somewhere in ")
    assert (equal.size, equal.note) == (None, "about equal")


def test_where_nothing_was_compared_detection_at_the_start_of_the_run_stands():
    run = run_of([measured(case(n=64), 1e-3)], devices=(CPU,))
    assert recommended(run) is None
    said = msgspec.convert({"mode": "gpu", "reasons": [{"code": "VRAM_GE_4GIB"}]}, Recommendation)
    assert recommended(replace(run, machine=replace(run.machine, recommendation=said))) == said


@pytest.mark.parametrize("odd", [{"inputs": "zeros"}, {"cache": "cold"}, {"threads": 2}])
def test_an_experiment_recommends_nothing(odd):
    """As for `gpubench detect`: it shows something else than what a call usually takes."""
    run = run_of(curve({64: 0.5, 256: 20.0}, regime=WAITED))
    cpu = replace(run.machine.cpu, available=Fact(8, "ok", "proc"))
    run = replace(run, machine=replace(run.machine, cpu=cpu))
    usual, changed = recommended(run), replace(run, settings=replace(run.settings, **odd))
    assert usual.confidence == "measured"
    assert (recommended(changed), evidence(analyse(changed))) == (None, None)
    assert json.loads(render([run, later(changed, 2, 2)], "json"))["recommendation"]["mode"] == usual.mode


def test_of_several_files_the_newest_that_measured_speaks_and_of_several_machines_none():
    old, new = (run_of(curve({64: ratio}, regime=WAITED)) for ratio in (20.0, 0.1))
    new, newest = later(new, 2, 2), later(run_of([measured(case(n=64), 1e-3)]), 3, 3)
    for runs in ([old, new, newest], [newest, old, new]):
        found = json.loads(render(runs, "json"))["recommendation"]
        assert (found["mode"], found["measured"]["date"]) == ("cpu", "2026-02-01T00:00:00Z")
    mark = replace(old.fingerprint.machine, hash="f" * 12)
    elsewhere = replace(old, fingerprint=replace(old.fingerprint, machine=mark))
    assert json.loads(render([new, elsewhere], "json"))["recommendation"] is None
