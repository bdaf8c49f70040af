"""Which shares a sweep tries and which it keeps, which splits a search tries, and which devices a mode takes."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.base.errors import RequiredUnavailable
from gpubench.measure import runner, schedule, targets
from gpubench.measure.case_run import CaseRun
from gpubench.measure.plan import Constraints, Series, Target, Workload, workload
from gpubench.measure.targets import DeviceRequest, Listing
from gpubench.result.run import Selection, Settings
from tests.raising import raised
from tests.unit.measure.builders import case, device


@pytest.mark.parametrize(("cpu_s", "gpu_s", "shares"), [
    (1.0, 1.0, [0.5, 0.45, 0.55, 0.4, 0.6, 0.3, 0.7]), (1.0, 9.0, [0.1, 0.05, 0.15, 0.2, 0.3]),
])  # fmt: skip
def test_a_sweep_goes_outwards_from_where_both_sides_end_together(cpu_s, gpu_s, shares):
    assert runner.gpu_shares(cpu_s, gpu_s) == pytest.approx(shares), "no side is left without work"


def test_the_fastest_split_is_kept_even_where_one_side_alone_is_faster():
    assert runner.fastest({0.0: 1.0, 1.0: 0.1, 0.9: 0.3, 0.8: 0.2}) == 0.8
    assert runner.fastest({0.0: 1.0, 1.0: 0.1}) is None


class Tries:
    """A budget that ends after so many tries."""

    def __init__(self, count):
        self.left = iter(range(count))

    over = property(lambda self: next(self.left, None) is None)


@pytest.mark.parametrize(("tries", "cpu_s", "gpu_s", "chosen"), [
    (99, 1.0, 1.0, 0.6), (3, 1.0, 1.0, 0.5), (2, 1.0, 3.0, 0.25), (1, 1.0, 3.0, None), (0, 1.0, 3.0, None),
    (99, None, None, None),  # every sample is throttled, and the time ends before any can be taken again
])  # fmt: skip
def test_a_sweep_settles_on_the_fastest_share_or_that_of_the_model(monkeypatch, tries, cpu_s, gpu_s, chosen):
    def prepare(trial, *, first):
        trial.prepared = SimpleNamespace(split=trial.split, tune_s=0.0)

    def take(trial, number, position):
        seconds = {0.0: cpu_s, 1.0: gpu_s}.get(trial.split, abs(trial.split - 0.6))
        trial.clean = [] if cpu_s is None else [[seconds] * 9]
        return True

    monkeypatch.setattr(CaseRun, "prepare", prepare)
    monkeypatch.setattr(CaseRun, "take", take)
    recorder = SimpleNamespace(outcome=lambda case_id: None)
    runtime = SimpleNamespace(settings=Settings(), budget=Tries(tries), recorder=recorder)
    whole = case(8, "hybrid:cupy:0", "resident-queued", implementation="tuned")
    run = CaseRun(whole, runtime, Workload(kernels.load("add"), {"n": 8}, "float32", (whole,)))
    run.left_s = 7.0
    runner.sweep(run)
    assert (run.over, run.split, run.left_s) == (False, chosen and pytest.approx(chosen), 7.0)


CPU, CUPY, WGPU = device("numpy:0", "cpu"), device("cupy:0", name="H"), device("wgpu:0", name="H")
ADAPTER = device("wgpu:1", "software")
BOTH = [device(f"hybrid:{gpu}:0", "hybrid") for gpu in ("cupy", "wgpu")]
SLOW = device("hybrid:wgpu:1", "software")


def constraints(*devices):
    targets = tuple(Target(one, ("tuned",) if one.kind == "hybrid" else ("library",)) for one in devices)
    return Constraints(targets, Selection(ops=["add"], regimes=["resident-queued", "transfer-always"]), None)


ADD = Series(kernels.load("add"), "float32")


def test_after_a_search_the_largest_size_is_tried_at_which_both_sides_are_near():
    cpu, gpu = ("numpy:0", "library", "resident"), ("cupy:0", "library")

    def row(cpu_s, resident_s, always_s):
        sides = {cpu: cpu_s, (*gpu, "resident-queued"): resident_s, (*gpu, "transfer-always"): always_s}
        return {name: {0: [seconds]} for name, seconds in sides.items()}

    scope = constraints(CPU, CUPY, BOTH[0])
    times = {1024: row(1.0, 20.0, 50.0), 4096: row(4.0, 8.0, 20.0), 16384: row(16.0, 1.0, 30.0)}
    found = schedule.worth_trying(ADD, times, {"numpy:0"}, scope)
    assert [case.id for item in found for case in item.cases] == [
        "add/n=4096/float32/tuned/resident-queued@hybrid:cupy:0",
        "add/n=16384/float32/tuned/transfer-always@hybrid:cupy:0",
    ]
    assert schedule.worth_trying(ADD, times, {"numpy:0"}, constraints(CPU, CUPY)) == []
    for cpu_s, near in ((10.0, True), (10.1, False), (0.1, True), (0.0999, False)):
        found = schedule.worth_trying(ADD, {1024: row(cpu_s, 1.0, 1e3)}, {"numpy:0"}, scope)
        assert [item.n for item in found] == [1024] * near


def test_after_a_search_device_groups_run_each_size_of_a_member_from_large_to_small():
    """A budget then cuts off the sizes at which several GPUs gain nothing."""
    scope = constraints(CPU, CUPY, device("group:cupy:0-1", "gpu"))
    devices = {1024: "cupy:0", 4096: "cupy:1", 2048: "numpy:0", 8192: "wgpu:0"}
    times = {n: {(name, "library", "resident"): {0: [1.0]}} for n, name in devices.items()}
    found = schedule.on_groups(ADD, times, replace(scope, settings=Settings(scaling="strong")))
    assert [item.n for item in found] == [4096, 1024]
    assert {case.device_id for item in found for case in item.cases} == {"group:cupy:0-1"}


def test_a_plan_skips_by_name_what_cannot_be_cut_and_has_no_overheads_of_a_split():
    one = workload(ADD, 1, constraints(CPU, BOTH[0]))
    assert [(skip.reason, skip.detail) for skip in one.skips] == [("no-split", "add has 1 unit to cut")] * 2
    launch = workload(Series(kernels.load("launch"), "float32"), 1, constraints(BOTH[0]))
    assert launch.cases == launch.skips == ()


@pytest.fixture
def listed(monkeypatch):
    """What the backends list, of those that are asked."""

    def patch(*devices):
        asked = []

        def listing(name):
            own = tuple(device for device in devices if device.backend == name)
            missing = Listing(name, reason="unavailable", detail=f"no {name} here")
            return Listing(name, own, ("library",)) if own else missing

        def answer(names, *_, **__):
            asked.extend(names)
            return [listing(name) for name in names]

        monkeypatch.setattr(targets, "list_devices", answer)
        monkeypatch.setattr(targets.backends, "usual", lambda: ("numpy", "cupy", "wgpu"))
        return asked

    return patch


@pytest.mark.parametrize(("wanted", "asked", "taken"), [
    (DeviceRequest(), ["numpy", "cupy", "wgpu"], ["numpy:0", "cupy:0", "wgpu:0"]),
    (DeviceRequest(mode="cpu"), ["numpy"], ["numpy:0"]),
    (DeviceRequest(mode="gpu"), ["numpy", "cupy", "wgpu"], ["numpy:0", "cupy:0", "wgpu:0"]),
    (DeviceRequest(mode="hybrid"), ["numpy", "cupy", "wgpu", "hybrid"], ["numpy:0", "cupy:0", "wgpu:0", "hybrid:cupy:0"]),
    (DeviceRequest(required=("hybrid",)), ["hybrid"], ["hybrid:cupy:0", "hybrid:wgpu:0", "hybrid:wgpu:1"]),
    (DeviceRequest(devices=("hybrid:wgpu:0",)), ["hybrid"], ["hybrid:wgpu:0"]),
    (DeviceRequest(devices=("hybrid:fake:gpu",)), ["hybrid"], ["hybrid:fake:gpu"]),
])  # fmt: skip
def test_a_mode_chooses_the_devices(listed, wanted, asked, taken):
    actor = device("hybrid:fake:gpu", "hybrid")
    names = listed(CPU, CUPY, WGPU, ADAPTER, *BOTH, SLOW, actor)
    choice = targets.choose(wanted)
    assert [t.device.id for t in choice.targets] == taken
    assert names == asked
    assert not any("hybrid" in warning.message for warning in choice.warnings)


def test_what_a_mode_is_about_may_not_fail_to_open(listed):
    listed(CPU, CUPY, WGPU, *BOTH)
    for mode, ids in (("cpu", set()), ("gpu", {"cupy:0", "wgpu:0"}), ("hybrid", {"hybrid:cupy:0"})):
        wanted = DeviceRequest(mode=mode)
        assert targets.ids_required_by(wanted, targets.choose(wanted)) == ids
    lenient = DeviceRequest(mode="gpu", lenient=True)
    assert targets.ids_required_by(lenient, targets.choose(lenient)) == set()


@pytest.mark.parametrize("mode", ["gpu", "hybrid"])
def test_a_mode_without_its_gpu_is_unavailable_and_says_why(listed, mode):
    listed(CPU, ADAPTER, SLOW)
    refused = raised(RequiredUnavailable, targets.choose, DeviceRequest(mode=mode))
    assert refused.why == "cupy: no cupy here; a software adapter is no GPU"
    assert targets.choose(DeviceRequest(mode=mode, lenient=True)).targets
    assert targets.choose(DeviceRequest(mode=mode, allow_software=True)).targets
