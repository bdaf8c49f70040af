"""wgpu's transfers on a software adapter: every byte, whatever the size and however many threads."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.backends.wgpu import BACKEND
from gpubench.backends.wgpu import transfers as transfer
from gpubench.base.errors import BackendError
from gpubench.measure.worker.pipeline import PipelineTimer
from gpubench.measure.worker.workspace import Workspace, Wrong, gate
from gpubench.result.case import STREAMED, STREAMED_CALLS, Case
from tests.examples import examples

pytestmark = pytest.mark.vulkan
CHUNK, PIECE = 64 << 10, 16 << 10


@pytest.fixture(scope="module")
def session():
    """With small chunks, so that small arrays take many."""
    patch = pytest.MonkeyPatch()
    patch.setattr(transfer, "CHUNK_BYTES", CHUNK)
    patch.setattr(transfer, "PIECE_BYTES", PIECE)
    patch.setattr(transfer, "SMALL_BYTES", 1 << 10)
    patch.setattr(transfer, "copying_threads", lambda: 4)
    device = next(device for device in BACKEND.devices() if device.kind == "software")
    session = BACKEND.open(device.id)
    yield session
    session.close()
    patch.undo()


@pytest.fixture
def way(session):
    way = session.transfers("tuned")
    yield way
    way.use_threads(None)


def random(count):
    return np.random.default_rng(count).integers(0, 255, count, np.uint8)


def allocated(session, count):
    return session.allocate((-(-count // 2),), "float16")


def there_and_back(session, way, counts):
    buffers = [allocated(session, count) for count in counts]
    for buffer, count in zip(buffers, counts, strict=True):
        host = random(count)
        way.upload(buffer, host)
        host[:] = 0  # it was staged: the caller may change it
    for buffer, count in zip(buffers, counts, strict=True):
        host_output = np.zeros(count + 16, np.uint8)
        way.download(buffer, host_output[8 : 8 + count])
        assert (host_output[8 : 8 + count] == random(count)).all()
        assert not host_output[:8].any()
        assert not host_output[8 + count :].any()
        session.free(buffer)


@settings(max_examples=examples(60), deadline=None)
@given(
    counts=st.lists(st.integers(1, 9 * CHUNK) | st.sampled_from([0, CHUNK, 4 * CHUNK, PIECE]), min_size=1, max_size=3),
    threads=st.integers(1, 6),
)  # fmt: skip
def test_what_comes_back_is_what_was_sent(session, counts, threads):
    way = session.transfers("tuned")
    way.use_threads(threads)
    there_and_back(session, way, counts)


def test_a_copy_beyond_the_buffer_is_refused_and_the_next_one_works(session, way):
    small = allocated(session, 2 * CHUNK)
    for _ in range(3):
        with pytest.raises(BackendError):
            way.upload(small, random(6 * CHUNK))
        with pytest.raises(BackendError):
            way.download(small, random(6 * CHUNK))
        there_and_back(session, way, [6 * CHUNK + 1])
    session.free(small)


def test_one_thread_is_the_caller_alone_and_closing_ends_the_others():
    device = next(device for device in BACKEND.devices() if device.kind == "software")

    def copiers():
        return sum(thread.name.startswith("gpubench-block") for thread in threading.enumerate())

    before = copiers()
    session = BACKEND.open(device.id)
    way = session.transfers("tuned")
    size = 2 * transfer.CHUNK_BYTES + 1
    way.use_threads(1)
    there_and_back(session, way, [size])
    assert copiers() == before
    way.use_threads(3)
    there_and_back(session, way, [size])
    assert copiers() == before + 2
    session.close()
    assert copiers() == before


def test_the_plain_calls_move_odd_sizes_too(session):
    there_and_back(session, session.transfers("library"), [1, 3, CHUNK + 5])


@pytest.mark.parametrize("n", [100, 2_000, 100_000])  # by the plain call, on a thread, beside the next upload
def test_calls_in_flight_keep_their_inputs_and_outputs_apart(session, tmp_path, monkeypatch, n):
    op = kernels.load("add")
    case = Case("add", op.group, {"n": n}, "float32", "tuned", STREAMED, session.device.id, STREAMED_CALLS)
    workspace = Workspace(session, op, case, 1, "random", tmp_path)
    timer = PipelineTimer(workspace, case, gate(workspace, case, lambda phase: None).launch, 3)
    timer.verify()
    timer.seconds(2)
    timer.verify()
    assert timer.stage_times(1).keys() == {"upload", "kernel", "download"}
    timer.verify()
    monkeypatch.setattr(timer.sets[1].stream, "upload", lambda buffer, host: None)
    with pytest.raises(Wrong):
        timer.verify()
    timer.release()
