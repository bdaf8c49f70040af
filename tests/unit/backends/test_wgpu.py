"""wgpu-native by what it is told: chunks that take turns in staging buffers, streams, compute passes and waits."""

import contextlib
import gc
import threading
import weakref
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.wgpu import queues, transfers
from gpubench.backends.wgpu.programs import FIRST_STEPS, SLICE, STEPS, Programs, WgpuLaunch, differing, encode
from gpubench.backends.wgpu.queues import Library, Queue
from gpubench.backends.wgpu.transfers import ChunkPipeline
from gpubench.result.case import Case
from tests.shapes import H200


class Lane:
    """Staging buffers of one direction, each unmapped, asked for or mapped; `to` the device or from it."""

    def __init__(self, device, chunk, *, to, fails=None):
        self.device, self.chunk, self.to, self.fails = device, chunk, to, fails or (lambda step, start: None)
        self.memory, self.state, self.threads = {}, {}, set()
        self.lock, self.call = threading.Lock(), threading.Lock()

    def _step(self, turn, was, becomes):
        with self.lock:
            assert self.state.get(turn, "unmapped") == was, f"{turn} is {self.state.get(turn)}, not {was}"
            self.state[turn] = becomes
            self.threads.add(threading.get_ident())

    @contextlib.contextmanager
    def alone(self):
        assert self.call.acquire(blocking=False), "two threads at once"
        try:
            yield
        finally:
            self.call.release()

    def ask(self, turn, start, size):
        with self.alone():
            self._step(turn, "unmapped", "asked")
            self.fails("ask", start)
        memory, lane = self.memory.setdefault(turn, np.zeros(self.chunk, np.uint8)), self

        class Asked:
            def sync_wait(self):
                lane.fails("wait", start)
                if not lane.to:
                    memory[:size] = lane.device[start : start + size]
                lane._step(turn, "asked", "mapped")

            def memory(self):
                with lane.alone():
                    assert lane.state[turn] == "mapped"
                    return memory[:size]

        return Asked()

    def close(self, turn, start, size):
        with self.alone():
            self.fails("close", start)
            if self.to:
                self.device[start : start + size] = self.memory[turn][:size]
            self.memory[turn][:] = 0xEE  # nobody may look at it any longer
            self._step(turn, "mapped", "unmapped")


def move(lane, host, *, chunk, piece, buffers, threads):
    turns, team = ChunkPipeline(lane, host.size, chunk, buffers), BlockThreads(threads)

    def copy(mapped, inside, outside):
        assert mapped[inside].size == outside.stop - outside.start
        if lane.to:
            mapped[inside] = host[outside]
        else:
            host[outside] = mapped[inside]

    try:
        team.run(lambda start, stop: turns.copy(start, stop, copy), host.size, piece)
    finally:
        team.close()


@given(
    count=st.integers(1, 5000), piece=st.integers(8, 300), pieces=st.integers(1, 5), buffers=st.integers(2, 4),
    threads=st.integers(1, 6), to=st.booleans(),
)  # fmt: skip
def test_every_byte_arrives_and_every_buffer_is_left_unmapped(count, piece, pieces, buffers, threads, to):
    sent = np.random.default_rng(count).integers(0, 255, count, np.uint8)
    device, host = (np.zeros_like(sent), sent) if to else (sent, np.zeros_like(sent))
    lane = Lane(device, piece * pieces, to=to)
    move(lane, host, chunk=piece * pieces, piece=piece, buffers=buffers, threads=threads)
    assert (device == host).all()
    assert [*lane.state.values()] == ["unmapped"] * min(buffers, -(-count // (piece * pieces)))
    assert len(lane.threads) <= threads


def move_ones(threads, step=None, at=None):
    """Move 4000 ones to a device, of which this step fails at this place; return what the device holds."""

    def fails(now, start):
        if (now, start) == (step, at):
            raise LookupError(f"{step} {at}")

    lane = Lane(np.zeros(4000, np.uint8), 400, to=True, fails=fails)
    move(lane, np.ones(4000, np.uint8), chunk=400, piece=100, buffers=2, threads=threads)
    return lane.device


@pytest.mark.parametrize("step", ["ask", "wait", "close"])
@pytest.mark.parametrize("at", [0, 1200])
@pytest.mark.parametrize("threads", [1, 4])
def test_one_that_fails_lets_no_other_wait_for_ever(step, at, threads):
    with pytest.raises(LookupError, match=f"{step} {at}"):
        move_ones(threads, step, at)
    assert move_ones(threads).all()


def test_a_chunk_that_ends_beside_a_failure_hides_it_from_nobody(monkeypatch):
    """A state may come true between the question whether it has and the failure's word to those who wait for it."""

    class Late(transfers.Future):
        def done(self):
            return False

    monkeypatch.setattr(transfers, "Future", Late)
    with pytest.raises(LookupError, match="ask 1200"):
        move_ones(4, "ask", 1200)


def test_the_next_chunk_is_on_its_way_while_one_is_copied():
    """A device that moves nothing but what is waited for would be idle during every copy."""
    seen, lane = [], Lane(np.zeros(1200, np.uint8), 400, to=False)
    turns = ChunkPipeline(lane, 1200, 400, 2)
    for start in range(0, 1200, 100):
        turns.copy(start, start + 100, lambda mapped, inside, outside: seen.append(sorted(lane.state.values())))
    assert seen == [["asked", "mapped"]] * 8 + [["mapped", "unmapped"]] * 4


class Staging:
    """A buffer as a stream sees it: bytes, mapped or not."""

    def __init__(self, size, usage=None):
        self.array, self.size, self.mapped, self.alive = np.zeros(size, np.uint8), size, False, True

    def destroy(self):
        self.alive = False


def test_the_staging_buffers_of_a_direction_are_made_once_and_destroyed(monkeypatch):
    made = []
    device = SimpleNamespace(create_buffer=lambda size, usage: made.append(Staging(size)) or made[-1])
    monkeypatch.setattr(transfers, "Mapping", Mapped)
    lane = transfers.Lane(device, SimpleNamespace(copy=lambda *_: None), 64, write=False)
    for turn in (0, 1, 0):
        lane.ask(turn, 0, 64)
        lane.close(turn, 0, 64)
    lane.destroy()
    assert [(staging.size, staging.alive) for staging in made] == [(64, False)] * 2


class Mapped:
    """A mapping that is there at once."""

    def __init__(self, queue, staging, size, *, write, behind=None):
        assert not staging.mapped
        self.staging, self.size, staging.mapped = staging, size, True

    def sync_wait(self):
        assert self.staging.mapped

    def memory(self):
        return self.staging.array[: self.size]

    def close(self):
        self.staging.mapped = False


def submit(first, launch, last):
    """Do what a call enqueues: a queue that never waits."""
    for copies, then in ((first, launch), (last, None)):
        for source, source_at, target, target_at, size in copies:
            assert {source.mapped, target.mapped} == {False}, "no command may use what the host touches"
            target.array[target_at : target_at + size] = source.array[source_at : source_at + size]
        if then is not None:
            then()


@pytest.mark.parametrize("count", [65_536, 65_540, 2 << 20, (2 << 20) + 4])
def test_a_stream_moves_every_byte_of_every_call_and_ends_with_its_thread(count, monkeypatch):
    made, calls, before = [], [], threading.active_count()
    monkeypatch.setattr(transfers, "Mapping", Mapped)
    device = SimpleNamespace(create_buffer=lambda size, usage: made.append(Staging(size)) or made[-1])
    buffer, moved = Staging(-(-count // 4) * 4), []

    def upload(to, host):
        to.array[: host.nbytes] = host

    def move(target, source):
        moved.append(threading.current_thread() is threading.main_thread())
        target[:] = source

    way = SimpleNamespace(upload=upload, move=move, send=lambda: None, unsent=True)
    queue = SimpleNamespace(call=lambda *work: calls.append(submit(*work)), wait=lambda: None)
    stream = transfers.StagedStream(device, queue, way)
    sent = [np.random.default_rng(seed).integers(0, 100, count, np.uint8) for seed in range(3)]
    found = [np.zeros_like(host) for host in sent]
    for host, output in zip(sent, found, strict=True):
        with stream.on():
            stream.upload(buffer, host)
            stream.run(lambda: np.add(buffer.array, 1, out=buffer.array))
            stream.download(buffer, output)
    stream.wait()
    assert all((output == host + 1).all() for host, output in zip(sent, found, strict=True))
    large = count > 65_536
    assert (len(made), way.unsent, all(staging.alive for staging in made)) == (1 + large, False, True)
    assert moved.count(False) == (3 if count > 2 << 20 else 0), "of long downloads a thread takes care"
    stream.close()
    assert (threading.active_count(), any(staging.alive for staging in made)) == (before, False)
    with stream.on():
        pass
    assert len(calls) == 3, "where nothing is asked for nothing is sent"


# ---------------------------------------------------------------------- what a compute pass is told


LIBRARY = SimpleNamespace(
    wgpuComputePassEncoderSetPipeline=lambda own, pipeline: own.append(("pipeline", pipeline)),
    wgpuComputePassEncoderSetBindGroup=lambda own, index, group, count, offsets: own.append(
        ("group", index, group)
    ),
    wgpuComputePassEncoderDispatchWorkgroups=lambda own, *grid: own.append(("dispatch", *grid)),
)


def step(name: str, *, bound: bool = True):
    pipeline, group = (SimpleNamespace(_internal=text) for text in (name, f"group {name}"))
    return pipeline, group if bound else None, (1, 2, 3)


def device_of(**calls):
    return SimpleNamespace(_internal=None, queue=SimpleNamespace(_internal=None), **calls)


def test_a_pass_over_words_has_groups_in_one_dimension_for_each_binding():
    passes = differing(3 * 2**20, msgspec.structs.replace(H200, max_binding_bytes=2**20)).passes
    assert [step.grid[1:] for step in passes] == [(1, 1)] * 3
    assert [step.windows["a"] for step in passes] == [(i * 2**20, 2**20) for i in range(3)]


def test_every_step_is_dispatched_as_often_as_it_is_launched():
    """One that repeats is bound once."""
    alone, several = [], []
    encode(alone, WgpuLaunch([step("a")], "output", None), 3, (LIBRARY, None))
    assert alone == [("pipeline", "a"), ("group", 0, "group a"), *[("dispatch", 1, 2, 3)] * 3]
    encode(several, WgpuLaunch([step("a", bound=False), step("b")], "output", None), 2, (LIBRARY, None))
    turn = [("pipeline", "a"), alone[-1], ("pipeline", "b"), ("group", 0, "group b"), alone[-1]]
    assert several == turn * 2
    own, library = [], Library(LIBRARY, None, SimpleNamespace(NULL=None), None, None)
    queue = Queue(device_of(), library, asks=False)
    queue.encode(SimpleNamespace(_internal=own), WgpuLaunch([step("a")], "output", None), 2)
    assert own == [("pipeline", "a"), ("group", 0, "group a"), *[("dispatch", 1, 2, 3)] * 2]


def test_a_candidate_that_was_chosen_replaces_the_launches_of_another(monkeypatch):
    programs, op = Programs(None, H200), kernels.load("matmul")
    case = Case("matmul", "matrix", {"n": 512}, "float32", "tuned", "resident", "wgpu:0")
    first, other = (candidate.name for candidate in programs.candidates(op, case)[:2])
    monkeypatch.setattr(programs, "steps", lambda program, *_: list(program.passes))

    def launch():
        return programs.launch(op, case, ["a", "b"], "out")

    default, has_choice = launch(), programs.has_choice(case)
    assert (default.kernel_name, has_choice, launch() is default) == (first, False, True)
    for name in (other, first):
        programs.choose(case, name)
        chosen = launch()
        programs.choose(case, name)
        assert (chosen.kernel_name, programs.has_choice(case), launch() is chosen) == (name, True, True)
    assert chosen.kernel_hash == default.kernel_hash
    outputs = [{number} for number in range(70)]
    assert [programs.launch(op, case, ["a", "b"], output).output for output in outputs] == outputs
    alive = [weakref.ref(output) for output in outputs]
    outputs.clear()
    gc.collect()
    assert sum(output() is not None for output in alive) <= 64, "a launch that is kept holds its buffers"


@pytest.mark.parametrize(
    ("steps", "sizes"),
    [(1, [1]), (STEPS, [STEPS]), (STEPS + 1, [FIRST_STEPS, STEPS + 1 - FIRST_STEPS]),
     (FIRST_STEPS + 2 * STEPS, [FIRST_STEPS, STEPS, STEPS]),
     (FIRST_STEPS + 2 * STEPS + 1, [FIRST_STEPS, STEPS, STEPS, 1])],
)  # fmt: skip
def test_a_launch_of_many_steps_has_parts(steps, sizes):
    """They do all steps in order, and the first is short."""
    launch = WgpuLaunch([step(str(number)) for number in range(steps)], "output", None)
    parts = launch.parts()
    assert [len(part.steps) for part in parts] == sizes
    assert [one for part in parts for one in part.steps] == launch.steps
    assert launch.parts() is parts or parts == [launch]


def slice_by_slice(part: WgpuLaunch):
    """None behind every slice, then the names of the steps."""
    for _ in part.slices:
        yield None
    yield [vars(pipeline)["_internal"] for one in part.slices for pipeline, _, _ in one.steps]


@pytest.mark.parametrize("slices", [0, 1, 2, 99])
def test_as_many_slices_are_recorded_ahead_as_there_is_time_for(slices):
    """A call records what is left of what was begun; what nobody began it records in parts."""
    names = [str(number) for number in range(2 * SLICE + 1)]
    launch = WgpuLaunch([step(name) for name in names], "output", None)
    assert [launch.record_ahead(slice_by_slice) for _ in range(slices)] == [i < 3 for i in range(slices)]
    assert launch.take_ahead() == (names if slices else None)
    assert launch.take_ahead() is None


@pytest.mark.parametrize("missing", [0, 1])
def test_of_a_long_chain_nothing_counts_but_all_slices(missing):
    """Without them the device begins earlier if the call records part by part."""
    launch = WgpuLaunch([step(str(number)) for number in range(STEPS + 1)], "output", None)
    for _ in range(2):  # what was dropped is begun anew
        assert all(launch.record_ahead(slice_by_slice) for _ in range(len(launch.slices) - missing))
        assert (launch.take_ahead() is None) == bool(missing)


@pytest.mark.parametrize("slices", [1, 3])
def test_what_cannot_be_recorded_is_begun_anew(slices):
    launch = WgpuLaunch([step(str(number)) for number in range(2 * SLICE)], "output", None)

    def fails(part: WgpuLaunch):
        yield None
        raise ValueError("a buffer is gone")

    launch.record_ahead(fails)
    with pytest.raises(ValueError, match="a buffer is gone"):
        launch.take_ahead() if slices == 1 else launch.record_ahead(fails)
    assert launch.take_ahead() is None
    for _ in range(slices):
        launch.record_ahead(slice_by_slice)
    assert launch.take_ahead() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("asks", "well", "asked", "asleep"), [
    (True, True, 1, 0), (True, False, 1, 1), (True, None, 1, 1), (False, None, 0, 1),
])  # fmt: skip
def test_a_wait_asks_for_a_while_and_sleeps_if_it_is_not_told_well(asks, well, asked, asleep, monkeypatch):
    numbers, waits = [], []

    def poll(own, wait, null):
        if well is not None:
            queues.done[numbers[-1]] = well

    monkeypatch.setattr(queues, "ASK_S", 0.01)
    library = SimpleNamespace(
        WGPUCallbackMode_AllowProcessEvents=1, wgpuDevicePoll=poll,
        wgpuQueueOnSubmittedWorkDone=lambda queue, info: numbers.append(info["userdata1"]),
    )  # fmt: skip
    ffi = SimpleNamespace(NULL=None, new=lambda kind, fields: [fields], cast=lambda kind, number: number)
    device = device_of(_poll_wait=lambda: waits.append("asleep"))
    Queue(device, Library(library, None, ffi, None, None), asks=asks).wait()
    assert (len(numbers), len(waits)) == (asked, asleep)
    assert not queues.done.keys() & {*numbers}
