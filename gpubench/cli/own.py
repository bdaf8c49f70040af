"""Functions of a user's own among the words of `run`: `options.py`, `options.py:pairwise`, `--ops options.py,add`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpubench import kernels
from gpubench.base import units
from gpubench.base.errors import UsageError, suggest

if TYPE_CHECKING:
    from gpubench.cli.options import RunOptions
    from gpubench.functions.sources import CodePlace

# The start counts for half of a budget, and devices have to be opened, too.
TRIAL_SHARE = 0.4


def with_functions(options: RunOptions) -> RunOptions:
    """The options, with each file or function as the id of an op, once a child process has looked at them.

    Raises UsageError for a file without a function that can be measured.
    """
    from gpubench.functions import sources

    words = units.split_words(options.ops)
    places = [sources.parse_place(word) for word in words]
    named = [_file(word, options.functions or []) for word in options.functions or []]
    files = [*named, *(place for place in places if place is not None)]
    if not files:
        return options
    if getattr(options, "cluster", None) is not None:
        raise UsageError(
            "not-with-cluster", "a function of your own is measured on this machine",
            why="the nodes of a cluster do not have its file", hint="leave --cluster out",
        )  # fmt: skip
    ids = sources.declare(
        files,
        sizes=named_sizes(options.sizes or []),
        dtype=first_dtype(options.dtypes),
        limit_s=trial_s(options),
    )
    dtypes = options.dtypes
    if dtypes == options.declared["dtypes"].default:  # nobody named any: functions may
        declared = [kernels.own()[name].dtypes for name in ids]
        dtypes = ",".join(dict.fromkeys(dtypes if dtypes in own else own[0] for own in declared))
    rest = [word for word, place in zip(words, places, strict=True) if place is None]
    return options.replace(ops=",".join([*ids, *rest]), functions=None, dtypes=dtypes)


def _file(word: str, words: list[str]) -> CodePlace:
    """Parse one of the `words` that name files. Raises UsageError for a word that names none."""
    from gpubench.functions import sources

    place = sources.parse_place(word)
    if place is not None:
        return place
    is_op = word in kernels.names() or word in kernels.groups()
    near = f"write --ops {word}" if is_op else suggest(word, kernels.names())
    named = [other for other in words if other.endswith(".py")]
    if Path(f"{word}.py").is_file():
        near = f"write {word}.py"
    elif named and not is_op:
        near = f"write {named[0]}:{word}"
    raise UsageError(
        "bad-function", f"{word!r} is not a file with functions", why="a file ends in .py, a module has a colon",
        hint=near or "write options.py or options.py:NAME",
    )  # fmt: skip


def named_sizes(texts: list[str]) -> list[int]:
    """Return all sizes that are named, of whatever op: at no other one is a function called."""
    lists = [text.rpartition("=")[2] for text in texts]
    return sorted({n for text in lists if text.strip() != "auto" for n in units.parse_sizes(text)})


def trial_s(options: RunOptions) -> float | None:
    """Seconds for trying a function out, of a budget that somebody named."""
    named = getattr(options, "budget", None)
    return None if named is None else TRIAL_SHARE * units.parse_duration(named, option="--budget")


def first_dtype(texts: str) -> str:
    """The first of the dtypes of a list."""
    from gpubench.result.case import LONG_DTYPES

    dtype = texts.split(",")[0].strip()
    return LONG_DTYPES.get(dtype, dtype)
