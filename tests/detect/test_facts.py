"""Files below a root, and the lists and masks in them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect import cpu
from gpubench.detect.facts import Root, integer, list_form, parse_list, parse_mask, parse_name, positive, size
from tests.raising import raised


def test_links_stay_inside_and_only_regular_files_are_read(plant):
    base = plant({"/a/file": b" inside\n\0", "/b": "-> /a", "/c": "-> ../../../../../a/file", "/loop": "-> loop", "/folder": None,
                  "/big": b"x" * (17 << 20)})  # fmt: skip
    os.mkfifo(base / "pipe")
    root = Root(str(base))
    for path, text, status in (("/b/file", "inside", "ok"), ("/c", "inside", "ok"), ("/loop", None, "absent"),
                               ("/nothing", None, "absent"), ("/b/../../../etc/passwd", None, "absent"),
                               ("/pipe", None, "invalid"), ("/folder", None, "invalid")):  # fmt: skip
        reading = root.read(path)
        assert (reading.text, reading.status) == (text, status), path
    assert len(root.read("/big").text or "") == 16 << 20


@given(st.frozensets(st.integers(0, 2000)))
def test_lists_and_masks_are_read_back(members):
    assert parse_list(list_form(members)) == members
    runs = sum(1 for n in members if n - 1 not in members)
    assert len([item for item in list_form(members).split(",") if item]) == runs, "the shortest form"
    value = sum(1 << n for n in members)
    words = [f"{value >> 32 * n & 0xFFFFFFFF:08x}" for n in range(value.bit_length() // 32 + 1)]
    assert parse_mask(",".join(reversed(words))) == members


BAD = ValueError


@pytest.mark.parametrize(("parse", "text", "value"), [
    (integer, "9" * 20, 10**20 - 1), (integer, "9" * 21, BAD), (integer, "-5", -5), (integer, "+5", BAD), (integer, "1_0", BAD), (size, "0", 0),
    (size, "-1", BAD), (positive, "0", None), (positive, "7", 7), (parse_list, "65535", {65535}), (parse_list, "65536", BAD),
    (parse_list, "2-2,4", {2, 4}), (parse_list, "1,1", BAD), (parse_mask, "8" + "0" * 16383, {65535}), (parse_mask, "1" + "0" * 16384, BAD),
    (parse_mask, "0x3", {0, 1}), (parse_mask, "1,3", {0, 1, 32}), (parse_mask, "1,000000003", BAD), (parse_mask, "", BAD), (parse_mask, "1,,3", BAD),
    (parse_name, "ab" * 512, "ab" * 512), (parse_name, "ab" * 512 + "a", BAD), (parse_name, "a\nb\tc", "a\nb\tc"), (parse_name, "\ufffd", BAD),
    (parse_name, "\a", BAD), (parse_name, "", None), (parse_name, "unknown", None), (cpu.parse_kilohertz, "100000000", 10**11),
    (cpu.parse_kilohertz, "100000001", BAD), (cpu.parse_kilohertz, "0", None), (cpu.parse_kilohertz, "<unknown>", None), (cpu.cache_size, "0K", None),
    (cpu.cache_size, "3", 3), (cpu.cache_size, "3K", 3 << 10), (cpu.cache_size, "3M", 3 << 20), (cpu.cache_size, "3G", 3 << 30), (cpu.cache_size, "3T", BAD),
    *((parse_list, spoiled, BAD) for spoiled in ("3-1", "1,,2", "a", "-1", "0-99999999999", "1-", "²", "0x3")),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_what_a_number_a_list_or_a_name_may_be(parse, text, value):
    if value is BAD:
        raised(ValueError, parse, text)
    else:
        assert parse(text) == value


def test_forty_links_lead_to_a_file_and_no_more(plant):
    root = Root(str(plant({"/l0": "text"} | {f"/l{n}": f"-> l{n - 1}" for n in range(1, 42)})))
    assert [root.read(f"/l{n}").status for n in (40, 41)] == ["ok", "absent"]


@given(st.text())
def test_parsers_raise_nothing_but_value_error(text):
    for parse in (parse_list, parse_mask):
        try:
            parse(text)
        except ValueError:
            continue
