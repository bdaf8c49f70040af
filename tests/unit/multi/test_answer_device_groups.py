"""The first lines of runs of device groups alone: what the links carry."""

import itertools
from pathlib import Path

import msgspec
import pytest

from gpubench.base.units import format_rate
from gpubench.multi.collectives import group_sentences
from gpubench.report import analyse_runs, render
from gpubench.result.case import group_id
from tests.unit.multi.samples import GROUP, MIB, PAIR, TEXTS, at_once, exchange
from tests.unit.report.builders import run_of


def screen(outcomes, device_groups, **look):
    devices = [msgspec.structs.replace(GROUP, id=group_id("cupy", ranks)) for ranks in device_groups]
    return render([run_of(outcomes, devices=devices)], "plain", sections=("answer",), **look).splitlines()


def test_of_many_pairs_the_slowest_and_the_fastest_have_a_line():
    pairs = list(itertools.permutations(range(4), 2))
    rates = {pair: 3e11 + 1e9 * place for place, pair in enumerate(pairs)}
    lines = screen([exchange("p2p", MIB, rates[pair], pair) for pair in pairs], pairs)
    slowest, fastest = pairs[0], pairs[-1]
    assert f"p2p {slowest[0]} to {slowest[1]}, slowest of {len(pairs)}" in lines[3]
    assert f"p2p {fastest[0]} to {fastest[1]}, fastest of {len(pairs)}" in lines[4]
    assert format_rate(rates[slowest], "B/s").split()[0] in lines[0]
    assert format_rate(rates[fastest], "B/s") in lines[0]
    assert len(lines) < 12


def test_a_narrow_screen_keeps_the_largest_sizes():
    sizes = [MIB << step for step in range(0, 12, 2)]
    lines = screen([exchange("p2p", MIB, 5e10), exchange("p2p", 256 * MIB, 4e11)], [PAIR])
    assert lines[0] == "Between 2 GPUs: p2p 400 GB/s (busbw at 256 MiB)."
    assert lines[1].startswith("2 x H200")
    assert lines[2].split() == ["busbw", "1", "MiB", "256", "MiB"]
    assert lines[3].split() == ["p2p", "0", "to", "1", "50.0", "GB/s", "400", "GB/s"]
    lines = screen([exchange("p2p", MIB, 5e10), exchange("allreduce", 256 * MIB, 4e11)], [PAIR])
    assert "(busbw at the largest size of each)." in " ".join(lines[:2])
    lines = screen([exchange("allreduce", n, 1e11) for n in sizes], [PAIR], width=44)
    assert all(len(line) <= 44 for line in lines)
    assert "1 GiB" in " ".join(lines[:4])


def test_what_gpus_keep_at_once_is_said_of_the_most_that_ran():
    pair = list(at_once("matmul", 8192, 1e-2, 1.25))
    four = [
        msgspec.structs.replace(times, device_id=f"cupy:{gpu}", gpus=4, phase="together")
        for gpu in range(4)
        for times in pair
        if (times.device_id, times.phase) == ("cupy:0", "alone")
    ]
    alone = [msgspec.structs.replace(times, gpus=1, phase="alone") for times in four]
    run = msgspec.structs.replace(run_of([]), together=[*alone, *pair, *four])
    [analysis] = analyse_runs([run])
    assert group_sentences(analysis) == ("4 GPUs at once keep 100 % of their rates alone (matmul).",)


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name):
    """If a difference is wanted: python -m tests.golden, and look at it."""
    assert TEXTS[name]() == (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")
