"""The plan: every case exactly once, the CPU resident only, nothing that does not fit."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.base.units import format_bytes
from gpubench.measure import plan
from gpubench.measure.plan import MEMORY_SHARE, Constraints, Series, Target
from gpubench.result.case import DTYPES, IMPLEMENTATIONS, REGIMES, parse_case_id
from gpubench.result.machine import Machine
from gpubench.result.run import Device, Selection, Settings


def target(device_id, usable=None):
    backend = device_id.partition(":")[0]
    kind = "cpu" if backend == "numpy" else "gpu"
    device = Device(id=device_id, backend=backend, kind=kind, name=device_id, api="host", usable_bytes=usable)
    return Target(device, ("tuned",) if backend == "wgpu" else IMPLEMENTATIONS)


subset = lambda items: st.lists(st.sampled_from(items), min_size=1, unique=True)  # noqa: E731
scopes = st.builds(
    lambda devices, implementations, regimes, dtypes, host: Constraints(
        tuple(target(d, 2**34) for d in devices),
        Selection(ops=[], implementations=implementations, regimes=regimes, dtypes=dtypes, calls=7), host,
    ),
    subset(["numpy:0", "cupy:0", "cupy:1", "wgpu:0"]), subset(IMPLEMENTATIONS), subset(REGIMES), subset(DTYPES),
    st.one_of(st.none(), st.integers(0, 2**36)),
)  # fmt: skip


@given(st.sampled_from(kernels.computing_ops()), st.sampled_from(DTYPES), st.integers(1, 2**30), scopes)
def test_every_case_once_and_only_what_was_asked_for(name, dtype, n, constraints):
    op = kernels.load(name)
    found = plan.workload(Series(op, dtype), n, constraints)
    ids = [x.id for x in (*found.cases, *found.skips)]
    assert len(ids) == len(set(ids))
    expected = set()
    for t in constraints.targets:
        regimes = ["resident"] if t.device.kind == "cpu" else constraints.selection.regimes
        for implementation, regime in product(t.implementations, regimes):
            tuned = op.kernel(t.device.backend, dtype)
            same_call = implementation == "tuned" and tuned is not None and tuned.repeats_library(regime)
            if implementation in constraints.selection.implementations and not same_call:
                expected.add((t.device.id, implementation, regime))
    cases = [x if hasattr(x, "regime") else x.case for x in (*found.cases, *found.skips)]
    assert {(c.device_id, c.implementation, c.regime) for c in cases} == expected
    for case in cases:
        assert case.calls == (7 if case.regime == "transfer-once" else None)
        assert case.workload == found.key
        assert parse_case_id(case.id, op.group) == case


@given(st.sampled_from(kernels.computing_ops()), st.integers(1, 2**34), scopes)
def test_a_case_that_is_planned_fits_and_one_that_is_skipped_says_why(name, n, constraints):
    op = kernels.load(name)
    found = plan.workload(Series(op, "float32"), n, constraints)
    operands = op.bytes({"n": n}, "float32")
    for case in found.cases:
        device = next(t.device for t in constraints.targets if t.device.id == case.device_id)
        assert constraints.host_bytes is None or operands <= MEMORY_SHARE * constraints.host_bytes
        moved = sum(one.bytes({"n": n}, "float32") for one in op.operands if one.travels)
        assert device.usable_bytes is None or 2 * moved <= MEMORY_SHARE * device.usable_bytes
        assert case.implementation == "library" or op.tuned[case.backend]
    of_the_op = ["host-stage"] if op.host is not None else []
    of_the_op += ["shape"] if op.fits({"n": n}) else []
    for skip in found.skips:
        assert skip.reason in ("out-of-memory", "no-implementation", "no-dtype", *of_the_op)
        assert skip.detail


@pytest.mark.parametrize(
    ("digest", "share", "reasons"),
    [
        ("", 0.79, set()), ("", 0.81, {"out-of-memory"}), ("a user's function", 0.59, set()),
        ("a user's function", 0.61, {"out-of-memory"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("device", "held"), [("numpy:0", 7), ("cupy:0", 2)])
def test_a_case_may_take_four_fifths_of_what_is_free(device, held, digest, share, reasons):
    """A CPU holds the operands and, while they are checked, three times as much in float64; a GPU holds them twice."""
    op, n = msgspec.structs.replace(kernels.load("dot"), digest=digest), 2**20
    free = int(held * op.bytes({"n": n}, "float32") / share)
    on_host = device == "numpy:0"
    constraints = Constraints(
        (target(device, None if on_host else free),), Selection(ops=[]), free if on_host else None
    )
    found = plan.workload(Series(op, "float32"), n, constraints)
    assert {skip.reason for skip in found.skips} == reasons
    assert bool(found.cases) != bool(reasons)


@pytest.mark.parametrize("less", [0, 1])
@pytest.mark.parametrize("place", ["host memory", "memory of cupy:0"])
def test_a_case_that_fills_its_share_to_the_byte_is_planned_and_one_byte_less_is_told(place, less):
    """In float64 the host holds operands and three copies: four fifths of five times the operands."""
    op, n, on_host = kernels.load("dot"), 2**20, place == "host memory"
    held = (4 if on_host else 2) * op.bytes({"n": n}, "float64")
    free = held * 5 // 4 - less
    constraints = Constraints(
        (target("numpy:0") if on_host else target("cupy:0", free),),
        Selection(ops=[]),
        free if on_host else None,
    )
    found = plan.workload(Series(op, "float64"), n, constraints)
    assert bool(found.cases) != bool(less)
    assert {skip.detail for skip in found.skips} == (
        {f"needs about {format_bytes(held)}, more than 80 % of the {format_bytes(free)} of {place}"}
        if less
        else set()
    )


@pytest.mark.parametrize("less", [0, 1])
def test_the_guard_counts_a_weight_on_the_device_once(less):
    """A call that moves its data has a second set of buffers for what travels; it reads the same weights."""
    op, n = kernels.load("linear"), 2**20
    stays = sum(x.bytes({"n": n}, "float32") for x in op.inputs if x.role == "weight")
    held = 2 * op.bytes({"n": n}, "float32") - stays
    constraints = Constraints((target("cupy:0", held * 5 // 4 + 1 - 2 * less),), Selection(ops=[]), None)
    assert stays > 0
    assert bool(plan.workload(Series(op, "float32"), n, constraints).skips) == bool(less)


@pytest.mark.parametrize("less", [0, 1])
@pytest.mark.parametrize(("on_host", "copies"), [(True, 8), (False, 2)])
def test_an_upload_holds_what_is_sent_and_where_it_lands_for_both_implementations(on_host, copies, less):
    n = 2**20
    free = copies * n * 5 // 4 - less
    constraints = Constraints(
        (target("cupy:0", None if on_host else free),), Selection(ops=[]), free if on_host else None
    )
    found = plan.workload(Series(kernels.load("upload"), "float32"), n, constraints)
    assert bool(found.cases) != bool(less)
    assert {skip.reason for skip in found.skips} == ({"out-of-memory"} if less else set())


@pytest.mark.parametrize(("less", "groups"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("on_host", [True, False])
def test_workloads_that_fill_their_share_to_the_byte_lie_side_by_side(on_host, less, groups):
    op, n = kernels.load("dot"), 2**20
    free = 2 * (4 if on_host else 2) * op.bytes({"n": n}, "float64") * 5 // 4 - less
    devices = (target("numpy:0"), target("cupy:0", None if on_host else free))
    constraints = Constraints(devices, Selection(ops=[]), free if on_host else None)
    item = plan.workload(Series(op, "float64"), n, constraints)
    assert len(plan.together([item, item], constraints)) == groups


@pytest.mark.parametrize(("share", "groups"), [(0.79, 1), (0.81, 2)])
def test_the_smallest_device_says_how_many_workloads_lie_side_by_side(share, groups):
    op, n = kernels.load("dot"), 2**20
    both = 2 * 2 * op.bytes({"n": n}, "float32")
    devices = (target("numpy:0"), target("cupy:0", 8 * both), target("cupy:1", int(both / share)))
    constraints = Constraints(devices, Selection(ops=[]), None)
    item = plan.workload(Series(op, "float32"), n, constraints)
    assert len(plan.together([item, item], constraints)) == groups


@pytest.mark.parametrize("name", kernels.names())
def test_more_memory_never_means_fewer_cases(name):
    op = kernels.load(name)
    sizes = [2**k for k in range(0, 40, 6)]
    counts = []
    for host in (2**20, 2**30, 2**40, None):
        devices = (target("numpy:0"), target("cupy:0", 2**33), target("group:cupy:0+1", 2**33))
        constraints = Constraints(devices, Selection(ops=[]), host)
        curve = Series(op, "float32", {"ranks": 2} if op.collective else {})
        counts.append(sum(len(plan.workload(curve, n, constraints).cases) for n in sizes))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_dtype_that_an_op_lacks_is_a_skip_with_the_ones_it_has():
    constraints = Constraints((target("numpy:0"),), Selection(ops=[]), None)
    op = msgspec.structs.replace(kernels.load("dot"), dtypes=("float32", "float64"))
    found = plan.workload(Series(op, "bfloat16"), 64, constraints)
    assert found.cases == ()
    assert {s.reason for s in found.skips} == {"no-dtype"}
    assert "float32" in found.skips[0].detail


def test_what_a_selector_leaves_out_is_neither_case_nor_skip():
    constraints = Constraints(
        (target("numpy:0"), target("wgpu:0")),
        Selection(ops=[]),
        None,
        lambda case: case.implementation == "tuned",
    )
    found = plan.workload(Series(kernels.load("add"), "float32"), 64, constraints)
    assert {case.implementation for case in found.cases} == {"tuned"}
    assert found.skips == ()


def test_given_sizes_are_expanded_op_by_op_and_searched_ones_are_left_to_the_search():
    ops = {name: kernels.load(name) for name in ("add", "matmul", "relu")}
    selection = Selection(
        ops=list(ops), sizes={"matmul": [64, 128], "relu": [1024]}, dtypes=["float32", "float64"]
    )
    found = plan.expand(ops, Constraints((target("numpy:0"),), selection, None))
    assert [w.key for w in found] == [
        "matmul/n=64/float32", "matmul/n=128/float32", "matmul/n=64/float64", "matmul/n=128/float64",
        "relu/n=1024/float32", "relu/n=1024/float64",
    ]  # fmt: skip


def test_sizes_are_chosen_where_none_were_given():
    ops = {name: kernels.load(name) for name in ("matmul", "relu", "launch")}
    selection = Selection(ops=list(ops), sizes={"matmul": [64, 128]})
    assert [curve.op.name for curve in plan.open_series(ops, selection)] == ["relu"]


def test_the_estimate_of_a_case_is_its_limit_and_a_warm_up_before_and_after():
    constraints = Constraints((target("numpy:0"),), Selection(ops=[]), None)
    found = [plan.workload(Series(kernels.load("add"), "float32"), 64, constraints)]
    settings = Settings(sessions=3, max_time_s=2.0, warmup_s=0.25)
    assert plan.estimate_seconds(found, settings) == pytest.approx(len(found[0].cases) * 3 * 2.5)


# ------------------------------------------------------------------- shapes, variants, implementations that are named


def everything(*devices, **more):
    """Ids of all cases and (id, reason) of all skips of matmul, and the workloads."""
    selection = {
        key: more.pop(key)
        for key in ("variants", "params", "dtypes", "implementations", "sizes")
        if key in more
    }
    chosen = Selection(ops=["matmul"], **{"sizes": {"matmul": [64]}, **selection})
    constraints = Constraints(tuple(target(device) for device in devices), chosen, None, **more)
    found = plan.expand({"matmul": kernels.load("matmul")}, constraints)
    cases = [case.id for w in found for case in w.cases if case.queued]
    skips = {skip.id: skip for w in found for skip in w.skips if skip.case.queued}
    return cases, skips, found


def test_shapes_make_workloads_of_their_own():
    shapes = [{"m": 16, "k": 8}, {"batch": 3}]
    cases, skips, found = everything("numpy:0", params={"matmul": shapes}, implementations=["library"])
    assert cases == [
        "matmul/n=64,k=8,m=16/float32/library/resident@numpy:0", "matmul/n=64,batch=3/float32/library/resident@numpy:0",
    ]  # fmt: skip
    assert not skips
    assert [w.series.shape for w in found] == shapes
    assert [w.series.key for w in found] == ["matmul,k=8,m=16/float32", "matmul,batch=3/float32"]
    assert len({w.key for w in found}) == 2


def test_params_without_a_shape_are_a_skip_with_the_reason():
    op = msgspec.structs.replace(
        kernels.load("matmul"), fits=lambda params: None if params["n"] % params["k"] == 0 else "k does not fit"
    )
    constraints = Constraints((target("numpy:0"),), Selection(ops=[]), None)
    good, bad = (plan.workload(Series(op, "float32", {"k": k}), 64, constraints) for k in (8, 7))
    assert good.cases
    assert not good.skips
    assert bad.cases == ()
    assert {(skip.reason, skip.detail) for skip in bad.skips} == {("shape", "k does not fit")}


@pytest.mark.parametrize("columns", [256, 1000, 4096, 65536, 3])
def test_the_ladder_of_a_shape_has_sizes_that_go_with_it(columns):
    op = kernels.load("softmax")
    ladder = Series(op, "float32", {"columns": columns}).ladder
    sizes = ladder.sizes()
    assert all(op.fits({"n": n, "columns": columns}) is None for n in sizes)
    assert op.sizes.low <= sizes[0] < sizes[-1] <= op.sizes.high
    assert (ladder == op.sizes) == (columns == 256)


def test_a_shape_that_goes_with_no_size_keeps_the_ladder():
    op = kernels.load("softmax")
    assert Series(op, "float32", {"columns": 2**30}).ladder == op.sizes


def test_variants_are_rows_of_their_own_beside_the_default_and_a_backend_without_one_says_so():
    cases, skips, _ = everything("numpy:0", "wgpu:0", variants=["naive", "tiled"])
    assert cases == [
        "matmul/n=64/float32/library/resident@numpy:0", "matmul/n=64/float32/tuned/resident-queued@wgpu:0",
        "matmul/n=64/float32/tuned-naive/resident-queued@wgpu:0", "matmul/n=64/float32/tuned-tiled/resident-queued@wgpu:0",
    ]  # fmt: skip
    assert {id: skip.reason for id, skip in skips.items()} == {
        "matmul/n=64/float32/tuned-naive/resident@numpy:0": "no-implementation",
        "matmul/n=64/float32/tuned-tiled/resident@numpy:0": "no-implementation",
    }


def test_a_variant_of_another_op_concerns_no_other():
    constraints = Constraints((target("wgpu:0"),), Selection(ops=[], variants=["naive"]), None)
    found = plan.workload(Series(kernels.load("add"), "float32"), 64, constraints)
    assert {case.variant for case in found.cases} == {None}
    assert not found.skips


@pytest.mark.parametrize(
    ("device", "dtype", "row"),
    [("cupy:0", "float32", True), ("cupy:0", "float64", False), ("numpy:0", "float32", False), ("wgpu:0", "float32", False)],
)  # fmt: skip
def test_tf32_is_a_row_of_the_library_where_it_exists_and_was_allowed(device, dtype, row):
    regime = "resident" if device == "numpy:0" else "resident-queued"
    tf32 = f"matmul/n=64/{dtype}/library-tf32/{regime}@{device}"
    assert tf32 not in everything(device, dtypes=[dtype])[0]
    cases, skips, _ = everything(device, dtypes=[dtype], variants=["tf32"])
    assert (tf32 in cases) == row
    assert tf32 not in skips


def test_a_implementation_that_is_named_and_missing_is_a_skip():
    ids = ["matmul/n=64/float32/tuned/resident@numpy:0", "matmul/n=64/float32/library/resident-queued@wgpu:0"]
    assert not everything("numpy:0", "wgpu:0")[1]
    skips = everything("numpy:0", "wgpu:0", named_implementations=True)[1]
    assert sorted(skips) == sorted(ids)
    assert {skip.reason for skip in skips.values()} == {"no-implementation"}
    assert "library call" in skips[ids[0]].detail
    assert "wgpu has no library implementation" in skips[ids[1]].detail


def test_a_kernel_that_is_the_library_call_is_tuned_where_data_travels():
    """With resident data the two implementations would be the same; the tuned one stages its transfers."""
    found = everything("cupy:0", dtypes=["float32"])[2]
    cases = [case for workload in found for case in workload.cases]
    assert not any(workload.skips for workload in found)
    assert {case.regime for case in cases if case.implementation == "tuned"} == {
        "transfer-once",
        "transfer-always",
    }
    assert {case.regime for case in cases if case.implementation == "library"} == set(REGIMES)


def test_a_product_of_halves_that_numpy_would_take_minutes_for_is_a_skip():
    half = "matmul/n={}/float16/library/resident@numpy:0"
    cases, skips, _ = everything("numpy:0", dtypes=["float16"], sizes={"matmul": [64, 4096]})
    assert half.format(64) in cases
    slow = skips[half.format(4096)]
    assert slow.reason == "too-slow"
    assert "137" in slow.detail
    assert "--case-timeout" in (slow.hint or "")
    patient = everything(
        "numpy:0", dtypes=["float16"], sizes={"matmul": [4096]}, settings=Settings(case_timeout_s=1e4)
    )
    assert half.format(4096) in patient[0]


def test_an_overhead_is_planned_on_devices_and_never_on_the_cpu():
    op = kernels.load("upload")
    both = Constraints((target("numpy:0"), target("cupy:0")), Selection(ops=["upload"]), None)
    found = plan.workload(Series(op, "float32"), 1024, both)
    assert {case.device_id for case in found.cases} == {"cupy:0"}
    assert {(skip.case.device_id, skip.reason) for skip in found.skips} == {("numpy:0", "no-implementation")}


def test_overheads_have_the_dtype_that_they_declare_whatever_was_selected():
    ops = {name: kernels.load(name) for name in ("add", "upload")}
    found = plan.series(ops, Selection(ops=list(ops), dtypes=["float16", "float64"]))
    assert [curve.key for curve in found] == ["add/float16", "add/float64", "upload/float32"]


@pytest.mark.parametrize(("n", "compute"), [(256, None), (512, ["float32"])])
def test_a_product_of_512_is_the_first_power_of_two_that_comes_near_a_peak(n, compute):
    """Its 2.7e8 FLOP take several microseconds on the fastest device; an eighth of them is over in one."""
    numpy = target("numpy:0")
    item = plan.workload(
        Series(kernels.load("matmul"), "float32"), n, Constraints((numpy,), Selection(ops=[]), None)
    )
    wanted = plan.plan_peaks([item], [numpy.device], Settings(), Machine()).get("numpy:0")
    assert (wanted.compute if wanted else None) == compute


@pytest.mark.parametrize(("more", "compute"), [(0, ["float32"]), (1, None)])
def test_a_case_of_the_least_flops_comes_near_the_peak_of_its_dtype(monkeypatch, more, compute):
    numpy = target("numpy:0")
    item = plan.workload(
        Series(kernels.load("add"), "float32"), 64, Constraints((numpy,), Selection(ops=[]), None)
    )
    monkeypatch.setattr(plan, "LEAST_FLOPS", item.op.flops(item.params) + more)
    wanted = plan.plan_peaks([item], [numpy.device], Settings(), Machine()).get("numpy:0")
    assert (wanted.compute if wanted else None) == compute


@pytest.mark.parametrize(("host_bytes", "groups"), [(2**40, [3]), (2**24, [1, 1, 1])])
def test_what_memory_does_not_hold_side_by_side_is_measured_apart(host_bytes, groups):
    constraints = Constraints((target("numpy:0"),), Selection(ops=[]), host_bytes)
    add = Series(kernels.load("add"), "float32")
    items = [plan.workload(add, n, constraints) for n in (200_000, 210_000, 220_000)]
    found = plan.together(items, constraints)
    assert [len(group) for group in found] == groups
    assert [item for group in found for item in group] == items


def test_a_size_asked_for_twice_stands_once_with_the_cases_of_both():
    """A search adds one device to a size that it measured on others."""
    constraints = Constraints((target("numpy:0"), target("cupy:0", 2**40)), Selection(ops=[]), None)
    add = Series(kernels.load("add"), "float32")
    whole, other = (plan.workload(add, n, constraints) for n in (2**18, 2**20))
    cpu, gpu = (
        msgspec.structs.replace(
            whole, cases=tuple(c for c in whole.cases if c.device_id == device), explained=explained
        )
        for device, explained in (("numpy:0", False), ("cupy:0", True))
    )
    found = plan.merge([cpu, other, gpu, cpu])
    assert [(item.key, item.explained) for item in found] == [(whole.key, True), (other.key, True)]
    assert {case.id for case in found[0].cases} == {case.id for case in whole.cases}
    assert len(found[0].cases) == len(whole.cases)


@pytest.mark.parametrize("device", ["hybrid:cupy:0", "group:cupy:0+1"])
def test_devices_with_data_on_several_sides_make_no_call_in_place(device):
    chosen = Selection(ops=["matmul"], sizes={"matmul": [64]}, regimes=["in-place-mapped"])
    settings = Settings(scaling="strong")
    within = Constraints((target(device),), chosen, None, settings=settings, named_regimes=True)
    (item,) = plan.expand({"matmul": kernels.load("matmul")}, within)
    assert not item.cases
    assert {skip.reason for skip in item.skips} == {"not-in-place"}
