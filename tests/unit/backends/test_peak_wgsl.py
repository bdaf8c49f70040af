"""The chains of multiply-adds as text and as numbers: what they count, cover and leave behind."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.backends.shared import peaks as chains
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits

LIMITS = Limits(max_buffer_bytes=1 << 30, max_binding_bytes=1 << 27)


def text(dtype="float32", rounds=1, **limits):
    plain = {"max_buffer_bytes": 1 << 30, "max_binding_bytes": 1 << 27}
    return chains.chain_program(dtype, rounds, Limits(**plain | limits)).passes[0].source


@given(st.integers(1, 1 << 20))
def test_the_declared_work_is_that_of_the_text(rounds):
    fused = len(re.findall(r"fma\(x\d", text()))
    assert chains.chain_flops(rounds) == 2 * fused * 4 * rounds * chains.THREADS
    assert text(rounds=rounds) == text(), "one pipeline for all lengths"
    assert fused % (2 * chains.CHAINS) == 0, "an even number of steps leaves what was there"


def test_float16_is_computed_as_the_kernels_compute_it_and_double_needs_the_device():
    assert text("float16") == text("float32")
    assert "vec4<f64>" in text("float64", float64=True)
    for dtype in ("float64", "bfloat16"):
        with pytest.raises(Unsupported):
            chains.chain_program(dtype, 1, LIMITS)
