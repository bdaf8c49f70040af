"""`run --ops roofline`: each device gets sizes of its own, and what is given wins."""

import pytest
from msgspec.structs import replace

from gpubench.cli.selection import Host, choose_sizes, peak_sizes
from gpubench.result.case import parse_case_id
from gpubench.result.run import Selection
from tests.unit.report.builders import CPU, GPU, SOFTWARE

GIB = 2**30
HOST = Host(64 * GIB, 16)
BIG = replace(GPU, memory_bytes=140 * GIB, usable_bytes=70 * GIB)


def peaks(**more):
    return Selection(ops=["copy", "matmul"], regimes=["resident-queued"], **more)


def test_a_large_gpu_copies_what_no_cache_holds():
    for dtype, size in (("float64", 8), ("float32", 4), ("float16", 2)):
        assert peak_sizes("copy", dtype, BIG, HOST) == (256 * 2**20 // size,)
    assert peak_sizes("matmul", "float32", BIG, HOST) == (4096, 8192)
    assert peak_sizes("matmul", "float64", BIG, HOST) == (2048, 4096)
    assert peak_sizes("matmul", "float16", CPU, HOST) == (512,)  # without a BLAS


@pytest.mark.parametrize(("device", "host", "copy", "matmul"), [
    (replace(GPU, memory_bytes=GIB, usable_bytes=GIB), HOST, 2**24, (2048, 4096)),
    (replace(GPU, memory_bytes=None, usable_bytes=None), HOST, 2**26, (2048, 4096)),
    (CPU, HOST, 2**26, (2048, 4096)), (CPU, Host(4 * GIB, 2), 2**24, (1024, 2048)),
    (CPU, Host(None, None), 2**26, (1024, 2048)), (SOFTWARE, HOST, 2**25, (512,)),
])  # fmt: skip
def test_what_is_small_takes_less(device, host, copy, matmul):
    assert peak_sizes("copy", "float32", device, host) == (copy,)
    assert peak_sizes("matmul", "float32", device, host) == matmul


def test_each_device_takes_its_own_of_all_sizes():
    selection, keep = choose_sizes("roofline", peaks(), [CPU, BIG, SOFTWARE], HOST, None)
    assert selection.sizes == {"copy": [2**25, 2**26], "matmul": [512, 2048, 4096, 8192]}
    kept = [
        (device.id, n) for device in (CPU, BIG, SOFTWARE) for n in selection.sizes["matmul"]
        if keep(parse_case_id(f"matmul/n={n}/float32/library/{device.resident_regime}@{device.id}"))
    ]  # fmt: skip
    both = [("numpy:0", 2048), ("numpy:0", 4096), ("cupy:0", 4096), ("cupy:0", 8192)]
    assert kept == [*both, ("wgpu:0", 512)]


def test_given_sizes_and_filters_win():
    asked = peaks(sizes={"matmul": [64]})
    selection, keep = choose_sizes("roofline", asked, [BIG], HOST, lambda case: case.op == "matmul")
    assert selection.sizes == {"copy": [2**26], "matmul": [64]}
    assert keep(parse_case_id("matmul/n=64/float32/library/resident-queued@cupy:0"))
    assert not keep(parse_case_id(f"copy/n={2**26}/float32/library/resident-queued@cupy:0"))
