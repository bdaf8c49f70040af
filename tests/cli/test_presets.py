"""`run --ops claims` and `--ops roofline`: each device measures what it can answer, at sizes of its own, and what is given wins."""

import json

import pytest
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.analysis import claims as table
from gpubench.cli.request import ClaimPlan, with_groups
from gpubench.cli.selection import Host, choose_sizes, parse_wish, peak_sizes
from gpubench.result.case import parse_case_id, selector
from gpubench.result.run import Selection
from tests.unit.report.builders import CPU, GPU, SOFTWARE


def test_the_command_measures_every_claim_of_the_built_in_table(in_process):
    devices = "numpy:0,fake:gpu,hybrid:fake:gpu"
    planned = in_process("run", "--ops", "claims", "--devices", devices, "--dry-run", "--json").stdout
    cases = [parse_case_id(text) for text in json.loads(planned)["cases"]]
    for claim in table.load(table.BUILTIN):
        texts = [*claim.cases, *([claim.also] if claim.also else [])]
        for text in texts if claim.device != "software" else ():  # the scripted GPU is none, and has no kernels
            assert "tuned" in text or any(map(selector(text), cases)), f"{claim.claim}: {text}"
    told = in_process("run", "--ops", "claims", "--devices", devices, "--dry-run").stdout.splitlines()
    assert len(told) < 30 < len(cases), "a screen"
    assert any(line.startswith("add/n=1000..2000000 (") and "library@numpy:0" in line for line in told)


@pytest.mark.parametrize(("case_id", "measured"), [
    ("add/n=1024/float32/tuned/resident@numpy:0", True),  # each claim is held against the CPU
    ("matmul/n=1024/float32/tuned/resident-queued@cupy:0", True),
    ("matmul/n=1024/float32/tuned/transfer-always@cupy:0", True),  # the column `copied`
    ("matmul/n=1024/float32/tuned-tiled/resident-queued@wgpu:0", True),  # only WGSL has such a kernel
    ("matmul/n=1024/float32/tuned/resident-queued@wgpu:0", False),  # cupy:0 is the same GPU
    ("add/n=1000/float32/tuned/transfer-always@wgpu:1", True),  # a claim about a software adapter
    ("matmul/n=1024/float32/tuned/resident-queued@wgpu:1", False),
])  # fmt: skip
def test_each_device_measures_what_it_can_answer(case_id, measured):
    wgpu, software = replace(GPU, id="wgpu:0", backend="wgpu"), replace(SOFTWARE, id="wgpu:1", backend="wgpu")
    keep = ClaimPlan(table.load(table.BUILTIN)).keep([CPU, GPU, wgpu, software], None)
    assert keep(parse_case_id(case_id)) is measured


def test_a_table_of_ones_own_is_measured_at_its_sizes(in_process, tmp_path):
    ours = tmp_path / "ours.toml"
    ours.write_text('[[claims]]\nclaim = "a"\ncase = "relu/n=3k/float32"\nspeedup = 2\n')
    words = ("run", "--ops", "claims", "--claims", str(ours), "--devices", "numpy:0", "--dry-run")
    assert {line.split("/")[1] for line in in_process(*words).stdout.splitlines() if "@" in line} == {"n=3072"}
    given = in_process(*words, "--sizes", "4k").stdout
    assert {line.split("/")[1] for line in given.splitlines() if "@" in line} == {"n=4096"}
    ours.write_text('[[claims]]\nclaim = "a"\ncase = "*"\nspeedup = 2\n')
    assert "no claim names an op" in in_process(*words).stderr


@pytest.mark.parametrize(("expected", "sizes"), [
    ({"speedup": 2.0}, [2**24]), ({"break_even": (70_000, 100_000)}, [35_000, 70_000, 100_000, 200_000]),
    # Steps of at most four inside the range, half of it below and twice of it above; none beyond the ladder.
    ({"break_even": (4096, 262_144)}, [2048, 4096, 16384, 65536, 262_144, 524_288]),
    ({"break_even": (4096, 262_145)}, [2048, 4096, 11_585, 32_768, 92_682, 262_145, 524_290]),
    ({"break_even": (1, 2**30)}, [4**i for i in range(5, 13)]),
])  # fmt: skip
def test_a_claim_without_a_size_is_measured_around_what_it_says_or_at_the_largest(expected, sizes):
    assert ClaimPlan([table.Claim(claim="a", cases=("add",), **expected)]).sizes == {"add": sizes}
    named = ClaimPlan([table.Claim(claim="b", cases=("matmul/n=64..256", "relu/n=3k@cupy"), **expected)])
    assert named.sizes == {"matmul": [64, 128, 256], "relu": [3072]}


@pytest.mark.parametrize(("named", "ops", "required", "optional"), [
    ("auto", "add", (), ()), ("numpy,fake?", "add", ("numpy",), ("fake",)), ("numpy,fake?,auto", "add", ("numpy",), ("fake", *(name for name in backends.usual() if name != "numpy"))),
    ("auto", "allreduce", ("group",), ()), ("auto", "add,allreduce", (), (*backends.usual(), "group")), ("numpy", "allreduce", ("numpy",), ()),
])  # fmt: skip
def test_the_backends_of_a_request(named, ops, required, optional):
    request = with_groups(parse_wish(named, None, False), kernels.load_all(ops.split(","))[0])
    assert (request.required, request.optional) == (required, optional)


GIB = 2**30
HOST = Host(64 * GIB, 16)
BIG = replace(GPU, memory_bytes=140 * GIB, usable_bytes=70 * GIB)


def peaks(**more):
    return Selection(ops=["copy", "matmul"], regimes=["resident-queued"], **more)


@pytest.mark.parametrize(("dtype", "device", "host", "copy", "matmul"), [
    ("float64", BIG, HOST, 2**25, (2048, 4096)), ("float32", BIG, HOST, 2**26, (4096, 8192)), ("float16", BIG, HOST, 2**27, (4096, 8192)),
    ("float16", CPU, HOST, 2**27, (512,)),  # without a BLAS
    ("float32", replace(GPU, memory_bytes=GIB, usable_bytes=GIB), HOST, 2**24, (2048, 4096)),
    ("float32", replace(GPU, memory_bytes=None, usable_bytes=None), HOST, 2**26, (2048, 4096)),
    ("float32", CPU, HOST, 2**26, (2048, 4096)), ("float32", CPU, Host(4 * GIB, 2), 2**24, (1024, 2048)),
    ("float32", CPU, Host(None, None), 2**26, (1024, 2048)), ("float32", SOFTWARE, HOST, 2**25, (512,)),
    ("float32", CPU, Host(5 * GIB, 8), 2**26, (2048, 4096)), ("float32", CPU, Host(5 * GIB - 1, 7), 2**24, (1024, 2048)),
    ("float32", replace(GPU, memory_bytes=8 * GIB, usable_bytes=1536 << 20), HOST, 2**26, (4096, 8192)),
    ("float32", replace(GPU, memory_bytes=8 * GIB - 1, usable_bytes=(1536 << 20) - 1), HOST, 2**24, (2048, 4096)),
])  # fmt: skip
def test_a_copy_fits_in_no_cache_and_what_is_small_takes_less(dtype, device, host, copy, matmul):
    assert (peak_sizes("copy", dtype, device, host), peak_sizes("matmul", dtype, device, host)) == (
        (copy,),
        matmul,
    )


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
