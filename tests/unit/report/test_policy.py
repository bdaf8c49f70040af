"""`gpubench.Policy`: the same answers as `gpubench advise`, without its cost."""

import copy
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

import gpubench
from gpubench import kernels
from gpubench.analysis import machine
from gpubench.analysis.advice import answer
from gpubench.analysis.contenders import Key
from gpubench.analysis.policy import UNKNOWN, Policy, size_and_others
from gpubench.base.errors import InputError, UsageError
from gpubench.detect.host import this_host
from gpubench.result.store import save
from tests.architecture.test_imports import HEAVY, NEVER
from tests.unit.report.builders import CPU, GPU, case, curve, measured, regime_of, run_of, skipped
from tests.unit.report.test_advise import SPLIT, splitting

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


def test_the_answer_at_a_measured_size():
    found = POLICY.choose("matmul", shape=1024, dtype="float32", regime="transfer-always")
    place = (found.device_id, found.backend, found.implementation, found.basis)
    assert place == ("cupy:0", "cupy", "library", "measured")
    assert (found.expected_s, found.gain) == (pytest.approx(5e-4), pytest.approx(2.0))
    for n, calls in ((700, 1), (2048, 3), (2048, None), (256, 700), (5000, 10)):
        agreed(RUN, "matmul", n, regime_of(calls))
    assert POLICY.ops == ("matmul", "relu")
    seconds = {"resident-waited": 2e-3, "resident-queued": 5e-4}
    rows = [measured(case(regime=name, device="cupy:0"), s) for name, s in seconds.items()]
    waited = Policy([run_of([measured(case(), 1e-3), *rows])]).choose("matmul", shape=1024, regime="resident")
    assert waited.device_id == "numpy:0", "a call on data that stays is waited for"
    with pytest.raises(AttributeError):
        found.device_id = "numpy:0"


def test_a_device_that_won_where_its_sizes_end_is_missed_beyond():
    """wgpu:0 goes on to 4096, cupy:0 was the fastest at 2048: nobody knows who is at 3000."""
    rows = [
        (device, n, s * n) for device, s in (("numpy:0", 1e-6), ("wgpu:0", 0.5e-6)) for n in (1024, 2048, 4096)
    ]
    rows += [("cupy:0", 1024, 1e-4), ("cupy:0", 2048, 1e-4)]
    cases = [measured(case("relu", n=n, device=device), seconds) for device, n, seconds in rows]
    run = run_of(cases, devices=[CPU, GPU, replace(GPU, id="wgpu:0", backend="wgpu")])
    assert (agreed(run, "relu", 1500)[0].device_id, agreed(run, "relu", 3000)[0]) == ("cupy:0", UNKNOWN)


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
    ("gemv", (100,)), ("options.pairwise", (1024, 64)),  # what the axes of a function are its file says
])  # fmt: skip
def test_shapes_that_no_size_of_the_op_has_are_unknown(op, shape):
    assert size_and_others(op, shape)[0] == 0
    found = POLICY.choose("relu" if "." in op else op, {"n": 0})
    assert (found, found.command, found.advice, found.confidence) == (UNKNOWN, None, None, "none")


@pytest.mark.parametrize("shape", [
    None, "1M", "1024", 2.5, float("inf"), [3, (1, 2)], [(1, 2), 3], (-4, -4), {"n": "1k"}, {"m": 4}, {"n": 4, "m": 2.5},
])  # fmt: skip
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(UsageError, match="names no size"):
        POLICY.choose("matmul", shape)


def test_dtypes_by_name_or_as_numpy_has_them():
    tensors = type("dtype", (), {"__str__": lambda self: "torch.float32"})()
    for dtype in ("float32", "f32", SimpleNamespace(name="float32"), type("float32", (), {}), tensors):
        assert POLICY.choose("matmul", shape=(1024, 1024), dtype=dtype).basis == "measured"


def test_the_threshold_of_several_dtypes_names_its_own():
    ratios = {"float16": {256: 2.0, 1024: 4.0, 4096: 8.0}, "float32": {256: 0.25, 1024: 1.0, 4096: 4.0}}
    run = run_of([row for dtype, own in ratios.items() for row in curve(own, dtype=dtype)])
    for words, dtype in (
        ({}, "float16"),
        ({"dtype": "f32"}, "float32"),
        ({"dtype": SimpleNamespace(name="float32")}, "float32"),
    ):
        found = Policy([run]).threshold("matmul", "queued", **words)
        assert (found.dtype, found.params, found.n == 256) == (dtype, {}, dtype == "float16")
    assert "for 'float64 queued'" in str(Policy([run]).threshold("matmul", "queued", dtype="float64"))


def test_policies_and_answers_are_sent_to_other_processes():
    assert pickle.loads(pickle.dumps(POLICY)).choose("matmul", 1024).basis == "measured"
    for n in (1024, 4097):
        answer = POLICY.choose("matmul", n)
        for copied in (pickle.loads(pickle.dumps(answer)), copy.copy(answer)):
            assert (copied, copied.why, copied.command) == (answer, answer.why, answer.command)


@pytest.mark.parametrize("words", [
    {"shape": 255}, {"shape": 4097}, {"shape": 0}, {"shape": (512, 1024)}, {"shape": [(1024, 1024), (1024, 16)]},
    {"shape": {"n": 512, "m": 4}}, {"shape": 512, "dtype": "int8"}, {"op": "softmax", "shape": 512},
    {"op": "pairwise", "shape": 1024},
])  # fmt: skip
def test_what_was_not_measured_is_unknown(words):
    assert POLICY.choose(**{"op": "matmul"} | words) == UNKNOWN


@pytest.mark.parametrize("regime", ["hot", *(f"transfer-once{end}" for end in ("", "-0", "-x", "--1"))])
def test_unknown_regimes_are_refused(regime):
    with pytest.raises(UsageError, match="there is no regime"):
        POLICY.choose("matmul", shape=1024, regime=regime)


def test_a_caller_that_can_split_gets_the_split_and_its_share():
    agreed(run_of(splitting(0.78e-3), **SPLIT), "matmul", 1024, QUEUED, hybrid=True)
    agreed(run_of(splitting(1.2e-3), **SPLIT), "matmul", 1024, QUEUED, hybrid=True)
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


def test_a_folder_speaks_for_its_own_machine_alone(tmp_path):
    save(RUN, tmp_path / NAME)  # of a CPU that is called Test CPU
    with pytest.raises(InputError) as error:
        Policy.load(tmp_path)
    assert (error.value.code, "Test CPU" in error.value.why) == ("other-machine", True)


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
