"""Calls in place on a real GPU: mapped page-locked memory and managed memory, by CuPy and PyTorch."""

import pytest

from gpubench import backends
from gpubench.base.errors import Unsupported
from tests.in_place import timer_in_place, verify_in_place

pytestmark = pytest.mark.cuda
CASES = [("add", {"n": 1 << 20}), ("sum", {"n": 100_001}), ("matmul", {"n": 257}), ("softmax", {"n": 1000})]


@pytest.fixture(scope="module", params=["cupy:0", "torch:cuda:0"])
def session(request):
    opened = backends.load(request.param.partition(":")[0]).open(request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("memory", ["mapped", "managed"])
@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize(("name", "params"), CASES)
def test_what_is_computed_in_place_is_right(session, memory, implementation, name, params, tmp_path):
    if session.device.backend == "cupy":
        if (name, implementation) != ("matmul", "tuned"):  # that is the library call
            verify_in_place(session, memory, name, params, implementation, tmp_path)
    elif memory == "managed":
        with pytest.raises(Unsupported, match="managed"):
            session.in_place(memory)
    elif implementation == "library":
        verify_in_place(session, memory, name, params, implementation, tmp_path)


def test_data_lies_in_host_memory(session, tmp_path):
    import cupy

    timer = timer_in_place(session, "mapped", "add", {"n": 1 << 20}, "library", tmp_path)
    timer.seconds(1)
    for buffer in (*timer.workspace.buffers, timer.launch.output):
        place = buffer.data.ptr if hasattr(buffer.data, "ptr") else buffer.data_ptr()
        assert cupy.cuda.runtime.pointerGetAttributes(place).hostPointer == place
    timer.workspace.release()
    timer.session.close()
