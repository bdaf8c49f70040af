"""`gpubench advise`: where one call should run, from measured results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.errors import UsageError
from gpubench.suggestions import require_choice, suggest

if TYPE_CHECKING:
    from gpubench.report.analysis.contest import Key

FORMATS = ("table", "json", "env")
PLACES = ("host", "device")
_SHORT_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def advise(
    op: Annotated[str, typer.Argument(metavar="OP", help="An op, as `gpubench ops` lists them.")],
    size: Annotated[str, typer.Option("--size", metavar="N", help="The size, as 1000, 4k or 2^20.")],
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Type of the elements.")] = "float32",
    params: Annotated[
        str | None,
        typer.Option("--params", metavar="NAME=N[,NAME=N]", help="Params beside the size, as in `run`."),
    ] = None,
    data: Annotated[
        str,
        typer.Option("--data", metavar="|".join(PLACES), help="Where the data is before and after the call."),
    ] = "host",
    calls: Annotated[
        int, typer.Option("--calls", metavar="N", min=1, help="Calls that share one copy, with --data host.")
    ] = 1,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="Answer from this result, - for stdin. Default: the newest ones."
        ),
    ] = None,
    results_dir: Annotated[
        Path, typer.Option("--results-dir", metavar="DIR", help="Where this machine's results are looked for.")
    ] = Path("results"),
    format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How to write the answer.")
    ] = "table",
) -> None:
    """Say on which device one call should run, from measured results: expected time, gain, and what that rests on."""
    require_choice(format, FORMATS, "--format")
    require_choice(data, PLACES, "--data")
    if data == "device" and calls != 1:
        raise UsageError(
            "useless-calls", "--calls and --data device exclude each other",
            why="--calls counts the calls that share a copy, and data on the device is not copied",
            hint="leave one of them out",
        )  # fmt: skip
    n, key = _size(size), _key(op, dtype, params)
    from gpubench.report import advice, results

    found = advice.answer(results.runs(source, results_dir), key, n, None if data == "device" else calls)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(advice.render(found, format))


def _size(text: str) -> int:
    from gpubench import units

    sizes = units.parse_sizes(text, option="--size")
    if len(sizes) != 1:
        raise UsageError(
            "many-sizes", f"--size: {text[:60]!r} is more than one size", why="one question has one answer",
            hint="ask for each size by itself",
        )  # fmt: skip
    return sizes[0]


def _key(op: str, dtype: str, params: str | None) -> Key:
    from gpubench import kernels
    from gpubench.report.analysis.contest import Key

    try:
        declared = kernels.load(op)
    except KeyError:
        raise UsageError(
            "unknown-op", f"there is no op {op[:40]!r}", why="`gpubench ops` lists those that there are",
            hint=suggest(op, kernels.names()) or "gpubench ops",
        ) from None  # fmt: skip
    name = require_choice(_SHORT_DTYPES.get(dtype, dtype), declared.dtypes, "--dtype")
    if params is None:
        return Key(op, name)
    from gpubench.cli._shapes import parse_params

    shapes = parse_params([params], {op: declared})[op]
    if len(shapes) != 1:
        raise UsageError(
            "many-shapes",
            f"--params: {params[:60]!r} is more than one shape",
            why="one question has one answer",
            hint="ask for each by itself",
        )
    return Key(op, name, tuple(sorted(shapes[0].items())))
