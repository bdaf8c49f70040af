"""Workloads: declarations, formulas, the gate that judges stage by stage, and tokens that depend on each other."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.analysis.claims import load
from gpubench.backends.contract import HostCall
from gpubench.backends.shared import choices, reference
from gpubench.backends.shared.host import allocate_outputs, random_inputs
from gpubench.backends.shared.reference import judge_choices, references, widen
from gpubench.backends.shared.sides import StageCase
from gpubench.kernels import tokens
from gpubench.kernels.contract.op import Given, Ids, Ladder, Op, Repeat, Stage, flat
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Wrong, gate, refusal
from gpubench.result.case import Case
from gpubench.workloads import chains, networks, training, two_sides
from gpubench.workloads.chains import ChainWorkspace
from gpubench.workloads.workload import workload

WORKLOADS = [op for op in map(kernels.load, kernels.computing_ops()) if op.stages]
BACKENDS = ["numpy", pytest.param("wgpu", marks=pytest.mark.vulkan)]
SQUARE = {"n": 6, "k": 6, "m": 6}
TRIED = {"name": "tried", "summary": "", "params": {"n": "rows"}, "sizes": Ladder(1, 64)}


@pytest.mark.parametrize("op", WORKLOADS, ids=lambda op: op.name)
def test_a_workload_costs_what_its_stages_cost(op):
    assert (op.sizes.low, op.sizes.high.bit_count()) == (op.sizes.granule, 1), "from the smallest size on"
    params = {"n": 9}
    stages = [(kernels.load(stage.op), stage.params(params)) for stage in op.stages]
    assert op.flops(params) == sum(one.flops(own) for one, own in stages)
    operands = sum(operand.bytes(params, "float32") for operand in op.operands)
    assert op.bytes(params, "float32") == operands, "what lies between stages is not compulsory"
    held = [operand for operand in (*op.operands, *op.between) if operand.role != "host"]
    assert op.held_bytes(params, "float32") == sum(x.bytes(params, "float32") for x in held)
    written = {name for stage in op.stages for name in stage.writes}
    assert written == {operand.name for operand in (*op.outputs, *op.between)}


@pytest.mark.parametrize(("stages", "why"), [
    ((Stage("one", "linear", ("x", "w"), ("y",), lambda p: SQUARE),), "does not name each operand"),
    ((Stage("one", "linear", ("x", "w", "c"), ("y",), lambda p: SQUARE),), "reads c"),
    ((Stage("one", "linear", ("x", "w", "b"), ("x",), lambda p: SQUARE),), "writes x"),
    ((Stage("one", "linear", ("x", "w", "b"), ("z",), lambda p: SQUARE),), "no stage writes y"),
    ((Stage("one", "linear", ("x", "w", "b"), ("h",), lambda p: SQUARE),
      Stage("two", "linear", ("h", "w", "b"), ("y",), lambda p: {**SQUARE, "k": 7})), r"h is .* and, in the stage two"),
])  # fmt: skip
def test_stages_that_do_not_fit_together_are_told(stages, why):
    inputs = {"x": "normal", "w": "fan-in", "b": "zeros"}
    with pytest.raises(ValueError, match=why):
        workload(**TRIED, stages=stages, inputs=inputs, outputs={"y": "activation"})


@pytest.mark.parametrize(("name", "params"), [
    ("mlp_step", {"n": 4}), ("transformer_step", {"n": 5, "width": 12, "heads": 3}),
])  # fmt: skip
def test_the_gradients_are_those_of_the_loss_or_of_the_result(name, params):
    """By central differences of the mean loss, or of sum(y dy), in float64, at a place of each operand."""
    op, generator = kernels.load(name).at(params), np.random.default_rng(1)
    drawn = map(widen, random_inputs(op, params, "float64", 1))
    values = dict(zip((x.name for x in op.inputs), drawn, strict=True))

    def total(changed):
        first, *_ = op.reference(np, *(values | changed).values())
        return np.sum(first * values["dy"]) if "dy" in values else np.mean(first)

    _, *gradients = op.reference(np, *values.values())
    for gradient, output in zip(gradients, op.outputs[1:], strict=True):
        operand = output.name.removeprefix("d")
        place = tuple(int(generator.integers(extent)) for extent in gradient.shape)
        step = np.zeros_like(values[operand])
        step[place] = 1e-5
        up, down = (total({operand: values[operand] + s}) for s in (step, -step))
        assert gradient[place] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-8), operand


def test_a_step_of_training_is_forward_and_backward():
    n, generator = 4, np.random.default_rng(1)
    x, *weights = (generator.normal(size=s) / 8 for s in ((n, 784), (784, 512), (512,), (512, 10), (10,)))
    w1, b1, w2, b2 = weights
    labels, h = generator.integers(0, 10, n), np.maximum(x @ w1 + b1, 0)
    powers = np.exp(h @ w2 + b2)
    forward, step, backward = (
        kernels.load(f"mlp_{part}").at({"n": n}) for part in ("forward", "step", "backward")
    )
    p = forward.reference(np, x, *weights)
    np.testing.assert_allclose(p, powers / powers.sum(axis=1, keepdims=True), rtol=1e-12)
    loss, *gradients = step.reference(np, x, labels, *weights)
    np.testing.assert_allclose(loss, -np.log(p[np.arange(n), labels]), rtol=1e-12)
    for own, other in zip(
        gradients, backward.reference(np, x, h, (p - np.eye(10)[labels]) / n, w2), strict=True
    ):
        np.testing.assert_allclose(own, other, atol=1e-15)
    params = {"n": 5, "width": 12, "heads": 3}
    step, block = (kernels.load(name).at(params) for name in ("transformer_step", "transformer_block"))
    x, dy, *weights = map(widen, random_inputs(step, params, "float64", 1))
    np.testing.assert_allclose(
        step.reference(np, x, dy, *weights)[0], block.reference(np, x, *weights), atol=1e-12
    )


def test_three_steps_of_a_block_take_the_mean_gradient_of_its_sequences(tmp_path, monkeypatch):
    """And the tolerance tells them from those of two steps. The reference goes slice by slice."""
    monkeypatch.setattr(reference, "SLICE", 1000)
    params, sequence = {"n": 256, "width": 24, "heads": 3, "tokens": 32}, {"n": 32, "width": 24, "heads": 3}
    op, block = kernels.load("transformer_sgd"), kernels.load("transformer_step").at(sequence)
    inputs = random_inputs(op, params, "float32", 1)
    values = dict(zip((x.name for x in op.inputs), map(widen, inputs), strict=True))
    weights = {x.name.removesuffix(".0"): values[x.name] for x in op.inputs if x.role == "weight"}
    names = [output.name.removeprefix("d") for output in block.outputs[2:]]
    for step in range(3):
        before, sums = weights, dict.fromkeys(names, 0)
        for rows in (slice(at, at + 32) for at in range(0, 256, 32)):
            x, labels = (values[f"{name}.{step}"][rows] for name in ("x", "labels"))
            y, *_ = block.reference(np, x, np.zeros_like(x), *weights.values())
            powers = np.exp(y)
            dy = (powers / powers.sum(axis=1, keepdims=True) - np.eye(24)[labels]) / 256
            _, _, *gradients = block.reference(np, x, dy, *weights.values())
            sums = {name: sums[name] + gradient for name, gradient in zip(names, gradients, strict=True)}
        weights = {name: weight - 0.125 * sums[name] for name, weight in weights.items()}
    _, *trained = op.at(params).reference(np, *map(widen, inputs))
    [allowed] = {output.tolerance.units * 2.0**-24 for output in op.outputs[1:]}
    assert allowed == 3 * 20 * 2.0**-24, "a unit for each stage of the longest path"
    for output, got in zip(op.outputs[1:], trained, strict=True):
        name = output.name.removesuffix(".3")
        np.testing.assert_allclose(got, weights[name], atol=1e-12)
        assert np.mean(np.abs(got - before[name]) > allowed) > 0.5, name


@pytest.mark.parametrize("name", ["mlp_sgd", "mlp_adam"])
def test_three_steps_leave_the_weights_of_a_textbook(name, tmp_path):
    """And the tolerance tells them from those of two steps."""
    n, op = 256, kernels.load(name)
    inputs = random_inputs(op, {"n": n}, "float32", 1)
    values = dict(zip((x.name for x in op.inputs), map(widen, inputs), strict=True))
    step_of, before = kernels.load("mlp_step").at({"n": n}), {}
    for step in range(3):
        weights = {x: values[f"{x}.{step}"] for x in ("w1", "b1", "w2", "b2")}
        gradients = step_of.reference(np, values[f"x.{step}"], values[f"labels.{step}"], *weights.values())
        made = dict(zip((x.name for x in step_of.outputs), gradients, strict=True))
        for x, before[x] in weights.items():
            after, dw = f"{x}.{step + 1}", made[f"d{x}"]
            if name == "mlp_sgd":
                values[after] = before[x] - 0.125 * dw
                continue
            m = values[f"{x}_mean.{step + 1}"] = 0.9 * values[f"{x}_mean.{step}"] + 0.1 * dw
            v = values[f"{x}_square.{step + 1}"] = 0.999 * values[f"{x}_square.{step}"] + 0.001 * dw**2
            root = np.sqrt(v / (1 - 0.999 ** (step + 1))) + 1e-8
            values[after] = before[x] - 2.0**-6 * m / (1 - 0.9 ** (step + 1)) / root
    wanted = op.at({"n": n}).reference(np, *map(widen, inputs))
    judges = references(op.at({"n": n}), inputs, tmp_path, name)
    for output, want, (_, scale, _) in zip(op.outputs, wanted, judges, strict=True):
        if output.role == "weight":
            np.testing.assert_allclose(want, values[output.name], atol=1e-12)
            allowed = scale * op.tolerance_of(output).units * 2.0**-24
            assert np.mean(np.abs(want - before[output.name.partition(".")[0]]) > allowed) > 0.5, output.name


@pytest.mark.parametrize("gradient", ["dw1", "db1"])
def test_a_hidden_value_next_to_0_may_let_through_or_not(gradient, tmp_path):
    """Where round-off decides its sign, either gradient is right; anywhere else the tolerance is as narrow as ever."""
    op = kernels.load("mlp_step").at({"n": 2})
    inputs = random_inputs(op, {"n": 2}, "float32", 1)
    x, _, w1, b1, *_ = inputs
    number = next(i for i, output in enumerate(op.outputs) if output.name == gradient)

    def answer(bias: float) -> Any:
        b1[0] = bias
        _, scale, _ = references(op, inputs, tmp_path, f"{bias}")[number]
        want = op.reference(np, *map(widen, inputs))[number]
        return want, np.broadcast_to(scale, want.shape) * op.tolerance_of(op.outputs[number]).units * 2.0**-24

    edge = -float(x[0].astype(np.float64) @ w1[:, 0].astype(np.float64))
    (above, allowed), (below, _) = answer(edge + 1e-7), answer(edge - 1e-7)
    moved = np.abs(above - below)
    assert moved.max() > 1e-3
    assert (moved <= allowed).all()
    assert allowed.reshape(-1, 512)[:, 1:].max() < 1e-3, "no other unit gains room"
    far, narrow = answer(edge + 1)
    assert narrow.max() < 1e-3
    assert far.shape == narrow.shape


def test_the_slack_of_a_training_is_four_times_the_distance_of_its_extremes(monkeypatch):
    """Of each column, between trainings that shift the hidden values by eight roundings up and down."""
    shift = np.array([[1.0, 2.0], [3.0, -4.0]])
    names = [output.name for output in kernels.load("mlp_sgd").outputs]
    monkeypatch.setattr(training, "_train", lambda op, xp, arrays, margin: dict.fromkeys(names, margin * shift))
    slack = training.training_slack("mlp_sgd", "w1.3")
    assert slack(np, 0.5, np.ones(2)).tolist() == [4 * 2 * 8 * 0.5 * 3.0, 4 * 2 * 8 * 0.5 * 4.0]
    assert slack(np, 0.25, np.ones(2)).tolist() == [48.0, 64.0], "of another precision"
    assert len(training.distances) == 1, "large arrays of the training asked about last alone"


@pytest.fixture(scope="module", params=BACKENDS)
def session(request):
    backend = backends.load(request.param)
    device = next(device for device in backend.devices() if device.kind != "gpu")
    opened = backend.open(device.id, autotune=False)
    yield opened
    opened.close()


def case_of(session, op, implementation="tuned", regime=None, **params):
    regime = regime or session.device.resident_regime
    return Case(op.name, op.group, params, "float32", implementation, regime, session.device.id)


def ready(session, folder, op, implementation="tuned", **params):
    """A workspace whose launch has passed the gate and was right in every regime."""
    case = case_of(session, op, implementation, **params)
    assert refusal(session, op, case) is None
    workspace = ChainWorkspace(session, op, case, 1, "random", folder)
    launch = gate(workspace, case, lambda phase: None).launch
    for regime in (session.device.resident_regime, "transfer-always"):
        timer = Timer(workspace, case_of(session, op, implementation, regime, **params), launch)
        timer.seconds(2)
        timer.verify()
        timer.release()
    return workspace, launch


@pytest.mark.parametrize(("op", "more"), [("mlp_sgd", {}), ("inference", {"width": 12, "heads": 12}), ("", {})])
@pytest.mark.slow
def test_a_chain_is_right_in_every_regime(session, op, more, tmp_path):
    """Of each kind of operands; tests/conformance/test_layers.py launches every workload once, in part with these kernels."""
    workspace, _ = ready(session, tmp_path, kernels.load(op) if op else REPEATED, n=33, **more)
    workspace.release()


def test_a_wrong_stage_is_named(session, workspace, monkeypatch):
    """The judge of the others gets what the device gave them."""
    lie, original = workspace.op.stages[1], chains.stage_case

    def lying(session: Any, stage: Stage, case: Case) -> StageCase:
        own = original(session, stage, case)
        wrong = replace(own.op, reference=lambda xp, *inputs: own.op.exact()(xp, *inputs) * 1.001)
        return own._replace(op=wrong) if stage is lie else own

    monkeypatch.setattr(chains, "stage_case", lying)
    with pytest.raises(Wrong, match=f"in the stage {lie.name}"):
        gate(workspace, workspace.case, lambda phase: None)


@pytest.fixture
def workspace(session, tmp_path, request):
    """That of mlp_forward, or of another op, with five rows."""
    op = getattr(request, "param", kernels.load("mlp_forward"))
    found = ChainWorkspace(session, op, case_of(session, op, n=5), 1, "random", tmp_path)
    yield found
    found.release()


def test_a_call_on_the_same_buffers_builds_nothing(session, workspace, monkeypatch):
    """In transfer-always building is part of the call; the pool of a GPU hands the same buffers out again."""
    op, case = workspace.op, workspace.case
    launch = gate(workspace, case, lambda phase: None).launch
    built, build = [], session.compile
    timer = Timer(workspace, case_of(session, op, regime="transfer-always", n=5), launch)
    if session.device.kind != "cpu":
        timer.seconds(2)
    monkeypatch.setattr(session, "compile", lambda *given: (built.append(1), build(*given))[1], raising=False)
    if session.device.kind != "cpu":
        timer.seconds(3)
    assert workspace.compile(case, workspace.buffers, workspace.output(case)) is launch
    assert not built
    workspace.tune(case)
    assert workspace.compile(case, workspace.buffers, workspace.output(case)) is not launch
    assert built, "another kernel may have been chosen"
    timer.release()
    held, second, third = workspace.output(case), *(allocate_outputs(session, op, case) for _ in range(2))
    own, other = (workspace.compile(case, workspace.buffers, output) for output in (held, second))
    assert [workspace.compile(case, workspace.buffers, output) for output in (held, second)] == [own, other]
    assert len(own.kernel_hash) == 12
    workspace.compile(case, workspace.buffers, third)
    assert workspace.compile(case, workspace.buffers, held) is not own, "two sets are kept, and no third one"


def test_what_lies_between_the_stages_is_given_back_once(session, workspace, monkeypatch):
    gate(workspace, workspace.case, lambda phase: None)
    between = [*workspace.chain(workspace.case).values(workspace.buffers, None).values()]
    freed: list[Any] = []
    monkeypatch.setattr(session, "free", freed.append, raising=False)
    for _ in range(2):
        workspace.release_between()
        assert len(freed) == len({x.name for x in workspace.op.between})
    assert [buffer is own for buffer, own in zip(freed, between, strict=False)] == [True] * len(freed)


def test_trials_run_on_what_the_stages_before_made(session, workspace, monkeypatch):
    op, case = workspace.op, workspace.case
    gate(workspace, case, lambda phase: None)
    events, run, last = [], session.run, op.stages[1].op

    def tune(own: Any, one: Any, inputs: Any) -> None:
        if own.name == last and "trial" not in events:
            if choices.trials_forbidden():
                raise choices.TrialsNeeded("to be chosen")
            events.append("trial")

    scripted = {
        "tune": tune, "run": lambda *given: (events.append("run"), run(*given))[1],
        "build": lambda cases: events.append(len(cases)), "sync": lambda: events.append("sync"),
    }  # fmt: skip
    for name, method in scripted.items():
        monkeypatch.setattr(session, name, method, raising=False)
    with choices.without_trials(), pytest.raises(choices.TrialsNeeded):
        workspace.tune(case)
    assert events == []
    for _ in range(2):  # what is remembered is chosen without a run
        workspace.tune(case)
        assert events == [len(op.stages), "run", "sync", "trial"]


def test_a_backend_without_chains_is_not_asked_for_a_tuned_workload(session, monkeypatch):
    op = kernels.load("ffn")
    plain = SimpleNamespace(device=session.device, supports=lambda op, case: None)
    refused = refusal(plain, op, case_of(session, op, n=3))
    assert refused.reason == "no-implementation"
    library = case_of(session, op, "library", n=3)
    assert refusal(plain, op, library) is None
    monkeypatch.setattr(chains, "no_library", lambda own: refused if own.name == "linear" else None)
    assert refusal(plain, op, library) is refused, "a stage that calls what is not installed"


def test_a_package_may_declare_what_the_page_shows():
    page = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")
    (text,), module = re.findall(r"```python\n(.*?)```", page, re.DOTALL), {}
    exec(text, module)
    op = module["OP"]
    assert (op.fits({"n": 3}), op.output.shape({"n": 3})) == (None, (3, 64))
    assert [stage.op for stage in op.stages] == ["linear_relu", "linear"]


def test_the_claims_that_come_with_gpubench_name_ops_that_are_there():
    named = {text for claim in load("builtin") for text in (*claim.cases, claim.also) if text}
    assert {text.partition("/")[0] for text in named} <= {*kernels.names(), "*"}


# ---------------------------------------------------------------- repeats, a state and a stage of the host
LAYERS, WIDTH = 3, 12
TOKENISE = Stage("tokenise", "tokenise", ("text",), ("ids",), lambda params: {"n": params["n"]})
EMBED = Stage("embedding", "embedding", ("ids", "table", "positions"), ("x0",),
              lambda params: {"n": params["n"], "width": WIDTH, "vocabulary": tokens.ENTRIES})  # fmt: skip
LAYER = (
    Stage("qkv", "linear", ("x{layer}", "w{layer}", "b"), ("qkv{layer}",),
          lambda params: {"n": params["n"], "k": WIDTH, "m": 3 * WIDTH}),
    Stage("keep", "cache_append", ("qkv{layer}", "start", "cache{layer}"), ("cache{layer}",),
          lambda params: {"n": params["n"], "width": WIDTH, "room": params["n"]}),
    Stage("read", "linear", ("cache{layer}", "v", "c"), ("x{layer+1}",),
          lambda params: {"n": params["n"], "k": 2 * WIDTH, "m": WIDTH}),
)  # fmt: skip


def repeated(*stages: Stage | Repeat, **changed: Any) -> Op:
    given = {
        "inputs": {"text": Given(lambda params: tokens.text_of(params["n"])), "start": Ids(lambda params: 1)},
        "weights": {"table": "normal", "positions": "normal", **{f"w{i}": "fan-in" for i in range(LAYERS)},
                    "b": "normal", "v": "fan-in", "c": "normal"},
        "outputs": {f"x{LAYERS}": "activation"}, "state": [f"cache{i}" for i in range(LAYERS)],
    }  # fmt: skip
    return workload(stages=stages, **TRIED, **{**given, **changed})


REPEATED = repeated(TOKENISE, EMBED, Repeat("layer", LAYERS, LAYER, name="prefill"))


def test_repeats_nest_and_params_know_each_turn():
    inner = Repeat("layer", 2, (Stage("a", "linear", ("x{step}.{layer}",), ("x{step}.{layer+1}",), dict),))
    last = Stage("b", "linear", ("x{step}.2",), ("x{step+1}.0",), lambda p: {"n": p["n"] + p["step"]})
    stages = flat((Repeat("step", 3, (inner, last), name="decode"),))
    assert [stage.name for stage in stages] == ["decode.a", "decode.a", "decode.b"] * 3
    assert [stage.turns for stage in stages[3:6]] == [(1, 0), (1, 1), (1,)]
    assert (stages[4].reads, stages[5].writes) == (("x1.1",), ("x2.0",))
    assert [stage.params({"n": 5}) for stage in stages[4:6]] == [{"n": 5, "step": 1, "layer": 1}, {"n": 6}]
    assert REPEATED.tuned.keys() == {"numpy", "cupy", "wgpu"}
    states = [operand.name for operand in REPEATED.between if operand.role == "state"]
    assert states == ["cache0", "cache1", "cache2"]
    held = [operand for operand in (*REPEATED.operands, *REPEATED.between) if operand.name != "text"]
    assert REPEATED.held_bytes({"n": 4}, "float32") == sum(each.bytes({"n": 4}, "float32") for each in held)


@pytest.mark.parametrize(("stages", "changed", "why"), [
    ((TOKENISE, EMBED, *flat((Repeat("layer", LAYERS, LAYER),))), {"state": ["cache0", "cache1"]}, "reads cache2"),
    ((TOKENISE, EMBED, *flat((Repeat("layer", LAYERS, LAYER),))),
     {"state": ["cache0", "cache1"], "inputs": {"cache2": "zeros", "start": Ids(lambda p: 1)}}, "cache2, which is no state"),
    ((EMBED, TOKENISE, Repeat("layer", LAYERS, LAYER)), {"inputs": {"ids": Ids(lambda p: 1)}},
     "host stage tokenise comes after"),
])  # fmt: skip
def test_what_does_not_fit_is_told(stages, changed, why):
    given = {"text": Given(lambda params: tokens.text_of(params["n"])), "start": Ids(lambda params: 1)}
    changed = {**changed, "inputs": {**given, **changed.get("inputs", {})}}
    with pytest.raises(ValueError, match=why):
        repeated(*stages, **changed)


@pytest.mark.parametrize("workspace", [REPEATED], indirect=True, ids=[""])
def test_the_host_does_its_stage_in_each_launch_and_its_text_never_travels(session, workspace, monkeypatch):
    launch = gate(workspace, workspace.case, lambda phase: None).launch
    calls, original = [], HostCall.__call__
    monkeypatch.setattr(HostCall, "__call__", lambda self: (calls.append(self), original(self)))
    session.run(launch, 3)
    session.sync()
    assert (len(calls), workspace.buffers[0] is workspace.inputs[0]) == (3, True)
    assert not REPEATED.inputs[0].travels


@pytest.mark.parametrize("workspace", [REPEATED], indirect=True, ids=[""])
def test_a_state_that_nobody_wrote_is_found(session, workspace, monkeypatch):
    case = workspace.case
    gate(workspace, case, lambda phase: None)
    whole, place = session.chain, [stage.name for stage in REPEATED.stages].index("prefill.keep")
    monkeypatch.setattr(session, "chain", lambda steps, out: whole([*steps[:place], *steps[place + 1 :]], out))
    workspace.output(case)
    launch = workspace.compile(case, workspace.buffers, allocate_outputs(session, REPEATED, case))
    session.run(launch)
    session.sync()
    with pytest.raises(Wrong):
        workspace.verify(launch)


@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize(("name", "params"), [
    ("cache_append", {"width": 5}), ("attention_append", {"width": 12, "heads": 3})
])  # fmt: skip
def test_an_op_leaves_the_rest_of_its_state(session, implementation, name, params, tmp_path):
    if implementation not in backends.load(session.device.backend).implementations:
        return
    workspace, launch = ready(session, tmp_path, kernels.load(name), implementation, n=33, room=40, **params)
    session.run(launch, 2)
    assert workspace.verify(launch).ok
    qkv, start, before = workspace.inputs
    after = np.empty_like(before)
    session.download(workspace.buffers[2], after)
    inside = slice(int(start[0]), int(start[0]) + len(qkv))
    assert np.array_equal(after[inside], qkv[:, params["width"] :])
    after[inside] = before[inside]
    assert np.array_equal(after, before)
    if implementation == "tuned":  # a launch that adds nothing fails
        workspace.output(workspace.case)
        session.sync()
        with pytest.raises(Wrong):
            workspace.verify(launch)
    workspace.release()


@pytest.mark.parametrize("device", ["hybrid:fake:gpu", pytest.param("hybrid:wgpu:0", marks=pytest.mark.vulkan)])
@pytest.mark.parametrize("regime", ["resident-waited", "transfer-always"])
def test_on_two_sides_the_host_keeps_its_stages_and_a_state_moves(device, regime, tmp_path):
    session = backends.load("hybrid").open(device, 2)
    case = Case(REPEATED.name, REPEATED.group, {"n": 16}, "float32", "tuned", regime, device)
    workspace = ChainWorkspace(session.for_op(REPEATED), REPEATED, case, 1, "random", tmp_path)
    patterns = [f"c{pattern * 10}"[: len(REPEATED.stages)] for pattern in ("gc", "cg", "ggc", "cccg")]
    for assignment in (*two_sides.sides(REPEATED).values(), *patterns):
        workspace.session.assign(assignment)
        ready = Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
        ready.split = assignment
        ready.seconds(2)
        ready.verify()
    found = two_sides.assign_stages(ready, 0, 0.1)
    assert (found.gpu_s[0], all(assignment[0] == "c" for assignment in found.predicted_s)) == ([], True)
    session.close()


def test_the_hash_of_a_training_is_that_of_any_blas():
    """It has 400 thousand sums of products, each rounded in the order of the machine's BLAS."""
    op = kernels.load("mlp_step")

    def scaled(by: float) -> Op:
        def output(xp, *inputs, **params):
            return tuple(by * x for x in op.reference(xp, *inputs, **params))

        return replace(op, reference=output)

    hashes = [choices.op_hash(scaled(by)) for by in (1, 1 + 1e-13, 1 + 1e-4)]
    assert hashes[0] == hashes[1] != hashes[2]


# ---------------------------------------------------------------- inference: what its stages do, and the judge of its tokens
OP = networks.inference
PARAMS = {"n": 17, "width": 24, "heads": 2}
TOLERANCE = OP.at(PARAMS).tolerance_of(OP.at(PARAMS).output)


@pytest.fixture(scope="module")
def written() -> tuple[list[Any], Any]:
    """Inputs, and what float64 makes of them."""
    inputs = random_inputs(OP, PARAMS, "float32", 1)
    return inputs, OP.at(PARAMS).reference(np, *map(widen, inputs))


def judged(written: tuple[list[Any], Any], got: Any) -> Any:
    return judge_choices(TOLERANCE, "float32", got, written[0])


def test_each_token_is_that_of_a_prompt_that_ends_before_it(written):
    """Without a cache: the whole text so far through the stages of the prompt."""
    inputs, sequence = written
    assert sequence.shape == OP.output.shape(PARAMS) == (17 + networks.NEW,)
    assert sequence[:17].tolist() == tokens.encode(bytes(inputs[0]))[:17]
    distinct = set(sequence[17:].tolist())
    assert len(distinct) > networks.NEW // 2, "one token again and again hides a stuck decoder"
    weights = dict(zip(networks.GPT_WEIGHTS, map(widen, inputs[1:]), strict=True))
    for length in (17, 20, 32):
        x = weights["table"][sequence[:length]] + weights["positions"][:length]
        for layer in range(networks.LAYERS):
            own = [weights[f"{name}.{layer}"] for name in networks.BLOCK_WEIGHTS]
            block = kernels.load("transformer_block").at({**PARAMS, "n": length})
            x = block.reference(np, x, *own)
        rest = x[-1] - x[-1].mean()
        unit = rest / np.sqrt(np.mean(rest**2) + 1e-5)
        assert np.argmax((unit * weights["scale"] + weights["shift"]) @ weights["head"]) == sequence[length]


@pytest.mark.parametrize(("params", "why"), [
    ({"n": 0}, "at least one token"), ({"n": networks.CONTEXT}, "exceed the"),
    ({"n": 16, "width": 30}, "do not divide"), ({"n": 16, "width": 64}, None),
])  # fmt: skip
def test_what_has_no_shape_is_told(params, why):
    found = OP.fits(params)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(("place", "value"), [
    (0, None), (16, None), (17, None), (32, None), (-1, -1), (-1, tokens.ENTRIES),
])  # fmt: skip
def test_another_token_and_what_is_none_fails(written, place, value):
    wrong = written[1].astype(np.int32)
    check = judged(written, wrong)
    assert (check.ok, check.max_error, check.differing) == (True, 0, 0)
    wrong[place] = (wrong[place] + 1) % tokens.ENTRIES if value is None else value
    check = judged(written, wrong)
    assert not check.ok
    if value is None:
        assert check.differing >= 1, "that one, and what float64 would have written after it"
    else:
        assert (check.index, check.max_error) == ([len(wrong) - 1], None)


def test_of_two_equal_logits_either_token_is_right(written):
    """The head has the column of the last token twice: no token follows, so that nothing else changes."""
    inputs, got = [*written[0]], written[1].astype(np.int32)
    last = int(got[-1])
    other = next(i for i in range(tokens.ENTRIES) if i not in got)
    inputs[-1] = inputs[-1].copy()
    inputs[-1][:, other] = inputs[-1][:, last]
    got[-1] = other
    assert (judge_choices(TOLERANCE, "float32", got, inputs).ok, judged(written, got).ok) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("session", ["numpy", pytest.param("torch", marks=pytest.mark.torch)], indirect=True)
def test_a_library_implementation_writes_right_tokens_and_one_that_forgets_is_found(session, tmp_path):
    """Of the library implementation the whole is judged alone."""
    device = session.device
    case = Case(OP.name, OP.group, PARAMS, "float32", "library", device.resident_regime, device.id)
    assert refusal(session, OP, case) is None

    def forgetful(xp: Any, *inputs: Any, **params: int) -> Any:
        sequence = OP.call(device.backend)(xp, *inputs, **params)
        sequence[-3:] = sequence[-4]
        return sequence

    workspace = ChainWorkspace(session, OP, case, 1, "random", tmp_path)
    assert gate(workspace, case, lambda phase: None).check.ok
    workspace.release()
    wrong = replace(OP, expr=forgetful, library={"torch": forgetful}, reference=OP.reference)
    workspace = ChainWorkspace(session, wrong, case, 1, "random", tmp_path)
    with pytest.raises(Wrong):
        gate(workspace, case, lambda phase: None)
    workspace.release()
