"""Files below a root, and the lists and masks in them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect.facts import Root, list_form, parse_list, parse_mask


def test_links_stay_inside_and_only_regular_files_are_read(plant):
    base = plant({"/a/file": b" inside\n\0", "/b": "-> /a", "/c": "-> ../../../../../a/file", "/loop": "-> loop", "/folder": None,
                  "/big": b"x" * (5 << 20)})  # fmt: skip
    os.mkfifo(base / "pipe")
    root = Root(str(base))
    for path, text, status in (
        ("/b/file", "inside", "ok"), ("/c", "inside", "ok"), ("/loop", None, "absent"), ("/nothing", None, "absent"),
        ("/b/../../../etc/passwd", None, "absent"), ("/pipe", None, "invalid"), ("/folder", None, "invalid"),
    ):  # fmt: skip
        reading = root.read(path)
        assert (reading.text, reading.status) == (text, status), path
    assert len(root.read("/big").text or "") == 4 << 20


@given(st.frozensets(st.integers(0, 2000)))
def test_lists_and_masks_are_read_back(members):
    assert parse_list(list_form(members)) == members
    runs = sum(1 for n in members if n - 1 not in members)
    assert len([item for item in list_form(members).split(",") if item]) == runs, "the shortest form"
    value = sum(1 << n for n in members)
    words = [f"{value >> 32 * n & 0xFFFFFFFF:08x}" for n in range(value.bit_length() // 32 + 1)]
    assert parse_mask(",".join(reversed(words))) == members


@pytest.mark.parametrize("text", ["3-1", "1,,2", "a", "-1", "0-99999999999", "1-", "²", "0x3"])
def test_spoiled_lists_are_refused(text):
    with pytest.raises(ValueError):
        parse_list(text)


@given(st.text())
def test_parsers_raise_nothing_but_value_error(text):
    for parse in (parse_list, parse_mask):
        try:
            parse(text)
        except ValueError:
            continue
