"""The plan: every case exactly once, the CPU resident only, nothing that does not fit."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.measure import plan
from gpubench.measure.plan import MEMORY_SHARE, Scope, Series, Target
from gpubench.model.case import DTYPES, FORMS, REGIMES, parse_case_id
from gpubench.model.result import Device, Selection, Settings


def target(device_id, usable=None):
    backend = device_id.partition(":")[0]
    kind = "cpu" if backend == "numpy" else "gpu"
    device = Device(id=device_id, backend=backend, kind=kind, name=device_id, api="host", usable_bytes=usable)
    return Target(device, ("tuned",) if backend == "wgpu" else FORMS)


subset = lambda items: st.lists(st.sampled_from(items), min_size=1, unique=True)  # noqa: E731
scopes = st.builds(
    lambda devices, forms, regimes, dtypes, host: Scope(
        tuple(target(d, 2**34) for d in devices),
        Selection(ops=[], forms=forms, regimes=regimes, dtypes=dtypes, calls=7), host,
    ),
    subset(["numpy:0", "cupy:0", "cupy:1", "wgpu:0"]), subset(FORMS), subset(REGIMES), subset(DTYPES),
    st.one_of(st.none(), st.integers(0, 2**36)),
)  # fmt: skip


@given(st.sampled_from(kernels.names()), st.sampled_from(DTYPES), st.integers(1, 2**30), scopes)
def test_every_case_once_and_only_what_was_asked_for(name, dtype, n, scope):
    op = kernels.load(name)
    found = plan.workload(Series(op, dtype), n, scope)
    ids = [x.id for x in (*found.cases, *found.skips)]
    assert len(ids) == len(set(ids))
    expected = set()
    for t in scope.targets:
        regimes = ["resident"] if t.device.kind == "cpu" else scope.selection.regimes
        for form, regime in product(t.forms, regimes):
            tuned = op.tuned.get(t.device.backend, ())
            same_call = form == "tuned" and tuned and tuned[0].library
            if form in scope.selection.forms and not same_call:
                expected.add((t.device.id, form, regime))
    cases = [x if hasattr(x, "regime") else x.case for x in (*found.cases, *found.skips)]
    assert {(c.device_id, c.form, c.regime) for c in cases} == expected
    for case in cases:
        assert case.calls == (7 if case.regime == "transfer-once" else None)
        assert case.workload == found.key
        assert parse_case_id(case.id, op.group) == case


@given(st.sampled_from(kernels.names()), st.integers(1, 2**34), scopes)
def test_a_case_that_is_planned_fits_and_one_that_is_skipped_says_why(name, n, scope):
    op = kernels.load(name)
    found = plan.workload(Series(op, "float32"), n, scope)
    operands = op.bytes({"n": n}, "float32")
    for case in found.cases:
        device = next(t.device for t in scope.targets if t.device.id == case.device_id)
        assert scope.host_bytes is None or operands <= MEMORY_SHARE * scope.host_bytes
        assert device.usable_bytes is None or 2 * operands <= MEMORY_SHARE * device.usable_bytes
        assert case.form == "library" or op.tuned[case.backend]
    for skip in found.skips:
        assert skip.reason in ("out-of-memory", "no-implementation", "no-dtype")
        assert skip.detail


@pytest.mark.parametrize("name", kernels.names())
def test_more_memory_never_means_fewer_cases(name):
    op = kernels.load(name)
    sizes = [2**k for k in range(0, 40, 3)]
    counts = []
    for host in (2**20, 2**30, 2**40, None):
        scope = Scope((target("numpy:0"), target("cupy:0", 2**33)), Selection(ops=[]), host)
        counts.append(sum(len(plan.workload(Series(op, "float32"), n, scope).cases) for n in sizes))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_dtype_that_an_op_lacks_is_a_skip_with_the_ones_it_has():
    scope = Scope((target("numpy:0"),), Selection(ops=[]), None)
    found = plan.workload(Series(kernels.load("dot"), "bfloat16"), 64, scope)
    assert found.cases == ()
    assert {s.reason for s in found.skips} == {"no-dtype"}
    assert "float32" in found.skips[0].detail


def test_what_a_selector_leaves_out_is_neither_case_nor_skip():
    scope = Scope(
        (target("numpy:0"), target("wgpu:0")), Selection(ops=[]), None, lambda case: case.form == "tuned"
    )
    found = plan.workload(Series(kernels.load("add"), "float32"), 64, scope)
    assert {case.form for case in found.cases} == {"tuned"}
    assert found.skips == ()


def test_given_sizes_are_expanded_op_by_op_and_searched_ones_are_left_to_the_search():
    ops = {name: kernels.load(name) for name in ("add", "matmul", "relu")}
    selection = Selection(
        ops=list(ops), sizes={"matmul": [64, 128], "relu": [1024]}, dtypes=["float32", "float64"]
    )
    found = plan.expand(ops, Scope((target("numpy:0"),), selection, None))
    assert [w.key for w in found] == [
        "matmul/n=64/float32", "matmul/n=128/float32", "matmul/n=64/float64", "matmul/n=128/float64",
        "relu/n=1024/float32", "relu/n=1024/float64",
    ]  # fmt: skip


@given(st.integers(1, 10))
def test_the_estimate_grows_with_the_sessions(sessions):
    scope = Scope((target("numpy:0"),), Selection(ops=[]), None)
    found = [plan.workload(Series(kernels.load("add"), "float32"), 64, scope)]
    one = plan.estimate_seconds(found, Settings(sessions=1))
    assert plan.estimate_seconds(found, Settings(sessions=sessions)) == pytest.approx(sessions * one)
