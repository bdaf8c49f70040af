"""vl_convert, which draws, in a child process: what is native may end its process, and a report has to survive that."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpubench.base import processes
from gpubench.base.child_main import Messages
from gpubench.base.errors import GpubenchError
from gpubench.result.store.cache import user_cache


def missing_libraries() -> list[str]:
    """Return which libraries that draw are not installed."""
    return [name for name in ("altair", "vl_convert") if importlib.util.find_spec(name) is None]


Call = tuple[str, Sequence[Any], dict[str, Any]]  # a function of vl_convert, its arguments and its options
START_S, PICTURE_S = 60.0, 10.0  # a picture takes 50 ms
MOST_BYTES = 256 << 20  # of pictures in base64


def results(calls: Sequence[Call]) -> list[bytes]:
    """Return what the calls return, text as UTF-8. Raises GpubenchError if the library fails, ends its process or
    hangs."""
    limit_s = START_S + PICTURE_S * len(calls)
    try:
        ended = processes.run(
            processes.python("gpubench.report.vega"), limit_s,
            stdin=json.dumps(calls).encode(), most_output=MOST_BYTES,
        )  # fmt: skip
    except OSError as error:
        raise drawing_error(f"no process can be started for vl_convert: {error.strerror}") from error
    if ended.status is None:
        raise drawing_error(f"vl_convert did not answer within {limit_s:.0f} s")
    words = (ended.errors.splitlines() or [""])[-1][:300]
    if ended.status:
        raise drawing_error(f"vl_convert {processes.ending(ended.status)}" + (f": {words}" if words else ""))
    try:
        return [base64.b64decode(text) for text in json.loads(ended.message)]
    except (ValueError, TypeError):
        raise drawing_error(
            "vl_convert gave no picture" + (f": {ended.noise}" if ended.noise else "")
        ) from None


@functools.cache
def page_script() -> str:
    """Return the script that draws in a page, as vl_convert brings it. vl_convert takes two seconds to put it together,
    so the user's cache keeps it."""
    cache, name = user_cache(), _script_name()
    content = name and cache.read(name, "the script of the charts")
    if content:
        return content.decode()
    script = results([("javascript_bundle", [], {})])[0]
    if name:
        cache.write(name, script)
    return script.decode()


def _script_name() -> str:
    """Return the name in the cache of what this vl_convert brings; an empty text if its version is not known."""
    from importlib import metadata

    try:
        return f"vega-{metadata.version('vl-convert-python')}.js"
    except metadata.PackageNotFoundError:  # then nothing tells which script it would be
        return ""


@contextmanager
def altair_failures() -> Iterator[None]:
    """GpubenchError for an exception out of altair, or out of its absence; one of ours stays what it is: a bug."""
    try:
        yield
    except GpubenchError:
        raise
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = "" if frame is None else frame.tb_frame.f_globals.get("__name__", "")
        if where.partition(".")[0] == "gpubench" and not isinstance(error, ImportError):
            raise
        raise drawing_error(f"altair raised {type(error).__name__}: {str(error)[:300]}") from error


@contextmanager
def skip_schema_checks() -> Iterator[None]:
    """altair does not hold specs against Vega-Lite's schema: that takes as long as to make them, and a test does it."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


def drawing_error(why: str) -> GpubenchError:
    """The error of a library that does not draw."""
    return GpubenchError("cannot-draw", why=why)


def main() -> None:
    """In the child: make all calls, which are JSON on stdin, then tell all results, bytes in base64."""
    messages = Messages()
    import vl_convert

    made = (
        getattr(vl_convert, name)(*arguments, **options) for name, arguments, options in json.load(sys.stdin)
    )
    texts = [picture if isinstance(picture, bytes) else picture.encode() for picture in made]
    messages.write(json.dumps([base64.b64encode(content).decode() for content in texts]).encode())


if __name__ == "__main__":
    main()
