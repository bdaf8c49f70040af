"""Selectors: what matches, and the message for what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.base.errors import UsageError
from gpubench.result.case import parse_case_id, select_cases, selector
from tests.raising import raised
from tests.unit.report.builders import case

BIG = case(n=4096, implementation="tuned", regime="transfer-once", device="cupy:0")
WIDE = replace(BIG, params={"n": 4096, "m": 16, "k": 8})
WAITED = replace(case(), regime="resident-waited")


@pytest.mark.parametrize(("text", "what", "matches"), [
    *((text, BIG, True) for text in (
        "matmul", "*", "mat*", "matmul@cupy", "matmul@cupy:0", "*@cupy", "matmul/n>=4096@cupy", "matmul/n=1k..4k",
        "matmul/n<=1M", "matmul/n=4k/f32/tuned/transfer-once", "*/*/float32/*/transfer-once-10@*",
        BIG.id, "matrix")),
    *((text, WIDE, True) for text in ("matmul/n=4096", "matmul/n=4096,m=16", "matmul/n>=1k,k=8,m=16", WIDE.id)),
    ("*/*/*/*/resident", WAITED, True), ("*/*/*/*/resident-waited", WAITED, True), ("*/*/*/*/resident-waited", case(), False),
    *((text, BIG, False) for text in (
        "relu", "matmul@numpy", "*@cupy:1", "matmul/n>=4097", "matmul/n=1k..2k", "matmul/n<=1k", "*/*/f64",
        "*/*/*/library", "*/*/*/*/resident", "*/n=4096,batch=8", "activation", WIDE.id)),
    *(("matmul/n<=4", case(n=n), n < 5) for n in (1, 4, 5)), ("matmul/n=4096,m=17", WIDE, False), ("matmul/n=4096,batch=2", WIDE, False),
])  # fmt: skip
def test_what_a_selector_matches(text, what, matches):
    assert selector(text)(what) == matches


@pytest.mark.parametrize("text", ["", "@cupy", "matmul@", "a/b/c/d/e/f", "matmul//f32", "matmul/4096", "matmul/n>1",
                                  "matmul/n=0", "matmul/n>=1..2", "matmul/n=1k:4k", "matmul/n=4k..1k", "matmul/n=1,batch", f"a/n=1,k={'9' * 5000}"])  # fmt: skip
def test_what_is_no_selector_is_a_usage_error(text):
    assert "--skip" in raised(UsageError, selector, text, option="--skip").message


def test_selection_combines():
    assert select_cases([], []) is None
    chosen = select_cases(["matmul", "relu"], ["*@numpy"])
    assert [chosen(what) for what in (BIG, case(), case("add", device="cupy:0"))] == [True, False, False]


@pytest.mark.parametrize(("implementation", "variants"), [
    ("tuned", {None}), ("tuned-naive", {"naive"}), ("tuned-*", {"naive", "register"}),
    ("tuned*", {None, "naive", "register"}), ("*", {None, "naive", "register"}), ("library*", set()),
])  # fmt: skip
def test_a_plain_implementation_is_not_its_variants(implementation, variants):
    matches = selector(f"matmul/*/*/{implementation}")
    assert variants == {name for name in (None, "naive", "register") if matches(replace(BIG, variant=name))}


variants = st.none() | st.sampled_from(["naive", "tiled", "tf32", "split_k2"])
shapes = st.dictionaries(st.sampled_from(["m", "k", "batch", "columns"]), st.integers(1, 2**40))
ops, implementations = st.sampled_from(["add", "relu"]), st.sampled_from(["library", "tuned"])


@given(ops, st.integers(1, 2**40), implementations, variants, shapes)
def test_every_case_id_selects_its_case_and_reads_back(op, n, implementation, variant, shape):
    what = replace(case(op, n, implementation), variant=variant, params={"n": n, **shape})
    assert selector(what.id)(what)
    assert replace(parse_case_id(what.id), group=what.group) == what


@pytest.mark.parametrize(
    "implementation", ["tuned-", "tuned-A", "tuned-a-b", "tuned naive", "tunednaive", "-naive"]
)
def test_what_is_no_implementation_is_no_case_id(implementation):
    with pytest.raises(ValueError, match="not a case id"):
        parse_case_id(BIG.id.replace("/tuned/", f"/{implementation}/"))
