"""The screen of an answer that has no room for a line of notes."""

from gpubench.report.sections.answer import Screen, screen_lines


def test_a_head_that_takes_all_lines_leaves_no_note_and_no_error():
    head = tuple(f"line {i}" for i in range(12))
    screen = Screen(
        sentences=(("The GPU wins.",),), context=head, table=None, troubles=(), notes=((5, "a note"),), files=(),
        most=10,
    )  # fmt: skip
    assert len(screen_lines(screen, 60)) == 1 + len(head)
