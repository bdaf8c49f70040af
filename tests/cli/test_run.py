"""`run` as a command on scripted devices: what it writes where, plans, checks, skips and writes down, says of the machine, and which sides a mode takes."""

import contextlib
import errno
import io
import json
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

import gpubench.detect as detection
from gpubench import backends, kernels
from gpubench.base import processes
from gpubench.base.errors import BackendUnavailable, GpubenchError, InputError, UsageError
from gpubench.cli import delivery, request, resume, selection
from gpubench.cli.options import RunOptions
from gpubench.measure import protocol
from gpubench.measure.plan import Target
from gpubench.measure.targets import DeviceSelection
from gpubench.measure.worker import main as worker
from gpubench.report.layout import RenderOptions
from gpubench.result import store
from gpubench.result.machine import Fact, Gpu, Machine, MachineWarning
from gpubench.result.run import Identity, Selection, Settings
from tests.detect.trees import at
from tests.raising import raised
from tests.rows import rows
from tests.unit.report.builders import GPU, curve, run_of

FAKE = "run --devices fake:cpu,fake:gpu --quick --min-samples 5 --max-time 50ms"
ADD, QUEUED = f"{FAKE} --ops add --sizes 1k", "--regimes resident-queued"
MATMUL = f"{FAKE} {QUEUED} --ops matmul --sizes 64"
SIDES = ("resident@fake:cpu", "resident-queued@fake:gpu")


@pytest.fixture
def run(gpubench, in_process, tmp_path):
    """Run a command line to the exit code; its end, and the document that it saved as r.json."""

    def start(words, code=0):
        ended = (in_process if words.startswith("report") else gpubench)(*words.split())
        assert ended.returncode == code, ended.stderr
        saved = tmp_path / "r.json"
        return ended, json.loads(saved.read_text()) if saved.exists() else {}

    return start


def measured(shape, sides=SIDES):
    return {f"{shape}/float32/library/{side}": "measurement" for side in sides}


NAMED = "matmul/n=64/float32/tuned-{}/{}"


# What is typed, the exit code, parts of what is printed, facts of the document, and how each case ended.
@rows("words, code, parts, facts, ends", {
    "gates and claims that were asked for": (
        f"{ADD} --no-save --claims builtin --min-speedup add=1000", 3, ["min-speedup add=1000: FAILED", "Claims: "], {}, None),
    "a dry run tells what will be skipped": (f"{FAKE} --ops add --sizes 1G --dtypes f64,f32 --dry-run", 0, ["out-of-memory"], {}, None),
    "every shape": (
        f"{FAKE} {QUEUED} --ops matmul,add,adam --sizes 64 --params m=16,32,k=8 --params matmul:batch=3 --params step=0", 0, ["k=8 m=16"],
        {"selection.params": {"matmul": [{"m": 16, "k": 8}, {"m": 32, "k": 8}, {"batch": 3}], "adam": [{"step": 0}]}},
        {**{id: end for shape in ("n=64,k=8,m=16", "n=64,k=8,m=32", "n=64,batch=3") for id, end in measured(f"matmul/{shape}").items()},
         **measured("add/n=64"), **measured("adam/n=64,step=0")}),  # add has no such params: it stays as it is
    "an implementation that is missing": (
        f"{ADD} {QUEUED} --implementations all", 0, [], {},
        measured("add/n=1024") | {f"add/n=1024/float32/tuned/{side}": "no-implementation" for side in SIDES}),
    "variants that a backend lacks": (
        f"{MATMUL} --variant naive,tiled --variant naive", 0, [], {"selection.variants": ["naive", "tiled"]},
        measured("matmul/n=64") | {NAMED.format(name, side): "no-implementation" for name in ("naive", "tiled") for side in SIDES}),
    "TF32, which is a row of CuPy's alone, and no autotuning": (
        f"{MATMUL} --allow-tf32 --no-autotune --full", 0, ["adds no row"],
        {"selection.variants": ["tf32"], "settings.autotune": False, "warnings.*.code": ["no-tf32"]}, measured("matmul/n=64")),
    "inputs that flatter, and memory that no CPU locks": (
        "run --devices fake:cpu --ops add --sizes 64 --check-only --inputs zeros --page-locked", 0, [],
        {"settings.inputs": "zeros", "settings.page_locked": True, "warnings.*.code": ["inputs-not-random", "no-page-lock"]}, None),
    "a check times no candidates": (
        f"{MATMUL} --check-only", 0, [], {"settings.autotune": False, "warnings": []}, measured("matmul/n=64")),
})  # fmt: skip
def test_what_is_asked_for_is_printed_and_written_down(run, words, code, parts, facts, ends):
    ended, document = run(words if "--no-save" in words or "--dry-run" in words else f"{words} -o r.json", code)
    assert [part for part in parts if part not in " ".join(ended.stdout.split())] == []
    assert {path: at(document, path) for path in facts} == facts
    if ends is not None:
        outcomes = {outcome["id"]: outcome for outcome in document["outcomes"]}
        assert {case: outcome.get("reason", outcome["type"]) for case, outcome in outcomes.items()} == ends
        assert all(outcome["check"]["ok"] for outcome in outcomes.values() if outcome["type"] == "measurement")


@pytest.mark.parametrize("name", ["markdown", "gha-smaller", "csv"])
def test_report_says_the_same_as_run_did(run, name):
    ran, _ = run(f"{ADD} {QUEUED} --format {name} -o m.json")
    assert "add" in run(f"report m.json --format {name}")[0].stdout == ran.stdout
    assert run(f"report m.json --format {name} -o out.json")[0].stdout == "", "the name outweighs the suffix"


def test_json_is_the_result_document(run):
    ended, document = run(f"{ADD} --format json -o r.json")
    assert json.loads(ended.stdout) == document


def test_without_o_the_result_goes_to_the_results_folder_and_report_finds_it(run, tmp_path):
    ended, _ = run(f"{ADD} {QUEUED}")
    (path,) = (str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert path.startswith("results/")
    assert f"saved {path}" in ended.stdout.splitlines()
    said = [line for line in ended.stdout.splitlines() if not line.startswith("saved ")]
    assert run("report")[0].stdout.splitlines() == said
    full, _ = run(f"{ADD} {QUEUED} --full --open -o r.json")
    assert run("report r.json --full")[0].stdout == full.stdout
    assert "warning: --open shows no page" in full.stderr
    assert "saved r.json" in full.stderr.splitlines()


def test_a_check_that_its_budget_ends_says_what_it_left_out(run):
    ended, document = run("run --devices fake:gpu --ops add,matmul --check-only --budget 1ms -o r.json", 124)
    reasons = [outcome["reason"] for outcome in document["outcomes"]]
    assert set(reasons) == {"budget"}
    assert f"{len(reasons)} of {len(reasons)} cases were not checked: add and matmul" in ended.stderr
    assert "cases were not checked" in run("report r.json --sections warnings")[0].stdout


def test_what_is_asked_for_is_what_is_measured(run):
    words = "--ops add,relu --sizes 1k --sizes relu=2k --dtypes f32,f64 --regimes transfer-once,resident --calls 3 --skip add/*/float64"
    _, result = run(f"{FAKE} {words} -o r.json --label label --tag one --tag two --context runner=large")
    workloads = {o["id"].rsplit("/", 2)[0] for o in result["outcomes"]}
    assert workloads == {"add/n=1024/float32", "relu/n=2048/float32", "relu/n=2048/float64"}
    regimes = {o["id"].split("/")[-1].split("@")[0] for o in result["outcomes"]}
    assert regimes == {"resident", "resident-waited", "resident-queued", "transfer-once-3"}
    assert (result["label"], result["tags"]) == ("label", ["one", "two"])
    assert (result["environment"]["context"], result["selection"]["calls"]) == ({"runner": "large"}, 3)


def test_the_result_names_no_path_user_or_host(run, tmp_path, home):
    run(f"{ADD} {QUEUED} -o {tmp_path / 'r.json'}")
    text = (tmp_path / "r.json").read_text()
    for private in (str(tmp_path), str(tmp_path.parent), f'"{socket.gethostname()}"', str(home)):
        assert private not in text
    assert "r.json" in json.loads(text)["argv"]


@pytest.mark.parametrize(("texts", "sizes"), [
    (["matmul=64", "1k"], {"add": [1024], "matmul": [64], "transpose": [1024]}),
    (["matmul=4k", "matmul=1k,4k"], {"matmul": [1024, 4096]}), (["1k", "auto"], {}),
    (["transpose=8", "matrix=64", "1k"], {"add": [1024], "matmul": [64], "transpose": [8]}),
    (["1k", "matrix=auto", "transpose=8"], {"add": [1024], "transpose": [8]}), (["add=8", "vector=64"], {"add": [8]}),
])  # fmt: skip
def test_an_ops_own_sizes_win_wherever_they_stand(texts, sizes):
    assert selection.parse_sizes(texts, ["add", "matmul", "transpose"]) == sizes
    own = ["add", "mine.add", "mine.sort"]
    assert selection.parse_sizes(["add=64", "sort=8"], own) == {"add": [64], "mine.sort": [8]}


@pytest.mark.parametrize("autotune", [True, False])
def test_a_backend_is_told_whether_to_tune(monkeypatch, autotune):
    reported = []

    def open_it(device_id, threads=None, *, autotune=True):
        reported.append(autotune)
        raise BackendUnavailable("it need not open")

    monkeypatch.setattr(backends.load("fake"), "open", open_it)
    request = protocol.Open(
        id=1, device_id="fake:gpu", threads=None, seed=1, inputs="random", scratch=b"", since=0.0, autotune=autotune,
    )  # fmt: skip
    assert isinstance(worker.DeviceWorker(io.BytesIO()).answer(request), protocol.Refused)
    assert reported == [autotune]


@pytest.mark.parametrize(("asked", "screen"), [
     ({}, True), ({"full": True}, False), ({"output": ["-"]}, False), ({"format": "table"}, False),
     ({"sections": "speedup"}, False), ({"columns": "n"}, False), ({"sort": "time"}, False), ({"output": ["r.md"]}, True), ({"sections": ","}, False)])  # fmt: skip
def test_who_asks_for_more_than_the_answer_gets_the_report(asked, screen):
    style = delivery.report_style(RunOptions(**asked))
    assert (style.screen, bool(style.options.sections)) == (screen, True)


@pytest.mark.parametrize(("rescues", "failures", "kept", "said"), [
    (False, 9, None, "full, and neither your data folder nor the temporary folder takes it; what was measured before that is in r.json.part"),
    (True, 9, "rescued.json", "full; it is saved in rescued.json"), (True, 1, "r.json", None), (True, 0, "r.json", None),
])  # fmt: skip
def test_a_result_that_its_place_does_not_take_is_rescued(tmp_path, monkeypatch, rescues, failures, kept, said):
    monkeypatch.chdir(tmp_path)
    run, save, fails = run_of(curve({64: 0.5})), store.save, iter(range(failures))

    def full(run, path):
        if next(fails, None) is not None:
            raise InputError("cannot-save", "r.json", why="full")
        save(run, path)

    def rescue(run):
        save(run, Path("rescued.json"))
        return Path("rescued.json")

    monkeypatch.setattr(delivery.store, "save", full)
    monkeypatch.setattr(delivery.store, "rescue", rescue if rescues else lambda run: None)
    saver = delivery.Saver(["r.json"], RunOptions())
    saver(run)
    saver.finish(run)
    assert [str(path) for path in saver.saved] == ([kept] if kept else [])
    unsaved = delivery.Saver([], RunOptions(no_save=True))
    unsaved.finish(run)
    assert (unsaved.saved, unsaved.error) == ([], None)
    why = saver.error.why.replace(f"{tmp_path}/", "") if saver.error else None
    assert why == said
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept or "r.json.part"]


@pytest.mark.parametrize(("named", "file"), [
    (None, None), ("r.json", "r.json"), ("r.json.part", "r.json"), ("r.json.gz.PART", "r.json.gz"), ("r.part", ""), ("r.json.parts", ""), ("r.md.part", "")])  # fmt: skip
def test_the_file_of_append_may_be_named_by_its_part(named, file):
    if file == "":
        assert raised(UsageError, resume.result_file, named).code == "not-a-result-file"
    else:
        assert resume.result_file(named) == file


def test_functions_bring_their_own_dtype_unless_one_is_named(monkeypatch):
    monkeypatch.setattr(
        kernels,
        "own",
        lambda: {f"mine.{name}": Mock(dtypes=(name, "float32")) for name in ("float64", "float16")},
    )
    for asked, dtypes in (({}, "float64,float16"), ({"dtypes": "bf16"}, "bf16")):
        options = selection.with_ops(RunOptions(**asked), ["mine.float64", "mine.float16"], ["add"])
        assert (options.ops, options.dtypes) == ("mine.float64,mine.float16,add", dtypes)


def test_a_place_that_cannot_be_made_is_named(tmp_path, monkeypatch, capsys):
    run, lost = run_of(curve({64: 0.5})), OSError(errno.EROFS, "read-only")
    monkeypatch.setattr(delivery.store, "result_path", Mock(side_effect=lost))
    monkeypatch.setattr(delivery.store, "rescue", lambda run: tmp_path / "rescued.json")
    saver = delivery.Saver([], RunOptions())
    for write in (saver, saver.finish):
        with contextlib.suppress(GpubenchError):
            write(run)
            raise saver.error
        assert saver.error is None or "the results folder" in saver.error.message
    assert "the results folder" in saver.error.message
    for written, told in ((Mock(return_value=2), "wrote 2 charts to x\n"), (Mock(side_effect=lost), "")):
        monkeypatch.setattr("gpubench.report.plots.write", written)
        with contextlib.nullcontext() if told else pytest.raises(GpubenchError, match="the charts into x"):
            delivery.write_plots([], RunOptions(plots="x"), RenderOptions())
        delivery.write_plots([], RunOptions(), RenderOptions())
        assert (capsys.readouterr().err, written.call_count) == (told, 1)
    monkeypatch.setattr(delivery.store, "set_aside", Mock(side_effect=lost))
    assert "r.json.part" in raised(GpubenchError, delivery.keep_part, ["r.json"], resumed=False).message
    monkeypatch.setattr(
        delivery.store,
        "lock_result",
        lambda path, argv, timeout_s, waits, warn: waits("other") or warn("why") or Mock(),
    )
    for quiet, words in ((False, "waiting for another run: other\nwarning: why\n"), (True, "warning: why\n")):
        with delivery.lock(["r.json"], RunOptions(quiet=quiet)):
            assert capsys.readouterr().err == words


def test_errors_of_files_follow_what_was_printed(monkeypatch):
    order = []
    monkeypatch.setattr("sys.stdout", Mock(flush=lambda: order.append("printed")))
    monkeypatch.setattr(delivery, "tell", order.append)
    assert (delivery.exit_code(None, ["error"]), order) == (1, ["printed", "error"])


@pytest.mark.parametrize(("asked", "known"), [
    *((asked, {"sessions": sessions}) for asked, sessions in [
        ({"budget": "60s"}, 1), ({"budget": "4m"}, 2), ({"budget": "2h"}, 3), ({"budget": "5m", "sessions": 1}, 1),
        ({"budget": "5m", "quick": True}, 1), ({"budget": "5m", "sizes": ["1k"]}, 1)]),
    ({"min_samples": 999}, {"max_samples": 999}), ({"min_samples": 9, "max_samples": 9}, {"max_samples": 9}),
    ({"check_only": True}, {"sessions": 1, "autotune": False, "budget_s": None}),
    ({"check_only": True, "budget": "9s"}, {"budget_s": 9.0}), ({"page_locked": True, "no_autotune": True}, {"page_locked": True, "autotune": False}),
    ({}, {"page_locked": Settings().page_locked, "autotune": True}),
])  # fmt: skip
def test_settings_are_those_of_a_preset_and_what_follows_from_the_options(asked, known):
    """A size that nobody named is known more closely by another session than by more samples of the same one."""
    options, ops = RunOptions(**asked), {"add": kernels.load("add")}
    settings = request.settings(options, request.selection(options, ops), ops)
    assert {name: getattr(settings, name) for name in known} == known


@pytest.mark.parametrize(("asked", "words"), [
    ({}, {"sizes": [], "dtypes": [], "limit_s": None}),
    ({"budget": "10s", "sizes": ["4k,1k", "add=2k", "auto"], "dtypes": "f64,f32"},
     {"sizes": [1024, 2048, 4096], "dtypes": ["float64", "float32"], "limit_s": 4.0}),
])  # fmt: skip
def test_a_function_is_tried_at_all_named_sizes_for_a_share_of_the_budget(monkeypatch, asked, words):
    monkeypatch.setattr(detection, "inspect", Mock(side_effect=AssertionError("a probe would be started")))
    monkeypatch.setattr(detection, "read_this_host", Machine)  # that of now: a notebook fills its memory
    assert selection.trial_words(RunOptions(**asked)) == {**words, "usable_bytes": None}


@pytest.mark.parametrize(("asked", "load", "once_s"), [
    ({"devices": "fake:cpu,fake:gpu"}, processes.no_cpu_times, 11.25), ({"devices": "numpy:0"}, processes.read_cpu_times, 10.0),
    ({"devices": "fake:cpu", "budget": "20s"}, processes.no_cpu_times, 0.0),
])  # fmt: skip
def test_a_default_budget_grows_with_what_is_done_once_and_a_scripted_clock_with_no_load(asked, load, once_s):
    spec = request.request(RunOptions(ops="add", quiet=True, **asked), began=0.0)
    spec.spares.end()
    assert (spec.load, spec.once_s) == (load, once_s)
    assert (spec.whole, spec.adds_sessions, spec.repeats, spec.check_only) == (
        "budget" in asked,
        "budget" in asked,
        False,
        False,
    )
    assert (spec.constraints.named_regimes, spec.constraints.named_implementations) == (False, False)
    assert "no-tf32" not in [warning.code for warning in spec.run.warnings]


def test_the_devices_of_a_run_name_their_gpus_by_digests_as_its_file_does():
    uuid = "GPU-8fd2ceae-1e56-1aae-077f-81452b8715a7"
    machine = Machine(gpus=[Gpu(id=uuid, uuid=Fact(uuid, "ok", "nvml"))])
    known = Target(replace(GPU, identity=Identity(uuid=uuid)), ("tuned",))
    spec = request.Request(RunOptions(), Selection(ops=["add"]), Settings(), 0.0).on(
        DeviceSelection((known,), (), (), ((known, known),)), machine
    )
    ids = {target.device.gpu_id for target in (*spec.constraints.targets, *spec.left_out[0])}
    assert ids == {spec.run.machine.gpus[0].id} == {spec.run.devices[0].gpu_id} != {uuid}


# Sessions, least and most samples, seconds of a case, precision, warm-up and seconds of a sample, the budget.
@pytest.mark.parametrize(("asked", "preset", "values"), [
    ({}, "default", (1, 4, 8, 0.2, 0.05, 0.0, 0.001, 45.0)), ({"mode": "hybrid"}, "default", (1, 4, 8, 0.2, 0.05, 0.0, 0.001, 90.0)),
    ({"quick": True}, "quick", (1, 4, 8, 0.2, 0.05, 0.0, 0.001, 20.0)), ({"sessions": 5}, "default", (5, 4, 8, 0.2, 0.05, 0.0, 0.001, 225.0)),
    ({"rigorous": True}, "rigorous", (10, 4, 8, 0.2, 0.05, 0.0, 0.001, 450.0)), ({"quick": True, "sizes": ["1k"]}, "quick", (1, 4, 16, 0.2, 0.05, 0.0, 0.002, None)),
    ({"sizes": ["1k"]}, "default", (1, 4, 8, 0.3, 0.02, 0.0, 0.005, None)),
    ({"sizes": ["1k"], "rigorous": True}, "rigorous", (10, 20, 200, 5.0, 0.01, 0.25, 0.005, None)),
])  # fmt: skip
def test_a_preset_is_these_numbers(asked, preset, values):
    options, ops = RunOptions(**asked), {"add": kernels.load("add")}
    how = request.settings(options, request.selection(options, ops), ops)
    samples = (how.sessions, how.min_samples, how.max_samples, how.max_time_s, how.precision, how.warmup_s)
    assert how.preset == preset
    assert (*samples, how.sample_s, how.budget_s) == values


@pytest.mark.parametrize(("governor", "on_battery", "severity"), [
    (None, False, []), ("performance", False, []), ("schedutil", False, []), ("powersave", False, ["info"]),
    ("performance", True, ["warning"]), ("powersave", True, ["warning"]), (None, True, ["warning"]),
])  # fmt: skip
def test_a_machine_that_saves_power(governor, on_battery, severity):
    found = request.power(governor, on_battery=on_battery)
    assert [(w.code, w.severity) for w in found] == [("powersave", word) for word in severity]


def test_threads_of_a_blas_that_do_not_fit_are_said():
    notes = {"BLAS_THREADS": "64 threads", "NUMA_OVERLAP": "x"}
    machine = Machine(warnings=[MachineWarning(code=code, text=text) for code, text in notes.items()])
    assert [(w.code, w.message) for w in request.blas_threads(machine)] == [("blas-threads", "64 threads")]


# ---------------------------------------------------------------------- run --mode


SMALL = ("--ops", "add", "--sizes", "1k", "--regimes", "resident-queued")


@pytest.fixture
def no_gpu(tmp_path):
    """An environment in which nothing that drives a GPU can be imported, whatever this machine has."""
    blocked = tmp_path / "blocked"
    for name in ("cupy", "torch", "wgpu"):
        (blocked / name).mkdir(parents=True)
        failure = f"raise ImportError('{name} is not installed (a test says so)')\n"
        (blocked / name / "__init__.py").write_text(failure)
    return {"PYTHONPATH": str(blocked)}


@pytest.mark.parametrize("mode", ["gpu", "hybrid"])
def test_a_gpu_that_is_not_there_is_exit_5_with_the_reason(gpubench, no_gpu, mode):
    ended = gpubench("run", *SMALL, "--mode", mode, "--dry-run", env=no_gpu)
    assert ended.returncode == 5
    first, why, fix = ended.stderr.splitlines()[-3:]
    assert f"--mode {mode}: there is no GPU" in first
    assert "a test says so" in why
    assert "gpubench detect" in fix
    assert ended.stdout == ""


def test_backends_that_may_be_absent_and_all_are_say_why(gpubench, no_gpu):
    ended = gpubench("run", *SMALL, "--backends", "cupy?,wgpu?", "--dry-run", env=no_gpu)
    first, why, _ = ended.stderr.splitlines()[-3:]
    assert (ended.returncode, "has a device" in first, why.count("a test says so")) == (5, True, 2)


def test_auto_says_what_detection_recommends_and_takes_it(gpubench, no_gpu):
    reported = json.loads(gpubench("detect", "--json", env=no_gpu).stdout)["recommendation"]
    ended = gpubench("run", *SMALL, "--mode", "auto", "--dry-run", env=no_gpu)
    assert ended.returncode == 0, ended.stderr
    advice = f"{reported['mode']} ({reported['confidence']}): {reported['reasons'][0]['text']}"
    assert f"--mode auto takes {advice}" in ended.stderr
    assert "@numpy:0" in ended.stdout


def test_a_split_that_was_named_is_required_and_auto_leaves_splits_out(gpubench, no_gpu):
    ended = gpubench("run", *SMALL, "--devices", "numpy:0,hybrid:cupy:0", "--dry-run", env=no_gpu)
    assert (ended.returncode, "hybrid:cupy:0" in ended.stderr) == (5, True)
    ended = gpubench("run", *SMALL, "--allow-software", "--dry-run")
    assert (ended.returncode, "hybrid" in ended.stdout) == (0, False), ended.stderr


def test_a_mode_that_contradicts_the_file_is_refused(gpubench, tmp_path):
    made = gpubench("run", *SMALL, "--mode", "cpu", "--check-only", "-o", "r.json")
    assert made.returncode == 0, made.stderr
    more = gpubench("run", "--mode", "hybrid", "--append", "r.json", "--dry-run")
    assert more.returncode == 2
    assert "--mode contradicts --append r.json" in more.stderr
    assert gpubench("run", "--mode", "cpu", "--append", "r.json", "--dry-run").returncode == 0
