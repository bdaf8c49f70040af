from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect import gpu as access
from gpubench.detect.facts import make_fact
from gpubench.result.machine import Gpu

MASK, SELECTOR = "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"


def gpus(*models):
    return [
        Gpu(id=f"g{n}", vendor=make_fact("intel", "t"), device_id=make_fact(m, "t"))
        for n, m in enumerate(models)
    ]


def hidden(*models, **environ):
    found = access.hidden(gpus(*models), environ)
    return [fact.value or fact.status for fact in found.values()]


@pytest.mark.parametrize(
    ("text", "seen"),
    [("0", (True, False, False)), ("2,0", (True, False, True)), ("1.0,1.1", (False, True, False)), ("7", (False, False, False)),
     ("", None), ("all", None), ("-1", None)],
)  # fmt: skip
def test_masks(text, seen):
    assert access.read_mask(text, 3) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [("level_zero:0", (True, False)), ("level_zero:gpu", (True, True)), ("*:gpu", (True, True)), ("*:cpu", (False, False)),
     ("opencl:cpu;level_zero:1", (False, True)), ("cuda:*", (False, False)), ("level_zero:0,1", (True, True)),
     ("level_zero:0.1", (True, False)), ("!level_zero:*", (True, True)), ("!level_zero:*;!opencl:*", (False, False)),
     ("!*:gpu", (False, False)), ("level_zero:*;!level_zero:1", (True, False)), ("LEVEL_ZERO:GPU", (True, True)),
     ("level_zero", None), ("vulkan:0", None), ("level_zero:first", None), ("", None)],
)  # fmt: skip
def test_selectors(text, seen):
    assert access.read_selector(text, 2) == seen


def test_numbers_follow_the_driver_unless_models_are_equal_or_the_bus_is_asked_for():
    assert hidden("56a0", "56a0", **{MASK: "1"}) == [MASK, "absent"]
    assert hidden("4680", "56a0", **{MASK: "1"}) == ["not_probed", "not_probed"]
    assert hidden("4680", "56a0", **{MASK: "1", access.BY_BUS: "1"}) == [MASK, "absent"]


def test_what_hides_all_or_none_needs_no_order():
    assert hidden("4680", "56a0", **{MASK: "0,1"}) == ["absent", "absent"]
    assert hidden("4680", "56a0", **{SELECTOR: "opencl:cpu"}) == [SELECTOR, SELECTOR]


def test_the_mask_filters_before_the_selector_counts():
    assert hidden("a", "a", "a", **{MASK: "1,2", SELECTOR: "level_zero:1"}) == [MASK, SELECTOR, "absent"]


def test_a_text_that_cannot_be_understood_hides_nothing_and_is_shown():
    (fact,) = access.hidden(gpus("a"), {SELECTOR: "what?"}).values()
    assert (fact.value, fact.status, fact.source) == (None, "invalid", SELECTOR)
    assert "what?" in fact.note


@given(st.text(alphabet="*:;!,.01gpulev_zro ", max_size=30), st.integers(1, 4))
def test_any_text_is_judged_for_every_gpu(text, count):
    for judge in (access.read_mask, access.read_selector):
        seen = judge(text, count)
        assert seen is None or len(seen) == count
