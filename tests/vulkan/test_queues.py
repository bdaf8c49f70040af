"""The queue of a wgpu device: the same bytes, whether it sleeps or asks."""

import threading

import numpy as np
import pytest
import wgpu

from gpubench import kernels
from gpubench.backends.wgpu import queues
from gpubench.backends.wgpu.queues import vendor_errors
from gpubench.backends.wgpu.transfers import MappedTransfers, staging_buffer
from gpubench.base.errors import BackendError, DeviceLost, DeviceOutOfMemory
from gpubench.result.case import WAITED, Case
from tests.raising import raised

pytestmark = pytest.mark.vulkan

N = 100_003


def queue(session, way):
    return queues.Queue(session.programs.device, queues.library(), asks=way != "sleeps")


@pytest.fixture(params=["sleeps", "asks", "asks in vain"])
def taken(request, session, monkeypatch):
    if request.param == "asks in vain":
        monkeypatch.setattr(queues, "ASK_S", 0.0)
    return queue(session, request.param)


@pytest.mark.parametrize("repeat", [1, 3])
def test_launches_do_their_work(session, taken, repeat):
    op = kernels.load("add")
    case = Case("add", "vector", {"n": N}, "float32", "tuned", WAITED, session.device.id)
    a, b, out = (session.allocate((N,), "float32") for _ in range(3))
    hosts = [np.random.default_rng(seed).standard_normal(N, np.float32) for seed in (1, 2)]
    for buffer, host in zip((a, b), hosts, strict=True):
        session.upload(buffer, host)
    taken.submit(taken.record(session.compile(op, case, (a, b), out), repeat))
    taken.wait()
    got = np.empty(N, np.float32)
    session.download(out, got)
    np.testing.assert_array_equal(got, hosts[0] + hosts[1])
    for buffer in (a, b, out):
        session.free(buffer)


def test_every_byte_goes_up_and_comes_down(session, taken):
    transfers = MappedTransfers(session.programs.device, taken)
    buffer = session.allocate((N,), "float32")
    host, got = np.random.default_rng(3).standard_normal(N, np.float32), np.empty(N, np.float32)
    for _ in range(2):  # the second time the staging buffers are there
        transfers.upload(buffer, host)
        transfers.download(buffer, got)
        np.testing.assert_array_equal(got, host)
        host *= 2
    transfers.close()
    session.free(buffer)


def test_a_mapping_waits_for_the_submission_behind_which_it_stands(session, taken, monkeypatch):
    host, staging = np.arange(4, dtype=np.float32), staging_buffer(session.programs.device, 16, write=False)
    source = session.allocate((4,), "float32")
    session.upload(source, host)
    sent = taken.call([], None, [(source, 0, staging, 0, 16)])
    mapping = queues.Mapping(taken, staging, 16, write=False, behind=sent)
    mapping.sync_wait()
    assert bytes(mapping.memory()) == host.tobytes()
    mapping.close()
    monkeypatch.setattr(taken, "await_mapping", lambda number, behind: False)
    raised(RuntimeError, mapping.sync_wait)


@pytest.mark.parametrize(
    ("kind", "error"), [("GPUOutOfMemoryError", DeviceOutOfMemory), ("GPUInternalError", DeviceLost)]
)
def test_what_wgpu_raises_is_told_by_its_kind(kind, error):
    with pytest.raises(error, match=r"^first$"), vendor_errors():
        raise getattr(wgpu, kind)("first\nsecond")


@pytest.mark.parametrize("well", [True, False])
def test_news_that_another_thread_has_taken_is_waited_for(session, well):
    """Of two threads that wait at once one may be told what the other waits for, and pass it on a little later."""
    native, found = queues.library(), queue(session, "sleeps")
    number, word = 10**9, "Success" if well else "Error"
    status = getattr(native.lib, f"WGPUMapAsyncStatus_{word}")
    given = (status, native.ffi.new("WGPUStringView *")[0], native.ffi.cast("void *", number), native.ffi.NULL)
    late = threading.Timer(0.05, native.mapped, given)
    late.start()
    assert found.await_mapping(number) is well
    late.join()


def test_news_that_never_comes_is_no_mapping(session, monkeypatch):
    monkeypatch.setattr(queues, "TOLD_S", 0.01)
    assert not queue(session, "sleeps").await_mapping(10**9 + 1)


@pytest.mark.parametrize("way", ["sleeps", "asks"])
def test_what_is_wrong_with_commands_is_raised(session, way):
    device, found = session.programs.device, queue(session, way)
    small, large = (device.create_buffer(size=size, usage=wgpu.BufferUsage.COPY_SRC) for size in (16, 64))
    with pytest.raises(BackendError) as caught, vendor_errors():
        found.copy(large, 0, small, 0, 64)  # neither may be written
    assert caught.value.reason == "validation-error"
    with pytest.raises(BackendError), vendor_errors():
        queues.Mapping(found, small, 16, write=False).sync_wait()  # no buffer that the host may map
    found.wait()  # the queue goes on
