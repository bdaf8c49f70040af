"""Workloads with repeats, a state and a stage of the host: what is written out, what is checked, and that they are right."""

from typing import Any

import numpy as np
import pytest

from gpubench import backends, kernels
from gpubench.backends.contract import HostCall
from gpubench.backends.shared.host import allocate_outputs
from gpubench.kernels import tokens
from gpubench.kernels.contract.op import Given, Ids, Ladder, Op, Repeat, Stage, flat
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Wrong, gate, refusal
from gpubench.result.case import Case
from gpubench.workloads import two_sides
from gpubench.workloads.chains import ChainWorkspace
from gpubench.workloads.workload import workload

LAYERS, WIDTH = 3, 12
BACKENDS = ["numpy", pytest.param("wgpu", marks=pytest.mark.vulkan)]


def rows(k: int, m: int) -> Any:
    return lambda params: {"n": params["n"], "k": k * WIDTH, "m": m * WIDTH}


def kept(params: Any) -> Any:
    return {"n": params["n"], "width": WIDTH, "room": params["n"]}


TOKENISE = Stage("tokenise", "tokenise", ("text",), ("ids",), lambda params: {"n": params["n"]})
EMBED = Stage(
    "embedding", "embedding", ("ids", "table", "positions"), ("x0",),
    lambda params: {"n": params["n"], "width": WIDTH, "vocabulary": tokens.ENTRIES},
)  # fmt: skip
LAYER = (
    Stage("qkv", "linear", ("x{layer}", "w{layer}", "b"), ("qkv{layer}",), rows(1, 3)),
    Stage("keep", "cache_append", ("qkv{layer}", "start", "cache{layer}"), ("cache{layer}",), kept),
    Stage("read", "linear", ("cache{layer}", "v", "c"), ("x{layer+1}",), rows(2, 1)),
)


def declared(*stages: Stage | Repeat, **changed: Any) -> Op:
    given = {
        "inputs": {"text": Given(lambda params: tokens.text_of(params["n"])), "start": Ids(lambda params: 1)},
        "weights": {"table": "normal", "positions": "normal", **{f"w{i}": "fan-in" for i in range(LAYERS)},
                    "b": "normal", "v": "fan-in", "c": "normal"},
        "outputs": {f"x{LAYERS}": "activation"}, "state": [f"cache{i}" for i in range(LAYERS)],
    }  # fmt: skip
    named = {"name": "tried", "summary": "", "params": {"n": "tokens"}, "sizes": Ladder(1, 64)}
    return workload(stages=stages, **named, **{**given, **changed})


OP = declared(TOKENISE, EMBED, Repeat("layer", LAYERS, LAYER, name="prefill"))


def test_repeats_nest_and_params_know_each_turn():
    inner = Repeat("layer", 2, (Stage("a", "linear", ("x{step}.{layer}",), ("x{step}.{layer+1}",), dict),))
    last = Stage("b", "linear", ("x{step}.2",), ("x{step+1}.0",), lambda p: {"n": p["n"] + p["step"]})
    stages = flat((Repeat("step", 3, (inner, last), name="decode"),))
    assert [stage.name for stage in stages] == ["decode.a", "decode.a", "decode.b"] * 3
    assert [stage.turns for stage in stages[3:6]] == [(1, 0), (1, 1), (1,)]
    assert stages[4].reads == ("x1.1",)
    assert stages[5].writes == ("x2.0",)
    assert stages[4].params({"n": 5}) == {"n": 5, "step": 1, "layer": 1}
    assert stages[5].params({"n": 5}) == {"n": 6}


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
        declared(*stages, **changed)


@pytest.fixture(scope="module", params=BACKENDS)
def session(request):
    backend = backends.load(request.param)
    device = next(device for device in backend.devices() if device.kind != "gpu")
    opened = backend.open(device.id, autotune=False)
    yield opened
    opened.close()


def case_of(session, op=OP, regime=None, implementation="tuned", **params):
    device = session.device
    return Case(
        op.name, op.group, params, "float32", implementation, regime or device.resident_regime, device.id
    )


def ready(session, folder, op=OP, implementation="tuned", **params):
    """A workspace whose launch has passed the gate and was right in every regime."""
    case = case_of(session, op, None, implementation, **params)
    assert refusal(session, op, case) is None
    workspace = ChainWorkspace(session, op, case, 1, "random", folder)
    launch = gate(workspace, case, lambda phase: None).launch
    for regime in (session.device.resident_regime, "transfer-always"):
        timer = Timer(workspace, case_of(session, op, regime, implementation, **params), launch)
        timer.seconds(2)
        timer.verify()
        timer.release()
    return workspace, launch


def test_it_is_right_in_every_regime(session, tmp_path):
    ready(session, tmp_path, n=33)[0].release()


def test_the_host_does_its_stage_in_each_launch_and_its_text_never_travels(session, tmp_path, monkeypatch):
    case = case_of(session, n=5)
    workspace = ChainWorkspace(session, OP, case, 1, "random", tmp_path)
    launch = gate(workspace, case, lambda phase: None).launch
    calls = []
    original = HostCall.__call__
    monkeypatch.setattr(HostCall, "__call__", lambda self: (calls.append(self), original(self)))
    session.run(launch, 3)
    session.sync()
    assert len(calls) == 3
    assert workspace.buffers[0] is workspace.inputs[0]
    assert not OP.inputs[0].travels
    workspace.release()


def test_a_state_that_nobody_wrote_is_found(session, tmp_path):
    case = case_of(session, n=5)
    workspace = ChainWorkspace(session, OP, case, 1, "random", tmp_path)
    gate(workspace, case, lambda phase: None)
    whole, place = session.chain, [stage.name for stage in OP.stages].index("prefill.keep")
    session.chain = lambda steps, output: whole([*steps[:place], *steps[place + 1 :]], output)
    try:
        workspace.output(case)
        launch = workspace.compile(case, workspace.buffers, allocate_outputs(session, OP, case))
    finally:
        del session.chain
    session.run(launch)
    session.sync()
    with pytest.raises(Wrong):
        workspace.verify(launch)
    workspace.release()


@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize(
    ("name", "params"),
    [("cache_append", {"n": 33, "width": 5, "room": 40}),
     ("attention_append", {"n": 33, "width": 12, "heads": 3, "room": 40})],
)  # fmt: skip
def test_an_op_leaves_the_rest_of_its_state(session, implementation, name, params, tmp_path):
    if implementation not in backends.load(session.device.backend).implementations:
        return
    workspace, launch = ready(session, tmp_path, kernels.load(name), implementation, **params)
    session.run(launch, 2)
    assert workspace.verify(launch).ok
    qkv, start, before = workspace.inputs
    after = np.empty_like(before)
    session.download(workspace.buffers[2], after)
    first, width = int(start[0]), params.get("width", 256)
    inside = slice(first, first + len(qkv))
    assert np.array_equal(after[inside], qkv[:, width:])
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
    case = Case(OP.name, OP.group, {"n": 16}, "float32", "tuned", regime, device)
    workspace = ChainWorkspace(session.for_op(OP), OP, case, 1, "random", tmp_path)
    patterns = [f"c{pattern * 10}"[: len(OP.stages)] for pattern in ("gc", "cg", "ggc", "cccg")]
    for assignment in (*two_sides.sides(OP).values(), *patterns):
        workspace.session.assign(assignment)
        ready = Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
        ready.split = assignment
        ready.seconds(2)
        ready.verify()
    found = two_sides.assign_stages(ready, 0, 0.1)
    assert found.gpu_s[0] == []
    assert all(assignment[0] == "c" for assignment in found.predicted_s)
    session.close()
