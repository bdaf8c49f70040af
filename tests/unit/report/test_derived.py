"""Numbers derived from a run beside its estimates: geometric means, overheads, variants and scatter."""

import json
import math
import random

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse, means
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.samples import components
from gpubench.analysis.winners import evidence
from gpubench.report import render
from gpubench.report.sections.answer import answer_sentences
from tests.unit.report.builders import case, curve, failed, measured, run_of, skipped


def both(gains, *, regime="resident", device="cupy:0", sessions=3):
    """10 ms on the CPU at each size, and the GPU by so much faster."""
    rows = [measured(case(n=n), 1e-2, sessions=sessions) for n in gains]
    return rows + [measured(case(n=n, regime=regime, device=device), 1e-2 / gain, sessions=sessions) for n, gain in gains.items() if gain]  # fmt: skip


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_mean_is_geometric_and_so_are_its_ends(sessions):
    analysis = analyse(run_of(both({64: 2.0, 256: 8.0}, sessions=sessions), sessions=sessions))
    (mean,) = means(analysis)
    rows = [row for row in analysis.speedups if row.headline]
    assert (mean.count, mean.missing, mean.ratio) == (2, (), pytest.approx(4.0, rel=1e-3))
    for end in ("lo", "hi"):
        assert getattr(mean, end) == pytest.approx(math.sqrt(math.prod(getattr(row, end) for row in rows)))


@pytest.mark.parametrize("lost", [skipped, failed, None])
def test_what_a_device_lacks_beside_another_is_listed(lost):
    device = "cupy:1" if lost is None else "cupy:0"
    found = [*both({64: 2.0, 256: None}, device=device)]
    found += [lost(case(n=256, device=device))] if lost else both({64: 2.0, 256: 2.0})[2:]
    rows = {row.device_id: (row.count, row.missing) for row in means(analyse(run_of(found)))}
    assert rows.pop(device) == (1, ("matmul/n=256/float32",))
    assert all(not missing for _, missing in rows.values())


def test_a_size_that_one_regime_alone_has_takes_no_part():
    """A search measures sizes near one regime's break-even: they would pull that mean towards 1."""
    found = [*both({64: 2.0, 100: 2.0, 256: 2.0}), *both({64: 0.5, 256: 0.5}, regime="transfer-always")[2:]]
    rows = {row.regime: row for row in means(analyse(run_of(found)))}
    assert [(row.count, row.missing) for row in rows.values()] == [(2, ())] * 2
    assert math.prod(row.ratio for row in rows.values()) == pytest.approx(1.0, rel=1e-3)


CURVE = curve({64: 0.25, 256: 4.0})
OVERHEADS = [measured(case("upload", 2**20, name, device="cupy:0"), 1e-4) for name in ("library", "tuned")]
VARIANTS = [
    measured(case(n=256, implementation="tuned", variant="naive", device="cupy:0"), 1e-9),
    measured(case(n=256, variant="tf32", device="cupy:0"), 1e-9),
    measured(case(n=256, implementation="tuned", variant="blocked"), 1e-9),
]


@pytest.mark.parametrize("rows", [OVERHEADS, VARIANTS], ids=["overheads", "variants"])
def test_overheads_and_variants_are_compared_with_nothing(rows):
    plain, found = analyse(run_of(CURVE)), analyse(run_of([*CURVE, *rows]))
    for say in (lambda a: a.speedups, lambda a: a.break_even, answer_sentences, evidence):
        assert say(found) == say(plain) != ()
    assert [row.id for row in overheads(found).rows] == [row.id for row in rows if rows is OVERHEADS]
    assert not [row for row in roofline(found).rows if row.case.case.group == "overhead"]


def test_an_empty_launch_is_that_of_the_middle_session():
    """The typical one of a session, the middle one of the sessions; a superseded one does not count."""
    run = run_of(curve({64: 0.25}), sessions=3)
    reported = {"numpy:0": 1e-6, "cupy:0": 8e-6}
    sessions = [
        replace(record, superseded=i == 2, workers=[
            replace(one, overhead_s=[reported[one.device_id] * (1 + i)] * 3 + [1.0]) for one in record.workers
        ])
        for i, record in enumerate(run.sessions)
    ]  # fmt: skip
    found = overheads(analyse(replace(run, sessions=sessions)))
    assert found.empty == pytest.approx({"numpy:0": 1.5e-6, "cupy:0": 12e-6})


# ---------------------------------------------------------------- how far times scatter


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


@pytest.mark.parametrize("levels", [(0.10, 0.10, 0.02), (0.02, 0.15, 0.02)])
def test_each_component_is_what_was_put_in(levels):
    draw = random.Random(1)
    (row,) = components(run_of([scattered(draw, 1e-5, levels=levels, n=n) for n in range(1, 150)], sessions=4))
    assert (row.device_id, row.launches, row.cases) == ("numpy:0", "short", 149)
    assert (row.within_degrees, row.blocks_degrees, row.sessions_degrees) == (149 * 64, 149 * 12, 149 * 3)
    found = (row.sessions, row.blocks, row.within)
    assert found == pytest.approx(levels, rel=0.15, abs=0.015)


def test_devices_and_lengths_stand_apart_and_what_was_not_repeated_is_null():
    draw = random.Random(2)
    short, middle = scattered(draw, 1e-5, sessions=1, blocks=1), scattered(draw, 1e-4, sessions=1, n=65)
    rows = components(run_of([short, middle, scattered(draw, 1e-1, sessions=2, blocks=1, device="cupy:0")]))
    places = [(row.device_id, row.launches) for row in rows]
    assert places == [("cupy:0", "long"), ("numpy:0", "short"), ("numpy:0", "middle")]
    assert [row.blocks is None for row in rows] == [True, True, False]
    assert [row.sessions is None for row in rows] == [False, True, True]


def test_the_section_is_shown_where_it_is_asked_for_and_the_rows_are_in_the_document():
    run = run_of([scattered(random.Random(3), 2e-3)], sessions=4)
    assert "between blocks" in render([run], "plain", sections=["noise"], width=100)
    assert "between blocks" not in render([run], "plain", width=100)
    (row,) = json.loads(render([run], "json"))["noise"]
    assert (row["launches"], row["cases"], row["source"]) == ("long", 1, 0)
