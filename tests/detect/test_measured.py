"""A result of this machine, as `detect` quotes it and as the report reads it."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.winners import recommend_mode
from gpubench.cli.detect import read_result
from gpubench.detect import picture, recommend
from gpubench.detect.facts import make_fact
from gpubench.result.case import ORDERED, RESIDENT
from gpubench.result.machine import Gpu, GpuMemory, Machine, MeasuredBreakEven, Recommendation
from gpubench.result.store import save
from tests.detect.test_mode_by_results import COPIES_LOSE, GPU_WINS, once
from tests.unit.report.builders import run_of


def test_break_even_points_are_quoted_in_words():
    point = MeasuredBreakEven(op="matmul", dtype="float32", backend="cupy", regime="resident-waited", size=128)
    points = [point, replace(point, regime="transfer-always", size=194),
              replace(point, regime="transfer-once-10", size=None, note="never up to n = 64"),
              replace(point, params="m=3", size=64, note="the smallest size measured")]  # fmt: skip
    assert picture.quote(points) == [
        "matmul float32: GPU from n = 128 with data on the GPU, from n = 194 copied at every call, never up to n = 64 with 10 calls a copy",
        "matmul m=3 float32: GPU from n = 64 (the smallest size measured) with data on the GPU"]  # fmt: skip


@pytest.mark.parametrize("regime", sorted(set(ORDERED) - {RESIDENT}))
def test_every_situation_of_a_gpu_has_words(regime):
    (line,) = picture.quote(
        [MeasuredBreakEven(op="add", dtype="float32", backend="cupy", regime=regime, size=8)]
    )
    assert regime not in line


def card(name, *, usable=True):
    memory = GpuMemory(unified=make_fact(False, "t"))
    ids = {"vendor_id": make_fact("10de", "t"), "device_id": make_fact("2330", "t")}
    return Gpu(id=name, **ids, usable=make_fact(usable, "t"), memory=memory)


def with_gpus(*cards, gpu_id):
    """A run on a machine of eight CPUs with these GPUs, of which it measured one."""
    run = run_of(once([*GPU_WINS, *COPIES_LOSE]))
    advice = Recommendation(mode="gpu", device_ids=[cards[0].id])
    cpu = replace(run.machine.cpu, available=make_fact(8, "t"))
    machine = replace(run.machine, gpus=list(cards), cpu=cpu, recommendation=advice)
    devices = [each if each.kind == "cpu" else replace(each, gpu_id=gpu_id) for each in run.devices]
    return replace(run, machine=machine, devices=devices, settings=replace(run.settings, threads=8))


def advised(run, folder, here=None):
    save(run, folder / "r.json")
    here = here or run.machine
    return recommend.apply_results(here, here.recommendation, folder, read_result)


def test_a_result_file_of_this_machine_is_quoted_as_the_report_reads_it(in_process, tmp_path):
    run = with_gpus(card("g0"), gpu_id="g0")
    advice = advised(run, tmp_path)
    reported = json.loads(in_process("report", str(tmp_path / "r.json"), "--format", "json").stdout)
    rows = {(row["op"], row["regime"]): row for row in reported["break_even"]}
    sizes = {key: row["first"] if row["verdict"] == "all-sizes" else row["n"] for key, row in rows.items()}
    assert {(p.op, p.regime): p.size for p in advice.measured.break_even} == sizes
    text = json.dumps(msgspec.to_builtins(advice.measured))
    quoted = json.loads(text, parse_float=lambda figure: float(f"{float(figure):.6g}"))
    assert quoted == {**reported["recommendation"]["measured"], "file": "r.json"}
    assert (advice.mode, advice.confidence) == (reported["recommendation"]["mode"], "measured")
    drawn = picture.render(replace(run.machine, recommendation=advice), "markdown")
    assert "matmul float32: GPU from n = " in drawn


def test_a_result_of_a_gpu_that_cannot_be_used_now_changes_nothing(tmp_path):
    run = with_gpus(card("g0"), card("g1"), gpu_id="g1")
    advice = advised(run, tmp_path)  # not the GPU that the static rule likes; and the report says the same
    assert (advice.confidence, advice.device_ids) == ("measured", ["g1"])
    assert replace(advice, measured=None) == replace(recommend_mode(analyse(run)), measured=None)
    advice = advised(run, tmp_path, replace(run.machine, gpus=[card("g0"), card("g1", usable=False)]))
    assert (advice.mode, advice.device_ids, advice.measured) == ("gpu", ["g0"], None)
    assert [reason.code for reason in advice.reasons] == ["RESULT_SILENT"]
    nobodys = with_gpus(card("g0"), card("g1"), gpu_id="of another machine")
    assert advised(nobodys, tmp_path).device_ids == ["g0"], "it speaks for the advised GPUs"


@pytest.mark.parametrize("odd", [{"inputs": "zeros"}, {"cache": "cold"}, {"threads": 0}])
def test_an_experiment_is_no_reason(odd):
    """It says nothing of how a call usually runs."""
    run = with_gpus(card("g0"), gpu_id="g0")
    assert not isinstance(read_result(run), str)
    assert "it is an experiment" in read_result(replace(run, settings=replace(run.settings, **odd)))


def test_a_folder_without_results_changes_nothing(tmp_path):
    (tmp_path / "notes.json").write_text("{}")
    machine = Machine(gpus=[card("g0")])
    told = recommend.apply_results(machine, machine.recommendation, tmp_path, read_result)
    assert told is machine.recommendation
