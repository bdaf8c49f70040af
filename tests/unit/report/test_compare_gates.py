"""Gates of a comparison: what each looks at, and that none passes because it had nothing to look at."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.analysis.findings import MinSpeedup
from gpubench.base.errors import InputError
from gpubench.cli import ci
from gpubench.cli.compare import check
from gpubench.cli.options import ComparisonOptions
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.report.ci import of_comparison
from gpubench.report.comparison import render
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.problems import MOST_IDS
from gpubench.result.case import selector
from tests.unit.report.builders import case, failed, skipped
from tests.unit.report.sides import CASES, pair

WIDE = (0.8, 1.2, 0.85, 1.15, 1.0, 1.0, 0.82, 1.18, 0.9, 1.1)


DEFAULT = CompareOptions()


def found(base, new, options=DEFAULT, *more):
    return compare(
        ("base", base), [("new", new), *((f"new {i}", run) for i, run in enumerate(more, 2))], options
    )


def gate(comparison, name):
    return next(gate for gate in comparison.gates if gate.name == name)


def with_blocks(run, change, ids=frozenset(case.id for case in CASES)):
    """The run with every block of the cases `ids` changed."""
    outcomes = [
        msgspec.structs.replace(row, blocks=[change(block) for block in row.blocks]) if row.id in ids else row
        for row in run.outcomes
    ]
    return msgspec.structs.replace(run, outcomes=outcomes)


def throttled(run, ids=frozenset(case.id for case in CASES)):
    return with_blocks(
        run,
        lambda block: msgspec.structs.replace(
            block, discarded={str(i): "throttled" for i in range(len(block.wall_s))}
        ),
        ids,
    )


def contended(run):
    sessions = [msgspec.structs.replace(session, foreign_cpu_share=0.5) for session in run.sessions]
    return msgspec.structs.replace(run, sessions=sessions)


def noisy(run, ids):
    return with_blocks(
        run, lambda block: msgspec.structs.replace(block, wall_s=[1e-3 * factor for factor in WIDE]), ids
    )


ASKED = CompareOptions(fail_on=("slower",))


def test_where_every_case_is_throttled_the_gate_on_regressions_is_not_passed():
    base, new = pair({case.id: 2.0 for case in CASES})
    result = found(base, throttled(new), ASKED)
    assert {(row.verdict, row.reason) for row in result.cases} == {("UNSURE", "throttled")}
    assert (result.exit_code, gate(result, "slower").impossible) == (4, True)
    (notice,) = [notice for notice in result.warnings if notice.code == "no-gate"]
    assert "cooling" in notice.hint
    some = found(base, throttled(new, {CASES[0].id}), ASKED)
    assert (some.exit_code, gate(some, "slower").ids) == (3, tuple(case.id for case in CASES[1:]))


def test_another_label_hides_neither_throttling_nor_noise():
    base, new = pair({case.id: 2.0 for case in CASES})
    worn = contended(noisy(new, {CASES[0].id}))
    result = found(base, worn, CompareOptions(fail_on=("noisy",)))
    assert {"contended", "unstable"} <= {*result.cases[0].labels}
    assert (result.exit_code, gate(result, "noisy").ids) == (3, (CASES[0].id,))
    assert {row.reason for row in found(base, contended(throttled(new))).cases} == {"throttled"}


def test_noise_is_marked_where_the_ratio_stands():
    base, new = pair()
    text = render(found(base, noisy(new, {CASES[0].id})), "plain", RenderOptions())
    assert "~~" in next(line for line in text.splitlines() if line.startswith(CASES[0].id))
    assert "~~ unstable" in text
    assert "~" not in render(found(base, new), "plain", RenderOptions())


@pytest.mark.parametrize(("k", "alpha", "possible"), [(5, 0.003, False), (6, 0.003, True), (10, 1e-3, True)])
def test_whether_the_gate_can_fire_depends_on_sessions_and_alpha(k, alpha, possible):
    only = CASES[:1]
    options = CompareOptions(fail_on=("slower",), alpha=alpha)
    alike = found(*pair(k=k, cases=only), options)
    assert gate(alike, "slower").impossible is not possible
    slow = found(*pair({CASES[0].id: 3.0}, k=k, cases=only), options)
    assert slow.exit_code == (3 if possible else 4)


def test_cases_that_missed_sessions_of_their_own_are_corrected_for_and_can_make_the_gate_impossible():
    """Each of 13 cases lacks another session: a family of 13 families, in which no p-value stays below 5 %."""
    base, new = pair({case(n=n).id: 3.0 for n in range(1, 14)}, k=14, cases=[case(n=n) for n in range(1, 14)])

    def lacking(run, kept):
        outcomes = [
            msgspec.structs.replace(row, blocks=[row.blocks[j] for j in kept(i)])
            for i, row in enumerate(run.outcomes)
        ]
        return msgspec.structs.replace(run, outcomes=outcomes)

    ours = lacking(base, lambda i: range(5))
    theirs = lacking(new, lambda i: [*range(4), 4 + i % 10])
    result = found(ours, lacking(new, lambda i: range(5)), ASKED)
    assert result.exit_code == 3
    shared = found(ours, theirs, ASKED)
    groups = len({i % 10 for i in range(13)})
    assert min(row.p_adjusted for row in shared.cases) == pytest.approx(groups / 252)
    assert shared.exit_code == 3
    strict = CompareOptions(fail_on=("slower",), alpha=groups / 252 - 1e-6)
    assert found(ours, theirs, strict).exit_code == 4
    assert gate(found(ours, theirs, strict), "slower").impossible


def speedups(*texts):
    return CompareOptions(fail_on=(), min_speedups=ci.gates(list(texts), None).min_speedups)


LOST = {"failed": failed(CASES[0]), "skipped": skipped(CASES[0])}


@pytest.mark.parametrize("in_base", [*LOST, "absent", "number"])
@pytest.mark.parametrize("in_new", [*LOST, "number"])
def test_a_selected_case_without_a_number_on_any_side_fails_the_gate(in_base, in_new):
    sides = []
    for run, lost in zip(pair(), (in_base, in_new), strict=True):
        first = {"absent": [], "number": run.outcomes[:1]}.get(lost) if lost not in LOST else [LOST[lost]]
        sides.append(msgspec.structs.replace(run, outcomes=[*first, *run.outcomes[1:]]))
    result = found(*sides, speedups("matmul/n=64=0.5", "matmul/n=128=0.5"))
    both = in_base == in_new == "number"
    assert [gate.missing for gate in result.gates] == [() if both else (CASES[0].id,), ()]
    assert result.exit_code == (0 if both else 3)


def test_every_new_file_needs_the_ratio_and_what_is_ignored_does_not():
    base, new = pair()
    less = msgspec.structs.replace(new, outcomes=new.outcomes[1:])
    options = speedups("matmul=0.5")
    assert found(base, new, options, new).exit_code == 0
    assert found(base, new, options, less).gates[0].missing == (CASES[0].id,)
    muted = msgspec.structs.replace(options, ignored=(selector("matmul/n=64"),))
    assert found(base, new, muted, less).exit_code == 0


def test_a_demand_is_met_told_or_failed_by_the_interval_of_base_over_new():
    base, new = pair({CASES[0].id: 0.5}, sigma=0.05, cases=CASES[:1])
    (row,) = found(base, new).cases
    least, most = 1 / row.hi, 1 / row.lo
    for factor, expected in ((least * 0.99, "passed"), ((least + most) / 2, "near"), (most * 1.01, "low")):
        demand = MinSpeedup(text="matmul/n=64", selects=selector("matmul/n=64"), least=factor)
        reported = found(base, new, CompareOptions(fail_on=(), min_speedups=(demand,)))
        (only,) = reported.gates
        assert (only.passed, bool(only.near), bool(only.ids)) == (
            expected != "low",
            expected == "near",
            expected == "low",
        )
        assert of_comparison(reported).verdict == {"passed": "ok", "near": "unsure", "low": "failed"}[expected]


@pytest.mark.parametrize(
    ("name", "verdict"), [("slower", "slower"), ("unsure", "unsure"), ("failed", "failed"), ("missing", "failed"), ("noisy", "failed")]
)  # fmt: skip
def test_a_failed_gate_is_never_ok_in_a_word(name, verdict):
    base, new = pair({CASES[1].id: 1.3} if name == "slower" else None)
    new = {
        "failed": msgspec.structs.replace(new, outcomes=[failed(CASES[0]), *new.outcomes[1:]]),
        "missing": msgspec.structs.replace(new, outcomes=new.outcomes[1:]),
        "noisy": noisy(new, {CASES[0].id}), "unsure": throttled(new, {CASES[0].id}),
    }.get(name, new)  # fmt: skip
    result = found(base, new, CompareOptions(fail_on=(name,)))
    reported = of_comparison(result)
    assert (result.exit_code, reported.verdict, len(reported.errors)) == (3, verdict, 1)
    assert reported.errors[0].startswith(f"{name}: FAILED: ")


@pytest.mark.parametrize("name", ["slower", "unsure", "failed", "missing", "noisy"])
def test_a_gate_whose_every_case_is_ignored_is_not_passed(name):
    everything = CompareOptions(fail_on=(name,), ignored=(selector("*"),))
    result = found(*pair(), everything)
    assert (result.exit_code, gate(result, name).impossible, gate(result, name).passed) == (4, True, False)
    by_default = msgspec.structs.replace(everything, fail_on=None)
    assert found(*pair(), by_default).exit_code == 0, "nobody has asked for it"
    some = msgspec.structs.replace(everything, ignored=(selector("matmul/n=64"),))
    assert found(*pair(), some).exit_code == 0


def test_a_demand_on_ignored_cases_alone_is_not_met():
    muted = msgspec.structs.replace(speedups("matmul/n=64=0.5"), ignored=(selector("matmul/n=64"),))
    result = found(*pair(), muted)
    assert (result.exit_code, result.gates[0].impossible) == (4, True)
    assert "min-speedup matmul/n=64=0.5: not applied" in render(result, "plain", RenderOptions())


def test_a_gate_that_could_not_be_applied_is_not_ok_in_a_word():
    result = found(*pair(), CompareOptions(fail_on=("slower",), ignored=(selector("*"),)))
    assert (result.exit_code, of_comparison(result).verdict) == (4, "unsure")


def test_a_long_list_of_cases_is_cut_and_counted():
    cases = [case(n=n) for n in range(1, MOST_IDS + 4)]
    result = found(*pair({one.id: 1.5 for one in cases}, cases=cases))
    (line,) = of_comparison(result).errors
    assert line.endswith(f"{cases[MOST_IDS - 1].id} and 3 more")


@pytest.mark.parametrize(
    ("thresholds", "shares"),
    [
        (["20"], [0.2] * 4), (["matmul/n=64=20"], [0.2, 0.05, 0.05, 0.05]),
        (["matmul/n<=128=20", "matmul/n=64=30"], [0.3, 0.2, 0.05, 0.05]), (["matmul/n=64=30", "matmul/n<=128=20"], [0.2, 0.2, 0.05, 0.05]),
        (["matmul/n=64=30", "20"], [0.3, 0.2, 0.2, 0.2]), (["10", "20"], [0.2] * 4), (["3"], [0.03] * 4),
    ],
)  # fmt: skip
def test_of_thresholds_that_select_a_case_the_last_one_holds_and_one_for_some_outweighs_one_for_all(
    thresholds, shares
):
    asked = check(ComparisonOptions(base="base.json", new=["new.json"], threshold=thresholds))
    assert [row.threshold for row in found(*pair(), asked).cases] == shares


def test_each_new_file_is_told_its_own_threshold():
    base, turns = pair()
    late = [msgspec.structs.replace(one, started_at="2026-02-02T00:00:00Z") for one in turns.sessions]
    apart = msgspec.structs.replace(turns, sessions=late)
    result = found(base, turns, DEFAULT, apart)
    (notice,) = [notice for notice in result.warnings if notice.code == "not-interleaved"]
    assert notice.message.startswith("base and new 2 were measured one after the other")
    text = render(result, "plain", RenderOptions())
    assert [line.split(",")[0] for line in text.splitlines() if line.startswith("Threshold")] == [
        "Threshold 5 %",
        "Threshold 10 %",
    ]


def test_where_nothing_is_compared_there_is_no_threshold():
    base, new = pair()
    broken = msgspec.structs.replace(new, outcomes=[failed(one) for one in CASES])
    assert "\nNo case was tested.\n" in render(found(base, broken), "plain", RenderOptions())


def test_the_order_of_the_new_files_does_not_matter():
    base, slow = pair({CASES[0].id: 1.4})
    _, alike = pair(seed=2)
    few = msgspec.structs.replace(alike, outcomes=alike.outcomes[1:])
    news = [("slow", slow), ("alike", alike), ("few", few)]
    there, back = (compare(("base", base), order, DEFAULT) for order in (news, news[::-1]))

    def rows(comparison):
        named = {i: side.source for i, side in enumerate(comparison.new)}
        return {(named[row.new], row.id): msgspec.structs.replace(row, new=0) for row in comparison.cases}

    assert rows(there) == rows(back)
    assert (there.exit_code, there.counts) == (back.exit_code, back.counts)
    assert [{*gate.ids} for gate in there.gates] == [{*gate.ids} for gate in back.gates]


def test_where_permutations_are_drawn_order_scale_and_sides_do_not_matter_either():
    """Seven sessions a side: a sample of the 3432 permutations."""
    cases = [case(n=n) for n in range(1, 44)]
    base, new = pair({cases[3].id: 1.2, cases[7].id: 1.06}, cases=cases, k=7, sigma=0.02)
    plain = found(base, new)
    assert plain.correction == "max-t"

    def disturbed(run):
        def moved(block):
            number = 3 * (block.session + 2) % 7
            return msgspec.structs.replace(
                block, session=number, wall_s=[3e4 * value for value in block.wall_s]
            )

        scaled = with_blocks(run, moved, frozenset(one.id for one in cases))
        return msgspec.structs.replace(scaled, outcomes=scaled.outcomes[::-1])

    for other in (found(disturbed(base), disturbed(new)), found(new, base)):
        assert [row.p_adjusted for row in other.cases] == [row.p_adjusted for row in plain.cases]
    back = {"SLOWER": "FASTER", "FASTER": "SLOWER"}
    assert [back.get(row.verdict, row.verdict) for row in other.cases] == [row.verdict for row in plain.cases]


@pytest.mark.parametrize(
    ("base_lies", "new_lies", "code"), [(True, True, 0), (True, False, 0), (False, True, 3)]
)
def test_what_base_has_no_true_number_for_cannot_go_missing(base_lies, new_lies, code):
    """A sample of less than 100 steps of its clock is no measurement."""
    sides = pair()
    sides = [
        with_blocks(run, lambda block: msgspec.structs.replace(block, repeat=1, wall_s=[1e-9] * 10), {CASES[0].id})
        if lies else run
        for run, lies in zip(sides, (base_lies, new_lies), strict=True)
    ]  # fmt: skip
    result = found(*sides)
    row = result.cases[0]
    assert (row.verdict, row.reason) == ("not-comparable", "implausible")
    assert (row.base_s is None, row.new_s is None) == (base_lies, new_lies)
    assert (result.exit_code, bool(gate(result, "missing").ids)) == (code, code == 3)


@pytest.mark.parametrize(
    "left", [[], [failed(CASES[0])], [skipped(CASES[0])]], ids=["absent", "failed", "skipped"]
)
@pytest.mark.parametrize("lies", [True, False])
def test_nor_can_it_where_new_has_no_number_at_all(left, lies):
    base, new = pair()
    if lies:
        base = with_blocks(
            base, lambda block: msgspec.structs.replace(block, repeat=1, wall_s=[1e-9] * 10), {CASES[0].id}
        )
    result = found(base, msgspec.structs.replace(new, outcomes=[*left, *new.outcomes[1:]]))
    listed = [(row.id, row.reason, row.base_s, row.new_s, row.k_new) for row in result.cases if row.k_new == 0]
    absent = [row.id for row in (*result.missing, *result.failed)]
    assert listed == ([(CASES[0].id, "implausible", None, None, 0)] if lies else [])
    assert absent == ([] if lies else [CASES[0].id])
    assert result.exit_code == (0 if lies else 3)
    assert CASES[0].id in render(result, "plain", RenderOptions())
    assert of_comparison(result)


def test_one_number_that_cannot_be_true_is_nothing_in_common():
    base, new = pair(cases=CASES[:1])
    base = with_blocks(base, lambda block: msgspec.structs.replace(block, repeat=1, wall_s=[1e-9] * 10))
    with pytest.raises(InputError, match="no case in common"):
        found(base, msgspec.structs.replace(new, outcomes=[failed(CASES[0])]))
