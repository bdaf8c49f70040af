"""`gpubench advise`: where one call should run, from measured results."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from gpubench.base import streams
from gpubench.base.errors import UsageError, require_choice, suggest
from gpubench.cli.options import AdviseOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpubench.analysis.contenders import Key
    from gpubench.result.run import Run


def advise(options: AdviseOptions) -> None:
    """Say on which device one call should run, from measured results: expected time, gain, and what that rests
    on."""
    from gpubench.analysis.advice import answer
    from gpubench.analysis.machine import runs
    from gpubench.report.advice import WIDTH, render

    n, regime = _size(options.size), _regime(options)
    results = runs(options.source, options.results_dir)
    key = _key(options.op, options.dtype, options.params)
    if key is None:  # a function of the user's own: the results alone know it
        results, key = _of_function(options.op, options.dtype, list(results))
    advice = options.amend(answer(results, key, n, regime))
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    streams.put(render(advice, options.format, columns))


def _regime(options: AdviseOptions) -> str:
    """Return the id of the regime. Raises UsageError for --calls with data on the device, and for --queued with
    data on the host."""
    from gpubench.result.case import QUEUED, WAITED

    unused = "calls" if options.data == "device" else "queued"
    if getattr(options, unused) != options.declared[unused].default:
        raise UsageError(
            "bad-value", f"--{unused} does not go with --data {options.data}",
            why="calls share a copy of host data, and are queued on device data", hint="leave one of them out",
        )  # fmt: skip
    if options.data == "device":
        return QUEUED if options.queued else WAITED
    return "transfer-always" if options.calls == 1 else f"transfer-once-{options.calls}"


def _size(text: str) -> int:
    from gpubench.base import units

    size, *others = units.parse_sizes(text, option="--size")
    if others:
        raise UsageError(
            "many-sizes", f"--size: {text[:60]!r} is more than one size", why="one question has one answer"
        )
    return size


def _of_function(op: str, dtype: str, results: list[Run]) -> tuple[Iterator[Run], Key]:
    """Return the results, and the key of the measured function that the user calls `op`. Raises UsageError if
    no result has it, and for an unknown dtype."""
    from gpubench import kernels
    from gpubench.analysis.contenders import Key
    from gpubench.analysis.thresholds import resolve_op
    from gpubench.result.case import DTYPES, LONG_DTYPES

    measured = [
        outcome.case.op for run in results for outcome in run.outcomes if outcome.case.op not in kernels.names()
    ]
    try:
        name = resolve_op(op, measured)
    except UsageError:
        raise UsageError(
            "unknown-op", f"there is no op {op[:40]!r}", why="`gpubench ops` lists those that there are",
            hint=suggest(op, [*kernels.names(), *measured, *(name.rpartition(".")[2] for name in measured)]) or None,
        ) from None  # fmt: skip
    return iter(results), Key(name, require_choice(LONG_DTYPES.get(dtype, dtype), DTYPES, "--dtype"))


def _key(op: str, dtype: str, params: str | None) -> Key | None:
    """Return the key of an op, or None if no op of this name is declared. Raises UsageError for a dtype that
    the op lacks, and for params that name no single shape."""
    from gpubench import kernels
    from gpubench.analysis.contenders import Key
    from gpubench.result.case import LONG_DTYPES

    dtype = LONG_DTYPES.get(dtype, dtype)
    # Every op has float32, and its declaration costs start-up.
    if dtype == "float32" and params is None and op in kernels.names():
        return Key(op, dtype)
    try:
        declared = kernels.load(op)
    except KeyError:
        return None
    name = require_choice(dtype, declared.dtypes, "--dtype")
    if params is None:
        return Key(op, name)
    from gpubench.cli.selection import parse_params

    shapes = parse_params([params], {op: declared})[op]
    if len(shapes) != 1:
        raise UsageError(
            "many-shapes", f"--params: {params[:60]!r} is more than one shape", why="one question has one answer",
        )  # fmt: skip
    return Key(op, name, tuple(sorted(shapes[0].items())))
