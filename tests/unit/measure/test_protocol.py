"""Messages: one line each, decoded to what was encoded, whatever the texts hold; anything else is an error."""

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.measure import protocol
from tests.examples import examples

texts = st.text(max_size=20)
PLAIN = {
    int: st.integers(0, 2**53), float: st.floats(0, 1e6), str: texts, bool: st.booleans(), NoneType: st.none(),
    Any: texts, msgspec.UnsetType: st.just(msgspec.UNSET),
}  # fmt: skip


def valued(kind):
    """Any value of an annotated type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(valued, arguments))
    if origin is dict:
        return st.dictionaries(*map(valued, arguments), max_size=1)
    if origin in (list, tuple):
        return st.lists(valued(arguments[0]), max_size=1).map(origin)
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: valued(hints[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize(
    "kind", [*protocol.WorkerRequest.__subclasses__(), protocol.Phase, *protocol.Reply.__subclasses__()]
)
@given(data=st.data())
@settings(max_examples=examples(5))
def test_messages_come_back(kind, data):
    message = data.draw(valued(kind))
    decode = protocol.decode_request if issubclass(kind, protocol.WorkerRequest) else protocol.decode_reply
    line = protocol.encode(message)
    assert (line[-1:], line.count(b"\n")) == (b"\n", 1)
    assert decode(line) == message


@given(st.one_of(st.binary(max_size=60), texts.map(str.encode)))
def test_junk_is_refused_by_its_own_error(line):
    for decode in (protocol.decode_request, protocol.decode_reply):
        with pytest.raises(msgspec.DecodeError):
            decode(line)
