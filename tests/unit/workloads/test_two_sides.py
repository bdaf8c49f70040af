"""Workloads on two sides: right at every stage assignment, planned exactly, and recommended where it pays."""

import itertools
import random
import shlex
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.analysis.advice import Advice, answer
from gpubench.analysis.analyse import analyse
from gpubench.analysis.contenders import Key
from gpubench.analysis.findings import findings
from gpubench.analysis.policy import Policy
from gpubench.backends.hidden.fake.session import STAGED_BYTES_PER_S, STAGED_CALL_S
from gpubench.base.errors import InputError
from gpubench.curves.stats import median
from gpubench.fleet.nodes import merge_runs
from gpubench.measure.worker.operands import Operands, Weights
from gpubench.measure.worker.timer import Timer, wall_s
from gpubench.measure.worker.workspace import Wrong, gate, refusal
from gpubench.report import advice as advice_report
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from gpubench.result.case import WAITED, Case
from gpubench.result.run import Run
from gpubench.workloads import assignment as planner
from gpubench.workloads import two_sides
from gpubench.workloads.assignment import NEAR, AssignmentCosts, StageCost, fit_to_sum, nearest, predicted_s
from gpubench.workloads.chains import ChainWorkspace
from gpubench.workloads.stage_assignments import REASONS, Assignment, assignments
from tests.unit.report.builders import CPU, GPU, HYBRID, SOFTWARE, assigned, case, measured, run_of
from tests.unit.report.samples import assignment_run

DEVICE = "hybrid:fake:gpu"
ADD = Case("add", "vector", {"n": 3}, "float32", "tuned", "resident-waited", DEVICE)


@pytest.fixture
def session():
    opened = backends.load("hybrid").open(DEVICE, 1)
    yield opened
    opened.close()


def case_of(name: str, n: int = 3, regime: str = "resident-waited") -> Case:
    return Case(name, "network", {"n": n}, "float32", "tuned", regime, DEVICE)  # type: ignore[arg-type]


def workspace_of(session, case: Case, folder, weights: Weights | None = None) -> ChainWorkspace:
    op = kernels.load(case.op)
    operands = Operands(op, 1, "random", folder, weights)
    return ChainWorkspace(session.for_op(op) if op.stages else session, op, case, 1, "random", folder, operands)


@pytest.fixture
def copies(session, monkeypatch):
    """(direction, shape) of what goes to the GPU and back."""
    seen, transfers = [], type(session.gpu.transfers("tuned"))
    own = {name: getattr(transfers, name) for name in ("upload", "download")}
    for name in own:

        def noted(self, buffer, host, name=name):
            seen.append((name, host.shape))
            own[name](self, buffer, host)

        monkeypatch.setattr(transfers, name, noted)
    return seen


def timed(workspace: ChainWorkspace, case: Case, assignment: str) -> Timer:
    if assignment:
        workspace.session.assign(assignment)
    found = Timer(workspace, case, gate(workspace, case, lambda _: None).launch)
    found.split = assignment or found.split
    return found


@pytest.mark.parametrize("name", ["mlp_forward", "multi_head_attention"])
@pytest.mark.parametrize("regime", ["resident-waited", "transfer-always"])
def test_every_assignment_is_right_before_and_after_it_is_timed(session, tmp_path, name, regime):
    case = case_of(name, regime=regime)
    workspace = workspace_of(session, case, tmp_path)
    assert refusal(workspace.session, workspace.op, case) is None
    for letters in itertools.product("cg", repeat=len(workspace.op.stages)):
        ready = timed(workspace, case, "".join(letters))
        ready.seconds(2)
        ready.verify()


@pytest.mark.parametrize(("assignment", "idle"), [("cc", "cpu"), ("gg", "gpu"), ("cg", "gpu"), ("gc", "cpu")])
def test_a_side_that_does_nothing_is_found(session, tmp_path, monkeypatch, assignment, idle):
    case = case_of("ffn")
    timed(workspace_of(session, case, tmp_path), case, assignment)
    monkeypatch.setattr(getattr(session, idle), "run", lambda launch, repeat=1: None)
    fresh = workspace_of(session, case, tmp_path)
    with pytest.raises(Wrong):
        timed(fresh, case, assignment)


def test_a_tensor_that_is_there_is_not_copied_again(session, tmp_path, copies):
    case = case_of("mlp_forward")
    ready = timed(workspace_of(session, case, tmp_path), case, "gcg")
    ready.seconds(1)
    copies.clear()
    ready.seconds(1)
    # h comes down, z goes up, p comes home. The input and the weights stay.
    assert copies == [("download", (3, 512)), ("upload", (3, 10)), ("download", (3, 10))]
    case = case_of("mlp_forward", regime="transfer-always")
    for assignment, wanted in (("ggg", ["upload", "download"]), ("ccc", []), ("gcc", ["upload", "download"])):
        ready = timed(workspace_of(session, case, tmp_path), case, assignment)
        ready.seconds(1)
        copies.clear()
        ready.seconds(1)
        assert [kind for kind, _ in copies] == wanted


@pytest.mark.parametrize(("op", "more", "sides"), [("ffn", {}, "gg"), ("linear_relu", {"k": 20, "m": 30}, "")])
def test_a_weight_goes_up_once_whatever_sizes_read_it(session, tmp_path, copies, op, more, sides):
    """Of an assignment and of a split, whose terms are checked besides: they go up, and then the weight again."""
    op, weights = kernels.load(op), Weights(1, "random", 1 << 30)
    weight, in_gates = (20, 30) if more else (256, 1024), 0
    for n in (64, 96):
        case = Case(op.name, op.group, {"n": n, **more}, "float32", "tuned", "transfer-always", DEVICE)
        workspace = workspace_of(session, case, tmp_path, weights)
        ready = timed(workspace, case, sides)
        in_gates += copies.count(("upload", weight))
        copies.clear()
        ready.seconds(2)
        assert ("upload", weight) not in copies
        ready.release()
        workspace.release()
    assert in_gates == (1 if op.terms is None else 4)


def test_what_is_predicted_is_what_the_scripted_clock_tells(session, tmp_path):
    """A mixture wins: large products on the GPU, the small rest on the CPU."""
    for regime in ("resident-waited", "transfer-always"):
        case = case_of("mlp_forward", 16, regime)
        workspace = workspace_of(session, case, tmp_path)
        ready = timed(workspace, case, "ggg")
        found = two_sides.assign_stages(ready, 0, 1.0)
        assert found is not None
        best = min(found.predicted_s, key=found.predicted_s.__getitem__)
        assert (set(best), found.free_s <= found.predicted_s[best]) == ({"c", "g"}, True)
        costs = two_sides.costs(workspace.op, case, found)
        chain = planner.StageChain(costs)
        assert found.predicted_s == {one: pytest.approx(predicted_s(chain, one)) for one in found.predicted_s}
        assert best == nearest(costs)[0].assignment
        for assignment, seconds in found.predicted_s.items():
            ready.split = assignment
            assert median([ready.seconds(1) for _ in range(3)]) == pytest.approx(seconds, rel=0.25)


def test_a_value_is_the_callers_array_until_a_launch_writes_it():
    first, second = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    value = two_sides.Value((2,), "float32")
    assert (value.places, value.uploaded, value.array.shape) == ("", False, (2,))
    value = two_sides.Value((2,), "float32")
    value.hold(first)
    assert (value.array is first, value.places, value.uploaded) == (True, "c", True)
    own = value.own()
    assert (own is first, own.tolist(), value.own() is value.array is own) == (False, [1, 2], True)
    value.hold(second)
    assert (value.array is own, own.tolist(), first.tolist()) == (True, [3, 4], [1, 2])
    value.forget()
    assert (value.array is own, value.places, value.uploaded) == (True, "", False)
    other = two_sides.Value((2,), "float32")
    other.hold(first)
    other.forget()
    assert other.array is not first, "what a caller lent is let go"


@pytest.fixture
def paired(session):
    return session.for_op(kernels.load("ffn"))


def test_spare_values_keep_their_memory_for_the_next_call(session, paired, monkeypatch):
    values = [paired.allocate((length,), "float32") for length in range(1, 10)]
    on_gpu = [paired.buffer("g", value) for value in values]
    freed = []
    monkeypatch.setattr(session.gpu, "free", freed.append)
    for value in values:
        paired.free(value)
    assert (freed, values[0].device, values[1].places) == (on_gpu[:1], None, ""), "of nine the first one goes"
    asked = (((2,), "float32", 1), ((2,), "float32", 1), ((3,), "float64", 2))
    assert [paired.allocate(*words) is values[place] for *words, place in asked] == [True, False, False]
    paired.forget()
    assert [id(buffer) for buffer in freed] == [id(buffer) for buffer in (on_gpu[0], *on_gpu[:1:-1])]
    paired.forget()
    assert len(freed) == 8


def test_a_copy_of_a_value_is_timed_each_way_and_changes_nothing(paired):
    value, sent = paired.allocate((1 << 20,), "float32"), np.arange(1 << 20, dtype=np.float32)
    paired.upload(value, sent)
    seconds = pytest.approx(STAGED_CALL_S + sent.nbytes / STAGED_BYTES_PER_S, rel=1e-3)
    assert (*paired.copy_times(value), value.places) == (seconds, seconds, "cg")
    assert np.array_equal(paired.buffer("g", value).array, sent)
    assert (np.array_equal(value.array, sent), value.array is sent) == (True, False)
    paired.way.staging = "pageable"
    assert paired.transfers("tuned").staging == "pageable"


def test_what_a_side_lacks_is_told(session, paired, monkeypatch):
    op, stage = kernels.load("ffn"), kernels.load("linear")
    asked = Case("linear", "matrix", {"n": 3, "k": 4, "m": 5}, "float32", "tuned", "resident-waited", DEVICE)
    assert paired.supports(stage, asked) is None
    assert paired.supports(op, case_of("ffn")).reason == "no-implementation"
    for side in ("gpu", "cpu"):
        with monkeypatch.context() as patch:
            plain = SimpleNamespace(device=getattr(session, side).device, supports=lambda op, case: None)
            patch.setattr(paired, side, plain)
            assert "does not run several ops" in paired.supports(stage, asked).detail


def test_both_sides_choose_their_kernels_on_their_own_copies(session, paired, monkeypatch):
    tuned = []
    for side in (session.gpu, session.cpu):
        monkeypatch.setattr(side, "tune", lambda op, case, inputs: tuned.append((case, *inputs)), raising=False)
    value = paired.allocate((3, 4), "float32")
    paired.upload(value, np.ones((3, 4), np.float32))
    case = Case("relu", "activation", {"n": 12}, "float32", "tuned", "resident-waited", DEVICE)
    paired.tune(kernels.load("relu"), case, [value])
    assert [case.device_id for case, _ in tuned] == [session.gpu.device.id, session.cpu.device.id]
    assert (tuned[0][1] is value.device, np.array_equal(tuned[1][1].array, value.array)) == (True, True)


@pytest.mark.parametrize(("kept", "written", "copied"), [(False, False, 1), (False, True, 2), (True, False, 2)])
def test_a_state_is_copied_once_somebody_wrote_it_or_where_the_op_keeps_it(paired, kept, written, copied):
    read, state = (paired.allocate((3,), "float32") for _ in range(2))
    for value in (read, state):
        paired.upload(value, np.ones(3, np.float32))
        value.uploaded = False
    paired.keeps_state = kept
    launch = two_sides.StageLaunch(kernels.load("add"), ADD, (read, state), state)
    segment = two_sides.Segment(paired, "g")
    segment.add(launch, state, {id(state)} if written else set())
    segment()
    assert ([read.places, state.places].count("cg"), state.places) == (1, "g")
    assert np.array_equal(state.device.array, [2, 2, 2]) == (copied == 2)


def test_a_segment_of_the_cpu_keeps_its_chains_for_a_few_arrays_of_the_caller(session, paired, monkeypatch):
    read, made = (paired.allocate((3,), "float32") for _ in range(2))
    segment = two_sides.Segment(paired, "c")
    segment.add(two_sides.StageLaunch(kernels.load("add"), ADD, (read, read), made), made, set())
    arrays, built, compiled = [np.full(3, i, np.float32) for i in range(5)], [], session.cpu.compile
    monkeypatch.setattr(session.cpu, "compile", lambda *given: (built.append(1), compiled(*given))[1])
    for places, count in (((0, 1, 2, 3), 4), ((0, 1, 2, 3), 4), ((4,), 5), ((0,), 6), ((4,), 6)):
        for place in places:
            paired.upload(read, arrays[place])
            segment()
            assert made.array.tolist() == [2 * place] * 3
        assert len(built) == count


@pytest.mark.parametrize(("limit_s", "rounds"), [(60, 15), (2, 2), (1.5, 1), (0.5, 1)])
def test_a_prediction_rests_on_rounds_after_one_to_warm_up(session, tmp_path, monkeypatch, limit_s, rounds):
    """A round takes a second; both chains run before it, and what flows is copied."""
    case = case_of("mlp_forward")
    ready = timed(workspace_of(session, case, tmp_path), case, "gcg")
    paired, ticks, events = ready.session, itertools.count(1), []
    run, sync = paired.run, paired.sync
    monkeypatch.setattr(paired, "run", lambda *given: (events.append(paired.assignment), run(*given))[1])
    monkeypatch.setattr(paired, "sync", lambda: (events.append("sync"), sync())[1])
    monkeypatch.setattr(paired, "copy_times", lambda value: (1.0, 2.0))
    monkeypatch.setattr(two_sides, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = two_sides.assign_stages(ready, 4, limit_s)
    assert events[:4] == ["ccc", "sync", "ggg", "sync"]
    assert (found.session, found.stages) == (4, ["hidden", "logits", "probabilities"])
    values = ("x", "h", "z", "p")
    assert found.up_s == dict.fromkeys(values, [1.0] * rounds)
    assert found.down_s == dict.fromkeys(values, [2.0] * rounds)
    assert found.enter_s == [pytest.approx(wall_s(paired, paired.empty_launch(), 1), rel=0.01)] * rounds
    sides = (*found.cpu_s, *found.gpu_s, found.cpu_whole_s, found.gpu_whole_s)
    assert {len(times) for times in sides} == {rounds}
    prices = two_sides.costs(ready.workspace.op, case, found)
    assert (prices.enter_s, prices.host_values) == (median(found.enter_s), ["p"])
    waited = msgspec.structs.replace(found, clock="waited")
    assert two_sides.costs(ready.workspace.op, case, waited).enter_s == 0.0


def test_both_chains_are_built_once_and_what_cannot_be_read_predicts_nothing(session, tmp_path, monkeypatch):
    case = case_of("ffn")
    ready = timed(workspace_of(session, case, tmp_path), case, "gc")
    paired, built, compiled = ready.session, [], session.gpu.compile

    def noted(*given):
        built.append(compiled(*given))
        built[-1].kernel_hash, built[-1].kernel_name = "text", "name"
        return built[-1]

    monkeypatch.setattr(session.gpu, "compile", noted)
    steps = ready.workspace.chain(case).steps(ready.workspace.buffers, ready.launch.output)
    assert {(launch.kernel_hash, launch.kernel_name) for launch, _ in steps} == {("text fake", "name")}
    built.clear()
    for _ in range(2):
        assert (paired.side_times(steps) is not None, len(built)) == (True, len(steps))
    paired.side_times(list(steps))
    assert len(built) == 2 * len(steps), "other steps are built anew"
    for side in (session.gpu, session.cpu):
        with monkeypatch.context() as patch:
            patch.setattr(side, "stage_times", lambda steps: None)
            assert two_sides.assign_stages(ready, 0, 0.0) is None


# ---------------------------------------------------------------- the planner against a search through all, with a cost of its own
SECONDS = st.integers(0, 40).map(lambda tenths: tenths / 10)


@st.composite
def chains(draw):
    """Chains of up to six stages, each of which reads some of the values before it; the first may be the host's."""
    known, steps = ["x", "w", "cache"], []  # a cache is read before anything has written into it
    for number in range(draw(st.integers(1, 6))):
        reads = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        host = number == 0 and draw(st.booleans())
        # A state is written by several stages.
        written = (f"v{number}", *(("cache",) if draw(st.booleans()) else ()))
        steps.append(StageCost(draw(SECONDS), None if host else draw(SECONDS), reads, written))
        known += [name for name in written if name not in known]
    copies = {name: draw(SECONDS) for name in known}
    wanted = [steps[-1].writes[0], *(["v0"] if draw(st.booleans()) else [])]
    at_first = {"x": draw(st.sampled_from(["c", "cg"])), "w": "cg"}
    down = {name: draw(SECONDS) for name in copies}
    return AssignmentCosts(steps, copies, down, draw(SECONDS), at_first, list(dict.fromkeys(wanted)))


def seconds_of(costs, assignment):
    """By the words of the design: each stage, each entry to the GPU, each value that is not there."""
    there = {(name, side) for name, sides in costs.initial_sides.items() for side in sides}
    total, last = 0.0, "c"

    def need(name, side):
        nonlocal total
        other = "c" if side == "g" else "g"
        if (name, side) not in there and (name, other) in there:
            total += (costs.up_s if side == "g" else costs.down_s)[name]
            there.add((name, side))

    for step, side in zip(costs.steps, assignment, strict=True):
        for name in step.reads:
            need(name, side)
        total += step.cpu_s if side == "c" else step.gpu_s
        total += costs.enter_s if (last, side) == ("c", "g") else 0.0
        for name in step.writes:
            there -= {(name, "c"), (name, "g")}
            there.add((name, side))
        last = side
    for name in costs.host_values:
        need(name, "c")
    return total


def every(costs):
    sides = ["c" if step.gpu_s is None else "cg" for step in costs.steps]
    return {assignment: seconds_of(costs, assignment) for assignment in map("".join, itertools.product(*sides))}


@given(chains())
def test_the_best_are_those_of_a_search_through_all_as_far_as_they_are_near(costs):
    by_assignment = every(costs)
    seconds = sorted(by_assignment.values())
    limit_s = NEAR * seconds[0]  # where a sum in another order ends on either side
    assume(all(abs(s - limit_s) > 1e-9 for s in seconds[1:3]))
    best = nearest(costs)
    assert [near.seconds for near in best] == pytest.approx([s for s in seconds[:3] if s <= NEAR * seconds[0]])
    assert [by_assignment[near.assignment] for near in best] == pytest.approx([near.seconds for near in best])
    assert len({near.assignment for near in best}) == len(best)
    for letters, wanted in by_assignment.items():
        assert predicted_s(planner.StageChain(costs), letters) == pytest.approx(wanted)
    assert nearest(costs.without_copies())[0].seconds <= best[0].seconds + 1e-9


def test_a_long_chain_is_planned_in_time_and_exactly():
    """Alternating sides by cheap copies: 600 stages have 2^600 stage assignments."""
    steps = [StageCost(*((1.0, 3.0) if i % 2 else (3.0, 1.0)), (f"v{i}",), (f"v{i + 1}",)) for i in range(600)]
    copies = {f"v{i}": 0.1 for i in range(601)}
    found = nearest(AssignmentCosts(steps, copies, copies, 0.1, {"v0": "cg"}, ("v600",)))
    assert found[0].assignment == "gc" * 300


@given(st.lists(st.floats(1e-7, 1e-2), min_size=1, max_size=20), st.floats(1e-7, 1e-2))
def test_stages_add_up_to_the_whole_and_keep_their_order(steps_s, whole_s):
    found = fit_to_sum(steps_s, whole_s)
    assert sum(found) == pytest.approx(whole_s)
    ranked = sorted(range(len(steps_s)), key=steps_s.__getitem__)
    assert [found[i] for i in ranked] == pytest.approx(sorted(found))
    assert fit_to_sum([1.5, 3.5], 4.0) == pytest.approx([1.0, 3.0]), (
        "a clock reading costs every stage the same"
    )


def test_what_a_narrow_search_finds_bounds_the_exact_one(monkeypatch):
    draw, tried, walk = random.Random(1), [], planner.StageChain.walk
    steps = [
        StageCost(1 + draw.random() / 5, 1 + draw.random() / 5, tuple(f"v{j}" for j in sorted({i, max(0, i - 3), max(0, i - 7)})), (f"v{i + 1}",))
        for i in range(18)
    ]  # fmt: skip
    copies = {f"v{i}": 0.01 + draw.random() / 50 for i in range(19)}
    monkeypatch.setattr(planner.StageChain, "walk", lambda *given: (tried.append(given), walk(*given))[1])
    best = nearest(AssignmentCosts(steps, copies, copies, 0.02, {"v0": "cg"}, ("v18",)))
    assert best[0].assignment == "cggcgggccgcgcccccc"
    assert len(tried) < 2000, "without the bound twice as many stages are tried"


# ---------------------------------------------------------------- where assigning the stages pays
STAGES = {"first": (9e-5, 1e-5), "second": (1e-5, 9e-5)}
BOTH = {"cpu": 1e-4, "gpu": 1e-4}


def run_with(seconds, assignment="gc", *, regime=WAITED, sessions=6, others=(), **given) -> Run:
    what = case("ffn", 64, "tuned", regime, "hybrid:cupy:0")
    timed = assigned(what, STAGES, assignment, seconds, sessions=sessions, **{"beside_s": BOTH, **given})
    return run_of([*others, timed], devices=(CPU, GPU, HYBRID), sessions=sessions)


def only(run: Run) -> Assignment:
    (row,) = assignments(analyse(run))
    return row


def test_a_mixture_that_pays_is_recommended_with_its_gain_over_the_better_side():
    row = only(run_with(2.2e-5))
    assert (row.recommended, row.reason, row.assignment) == (True, None, "gc")
    assert row.gain == pytest.approx(1e-4 / 2.2e-5)
    assert [(one.stage, one.runs_on) for one in row.stages] == [("first", "gpu"), ("second", "cpu")]
    assert sum(stage.share for stage in row.stages) + row.copies_s / row.predicted_s == pytest.approx(1)
    text = " ".join(answer_sentences(analyse(run_with(2.2e-5))))
    assert "with its stages on CPU and GPU it is 4.55x as fast" in text
    # The session that chose does not estimate.
    run = run_with(2.2e-5)
    (outcome,) = run.outcomes
    blocks = [replace(b, wall_s=[v / (1 if b.session else 10) for v in b.wall_s]) for b in outcome.blocks]
    assert only(replace(run, outcomes=[replace(outcome, blocks=blocks)])).gain == row.gain
    alone = only(run_with(2.2e-5, sessions=1))
    assert (alone.selected_in_sample, alone.reason) == (True, "selected-in-sample")
    devices = [CPU, SOFTWARE, replace(HYBRID, kind="software")]
    assert only(replace(run, devices=devices)).reason == "software"


def test_a_faster_case_of_one_side_counts_where_its_result_is_on_the_host():
    on_cpu = measured(case("ffn", 64), 5e-5, sessions=6)
    on_gpu = (case("ffn", 64, regime=regime, device="cupy:0") for regime in (WAITED, "transfer-always"))
    others = (on_cpu, *(measured(what, 3e-5, sessions=6) for what in on_gpu))
    assert only(run_with(2.2e-5, others=others)).gain == pytest.approx(5e-5 / 2.2e-5)
    copied = only(run_with(2.2e-5, regime="transfer-always", others=others))
    assert (copied.better, copied.gain) == ("gpu", pytest.approx(3e-5 / 2.2e-5))


@pytest.mark.parametrize(("given", "reason"), [
    ({"seconds": 1e-4, "assignment": "cc", "copy_s": 1e-4}, "transfer-bound"),
    ({"seconds": 1e-4, "assignment": "cc", "free_s": 0.98e-4}, "one-side-dominates"),
    ({"seconds": 1.2e-4}, "overhead-bound"), ({"seconds": 0.97e-4, "sessions": 2}, "noise"),
])  # fmt: skip
def test_a_loss_has_its_reason_and_names_the_side_that_wins(given, reason):
    run = run_with(**given)
    row = only(run)
    assert (row.recommended, row.reason) == (False, reason)
    text = " ".join(render([run], "plain", sections=("hybrid",)).split())
    assert REASONS[reason] in text
    assert (f"{row.better}-only wins ({reason}" in text) == (reason != "noise")


@pytest.mark.parametrize(("seconds", "mismatch"), [(2.2e-5, False), (2.7e-5, True), (1.5e-5, True)])
def test_a_time_far_from_its_prediction_is_a_finding(seconds, mismatch):
    run = run_with(seconds)
    assert only(run).mismatch == mismatch
    assert ("assignment-mismatch" in {finding.code for finding in findings(analyse(run))}) == mismatch
    text = " ".join(render([run], "plain", sections=("hybrid",)).split())
    assert ("differ by more than 25 %" in text) == mismatch


def test_merging_keeps_by_what_each_run_chose_and_refuses_two_assignments():
    one, two = assignment_run(), replace(assignment_run(), id="0" * 36)
    together = merge_runs([one, two])
    assert [[p.session for p in o.assignment_times] for o in together.outcomes] == [[0, 6], [0, 6]]
    with pytest.raises(InputError, match="what each side does differs"):
        merge_runs([run_with(2.2e-5), replace(run_with(2.2e-5, "cg"), id="0" * 36)])


FFN = Key("ffn", "float32")


def three_staged(seconds, *, alone_s=1e-4):
    """A run of three stages on two sides, each of which alone takes `alone_s` by its own case, too."""
    stages = {"first": (8e-5, 1e-5), "second": (1e-5, 8e-5), "third": (1e-5, 1e-5)}
    places = (("resident", "numpy:0"), (WAITED, "cupy:0"))
    alone = [measured(case("ffn", 64, "tuned", *place), alone_s, sessions=6) for place in places]
    what, both = case("ffn", 64, "tuned", WAITED, "hybrid:cupy:0"), {"cpu": alone_s, "gpu": alone_s}
    outcomes = [*alone, assigned(what, stages, "gcg", seconds, beside_s=both, sessions=6)]
    return run_of(outcomes, devices=(CPU, GPU, HYBRID), sessions=6)


def test_an_assignment_that_pays_is_the_answer_with_its_stages_and_its_gain():
    run, one_side = three_staged(3.3e-5), ("numpy:0", "cupy:0")
    advice = answer([run], FFN, 64, WAITED)
    assert (advice.device_id, advice.backend, advice.confidence) == ("hybrid:cupy:0", "hybrid", "clear")
    assert advice.gain.ratio == pytest.approx(1e-4 / 3.3e-5, rel=1e-4)
    assert advice.gain.device_id in one_side
    text = " ".join(advice_report.render(advice, "table").split())
    assert "hybrid:cupy:0 (first, third on cupy:0, the rest on the CPU)" in text
    assert "Each stage runs where it is assigned" in text
    document = msgspec.json.decode(advice_report.render(advice, "json"), type=Advice)
    split = document.split
    assert (split.assignment, split.on_gpu, split.gpu_share) == ("gcg", ("first", "third"), None)
    variables = dict(line.split("=", 1) for line in shlex.split(advice_report.render(advice, "env")))
    assert (variables["GPUBENCH_ADVICE_ASSIGNMENT"], variables["GPUBENCH_ADVICE_GPU_SHARE"]) == ("gcg", "")
    for other in (three_staged(9.9e-5), three_staged(3.3e-5, alone_s=2e-5)):
        advice = answer([other], FFN, 64, WAITED)
        assert (advice.split, advice.device_id in one_side) == (None, True)
    with pytest.raises(InputError):
        answer([run], Key("mlp_forward", "float32"), 64, WAITED)
    policy = Policy([run])
    usual, mixed = (policy.choose("ffn", 64, regime="resident", hybrid=hybrid) for hybrid in (False, True))
    assert (usual.assignment, usual.device_id in one_side) == (None, True)
    assert (mixed.backend, mixed.assignment, mixed.gpu_share) == ("hybrid", "gcg", None)
