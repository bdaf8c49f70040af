"""Documents of older versions, as plain data, become those of the next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpubench.model.case import QUEUED, RESIDENT

Plain = dict[str, Any]
_HOSTS = ("numpy:", "torch:cpu")  # devices that are CPUs, where a document does not say what kind they are
_OVERHEADS = "overhead"  # the group of ops whose cases keep `resident`


def result_2(data: Plain) -> Plain:
    """A GPU's `resident` was what is `resident-queued` now: in cases, ids, warnings and the selection."""
    kinds = {one.get("id"): one.get("kind") for one in data.get("devices", [])}
    outcomes = [_queued_outcome(one, kinds) for one in data.get("outcomes", [])]
    ids = {
        old["id"]: new["id"]
        for old, new in zip(data.get("outcomes", []), outcomes, strict=True)
        if old is not new
    }
    found = {**data, "outcomes": outcomes}
    if "warnings" in data:
        found["warnings"] = [{**one, "id": ids.get(one.get("id"), one.get("id"))} for one in data["warnings"]]
    if "regimes" in data.get("selection", {}):
        regimes = [QUEUED if regime == RESIDENT else regime for regime in data["selection"]["regimes"]]
        found["selection"] = {**data["selection"], "regimes": regimes}
    return found


def _queued_outcome(outcome: Plain, kinds: Mapping[Any, Any]) -> Plain:
    case = outcome["case"]
    device = str(case.get("device_id"))
    host = kinds[device] == "cpu" if device in kinds else device.startswith(_HOSTS)
    if host or case.get("regime") != RESIDENT or case.get("group") == _OVERHEADS:
        return outcome
    return {**outcome, "id": _queued_id(outcome["id"]), "case": {**case, "regime": QUEUED}}


def _queued_id(case_id: str) -> str:
    path, at, device = case_id.rpartition("@")
    return f"{path.removesuffix(RESIDENT)}{QUEUED}{at}{device}" if path.endswith(f"/{RESIDENT}") else case_id


def fleet_2(data: Plain) -> Plain:
    """The results of the nodes, each of its own version."""
    nodes = [
        {**node, "result": upgraded(node["result"], "gpubench-result")} if node.get("result") else node
        for node in data.get("nodes", [])
    ]
    return {**data, "nodes": nodes}


def noise_2(data: Plain) -> Plain:
    """The ids of the cases, by the names of their devices alone."""
    cases = [
        one if one["id"].rpartition("@")[2].startswith(_HOSTS) else {**one, "id": _queued_id(one["id"])}
        for one in data.get("cases", [])
    ]
    return {**data, "cases": cases}


# By the name of a document one pure function per step: at [v], plain data of version v becomes that of version v + 1.
UPGRADES: dict[str, Mapping[int, Callable[[Plain], Plain]]] = {
    "gpubench-result": {1: result_2},
    "gpubench-fleet": {1: fleet_2},
    "gpubench-noise": {1: noise_2},
}


def upgraded(data: Plain, name: str) -> Plain:
    """The document `name` as one of its newest version. Raises KeyError, TypeError or AttributeError where it does not
    have the shape of its version."""
    steps = UPGRADES.get(name, {})
    while (version := data.get("schema_version", 1)) in steps:
        data = {**steps[version](data), "schema_version": version + 1}
    return data
