"""Geometric means of speedups over a fixed set of cases."""

import math

import pytest

from gpubench.analysis.analyse import analyse, means
from tests.unit.report.builders import CPU, GPU, case, failed, measured, run_of, skipped


def beside(n, seconds, *, regime="resident", device="cupy:0"):
    return measured(case(n=n, regime=regime, device=device), seconds)


def cpu(*sizes):
    return [measured(case(n=n), 1e-2) for n in sizes]


def only(run):
    rows = means(analyse(run))
    assert len(rows) == 1
    return rows[0]


def test_the_mean_is_geometric():
    row = only(run_of([*cpu(64, 256), beside(64, 5e-3), beside(256, 1.25e-3)]))
    assert row.ratio == pytest.approx(4.0, rel=1e-3)  # of 2 and 8
    assert row.lo <= row.ratio <= row.hi
    assert (row.count, row.missing, row.regime, row.device_id) == (2, (), "resident-queued", "cupy:0")


@pytest.mark.parametrize("sessions", [1, 3])
def test_the_interval_is_the_mean_of_the_ends(sessions):
    found = [measured(case(n=n), 1e-2, sessions=sessions) for n in (64, 256)]
    found += [
        measured(case(n=n, device="cupy:0"), s, sessions=sessions) for n, s in ((64, 5e-3), (256, 1.25e-3))
    ]
    analysis = analyse(run_of(found, sessions=sessions))
    (row,) = means(analysis)
    rows = [one for one in analysis.speedups if one.headline]
    for end in ("lo", "hi"):
        ends = [getattr(one, end) for one in rows]
        assert getattr(row, end) == pytest.approx(math.sqrt(math.prod(ends)))
    assert row.lo < row.ratio < row.hi


@pytest.mark.parametrize("lost", [skipped, failed])
def test_what_a_device_lacks_is_listed(lost):
    found = [*cpu(64, 256), beside(64, 5e-3), lost(case(n=256, device="cupy:0"))]
    row = only(run_of(found))
    assert row.count == 1
    assert row.missing == ("matmul/n=256/float32",)


def test_all_devices_are_asked_for_the_same():
    other = "cupy:1"
    devices = (CPU, GPU)
    found = [*cpu(64, 256), beside(64, 5e-3), beside(256, 5e-3), beside(64, 2e-3, device=other)]
    rows = {row.device_id: row for row in means(analyse(run_of(found, devices=devices)))}
    assert rows["cupy:0"].missing == ()
    assert rows[other].missing == ("matmul/n=256/float32",)


def test_a_size_that_one_regime_alone_has_takes_no_part():
    """A search measures sizes near one regime's break-even: they would pull that mean towards 1."""
    found = [*cpu(64, 100, 256)]
    found += [beside(n, 5e-3) for n in (64, 100, 256)]
    found += [beside(n, 2e-2, regime="transfer-always") for n in (64, 256)]
    rows = {row.regime: row for row in means(analyse(run_of(found)))}
    assert {regime: row.count for regime, row in rows.items()} == {"resident-queued": 2, "transfer-always": 2}
    assert all(not row.missing for row in rows.values())
    ratios = rows["resident-queued"].ratio, rows["transfer-always"].ratio
    assert math.prod(ratios) == pytest.approx(1.0, rel=1e-3)  # 2 and 1/2


def test_a_case_without_a_headline_is_missing_not_averaged():
    every = {str(i): "throttled" for i in range(1, 11)}
    throttled = measured(case(n=256, device="cupy:0"), 1e-3, discarded=every, stop="max-samples")
    row = only(run_of([*cpu(64, 256), beside(64, 5e-3), throttled]))
    assert (row.count, row.missing) == (1, ("matmul/n=256/float32",))


def test_no_gpu_no_mean():
    assert means(analyse(run_of(cpu(64, 256), devices=(CPU,)))) == ()
