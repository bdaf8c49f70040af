"""The workload inference: what its stages do, and the judge of tokens that depend on each other."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.backends.shared.reference import judge_choices, widen
from gpubench.kernels import tokens
from gpubench.measure.worker.workspace import Wrong, gate, refusal
from gpubench.result.case import Case
from gpubench.workloads import networks
from gpubench.workloads.chains import ChainWorkspace

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
            block = kernels.load("transformer_block").at({"n": length, "width": 24, "heads": 2})
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
        assert check.index == [len(wrong) - 1]


def test_of_two_equal_logits_either_token_is_right(written):
    """The head has the column of the last token twice: no token follows, so that nothing else changes."""
    inputs, got = [*written[0]], written[1].astype(np.int32)
    last = int(got[-1])
    other = next(i for i in range(tokens.ENTRIES) if i not in got)
    inputs[-1] = inputs[-1].copy()
    inputs[-1][:, other] = inputs[-1][:, last]
    got[-1] = other
    assert (judge_choices(TOLERANCE, "float32", got, inputs).ok, judged(written, got).ok) == (True, False)


@pytest.fixture(scope="module", params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def session(request):
    backend = backends.load(request.param)
    device = next(device for device in backend.devices() if device.kind == "cpu")
    opened = backend.open(device.id, autotune=False)
    yield opened
    opened.close()


@pytest.mark.slow
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
