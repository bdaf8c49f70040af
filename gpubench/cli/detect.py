"""`gpubench detect`: CPU, RAM and GPUs of this machine or of a recorded one, and the recommended mode."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubench.base import disk, streams
from gpubench.base.errors import InputError, RequiredUnavailable, UsageError
from gpubench.cli.options import DetectOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpubench.detect import Lack
    from gpubench.detect.inspection import Gathered
    from gpubench.measure.protocol import Listing
    from gpubench.result.machine import Machine, Measured, Status
    from gpubench.result.run import Run

# Most seconds in which a backend of another package lists its devices, so that `detect` ends within 40 s.
LISTING_S = 25.0


def detect(options: DetectOptions) -> int:
    """Inspect CPU, RAM and GPUs, and say whether to compute on the CPU, the GPU or both, and why."""
    format = options.format or ("table" if sys.stdout.isatty() else "plain")
    if options.sysroot is not None and options.records is not None:
        raise UsageError("two-inputs", why="each replaces this machine as the input")
    if options.require is not None:
        _require_word(options.require)
    import gpubench.detect as detection

    source = _folder(options.sysroot) if options.sysroot is not None else None
    if options.record is not None:
        detection.save_recording(options.record, source)
    live = source is None and options.records is None
    gathered, listings = _look(options) if live else (None, [])
    records = None  # the GPUs of other packages' backends, which detection merges with its own findings
    if listings:
        from gpubench.measure import targets

        records = targets.records(listings)
    machine = detection.inspect(
        sysroot=source, records=_records(options.records) if options.records is not None else None,
        extra_records=records,
        mode=options.mode, debug=options.debug, results=_results_place(options), read=read_result, gathered=gathered,
    )  # fmt: skip
    if listings:
        machine = _with_packages(machine, listings)
    if format == "json":
        streams.put(detection.to_json(machine) + "\n")
    else:
        from gpubench.cli.delivery import count_colors

        color = count_colors(options.color, os.environ, terminal=sys.stdout.isatty())
        print(detection.render(machine, format, color=color, ascii=options.ascii, explain=options.explain))
        if not options.quiet:
            _tell(machine)
    if options.debug:
        _tell_clash()
    if options.require is not None:
        _require(machine, options.require, here=options.sysroot is None)
    return 0


def _look(options: DetectOptions) -> tuple[Gathered, list[Listing]]:
    """Return what detection finds on this machine, and the listings of backends that detection cannot probe."""
    import gpubench.detect as detection
    from gpubench import backends
    from gpubench.base.streams import visible

    for error in () if options.quiet else backends.find_namesakes().values():
        print(f"note: {visible(error.message)}: {visible(error.why or '')}", file=sys.stderr)
    # PyTorch is not listed: its import takes long, and other backends list the same GPUs.
    names = [name for name in backends.usual() if name not in backends.KNOWN]
    tell = waiting(options.quiet)
    if not names:
        return detection.gather(deep=options.deep, wake=options.wake, tell=tell), []
    from concurrent.futures import ThreadPoolExecutor

    from gpubench.measure import targets

    with ThreadPoolExecutor(1) as beside:
        gathering = beside.submit(detection.gather, deep=options.deep, wake=options.wake, blas=True, tell=tell)
        listings = targets.list_devices(names, LISTING_S)
    return gathering.result(), listings


def waiting(quiet: bool) -> Callable[[str], None] | None:
    """Return a function that prints on stderr what the program waits for, or None if `quiet`."""
    return None if quiet else lambda line: print(line, file=sys.stderr, flush=True)


def _with_packages(machine: Machine, listings: list[Listing]) -> Machine:
    """Return the machine with the backends of these listings as further providers."""
    from msgspec.structs import replace

    from gpubench.result.machine import Provider

    status: dict[str | None, Status] = {None: "ok", "timeout": "timeout"}
    more = [
        Provider(
            name=listing.backend, status=status.get(listing.reason, "absent"), version=listing.version,
            hint=listing.detail if listing.reason else None,
        )
        for listing in listings
    ]  # fmt: skip
    return replace(machine, providers=[*machine.providers, *more])


def read_result(run: Run) -> Measured | str:
    """Return the evidence in a run for choosing a mode, or the reason why there is none."""
    from gpubench.analysis.analyse import analyse
    from gpubench.analysis.winners import evidence, why_silent

    # The analysis is imported here, so that `detect` does not load it if there are no results.
    return evidence(analyse(run)) or why_silent(run)


def _folder(path: Path) -> Path:
    """Return `path`, or raise InputError if it cannot be listed."""
    try:
        os.listdir(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, error, "give a folder that holds proc/ and sys/") from error
    return path


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the provider records in a file. Raises InputError if the file cannot be read or has another
    form."""
    import msgspec

    from gpubench.result.store import document

    try:
        data = disk.read_text(path, document.MAX_BYTES)
        document.require_json(data, str(path))
        content = msgspec.json.decode(data)
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(path, error) from error
    records = content.get("records") if isinstance(content, dict) else None
    if not isinstance(records, list) or not all(
        isinstance(r, dict) and r.get("source") and isinstance(r["source"], str) for r in records
    ):
        raise InputError(
            "not-records", f"{path}: not a file of provider records", why="it is JSON of another form"
        )
    return records


def _unusable(path: Path, error: Exception, hint: str | None = None) -> InputError:
    return InputError("unreadable-input", f"{path}: cannot be read", why=disk.reason(error), hint=hint)


def _results_place(options: DetectOptions) -> Path | None:
    """Return the file or folder of measured results that the user named, else the usual folder if it exists. A
    recorded machine has no usual folder. Raises InputError if the named place cannot be used."""
    path = options.results
    if path is not None:
        if not os.path.exists(path):
            raise InputError(
                "no-results", f"--results: {path} cannot be used", why="there is no such file or folder",
                hint="name a result file or its folder",
            )  # fmt: skip
        if os.path.isfile(path):
            from gpubench.result.store.files import load, load_head

            if load_head(path) is None:
                load(path)  # says why it is no result
        return path
    if options.sysroot is not None or options.records is not None:
        return None
    folder = Path("results")
    # Where this folder cannot be written, `gpubench run` writes to the user's.
    if not os.path.isdir(folder) and not os.access(".", os.W_OK):
        from gpubench.result.store import default_results_dir

        folder = default_results_dir()
    return folder if os.path.isdir(folder) else None


def _tell(machine: Machine) -> None:
    """Print on stderr the warnings of the machine, and the relevant probes that failed or have a hint."""
    from gpubench.base.installation import locate
    from gpubench.base.streams import visible
    from gpubench.detect.recommend import is_relevant

    for warning in machine.warnings:
        print(f"note: {visible(locate(warning.text))}", file=sys.stderr)
    for provider in machine.providers:
        ending = "" if provider.status == "ok" else f" ended with {provider.status}"
        hint = f": {locate(provider.hint)}" if provider.hint else ""
        if (ending or hint) and is_relevant(provider, machine):
            print(visible(f"note: the probe {provider.name}{ending}{hint}"), file=sys.stderr)


def _tell_clash() -> None:
    """Print a note on stderr if gpubench and another package overwrite each other's files."""
    from gpubench.base.installation import CLASH, find_clash, repair_command

    clash = find_clash()
    if clash is not None:
        print(f"note: {CLASH.format(' '.join(clash))}: {repair_command(clash[0])}", file=sys.stderr)


def _require_word(text: str) -> None:
    """Raise UsageError for a word that is no side (cpu, gpu), no backend and no device id."""
    from gpubench import backends
    from gpubench.base.errors import require_choice

    head, colon, _ = text.partition(":")
    address = colon and re.fullmatch(r"[0-9a-f]{4,8}", head, re.I)
    if not address and not re.match(r"(GPU|MIG)-|(pci|api):", text, re.I) and not backends.has(head):
        require_choice(head, ("cpu", "gpu", *backends.usual()), "--require")


def _require(machine: Machine, text: str, *, here: bool) -> None:
    """Raise RequiredUnavailable if the machine lacks the device or backend `text`."""
    import gpubench.detect as detection
    from gpubench import backends

    backend = text.partition(":")[0]
    # Only on this machine can backends be listed.
    if here and backend in backends.usual() and backend not in detection.PROBED:
        lacking = _ask_worker(backend, text)
    else:
        lacking = detection.lacks(machine, text)
    if lacking is not None:
        raise RequiredUnavailable(
            "required-unavailable",
            f"{text} is required and not available",
            why=lacking.reason,
            hint=lacking.hint,
        )


def _ask_worker(backend: str, text: str) -> Lack | None:
    """Return why the backend or device `text` is missing, by asking a worker, or None if it is there."""
    from gpubench.detect import Lack
    from gpubench.measure import targets

    (listing,) = targets.list_devices([backend])
    if listing.reason is not None:
        return Lack(listing.detail, listing.hint)
    ids = [device.id for device in listing.devices]
    if text in (backend, *ids):
        return None
    return Lack(f"{backend} has no such device; there are: {', '.join(ids) or 'none'}", "choose one of these")
