"""The pool and the staged transfers of CUDA, against a stub whose copies happen as late as CUDA allows."""

import contextlib
import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.backends.cupy import memory
from gpubench.base.errors import DeviceOutOfMemory, Unsupported


class OutOfMemoryError(Exception):
    pass


class Stream:
    """Work in order, done when somebody waits for it."""

    ptr = 7

    def __init__(self):
        self.work, self.done = [], 0
        self.lock = threading.RLock()

    def finish(self, until=None):
        with self.lock:
            until = len(self.work) if until is None else until
            while self.done < until:
                self.work[self.done]()
                self.done += 1

    synchronize = finish


class Event:
    def __init__(self, stream):
        self.stream, self.place = stream, 0

    def record(self, stream):
        assert stream is self.stream
        self.place = len(self.stream.work)

    def synchronize(self):
        self.stream.finish(self.place)


class PinnedMemoryPointer(bytearray):
    """What CuPy hands out as page-locked memory."""


class Cupy:
    """Device memory is host memory; page-locked memory is what was asked for as such."""

    def __init__(self, room=1 << 40):
        self.stream, self.room, self.emptied, self.locked = Stream(), room, [], []
        runtime = SimpleNamespace(memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyAsync=self._copy)
        self.cuda = SimpleNamespace(
            runtime=runtime, get_current_stream=lambda: self.stream, alloc_pinned_memory=self._pinned,
            PinnedMemoryPointer=PinnedMemoryPointer, Event=lambda disable_timing: Event(self.stream),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        )  # fmt: skip
        pool = SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: self.emptied.append("device"))
        pinned = SimpleNamespace(free_all_blocks=lambda: self.emptied.append("pinned"))
        self.get_default_memory_pool = lambda: pool
        self.get_default_pinned_memory_pool = lambda: pinned

    def empty(self, shape, dtype):
        made = np.empty(shape, dtype)
        if made.nbytes > self.room:
            self.room += 1  # the second try fails as well
            raise OutOfMemoryError
        return made

    def device(self, count):
        """A buffer as the transfers see it."""
        array = np.full(count, 0xEE, np.uint8)
        return SimpleNamespace(array=array, data=SimpleNamespace(ptr=array.ctypes.data))

    def _pinned(self, size):
        pointer = PinnedMemoryPointer(b"\xdd" * size)
        begin = np.frombuffer(pointer, np.uint8).ctypes.data
        self.locked.append((begin, begin + size, pointer))
        return pointer

    def _is_locked(self, address):
        return any(begin <= address < end for begin, end, _ in self.locked)

    def _copy(self, target, source, size, kind, stream):
        assert stream == self.stream.ptr
        assert kind in (1, 2)
        assert self._is_locked(source if kind == 1 else target), "a copy that is not staged is no DMA"
        self.stream.work.append(lambda: ctypes.memmove(target, source, size))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(memory, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(memory, "PIECE_BYTES", 300)
    monkeypatch.setattr(memory, "copying_threads", lambda: 4)
    monkeypatch.setattr(memory, "vendor_errors", vendor_errors)


def staged(cupy, enter=lambda: None):
    return memory.PinnedTransfers(cupy, memory.PinnedMemory(cupy), enter)


def random(count):
    return np.random.default_rng(count).integers(0, 255, count, np.uint8)


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=4))
def test_what_comes_back_is_what_was_sent_whatever_was_sent_before(counts):
    cupy = Cupy()
    way = staged(cupy)
    buffers = [cupy.device(count) for count in counts]
    for buffer, count in zip(buffers, counts, strict=True):
        host = random(count)
        way.upload(buffer, host)
        host[:] = 0  # it was staged: the caller may change it
    for buffer, count in zip(buffers, counts, strict=True):
        host_output = np.zeros(count, np.uint8)
        way.download(buffer, host_output)
        assert (host_output == random(count)).all()
        assert (buffer.array == random(count)).all()
    way.upload(buffers[0], random(counts[0]) + 1)
    way.close()
    assert (buffers[0].array == random(counts[0]) + 1).all(), "nobody gives up a chunk that is still to be read"


def test_threads_end_although_the_device_is_lost():
    cupy, before = Cupy(), threading.active_count()
    way = staged(cupy)
    way.upload(cupy.device(4000), random(4000))
    assert threading.active_count() > before
    cupy.stream = SimpleNamespace(synchronize=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        way.close()
    assert threading.active_count() == before


def test_every_thread_that_copies_enters_the_device_once():
    """CUDA's current device is the thread's own affair."""
    cupy, entered = Cupy(), []
    way = staged(cupy, lambda: entered.append(threading.get_ident()))
    buffer = cupy.device(9000)  # alive until the late copies into it are made
    for _ in range(20):
        way.upload(buffer, random(9000))
    assert 1 <= len(entered) == len(set(entered)) <= 4
    way.use_threads(1)
    alone = staged(cupy, lambda: entered.append("caller"))
    alone.use_threads(1)
    alone.upload(buffer, random(9000))
    assert entered.count("caller") == 1
    cupy.stream.finish()
    way.close()


def test_page_locked_arrays_go_straight():
    cupy = Cupy()
    way, pinned = staged(cupy), memory.PinnedMemory(cupy)
    buffer, host = cupy.device(4000), pinned.array((10, 100), "float32")
    host[:] = np.arange(1000).reshape(10, 100)
    way.upload(buffer, host)
    assert len(cupy.stream.work) == 1
    host_output = pinned.array((10, 100), "float32")
    way.download(buffer, host_output)
    assert (host_output == host).all()
    assert len(cupy.stream.work) == 2
    number, host_output = cupy.device(4), np.zeros((), np.float32)  # has no dimension to cut
    way.upload(number, np.array(3.5, np.float32))
    way.download(number, host_output)
    assert host_output == 3.5


def take(pool, *shape):
    return pool.ready((shape, "float32")).take()


@contextlib.contextmanager
def vendor_errors():
    try:
        yield
    except OutOfMemoryError as error:
        raise DeviceOutOfMemory(str(error)) from error


def test_a_freed_buffer_is_handed_out_again_and_only_for_its_shape():
    pool = memory.DevicePool(Cupy(), 1 << 40)
    ready = pool.ready(((3, 4), "float32"))
    first, second = ready.take(), ready.take()
    pool.give_back(first)  # as `free` does, without the key
    assert pool.ready(((4, 3), "float32")).take() is not first
    assert pool.ready(((3, 4), "float64")).take() is not first
    assert ready.take() is first
    ready.give_back(second)
    pool.empty()
    third = ready.take()
    assert all(third is not earlier for earlier in (first, second))
    ready.give_back(third)
    assert pool.idle_bytes() == 48  # who had asked before the pool was emptied still gives back to it


def test_idle_memory_is_bounded():
    cupy = Cupy()
    pool = memory.DevicePool(cupy, 16 * 4000)  # at most 4000 bytes idle
    for count in (500, 600, 700, 800):
        pool.give_back(take(pool, count))
        assert pool.idle_bytes() <= 4000 + 4 * count
    assert cupy.emptied
    pool = memory.DevicePool(cupy, 1 << 40)
    pool.give_back(take(pool, memory.KEPT_BYTES // 4 + 1))
    assert pool.idle_bytes() == 0, "a large buffer is left to CuPy"


def test_a_large_workload_keeps_its_memory_from_launch_to_launch():
    """Its buffers lie idle between two transfers: emptying the pool there would time cudaMalloc."""
    cupy, idle = Cupy(), [0]
    emptied = []
    cupy.get_default_memory_pool = lambda: SimpleNamespace(
        free_bytes=lambda: idle[0], free_all_blocks=lambda: (emptied.append(idle[0]), idle.__setitem__(0, 0))
    )
    pool = memory.DevicePool(cupy, 16 * 4000)  # at most 4000 bytes idle
    for _ in range(3):
        for shape in ((2000,), (50, 60)):
            take(pool, *shape)
        idle[0] = 4 * (2000 + 3000)
    assert emptied == []
    take(pool, 2001)
    assert emptied == [20_000]
    take(pool, 2000)  # new again
    idle[0] = 5000
    take(pool, 2000)
    assert emptied == [20_000]


def test_out_of_memory_gives_idle_buffers_back_first():
    cupy = Cupy(room=4000)
    pool = memory.DevicePool(cupy, 1 << 40)
    pool.give_back(take(pool, 10))
    with pytest.raises(DeviceOutOfMemory):
        take(pool, 2000)
    assert (cupy.emptied, pool.idle_bytes()) == (["device"], 0)
    assert take(pool, 10).shape == (10,)


def test_page_locked_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "IDLE_BYTES", 1000)
    cupy = Cupy()
    pinned = memory.PinnedMemory(cupy)
    for _ in range(5):
        pinned.array((100,), "float32")
    assert cupy.emptied == ["pinned"]


def cuda(**values):
    """CuPy on a GPU with these attributes."""
    known = {getattr(memory, name): value for name, value in values.items()}
    runtime = SimpleNamespace(deviceGetAttribute=lambda number, ordinal: known.get(number, 0))
    module = SimpleNamespace(runtime=runtime, MemoryPool=lambda allocator: allocator, malloc_managed="managed")
    return SimpleNamespace(cuda=module)


@pytest.mark.parametrize(("kind", "alone"), [("mapped", "CAN_MAP_HOST_MEMORY"), ("managed", "UNIFIED_ADDRESSING")])  # fmt: skip
def test_memory_that_a_gpu_lacks_is_refused(kind, alone):
    with pytest.raises(Unsupported, match=f"no {kind} memory") as refused:
        memory.CudaHostMemory(cuda(**{alone: 1}), 0, kind)
    assert refused.value.reason == "not-in-place"
    memory.CudaHostMemory(cuda(CAN_MAP_HOST_MEMORY=1, UNIFIED_ADDRESSING=1, MANAGED_MEMORY=1), 0, kind)


@pytest.mark.parametrize("attribute", ["INTEGRATED", "HOST_PAGE_TABLES", None])
def test_a_gpu_of_the_hosts_memory_is_told_by_its_attributes(attribute):
    assert memory.is_unified(lambda number: number == getattr(memory, attribute or "", 0)) == bool(attribute)
