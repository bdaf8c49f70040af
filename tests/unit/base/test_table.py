"""The one table: what it leaves out, shrinks and puts below each other where there is no room."""

import pytest

from gpubench.base.table import (
    Cell,
    Column,
    Table,
    cells,
    line_text,
    mark_repeats,
    markdown_table,
    number,
    paint,
    table_lines,
)
from tests.rows import rows

GROUPED = Table(
    (Column(""), Column("from", right=True, group="resident"), Column("gain", group="resident"),
     Column("from", right=True, group="copied at every call"), Column("gain", group="copied at every call")),
    (cells("matmul", "210", "GPU 42x", "1003", "GPU 8x"), cells(Cell("matmul", again=True), "9", "-", "-", "CPU 2x")),
    bare=True,
)  # fmt: skip


def drawn(table, width):
    return list(map(line_text, table_lines(table, width)))


LONG = (Column(""), *(Column(name, group="a long label") for name in "ab"), Column("c", group="next"))
WRAPPED = ((Cell("11"), Cell("ten words of which no more than three fit it", more=(Cell("below"),))),)


@rows("table, width, lines", {
    "a group stands above its columns and is as wide as its label": (GROUPED, 60, [
        "        resident        copied at every call",
        "        from  gain      from  gain",
        "matmul   210  GPU 42x   1003  GPU 8x",
        "           9  -            -  CPU 2x"]),
    "a long label widens the last column of its group": (
        Table(LONG, (cells("x", "1", "2", "3"),), bare=True), 60, ["   a long label   next", "   a  b           c", "x  1  2           3"]),
    "a last column is wrapped before others go": (
        Table((Column("a", rank=1), Column("b", least=20)), WRAPPED, bare=True), 24,
        ["a   b", "11  ten words of which", "    no more than three", "    fit it", "    below"]),
})  # fmt: skip
def test_a_table_is_drawn(table, width, lines):
    assert drawn(table, width) == lines


def test_groups_stand_below_each_other_where_both_do_not_fit():
    lines = drawn(GROUPED, 30)
    assert lines[0].strip() == "resident"
    assert lines[4].strip() == "copied at every call"
    assert all(len(line) <= 30 for line in lines)


@pytest.mark.parametrize(("width", "left"), [(40, "abcd"), (16, "abd"), (11, "ad")])
def test_the_highest_rank_is_left_out_first(width, left):
    columns = (Column("a"), Column("b", rank=1), Column("c", rank=2), Column("d"))
    lines = drawn(Table(columns, (cells("11", "2222", "3333", "444"),)), width)
    assert lines[0].split() == list(left)


@pytest.mark.parametrize(("width", "expected"), [
    (20, ["aaa    bb  c", "    long", "-" * 20, "1    2222  333", "    some words that", "    no line holds"]),
    (34, ["aaa    bb  c    long", "---  ----  ---  " + "-" * 18, "1    2222  333  some words that no", " " * 16 + "line holds"]),
])  # fmt: skip
def test_a_row_that_is_too_wide_goes_on_below(width, expected):
    row = cells("1", "2222", "333", "some words that no line holds")
    table = Table((Column("aaa"), number("bb"), Column("c"), Column("long")), (row,))
    assert drawn(table, width) == expected


def test_leading_cells_that_repeat_the_row_above_are_marked_up_to_a_count():
    texts = ("ab1", "ab1", "ac1", "bc1", "bc2")
    marked = mark_repeats([cells(*text) for text in texts], 2)
    assert ["".join(cell.text for cell in row) for row in marked] == [*texts]
    assert [sum(cell.again for cell in row) for row in marked] == [0, 2, 1, 0, 2]


def test_a_column_of_numbers_stays_unless_it_has_a_rank():
    assert (number("a"), number("a", 2)) == (Column("a", right=True), Column("a", right=True, rank=2))


def test_markdown_says_again_what_lines_leave_blank():
    head, rule, first, second = markdown_table(GROUPED).splitlines()
    assert head.split(" | ")[1:3] == ["resident: from", "resident: gain"]
    assert rule.count("---:") == 2
    assert first.startswith("| matmul |")
    assert second.startswith("| matmul |")


def test_blanks_alone_have_no_colour():
    assert paint((Cell(" ", "bad"), Cell("x", "good")), color=True) == " \x1b[32mx\x1b[0m"
