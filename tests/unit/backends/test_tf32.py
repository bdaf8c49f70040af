"""TF32: off whatever the environment says, one case at a time, and a tolerance of its own."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.backends.cupy import launches
from gpubench.backends.shared.host import no_tf32, random_inputs
from gpubench.backends.torch import TorchSession
from gpubench.result.case import TF32, Case
from tests.judging import compare, reference

MATMUL = kernels.load("matmul")
U_TF32, U_FLOAT32 = 2.0**-11, 2.0**-24


def case(op=MATMUL, dtype="float32", how="library", variant=TF32):
    return Case(op.name, op.group, {"n": 64}, dtype, how, "resident-queued", "cupy:0", variant=variant)


def rounded(x, *, truncate):
    """float32 with 10 bits of mantissa, rounded to nearest or cut off: hardware does either."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits if truncate else bits + (1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize(("asked", "capability", "reason"), [
    (case(), (9, 0), None), (case(), (8, 0), None), (case(), (7, 5), "no-tf32"), (case(variant=None), (7, 5), None),
    (case(dtype="float64"), (9, 0), "no-implementation"), (case(variant="naive"), (9, 0), "no-implementation"),
    (case(kernels.load("add")), (9, 0), "no-implementation"),
])  # fmt: skip
def test_which_cases_run(asked, capability, reason):
    op, on_torch = kernels.load(asked.op), replace(asked, device_id="torch:cuda:0")
    refusal = no_tf32(op, asked, *capability)
    assert (refusal.reason if refusal else None) == reason
    if reason:
        session = TorchSession.__new__(TorchSession)
        session.device, session.capability = SimpleNamespace(kind="gpu", api="cuda"), capability
        assert session.supports(op, on_torch).reason == reason


def test_the_mode_is_on_during_the_call_alone_even_if_it_fails(monkeypatch):
    monkeypatch.setenv("CUPY_TF32", "1")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    launches.pin_off()
    assert (os.environ["CUPY_TF32"], "NVIDIA_TF32_OVERRIDE" in os.environ) == ("0", False)
    modes, device = [], SimpleNamespace(get_cublas_handle=lambda: 7)
    cublas = SimpleNamespace(CUBLAS_DEFAULT_MATH=0, setMathMode=lambda *asked: modes.append(asked))
    cupy = SimpleNamespace(cuda=SimpleNamespace(cublas=cublas, device=device))
    assert (launches.with_tf32(cupy, lambda: "out")(), modes) == ("out", [(7, 3), (7, 0)])
    with pytest.raises(ZeroDivisionError):
        launches.with_tf32(cupy, lambda: 1 // 0)()
    assert modes[2:] == [(7, 3), (7, 0)]


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("params", [{"n": 3, "k": 1}, {"n": 48, "k": 4096}, {"n": 9, "batch": 3}])
def test_the_gate_takes_tf32_for_tf32_alone(params, truncate, tmp_path):
    """Inputs with 10 bits of mantissa are right for `tf32`, and wrong for float32: TF32 cannot slip in unseen."""
    inputs = random_inputs(MATMUL, params, "float32", 1)
    want, scale, _ = reference(MATMUL, inputs, tmp_path, "key")
    a, b = (rounded(x, truncate=truncate) for x in inputs)
    as_tf32 = compare(MATMUL, case().precision, a @ b, want, scale)
    assert (as_tf32.ok, as_tf32.limit) == (True, MATMUL.tolerance.units * U_TF32)
    assert not compare(MATMUL, "float32", a @ b, want, scale).ok
    assert compare(MATMUL, "float32", inputs[0] @ inputs[1], want, scale).ok


def test_the_gate_of_tf32_still_finds_what_is_wrong(tmp_path):
    inputs = random_inputs(MATMUL, {"n": 32}, "float32", 1)
    want, scale, _ = reference(MATMUL, inputs, tmp_path, "key")
    got = (inputs[0] @ inputs[1]).astype(np.float32)
    got[3, 4] += 0.01 * scale[3, 4]
    check = compare(MATMUL, TF32, got, want, scale)
    assert (check.ok, check.index) == (False, [3, 4])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "params", [{"n": 5, "k": 1}, {"n": 16, "k": 8192}, {"n": 40, "m": 7}, {"n": 9, "batch": 3}]
)
def test_halves_with_float32_accumulation_pass_with_room(dtype, params, tmp_path):
    """Products summed in float32 and rounded once stay below one unit of the dtype times the norms; 8 are allowed."""
    inputs = random_inputs(MATMUL, params, dtype, 1)
    want, scale, _ = reference(MATMUL, inputs, tmp_path, "key")
    a, b = (x.astype(np.float32) for x in inputs)
    check = compare(MATMUL, dtype, (a @ b).astype(inputs[0].dtype), want, scale)
    assert check.ok
    assert check.max_error <= check.limit / MATMUL.tolerance.units
    wrong = (a @ b) * 1.1
    wrong[..., 0] += 0.1 * scale[..., 0]
    assert not compare(MATMUL, dtype, wrong.astype(inputs[0].dtype), want, scale).ok
