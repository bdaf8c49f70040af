"""Streams that survive what cannot be written, and lines that no runner of a CI obeys."""

import contextlib
import errno
import io
import itertools
import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.base import streams
from gpubench.base.processes import FRAME, Ended
from gpubench.base.streams import inert, inert_json
from gpubench.base.table import Cell, Column, Table, cells, heads, line_text, number, paint, table_lines

# As the runners read: trimmed lines that start with two colons, and ## with a name and a bracket anywhere.
OBEYED = re.compile(r"(^|[\r\n])(\x1b\[[0-9;]*m|\s)*::|##[\w.]*\[")


class Broken(io.StringIO):
    """A stream that fails at its nth writing."""

    def __init__(self, error: Exception, good: int = 0) -> None:
        super().__init__()
        self._error, self._good = error, good

    def write(self, text: str) -> int:
        self._good -= 1
        if self._good < 0:
            raise self._error
        return super().write(text)

    flush = lambda self: self.write("") and None  # noqa: E731


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "full"), BrokenPipeError(), OSError(errno.EIO, "gone"), ValueError("closed file"),
])  # fmt: skip
def test_what_cannot_be_noted_is_lost_and_nothing_else(error: Exception) -> None:
    stream = streams.surviving(Broken(error, good=1))
    print("first", file=stream, flush=True)
    print("second", file=stream, flush=True)
    assert stream.stream.getvalue() == "first"


def test_a_character_that_an_encoding_lacks_is_spelled() -> None:
    raw = io.BytesIO()
    stream = streams.surviving(io.TextIOWrapper(raw, encoding="cp1252"))
    stream.write("1 \xb1 \u2192\n")
    stream.flush()
    assert raw.getvalue() == b"1 \xb1 \\u2192\n"


@pytest.mark.parametrize("text", [
    "::error::x", "  ::error::x", "\t::add-mask::x", "a\n::error::x", "a\r::error::x", "\x1b[1m::error::x", "::::",
    "##[error]x", "text ##[add-mask]x", "###[stop-commands]x", "##vso[task.setvariable]x", "##teamcity[x]", "\xa0::x",
    "tests/a.py::test", "a :: b", "a: ::b", "# #[x]", "## [x]", "#[x]", "## heading", "[x]",
])  # fmt: skip
def test_no_line_is_a_command_and_what_is_none_stays(text: str) -> None:
    assert not OBEYED.search(inert(text))
    assert (inert(text) != text) == bool(OBEYED.search(text))
    assert inert(text).replace(" ", "") == text.replace(" ", ""), "a blank and nothing else"


@pytest.mark.parametrize("hidden", ["\u200b", "\xad", "\u2060", "\ufeff", "\u034f", "\ufe0f", "\x9b"])
def test_marks_that_show_nothing_hide_no_command(hidden: str) -> None:
    """A comparison by the rules of a culture, as .NET's, skips them."""
    for text in ("::error::x", "##[error]x"):
        for i in range(3):
            assert not OBEYED.search(inert(text[:i] + hidden + text[i:]).replace(hidden, ""))


@given(st.lists(st.text(alphabet=":# [ax]\n\r\t\u200b"), max_size=6))
def test_however_a_text_is_cut_no_line_of_it_is_a_command(parts: list[str]) -> None:
    whole = io.StringIO(newline="")
    stream = streams.Stream(whole, survives=False, guarded=True)
    stream.writelines(parts)
    assert whole.getvalue() == inert("".join(parts))
    assert not OBEYED.search(whole.getvalue().replace("\r", "\n").replace("\u200b", ""))


@given(st.text(alphabet='#[vs.]\u200b\x7f\x9b\u202e\u2028\\" \U000e0041'))
def test_json_holds_no_command_and_means_the_same(text: str) -> None:
    for ascii in (True, False):
        shown = inert_json(json.dumps([text], ensure_ascii=ascii).encode()).decode()
        assert json.loads(shown) == [text]
        assert not OBEYED.search(shown)
        assert not any(ord(c) in range(0x7F, 0xA0) or c in "\u202e\u2028\u200b\U000e0041" for c in shown)


def test_standard_output_tells_that_it_cannot_be_written() -> None:
    stream = streams.Stream(Broken(BrokenPipeError()), survives=False, guarded=False)
    for write in (lambda: stream.write("x"), stream.flush):
        with pytest.raises(BrokenPipeError):
            write()


def test_a_long_line_hides_none_and_becomes_none() -> None:
    whole = io.StringIO()
    stream = streams.Stream(whole, survives=False, guarded=True)
    for part in itertools.chain(["x"], [" " * 50] * 20, ["::a", "\n", " " * 500, "::b"]):
        stream.write(part)
    assert "::a" in whole.getvalue()
    assert whole.getvalue().endswith(": :b")


def test_a_command_of_ours_has_a_line_of_its_own() -> None:
    whole = io.StringIO()
    stream = streams.Stream(whole, survives=True, guarded=True)
    stream.write("half")
    stream.command("::error::x")
    stream.write("::y")
    assert whole.getvalue() == "half\n::error::x\n: :y"
    for stderr, text in (
        (streams.Stream(io.StringIO(), survives=True, guarded=True), ": :y\n::z\n"),
        (io.StringIO(), "::y\n::z\n"),
    ):
        with contextlib.redirect_stderr(stderr):
            print("::y", file=sys.stderr)
            streams.command("::z")
        assert getattr(stderr, "stream", stderr).getvalue() == text


@pytest.mark.parametrize("name", ["CI", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"])
@pytest.mark.parametrize("value", ["true", ""])
def test_who_reads_lines(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setattr(streams.os, "environ", {name: value})
    assert streams.in_runner() is bool(value)
    told = {text: streams.in_ci({"CI": text}) for text in ("true", "1", "", "0", "False")}
    assert (told, streams.in_ci({})) == (
        {"true": True, "1": True, "": False, "0": False, "False": False},
        False,
    )


def test_a_child_ends_with_its_standard_input_that_its_parent_holds() -> None:
    program = "from gpubench.base import child_main; import time; child_main.lines_of_parent(); time.sleep(20)"
    words = [sys.executable, "-c", f"{program}; raise SystemExit(7)"]
    assert subprocess.run(words, stdin=subprocess.DEVNULL, timeout=60, check=False).returncode == 0


def test_output_that_is_kept_apart_appears_line_by_line_as_before() -> None:
    program = "sys.stdout.reconfigure(line_buffering=True); streams.take_over(); streams.keep_apart()"
    words = [
        sys.executable,
        "-c",
        f"import sys; from gpubench.base import streams; {program}; print(sys.stdout.line_buffering)",
    ]
    assert subprocess.run(words, capture_output=True, check=False).stderr == b"True\n"


@pytest.mark.parametrize(("made", "expected"), [
    (streams.columns("日本a"), 5), (streams.cut("abcdef", 6), "abcdef"), (streams.cut("abcdefg", 6), "abc..."), (streams.fill("aaaaa bbbbb-ccccc-dd eeeee", 16), ["aaaaa", "  bbbbb-ccccc-dd", "  eeeee"]),
    (streams.cut("日本語", 6), "日本語"), (streams.cut("日本語", 5), "日..."), (streams.pad("ab", 4), "ab  "), (streams.pad("日", 4, right=True), "  日"),
    (streams.fill("aaaa " * 6, 20), ["aaaa aaaa aaaa aaaa", "  aaaa aaaa"]), (streams.fill("aaaa " * 6, 3), streams.fill("aaaa " * 6, 16)),
    (streams.fill("日本 " * 5, 20), ["日本 日本 日本 日本", "  日本"]), (streams.fill("", 10), [""]), (streams.fill("日" * 21, 21, ""), ["日" * 10, "日" * 10, "日"]),
    (streams.shorten("x" * 40), "x" * 40), (streams.shorten("x" * 41), "x" * 37 + "..."), (streams.printable("a\n b"), "a b"),
    (streams.cut_middle("abcdefghij", 10), "abcdefghij"), (streams.cut_middle("abcdefghij", 9), "abc...hij"), (streams.cut_middle("日本語日本語", 9), "日...語"),
    (streams.visible("a\x1b[0m\u202e"), "a [0m "), (streams.wrap("aaaa " * 6, 20), "aaaa aaaa aaaa aaaa\n  aaaa aaaa"),
    (paint((Cell(" ", "bad"), Cell("x", "good")), color=True), " \x1b[32mx\x1b[0m"),  # blanks alone have no colour
])  # fmt: skip
def test_a_text_is_measured_cut_and_wrapped_by_its_columns(made, expected):
    """A wide character takes two; no line is narrower than sixteen."""
    assert made == expected


ROWS = (cells("a-very-long-name-1", "1.2", Cell("900", brief="9")), cells("b", "10", "8"))
PLAIN = Table(heads("name", number("time", 1), number("rate", 2)), ROWS)
CUT = Table(heads(Column("name", least=10), number("time"), number("rate")), ROWS)
BARE = Table(heads("name", number("time"), number("rate")), ROWS, bare=True)
GROUPS = Table(
    heads("name", *(Column(name, right=True, group=group) for name, group in (("t", "a GPU"), ("r", "a GPU"), ("t", "a host and CPU")))),
    tuple((*row, Cell("5")) for row in ROWS), bare=True,
)  # fmt: skip


@pytest.mark.parametrize(("table", "width", "lines"), [
    (PLAIN, 30, "name                time  rate/------------------  ----  ----/a-very-long-name-1   1.2   900/b                     10     8"),
    (PLAIN, 29, "name                time/------------------  ----/a-very-long-name-1   1.2/b                     10"),
    (PLAIN, 16, "name/----------------/a-very-long-name/-1/b"),
    (CUT, 28, "name              time  rate/----------------  ----  ----/a-very-...name-1   1.2   900/b                   10     8"),
    (CUT, 20, "name        time/    rate/--------------------/a-ve...e-1   1.2/       9/b             10/       8"),
    (BARE, 30, "name                time  rate/a-very-long-name-1   1.2   900/b                     10     8"),
    (BARE, 29, "name               time  rate/a-very-...-name-1   1.2     9/b                    10     8"),
    (BARE, 20, "name      time  rate/a-v...-1   1.2     9/b           10     8"), (BARE, 16, "name      tim.../a-v...-1   1..../b           1..."),
    (GROUPS, 40, "                 a GPU    a host and CPU/name               t  r                t/a-very...name-1  1.2  9                5/b                 10  8                5"),
    (GROUPS, 29, "                    a GPU/name                  t  r/a-very-long-name-1  1.2  9/b                    10  8/               a host and CPU/name                        t/a-ver...ame-1               5/b                           5"),
])  # fmt: skip
def test_a_table_drops_cuts_or_divides_what_is_too_wide(table, width, lines):
    assert "/".join(map(line_text, table_lines(table, width))) == lines


@pytest.mark.parametrize(("output", "message", "noise"), [
    ("hello\nFRAME{1}\nFRAME{2}\nbye\n", "{2}", False), ("hello\nyou", "hello\nyou", True), ("", "", False),
])  # fmt: skip
def test_the_last_message_of_a_child_counts_and_without_one_its_whole_output(output, message, noise):
    ended = Ended(0, output.replace("FRAME", FRAME.decode()), "", 1.0)
    assert (ended.message, bool(ended.noise)) == (message, noise)
