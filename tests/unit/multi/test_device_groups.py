"""Device groups: ids, what each collective delivers, wrong deliveries, and the links of CUDA devices on stubs."""

import contextlib
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.backends import contract
from gpubench.backends.contract import Links
from gpubench.backends.cupy import links, whole_uuid
from gpubench.backends.cupy.links import AVERAGE, FLOAT32, SUM, CudaLinks
from gpubench.backends.shared import sides
from gpubench.backends.shared.sides import HostLinks, granule, split_array
from gpubench.base.errors import BackendUnavailable, Unsupported
from gpubench.measure import plan
from gpubench.measure.worker.workspace import Wrong, gate, kind_of, refusal
from gpubench.multi import device_group as device_group_module
from gpubench.multi.data_parallel import segments
from gpubench.multi.device_group import CollectiveTimer, shares
from gpubench.multi.ops import WIDTH, value
from gpubench.result.case import Case, group_id, group_ranks, group_sizes
from gpubench.result.run import Device, Selection
from tests.group_runs import computed
from tests.raising import raised

OPS = [kernels.load(name) for name in kernels.groups()["collective"]]


def case(op, n, ranks):
    params = {"n": n, "ranks": ranks}
    return Case(op.name, op.group, params, "float32", "library", "resident", f"group:numpy:{ranks}")


def prepared(op, n, ranks):
    return CollectiveTimer(backends.load("group").open(f"group:numpy:{ranks}"), op, case(op, n, ranks))


def test_an_id_names_its_ranks():
    ids = {(0, 1): "0+1", (1, 0): "1+0", (0, 1, 2): "0-2", tuple(range(8)): "0-7", (0, 2, 3): "0+2+3"}
    for ranks, word in ids.items():
        assert group_id("cupy", ranks) == f"group:cupy:{word}"
        assert group_ranks(f"group:cupy:{word}") == ranks
    sizes = {1: [], 2: [2], 3: [2, 3], 4: [2, 4], 6: [2, 4, 6], 8: [2, 4, 8]}
    assert {count: group_sizes(count) for count in sizes} == sizes
    assert group_ranks("cupy:0") == group_ranks("hybrid:cupy:0") == ()
    assert group_ranks("group:numpy:4") == (0, 1, 2, 3)
    hostile = ("999999999999", "0-999999999999", "+".join(["0-9999"] * 40_000))
    assert {group_ranks(f"group:fake:{word}") for word in ("link-hangs", *hostile)} == {(0, 1)}


# An operand that all ranks share, cuts along either axis, results side by side and results that are joined.
@pytest.mark.parametrize("name", ["add", "gemv", "transpose", "max", "dot"])
def test_what_ranks_compute_of_their_shares_is_the_whole(name, monkeypatch):
    op, ranks = kernels.load(name), 3
    params = {"n": op.sizes.sizes()[0]}
    places = shares(1023, ranks)
    assert [places[0][0], places[-1][1]] == [0, 1023]
    assert all(a[1] == b[0] for a, b in pairwise(places))
    lengths = [stop - start for start, stop in places]
    assert 0 < max(lengths) - min(lengths) <= 2 * granule(1023)
    with pytest.raises(ValueError, match="too few"):
        shares(7, 8)
    session = backends.load("group").open(f"group:numpy:{ranks}", 1)
    asked = Case(op.name, op.group, params, "float32", "tuned", "resident-waited", f"group:numpy:{ranks}")
    monkeypatch.setattr(device_group_module, "INLINE_BYTES", 0)
    found, want = computed(session, asked)
    np.testing.assert_allclose(found, want, rtol=1e-4)
    assert [thread.name for thread in threading.enumerate()].count("gpubench-beside") == ranks - 1
    session.close()
    assert "gpubench-beside" not in {thread.name for thread in threading.enumerate()}


def test_a_single_element_that_no_rank_adds_is_found(tmp_path, monkeypatch):
    def lose_last(operand, array, split, start, stop):
        part = split_array(operand, array, split, start, stop).copy()
        part[-1:] *= start == 0
        return part

    monkeypatch.setattr(sides, "split_array", lose_last)
    with pytest.raises(Wrong, match="a term is missing"):
        trained(tmp_path, 3, "sum", {"n": 5005}, dtype="float16")


def test_a_device_group_shows_its_members_backends(monkeypatch):
    assert backends.names_of("group:fake:0+1") == ("group", "fake")
    assert (backends.is_hidden("group:fake:0+1"), "group" in backends.usual()) == (True, False)
    with pytest.raises(BackendUnavailable):
        backends.load("group").open("group:numpy:99")
    monkeypatch.setenv("GPUBENCH_FAKE_GPUS", "3")
    group = backends.load("group").open("group:fake:2+0+1")  # all of them, in an order that no list has
    assert group.device.id == "group:fake:2+0+1"


def test_a_device_group_runs_collectives_of_its_size_and_the_best_of_each_op():
    session = backends.load("group").open("group:numpy:4")
    add = Case("add", "vector", {"n": 8}, "float32", "library", "resident", "group:numpy:4")
    assert session.supports(kernels.load("add"), add).reason == "no-implementation"
    op = kernels.load("allreduce")
    assert session.supports(op, case(op, 1024, 2)).reason == "shape"
    assert session.supports(op, case(op, 1024, 4)) is None
    short = "each of 4 ranks has 6 rows, but 6 tokens are no whole number"
    uneven = "each of 4 ranks has 2 rows, but 2 tokens are no whole number of sequences of 8"
    for name, params, why in (
        ("mlp_sgd", {"n": 9}, "a batch of 9 has no equal parts for 4 ranks"),
        ("transformer_sgd", SEQUENCES | {"n": 24}, short),
        ("transformer_sgd", {"n": 8}, uneven),
    ):
        op = kernels.load(name)
        asked = Case(op.name, op.group, params, "float32", "tuned", "resident-waited", "group:numpy:4")
        refused = refusal(session, op, asked)
        assert (refused.reason, why in refused.detail) == ("shape", True), refused.detail
    with pytest.raises(Unsupported, match="no device group"):
        CollectiveTimer(backends.load("numpy").open("numpy:0", 1), OPS[0], case(OPS[0], 1024, 2))


def test_busbw_by_hand():
    factors = {op.name: (op.collective.bus(2), op.collective.bus(8)) for op in OPS}
    assert factors == {
        "p2p": (1, 1), "p2p_both": (1, 1), "broadcast": (1, 1), "allreduce": (1, 1.75), "allgather": (0.5, 0.875),
        "reducescatter": (0.5, 0.875), "alltoall": (0.5, 0.875),
    }  # fmt: skip
    for op in OPS:
        fits = [op.fits({"n": n, "ranks": 2}) is None for n in (12, 16, 4 << 32, (4 << 32) + 8)]
        assert fits == [False, True, True, False]
    sizes = {op.name: op.bytes({"n": 64}, "float32") for op in OPS}
    assert sizes == {**dict.fromkeys(factors, 64), "p2p_both": 128}


def delivered(name, ranks, count):
    """What each rank gets, in the words of NumPy, of whole numbers that differ."""
    sent = [value(np, rank, np.arange(count, dtype="uint32")) for rank in range(ranks)]
    assert set(sent[0]) <= set(range(-8, 9))
    assert count < 100 or (np.mean(sent[0] == sent[1]) < 0.2 and len(set(sent[0])) == 17)
    part = count // ranks
    shares = [[one[j * part : (j + 1) * part] for j in range(ranks)] for one in sent]
    return {
        "p2p": lambda rank: sent[0], "p2p_both": lambda rank: sent[1 - rank], "broadcast": lambda rank: sent[0],
        "allreduce": lambda rank: np.sum(sent, axis=0),
        "reducescatter": lambda rank: np.sum([one[rank] for one in shares], axis=0),
        "allgather": lambda rank: np.concatenate([one[:part] for one in sent]),
        "alltoall": lambda rank: np.concatenate([one[rank] for one in shares]),
    }[name]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("shares", [1, 4099])
def test_every_rank_gets_what_the_collective_says(ranks, shares, monkeypatch):
    monkeypatch.setattr(device_group_module, "PIECE", 1 << 10)  # several pieces
    monkeypatch.setattr(device_group_module, "FETCHED_BYTES", 10_000)
    fetched = []
    monkeypatch.setattr(Links, "fetch", lambda links, array: (links.xp, fetched.append(array) or array))
    for op in (op for op in OPS if ranks == 2 or not op.collective.pairwise):
        count = shares * ranks
        timed = prepared(op, count * WIDTH, ranks)
        assert timed.verify().ok
        want = delivered(op.name, ranks, count)
        for rank in [target for _, target in op.collective.pairs] or range(ranks):
            assert np.array_equal(timed.got[rank], want(rank)), (op.name, rank)
            right, place = timed.exchange, timed.got[rank].size // 2

            def wrong(links, sent, got, right=right, place=place, rank=rank):
                right.exchange(links, sent, got)
                got[rank][place] += 1

            timed.exchange = SimpleNamespace(exchange=wrong, expected=right.expected, pairs=right.pairs)
            assert raised(Wrong, timed.verify).check.index == [rank, place]
            timed.exchange = right
        timed.release()
    assert bool(fetched) == (shares == 1), "what is short is compared on the host"


def test_a_write_outside_the_buffer_and_a_missing_one_are_seen():
    timed = prepared(kernels.load("broadcast"), 1024 * WIDTH, 2)
    timed.verify()
    right = timed.exchange

    def instead(exchange):
        timed.exchange = SimpleNamespace(exchange=exchange, expected=right.expected, pairs=())
        return raised(Wrong, timed.verify).check.index

    def beyond(links, sent, got):
        right.exchange(links, sent, got)
        timed.held[0][-1] = 0

    assert (instead(beyond), instead(lambda links, sent, got: None)) == ([0, -1], [0, 0])


def test_a_collective_takes_the_device_groups_at_hand_as_its_shapes():
    ops = {name: kernels.load(name) for name in ("add", "p2p", "allreduce")}
    ids = ("numpy:0", "group:cupy:0+1", "group:cupy:1+0", "group:cupy:0-3")
    device_groups = [Device(id=id, backend=id.partition(":")[0], kind="gpu", name=id, api="host") for id in ids]
    found = plan.with_ranks(Selection(ops=list(ops)), ops, device_groups)
    assert found.params == {"p2p": [{"ranks": 2}], "allreduce": [{"ranks": 2}, {"ranks": 4}]}
    given = Selection(ops=list(ops), params={"p2p": [{"ranks": 2}], "allreduce": [{"ranks": 4}]})
    assert plan.with_ranks(given, ops, device_groups) == given


SEQUENCES = {"n": 32, "width": 12, "heads": 3, "tokens": 8}


def trained(tmp_path, ranks, name, params, session=None, dtype="float32"):
    """A checked launch on a device group, of three steps of a training, and its workspace."""
    op, device = kernels.load(name), f"group:numpy:{ranks}"
    session = session or backends.load("group").open(device, 1)
    asked = Case(op.name, op.group, params, dtype, "tuned", "resident-waited", device)
    assert refusal(session, op, asked) is None
    workspace = kind_of(op)(session, op, asked, 1, "random", tmp_path)
    return gate(workspace, asked, lambda phase: None).launch, workspace


@pytest.mark.parametrize(("ranks", "name", "params", "last"), [
    (4, "mlp_sgd", {"n": 8}, "b2.3"), (2, "transformer_sgd", SEQUENCES, "bout.3"),
])  # fmt: skip
def test_ranks_that_train_agree_with_float64_and_each_other(ranks, name, params, last, tmp_path, monkeypatch):
    launch, workspace = trained(tmp_path, ranks, name, params)
    assert len(launch.ranks) == ranks
    launch.run(2)  # each launch begins with the same weights
    workspace.verify(launch)
    weights = [rank.parts[-1].buffer for rank in launch.ranks]
    assert all(same.tobytes() == weights[0].tobytes() for same in weights)
    weights[-1][0] += 1
    with pytest.raises(Wrong, match=rf"rank {ranks - 1} has another {last} than rank 0"):
        workspace.verify(launch)
    closed, freed = [], []

    def note(launch):
        for rank in launch.ranks:
            monkeypatch.setattr(
                rank, "close", lambda rank=rank, close=rank.close: (closed.append(rank), close())
            )
        return launch.ranks

    own, more = note(launch), params | {"n": 2 * params["n"]}
    others = [trained(tmp_path, ranks, name, more, workspace.session) for _ in range(3)]
    for other, room in others:
        theirs = note(other)
        room.release()
        assert closed[-ranks:] == theirs
    assert len(closed) == 3 * ranks, "a launch that is still needed keeps what it has"
    for rank in own:
        monkeypatch.setattr(rank.session, "free", freed.append)
    launch.close()
    assert len(freed) == ranks * len(workspace.op.between), "what lies between the stages is given back"
    workspace.release()
    assert closed[-ranks:] == own
    monkeypatch.setattr(HostLinks, "average", lambda self, buffers: None)
    with pytest.raises(Wrong, match="rank 1 has another"):  # an exchange is left out
        trained(tmp_path, ranks, name, params)


def test_an_exchange_comes_before_gradients_are_read():
    parts = list(segments(kernels.load("mlp_adam")))
    gradients = [[f"d{x}.{k}" for x in ("w2", "b2", "w1", "b1")] for k in range(3)]
    assert [values for _, values in parts] == [*gradients, []]
    assert [stages[0].name for stages, _ in parts] == ["hidden", "update", "update", "update"]


@pytest.fixture
def scripted(monkeypatch):
    """Three ranks whose calls are noted in order, and the session of their device group."""
    notes = []
    monkeypatch.setattr(contract, "UNKNOWN_CACHE_BYTES", 1 << 16)
    links, sessions = HostLinks(3), [backends.load("numpy").open("numpy:0", 1) for _ in range(3)]
    for number, session in enumerate(sessions):
        for name in ("enter", "sync", "flush", "forget", "close", "run"):
            own = getattr(session, name)
            noted = lambda *given, own=own, note=(name, number): (notes.append(note), own(*given))[1]  # noqa: E731
            monkeypatch.setattr(session, name, noted)
    for name in ("sync", "close"):
        monkeypatch.setattr(links, name, lambda name=name: notes.append((name, "links")))
    device = Device(id="group:numpy:3", backend="group", kind="software", api="host", name="3 x host memory")
    return device_group_module.GroupSession(device, links, lambda: sessions), notes, sessions


def launched(session, op="add", n=1 << 12):
    """A launch of an op on the ranks, with its operands."""
    op = kernels.load(op)
    case = Case(op.name, op.group, {"n": n}, "float32", "tuned", "resident-waited", session.device.id)
    assert session.supports(op, case) is None
    operands = [session.allocate((n,), "float32") for _ in range(3)]
    for operand in operands:
        session.upload(operand, np.ones(n, np.float32))
    return session.compile(op, case, operands[:2], operands[2]), operands


def test_a_group_that_only_exchanges_opens_no_member(scripted):
    session, notes, _ = scripted
    session.sync()
    session.forget()
    assert session.clock() > 0
    session.run(session.empty_launch())
    session.close()
    assert notes == [("sync", "links"), ("close", "links")]


@pytest.mark.parametrize("name", ["sync", "flush", "forget", "close"])
def test_each_rank_is_entered_before_it_is_asked(scripted, name):
    session, notes, _ = scripted
    launched(session)
    ready = session.ready_buffers((8,), "float32")
    ready.give_back(held := ready.take())
    notes.clear()
    getattr(session, name)()
    ranks = [(what, rank) for rank in range(3) for what in ("enter", name)]
    link = [(name, "links")]
    assert notes == {"sync": [*link, *ranks], "close": [*ranks, *link]}.get(name, ranks)
    assert name == "close" or (ready.take() is held) == (name != "forget")


def test_launches_go_to_the_ranks_by_eight_and_sides_time_each_rank_alone(scripted, monkeypatch):
    session, notes, sessions = scripted
    launch, (_, _, output) = launched(session)
    built = launch.ranks[0].launch
    assert (launch.kernel_name, launch.kernel_hash) == (built.kernel_name, built.kernel_hash)
    assert launch.staging == launch.ranks[0].way.staging
    session.run(launch, 1)
    notes.clear()
    runs = []
    for number, member in enumerate(sessions):
        monkeypatch.setattr(member, "run", lambda launch, repeat, rank=number: runs.append((rank, repeat)))
    session.run(launch, 17)
    assert runs == [(rank, repeat) for repeat in (8, 8, 1) for rank in range(3)]
    assert notes == [("enter", rank) for _ in range(3) for rank in range(3)], "nothing is sent again"
    ticks = iter([1.0, 3.0, 10.0, 14.0, 20.0, 28.0])
    monkeypatch.setattr(sessions[0], "clock", lambda: next(ticks))
    runs.clear(), notes.clear()
    assert session.sides(launch, 2, None) == {"rank0_s": 1.0, "rank1_s": 2.0, "rank2_s": 4.0}
    assert runs == [*((rank, 1) for rank in range(3)), *((rank, 2) for rank in range(3))]
    assert notes[-6:] == [(what, rank) for rank in range(3) for what in ("enter", "sync")]
    got = np.empty(1 << 12, np.float32)
    session.download(output, got)
    assert set(got) == {2.0}


def test_buffers_of_a_copying_call_come_again_in_their_order(scripted):
    session, _, _ = scripted
    ready = session.ready_buffers((4,), "float32")
    taken = [ready.take(), ready.take()]
    for buffers in taken:
        ready.give_back(buffers)
    assert [ready.take(), ready.take()] == taken
    assert ready.take() not in taken


def test_a_group_lists_its_pairs_then_larger_ones(monkeypatch):
    gpu = Device(id="", backend="cupy", kind="gpu", name="A", api="cuda", driver="570")
    members = [replace(gpu, id=f"cupy:{i}", usable_bytes=room) for i, room in enumerate((None, 30, 20, 10))]
    members[3] = replace(members[3], name="B")
    groups = device_group_module.make_device_groups(members)
    pairs = "0+1 0+2 0+3 1+2 1+3 2+3 1+0 2+0 2+1 3+0 3+1 3+2".split()
    chosen = [*pairs, "0-2", "0+1+3", "0+2+3", "1-3", "0-3"]
    assert [group.id.rpartition(":")[2] for group in groups] == chosen
    assert (groups[0].name, groups[2].name, groups[-1].name) == ("2 x A", "2 x A and B", "4 x A and B")
    assert [groups[i].usable_bytes for i in (0, 3, -1)] == [30, 20, 10]
    shared = {(group.kind, group.api, group.driver, len(group.identities) > 1) for group in groups}
    assert shared == {("gpu", "cuda", "570", True)}
    many = device_group_module.make_device_groups([replace(gpu, id=f"cupy:{i}") for i in range(9)])
    assert [group.id.rpartition(":")[2] for group in many[72:75]] == ["0-2", "1-3", "2-4"]
    silent = device_group_module.make_device_groups([members[0], *members[2:]])
    assert [group.id.rpartition(":")[2] for group in silent[1:3]] == ["0+3", "2+3"], "cupy:1 does not answer"


# ---------------------------------------------------------------- links of CUDA devices, on stubs of the runtime and of NCCL
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
