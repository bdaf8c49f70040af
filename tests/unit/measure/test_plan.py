"""The plan: every case exactly once, the CPU resident only, nothing that does not fit."""

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.base.units import format_bytes
from gpubench.kernels.contract.op import Stage
from gpubench.measure import plan
from gpubench.measure.plan import Constraints, Series, Target
from gpubench.measure.points import Rungs
from gpubench.result.case import DTYPES, IMPLEMENTATIONS, REGIMES, STREAMED, Case, parse_case_id
from gpubench.result.machine import Machine
from gpubench.result.run import Selection, Settings
from tests.rows import rows
from tests.unit.measure import builders


def target(device_id, usable=None):
    kind = "cpu" if device_id == "numpy:0" else "gpu"
    made = builders.device(device_id, kind, usable_bytes=usable)
    return Target(made, ("tuned",) if made.backend == "wgpu" else IMPLEMENTATIONS)


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
        assert (parse_case_id(case.id).id, case.group) == (case.id, op.group)


def scope(*targets, host=None, **more):
    """What is planned on these targets with so much host memory: limits of the plan, or of what is selected."""
    selected = {name: more.pop(name) for name in Selection.__struct_fields__ if name in more}
    return Constraints(targets, Selection(**{"ops": []} | selected), host, **more)


ADD = Series(kernels.load("add"), "float32")
N = 2**20


def size(name, dtype="float32"):
    return kernels.load(name).bytes({"n": N}, dtype)


STAYS = sum(x.bytes({"n": N}, "float32") for x in kernels.load("linear").inputs if x.role == "weight")


# A CPU holds the operands and, while they are checked, three times as much in float64; a GPU holds them twice, but the
# weights, and an upload what is sent and where it lands. A function of the user's may take three fifths of what is free.
@pytest.mark.parametrize(("name", "dtype", "place", "held", "digest"), [
    ("dot", "float64", "host memory", 4 * size("dot", "float64"), ""), ("dot", "float32", "host memory", 7 * size("dot"), ""),
    ("dot", "float64", "memory of cupy:0", 2 * size("dot", "float64"), ""), ("dot", "float32", "host memory", 7 * size("dot"), "own"),
    ("dot", "float32", "memory of cupy:0", 2 * size("dot"), "own"), ("upload", "float32", "host memory", 8 * N, ""),
    ("upload", "float32", "memory of cupy:0", 2 * N, ""), ("linear", "float32", "memory of cupy:0", 2 * size("linear") - STAYS, ""),
])  # fmt: skip
def test_a_case_that_fills_its_share_is_planned_and_one_byte_less_is_told(name, dtype, place, held, digest):
    op = msgspec.structs.replace(kernels.load(name), digest=digest)
    on_host, percent = place == "host memory", 60 if digest else 80
    device = "numpy:0" if on_host and name == "dot" else "cupy:0"
    for less in (0, 1):
        free = -(-held * 100 // percent) - less
        host, gpu = (free, None) if on_host else (None, free)
        found = plan.workload(Series(op, dtype), N, scope(target(device, gpu), host=host))
        assert bool(found.cases) != bool(less)
        arrays = f"{N}x256 arrays: " if name == "linear" else ""
        told = f"{arrays}needs about {format_bytes(held)}, more than {percent} % of the {format_bytes(free)} of {place}"
        wanted = {("out-of-memory", told)} if less else set()
        assert {(skip.reason, skip.detail) for skip in found.skips} == wanted


HOST, GPU = (held * size("dot", "float64") * 5 // 4 for held in (4, 2))  # what one of them needs free


@pytest.mark.parametrize(("host", "gpus", "groups"), [
    (3 * HOST, [None], [3]), (3 * HOST - 1, [None], [2, 1]), (2 * HOST - 1, [None], [1, 1, 1]),
    (None, [3 * GPU], [3]), (None, [9 * GPU, 3 * GPU - 1], [2, 1]),
])  # fmt: skip
def test_workloads_lie_side_by_side_where_the_smallest_memory_holds_them_to_the_byte(host, gpus, groups):
    devices = [target("numpy:0"), *(target(f"cupy:{i}", usable) for i, usable in enumerate(gpus))]
    constraints = scope(*devices, host=host)
    items = [plan.workload(Series(kernels.load("dot"), "float64"), N, constraints)] * 3
    found = plan.together(items, constraints)
    assert [len(group) for group in found] == groups
    assert [item for group in found for item in group] == items


def test_what_a_selector_leaves_out_is_neither_case_nor_skip_and_what_has_no_shape_is_a_skip():
    targets = (target("numpy:0"), target("wgpu:0"))
    tuned = scope(*targets, keep=lambda case: case.implementation == "tuned")
    found = plan.workload(ADD, 64, tuned)
    assert ({case.implementation for case in found.cases}, found.skips) == ({"tuned"}, ())
    op = msgspec.structs.replace(kernels.load("matmul"), fits=lambda params: "k does not fit")
    found = plan.workload(Series(op, "float32", {"k": 7}), 64, scope(*targets))
    assert not found.cases
    assert {(skip.reason, skip.detail) for skip in found.skips} == {("shape", "k does not fit")}


def test_a_kernel_that_is_the_library_call_is_tuned_where_data_travels():
    """With resident data the two implementations would be the same; the tuned one stages its transfers."""
    ((workload,), kinds) = (everything("cupy:0", dtypes=["float32"])[2], ("tuned", "library"))
    regimes = [{case.regime for case in workload.cases if case.implementation == kind} for kind in kinds]
    assert regimes == [{"transfer-once", "transfer-always"}, {*REGIMES}]


def test_given_sizes_are_expanded_op_by_op_and_searched_ones_are_left_to_the_search():
    ops = {name: kernels.load(name) for name in ("add", "matmul", "relu")}
    sizes = {"matmul": [64, 128], "relu": [1024]}
    selection = Selection(ops=list(ops), sizes=sizes, dtypes=["float32", "float64"])
    found = plan.expand(ops, Constraints((target("numpy:0"),), selection, None))
    assert [w.key for w in found] == [
        "matmul/n=64/float32", "matmul/n=128/float32", "matmul/n=64/float64", "matmul/n=128/float64",
        "relu/n=1024/float32", "relu/n=1024/float64",
    ]  # fmt: skip
    searched = plan.open_series({**ops, "launch": kernels.load("launch")}, selection)
    assert {series.op.name for series in searched} == {"add"}


def test_the_estimate_of_a_case_is_its_limit_and_a_warm_up_before_and_after():
    found = [plan.workload(ADD, 64, scope(target("numpy:0")))]
    settings = Settings(sessions=3, max_time_s=2.0, warmup_s=0.25)
    assert plan.estimate_seconds(found, settings) == pytest.approx(len(found[0].cases) * 3 * 2.5)


# ------------------------------------------------------------------- shapes, variants, implementations that are named


def everything(*devices, **more):
    """Ids of all cases and (id, reason) of all skips of matmul, and the workloads."""
    usual = {"ops": ["matmul"], "sizes": {"matmul": [64]}}
    found = plan.expand({"matmul": kernels.load("matmul")}, scope(*map(target, devices), **(usual | more)))
    cases = [case.id for w in found for case in w.cases if case.queued]
    skips = {skip.id: skip for w in found for skip in w.skips if skip.case.queued}
    return cases, skips, found


# Devices, what is selected, cases of matmul and skips.
@rows("devices, selected, ids, missing", {
    "shapes": (["numpy:0"], {"params": {"matmul": [{"m": 16, "k": 8}, {"batch": 3}]}, "implementations": ["library"]},
        ["n=64,k=8,m=16/float32/library/resident@numpy:0", "n=64,batch=3/float32/library/resident@numpy:0"], {}),
    "variants beside the default, where there are any": (["numpy:0", "wgpu:0"], {"variants": ["naive", "tiled"]},
        ["n=64/float32/library/resident@numpy:0", "n=64/float32/tuned/resident-queued@wgpu:0",
         "n=64/float32/tuned-naive/resident-queued@wgpu:0", "n=64/float32/tuned-tiled/resident-queued@wgpu:0"],
        {f"n=64/float32/tuned-{kind}/resident@numpy:0": f"matmul has no {kind} kernel for float32 on numpy"
         for kind in ("naive", "tiled")}),
    "TF32 where it was allowed": (["cupy:0"], {"variants": ["tf32"]},
        ["n=64/float32/library/resident-queued@cupy:0", "n=64/float32/library-tf32/resident-queued@cupy:0"], {}),
    "and not otherwise": (["cupy:0"], {}, ["n=64/float32/library/resident-queued@cupy:0"], {}),
    "nor of doubles": (["cupy:0"], {"variants": ["tf32"], "dtypes": ["float64"]},
        ["n=64/float64/library/resident-queued@cupy:0"], {}),
    "nor elsewhere": (["numpy:0", "wgpu:0"], {"variants": ["tf32"]},
        ["n=64/float32/library/resident@numpy:0", "n=64/float32/tuned/resident-queued@wgpu:0"], {}),
    "implementations that are named and missing": (["numpy:0", "wgpu:0"], {"named_implementations": True},
        ["n=64/float32/library/resident@numpy:0", "n=64/float32/tuned/resident-queued@wgpu:0"],
        {"n=64/float32/tuned/resident@numpy:0": "the best matmul on numpy is the library call",
         "n=64/float32/library/resident-queued@wgpu:0": "wgpu has no library implementation"}),
})  # fmt: skip
def test_what_is_selected_makes_these_cases_and_skips(devices, selected, ids, missing):
    cases, skips, found = everything(*devices, **selected)
    assert cases == [f"matmul/{id}" for id in ids]
    told = {id: (skip.reason, skip.detail) for id, skip in skips.items()}
    assert told == {f"matmul/{id}": ("no-implementation", detail) for id, detail in missing.items()}
    assert len({item.key for item in found}) == len(found)


@pytest.mark.parametrize("columns", [256, 1000, 4096, 65536, 3])
def test_the_ladder_of_a_shape_has_sizes_that_go_with_it(columns):
    op = kernels.load("softmax")
    ladder = Series(op, "float32", {"columns": columns}).ladder
    sizes = ladder.sizes()
    assert all(op.fits({"n": n, "columns": columns}) is None for n in sizes)
    assert op.sizes.low <= sizes[0] < sizes[-1] <= op.sizes.high
    assert (ladder == op.sizes) == (columns == 256)
    assert Series(op, "float32", {"columns": 2**30}).ladder == op.sizes, "one that goes with no size"


@pytest.mark.parametrize(("device_id", "fields", "why"), [
    ("hybrid:cupy:0", {}, "hybrid:cupy:0 has its data on several sides"), ("cupy:0", {"stages": (None,)}, "add is a workload, whose"),
    ("cupy:0", {"digest": "own"}, "add takes arrays of its own library"), ("cupy:0", {"host": ""}, "add takes arrays of"), ("cupy:0", {}, "")])  # fmt: skip
def test_why_an_op_does_not_compute_in_the_hosts_memory(device_id, fields, why):
    told = plan.stays_off_host(msgspec.structs.replace(ADD.op, **fields), builders.device(device_id))
    assert (told.startswith(why), bool(told)) == (True, bool(why))


def test_several_devices_stream_nothing_and_a_size_without_a_shape_is_no_work():
    (skip, _) = plan.workload(ADD, 64, scope(target("hybrid:cupy:0"), regimes=[STREAMED])).skips
    assert (skip.reason, skip.detail.startswith("hybrid:cupy:0 is several devices")) == ("no-streams", True)
    softmax = Series(kernels.load("softmax"), "float32", {"columns": 1000})
    assert (softmax.work(4097), softmax.work(4000) > 0) == (0, True)


def test_a_variant_is_measured_at_three_sizes_of_the_ladder():
    within = scope(target("wgpu:0"), variants=["naive"], regimes=["resident-queued"])
    rungs = Rungs(Series(kernels.load("matmul"), "float32"), within)
    tried = [n for n in rungs.sizes if any(case.variant for case in rungs.at(n, whole=False).cases)]
    assert (tried, len(rungs.sizes) > 3) == ([rungs.sizes[0], rungs.middle, rungs.top], True)


def test_a_variant_of_another_op_concerns_no_other():
    found = plan.workload(ADD, 64, scope(target("wgpu:0"), variants=["naive"]))
    assert ({case.variant for case in found.cases}, found.skips) == ({None}, ())


def test_a_product_of_halves_that_numpy_would_take_minutes_for_is_a_skip():
    half = "matmul/n={}/float16/library/resident@numpy:0"
    cases, skips, _ = everything("numpy:0", dtypes=["float16"], sizes={"matmul": [64, 4096]})
    assert half.format(64) in cases
    slow = skips[half.format(4096)]
    assert (slow.reason, "137" in slow.detail, "--case-timeout" in slow.hint) == ("too-slow", True, True)
    op = kernels.load("matmul")
    launch_s = op.flops({"n": 4096}) / op.slow["numpy", "float16"]
    for timeout_s, planned in ((1e4, True), ((5 + 12) * launch_s, True), ((5 + 11.9) * launch_s, False)):
        limits = Settings(case_timeout_s=timeout_s, min_samples=5)
        cases, *_ = everything("numpy:0", dtypes=["float16"], sizes={"matmul": [4096]}, settings=limits)
        assert (half.format(4096) in cases) == planned


def test_an_overhead_is_planned_on_devices_and_never_on_the_cpu():
    both = scope(target("numpy:0"), target("cupy:0"), ops=["upload"])
    found = plan.workload(Series(kernels.load("upload"), "float32"), 1024, both)
    assert {case.device_id for case in found.cases} == {"cupy:0"}
    assert {(skip.case.device_id, skip.reason) for skip in found.skips} == {("numpy:0", "no-implementation")}
    ops = {name: kernels.load(name) for name in ("add", "upload")}
    found = plan.series(ops, Selection(ops=list(ops), dtypes=["float16", "float64"]))
    assert [curve.key for curve in found] == ["add/float16", "add/float64", "upload/float32"]


@pytest.mark.parametrize(("name", "n", "least", "compute"), [
    ("matmul", 256, None, None), ("matmul", 512, None, ["float32"]), ("add", 64, 64, ["float32"]), ("add", 64, 65, None),
])  # fmt: skip
def test_a_case_of_the_least_flops_comes_near_the_peak_of_its_dtype(monkeypatch, name, n, least, compute):
    """A product of 512 is the first power of two: its 2.7e8 FLOP take several microseconds on the fastest device."""
    numpy = target("numpy:0")
    monkeypatch.setattr(plan, "LEAST_FLOPS", least or plan.LEAST_FLOPS)
    item = plan.workload(Series(kernels.load(name), "float32"), n, scope(numpy))
    wanted = plan.plan_peaks([item], [numpy.device], Settings(), Machine()).get("numpy:0")
    assert (wanted.compute if wanted else None) == compute


def test_a_size_asked_for_twice_stands_once_with_the_cases_of_both():
    """A search adds one device to a size that it measured on others."""
    both = scope(target("numpy:0"), target("cupy:0", 2**40))
    whole, other = (plan.workload(ADD, n, both) for n in (2**18, 2**20))

    def part(device, **fields):
        cases = tuple(case for case in whole.cases if case.device_id == device)
        return msgspec.structs.replace(whole, cases=cases, **fields)

    cpu, gpu = part("numpy:0", explained=False), part("cupy:0", explained=True)
    found = plan.merge([cpu, other, gpu, cpu])
    assert [(item.key, item.explained) for item in found] == [(whole.key, True), (other.key, True)]
    assert sorted(case.id for case in found[0].cases) == sorted(case.id for case in whole.cases)


def test_calls_in_a_row_overlap_for_one_op_and_not_for_stages_and_have_as_many_sets_as_memory_holds():
    regimes, none = {"resident-queued", STREAMED}, {(STREAMED, "no-streams")}
    within, add = scope(target("cupy:0", 2**40), regimes=[*regimes]), kernels.load("add")
    in_stages = msgspec.structs.replace(add, stages=(Stage("add", "add", ("x", "y"), ("z",), dict),))
    for op, left_out, skips in ((add, set(), set()), (in_stages, {STREAMED}, none)):
        found = plan.workload(Series(op, "float32"), 16, within)
        assert {case.regime for case in found.cases} == regimes - left_out
        assert {(skip.case.regime, skip.reason) for skip in found.skips} == skips
    op, params = add, {"n": N}
    case = Case("add", "vector", params, "float32", "library", STREAMED, "cupy:0", 4)
    held, (on_host, on_device) = op.held_bytes(params, "float32"), plan.needs(op, params, "float32")
    for sets in (2, 3):
        device, host = -(-(on_device + sets * held) * 5 // 4), -(-(on_host + 3 * sets * held) * 5 // 4)
        for less, count in ((0, sets), (1, 2)):
            assert plan.count_sets(op, case, target("cupy:0", device - less).device, None) == count
            assert plan.count_sets(op, case, target("cupy:0", None).device, host - less) == count
    assert plan.count_sets(op, case, target("cupy:0", None).device, None) == 3
    for less in (0, 1):  # of the memory of two sets
        room = -(-(on_device + 2 * held) * 5 // 4) - less
        found = plan.workload(Series(op, "float32"), N, scope(target("cupy:0", room), regimes=[STREAMED]))
        assert [skip.reason for skip in found.skips] == ["out-of-memory"] * less * len(IMPLEMENTATIONS)


@pytest.mark.parametrize("device", ["hybrid:cupy:0", "group:cupy:0+1"])
def test_devices_with_data_on_several_sides_make_no_call_in_place(device):
    asked = {"regimes": ["in-place-mapped"], "settings": Settings(scaling="strong"), "named_regimes": True}
    (item,) = everything(device, **asked)[2]
    assert (item.cases, {skip.reason for skip in item.skips}) == ((), {"not-in-place"})
