import json

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.winners import recommend_mode
from gpubench.cli.detect import read_result
from gpubench.detect import picture, recommend
from gpubench.detect.facts import make_fact
from gpubench.result.machine import Gpu, GpuMemory, Machine, MeasuredBreakEven, Recommendation
from gpubench.result.store import load, save
from tests.forking import environment


def point(**words):
    return MeasuredBreakEven(op="matmul", dtype="float32", backend="cupy", **words)


def test_break_even_points_are_quoted_in_words():
    points = [
        point(regime="resident-waited", size=128), point(regime="transfer-always", size=194),
        point(regime="transfer-once-10", size=None, note="never up to n = 64"),
    ]  # fmt: skip
    assert picture.quote(points) == [
        "matmul float32: GPU from n = 128 with data on the GPU, from n = 194 copied at every call, never up to n = 64 with 10 calls a copy"
    ]
    for given, line in (
        ({"size": 64, "note": "the smallest size measured"}, "matmul float32: GPU from n = 64 (the smallest size measured)"),
        ({"params": "m=3", "size": None, "note": "undecided (between 9742 and 65536)"},
         "matmul m=3 float32: GPU undecided (between 9742 and 65536)"),
    ):  # fmt: skip
        assert picture.quote([point(regime="resident-waited", **given)]) == [f"{line} with data on the GPU"]


@pytest.fixture(scope="module")
def results(tmp_path_factory, starter):
    """A result file of the scripted devices, as if they were this machine's; and what the report says of it."""
    folder = tmp_path_factory.mktemp("results")
    environ = environment(folder)
    ran = starter.run(
        "run", "--devices", "fake:cpu,fake:gpu", "--ops", "matmul,saxpy", "--sizes", "matmul=64:1k",
        "--sizes", "saxpy=1k:1M", "--sessions", "1", "--min-samples", "5", "--max-samples", "10", "--no-progress",
        "-o", "r.json", cwd=folder, env=environ,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    reported = starter.run("report", "r.json", "--format", "json", cwd=folder, env=environ)
    return folder / "r.json", json.loads(reported.stdout)


def card(name, *, usable=True):
    memory = GpuMemory(unified=make_fact(False, "t"))
    ids = {"vendor_id": make_fact("10de", "t"), "device_id": make_fact("2330", "t")}
    return Gpu(id=name, **ids, usable=make_fact(usable, "t"), memory=memory)


def test_a_result_file_of_this_machine_is_quoted_as_the_report_reads_it(results, tmp_path):
    path, reported = results
    document = json.loads(path.read_text())
    document["machine"]["gpus"] = [msgspec.to_builtins(card("g0"))]
    (tmp_path / "r.json").write_text(json.dumps(document))
    here = msgspec.convert(document["machine"], Machine)
    advice = recommend.apply_results(here, here.recommendation, tmp_path, read_result)
    assert (advice.confidence, advice.measured.file) == ("measured", "r.json")
    rows = {(row["op"], row["regime"]): row for row in reported["break_even"]}
    sizes = {key: row["first"] if row["verdict"] == "all-sizes" else row["n"] for key, row in rows.items()}
    assert {(p.op, p.regime): p.size for p in advice.measured.break_even} == sizes
    assert "at" in {row["verdict"] for row in rows.values()}
    text = json.dumps(msgspec.to_builtins(advice.measured))
    quoted = json.loads(text, parse_float=lambda figure: float(f"{float(figure):.6g}"))
    assert quoted == {**reported["recommendation"]["measured"], "file": "r.json"}
    assert advice.mode == reported["recommendation"]["mode"]
    drawn = picture.render(replace(here, recommendation=advice), "markdown")
    at = rows["matmul", "resident-waited"]
    assert (
        f"matmul float32: GPU from n = {at['n']} (measured up to n = {at['last']}) with data on the GPU"
        in drawn
    )


def with_gpus(run, cards, *, gpu_id):
    """The run on a machine of eight CPUs with these GPUs, of which it measured one."""
    advice = Recommendation(mode="gpu", device_ids=[cards[0].id])
    cpu = replace(run.machine.cpu, available=make_fact(8, "t"))
    machine = replace(run.machine, gpus=list(cards), cpu=cpu, recommendation=advice)
    devices = [each if each.kind == "cpu" else replace(each, gpu_id=gpu_id) for each in run.devices]
    return replace(run, machine=machine, devices=devices, settings=replace(run.settings, threads=8))


def advised(run, folder, here=None):
    save(run, folder / "r.json")
    here = here or run.machine
    return recommend.apply_results(here, here.recommendation, folder, read_result)


def test_a_result_of_a_gpu_that_cannot_be_used_now_changes_nothing(results, tmp_path):
    run = with_gpus(load(results[0]), [card("g0"), card("g1")], gpu_id="g1")
    advice = advised(run, tmp_path)  # not the GPU that the static rule likes; and the report says the same
    assert (advice.confidence, advice.device_ids) == ("measured", ["g1"])
    assert replace(advice, measured=None) == replace(recommend_mode(analyse(run)), measured=None)
    hidden = replace(run.machine, gpus=[card("g0"), card("g1", usable=False)])
    advice = advised(run, tmp_path, hidden)
    assert (advice.mode, advice.device_ids, advice.measured) == ("gpu", ["g0"], None)
    assert [reason.code for reason in advice.reasons] == ["RESULT_SILENT"]


def test_a_result_without_the_ids_of_this_machine_speaks_for_the_advised_gpus(results, tmp_path):
    run = with_gpus(load(results[0]), [card("g0"), card("g1")], gpu_id="of another machine")
    assert advised(run, tmp_path).device_ids == ["g0"]


def test_an_experiment_is_no_reason(results):
    """What takes zeros for inputs, or a single thread, says nothing of how a call usually runs."""
    path, _ = results
    run = load(path)
    assert not isinstance(read_result(run), str)
    for odd in ({"inputs": "zeros"}, {"cache": "cold"}, {"threads": 0}):
        changed = replace(run, settings=replace(run.settings, **odd))
        assert "it is an experiment" in read_result(changed)


def test_a_folder_without_results_changes_nothing(tmp_path, look, host):
    machine = look(host)
    (tmp_path / "notes.json").write_text("{}")
    advice = recommend.apply_results(machine, machine.recommendation, tmp_path, read_result)
    assert advice is machine.recommendation
