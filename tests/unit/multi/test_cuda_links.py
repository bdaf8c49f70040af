"""What the links of CUDA devices ask of the runtime and of NCCL, on stubs of both."""

import contextlib
from types import SimpleNamespace

import pytest

from gpubench import kernels
from gpubench.backends.cupy import links, whole_uuid
from gpubench.backends.cupy.links import AVERAGE, FLOAT32, SUM, CudaLinks
from gpubench.base.errors import Unsupported
from tests.raising import raised

COUNT = 12


class Vector:
    """An array of float32 at an address."""

    itemsize = 4

    def __init__(self, address, size=COUNT):
        self.size, self.nbytes, self.data = size, 4 * size, SimpleNamespace(ptr=address)


class Stream(contextlib.nullcontext):
    def __init__(self, non_blocking):
        super().__init__(self)
        assert non_blocking
        self.ptr = 90 + Cupy.current


class Cupy:
    """Notes the copies; `reachable` says whether devices may reach each other."""

    current = 0

    def __init__(self, reachable=True):
        self.copies, self.reached = [], []
        runtime = SimpleNamespace(
            deviceCanAccessPeer=lambda a, b: reachable, memcpyPeerAsync=lambda *a: self.copies.append(a),
            deviceEnablePeerAccess=lambda peer: self.reached.append((Cupy.current, peer)), CUDARuntimeError=RuntimeError,
        )  # fmt: skip
        self.cuda = SimpleNamespace(runtime=runtime, Device=self._device, Stream=Stream)

    @contextlib.contextmanager
    def _device(self, ordinal):
        before, Cupy.current = Cupy.current, ordinal
        yield
        Cupy.current = before


class Communicator:
    def __init__(self, calls, rank):
        self._calls, self._rank = calls, rank

    def __getattr__(self, name):
        return lambda *arguments: self._calls.append((name, self._rank, *arguments))


@pytest.fixture(autouse=True)
def nccl(monkeypatch):
    """NCCL, which notes what each rank is asked, and where a group begins and ends; there is no CuPy."""
    calls = []

    def ranks_of(ordinals):
        calls.append(("initAll", ordinals))
        return [Communicator(calls, rank) for rank in range(len(ordinals))]

    stub = SimpleNamespace(
        calls=calls, groupStart=lambda: calls.append("{"), groupEnd=lambda: calls.append("}"),
        NcclCommunicator=SimpleNamespace(initAll=ranks_of), NcclError=ZeroDivisionError,
    )  # fmt: skip
    monkeypatch.setattr(links, "nccl_binding", lambda: stub)
    monkeypatch.setattr(links, "vendor_errors", contextlib.nullcontext)
    return stub


def device_group(cupy=None):
    return CudaLinks(cupy or Cupy(), [2, 5])


SENT, GOT = [Vector(1000), Vector(2000)], [Vector(3000), Vector(4000)]


def test_a_uuid_that_ends_at_a_zero_byte_is_none():
    whole = bytes(range(1, 17))
    told = {whole: whole.hex(), whole + b"luid": whole.hex(), whole[:10]: None, b"": None, None: None}
    assert {raw: whole_uuid(raw) for raw in told} == told


SHARES = [Vector(3000, 6), Vector(4000, 6)]
# By op: what is sent, what is got, and what NCCL is asked, each rank on its own stream; counts are those of a share.
ASKED = {
    "allreduce": (SENT, GOT, [("allReduce", 0, 1000, 3000, COUNT, FLOAT32, SUM, 92), ("allReduce", 1, 2000, 4000, COUNT, FLOAT32, SUM, 95)]),
    "broadcast": (SENT, GOT, [("broadcast", 0, 1000, 3000, COUNT, FLOAT32, 0, 92), ("broadcast", 1, 2000, 4000, COUNT, FLOAT32, 0, 95)]),
    "reducescatter": (SENT, SHARES, [("reduceScatter", 0, 1000, 3000, 6, FLOAT32, SUM, 92), ("reduceScatter", 1, 2000, 4000, 6, FLOAT32, SUM, 95)]),
    "allgather": (SHARES, GOT, [("allGather", 0, 3000, 3000, 6, FLOAT32, 92), ("allGather", 1, 4000, 4000, 6, FLOAT32, 95)]),
    "alltoall": (SENT, GOT, [
        (name, rank, base + 1000 * rank + 24 * other, 6, FLOAT32, other, (92, 95)[rank])
        for rank in (0, 1) for other in (0, 1) for name, base in (("send", 1000), ("recv", 3000))]),
}  # fmt: skip


@pytest.mark.parametrize("op", ASKED)
def test_what_nccl_is_asked_of_each_rank(op, nccl):
    sent, got, asked = ASKED[op]
    kernels.load(op).collective.exchange(device_group(), sent, got)
    assert (nccl.calls[:2], nccl.calls[-1]) == ([("initAll", [2, 5]), "{"], "}")
    assert sorted(nccl.calls[2:-1]) == sorted(asked)


def test_gradients_are_averaged_in_place_on_the_default_stream(nccl):
    halves = Vector(5000)
    for vector in (halves, *SENT):
        vector.dtype = SimpleNamespace(name="float32" if vector in SENT else "float16")
    device_group().average([[SENT[0], halves], [SENT[1], halves]])
    calls = {("allReduce", rank, place, place, COUNT, dtype, AVERAGE, 0)
             for rank in (0, 1) for place, dtype in ((1000 + 1000 * rank, FLOAT32), (5000, 6))}  # fmt: skip
    assert set(nccl.calls[2:-1]) == calls


@pytest.mark.parametrize("work", [
    lambda joined: joined.collect("gather", SENT, GOT), lambda joined: joined.average([[SimpleNamespace()], [SENT[1]]]),
])  # fmt: skip
def test_a_call_that_fails_leaves_no_group_open_for_the_next(work, nccl):
    with pytest.raises((KeyError, AttributeError)):
        work(device_group())
    assert nccl.calls[-1] == "}"


def test_communicators_are_made_once_and_a_copy_does_without(nccl):
    joined = device_group()
    kernels.load("p2p_both").collective.exchange(joined, SENT, GOT)
    assert (nccl.calls, joined.xp.copies) == ([], [(4000, 5, 1000, 2, 48, 92), (3000, 2, 2000, 5, 48, 95)])
    for _ in range(2):
        joined.collect("allreduce", SENT, GOT)
    assert [call for call in nccl.calls if call[0] == "initAll"] == [("initAll", [2, 5])]
    for reachable, copier in ((True, "peer copy"), (False, "peer copy via host")):
        cupy = Cupy(reachable)
        assert device_group(cupy).copier == copier
        assert set(cupy.reached) == ({(2, 5), (5, 2)} if reachable else set()), "in both directions"


def test_without_nccl_the_reason_has_its_install_line(monkeypatch):
    def absent():
        raise links.no_nccl("no libnccl.so.2")

    monkeypatch.setattr(links, "nccl_binding", absent)
    refused = raised(Unsupported, device_group().collect, "allreduce", SENT, GOT)
    assert (refused.reason, "nccl13" in refused.hint) == ("no-library", True)
