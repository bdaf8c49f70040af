"""Amortization break-even: from how many calls per transfer the GPU pays, at one size."""

import itertools
import math
import random
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubench.analysis.analyse import analyse
from gpubench.analysis.thresholds import NO_CALLS_SUFFICE, Costs, amortizations, weight_loads
from gpubench.report import draw_report
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.break_even import calls_text
from gpubench.result.run import Parts
from tests.examples import examples
from tests.unit.report.builders import QUIET, case, measured, run_of, skipped

UNSTABLE = (0.5, 0.7, 1.0, 1.0, 1.4, 1.6)
CALLS = 10  # of the builders' transfer-once
TIGHT = (0.999, 1.001, 1.0, 1.0, 0.9995, 1.0005)


def gpu(transfer_s, launch_s, *, n=1024, timed_s=None, alloc_s=0.0, factors=TIGHT, sessions=1, device="cupy:0"):
    """Both transfer regimes of a device on which a copy costs `transfer_s` and a call `launch_s`.

    `timed_s`: what the copies cost when they are timed singly.
    """
    timed = transfer_s if timed_s is None else timed_s
    parts = Parts(
        session=0, alloc_s=[alloc_s], upload_s=[timed * 0.6], launch_s=[launch_s / 2], sync_s=[timed * 0.1],
        single_s=[launch_s], download_s=[timed * 0.3],
    )  # fmt: skip
    always, once = (case(n=n, regime=regime, device=device) for regime in ("transfer-always", "transfer-once"))
    kept = {"factors": factors, "sessions": sessions}
    return [
        measured(always, alloc_s + transfer_s + launch_s, parts=parts, **kept),
        measured(once, (transfer_s + CALLS * launch_s) / CALLS, **kept),
    ]


def amortization(cpu_s, *outcomes, factors=TIGHT, sessions=1, n=1024):
    found = amortizations(
        analyse(
            run_of(
                [measured(case(n=n), cpu_s, factors=factors, sessions=sessions), *outcomes], sessions=sessions
            )
        )
    )
    assert len(found) == 1
    return found[0]


def test_the_count_is_what_the_costs_say():
    """1 ms to copy, 0.1 ms a call, 0.4 ms on the CPU: 1 / (0.4 - 0.1) = 3.33, so four calls."""
    row = amortization(4e-4, *gpu(1e-3, 1e-4))
    assert (row.verdict, row.calls, row.reason) == ("at", 4, None)
    assert row.lo <= 4 <= row.hi
    assert row.transfer_s == pytest.approx(1e-3, rel=0.01)
    assert row.launch_s == pytest.approx(1e-4, rel=0.02)
    assert row.shared_by == CALLS


def test_one_call_pays_already():
    row = amortization(5e-3, *gpu(1e-3, 1e-4))
    assert (row.verdict, row.calls) == ("already", 1)
    assert calls_text(row) == "1"


def test_it_does_not_pay_already_at_one_and_a_half_calls():
    row = amortization(1e-4 + 1e-3 / 1.5, *gpu(1e-3, 1e-4))
    assert (row.verdict, row.calls) == ("at", 2)


def test_the_fastest_implementation_of_the_cpu_is_what_the_gpu_has_to_beat():
    tuned = measured(case(implementation="tuned"), 3.2e-4, factors=TIGHT, sessions=1)
    row = amortization(4e-4, tuned, *gpu(1e-3, 1e-4))
    assert row.baseline_id == tuned.id
    assert (row.cpu_s, row.calls) == (pytest.approx(3.2e-4), 5)


@pytest.mark.parametrize(("sessions", "ends"), [(4, (3, 5)), (5, (3, 5))])
def test_the_interval_knows_how_far_sessions_differ(sessions, ends):
    """The CPU's sessions scatter by a fifth, without noise inside: 1 / (0.32 - 0.1) = 4.5, 1 / (0.48 - 0.1) = 2.6 calls."""
    exact = (1.0,) * 6
    cpu = measured(case(), 4e-4, factors=exact, sessions=sessions)
    blocks = [
        msgspec.structs.replace(block, wall_s=[v * level for v in block.wall_s])
        for block, level in zip(cpu.blocks, (0.8, 1.2, 1.0, 1.0, 1.0), strict=False)
    ]
    cpu = msgspec.structs.replace(cpu, blocks=blocks)
    outcomes = [cpu, *gpu(1e-3, 1e-4, factors=exact, sessions=sessions)]
    (row,) = amortizations(analyse(run_of(outcomes, sessions=sessions)))
    assert row.calls == 4
    assert (row.lo, row.hi) == ends


def test_never_where_a_call_alone_costs_more_than_the_cpu():
    row = amortization(5e-5, *gpu(1e-3, 1e-4, sessions=5), sessions=5)
    assert (row.verdict, row.calls, row.lo, row.hi) == ("never", None, None, None)
    assert calls_text(row) == "never"


def test_allocation_is_no_transfer():
    plain, with_alloc = (amortization(4e-4, *gpu(1e-3, 1e-4, alloc_s=alloc)) for alloc in (0.0, 5e-4))
    assert with_alloc.calls == plain.calls
    assert with_alloc.transfer_s == pytest.approx(plain.transfer_s, rel=0.01)


@pytest.mark.parametrize(
    ("timed", "verdict"), [(1.0e-3, "at"), (0.95e-3, "at"), (1.2e-3, "beyond"), (0.8e-3, "beyond")]
)
def test_past_the_calls_that_were_measured_the_parts_bear_the_count_out(timed, verdict):
    """1 ms to copy, 0.1 ms a call, 0.152 ms on the CPU: 20 calls, where ten were measured and are too few."""
    row = amortization(1.52e-4, *gpu(1e-3, 1e-4, timed_s=timed, sessions=5), sessions=5)
    assert (row.verdict, row.calls, row.reason) == (verdict, 20 if verdict == "at" else None, None)
    assert (calls_text(row) == f"> {CALLS}") == (verdict == "beyond")


@pytest.mark.parametrize("timed", [0.5e-3, 2e-3])
def test_up_to_them_nothing_has_to(timed):
    """Four calls lie between one and ten, which were measured."""
    assert amortization(4e-4, *gpu(1e-3, 1e-4, timed_s=timed)).calls == 4
    always, once = gpu(1e-3, 1e-4)
    assert amortization(4e-4, msgspec.structs.replace(always, parts=[]), once).calls == 4


@pytest.mark.parametrize(("timed", "reason"), [(1.08e-3, None), (1.2e-3, "parts-differ")])
def test_withheld_too_where_the_whole_is_so_long_that_its_parts_still_add_up(timed, reason):
    """A transfer of 1 ms beside calls of 5 ms: a fifth of the transfer is 3 % of the whole."""
    assert amortization(5.4e-3, *gpu(1e-3, 5e-3, timed_s=timed)).reason == reason


def test_what_only_a_call_by_itself_pays_is_no_difference():
    """A launch of 50 us hides behind a kernel of 100 us in a row of calls; one call alone pays both."""
    copies, launch, kernel = 2e-4, 5e-5, 1e-4
    parts = Parts(
        session=0, alloc_s=[0.0], upload_s=[copies * 0.6], launch_s=[launch], sync_s=[copies * 0.1],
        single_s=[launch + kernel + copies * 0.1], download_s=[copies * 0.3],
    )  # fmt: skip
    always, once = (case(regime=regime, device="cupy:0") for regime in ("transfer-always", "transfer-once"))
    row = amortization(
        4e-4,
        measured(always, copies + launch + kernel, factors=TIGHT, sessions=1, parts=parts),
        measured(once, (copies + launch + CALLS * kernel) / CALLS, factors=TIGHT, sessions=1),
    )
    assert row.transfer_s == pytest.approx(copies + launch, rel=0.01)
    assert (row.verdict, row.calls, row.reason) == ("already", 1, None)


@pytest.mark.parametrize(("kernel", "reason"), [(1e-4, None), (5e-4, "parts-differ")])
def test_withheld_where_any_part_misses_the_whole(kernel, reason):
    """The copies agree; but what is said of the kernel cannot be, and so nothing is built on the allocation either."""
    copies = 1e-3
    parts = Parts(
        session=0, alloc_s=[1e-5], upload_s=[copies * 0.6], launch_s=[1e-5], sync_s=[copies * 0.1],
        single_s=[1e-5 + kernel + copies * 0.1], download_s=[copies * 0.3],
    )  # fmt: skip
    always, once = (case(regime=regime, device="cupy:0") for regime in ("transfer-always", "transfer-once"))
    row = amortization(
        2e-4,
        measured(always, 1e-5 + copies + 1e-4, factors=TIGHT, sessions=1, parts=parts),
        measured(once, (copies + CALLS * 1e-4) / CALLS, factors=TIGHT, sessions=1),
    )
    assert row.reason == reason
    assert row.verdict == ("undecided" if reason else "at")


def test_never_stands_whatever_the_parts_leave_open():
    """A fifth of the transfer is open: spread over nine further calls that cannot make up for a call that is too slow."""
    assert amortization(5e-5, *gpu(1e-3, 1e-4, timed_s=1.2e-3, sessions=5), sessions=5).verdict == "never"
    assert amortization(9.9e-5, *gpu(1e-3, 1e-4, timed_s=1.2e-3)).verdict == "beyond"


def test_without_parts_there_is_nothing_to_check_against():
    """About ten calls: the interval ends past those that were measured, and begins before."""
    always, once = gpu(1e-3, 1e-4)
    row = amortization(2e-4, msgspec.structs.replace(always, parts=[]), once)
    assert (row.verdict, row.reason) == ("undecided", "no-parts")


def test_an_unstable_side_gives_the_count_of_its_interval():
    row = amortization(1.9e-4, *gpu(1e-3, 1e-4, factors=UNSTABLE))
    assert (row.verdict, row.reason) == ("at", None)


def test_an_interval_that_knows_the_noise_and_ends_before_it_matters_is_told():
    row = amortization(1e-2, *gpu(1e-3, 1e-4, factors=UNSTABLE))
    assert (row.verdict, row.calls, row.hi) == ("already", 1, 1)


def test_an_end_that_noise_leaves_open_is_open():
    """A call costs a twentieth less than on the CPU, and the noise is as large: no end may be seen."""
    noisy = tuple(1 + 0.02 * (i - 4) for i in range(9))
    row = amortization(1.05e-4, *gpu(1e-4, 1e-4, factors=noisy), factors=noisy)
    assert row.hi is None
    assert row.lo is not None
    assert ".." in calls_text(row) or row.verdict == "undecided"


def test_missing_sides_give_no_row():
    always, once = gpu(1e-3, 1e-4)
    base = measured(case(), 4e-4)
    for outcomes in ([always, once], [base, always], [base, once], [base, always, skipped(once.case)]):
        assert amortizations(analyse(run_of(outcomes))) == ()


def test_the_implementation_that_is_fastest_with_a_shared_copy_answers_for_its_device():
    library = gpu(1e-3, 1e-4)
    tuned = [
        msgspec.structs.replace(
            one,
            id=one.id.replace("library", "tuned"),
            case=msgspec.structs.replace(one.case, implementation="tuned"),
        )
        for one in gpu(0.5e-3, 1e-4)
    ]
    row = amortization(4e-4, *library, *tuned)
    assert (row.implementation, row.calls) == ("tuned", 2)


def test_rows_follow_the_selection():
    run = run_of([measured(case(), 4e-4), *gpu(1e-3, 1e-4)])
    assert amortizations(analyse(run, keep=lambda one: one.regime == "resident")) == ()
    assert len(amortizations(analyse(run, keep=lambda one: one.regime == "transfer-once"))) == 1


SECONDS = st.floats(1e-6, 1e-2)


@given(SECONDS, SECONDS, SECONDS, st.integers(2, 100))
def test_the_model_returns_what_it_was_built_from(transfer, launch, cpu, calls):
    costs = Costs(transfer + launch, transfer + calls * launch, cpu)
    assert costs.transfer_s(calls) == pytest.approx(transfer, rel=1e-3, abs=1e-12 + 1e-6 * launch)
    count = costs.pays_from(calls)
    if cpu <= launch * (1 - 1e-9):
        assert count == NO_CALLS_SUFFICE
    elif cpu > launch * 1.001 and count < 1e6:
        many = math.ceil(count)
        assert transfer + many * launch <= cpu * many * (1 + 1e-6)


@settings(max_examples=examples(25), deadline=None)
@given(st.floats(1, 1e3), st.permutations(range(5)), st.integers(0, 2**32))
def test_neither_scale_nor_the_order_of_sessions_changes_the_answer(scale, order, seed):
    draw = random.Random(seed)
    cpu_s, transfer_s, launch_s = draw.uniform(2e-4, 4e-3), draw.uniform(1e-4, 4e-3), 1e-4
    outcomes = [measured(case(), cpu_s, sessions=5), *gpu(transfer_s, launch_s, sessions=5, factors=QUIET)]
    for outcome, session in itertools.product(outcomes, range(5)):
        wall = outcome.blocks[session].wall_s
        outcome.blocks[session] = msgspec.structs.replace(
            outcome.blocks[session], wall_s=[value * draw.uniform(0.98, 1.02) for value in wall]
        )

    def answer(factor, numbers):
        changed = [
            msgspec.structs.replace(
                one,
                blocks=[
                    msgspec.structs.replace(
                        block, session=numbers[i], wall_s=[v * factor for v in block.wall_s]
                    )
                    for i, block in enumerate(one.blocks)
                ],
                parts=[
                    msgspec.structs.replace(
                        part,
                        **{
                            name: [v * factor for v in getattr(part, name)]
                            for name in ("alloc_s", "upload_s", "launch_s", "sync_s", "single_s", "download_s")
                        },
                    )
                    for part in one.parts
                ],
            )
            for one in outcomes
        ]
        row = amortizations(analyse(run_of(changed, sessions=5)))[0]
        return (row.verdict, row.reason, row.calls, row.lo, row.hi)

    assert answer(1.0, range(5)) == answer(1.0, order) == answer(scale, range(5))


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_the_interval_holds_the_true_count(noise):
    """Five sessions of twelve samples, a true count of 4.5: at least 90 % of the intervals hold 5, the next whole one."""
    draw, answers = random.Random(7), []
    for _ in range(60):
        outcomes = [measured(case(), 3e-4, sessions=5), *gpu(9e-4, 1e-4, sessions=5)]
        for outcome in outcomes:
            for session, block in enumerate(outcome.blocks):
                wall = [outcome.blocks[session].wall_s[2]] * 13
                outcome.blocks[session] = msgspec.structs.replace(
                    block, wall_s=[v * math.exp(draw.gauss(0, noise)) for v in wall]
                )
        answers.append(amortizations(analyse(run_of(outcomes, sessions=5)))[0])
    given = [row for row in answers if row.reason is None]
    assert len(given) >= 45
    assert sum(row.lo <= 5 <= (row.hi or 5) for row in given) >= 0.9 * len(given)


# ---------------------------------------------------------------- weights


def loaded(*seconds, gpu_s=1e-4, cpu_s=1e-3):
    """A size whose weights took so long to load, by session, and a larger one that found them there."""
    outcomes = []
    for n, times in ((256, seconds), (1024, seconds[:1])):
        what = case(n=n, regime="resident-waited", device="cupy:0")
        parts = [Parts(session=i, weights_s=s, weights_bytes=2**20) for i, s in enumerate(times)]
        kept = {"factors": TIGHT, "sessions": len(seconds)}
        outcomes += [measured(case(n=n), cpu_s, **kept)]
        outcomes += [msgspec.structs.replace(measured(what, gpu_s, **kept), parts=parts)]
    return analyse(run_of(outcomes))


def test_the_calls_that_repay_the_loading_of_weights():
    (row,) = weight_loads(loaded(9.1e-3, 8.9e-3, 20e-3))
    assert (row.n, row.weight_bytes, row.calls) == (1024, 2**20, 11)
    assert row.load_s == pytest.approx(9.1e-3)
    assert row.gain_s == pytest.approx(9e-4)


def test_a_device_that_gains_nothing_repays_nothing():
    (row,) = weight_loads(loaded(1e-3, gpu_s=2e-3))
    assert row.calls is None


def test_of_ops_without_weights_nothing_is_said():
    analysis = analyse(run_of(amortization_of_plain()))
    assert weight_loads(analysis) == ()
    assert "Weights" not in draw_report([analysis], "plain", RenderOptions(sections=["amortization"]))


def amortization_of_plain():
    return [measured(case(), 1e-3), measured(case(regime="resident-waited", device="cupy:0"), 1e-4)]


@pytest.mark.parametrize(("gpu_s", "said"), [(1e-4, "call 10"), (2e-3, "never")])
def test_the_table_says_what_loading_costs(gpu_s, said):
    text = draw_report([loaded(8.5e-3, gpu_s=gpu_s)], "plain", RenderOptions(sections=["amortization"]))
    assert "Weights stay on the device: they are loaded once" in text
    assert re.search(rf"^matmul +cupy:0 +1 MiB +8\.50 ms +{said} +1024$", text, re.M)
