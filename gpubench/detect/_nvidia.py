"""NVIDIA's own files under /proc: model, uuid, driver, and GPU memory that the kernel shows as a NUMA node."""

from __future__ import annotations

import re
from typing import Any

from gpubench.detect._fact import ABSENT, derived, known, missing
from gpubench.detect._record import Record, address, uuid
from gpubench.detect._root import Root
from gpubench.model.facts import Fact

FOLDER = "/proc/driver/nvidia"


def acquire(root: Root) -> list[Record] | None:
    """One record per folder of /proc/driver/nvidia/gpus; None if that cannot be listed."""
    names = root.names(f"{FOLDER}/gpus")
    if names is None:
        return None
    version = root.fact(f"{FOLDER}/version", driver_version)
    return [_record(root, name, version) for name in names if address(name) is not None]


def driver_version(text: str) -> str:
    """ "535.183.01" of the NVRM line. Raises ValueError."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    if not found:
        raise ValueError("no version")
    return found[1]


def parse_information(text: str) -> dict[str, str]:
    """Lines `Name:  value`. Raises ValueError if there is none."""
    pairs = [line.partition(":") for line in text.splitlines()]
    table = {key.strip(): value.strip() for key, colon, value in pairs if colon and value.strip()}
    if not table:
        raise ValueError("no line of the form `Name: value`")
    return table


def parse_numa(text: str) -> tuple[int, int] | None:
    """NUMA node and bytes; None where the memory is no node. Raises ValueError."""
    table = parse_information(text)
    if not re.fullmatch(r"-?\d{1,5}", table.get("Node", "")):
        raise ValueError("no node")
    node = int(table["Node"])
    if node < 0:
        return None
    if not re.fullmatch(r"(0x)?[0-9a-f]{1,16}", table.get("Size", ""), re.I):
        raise ValueError("no size")
    return node, int(table["Size"], 16)


def numa_nodes(records: list[Record] | None) -> Fact[frozenset[int]]:
    """The nodes that GPUs call their memory; invalid if one of them cannot tell."""
    facts = [record.facts["memory.numa_node"] for record in records or ()]
    lost = next((fact for fact in facts if fact.status not in ("ok", "absent")), None)
    if lost is not None:
        return missing("invalid", lost.source)
    nodes = frozenset(fact.value for fact in facts if fact.value is not None)
    return known(nodes, f"{FOLDER}/gpus/*/numa_status") if nodes else ABSENT


def _record(root: Root, name: str, version: Fact[str]) -> Record:
    folder = f"{FOLDER}/gpus/{name}"
    table = root.fact(f"{folder}/information", parse_information)
    numa = root.fact(f"{folder}/numa_status", parse_numa)
    told = table.value or {}
    source = f"{folder}/information"
    facts: dict[str, Fact[Any]] = {
        "driver.name": known("nvidia", folder), "driver.version": version,
        "memory.numa_node": derived(numa, lambda found: found[0]),
    }  # fmt: skip
    if numa.value:
        facts["memory.dedicated_bytes"] = known(numa.value[1], numa.source or "")
    elif numa.status == "invalid":
        facts["memory.dedicated_bytes"] = missing("invalid", numa.source)
    gpu_uuid = uuid(told.get("GPU UUID", ""))
    model = told.get("Model", "Unknown")
    if model != "Unknown" and "?" not in model:
        facts["name"] = known(model, source)
    if gpu_uuid:
        facts["uuid"] = known(gpu_uuid, source)
    minor = told.get("Device Minor", "")
    ordinal = int(minor) if minor.isascii() and minor.isdigit() else None
    return Record(
        source="proc-nvidia", ordinal=ordinal, bdf=address(name), uuid=gpu_uuid, vendor_id=0x10DE, facts=facts
    )
