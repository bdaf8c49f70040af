"""Which device is advised, and when none is, by `gpubench advise` and by `gpubench.Policy`."""

import copy
import json
import pickle
import subprocess
import sys
from types import SimpleNamespace

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

import gpubench
from gpubench import kernels
from gpubench.analysis import machine
from gpubench.analysis.advice import Advice, answer
from gpubench.analysis.contenders import Key, call_time
from gpubench.analysis.estimate import case_results
from gpubench.analysis.policy import UNKNOWN, Policy, size_and_others
from gpubench.base.errors import InputError, UsageError
from gpubench.base.streams import columns
from gpubench.detect.host import this_host
from gpubench.report.advice import render
from gpubench.result.run import Parts
from gpubench.result.store import save
from tests.architecture.test_imports import HEAVY, NEVER
from tests.unit.report.builders import (
    CPU,
    GPU,
    HYBRID,
    case,
    curve,
    failed,
    measured,
    regime_of,
    run_of,
    skipped,
    split,
)

MATMUL = Key("matmul", "float32")
ALWAYS = "transfer-always"
RISING = curve({256: 0.5, 1024: 2.0, 4096: 8.0}, regime=ALWAYS)  # the GPU loses at the smallest size
CPU_SIZES = [measured(case(n=n), 1e-3) for n in (256, 1024, 4096)]


def gpu(n, seconds, regime=ALWAYS, implementation="library", **words):
    return measured(case(n=n, regime=regime, device="cupy:0", implementation=implementation), seconds, **words)


def ask(outcomes, n, calls=1, key=MATMUL, **words):
    return answer([run_of(outcomes, **words)], key, n, regime_of(calls))


@pytest.mark.parametrize(("more", "n", "device", "confidence"), [
    ([], 512, "numpy:0", "alone"), ([gpu(256, 1e-4), gpu(1024, 1e-4)], 2048, None, "none"),
    ([gpu(256, 1e-4), gpu(1024, 1e-4), skipped(case(n=2048, regime=ALWAYS, device="cupy:0"))], 3000, "numpy:0", "alone"),
    ([gpu(256, 1e-4), gpu(1024, 1e-4), skipped(case(n=2048, regime=ALWAYS, device="cupy:0"))], 2048, "numpy:0", "alone"),
    ([gpu(256, 1e-4), gpu(1024, 1e-4), skipped(case(n=2048, regime=ALWAYS, device="cupy:0"))], 2047, None, "none"),
    ([failed(case(n=1024, regime=ALWAYS, device="cupy:0"))], 512, "numpy:0", "alone"), ([gpu(n, 1e-3) for n in (256, 1024)], 256, "numpy:0", "close"),
    ([*(gpu(n, 2e-3) for n in (256, 4096)), *(measured(case(n=n, device="torch:cpu"), 1e-4) for n in (1024, 4096))], 512, None, "none"),
    *(([skipped(case(n=8192)), *(gpu(n, 1e-4) for n in (1024, 4096, 16384))], n, device, confidence) for n, device, confidence in (
        (8191, None, "none"), (8192, "cupy:0", "alone"), (16385, None, "none"))),
])  # fmt: skip
def test_one_side_alone_answers_only_where_the_other_takes_no_part(more, n, device, confidence):
    found = ask([*CPU_SIZES, *more], n)
    assert (found.device_id, found.confidence) == (device, confidence)
    assert more or "Gain: not known: no GPU was measured here." in render(found, "table")
    side = f"no {'CPU' if device == 'cupy:0' else 'GPU'} {'has a time here (' if more else 'was measured'}"
    assert confidence != "alone" or side in found.why
    assert n != 3000 or found.candidates[1].reason == "skip at n = 2048: out-of-memory"


def test_a_regime_that_was_not_measured_is_unknown():
    resident = curve({256: 0.5, 1024: 2.0})
    found = ask(resident, 1024)
    assert (found.basis, found.reason) == ("unknown", "cupy:0 not measured with the data there")
    assert ask(resident, 1024, calls=None).basis == "measured"
    mixed = [gpu(256, 1e-4, "transfer-once"), gpu(1024, 1e-4, "resident"), gpu(1024, 9.1e-3)]
    found = ask([*CPU_SIZES, *mixed], 512, calls=10)  # 10 calls a copy take 0.1 ms at 256, and 1 ms at 1024
    assert (found.basis, found.candidates[0].time.estimate) == (
        "interpolated",
        pytest.approx(10**-3.5, rel=0.1),
    )


def test_the_newest_run_that_compares_answers():
    old = replace(run_of(curve({256: 4.0, 1024: 4.0}, regime=ALWAYS)), id="old")
    cpu_only = replace(run_of([measured(case(n=256), 5e-3)], devices=(CPU,)), id="cpu-only")
    other = run_of([measured(case("relu", n=256), 5e-3)])
    assert answer(iter([other, cpu_only, old]), MATMUL, 256, ALWAYS).source.run_id == "old"
    assert answer([cpu_only, other], MATMUL, 256, ALWAYS).source.run_id == "cpu-only"
    elsewhere = replace(run_of([measured(case(n=1024), 5e-3)], devices=(CPU,)), id="elsewhere")
    assert answer([elsewhere, cpu_only], MATMUL, 256, ALWAYS).source.run_id == "cpu-only", "it has a time there"


def test_no_result_names_what_there_is():
    with pytest.raises(InputError) as error:
        ask(RISING, 256, key=Key("relu", "float32"))
    assert (error.value.exit_code, error.value.why) == (4, "measured: matmul")
    with pytest.raises(InputError, match=r"no result of options\.pairwise") as error:
        ask(RISING, 256, key=Key("options.pairwise", "float32"))
    assert error.value.hint.endswith("gpubench run options.py:pairwise"), "no op has that name"
    with pytest.raises(InputError) as error:
        ask(RISING, 256, key=Key("matmul", "float16", (("m", 4),)))
    assert error.value.message == "there is no result of matmul float16 m=4"
    assert error.value.hint.endswith("--ops matmul --dtypes float16 --params m=4")


@pytest.mark.parametrize("n", [1024, 2048, 2**30])
def test_the_document_follows_its_schema(n):
    text = render(ask(RISING, n), "json")
    found = json.loads(text)
    jsonschema.validate(found, msgspec.json.schema(Advice))
    assert (found["name"], found["schema_version"]) == ("gpubench-advise", 2)
    assert list(found) == [field.name for field in msgspec.structs.fields(Advice)]
    assert (found["device_id"] is None) == (found["basis"] == "unknown") == (n == 2**30)


# ---------------------------------------------------------------- splits
def splitting(seconds, *, gpu_s=1e-3):
    """Two sizes on the CPU (3 ms) and the GPU, and one of them split with 75 % on the GPU."""
    alone = {"numpy:0": 3e-3, "cupy:0": gpu_s}
    found = [measured(case(n=n, device=name), s, sessions=6) for n in (512, 1024) for name, s in alone.items()]
    what = case(n=1024, implementation="tuned", device="hybrid:cupy:0")
    return [*found, split(what, (3e-3, gpu_s), seconds, sessions=6)]


SPLIT = {"devices": (CPU, GPU, HYBRID), "sessions": 6}


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU with more", "日本語の名前" * 6, "short"])
@pytest.mark.parametrize("n", [700, 1024])
def test_an_answer_fits_80_columns_whatever_a_device_is_called(name, n):
    devices = (CPU, replace(GPU, name=name), replace(HYBRID, name=f"CPU + {name}"))
    text = render(ask(splitting(0.78e-3), n, None, devices=devices, sessions=6), "table")
    table = text.split("\n\n")[1].splitlines()
    assert max(columns(line) for line in text.splitlines()) <= 80
    assert ("hybrid:cupy:0" in table[2]) == (n == 1024)
    assert all("[" in line for line in table[2:] if line[0] != " ")  # no time is cut


# ---------------------------------------------------------------- what a call takes, between sizes and numbers of calls
def times(*, upload_s=9.8e-3, **seconds):
    """Cases of one size by regime id; an allocation is part of transfer-always."""
    parts = Parts(
        session=0, alloc_s=[1e-4], upload_s=[upload_s], launch_s=[1e-5], sync_s=[1e-5], download_s=[1e-4]
    )
    split = {"transfer_always": replace(parts, single_s=[1e-3])}
    cases = {name: case(regime=name.replace("_", "-"), device="cupy:0") for name in seconds}
    outcomes = [measured(cases[name], s, parts=split.get(name)) for name, s in seconds.items()]
    return {row.case.regime_id: row for row in case_results(run_of(outcomes))}


ALL = {"resident": 3e-3, "transfer_once": 2e-3, "transfer_always": 11e-3}


@pytest.mark.parametrize(("regimes", "calls", "expected"), [
    (ALL, None, 3e-3), (ALL, 1, 11e-3), (ALL, 10, 2e-3), (("transfer_once", "transfer_always"), 11, None),
    (("resident", "transfer_once"), 5, None), (("resident",), 1, None), (("transfer_always",), None, None), ((), 3, None),
])  # fmt: skip
def test_measured_calls_are_given_back_and_those_outside_are_unknown(regimes, calls, expected):
    point = call_time(times(**{name: ALL[name] for name in regimes}), regime_of(calls))
    assert (point is None) == (expected is None)
    assert point is None or (point.time.estimate, point.measured) == (pytest.approx(expected), True)


def test_where_the_parts_miss_the_whole_none_of_them_is_taken_from_it():
    # Of 11 ms 8, 12 and 88 % are missing.
    for upload_s, misses in ((8.92e-3, False), (8.48e-3, True), (1e-4, True)):
        found = times(upload_s=upload_s, **ALL)
        assert ("transfer-mismatch" in found["transfer-always"].findings) == misses
    b = (10 * 2e-3 - 11e-3) / 9
    assert call_time(found, regime_of(5)).time.estimate == pytest.approx(((11e-3 - b) + b * 5) / 5)


# ---------------------------------------------------------------- gpubench.Policy: the same answers, without their cost
RATIOS = {256: 0.5, 1024: 2.0, 4096: 8.0}
RUN = run_of([
    *curve(RATIOS, regime="transfer-always"),
    *(measured(case(n=n, regime=regime, device="cupy:0"), s) for n in RATIOS for regime, s in (("transfer-once", 1e-4), ("resident", 5e-5))),
    skipped(case("mine.pairwise")), *(measured(case("relu", n=n), 1e-3) for n in (2**10, 2**20)),
    *(measured(case("relu", n=n, regime="transfer-always", device="cupy:0"), 1e-4) for n in (2**10, 2**20)),
])  # fmt: skip
POLICY = Policy([RUN])
QUEUED = "resident-queued"
NAME = "20260101T000000Z-00000001.json"


def agreed(run, op, n, regime=QUEUED, **words):
    """The answer of the policy, which has to be that of `advise`."""
    found = Policy([run]).choose(op, shape=n, regime=regime, **words)
    want = answer([run], Key(op, "float32"), n, regime)
    assert (found.device_id, found.basis) == (want.device_id, want.basis)
    assert found.expected_s == (pytest.approx(want.time.estimate, rel=1e-12) if want.time else None)
    assert (found.gain is None) == (want.gain is None)
    assert found.advice == want
    return found, want


@pytest.mark.parametrize(("op", "shape", "params"), [
    ("matmul", [(512, 512), (512, 512)], {"n": 512}), ("matmul", ((1024, 1024), (1024, 16)), {"n": 16, "m": 1024, "k": 1024}),
    ("matmul", [(16, 1024), (1024, 1024)], {"n": 1024, "m": 16}), ("matmul", [(8, 64, 64), (8, 64, 64)], {"n": 64, "batch": 8}),
    ("matmul", [(2, 3, 5), (2, 5, 7)], {"n": 7, "m": 3, "k": 5, "batch": 2}), ("matmul", (8, 64, 64), {"n": 64, "batch": 8}),
    ("gemv", (100, 30), {"n": 30, "m": 100}), ("gemv", [(100, 30), (30,)], {"n": 30, "m": 100}), ("transpose", [(7, 9)], {"n": 9, "m": 7}),
    ("softmax", (2, 3, 50), {"n": 300, "columns": 50}), ("softmax", (4, 1024), {"n": 4096}), ("add", [(3, 4), (3, 4)], {"n": 12}),
    ("relu", (), {"n": 1}),
])  # fmt: skip
def test_shapes_of_arrays_are_the_params_of_the_op(op, shape, params):
    n, others = size_and_others(op, shape)
    assert {"n": n, **dict(others)} == params
    declared = kernels.load(op)
    assert declared.fits(params) is None
    assert n == size_and_others(op, [operand.shape(params) for operand in declared.inputs])[0]


@pytest.mark.parametrize(("op", "shape"), [
    ("matmul", (16, 64)),  # of which op with sides 16 and 64 A alone does not tell
    ("matmul", [(16, 64), (32, 16)]), ("matmul", [(4, 4), (4, 4), (4, 4)]), ("matmul", (0, 0)), ("gemv", [(100, 30), (31,)]),
    ("gemv", (100,)), ("matmul", {"n": 64, "columns": 3}), ("options.pairwise", (1024, 64)),  # what the axes of a function are its file says
])  # fmt: skip
def test_shapes_that_no_size_of_the_op_has_are_unknown(op, shape):
    assert size_and_others(op, shape)[0] == 0
    found = POLICY.choose("relu" if "." in op else op, {"n": 0})
    assert (found, found.command, found.advice, found.confidence) == (UNKNOWN, None, None, "none")


@pytest.mark.parametrize(("words", "why"), [
    *(({"shape": shape}, "names no size") for shape in (
        None, "1M", "1024", 2.5, -3, float("inf"), [3, (1, 2)], [(1, 2), 3], (-4, -4), {"n": "1k"}, {"m": 4}, {"n": 4, "m": 2.5})),
    *(({"shape": 1024, "regime": regime}, "there is no situation") for regime in ("hot", *(f"transfer-once{end}" for end in ("", "-0", "-x", "--1")))),
])  # fmt: skip
def test_what_is_no_shape_or_regime_is_refused(words, why):
    with pytest.raises(UsageError, match=why):
        POLICY.choose("matmul", **words)


def test_dtypes_by_name_or_as_numpy_has_them():
    tensors = type("dtype", (), {"__str__": lambda self: "torch.float32"})()
    for dtype in ("float32", "f32", SimpleNamespace(name="float32"), type("float32", (), {}), tensors):
        assert POLICY.choose("matmul", shape=(1024, 1024), dtype=dtype).basis == "measured"


def test_the_threshold_of_several_dtypes_names_its_own():
    ratios = {"float16": {256: 2.0, 1024: 4.0, 4096: 8.0}, "float32": {256: 0.25, 1024: 1.0, 4096: 4.0}}
    run = run_of([row for dtype, own in ratios.items() for row in curve(own, dtype=dtype)])
    named = SimpleNamespace(name="float32")
    for words, dtype in (({}, "float16"), ({"dtype": "f32"}, "float32"), ({"dtype": named}, "float32")):
        found = Policy([run]).threshold("matmul", "queued", **words)
        assert (found.dtype, found.params, found.n == 256) == (dtype, {}, dtype == "float16")
    assert "for 'float64 queued'" in str(Policy([run]).threshold("matmul", "queued", dtype="float64"))


def test_policies_and_answers_are_sent_to_other_processes():
    assert pickle.loads(pickle.dumps(POLICY)).choose("matmul", 1024).basis == "measured"
    for n in (1024, 4097):
        answer = POLICY.choose("matmul", n)
        for copied in (pickle.loads(pickle.dumps(answer)), copy.copy(answer)):
            assert (copied, copied.why, copied.command) == (answer, answer.why, answer.command)


def test_a_caller_that_can_split_gets_the_split_and_its_share():
    agreed(run_of(splitting(0.78e-3), **SPLIT), "matmul", 1024, QUEUED, hybrid=True)
    rare = measured(case(n=1024, implementation="tuned", device="cupy:0"), 0.7e-3)
    for slow in (splitting(1.2e-3), [*splitting(0.78e-3), rare]):
        assert agreed(run_of(slow, **SPLIT), "matmul", 1024, QUEUED, hybrid=True)[0].device_id == "cupy:0"
    policy = Policy([run_of(splitting(0.78e-3), **SPLIT)])
    found = policy.choose("matmul", shape=(1024, 1024), regime=QUEUED, hybrid=True)
    assert (found.device_id, found.backend, found.implementation) == ("hybrid:cupy:0", "hybrid", "tuned")
    assert (found.basis, found.gpu_share, found.expected_s) == ("measured", 0.75, pytest.approx(0.78e-3))
    assert found.gain == pytest.approx(1 / 0.78)
    for words in ({}, {"hybrid": False}):
        alone = policy.choose("matmul", shape=1024, regime=QUEUED, **words)
        assert (alone.device_id, alone.gpu_share) == ("cupy:0", None)


def test_load_from_a_file_and_from_nothing(tmp_path):
    save(RUN, tmp_path / "run.json")
    assert gpubench.Policy.load(tmp_path / "run.json").choose("relu", shape=2**20).device_id == "cupy:0"
    (tmp_path / "empty").mkdir()
    for name, why in (("missing.json", "cannot be read"), ("empty", "no result to answer from")):
        with pytest.raises(InputError, match=why):
            gpubench.Policy.load(tmp_path / name)


@pytest.mark.parametrize("odd", [{"inputs": "zeros"}, {"cache": "cold"}, {"threads": 0}])
def test_a_folder_leaves_experiments_out_and_a_file_does_not(tmp_path, odd):
    here = replace(RUN, machine=this_host())
    save(replace(here, settings=replace(RUN.settings, **odd)), tmp_path / NAME)
    with pytest.raises(InputError, match="no result of this machine"):
        Policy.load(tmp_path)
    assert Policy.load(tmp_path / NAME).choose("matmul", shape=1024).basis == "measured"
    every_cpu = replace(RUN.settings, threads=this_host().cpu.available.value)  # as `run` writes it
    save(replace(here, settings=every_cpu), tmp_path / "20250101T000000Z-00000002.json")
    assert Policy.load(tmp_path).choose("matmul", shape=1024).basis == "measured"


def test_a_folder_speaks_through_its_newest_files_alone(tmp_path, monkeypatch):
    """Of three files the oldest alone knows relu; two are read, then one."""
    here = replace(RUN, machine=this_host())
    for year, op in ((2024, "relu"), (2025, "matmul"), (2026, "matmul")):
        rows = [row for row in here.outcomes if row.case.op == op]
        save(replace(here, outcomes=rows), tmp_path / f"{year}0101T000000Z-00000001.json")
    for most, ops in ((3, ("matmul", "relu")), (2, ("matmul",))):
        monkeypatch.setattr(machine, "MOST_FILES", most)
        assert Policy.load(tmp_path).ops == ops


def test_asking_imports_nothing_heavy(tmp_path):
    save(RUN, tmp_path / "run.json")
    choose = f"gpubench.Policy.load({str(tmp_path / 'run.json')!r}).choose('matmul', shape=(1024, 1024))"
    program = f"import sys, gpubench\nassert {choose}.device_id == 'cupy:0'\nprint(*sys.modules)"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    ours = {"typer", "psutil", "gpubench.measure", "gpubench.cli", "gpubench.backends"}
    assert not set(done.stdout.split()) & (HEAVY | NEVER | ours)
