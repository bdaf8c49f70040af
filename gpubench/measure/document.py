"""The document of a run before anything was measured: tool, environment, machine, fingerprints."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence

import msgspec

from gpubench import __version__
from gpubench.errors import ExitCode
from gpubench.measure.recorder import utc_now
from gpubench.model.fingerprint import fingerprint
from gpubench.model.machine import Machine
from gpubench.model.result import (
    Ci,
    Device,
    DeviceClock,
    Environment,
    Fingerprints,
    Git,
    Run,
    Selection,
    Settings,
)

_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{14,80}")
_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122: names that are object identifiers

# Recorded because they change what the libraries do; never interpreted.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "WGPU_BACKEND_TYPE",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


def new_run(
    *, argv: Sequence[str], selection: Selection, settings: Settings, machine: Machine,
    devices: Sequence[Device], versions: Mapping[str, str], label: str | None, tags: Sequence[str],
    context: Mapping[str, str], environ: Mapping[str, str],
) -> Run:  # fmt: skip
    """An empty run, interrupted until it is finished. Nothing in it names a host, a user or a path."""
    tool = {
        "gpubench": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        **versions,
    }
    run = Run(
        id=str(uuid.uuid4()), label=label, tags=list(tags), tool=tool, argv=[_base_name(a) for a in argv],
        started_at=utc_now(),
        exit_code=int(ExitCode.INTERRUPTED), exit_reason="interrupted", selection=selection, settings=settings,
        machine=machine,
        environment=Environment(
            variables={name: environ[name] for name in VARIABLES if name in environ},
            context=dict(context), git=_git(), ci=_ci(environ),
        ),
        fingerprint=Fingerprints(
            machine=fingerprint(_machine_fields(machine)),
            device=fingerprint({d.id: f"{d.name}, {d.memory_bytes} bytes" for d in devices}),
            software=fingerprint({**tool, **{d.id: d.driver or "" for d in devices}}),
        ),
        devices=[_stored(device) for device in devices],
    )  # fmt: skip
    return without_uuids(run)


def without_uuids(run: Run) -> Run:
    """The same run with every GPU's uuid replaced by a digest of it: stable, but it identifies no hardware."""
    text = msgspec.json.encode(run).decode()
    for uuid_text in sorted(set(_UUID.findall(text)), key=len, reverse=True):
        prefix, _, rest = uuid_text.partition("-")
        text = text.replace(uuid_text, f"{prefix}-{uuid.uuid5(_NAMESPACE, rest)}")
    return msgspec.json.decode(text, type=Run)


def _machine_fields(machine: Machine) -> dict[str, str]:
    facts = {
        "cpu": machine.cpu.model.value,
        "usable_cpus": machine.cpu.available.value,
        "memory_gib": _gib(machine.memory.total_bytes.value),
    }
    return {name: str(value) for name, value in facts.items()}


def _gib(count: int | None) -> int | None:
    """Whole GiB: the kernel's own share of RAM changes from boot to boot."""
    return None if count is None else round(count / 2**30)


def _base_name(argument: str) -> str:
    """Paths are cut to their last part: they name users and hosts."""
    argument = argument.encode("utf-8", "replace").decode()
    option, equals, value = argument.partition("=")
    if equals and os.sep in value:
        return f"{option}={os.path.basename(value)}"
    return os.path.basename(argument) if os.sep in argument else argument


def _git() -> Git | None:
    """Commit, branch and state of the checkout in the working folder, if git is there and answers."""

    def ask(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=5, check=True, stdin=subprocess.DEVNULL
        )
        return done.stdout.strip()

    try:
        return Git(
            commit=ask("rev-parse", "HEAD"),
            branch=ask("rev-parse", "--abbrev-ref", "HEAD"),
            dirty=bool(ask("status", "--porcelain", "--untracked-files=no")),
            commit_time=ask("show", "-s", "--format=%cI", "HEAD"),
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _ci(environ: Mapping[str, str]) -> Ci | None:
    if environ.get("GITHUB_ACTIONS") == "true":
        server, repository = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_REPOSITORY")
        run_id = environ.get("GITHUB_RUN_ID")
        url = f"{server}/{repository}/actions/runs/{run_id}" if server and repository and run_id else None
        return Ci(provider="github", run_url=url, runner_image=environ.get("ImageOS"))
    return Ci(provider="unknown") if environ.get("CI") else None


def _stored(device: Device) -> Device:
    """Without what only detection needs, and with what stands for the clock of a GPU that has none."""
    clock = device.clock
    if clock is None and device.kind == "gpu":
        clock = DeviceClock(kind="derived", step_s=time.get_clock_info("perf_counter").resolution)
    return msgspec.structs.replace(device, identity=None, clock=clock)
