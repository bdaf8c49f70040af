"""Calls in place on a real GPU: mapped page-locked memory and managed memory, by CuPy."""

import pytest

from gpubench import backends
from tests.in_place import timer_in_place, verify_in_place

pytestmark = pytest.mark.cuda
CASES = [("add", {"n": 1 << 20}), ("sum", {"n": 100_001}), ("matmul", {"n": 257}), ("softmax", {"n": 1000})]


@pytest.fixture(scope="module")
def session():
    opened = backends.load("cupy").open("cupy:0")
    yield opened
    opened.close()


@pytest.mark.parametrize("memory", ["mapped", "managed"])
@pytest.mark.parametrize("implementation", ["library", "tuned"])
@pytest.mark.parametrize(("name", "params"), CASES)
def test_what_is_computed_in_place_is_right(session, memory, implementation, name, params, tmp_path):
    if (name, implementation) != ("matmul", "tuned"):  # that is the library call
        verify_in_place(session, memory, name, params, implementation, tmp_path)


def test_data_lies_in_host_memory(session, tmp_path):
    import cupy

    timer = timer_in_place(session, "mapped", "add", {"n": 1 << 20}, "library", tmp_path)
    timer.seconds(1)
    for buffer in (*timer.workspace.buffers, timer.launch.output):
        assert cupy.cuda.runtime.pointerGetAttributes(buffer.data.ptr).hostPointer == buffer.data.ptr
    timer.workspace.release()
    timer.session.close()
