"""The components of scatter: each level less what the level inside it explains, on runs whose scatter is known."""

import json
import random

import pytest
from msgspec.structs import replace

from gpubench.analysis.samples import components
from gpubench.report import render
from tests.unit.report.builders import case, measured, run_of


def scattered(draw, seconds, *, sessions=4, blocks=4, levels=(0.10, 0.10, 0.02), device="numpy:0", n=64):
    """A case whose sessions, blocks and samples scatter by these standard deviations."""
    what = measured(case("add", n, device=device), seconds, sessions=sessions)
    found = []
    for block in what.blocks:
        session = seconds * draw.lognormvariate(0, levels[0])
        for i in range(blocks):
            level = session * draw.lognormvariate(0, levels[1])
            wall = [level * draw.lognormvariate(0, levels[2]) for _ in range(5)]
            found.append(replace(block, round=i, warmup=0, wall_s=wall))
    return replace(what, blocks=found)


@pytest.mark.parametrize("levels", [(0.10, 0.10, 0.02), (0.02, 0.15, 0.02), (0.10, 0.02, 0.05)])
def test_each_component_is_what_was_put_in(levels):
    draw = random.Random(1)
    (row,) = components(run_of([scattered(draw, 1e-5, levels=levels, n=n) for n in range(1, 150)], sessions=4))
    assert (row.device_id, row.launches, row.cases) == ("numpy:0", "short", 149)
    assert (row.within_degrees, row.blocks_degrees, row.sessions_degrees) == (149 * 64, 149 * 12, 149 * 3)
    found = (row.sessions, row.blocks, row.within)
    assert found == pytest.approx(levels, rel=0.15, abs=0.015)


def test_devices_and_lengths_stand_apart_and_what_was_not_repeated_is_null():
    draw = random.Random(2)
    rows = components(
        run_of(
            [
                scattered(draw, 1e-5, sessions=1, blocks=1),
                scattered(draw, 1e-4, sessions=1, n=65),
                scattered(draw, 1e-1, sessions=2, blocks=1, device="cupy:0"),
            ]
        )
    )
    assert [(row.device_id, row.launches) for row in rows] == [
        ("cupy:0", "long"), ("numpy:0", "short"), ("numpy:0", "middle"),
    ]  # fmt: skip
    assert [row.blocks is None for row in rows] == [True, True, False]
    assert [row.sessions is None for row in rows] == [False, True, True]


def test_the_section_is_shown_where_it_is_asked_for_and_the_rows_are_in_the_document():
    run = run_of([scattered(random.Random(3), 2e-3)], sessions=4)
    assert "between blocks" in render([run], "plain", sections=["noise"], width=100)
    assert "between blocks" not in render([run], "plain", width=100)
    (row,) = json.loads(render([run], "json"))["noise"]
    assert (row["launches"], row["cases"], row["source"]) == ("long", 1, 0)
