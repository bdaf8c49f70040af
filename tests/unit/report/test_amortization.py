"""Amortization break-even: from how many calls per transfer the GPU pays, at one size."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.analyse import analyse
from gpubench.analysis.thresholds import amortizations
from gpubench.report.sections.break_even import calls_text
from gpubench.result.run import Parts
from tests.unit.report.builders import case, measured, run_of, skipped

UNSTABLE = (0.5, 0.7, 1.0, 1.0, 1.4, 1.6)
CALLS = 10  # of the builders' transfer-once
TIGHT = (0.999, 1.001, 1.0, 1.0, 0.9995, 1.0005)
ALWAYS, ONCE = (case(regime=regime, device="cupy:0") for regime in ("transfer-always", "transfer-once"))


def gpu(transfer_s, launch_s, *, timed_s=None, alloc_s=0.0, single_s=None, factors=TIGHT, sessions=1):
    """Both transfer regimes of a device on which a copy costs `transfer_s` and a call `launch_s`.

    `timed_s`: what the copies cost when they are timed singly. `single_s`: one call that is waited for.
    """
    timed = transfer_s if timed_s is None else timed_s
    parts = Parts(
        session=0, alloc_s=[alloc_s], upload_s=[timed * 0.6], launch_s=[launch_s / 2], sync_s=[timed * 0.1],
        single_s=[single_s or launch_s], download_s=[timed * 0.3],
    )  # fmt: skip
    kept = {"factors": factors, "sessions": sessions}
    always = measured(ALWAYS, alloc_s + transfer_s + launch_s, parts=parts, **kept)
    return [always, measured(ONCE, (transfer_s + CALLS * launch_s) / CALLS, **kept)]


def amortization(cpu_s, *outcomes, factors=TIGHT, sessions=1):
    cpu = measured(case(), cpu_s, factors=factors, sessions=sessions)
    (row,) = amortizations(analyse(run_of([cpu, *outcomes], sessions=sessions)))
    return row


# 1 ms to copy and 0.1 ms a call, where nothing else is said.
@pytest.mark.parametrize(("cpu_s", "words", "verdict", "calls", "text"), [
    (4e-4, {}, "at", 4, None),  # 1 / (0.4 - 0.1) = 3.33
    (5e-3, {}, "already", 1, "1"), (1e-4 + 1e-3 / 1.5, {}, "at", 2, None), (5e-5, {"sessions": 5}, "never", None, "never"),
    (4e-4, {"alloc_s": 5e-4}, "at", 4, None),  # an allocation is no transfer
    # Past the calls that were measured the parts bear the count out: 20 calls, where ten were measured and are too few.
    *((1.52e-4, {"timed_s": s, "sessions": 5}, verdict, 20 if verdict == "at" else None, None if verdict == "at" else "> 10")
      for s, verdict in ((1.0e-3, "at"), (0.95e-3, "at"), (1.2e-3, "beyond"), (0.8e-3, "beyond"))),
    # Up to them nothing has to: four calls lie between one and ten.
    (4e-4, {"timed_s": 0.5e-3}, "at", 4, None), (4e-4, {"timed_s": 2e-3}, "at", 4, None),
    # Never stands whatever the parts leave open: spread over nine calls it cannot make up for a call that is too slow.
    (5e-5, {"timed_s": 1.2e-3, "sessions": 5}, "never", None, "never"), (9.9e-5, {"timed_s": 1.2e-3}, "beyond", None, "> 10"),
    # An unstable side gives the count of its interval, and one that ends before it matters is told.
    (1.9e-4, {"factors": UNSTABLE}, "at", 11, None), (1e-2, {"factors": UNSTABLE}, "already", 1, "1"),
])  # fmt: skip
def test_the_count_is_what_the_costs_say(cpu_s, words, verdict, calls, text):
    row = amortization(cpu_s, *gpu(1e-3, 1e-4, **words), sessions=words.get("sessions", 1))
    assert (row.verdict, row.reason, row.shared_by) == (verdict, None, CALLS)
    assert row.calls == (calls if "factors" not in words or calls == 1 else row.calls)
    if calls is None:
        assert verdict == "beyond" or (row.lo, row.hi) == (None, None)
    elif "factors" not in words:
        assert row.lo <= calls <= row.hi
        assert (row.transfer_s, row.launch_s) == (pytest.approx(1e-3, rel=0.01), pytest.approx(1e-4, rel=0.02))
    assert text is None or calls_text(row) == text


def test_a_fortieth_of_the_counts_lies_beyond_each_end():
    row = amortization(2.2e-4, *gpu(1e-3, 1e-4))
    assert (row.lo, row.calls, row.hi) == (5, 9, 55)


def test_the_fastest_implementation_of_either_side_counts():
    tuned = measured(case(implementation="tuned"), 3.2e-4, factors=TIGHT, sessions=1)
    row = amortization(4e-4, tuned, *gpu(1e-3, 1e-4))
    assert (row.baseline_id, row.cpu_s, row.calls) == (tuned.id, pytest.approx(3.2e-4), 5)
    quicker = [(row, replace(row.case, implementation="tuned")) for row in gpu(0.5e-3, 1e-4)]
    quicker = [replace(row, id=what.id, case=what) for row, what in quicker]
    row = amortization(4e-4, *gpu(1e-3, 1e-4), *quicker)
    assert (row.implementation, row.calls) == ("tuned", 2)


@pytest.mark.parametrize(("cpu_s", "outcomes", "verdict", "reason"), [
    # A transfer of 1 ms beside calls of 5 ms: a fifth of the transfer is 3 % of the whole, whose parts add up.
    (5.4e-3, gpu(1e-3, 5e-3, timed_s=1.08e-3), "at", None), (5.4e-3, gpu(1e-3, 5e-3, timed_s=1.2e-3), "undecided", "parts-differ"),
    # The copies agree; but what is said of the kernel cannot be, and so nothing is built on the allocation either.
    (2e-4, gpu(1e-3, 1e-4, alloc_s=1e-5, single_s=2.1e-4), "at", None),
    (2e-4, gpu(1e-3, 1e-4, alloc_s=1e-5, single_s=6.1e-4), "undecided", "parts-differ"),
    # Without parts there is nothing to check against: about ten calls, whose interval ends past those and begins before.
    (2e-4, [replace(row, parts=[]) for row in gpu(1e-3, 1e-4)], "undecided", "no-parts"),
    (4e-4, [replace(row, parts=[]) for row in gpu(1e-3, 1e-4)], "at", None),
])  # fmt: skip
def test_a_count_is_withheld_where_parts_miss_the_whole(cpu_s, outcomes, verdict, reason):
    row = amortization(cpu_s, *outcomes)
    assert (row.verdict, row.reason) == (verdict, reason)


def test_missing_sides_give_no_row_and_rows_follow_the_selection():
    (always, once), base = gpu(1e-3, 1e-4), measured(case(), 4e-4)
    for outcomes in ([always, once], [base, always], [base, once], [base, always, skipped(once.case)]):
        assert amortizations(analyse(run_of(outcomes))) == ()
    run = run_of([base, always, once])
    for regime, count in (("resident", 0), ("transfer-once", 1)):
        assert len(amortizations(analyse(run, keep=lambda what, regime=regime: what.regime == regime))) == count
