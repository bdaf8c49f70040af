"""The standard streams, and functions that show foreign text safely. A failure to write to standard error never
ends a run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

# Variables of CI runners that execute commands in the lines of a log: GitHub, Forgejo and Gitea; Azure
# Pipelines; TeamCity; and the variable that nearly all of them set.
RUNNERS = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION", "CI")
_TAIL = 200  # most characters of an unfinished line that are kept, because later text may complete a command


class Stream:
    """A wrapper of a standard stream. If `guarded` is true, a CI runner finds no commands in written text. If
    `survives` is true, text that cannot be written is dropped without an error."""

    def __init__(self, stream: IO[str], *, survives: bool, guarded: bool) -> None:
        self.stream = stream
        self._survives = survives
        self.guarded = guarded
        self.apart = False  # whether only `put` writes to this stream, and other text goes to standard error
        self._line = ""  # the line that has not ended, as it was written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write `text`, or send it to standard error if the stream is kept apart (`keep_apart`). Return the
        length of `text`."""
        if not self.apart:
            self.put(text)
        elif sys.stderr is not None:
            sys.stderr.write(text)
        return len(text)

    def put(self, text: str) -> None:
        """Write `text` to the stream itself, even if the stream is kept apart."""
        self._put(self._inert(text) if self.guarded else text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._lossy():
            self.stream.flush()

    def command(self, line: str) -> None:
        """Write a line that the CI runner executes as a command, even if the stream is guarded."""
        self._put("\n" * bool(self._line) + line + "\n")
        self._line = ""

    def _put(self, text: str) -> None:
        with self._lossy():
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def _lossy(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that suppresses errors of writing if `survives` is true."""
        # Writing to a closed stream raises ValueError.
        return contextlib.suppress(OSError, ValueError) if self._survives else contextlib.nullcontext()

    def _inert(self, text: str) -> str:
        shown = inert(self._line + text)
        written = shown[len(self._line) :]
        line = shown[max(shown.rfind("\n"), shown.rfind("\r")) + 1 :]
        # A letter stands for the beginning of a long line, so that it differs from an empty one.
        self._line = line if len(line) <= _TAIL else "x" * bool(line.strip()) + line[-_TAIL:]
        return written


def in_ci(environ: Mapping[str, str]) -> bool:
    """Return whether this process runs in continuous integration: CI is set, but not to 0 or false."""
    return environ.get("CI", "").lower() not in ("", "0", "false")


def in_runner() -> bool:
    """Return whether a CI runner may execute commands in the output of this process, which is the case if a
    variable of RUNNERS is set."""
    return any(os.environ.get(name) for name in RUNNERS)


def take_over() -> None:
    """Replace standard output and standard error by Streams.

    In Python, a stream that was closed before the start (`>&-`) is None. Text for such a stream is dropped.
    """
    guarded = in_runner()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Stream):
            stream.guarded = guarded
            continue
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
        elif name == "stdout" and isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            # PYTHONUNBUFFERED: if the system takes only a part of a write, the rest would be lost without an error.
            stream = open(  # noqa: SIM115
                1, "w", encoding=stream.encoding, errors=stream.errors, buffering=1, closefd=False
            )
            setattr(sys, "__stdout__", stream)  # noqa: B010 - typing calls it final
        setattr(sys, name, Stream(stream, survives=name == "stderr", guarded=guarded))


def keep_apart() -> None:
    """Reserve standard output for `put`, and send all other output to standard error. This works once, and only
    if sys.stdout is the Stream that `take_over` made."""
    out = sys.stdout
    if not isinstance(out, Stream) or out.stream is not sys.__stdout__:
        return
    out.flush()
    # Other code may print from Python, from C or from a thread, so the output of `put` goes to a private
    # descriptor.
    private = os.dup(out.fileno())
    with contextlib.suppress(OSError):  # standard error is closed
        os.dup2(2, 1)
    out.stream = open(  # noqa: SIM115 - until the process ends
        private, "w", encoding=out.encoding, errors=out.errors, buffering=1 if out.line_buffering else -1
    )
    out.apart = True


def surviving(stream: IO[str]) -> Any:
    """Return `stream` if it is a Stream, otherwise a Stream around it that survives errors of writing."""
    return stream if isinstance(stream, Stream) else Stream(stream, survives=True, guarded=in_runner())


def put(text: str) -> None:
    """Write `text` to standard output in UTF-8, in any locale."""
    out: Any = sys.stdout
    if getattr(out, "encoding", "") != "utf-8" and hasattr(out, "reconfigure"):
        out.reconfigure(encoding="utf-8", errors="backslashreplace")
    getattr(out, "put", out.write)(text)


class Output:
    """Standard output as an object to which callers write text, in UTF-8 and in any locale."""

    name, write = "standard output", staticmethod(put)

    def flush(self) -> None:
        sys.stdout.flush()


def command(line: str) -> None:
    """Write to standard error a line that a CI runner executes as a command."""
    stream = sys.stderr
    if isinstance(stream, Stream):
        stream.command(line)
    else:
        print(line, file=stream)


# The patterns below are compiled when they are first used: most commands need none of them.

# Characters that Markdown may interpret inside a line. A bracket becomes a link only by "](" and a target only
# by "]:", and an underscore inside a word has no meaning.
_INSIDE = r"[\\`*~|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])[(:]"
# Beginnings of a heading, quotation, list, rule or quick action at the start of a line or of a list entry.
_AT_START = r"\A(?:(?P<number>\d{1,9}(?=[.)](?:\s|$)))|[#+=/-])"
# Text from which GitHub and GitLab make links or notifications, whatever Markdown says: @name, an e-mail
# address, owner/repository@commit, #12, !12, GH-12, scheme://, www. A mark of no width after the match prevents
# that. Case ids, which have @ after a letter, are none of these.
_LINKED = r"(?i)(?<![a-z\d])@(?=\w)|@(?=[\w-]+(?:\.[\w-]+)+|[\da-f]{7,40}\b)|[#!](?=\d)|\bGH(?=-\d)|:(?=//)|\bwww(?=\.)"
_NO_WIDTH = "&ZeroWidthSpace;"

# Invisible characters: control characters, direction marks, and characters that Unicode allows a renderer or a
# comparison of two texts to skip (Default_Ignorable_Code_Point).
_HIDDEN = (
    "\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff"
)
_BLANK = " \t\v\f\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Commands of CI runners: `::name` at the start of a line, after characters that they trim; `##[name]`,
# `##vso[name]` and `##teamcity[name]` anywhere in a line. Their comparison of texts skips invisible characters.
_COMMAND = (
    rf"(?:^|(?<=[\r\n]))(?:\x1b\[[0-9;]*m|[{_BLANK}{_HIDDEN}])*:[{_HIDDEN}]*(?=:)"
    rf"|#[{_HIDDEN}]*#[\w.{_HIDDEN}]{{0,99}}(?=\[)"
)
# Likewise inside JSON, in which no value begins a line: invisible characters, line ends of some readers, and
# commands.
_JSON_HIDDEN = "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
_JSON_COMMAND = rf"#(?=[{_HIDDEN}]*#[\w.{_HIDDEN}]{{0,99}}\[)"


def inert_json(text: bytes) -> bytes:
    """Return a JSON text (in UTF-8) with its invisible characters and CI commands escaped. The values stay the
    same."""
    if text.isascii() and b"##" not in text and b"\x7f" not in text:
        return text
    shown = re.sub(_JSON_COMMAND, "\\\\u0023", text.decode())
    return re.sub(_JSON_HIDDEN, _json_escape, shown).encode()


def encode_json(value: object, convert: Callable[[Any], Any] | None = None) -> bytes:
    """Return the JSON of `value`. Texts of the system, such as paths, may contain bytes that are not UTF-8: each
    becomes `?`. `convert` is called for objects that JSON has no type for."""
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=convert)
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(value, enc_hook=convert), ensure_ascii=False).encode(
            "utf-8", "replace"
        )


def _json_escape(mark: re.Match[str]) -> str:
    code = mark[0].encode("utf-16-be").hex()  # a character above U+FFFF is two escapes
    return "".join(f"\\u{code[i : i + 4]}" for i in range(0, len(code), 4))


def inert(text: str) -> str:
    """Return `text` with a blank inserted into each command, so that no CI runner executes it."""
    # Runners compare texts by cultural rules, which ignore characters without width.
    return re.sub(_COMMAND, r"\g<0> ", text)


def visible(text: str) -> str:
    """Return `text` with a blank in place of each character that is not printable, such as control characters,
    line ends and direction marks."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def escape(text: str) -> str:
    """Escape a line, or a part of a line, so that GitHub shows it exactly, makes no links of it and notifies
    nobody."""
    # html.escape does the same, and its module loads thousands of names.
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(_LINKED, rf"\g<0>{_NO_WIDTH}", text)
    shown = re.sub(_INSIDE, r"\\\g<0>", shown)
    return re.sub(_AT_START, _harmless, shown)


def _harmless(mark: re.Match[str]) -> str:
    return f"{mark[0]}\\" if mark["number"] else f"\\{mark[0]}"


# Inserted before a character that is two columns wide while text is laid out, so that the length of the text is
# its width. Printable text does not contain it.
_SECOND = "\0"
NARROWEST_WRAP = 16


def columns(text: str) -> int:
    """Return the width of the text in columns of a terminal."""
    return len(text) if text.isascii() else len(_widen(text))


def fill(text: str, width: int, indent: str = "  ") -> list[str]:
    """Return the lines of `text`, wrapped to at most `width` columns, or to NARROWEST_WRAP if that is more. All
    lines except the first begin with `indent`. An empty text gives one empty line."""
    import textwrap

    wide, room = _widen(text), max(width, NARROWEST_WRAP)
    # A line may end between _SECOND and its character. The next line is then wider than its length, by the column
    # that is kept free here.
    room -= len(wide) > room and _SECOND in wide
    lines = textwrap.wrap(wide, room, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_SECOND, "") for line in lines] or [""]


def cut(text: str, width: int) -> str:
    """Return `text` if it fits into `width` columns, otherwise its beginning and three dots."""
    if columns(text) <= width:
        return text
    return _widen(text)[: width - 3].replace(_SECOND, "") + "..."


def cut_middle(text: str, width: int) -> str:
    """Return `text` if it fits into `width` columns, otherwise its beginning, three dots and its end. Long names
    often differ only at their ends."""
    if columns(text) <= width:
        return text
    end = max(1, (width - 3) // 2)
    tail = _widen(text[::-1])[:end].replace(_SECOND, "")
    return cut(text, width - end) + tail[::-1]


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Pad `text` with blanks to `width` columns. If `right` is true, the blanks come before the text. A text
    that is not shorter stays unchanged."""
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks


def _widen(text: str) -> str:
    if text.isascii():
        return text
    import unicodedata

    return "".join(_SECOND + c if unicodedata.east_asian_width(c) in "WF" else c for c in text)


def printable(text: str) -> str:
    """Return `text` on one line, without control characters and direction marks."""
    return " ".join(visible(text).split())


def wrap(text: str, width: int) -> str:
    """Wrap `text` like `fill`, and return it as one text."""
    return "\n".join(fill(text, width))


def shorten(text: str, length: int = 40) -> str:
    """Return `text` on one line and without control characters, cut to `length` columns."""
    return cut(printable(text), length)
