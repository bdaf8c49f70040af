"""The one entry of detection: files, then probes as the evidence allows, then merge, then recommend."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from gpubench.detect import _document, _files, _live, _merge, _record
from gpubench.detect import mode as rule
from gpubench.detect._document import Access
from gpubench.detect._fact import NOT_PROBED, known, missing
from gpubench.detect._files import Files
from gpubench.detect._gpu import Context
from gpubench.detect._identity import Told, gpu_for
from gpubench.detect._names import Names
from gpubench.detect._record import Record
from gpubench.detect._root import Root
from gpubench.errors import UsageError
from gpubench.model.machine import Machine, Mode, Platform, Provider

if TYPE_CHECKING:
    from gpubench.detect.measured import Reader


def inspect(
    *, sysroot: Path | None = None, records: list[dict[str, Any]] | None = None,
    extra_records: Iterable[dict[str, Any]] | None = None, mode: str | None = None, deep: bool = False,
    wake: bool = False, debug: bool = False, results: Path | None = None, read: Reader | None = None,
) -> Machine:  # fmt: skip
    """Describe a machine: this one, a recorded one, or the devices of given provider records.

    `extra_records` are records that the caller gathered; they are merged like any other. Who gives them is about
    to measure, so the BLAS is asked too. `results` is a folder or file of measured results. Raises UsageError for
    an unknown mode and ValueError for a malformed record;
    anything that goes wrong with the machine itself is a status in the document.
    """
    if mode is not None and mode not in get_args(Mode):
        raise UsageError("unknown-mode", f"There is no mode {mode!r}.", hint="Use cpu, gpu or hybrid.")
    start = time.perf_counter()
    given = [_record.parse(raw) for raw in extra_records or ()]
    if records is not None:
        machine = _from_records([_record.parse(raw) for raw in records] + given, debug)
    elif sysroot is not None:
        machine = _recorded(Root(str(sysroot)), str(sysroot), given, debug)
    else:
        blas = extra_records is not None
        machine, given = _this_machine(given, deep=deep, wake=wake, blas=blas, debug=debug)
    advice = rule.recommend(machine, cast("Mode | None", mode))
    advice = rule.verified(advice, _checked(machine, given)) if machine.live else advice
    if results is not None and read is not None and mode is None:
        from gpubench.detect import measured  # loads the result model, which nothing else here needs

        advice = measured.apply(machine, advice, results, read)
    took = round(time.perf_counter() - start, 6)
    return msgspec.structs.replace(machine, recommendation=advice, took_s=took)


def _recorded(root: Root, name: str, given: Sequence[Record], debug: bool) -> Machine:
    start = time.perf_counter()
    files = _files.acquire(root, NOT_PROBED)
    provider = Provider(name="files", status="ok", took_s=round(time.perf_counter() - start, 6))
    return assemble(
        files,
        [*files.records, *given],
        [provider],
        Context(False, files.memory, debug, files.soc.value is not None, Names(root)),
        sysroot=name,
    )


def _checked(machine: Machine, found: Sequence[Record]) -> frozenset[str]:
    """Ids of GPUs on which a checked kernel ran."""
    ids = [_home(machine, record) for record in found if record.checked]
    return frozenset(gpu_id for gpu_id in ids if gpu_id is not None)


def _home(machine: Machine, record: Record) -> str | None:
    bdf = str(record.bdf) if record.bdf is not None else None
    told = Told(uuid=record.uuid, pci=bdf, vendor_id=record.vendor_id, device_id=record.device_id)
    return gpu_for(machine, told)


def _this_machine(
    given: Sequence[Record], *, deep: bool, wake: bool, blas: bool, debug: bool
) -> tuple[Machine, list[Record]]:
    """The document of this machine, and the records it was made of."""
    found = _live.gather(given, deep=deep, wake=wake, blas=blas)
    files = found.files._replace(warnings=[*found.files.warnings, *found.warnings])
    machine = assemble(
        files, found.records, found.providers, _live.context(found, debug), sysroot=None,
        access=lambda gpus, devices: _live.said(found, os.environ, gpus, devices),
    )  # fmt: skip
    return machine, found.records


def _from_records(found: list[Record], debug: bool) -> Machine:
    blank = Machine()
    files = Files(Platform(), blank.cpu, blank.memory, blank.numa, [], [], ["records"], missing("not_probed"))
    return assemble(files, found, [], Context(False, blank.memory, debug, device_name=Names()), sysroot=None)


def assemble(
    files: Files, found: Sequence[Record], providers: list[Provider], context: Context, *, sysroot: str | None,
    access: Access | None = None,
) -> Machine:  # fmt: skip
    """The document without its recommendation."""
    merged = _merge.merge(found)
    gpus = _document.gpus(merged, context, access)
    count = missing("absent", None, "no folder of the system could list GPUs")
    if files.gpu_folders or gpus:
        count = known(
            len(gpus), files.gpu_folders[0] if files.gpu_folders else merged.devices[0].records[0].source
        )
    return Machine(
        sysroot=sysroot, live=context.live, providers=providers, warnings=[*files.warnings, *merged.warnings],
        platform=files.platform, cpu=files.cpu, memory=files.memory, numa=files.numa, gpu_count=count, gpus=gpus,
        accelerators=_document.accelerators(merged), display_adapters=_document.display_adapters(merged),
        software_renderers=_document.software_renderers(merged),
    )  # fmt: skip


def to_json(machine: Machine) -> str:
    """The document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(machine)).decode()
