"""Text to ids and back: an encoder in Python judges the library, and both have the vocabulary that comes with gpubench."""

import contextlib
import random
import socket
import sys
from importlib.util import find_spec
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import backends, kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.base.installation import install_command
from gpubench.kernels import tokens
from gpubench.measure.plan import Constraints, Series, Target, workload
from gpubench.measure.worker.workspace import refusal
from gpubench.result.case import Case
from gpubench.result.run import Device, Selection
from tests.examples import CHARACTERS

OP = kernels.load("tokenise")
WHOLE = tokens.TEXT.read_bytes()
own_words = st.lists(st.sampled_from(tokens.words(WHOLE)[:999])).map(lambda x: b"".join(x).decode())
texts = st.one_of(st.text(CHARACTERS, max_size=60), own_words)


@given(texts)
def test_the_library_and_the_judge_agree_and_nothing_is_lost(text):
    ids = tokens.encode(text.encode())
    assert tokens.decode(ids) == text.encode()
    if text.isascii():
        assert (tokens.encoder().encode_ordinary(text), tokens.encoder().decode(ids)) == (ids, text)


def test_the_encoder_is_made_without_a_connection(monkeypatch):
    monkeypatch.setattr(socket, "socket", Mock(side_effect=AssertionError("a connection was opened")))
    assert tokens.encoder.__wrapped__().n_vocab == tokens.ENTRIES


@pytest.mark.parametrize("count", [0, 1, 2, 17, 1000, 40_000, 90_000, random.Random(1).randrange(1, 30_000)])
def test_the_text_is_the_shortest_of_whole_words_with_so_many_tokens(count):
    text = tokens.text_of(count)
    assert len(text) == tokens.beginning(count).size == OP.inputs[0].shape({"n": count})[0]
    assert len(tokens.encode(text)) >= count
    shorter = b"".join(tokens.words(text)[:-1])
    assert len(tokens.encode(shorter)) < max(count, 1), "one word less has too few tokens"


def test_the_length_of_a_text_that_fits_into_no_memory_is_known_at_once():
    """Costs are printed as formulas, which are found at such sizes."""
    text, once = tokens.TEXT.read_bytes(), len(tokens.encode(tokens.TEXT.read_bytes()))
    assert tokens.beginning(2**40 * once).size == 2**40 * len(text)
    assert tokens.beginning(2**40 * once + 5).size == 2**40 * len(text) + tokens.beginning(5).size
    shape = kernels.load("detokenise").output.shape
    for n in (0, 1, 2, 17, 999, 90_001):
        assert shape({"n": n}) == (len(tokens.decode(tokens.ids_of(n))),)
    assert shape({"n": 10**15})[0] > 10**15


@pytest.mark.parametrize("kind", ["random", "zeros", "ones", "normal"])
def test_a_text_is_never_drawn(kind):
    (text,) = random_inputs(OP, {"n": 50}, "float32", 7, kind)
    assert bytes(text) == tokens.text_of(50)


def test_a_gpu_skips_it():
    device = Device(id="cupy:0", backend="cupy", kind="gpu", name="a GPU", api="cuda", usable_bytes=2**34)
    target = Target(device, ("library", "tuned"))
    found = workload(Series(OP, "float32"), 100, Constraints((target,), Selection(ops=[]), None))
    assert not found.cases
    assert {skip.reason for skip in found.skips} == {"host-stage"}


def test_without_the_library_it_is_skipped_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "tiktoken" else find_spec(name)
    )
    case = Case(OP.name, OP.group, {"n": 10}, "float32", "library", "resident", "numpy:0")
    with contextlib.closing(backends.load("numpy").open("numpy:0", 1)) as session:
        refused = refusal(session, OP, case)
    assert (refused.reason, refused.hint) == ("no-library", install_command("workloads"))
