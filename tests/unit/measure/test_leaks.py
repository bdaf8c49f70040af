"""A leak grows in both halves; a cache or an arena that fills once is none."""

import os
import platform
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import leak_traces as leaks
from benchmarks.leak_traces import Held, Trace
from gpubench import backends, kernels
from gpubench.result.case import Case

MIB = 1 << 20


def trace(first, middle, last):
    return Trace("add tuned", 200, first, middle, last)


@pytest.mark.parametrize(
    ("field", "step"), [("rss_bytes", MIB), ("handles", 1), ("threads", 1), ("device_bytes", 4 * MIB)]
)
def test_what_grows_in_both_halves_is_named(field, step):
    start = {"rss_bytes": 100 * MIB, "handles": 6, "threads": 12, "device_bytes": 500 * MIB}
    for same in (Held(**start), Held(**{**start, "device_bytes": None})):
        assert trace(same, same, same).leaks() == []
    helds = [Held(**{**start, field: start[field] + i * step}) for i in range(3)]
    assert [text.partition(" ")[0] for text in trace(*helds).leaks()] == [field]
    # Filled in the first half, flat in the second, or the other way round: a cache.
    assert trace(helds[0], helds[2], helds[2]).leaks() == []
    assert trace(helds[0], helds[0], helds[2]).leaks() == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to give memory back")
def test_memory_that_was_freed_is_not_held():
    before = leaks.take_stock().rss_bytes
    blocks = [b"x" * 100_000 for _ in range(600)]
    pin = blocks[-1]  # the heap's end stays in use: without being told to, the allocator keeps what lies below
    full = leaks.take_stock().rss_bytes
    del blocks
    assert full - before > 50 * MIB
    assert leaks.take_stock().rss_bytes - before < 10 * MIB
    assert pin


@given(st.integers(1, 2000), st.integers(1, 150))
def test_both_halves_do_as_much(count, per_step):
    done = []

    def step():
        done.append(per_step)
        return per_step

    # Looking at the process collects its garbage, which takes long in one that has run all other tests.
    with mock.patch.object(leaks, "take_stock", return_value=Held(100 * MIB, 6, 12)):
        found = leaks.trace("x", leaks.Repeats(count, 10.0), step, warmup=10)
    assert found.count >= count
    assert found.count % (2 * per_step) == 0


def test_time_that_runs_out_is_said_in_the_count():
    found = leaks.trace("x", leaks.Repeats(1000, 0.0), lambda: 1, warmup=10)
    assert found.count == 2


def test_a_file_forgotten_in_each_launch_is_found(tmp_path):
    op = kernels.load("add")
    session = backends.load("numpy").open("numpy:0")
    kept = []
    whole = session.run
    session.run = lambda launch, repeat=1: (kept.append(open(os.devnull)), whole(launch, repeat))  # noqa: SIM115
    case = Case("add", "vector", {"n": 1000}, "float32", "library", "resident", "numpy:0")
    try:
        found = leaks.launches(session, op, case, tmp_path, leaks.Repeats(1000))
    finally:
        session.close()
        for file in kept:
            file.close()
    assert found.count == 1000
    assert [text.partition(" ")[0] for text in found.leaks()] == ["handles"]
