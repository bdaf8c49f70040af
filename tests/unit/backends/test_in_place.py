"""Which host memory a device of CUDA computes in, told without one."""

import contextlib
from types import SimpleNamespace

import pytest

from gpubench.backends.cupy import memory as cuda_memory
from gpubench.base.errors import Unsupported


def cuda(**values):
    """CuPy on a GPU with these attributes."""
    known = {getattr(cuda_memory, name): value for name, value in values.items()}
    runtime = SimpleNamespace(deviceGetAttribute=lambda number, ordinal: known.get(number, 0))
    return SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, MemoryPool=lambda allocator: allocator, malloc_managed="managed")
    )


@pytest.mark.parametrize(
    ("memory", "attributes"), [("mapped", {"CAN_MAP_HOST_MEMORY": 1}), ("managed", {"UNIFIED_ADDRESSING": 1})]
)
def test_cuda_memory_that_a_gpu_lacks_is_refused(monkeypatch, memory, attributes):
    monkeypatch.setattr(cuda_memory, "vendor_errors", contextlib.nullcontext)
    with pytest.raises(Unsupported, match=f"no {memory} memory") as refused:
        cuda_memory.CudaHostMemory(cuda(**attributes), 0, memory)
    assert refused.value.reason == "not-in-place"
    every = cuda(CAN_MAP_HOST_MEMORY=1, UNIFIED_ADDRESSING=1, MANAGED_MEMORY=1)
    cuda_memory.CudaHostMemory(every, 0, memory)


@pytest.mark.parametrize("attribute", ["INTEGRATED", "HOST_PAGE_TABLES", None])
def test_a_gpu_of_the_hosts_memory_is_told_by_its_attributes(attribute):
    def read(number):
        if attribute is None or number not in (cuda_memory.INTEGRATED, cuda_memory.HOST_PAGE_TABLES):
            raise RuntimeError("this runtime knows no such attribute")
        return number == getattr(cuda_memory, attribute)

    assert cuda_memory.is_unified(read) == (attribute is not None)
