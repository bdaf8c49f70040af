"""Gates of a comparison: what each looks at, and that none passes because it had nothing to look at."""

import pytest
from msgspec.structs import replace

from gpubench.analysis.findings import MinSpeedup
from gpubench.base.errors import InputError
from gpubench.cli import ci
from gpubench.cli.ci import of_comparison
from gpubench.cli.compare import check
from gpubench.cli.options import ComparisonOptions
from gpubench.compare.comparison import CompareOptions
from gpubench.report.comparison import render
from gpubench.report.layout import RenderOptions
from gpubench.result.case import selector
from tests.unit.report.builders import failed, skipped
from tests.unit.report.sides import CASES, compared, contended, gate, noisy, pair, throttled, untrue, with_first

FIRST = CASES[0].id
DOUBLED = {case.id: 2.0 for case in CASES}
ASKED = CompareOptions(fail_on=("slower",))
LOST = {"failed": failed(CASES[0]), "skipped": skipped(CASES[0])}


def test_where_every_case_is_throttled_the_gate_on_regressions_is_not_passed():
    base, new = pair(DOUBLED)
    result = compared(base, throttled(new), ASKED)
    assert {(row.verdict, row.reason) for row in result.cases} == {("UNSURE", "throttled")}
    assert (result.exit_code, gate(result, "slower").impossible) == (4, True)
    (notice,) = [notice for notice in result.warnings if notice.code == "no-gate"]
    assert "cooling" in notice.hint
    assert {row.reason for row in compared(base, contended(throttled(new))).cases} == {"throttled"}
    some = compared(base, throttled(new, {FIRST}), ASKED)
    assert (some.exit_code, gate(some, "slower").ids) == (3, tuple(case.id for case in CASES[1:]))


@pytest.mark.parametrize(("k", "alpha", "possible"), [
    (5, 0.003, False), (5, 1 / 252, True), (6, 0.003, True), (10, 1e-3, True), (8, 1 / 2000, True),
    (8, 1 / 2002.5, False),
])  # fmt: skip
def test_whether_the_gate_can_fire_depends_on_sessions_and_alpha(k, alpha, possible):
    options = CompareOptions(fail_on=("slower",), alpha=alpha)
    alike = compared(*pair(k=k, cases=CASES[:1]), options)
    assert gate(alike, "slower").impossible is not possible
    slow = compared(*pair({FIRST: 3.0}, k=k, cases=CASES[:1]), options)
    assert (slow.exit_code, slow.cases[0].verdict) == ((3, "SLOWER") if possible else (4, "UNSURE"))


def test_cases_of_other_sessions_cost_the_gate_their_part_of_alpha():
    base, new = pair({what.id: 3.0 for what in CASES}, k=6)
    short = with_first(new, replace(new.outcomes[0], blocks=new.outcomes[0].blocks[1:]))
    strict = CompareOptions(fail_on=("slower",), alpha=1.5 / 924)
    whole, apart = compared(base, new, strict), compared(base, short, strict)
    assert (whole.exit_code, gate(whole, "slower").impossible) == (3, False)
    assert (apart.exit_code, gate(apart, "slower").impossible) == (4, True)


def speedups(*texts, **more):
    return CompareOptions(fail_on=(), min_speedups=ci.parse_gates(list(texts), None).min_speedups, **more)


@pytest.mark.parametrize("in_base", [*LOST, "absent", "number"])
@pytest.mark.parametrize("in_new", [*LOST, "number"])
def test_a_selected_case_without_a_number_on_any_side_fails_the_gate(in_base, in_new):
    sides = []
    for run, lost in zip(pair(), (in_base, in_new), strict=True):
        first = {"absent": [], "number": run.outcomes[:1]}.get(lost) if lost not in LOST else [LOST[lost]]
        sides.append(with_first(run, *first))
    result = compared(*sides, speedups("matmul/n=64=0.5", "matmul/n=128=0.5"))
    both = in_base == in_new == "number"
    assert [gate.missing for gate in result.gates] == [() if both else (FIRST,), ()]
    assert result.exit_code == (0 if both else 3)


def test_every_new_file_needs_the_ratio_and_what_is_ignored_does_not():
    base, new = pair()
    less, only = with_first(new), (selector("matmul/n=64"),)
    assert compared(base, new, speedups("matmul=0.5"), new).exit_code == 0
    assert compared(base, new, speedups("matmul=0.5"), less).gates[0].missing == (FIRST,)
    assert compared(base, new, speedups("matmul=0.5", ignored=only), less).exit_code == 0
    assert compared(base, new, speedups("matmul=2", advisory=True)).exit_code == 0
    nothing = compared(base, new, speedups("matmul/n=64=0.5", ignored=only))
    assert (nothing.exit_code, nothing.gates[0].impossible) == (4, True)
    assert "min-speedup matmul/n=64=0.5: not applied" in render(nothing, "plain", RenderOptions())


@pytest.mark.parametrize(("place", "outcome", "word"), [(-0.01, "passed", "ok"), (0.5, "near", "unsure"), (1.01, "low", "failed")])  # fmt: skip
def test_a_demand_is_met_told_or_failed_by_the_interval_of_base_over_new(place, outcome, word):
    base, new = pair({FIRST: 0.5}, sigma=0.05, cases=CASES[:1])
    (row,) = compared(base, new).cases
    least = 1 / row.hi + place * (1 / row.lo - 1 / row.hi)
    demand = MinSpeedup(text="matmul/n=64", selects=selector("matmul/n=64"), least=least)
    result = compared(base, new, CompareOptions(fail_on=(), min_speedups=(demand,)))
    (only,) = result.gates
    ends = (only.passed, bool(only.near), bool(only.ids))
    assert ends == (outcome != "low", outcome == "near", outcome == "low")
    assert (only.name, only.selector, only.least) == ("min-speedup", "matmul/n=64", least)
    assert of_comparison(result).verdict == word


@pytest.mark.parametrize("name", ["slower", "unsure", "failed", "missing", "noisy"])
def test_a_gate_whose_every_case_is_ignored_is_not_passed(name):
    everything = CompareOptions(fail_on=(name,), ignored=(selector("*"),))
    result = compared(*pair(), everything)
    assert (result.exit_code, gate(result, name).impossible, gate(result, name).passed) == (4, True, False)
    assert of_comparison(result).verdict == "unsure"
    base, new = pair()
    loud = compared(base, contended(noisy(new, {FIRST})), CompareOptions(fail_on=("noisy",)))
    assert (loud.exit_code, gate(loud, "noisy").ids) == (3, (FIRST,)), "another label hides no noise"
    assert compared(*pair(), replace(everything, fail_on=None)).exit_code == 0, "nobody has asked for it"
    assert compared(*pair(), replace(everything, ignored=(selector("matmul/n=64"),))).exit_code == 0


@pytest.mark.parametrize(("thresholds", "shares"), [
    (["20"], [0.2] * 4), (["matmul/n=64=20"], [0.2, 0.05, 0.05, 0.05]),
    (["matmul/n<=128=20", "matmul/n=64=30"], [0.3, 0.2, 0.05, 0.05]), (["matmul/n=64=30", "matmul/n<=128=20"], [0.2, 0.2, 0.05, 0.05]),
    (["matmul/n=64=30", "20"], [0.3, 0.2, 0.2, 0.2]), (["10", "20"], [0.2] * 4), (["3"], [0.03] * 4),
])  # fmt: skip
def test_the_last_threshold_of_a_case_holds_and_one_for_some_outweighs_one_for_all(thresholds, shares):
    asked = check(ComparisonOptions(base="base.json", new=["new.json"], threshold=thresholds))
    assert [row.threshold for row in compared(*pair(), asked).cases] == shares


@pytest.mark.parametrize(
    ("base_lies", "new_lies", "code"), [(True, True, 0), (True, False, 0), (False, True, 3)]
)
def test_what_base_has_no_true_number_for_cannot_go_missing(base_lies, new_lies, code):
    lies = (base_lies, new_lies)
    sides = [untrue(run, {FIRST}) if lie else run for run, lie in zip(pair(), lies, strict=True)]
    result = compared(*sides)
    row = result.cases[0]
    assert (row.verdict, row.reason) == ("not-comparable", "implausible")
    assert (row.base_s is None, row.new_s is None) == (base_lies, new_lies)
    assert (result.exit_code, bool(gate(result, "missing").ids)) == (code, code == 3)
    for lost in ([], [LOST["failed"]], [LOST["skipped"]]):
        gone = compared(sides[0], with_first(sides[1], *lost))
        listed = [row.id for row in (*gone.missing, *gone.failed)]
        assert (listed, gone.exit_code) == (([], 0) if base_lies else ([FIRST], 3))
        assert [row.reason for row in gone.cases if row.k_new == 0] == ["implausible"] * base_lies


def test_one_number_that_cannot_be_true_is_nothing_in_common():
    base, new = pair(cases=CASES[:1])
    with pytest.raises(InputError, match="no case in common"):
        compared(untrue(base), with_first(new, failed(CASES[0])))
