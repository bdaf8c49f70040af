"""Buffers filled and compared on the device, as checks do it."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench.backends.shared.host import host_dtype


def held(session, array):
    buffer = session.allocate(array.shape, array.dtype.name)
    session.upload(buffer, array)
    return buffer


@pytest.mark.parametrize(("dtype", "value"), [
    ("float32", math.nan), ("float64", 0.618), ("float64", math.nan), ("float16", math.nan), ("int32", -(2**31)),
    ("uint8", 255),
])  # fmt: skip
@pytest.mark.parametrize("n", [1, 7, 1001])
def test_every_element_is_filled(session, dtype, value, n):
    got = np.zeros(n, host_dtype(dtype))
    buffer = held(session, got)
    session.fill(buffer, got.shape, dtype, value)
    session.download(buffer, got)
    np.testing.assert_array_equal(got, np.full(n, value, got.dtype))
    session.free(buffer)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_copy_begins_with_the_bits_of_a_buffer(session, dtype):
    values = np.random.default_rng(1).standard_normal(300_000).astype(dtype)
    values[5] = math.nan
    buffer = held(session, values)
    copy = session.copy_of(buffer, values.shape, dtype)
    for n in (2, 6, 1000, 1002, values.size):
        part = held(session, values[:n])
        assert session.begins(copy, part, (n,), dtype)
        other = values[:n].copy()
        other[-1] = -other[-1]
        session.upload(part, other)
        assert not session.begins(copy, part, (n,), dtype), "the last element"
        session.free(part)
    session.fill(buffer, values.shape, dtype, math.nan)
    assert not session.begins(copy, buffer, values.shape, dtype), "it is a copy"


def test_a_half_that_is_left_over_is_not_taken_for_equal(session):
    values = np.ones(3, np.float16)
    buffer = held(session, values)
    assert not session.begins(session.copy_of(buffer, (3,), "float16"), buffer, (3,), "float16")


def test_a_buffer_beyond_one_binding_is_filled_and_compared_in_parts(session, monkeypatch):
    monkeypatch.setattr(session, "limits", replace(session.limits, max_binding_bytes=4096))
    values = np.arange(5000, dtype=np.float32)
    buffer = held(session, values)
    copy = session.copy_of(buffer, values.shape, "float32")
    for place in (0, 1023, 1024, 4999):
        session.upload(buffer, np.where(np.arange(5000) == place, -1, values).astype(np.float32))
        assert not session.begins(copy, buffer, values.shape, "float32"), place
    session.upload(buffer, values)
    assert session.begins(copy, buffer, values.shape, "float32")
    session.fill(buffer, values.shape, "float32", math.nan)
    session.download(buffer, values)
    assert np.isnan(values).all()
