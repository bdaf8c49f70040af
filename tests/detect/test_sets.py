import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect import facts as root

MEMBERS = st.frozensets(st.integers(0, 2000))


@given(MEMBERS)
def test_list_form_is_the_shortest_and_ascending_and_is_read_back(members):
    assert root.parse_list(root.list_form(members)) == members
    numbers = [int(n) for item in root.list_form(members).split(",") if item for n in item.split("-")]
    assert numbers == sorted(numbers)
    runs = sum(1 for n in members if n - 1 not in members)
    assert len([item for item in root.list_form(members).split(",") if item]) == runs


@given(MEMBERS)
def test_mask_round_trip_in_kernel_form(members):
    value = sum(1 << n for n in members)
    words = []
    while value or not words:
        words.append(f"{value & 0xFFFFFFFF:08x}")
        value >>= 32
    assert root.parse_mask(",".join(reversed(words))) == members


@given(st.text())
def test_parsers_raise_nothing_but_value_error(text):
    for parse in (root.parse_list, root.parse_mask):
        try:
            parse(text)
        except ValueError:
            continue


@pytest.mark.parametrize("text", ["3-1", "1,,2", "a", "-1", "0-99999999999", "1-", "²", "0x3"])
def test_spoiled_lists_are_refused(text):
    with pytest.raises(ValueError):
        root.parse_list(text)
