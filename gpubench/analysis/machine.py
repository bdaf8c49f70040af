"""The machine of a run (its description, its identity, and whether the run is an experiment), and the stored
results of this machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gpubench.base import group_by
from gpubench.base.errors import GpubenchError, InputError
from gpubench.base.units import count_noun, format_bytes
from gpubench.result.case import SEVERAL
from gpubench.result.identity import foreign_fields, measured_gpus
from gpubench.result.machine import NOT_PROBED, Gpu, StrFact
from gpubench.result.run import Environment, Fingerprints, Run


def usable_cpus(run: Run) -> int | None:
    """Return the number of CPUs that the process may use, else the number of logical CPUs, else None."""
    cpu = run.machine.cpu
    return cpu.logical.value if cpu.available.value is None else cpu.available.value


def machine_line(run: Run) -> str:
    """Return one line such as `AMD EPYC 7763, 2 of 64 CPUs, 7.8 GiB RAM; NVIDIA H200, 139 GiB`."""
    devices = _gpu_texts(run)
    return f"{_host_text(run)}; {', '.join(devices) if devices else 'no GPU'}"


def _host_text(run: Run) -> str:
    names = (device.name for device in run.devices if device.kind == "cpu" and device.name)
    cpu = run.machine.cpu
    model = cpu.model.value or next(names, "unknown CPU")
    parts = [" ".join(model.split())]
    available, logical = cpu.available.value, cpu.logical.value
    if available is not None and logical is not None and available != logical:
        parts.append(f"{available} of {logical} CPUs")
    elif (count := usable_cpus(run)) is not None:
        parts.append(count_noun(count, "CPU"))
    if total := run.machine.memory.total_bytes.value:
        parts.append(f"{format_bytes(total)} RAM")
    return ", ".join(parts)


def _gpu_texts(run: Run) -> list[str]:
    counts = Counter(gpu_text(gpu) for gpu in run.machine.gpus)
    if not counts:
        gpus = [d for d in run.devices if d.kind == "gpu" and d.backend not in SEVERAL]
        for seen in group_by(gpus, lambda device: device.backend).values():  # all may see the same GPUs
            counts |= Counter(_with_memory(device.name, device.memory_bytes) for device in seen)
    software = {d.name for d in run.devices if d.kind == "software" and not d.composed}
    return count_texts(counts) + [f"{name} (software, no GPU)" for name in sorted(software)]


def gpu_text(gpu: Gpu) -> str:
    """Return the name and the memory of a GPU, such as `NVIDIA H200, 139 GiB`."""
    memory = gpu.memory.usable_bytes.value or gpu.memory.dedicated_bytes.value
    return _with_memory(gpu.name.value or "unnamed GPU", memory)


def count_texts(texts: Mapping[str, int]) -> list[str]:
    """Return each text with its count in front if it is above 1, such as `8 x NVIDIA H200, 139 GiB`."""
    return [text if count == 1 else f"{count} x {text}" for text, count in texts.items()]


def _with_memory(name: str, memory_bytes: int | None) -> str:
    return f"{name}, {format_bytes(memory_bytes)}" if memory_bytes else name


def experiment(run: Run) -> dict[str, str]:
    """Return the options that make a run an experiment, with their values. The result is empty for a
    usual run."""
    options: dict[str, str] = {}
    if run.settings.inputs != "random":
        options["--inputs"] = run.settings.inputs
    if run.settings.cache != "warm":
        options["--cache"] = run.settings.cache
    if run.settings.page_locked:
        options["--page-locked"] = "yes"
    # A run always says how many threads it used; all usable CPUs are nothing special.
    threads, cpus = run.settings.threads, usable_cpus(run)
    if threads is not None and cpus is not None and threads < cpus:
        options["--threads"] = f"{threads} of {cpus}"
    return options


NODE = "node"  # the context key that names a machine; it tells apart machines that look the same


class _GpuOutline(msgspec.Struct, frozen=True):
    uuid: StrFact = NOT_PROBED  # the UUID as the driver reports it


class _MachineOutline(msgspec.Struct, frozen=True):
    gpus: list[_GpuOutline] = []  # the UUID of each GPU


class RunOutline(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run that identifies its machine. The rest of the file is not kept in memory."""

    id: str  # the id of the run
    merged: list[str] = []  # the ids of the runs that were joined in it
    started_at: str  # the time of its start, in UTC
    machine: _MachineOutline  # the UUIDs of the machine's GPUs
    environment: Environment = Environment()  # the environment variables and the context of the run
    fingerprint: Fingerprints  # the identity of machine, devices and software

    @property
    def origins(self) -> list[str]:
        """The ids of the runs whose sessions this run holds."""
        return self.merged or [self.id]


def node_name(run: Run | RunOutline) -> str | None:
    """Return the name that the user gave the machine by `--context node=...`, or None."""
    return run.environment.context.get(NODE)


def gpu_uuids(run: Run | RunOutline) -> set[str]:
    """Return the known UUIDs of the machine's GPUs, as digests."""
    return {str(gpu.uuid.value) for gpu in run.machine.gpus if gpu.uuid.value}


def node_key(*runs: Run) -> str:
    """Return a text that identifies the machine of `runs`, from fingerprints, UUIDs of GPUs (as digests) and
    node names."""
    machines = sorted({run.fingerprint.machine.hash for run in runs})
    uuids = sorted(set().union(*map(gpu_uuids, runs)))
    names = sorted({name for run in runs if (name := node_name(run)) is not None})
    return "+".join([*machines, *uuids, *(f"{NODE}={name}" for name in names)])


def group_by_machine(runs: Sequence[Run | RunOutline]) -> list[list[int]]:
    """Group `runs` by machine, and return the ascending indexes of each machine's runs. Two runs are of one
    machine if they share the UUID of a GPU, or the node name and a host that looks the same. Without UUIDs and
    node names, host and devices have to look the same."""
    looks: dict[str | None, list[Fingerprints]] = {}  # one fingerprint of each machine, by node name
    groups: list[tuple[set[object], list[int]]] = []  # the marks of a machine, and its runs
    for place, run in enumerate(runs):
        name, own = node_name(run), run.fingerprint
        marks: set[object] = {*gpu_uuids(run)}
        if name is not None or not marks:
            scopes = ("machine",) if name is not None else ("machine", "device")
            alike = looks.setdefault(name, [])
            equal = (
                other.machine.known.keys() == own.machine.known.keys()
                and not any(scope in scopes for scope, *_ in foreign_fields(other, own))
                for other in alike
            )
            look = next((i for i, is_equal in enumerate(equal) if is_equal), len(alike))
            alike += [own] if look == len(alike) else []
            marks.add((name, look))
        # Two runs that share nothing are of one machine if a third run belongs to both.
        same = [group for group in groups if not marks.isdisjoint(group[0])]
        groups = [group for group in groups if marks.isdisjoint(group[0])]
        places = [member for _, members in same for member in members]
        groups.append((marks.union(*(seen for seen, _ in same)), [*places, place]))
    return sorted(sorted(places) for _, places in groups)


MOST_FILES = 20  # the most files of this machine that are read
RESULTS_DIR = Path("results")


def runs(source: str | Path | None = None, results_dir: Path = RESULTS_DIR) -> Iterator[Run]:
    """Yield the runs of `source`, newest first, each read when it is needed. `source` is a file (`-` is
    standard input), a folder, or None for `results_dir` and the user's data folder. Of folders, the newest
    MOST_FILES runs of this machine are read, without experiments. Raises InputError for a file that cannot be
    read, and for folders without a usable run."""
    from gpubench.result import store

    if source is not None and not os.path.isdir(str(source)):
        yield store.load(source)
        return
    folders = [Path(source)] if source is not None else [results_dir, store.user_data_dir() / "results"]
    yield from _of_this_machine(store.newest_first(folders), folders)


def _of_this_machine(paths: Iterable[Path], folders: Sequence[Path]) -> Iterator[Run]:
    from gpubench.detect import differences
    from gpubench.result import store
    from gpubench.result.store.files import load_head

    count, foreign = 0, ""
    for path in paths:
        head = load_head(path)
        if head is None:
            continue
        measured = measured_gpus(head.devices)
        different = {**differences(head.machine, measured=measured), **experiment(head)}
        if different:
            foreign = foreign or "; ".join(f"{name}: {words}" for name, words in different.items())
            continue
        try:
            run = store.load(path)
        except GpubenchError:  # it was written only in part, or spoiled
            continue
        if not any(outcome.blocks for outcome in run.measurements):
            continue
        yield run
        count += 1
        if count == MOST_FILES:
            return
    if not count:
        raise _nothing(folders, foreign)


def _nothing(folders: Sequence[Path], foreign: str) -> InputError:
    places = " and ".join(str(folder) for folder in folders)
    if foreign:
        return InputError(
            "other-machine", why=f"those in {places} are of another one, or of an experiment ({foreign})"
        )
    return InputError("no-results", "there is no result to answer from", why=f"no result file in {places}")
