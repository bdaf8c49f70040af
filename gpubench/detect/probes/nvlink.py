"""NVML on pairs of GPUs: their NvLinks, direct or through a switch, what they share, and who may reach whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpubench.detect.records import Address, address

MOST_LINKS = 36
_ACTIVE, _REMOTE_SWITCH = 1, 2
_COMMON = {
    0: "switch", 10: "switch", 20: "switch", 30: "host-bridge", 40: "numa-node", 50: "system",
}  # fmt: skip
_P2P_READ, _P2P_WRITE, _P2P_NVLINK, _P2P_ATOMICS, _P2P_OK = 0, 1, 2, 3, 0
_LINK_MBPS = 90  # the field NVLINK_SPEED_MBPS_COMMON

FactJson = dict[str, Any]
# A call of the binding by its name: a fact of its answer, or of the reason why there is none.
Ask = Callable[..., FactJson]


class CardLinks(NamedTuple):
    """The active links of one GPU: how many end at each address, and how many at switches; `asked` is the state of the
    first link, with the reason where none is reported."""

    to: Mapping[Address, int]
    to_switch: int
    version: FactJson
    mbps: int | None
    asked: FactJson


def read_links(ask: Ask, handle: Any) -> CardLinks:
    """Ask each link of a GPU once."""
    to: dict[Address, int] = {}
    switched, version, asked = 0, {"value": None, "status": "absent"}, {"value": None, "status": "absent"}
    for link in range(MOST_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", handle, link)
        asked = state if link == 0 else asked
        if state["value"] is None:
            break  # there is no such link, nor a higher one
        if state["value"] != _ACTIVE:
            continue
        if version["value"] is None:
            version = ask("nvmlDeviceGetNvLinkVersion", handle, link)
        if ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)["value"] == _REMOTE_SWITCH:
            switched += 1
            continue
        pci = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)["value"]
        remote = getattr(pci, "busId", None)
        end = address(remote.decode("utf-8", "replace") if isinstance(remote, bytes) else remote)
        if end is not None:
            to[end] = to.get(end, 0) + 1
    return CardLinks(to, switched, version, _mbps(ask, handle) if to or switched else None, asked)


def _mbps(ask: Ask, handle: Any) -> int | None:
    """The rate of one link."""
    values = ask("nvmlDeviceGetFieldValues", handle, [_LINK_MBPS])["value"]
    try:
        return int(values[0].value.uiVal) or None if values[0].nvmlReturn == 0 else None
    except (AttributeError, IndexError, TypeError):
        return None


def paths(ask: Ask, handles: Sequence[tuple[Address, Any]]) -> dict[Address, list[dict[str, Any]]]:
    """By address: the paths of each GPU to the others."""
    links = {bdf: read_links(ask, handle) for bdf, handle in handles}
    return {
        bdf: [
            _path(ask, (handle, links[bdf]), (peer, links[other]), other) for other, peer in handles if other != bdf
        ]
        for bdf, handle in handles
    }  # fmt: skip


def _path(ask: Ask, own: tuple[Any, CardLinks], peer: tuple[Any, CardLinks], to: Address) -> dict[str, Any]:
    (handle, mine), (other, yours) = own, peer
    through = min(mine.to_switch, yours.to_switch)
    lanes = mine.to.get(to, 0) or through
    path = {"to": str(to), "common": _common(ask("nvmlDeviceGetTopologyCommonAncestor", handle, other))}
    for name, index in (("read", _P2P_READ), ("write", _P2P_WRITE), ("atomics", _P2P_ATOMICS)):
        path[name] = _allowed(ask("nvmlDeviceGetP2PStatus", handle, other, index))
    if lanes:
        path |= {
            "kind": _known("nvlink"), "lanes": _known(lanes), "version": mine.version,
            "via": _known("direct" if to in mine.to else "switch"),
            "max_bytes_per_s": _known(lanes * mine.mbps * 1_000_000) if mine.mbps else _lost("unsupported"),
        }  # fmt: skip
    elif ask("nvmlDeviceGetP2PStatus", handle, other, _P2P_NVLINK)["value"] == _P2P_OK:
        # The driver says that a link is there, and no more: a guest sees none of its lanes.
        path |= {"kind": _known("nvlink"), "lanes": _lost(mine.asked["status"])}
    return path


def _common(level: FactJson) -> FactJson:
    if level["value"] is None:
        return level
    return _known(_COMMON[level["value"]]) if level["value"] in _COMMON else _lost("invalid")


def _allowed(status: FactJson) -> FactJson:
    return status if status["value"] is None else _known(status["value"] == _P2P_OK)


def _known(value: object) -> FactJson:
    return {"value": value, "status": "ok"}


def _lost(status: str) -> FactJson:
    return {"value": None, "status": "unsupported" if status == "ok" else status}
