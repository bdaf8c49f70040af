"""Which machine a result is of."""

from __future__ import annotations

from collections.abc import Iterable

from gpubench.model.result import Run

NODE = "node"  # the context by which whoever measures tells machines apart that look the same


def node_key(run: Run) -> str:
    """The machine's fingerprint, the uuids of its GPUs (digests), and what `--context node=...` says.

    Two nodes without GPU uuids and with the same CPU and memory are told apart by the context alone.
    """
    uuids = sorted(gpu.uuid.value for gpu in run.machine.gpus if gpu.uuid.value)
    named = [f"{NODE}={run.environment.context[NODE]}"] if NODE in run.environment.context else []
    return "+".join([run.fingerprint.machine.hash, *uuids, *named])


def by_node(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each machine, both in order of their keys and starts."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (node_key(run), run.started_at, run.id)):
        found.setdefault(node_key(run), []).append(run)
    return found
