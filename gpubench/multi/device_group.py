"""The backend `group`: several devices of one backend that one worker drives as if they were one device, such
as `group:cupy:0+1` or `group:cupy:0-7`.

A collective uses the links between the devices, which their backend provides (`Backend.links`). Any other op is
split into one share for each rank (`shares`), and the host joins the results. `group:numpy:4` is a group of
four ranks in host memory. It only serves to test the program: its times say nothing about GPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import combinations, pairwise, permutations
from typing import Any, TypeVar

from msgspec.structs import replace

from gpubench import backends
from gpubench.backends.contract import Backend, Joins, Launch, Links, ReadyBuffers, Session, Work, protocols
from gpubench.backends.contract.protocols import DeviceGroup
from gpubench.backends.shared.sides import (
    INLINE_BYTES,
    CompanionThread,
    DeviceShare,
    DividedBuffer,
    DividedLaunch,
    ask,
    granule,
    join_partials,
    side_case,
)
from gpubench.base.errors import BackendError, BackendUnavailable, Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import Array, Collective, Implementation, Op, Shape, Stored, each
from gpubench.measure.worker.timer import Timed
from gpubench.measure.worker.workspace import Wrong
from gpubench.multi import data_parallel
from gpubench.multi.data_parallel import ParallelLaunch, Rank
from gpubench.multi.ops import WIDTH, make_device_group, value
from gpubench.result.case import DEVICE_GROUP, Case, group_ranks, group_sizes, ordinal
from gpubench.result.run import Check, Device, Staging

# The numbers of ranks for which there is a device group in host memory.
_SOFTWARE = ("2", "3", "4", "8")
_FEW = 8  # most GPUs of which every choice is a group


class GroupSession(
    Session,
    protocols.DeviceGroup,
    protocols.Tunes,
    protocols.TimesSides,
):
    """A session of a device group. It has the links of the group, and opens sessions of the members when an op
    is first shared out among them."""

    limits = Limits(max_buffer_bytes=1 << 40, max_binding_bytes=1 << 40)

    def __init__(self, device: Device, links: Links, members: Callable[[], list[Session]]) -> None:
        self.device = device
        self._links = links
        self._members = members
        self._opened: Ranks | None = None
        # The launches of trainings, by the ids of their buffers, which they keep alive.
        self._trainings: dict[tuple[int, ...], ParallelLaunch] = {}
        self._idle: dict[tuple[Shape, Stored], list[DividedBuffer]] = {}  # buffers that copying calls gave back

    @property
    def _ranks(self) -> Ranks:
        """The sessions of the members. The first use opens them."""
        if self._opened is None:
            self._opened = Ranks(self._members())
        return self._opened

    def links(self) -> Links:
        return self._links

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Return the reason why the device group cannot run the case, or None if it can. A collective must have
        as many ranks as the group."""
        if op.collective is not None:
            fits = case.params.get("ranks") == self._links.ranks
            return (
                None if fits else Unsupported(f"{self.device.id} has {self._links.ranks} ranks", reason="shape")
            )
        if op.overhead is not None or case.implementation != "tuned" or case.variant is not None:
            why = "a device group takes the best that its ranks have: its only implementation is tuned"
            return Unsupported(why, reason="no-implementation")
        if op.averaged:
            first = self._ranks.sessions[0]
            return enter(first, partial(data_parallel.refuse, op, case, first, self._links.ranks))
        if op.more_outputs or any(operand.dtype for operand in op.operands):
            why = f"{DEVICE_GROUP} computes no op with several outputs or with ids"
            return Unsupported(why, reason="no-implementation")
        unsplit = op.whole(case.params)
        if unsplit is None:
            try:
                shares(op.units(case.params), self._links.ranks)
            except ValueError as error:
                unsplit = str(error)
        if unsplit is not None:
            return Unsupported(unsplit, reason="no-split")
        first = self._ranks.sessions[0]
        first.enter()
        return ask(first, op, side_case(op, case, case.params, first))

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        """Return an array of the kind that the first rank's session uses. All ranks send from it."""
        return self._ranks.sessions[0].host_array(shape, dtype, implementation)

    def allocate(self, shape: Shape, dtype: Stored) -> DividedBuffer:
        """Return a buffer without device memory. Each rank allocates memory for its part when a launch is built."""
        return DividedBuffer(shape, dtype)

    def ready_buffers(self, shape: Shape, dtype: Stored) -> ReadyBuffers:
        """Return a source of buffers of this shape and dtype. It gives each copying call the same buffers in the
        same order, so that the call's launch can be used again."""
        idle = self._idle.setdefault((shape, dtype), [])
        return ReadyBuffers(lambda: idle.pop(0) if idle else self.allocate(shape, dtype), idle.append)

    def free(self, buffer: DividedBuffer) -> None:
        buffer.free()

    def forget(self) -> None:
        """Free idle buffers, close the trainings whose outputs were freed, and let the sessions of the ranks free
        theirs."""
        for idle in self._idle.values():
            while idle:
                idle.pop().free()
        for key in [key for key, launch in self._trainings.items() if launch.is_over]:
            self._trainings.pop(key).close()
        if self._opened is not None:
            self._opened.each(lambda session: session.forget())

    def upload(self, buffer: DividedBuffer, host: Array) -> None:
        """Keep a reference to the array. The next launch determines the part of each rank and sends it."""
        buffer.hold(host)

    def download(self, buffer: DividedBuffer, host: Array) -> None:
        """Copy the joined parts of all ranks to `host`. Before any launch, copy the array that was uploaded."""
        if buffer.last is None:
            host[...] = buffer.host
        elif isinstance(buffer.last, ParallelLaunch):
            buffer.last.fetch(buffer, host)
        else:
            self._ranks.fetch(buffer.last, host)

    def tune(self, op: Op, case: Case, inputs: Sequence[DividedBuffer]) -> None:
        """Let each rank choose its kernel for its share of the op. Do nothing for a training, or if the ranks
        cannot tune."""
        if op.averaged or not isinstance(self._ranks.sessions[0], protocols.Tunes):
            return
        launch = self._ranks.split(op, case, inputs, DividedBuffer(op.output.shape(case.params), case.dtype))
        for rank in launch.ranks:
            enter(rank.session, rank.send)
            if isinstance(rank.session, protocols.Tunes):
                rank.session.tune(op, rank.case, rank.buffers)

    def compile(
        self, op: Op, case: Case, inputs: Sequence[DividedBuffer], output: DividedBuffer
    ) -> SharedLaunch | ParallelLaunch:
        """Return a launch with each rank's share of the op, which is built in the session of that rank."""
        if op.averaged:
            return self._train(op, case, inputs, output)
        launch = self._ranks.split(op, case, inputs, output)
        launches = [enter(rank.session, rank.compile) for rank in launch.ranks]
        launch.kernel_hash, launch.kernel_name = launches[0].kernel_hash, launches[0].kernel_name
        launch.staging = launch.ranks[0].way.staging
        return launch

    def _train(self, op: Op, case: Case, inputs: Sequence[DividedBuffer], output: Any) -> ParallelLaunch:
        """Return the launch of a training. The same buffers give the same launch."""
        key = tuple(map(id, (*inputs, *each(output))))
        if key not in self._trainings:
            self._trainings[key] = ParallelLaunch(op, case, inputs, output, self._ranks.sessions, self._links)
        return self._trainings[key]

    def run(self, launch: Launch, repeat: int = 1) -> None:
        """Run the launch on all ranks. An empty launch does nothing."""
        if isinstance(launch, SharedLaunch):
            self._ranks.run(launch, repeat)
        elif isinstance(launch, ParallelLaunch):
            launch.run(repeat)

    def sync(self) -> None:
        with self._links.guard():
            self._links.sync()
        if self._opened is not None:
            self._opened.each(lambda session: session.sync())

    def sides(
        self, launch: SharedLaunch | ParallelLaunch, launches: int, host_output: Array | None
    ) -> dict[str, float]:
        """Return the seconds per launch that each rank takes for its share when it runs alone, by the name
        `rankN_s`. The data is already on the devices, and `host_output` is ignored. `launches` is the number of
        launches in a sample."""
        self.run(launch)
        self.sync()
        times = {}
        ranks: Sequence[DeviceShare | Rank] = launch.ranks
        for number, rank in enumerate(ranks):
            rank.session.enter()
            start = self.clock()
            rank.run(launches)
            rank.session.sync()
            times[f"rank{number}_s"] = (self.clock() - start) / launches
        return times

    def empty_launch(self) -> Launch:
        """Return a launch that does nothing. The cost of a rank's own launch is measured on its own device."""
        return Launch()

    def flush(self) -> None:
        self._ranks.each(lambda session: session.flush())

    def clock(self) -> float:
        return self._links.clock() if self._opened is None else self._opened.sessions[0].clock()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        with contextlib.suppress(Exception):
            self._links.close()


class GroupBackend(Backend):
    """The backend of device groups, whose members are devices of other backends. The name `group` alone selects
    groups of GPUs."""

    name = DEVICE_GROUP
    implementations: tuple[Implementation, ...] = ("tuned",)

    def __init__(self) -> None:
        self.default_devices: tuple[str, ...] = ()

    def devices(self) -> list[Device]:
        """Return all groups of GPUs of the built-in backends, including hidden ones, and the groups of ranks in
        host memory. Sets `default_devices` to the pairs, the first 4, 8, ... GPUs and all GPUs; other groups
        are used only on request."""
        device_groups = [
            device_group for name in backends.built_in() for device_group in make_device_groups(_members(name))
        ]
        ranks = {device_group.id: group_ranks(device_group.id) for device_group in device_groups}
        firsts = {len(numbers): id for id, numbers in reversed(ranks.items())}
        usual = [firsts.get(size) for size in group_sizes(max(firsts, default=0))]
        self.default_devices = tuple(
            id.removeprefix(f"{DEVICE_GROUP}:")
            for id, numbers in ranks.items()
            if id in usual or len(numbers) == 2
        )
        for name in backends.hidden_names():
            device_groups += make_device_groups(_members(name))
            device_groups += [_name_device_group(name, word) for word in backends.load(name).device_groups]
        return device_groups + [_software(count) for count in _SOFTWARE]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> GroupSession:
        """Return a session of the device group with this id. Raises BackendUnavailable if there is no such
        group, or if its backend joins no devices."""
        _, inner, word = device_id.split(":")
        backend, ordinals = backends.load(inner), group_ranks(device_id)
        own = {ordinal(member.id): member for member in _members(inner)}
        listed = {group.id: group for group in self.devices()}
        if device_id not in listed and own.keys() >= {*ordinals}:
            listed[device_id] = make_device_group([own[number] for number in ordinals])
        if device_id not in listed:
            raise BackendUnavailable(f"there is no device {device_id}")
        device = listed[device_id]
        named = "" if word[0].isdecimal() else word
        if not isinstance(backend, Joins):
            raise BackendUnavailable(f"{inner} joins no devices to a device group")

        def members() -> list[Session]:
            return backend.members(ordinals, threads, autotune=autotune)

        return GroupSession(device, backend.links(ordinals, named), members)


def _members(name: str) -> list[Device]:
    backend = backends.load(name)
    with contextlib.suppress(BackendUnavailable):
        return backend.joinable() if isinstance(backend, Joins) else []
    return []


def make_device_groups(members: Sequence[Device]) -> list[Device]:
    """Return the groups of these GPUs of one backend: all ordered pairs, then choices of three or more. With
    more than eight GPUs, these have only GPUs that follow each other. A group's id is made of the numbers in
    the ids of its GPUs."""
    # A position in `members` is no number: a GPU that does not answer is missing there.
    count = len(members)
    chosen: list[tuple[int, ...]] = [*permutations(range(count), 2)]
    chosen.sort(key=lambda pair: (pair[0] > pair[1], pair))
    for size in range(3, count + 1):
        choices = combinations(range(count), size)
        near = (tuple(range(i, i + size)) for i in range(count - size + 1))
        chosen.extend(choices if count <= _FEW else near)
    return [make_device_group([members[rank] for rank in ranks]) for ranks in chosen]


def _name_device_group(backend: str, word: str) -> Device:
    """Return a device group whose id has a word in place of the ranks."""
    return Device(
        id=f"{DEVICE_GROUP}:{backend}:{word}", backend=DEVICE_GROUP, kind="gpu", api=backend, name=word
    )


def _software(count: str) -> Device:
    return replace(
        _name_device_group("numpy", count), kind="software", api="host", name=f"{count} x host memory"
    )


BACKEND = GroupBackend()


Result = TypeVar("Result")

# The number of launches that are enqueued on one rank before the next rank gets as many. With this number, no queue
# runs empty or fills up.
CHUNK = 8


def shares(units: int, ranks: int) -> list[tuple[int, int]]:
    """Return the first unit of each rank's share and the unit after its last. An op has `units` units, counted from
    0. The shares are multiples of a step (`granule`) and as equal as possible; the last one also gets the rest.
    Raises ValueError if there are fewer steps than ranks."""
    step = granule(units)
    whole = units // step
    if whole < ranks:
        raise ValueError(f"{units} units are too few for {ranks} ranks")
    edges = [whole * rank // ranks * step for rank in range(ranks)] + [units]
    return list(pairwise(edges))


def enter(session: Session, work: Callable[[], Result]) -> Result:
    """Let this thread drive the session, do `work` and return its result."""
    session.enter()
    return work()


class SharedLaunch(DividedLaunch):
    """The launch of an op whose work is shared out among all ranks."""

    ranks: Sequence[DeviceShare] = ()  # share of each rank


class Ranks:
    """The sessions of the members of a device group. For large copies, the caller's thread serves the first
    session, and each other session has a thread of its own."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)
        self._threads = [CompanionThread(session) for session in self.sessions[1:]]

    def split(self, op: Op, case: Case, inputs: Sequence[DividedBuffer], output: DividedBuffer) -> SharedLaunch:
        """Return a launch in which each rank has its share of the op. The launch is not compiled yet."""
        launch = SharedLaunch(op, case, inputs, output)
        places = shares(op.units(case.params), len(self.sessions))
        launch.ranks = [
            enter(session, partial(DeviceShare, launch, session, *place))
            for session, place in zip(self.sessions, places, strict=True)
        ]
        return launch

    def run(self, launch: SharedLaunch, repeat: int) -> None:
        """Send data that is out of date to the ranks, and enqueue the launch on all of them `repeat` times."""
        if launch.waits:
            self.send(launch)
            launch.begin()
        for start in range(0, repeat, CHUNK):
            for rank in launch.ranks:
                rank.session.enter()
                rank.session.run(rank.launch, min(CHUNK, repeat - start))

    def send(self, launch: SharedLaunch) -> None:
        """Send each rank its part of the newly uploaded operands."""
        works = [partial(enter, rank.session, rank.send) for rank in launch.ranks]
        self._at_once(works, sum(rank.sent_bytes for rank in launch.ranks))

    def fetch(self, launch: SharedLaunch, host: Array) -> None:
        """Copy the result of a launch to `host`. The launch must have run."""
        works = [partial(enter, rank.session, partial(rank.fetch, host)) for rank in launch.ranks]
        self._at_once(works, host.nbytes)
        if launch.split.join:
            host[...] = reduce(partial(join_partials, launch.split), [rank.partial for rank in launch.ranks])

    def each(self, work: Callable[[Session], None]) -> None:
        """Call `work` with the session of each member in turn."""
        for session in self.sessions:
            enter(session, partial(work, session))

    def close(self) -> None:
        """End all threads and sessions, even if closing one of them fails."""
        for thread in self._threads:
            thread.close()
        for session in self.sessions:
            with contextlib.suppress(Exception):
                enter(session, session.close)

    def _at_once(self, works: Sequence[Work], size: int) -> None:
        """Do the works of all ranks at the same time, or in turn if they move few bytes (`size`)."""
        # Waking other threads would take longer.
        if size <= INLINE_BYTES:
            for work in works:
                work()
        else:
            self._nest(works, 0)

    def _nest(self, works: Sequence[Work], rank: int) -> None:
        """Do the works from index `rank` on at the same time, one of them in this thread."""
        if rank == len(works) - 1:
            works[rank]()
            return
        other = rank + 1
        self._threads[rank].both(lambda: self._nest(works, other), works[rank])


# ---------------------------------------------------------------- one collective, checked and timed

GUARD = 1024  # the number of elements before and after each output that must not change
PIECE = 1 << 24
FETCHED_BYTES = 64 << 20
# The number of exchanges before the first timing, because the first use of a page or of a library is slow.
WARM_UP = 5


class CollectiveTimer(Timed):
    """The timer of one collective. Raises Unsupported if the session is no device group, if the op is no
    collective, or if the library for collectives is missing."""

    staging: Staging = "pageable"

    def __init__(self, session: Session, op: Op, case: Case, opening: object = None) -> None:
        exchange = op.collective
        if not isinstance(session, DeviceGroup) or exchange is None:
            raise Unsupported(f"{session.device.id} is no device group", reason="no-implementation")
        self.session: Session = session
        self.case = case
        self._links: Links = session.links()
        self.exchange: Collective = exchange
        self.kernel = self._links.copier if exchange.pairs else self._links.library
        self._count = case.params["n"] // WIDTH
        self._sent: list[Array] = []
        self.held: list[Array] = []
        self.got: list[Array] = []

    def seconds(self, repeat: int) -> float:
        """Return the wall seconds per exchange in one sample of `repeat` exchanges, with a wait for all ranks
        after each."""
        links, exchange, sent, got = self._links, self.exchange.exchange, self._sent, self.got
        clock = links.clock
        with links.guard():
            start = clock()
            for _ in range(repeat):
                exchange(links, sent, got)
                links.sync()
            return (clock() - start) / repeat

    def verify(self) -> Check:
        """Fill the outputs with NaN, make an exchange, and compare every element on every rank that receives
        data. Raises Wrong if an element differs, or if something was written beside an output."""
        fresh = not self._sent
        if fresh:
            self._prepare()
        for rank, held in enumerate(self.held):
            with self._links.on(rank):
                held.fill(float("nan"))
        self.session.sync()
        self.seconds(WARM_UP if fresh else 1)
        receivers = [target for _, target in self.exchange.pairs] or range(self._links.ranks)
        for rank in receivers:
            with self._links.on(rank):
                self._compare(rank)
        return Check(ok=True, max_error=0.0, limit=0.0, scale="value")

    def release(self) -> None:
        self._sent, self.held, self.got = [], [], []

    def _prepare(self) -> None:
        links, count, ranks = self._links, self._count, self._links.ranks
        sends, gets = self.exchange.sends(count, ranks), self.exchange.gets(count, ranks)
        for rank in range(ranks):
            sent, held = links.array(rank, sends), links.array(rank, gets + 2 * GUARD)
            with links.on(rank):
                for start in range(0, sends, PIECE):
                    i = links.xp.arange(start, min(start + PIECE, sends), dtype="uint32")
                    sent[start : start + PIECE] = value(links.xp, rank, i)
            self._sent.append(sent)
            self.held.append(held)
            self.got.append(held[GUARD : GUARD + gets])
        self.session.sync()

    def _compare(self, rank: int) -> None:
        """Compare every element that the rank received, or raise Wrong with the first that differs."""
        links, xp, held = self._links, self._links.xp, self.held[rank]
        if held.nbytes <= FETCHED_BYTES:
            xp, held = links.fetch(held)
        got = held[GUARD:-GUARD]
        for guard in (held[:GUARD], held[-GUARD:]):
            if not bool((guard != guard).all()):  # only NaN differs from itself
                raise _wrong(rank, -1)
        part = self._count // links.ranks
        for start in range(0, len(got), PIECE):
            i = xp.arange(start, min(start + PIECE, len(got)), dtype="uint32")
            want = self.exchange.expected(partial(value, xp), rank, links.ranks, i, part)
            differs = got[start : start + PIECE] != want
            if bool(differs.any()):
                raise _wrong(rank, start + int(differs.argmax()))


def _wrong(rank: int, element: int) -> Wrong:
    """Return the error for a wrong element of a rank; element -1 is a write outside the buffer."""
    return Wrong(Check(ok=False, max_error=None, limit=0.0, scale="value", index=[rank, element]))
