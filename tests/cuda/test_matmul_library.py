"""CuPy's matmul on a real GPU: TF32 only where it was asked for, batches and sides, halves; and the program with all backends side by side."""

import json

import pytest

from gpubench import kernels
from gpubench.kernels.contract.op import UNIT_ROUNDOFF
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import TF32, Case
from tests.cuda.conftest import SEARCH_PATH

pytestmark = pytest.mark.cuda

OP = kernels.load("matmul")
FLOAT32_LIMIT = OP.tolerance.units * UNIT_ROUNDOFF["float32"]
SHAPES = [
    {"n": 512}, {"n": 1024}, {"n": 1000}, {"n": 256, "m": 4096, "k": 64}, {"n": 256, "batch": 8},
    {"n": 100, "m": 33, "k": 700, "batch": 3},
]  # fmt: skip


def case(params, dtype="float32", variant=None, implementation="library"):
    return Case(OP.name, OP.group, params, dtype, implementation, "resident-queued", "cupy:0", variant=variant)


@pytest.mark.parametrize("params", SHAPES, ids=str)
def test_tf32_is_on_for_its_own_row_and_off_before_and_after(session, params, tmp_path):
    plain, rounded = case(params), case(params, variant=TF32)
    assert session.supports(OP, rounded) is None
    workspace = Workspace(session, OP, plain, 1, "random", tmp_path)
    errors = [gate(workspace, one, lambda phase: None).check.max_error for one in (plain, rounded, plain)]
    workspace.release()
    assert errors[0] == errors[2], "the mode of the handle is put back"
    assert errors[0] <= FLOAT32_LIMIT
    if params in SHAPES[:2]:  # for other shapes cuBLAS may prefer a kernel that does not round
        assert errors[1] > FLOAT32_LIMIT, "TF32 rounds: if it did not, it would not have been on"


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("params", SHAPES, ids=str)
def test_shapes_in_other_dtypes(session, params, dtype, tmp_path):
    one = case(params, dtype)
    refusal = session.supports(OP, one)
    if refusal is not None:
        assert (dtype, refusal.reason) == ("bfloat16", "no-dtype")
        return
    workspace = Workspace(session, OP, one, 1, "random", tmp_path)
    assert gate(workspace, one, lambda phase: None).check.ok
    workspace.release()


def test_tf32_concerns_float32_alone(session):
    for dtype in ("float64", "float16"):
        assert session.supports(OP, case({"n": 64}, dtype, TF32)).reason == "no-implementation"


def test_the_environment_cannot_switch_it_on_and_the_row_is_faster(gpubench):
    """Under CUPY_TF32=1 the plain row still passes the gate of float32; the other row shows what TF32 gains."""
    ended = gpubench(
        "run", "--devices", "cupy:0", "--ops", "matmul", "--sizes", "4096", "--regimes", "resident-queued", "--allow-tf32",
        "--quick", "-o", "r.json", "--format", "json", timeout=300,
        env={"PYTHONPATH": SEARCH_PATH, "CUPY_TF32": "1", "NVIDIA_TF32_OVERRIDE": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = {outcome["case"].get("variant"): outcome for outcome in json.loads(ended.stdout)["outcomes"]}
    assert found[None]["check"]["max_error"] <= FLOAT32_LIMIT < found[TF32]["check"]["max_error"]
    fastest = {name: min(v for b in o["blocks"] for v in b["wall_s"]) for name, o in found.items()}
    assert fastest[TF32] < 0.6 * fastest[None]


# ---------------------------------------------------------------------- NumPy, CuPy and wgpu through real workers


def test_matmul_and_relu_on_all_three_backends(gpubench, tmp_path):
    ended = gpubench(
        "run", "--ops", "matmul,relu", "--sizes", "512", "--sizes", "relu=64k", "--backends", "numpy,cupy,wgpu",
        "--quick", "--max-time", "100ms", "--full", "-o", "r.json", env={"PYTHONPATH": SEARCH_PATH}, timeout=110,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["complete"]
    measured = {o["id"]: o for o in result["outcomes"] if o["type"] == "measurement"}
    assert {o["case"]["device_id"].split(":")[0] for o in measured.values()} == {"numpy", "cupy", "wgpu"}
    assert [o["id"] for o in result["outcomes"] if o["type"] == "failure"] == []
    for outcome in measured.values():
        assert outcome["check"]["ok"]
        resident_gpu = outcome["case"]["regime"] == "resident-queued" and "numpy" not in outcome["id"]
        assert bool(outcome["blocks"][0].get("device_hot_s")) == resident_gpu, outcome["id"]
    assert "cupy" in ended.stdout
    assert "vs numpy" in ended.stdout


def test_a_case_larger_than_the_device_is_skipped(gpubench, tmp_path):
    ended = gpubench(
        "run", "--ops", "copy", "--sizes", "1k,64G", "--backends", "numpy,cupy", "--check-only", "-o", "r.json",
        env={"PYTHONPATH": SEARCH_PATH},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    outcomes = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    large = [o for o in outcomes if "/n=68719476736/" in o["id"]]
    assert large
    assert {(o["type"], o["reason"]) for o in large} == {("skip", "out-of-memory")}
