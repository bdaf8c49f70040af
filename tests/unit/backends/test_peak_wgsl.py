"""The chains of multiply-adds as text and as numbers: what they count, cover and leave behind."""

import re

import numpy as np
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


@given(st.sampled_from([32, 64, 128, 256, 1024]), st.integers(1, 1 << 22))
def test_every_thread_has_its_place(most, threads):
    step = chains.chain_program(
        "float32", 3, Limits(1 << 30, 1 << 27, max_workgroup_threads=most), threads
    ).passes[0]
    group = int(re.search(r"@workgroup_size\((\d+)\)", step.source)[1])
    assert group <= most
    assert threads <= step.grid[0] * step.grid[1] * group < threads + group * step.grid[0]
    assert max(step.grid) <= 65535
    assert step.uniform == (3, threads, 1)


def test_the_answer_is_that_of_the_steps_bit_for_bit():
    threads, rounds = 3000, 5
    places = np.arange(threads)[:, None] + np.arange(chains.CHAINS * chains.LANES)
    x = (places % chains.GRAIN).astype(np.float32) / np.float32(chains.GRAIN)
    for _ in range(rounds * chains.UNROLLED):
        x = np.float32(1) - x
    # Vectors are added first, lanes after that: sums of multiples of 1/1024 below 2^13 are exact in any order.
    assert np.array_equal(chains.chain_sums(threads), x.sum(axis=1, dtype=np.float32))
    assert len(set(chains.chain_sums(threads).tolist())) > 500, "threads differ, so a wrong one shows"


def test_float16_is_computed_as_the_kernels_compute_it_and_double_needs_the_device():
    assert text("float16") == text("float32")
    assert "vec4<f64>" in text("float64", float64=True)
    for dtype in ("float64", "bfloat16"):
        with pytest.raises(Unsupported):
            chains.chain_program(dtype, 1, LIMITS)
