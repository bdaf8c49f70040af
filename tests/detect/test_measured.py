from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from gpubench.detect import _breakeven, measured, picture
from gpubench.detect._breakeven import Key, Times
from gpubench.detect._fact import known
from gpubench.model.machine import Cpu, Gpu, Machine


def curve(*pairs, op="matmul", regime="resident"):
    return {Key(op, "", "float32", regime, n): Times(cpu, gpu, None, "cupy") for n, cpu, gpu in pairs}


@pytest.mark.parametrize(
    ("s", "separate", "threads", "mode", "code"),
    [(0.05, True, 8, "gpu", "GPU_DOMINATES"), (5.0, True, 8, "cpu", "CPU_DOMINATES"), (0.5, True, 8, "hybrid", "HYBRID_PAYS"),
     (0.5, False, 8, "gpu", "FASTER_ALONE"), (2.0, True, 2, "cpu", "FASTER_ALONE")],
)  # fmt: skip
def test_the_ratio_decides(s, separate, threads, mode, code):
    verdict = measured.judge(s, separate=separate, threads=threads)
    assert (verdict.mode, verdict.code) == (mode, code)


def test_a_measured_hybrid_run_overrules_the_estimate():
    assert measured.judge(0.05, separate=True, threads=8, hybrid_gain=1.2).mode == "hybrid"
    assert measured.judge(0.5, separate=True, threads=8, hybrid_gain=0.9).mode == "gpu"


def test_split_is_by_rates():
    assert measured.judge(0.25, separate=True, threads=8).split == pytest.approx(0.8)


def test_break_even_needs_a_win_at_all_larger_sizes_and_lies_between_the_measured_ones():
    (point,) = _breakeven.break_evens(curve((64, 1, 0.5), (128, 1, 2), (512, 4, 2)))
    assert (point.size, point.gpu_s, point.cpu_s) == (256, 2, 4)  # half of the way from 1/2 to 2, in logarithms
    (never,) = _breakeven.break_evens(curve((64, 1, 0.5), (128, 1, 2)))
    assert (never.size, never.note) == (None, "never up to n = 128")
    (always,) = _breakeven.break_evens(curve((64, 1, 0.5), (128, 4, 2)))
    assert (always.size, always.note) == (64, "the smallest size measured")


def test_other_params_are_other_curves():
    table = curve((64, 1, 2), (128, 2, 1)) | {
        Key("matmul", "k=3", "float32", "resident", n): Times(1, 9, None, "cupy") for n in (64, 128)
    }
    assert [(point.params, point.size is None) for point in _breakeven.break_evens(table)] == [
        ("", False),
        ("k=3", True),
    ]


def test_break_even_points_are_quoted_in_words():
    table = curve((64, 1, 2), (256, 2, 1)) | curve((64, 1, 4), (1024, 8, 1), regime="transfer-always")
    table |= curve((64, 1, 2), regime="transfer-once-10")
    assert picture.quoted(list(_breakeven.break_evens(table))) == [
        "matmul float32: GPU from n = 128 with resident data, from n = 194 with transfers, never with one copy for 10 calls"
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A result file of the scripted devices, as if they were this machine's; and what the report says of it."""
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "gpubench"]
    subprocess.run([*command, "run", "--devices", "fake:cpu,fake:gpu", "--ops", "matmul,saxpy", "--no-progress", "-o", "r.json"],
                   cwd=folder, check=True, capture_output=True, timeout=110)  # fmt: skip
    told = subprocess.run(
        [*command, "report", "r.json", "--format", "json"], cwd=folder, check=True, capture_output=True
    )
    return folder / "r.json", json.loads(told.stdout)["break_even"]


def test_a_result_file_of_this_machine_is_quoted_as_the_report_reads_it(results, tmp_path):
    path, told = results
    document = json.loads(path.read_text())
    card = Gpu(id="g0", vendor_id=known("10de", "t"), device_id=known("2330", "t"), usable=known(True, "t"))
    document["machine"]["gpus"] = [msgspec.to_builtins(card)]
    (tmp_path / "r.json").write_text(json.dumps(document))
    here = msgspec.convert(document["machine"], Machine)
    advice = measured.apply(here, here.recommendation, tmp_path)
    assert (advice.confidence, advice.measured.file) == ("measured", "r.json")
    found = {(p.op, p.regime): p.size for p in advice.measured.break_even}
    clear = {(p["op"], p["regime"]): p["n"] for p in told if p["verdict"] == "at"}
    assert clear
    assert {key: found[key] for key in clear} == pytest.approx(clear, abs=1)
    assert {(p["op"], p["regime"]) for p in told if p["verdict"] == "never"} <= {
        key for key in found if found[key] is None
    }
    drawn = picture.render(msgspec.structs.replace(here, recommendation=advice), "markdown")
    assert f"matmul float32: GPU from n = {found['matmul', 'resident']} with resident data" in drawn


def test_a_result_file_of_another_machine_changes_nothing(results):
    path, _ = results
    here = Machine(cpu=Cpu(model=known("another CPU", "t")))
    assert measured.apply(here, here.recommendation, path) is here.recommendation


def test_the_ratio_takes_the_largest_common_size_of_resident_data():
    table = (
        curve((64, 1, 8), (128, 4, 1))
        | curve((64, 1, 4), op="sum")
        | curve((256, 1, 100), regime="transfer-always")
    )
    assert measured.ratio(table) == pytest.approx(1.0)


def test_a_folder_without_results_changes_nothing(tmp_path, look, host):
    machine = look(host)
    (tmp_path / "notes.json").write_text("{}")
    assert measured.apply(machine, machine.recommendation, tmp_path) is machine.recommendation
