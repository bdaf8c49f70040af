"""`gpubench detect`: CPU, RAM and GPUs of this machine or of a recorded one, and the mode they suggest."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpubench.cli._measured import read_result
from gpubench.cli._options import Ascii, Color, Quiet
from gpubench.errors import InputError, RequiredUnavailable, UsageError

if TYPE_CHECKING:
    from gpubench.model.machine import Machine

FORMATS = ("table", "json", "markdown", "env")
MODES = ("cpu", "gpu", "hybrid")


def detect(
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How to write the machine.")
    ] = "table",
    deep: Annotated[
        bool, typer.Option("--deep", help="Also open the devices and run one checked kernel on each.")
    ] = False,
    wake: Annotated[bool, typer.Option("--wake", help="Allow probes that wake a sleeping GPU.")] = False,
    sysroot: Annotated[
        Path | None, typer.Option("--sysroot", metavar="DIR", help="Describe the machine recorded under DIR.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option("--records", metavar="FILE", help="Merge the provider records in FILE.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="|".join(MODES), help="Choose the mode yourself.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="PATH", help="Measured results to use (default: results)."),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(
            "--require", metavar="cpu|gpu|BACKEND|DEVICE", help="Exit with 5 when it is not to be had."
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Source and alternatives of every fact.")] = False,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="DIR|FILE.tar.gz", help="Save the files that were read.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Keep the raw records of each GPU.")] = False,
    quiet: Quiet = False,
    color: Color = "auto",
    ascii: Ascii = False,
) -> None:
    """Inspect CPU, RAM and GPUs, and say whether to compute on the CPU, the GPU or both, and why."""
    chosen = _format("json" if as_json else format, mode, sysroot, records)
    from gpubench import detect as detection

    source = _folder(sysroot) if sysroot is not None else None
    if record is not None:
        detection.save_recording(record, source)
    machine = detection.inspect(
        sysroot=source, records=_records(records) if records is not None else None, mode=mode, deep=deep, wake=wake,
        debug=debug, results=_measured(results, live=sysroot is None and records is None), read=read_result,
    )  # fmt: skip
    if chosen == "json":
        typer.echo(detection.to_json(machine))
    else:
        text = detection.render(machine, chosen, color=color, ascii=ascii, explain=explain)
        typer.echo(text, color=True if color == "always" else None)
        if not quiet:
            _tell(machine)
    if require is not None:
        _require(machine, require)


def _format(chosen: str, mode: str | None, sysroot: Path | None, records: Path | None) -> str:
    from gpubench.suggestions import require_choice

    require_choice(chosen, FORMATS, "--format")
    if mode is not None:
        require_choice(mode, MODES, "--mode")
    if sysroot is not None and records is not None:
        raise UsageError(
            "two-inputs", "--sysroot and --records exclude each other", why="each replaces this machine as the input",
            hint="give one of them",
        )  # fmt: skip
    return chosen


def _folder(path: Path) -> Path:
    """The folder of a recorded machine. Raises InputError if it cannot be listed."""
    try:
        os.listdir(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, error, "give a folder that holds proc/ and sys/") from error
    return path


def _records(path: Path) -> list[dict[str, Any]]:
    """The records of a file. Raises InputError if it is not of that form."""
    hint = 'the file must read {"records": [{"source": "nvml", ...}, ...]}'
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(path, error, hint) from error
    found = document.get("records") if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(
        isinstance(r, dict) and r.get("source") and isinstance(r["source"], str) for r in found
    ):
        raise InputError(
            "not-records",
            f"{path}: not a file of provider records",
            why="it is JSON of another form",
            hint=hint,
        )
    return found


def _unusable(path: Path, error: Exception, hint: str) -> InputError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return InputError("unreadable-input", f"{path}: cannot be read", why=why, hint=hint)


def _measured(path: Path | None, *, live: bool) -> Path | None:
    """Where measured results are: named by the user, else the folder of `gpubench run` on this machine."""
    if path is not None:
        if not os.path.exists(path):
            raise InputError(
                "no-results", f"--results: {path} cannot be used", why="there is no such file or folder",
                hint="name a result file or its folder",
            )  # fmt: skip
        return path
    if not live:
        return None
    folder = Path("results")
    # Where this folder cannot be written, `gpubench run` writes to the user's.
    if not os.path.isdir(folder) and not os.access(".", os.W_OK):
        from gpubench.store import default_results_dir

        folder = default_results_dir()
    return folder if os.path.isdir(folder) else None


def _tell(machine: Machine) -> None:
    """Failed probes and warnings, on stderr."""
    from gpubench.foreign_text import visible

    for warning in machine.warnings:
        print(f"note: {visible(warning.text)}", file=sys.stderr)
    for provider in machine.providers:
        if provider.status != "ok":
            hint = f": {provider.hint}" if provider.hint else ""
            text = visible(f"note: the probe {provider.name} ended with {provider.status}{hint}")
            print(text, file=sys.stderr)


def _require(machine: Machine, wanted: str) -> None:
    from gpubench import detect as detection

    lacking = detection.lacks(machine, wanted)
    if lacking is not None:
        raise RequiredUnavailable(
            "required-unavailable",
            f"{wanted} is required and not to be had",
            why=lacking.why,
            hint=lacking.hint,
        )
