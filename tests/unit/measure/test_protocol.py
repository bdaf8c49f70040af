"""Messages: one line each, decoded to what was encoded, whatever the texts hold; anything else is an error."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.base.messages import Reason
from gpubench.measure import protocol
from gpubench.result.case import DTYPES, IMPLEMENTATIONS, REGIMES, Case
from gpubench.result.run import Block, Check, Device, Parts

numbers = st.integers(0, 2**53)
seconds = st.floats(0, 1e6)
texts = st.text(max_size=50)
reasons = st.sampled_from(get_args(Reason))
cases = st.builds(
    Case, op=texts, group=texts, params=st.dictionaries(texts, numbers, max_size=3), dtype=st.sampled_from(DTYPES),
    implementation=st.sampled_from(IMPLEMENTATIONS), regime=st.sampled_from(REGIMES), device_id=texts, calls=st.one_of(st.none(), numbers),
)  # fmt: skip
checks = st.builds(
    Check, ok=st.booleans(), max_error=st.one_of(st.none(), seconds), limit=seconds,
    scale=st.sampled_from(["value", "terms"]), index=st.lists(numbers, max_size=3),
)  # fmt: skip
blocks = st.builds(
    Block, session=numbers, round=numbers, position=numbers, repeat=numbers, wall_s=st.lists(seconds, max_size=5),
    device_cold_s=st.one_of(st.none(), st.lists(seconds, max_size=3)), discarded=st.dictionaries(texts, texts, max_size=2),
)  # fmt: skip
devices = st.builds(
    Device, id=texts, backend=texts, kind=st.just("gpu"), name=texts, api=st.just("cuda"), memory_bytes=numbers
)
requests = st.one_of(
    st.builds(protocol.ListDevices, id=numbers, backend=texts),
    st.builds(
        protocol.Open, id=numbers, device_id=texts, threads=st.one_of(st.none(), numbers), seed=st.integers(-5, 5),
        inputs=texts, scratch=texts, since=seconds,
    ),
    st.builds(protocol.Prepare, id=numbers, case=cases, session=numbers, repeat=st.one_of(st.none(), numbers)),
    st.builds(
        protocol.Sample, id=numbers, case_id=texts, session=numbers, round=numbers, position=numbers,
        samples=numbers, warmup_s=seconds, limit_s=seconds,
    ),
    st.builds(protocol.Finish, id=numbers, case_id=texts),
    st.builds(protocol.Reallocate, id=numbers),
    st.builds(protocol.Close, id=numbers),
)  # fmt: skip
replies = st.one_of(
    st.builds(protocol.Phase, name=texts),
    st.builds(protocol.Devices, id=numbers, listing=st.builds(
        protocol.Listing, backend=texts, devices=st.lists(devices, max_size=2).map(tuple),
        implementations=st.lists(texts, max_size=2).map(tuple),
    )),
    st.builds(
        protocol.Prepared, id=numbers, check=checks, op_hash=texts, kernel_hash=st.one_of(st.none(), texts),
        kernel=st.one_of(st.none(), texts), flops=numbers, bytes=numbers, parts=st.builds(Parts, session=numbers, alloc_s=st.lists(seconds, max_size=3)),
        staging=st.just("pinned"),
    ),
    st.builds(protocol.Sampled, id=numbers, block=blocks),
    st.builds(protocol.Done, id=numbers),
    st.builds(protocol.Refused, id=numbers, reason=reasons, detail=texts, hint=texts),
    st.builds(
        protocol.Broke, id=numbers, reason=reasons, detail=texts, check=st.one_of(st.none(), checks), fatal=st.booleans()
    ),
)  # fmt: skip


@given(requests)
def test_requests_come_back(message):
    line = protocol.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.decode_request(line) == message


@given(replies)
def test_replies_come_back(message):
    line = protocol.encode(message)
    assert line.count(b"\n") == 1
    assert protocol.decode_reply(line) == message


@given(st.one_of(st.binary(max_size=60), texts.map(str.encode)))
def test_junk_is_refused_by_its_own_error(line):
    for decode in (protocol.decode_request, protocol.decode_reply):
        with pytest.raises(msgspec.DecodeError):
            decode(line)


def test_a_reply_is_no_request():
    with pytest.raises(msgspec.ValidationError):
        protocol.decode_request(protocol.encode(protocol.Done(id=1)))
    with pytest.raises(msgspec.ValidationError):
        protocol.decode_reply(protocol.encode(protocol.Close(id=1)))
