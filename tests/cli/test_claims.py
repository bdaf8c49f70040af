"""`run --ops claims`: one command measures what a table of claims is about."""

import json

import pytest
from msgspec.structs import replace

from gpubench.analysis import claims as table
from gpubench.cli.request import ClaimPlan
from gpubench.result.case import parse_case_id, selector
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
