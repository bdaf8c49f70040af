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


def test_the_prompt_comes_first_and_new_tokens_follow(written):
    inputs, sequence = written
    assert sequence.shape == OP.output.shape(PARAMS) == (17 + networks.NEW,)
    assert sequence[:17].tolist() == tokens.encode(bytes(inputs[0]))[:17]
    assert len(set(sequence[17:].tolist())) > networks.NEW // 2, (
        "one token again and again hides a stuck decoder"
    )


def test_each_token_is_that_of_a_prompt_that_ends_before_it(written):
    """Without a cache: the whole text so far through the stages of the prompt."""
    inputs, sequence = written
    weights = dict(zip(networks.GPT_WEIGHTS, map(widen, inputs[1:]), strict=True))
    for length in (17, 20, 32):
        x = weights["table"][sequence[:length]] + weights["positions"][:length]
        for layer in range(networks.LAYERS):
            own = [weights[f"{name}.{layer}"] for name in networks.BLOCK_WEIGHTS]
            block = kernels.load("transformer_block").at({"n": length, "width": 24, "heads": 2})
            x = block.reference(np, x, *own)
        last = kernels.load("norm_linear_last").expr(np, x, weights["scale"], weights["shift"], weights["head"])
        assert np.argmax(last) == sequence[length]


def test_every_stage_is_of_the_prompt_or_of_the_new_tokens():
    parts = [stage.name.partition(".")[0] for stage in OP.stages]
    assert list(dict.fromkeys(parts)) == ["tokenise", "prefill", "decode"]
    assert {stage.name for stage in OP.stages if stage.op == "attention_append"} == {"decode.heads"}
    assert {stage.op for stage in OP.stages if stage.name == "decode.heads"} == {"attention_append"}


def test_the_tokens_of_each_part_are_counted():
    assert {part: count(PARAMS) for part, count in OP.tokens.items()} == {
        "prefill": 17, "decode": max(stage.turns[0] for stage in OP.stages if stage.name == "decode.heads") + 1,
    }  # fmt: skip


@pytest.mark.parametrize(("params", "why"), [
    ({"n": 0}, "at least one token"), ({"n": networks.CONTEXT}, "exceed the"),
    ({"n": 16, "width": 30}, "do not divide"), ({"n": 16, "width": 64}, None),
])  # fmt: skip
def test_what_has_no_shape_is_told(params, why):
    found = OP.fits(params)
    assert found is None if why is None else why in (found or "")


def test_the_tokens_of_float64_pass(written):
    check = judged(written, written[1].astype(np.int32))
    assert (check.ok, check.max_error, check.differing) == (True, 0, 0)


@pytest.mark.parametrize(
    ("place", "value"), [(0, None), (16, None), (17, None), (25, None), (32, None), (-1, -1), (-1, tokens.ENTRIES), (-1, -(2**31))]
)  # fmt: skip
def test_another_token_and_what_is_none_fails(written, place, value):
    wrong = written[1].astype(np.int32)
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
    assert judge_choices(TOLERANCE, "float32", got, inputs).ok
    assert not judged(written, got).ok


@pytest.fixture(scope="module", params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def session(request):
    backend = backends.load(request.param)
    opened = backend.open(
        next(device.id for device in backend.devices() if device.kind == "cpu"), autotune=False
    )
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_library_implementation_writes_the_right_tokens_and_one_that_forgets_its_cache_is_found(
    session, tmp_path
):
    """Of the library implementation the whole is judged alone. At one shape: tests/conformance/test_layers.py has the others, and
    test_workloads.py the stages of the tuned implementation at this one."""
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


def test_ids_join_those_before_them():
    sequence, behind = kernels.load("token_append").expr(
        np, np.array([7, 8], np.int32), np.array([1], np.int32), np.array([1, 2, 3, 4], np.int32)
    )
    assert sequence.tolist() == [1, 7, 8, 4]
    assert behind.tolist() == [3]


def test_an_embedding_that_starts_later_takes_later_positions():
    table, positions = np.arange(12.0).reshape(4, 3), np.arange(100.0, 130.0).reshape(10, 3)
    ids = np.array([2, 0], np.int32)
    found = kernels.load("embedding_at").expr(np, ids, table, positions, np.array([5], np.int32))
    np.testing.assert_array_equal(found, kernels.load("embedding").expr(np, ids, table, positions[5:]))


def test_the_logits_are_those_of_the_last_row():
    op = kernels.load("norm_linear_last")
    x, g, c, w = random_inputs(op, {"n": 5, "width": 6, "vocabulary": 9}, "float64", 1)
    rest = x[-1] - x[-1].mean()
    want = (rest / np.sqrt(np.mean(rest**2) + 1e-5) * g + c) @ w
    np.testing.assert_allclose(op.expr(np, x, g, c, w), want[None], rtol=1e-12)
