"""Choose one adapter for each card.

An adapter is one entry in a backend's list of devices, and a card is the physical GPU behind it. Several
drivers (RADV and AMDVLK) or interfaces (Vulkan and DX12) may list the same card to one backend. If the user
names no adapter of such a card, a short trial decides which one is measured.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from operator import itemgetter

from gpubench.base import group_by
from gpubench.measure import protocol
from gpubench.measure.worker_pool import Worker, WorkerGone
from gpubench.result.case import IMPLEMENTATIONS, Case, inner_device
from gpubench.result.run import Device, Identity, RunWarning, warning

Trial = Callable[[str], float | None]  # returns the seconds of an adapter, by its id; None: it failed
Card = list[Device]  # the adapters of one card

# One case is bound by arithmetic, one by memory. Tuned implementations show what a driver's compiler is worth.
TRIAL_CASES = (("matmul", "square", 1024), ("add", "vector", 1 << 22))
DEADLINE_S = 20.0
SAMPLES, LIMIT_S = 3, 1.0  # samples of each case, and seconds that they may take
# The first adapter is kept unless another one is more than this many times as fast, as one trial is uncertain.
MARGIN = 1.05


def try_adapter(device_id: str) -> float | None:
    """Return the geometric mean of an adapter's launch times, one of each of TRIAL_CASES, in seconds. Returns
    None if the adapter cannot be opened, supports none of these cases, or fails in one."""
    with tempfile.TemporaryDirectory() as scratch, closing(Worker()) as worker:
        try:
            return _seconds(worker, device_id, scratch)
        except WorkerGone:
            return None


def _seconds(worker: Worker, device_id: str, scratch: str) -> float | None:
    opened = worker.ask(
        protocol.Open(
            id=worker.next_id, device_id=device_id, threads=None, seed=1, inputs="random", scratch=os.fsencode(scratch),
            since=time.perf_counter(), autotune=False,
        ), DEADLINE_S,
    )  # fmt: skip
    if not isinstance(opened, protocol.Opened):
        return None
    logarithms = []
    for op, group, n in TRIAL_CASES:
        for implementation in reversed(IMPLEMENTATIONS):  # the tuned one if there is one
            case = Case(
                op, group, {"n": n}, "float32", implementation, opened.device.resident_regime, device_id
            )
            prepare = protocol.Prepare(
                id=worker.next_id, case=case, session=0, part_samples=0, device_clock=False
            )
            reply = worker.ask(prepare, DEADLINE_S)
            if isinstance(reply, protocol.Refused):
                continue
            sample = protocol.Sample(
                id=worker.next_id, case_id=case.id, session=0, round=0, position=0, samples=SAMPLES, warmup_s=0.0,
                limit_s=LIMIT_S,
            )  # fmt: skip
            reply = worker.ask(sample, DEADLINE_S)
            if not isinstance(reply, protocol.Sampled):
                return None
            logarithms.append(math.log(min(reply.block.wall_s)))
            break
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def cards(devices: Iterable[Device]) -> list[Card]:
    """Group the GPUs of one backend by card, in the order of their first adapters. Adapters with the same
    driver and interface are different cards, except that DX12 may list a card twice. Other adapters are compared
    by UUID and PCI address, else by vendor and device ids."""
    grouped: list[Card] = []
    for device in devices:
        free = [card for card in grouped if all(_way(other) != _way(device) for other in card)]
        home = next((card for card in free if any(_is_same(device, other) for other in card)), None)
        # D3D12 may list one card twice, so several of its adapters may join one card of Vulkan by their ids.
        free += [card for card in grouped if device.api == "dx12" != card[0].api]
        home = home or next((card for card in free if _has_ids_of(card, device)), None)
        if home is None:
            grouped.append([device])
        else:
            home.append(device)
    return grouped


def _way(device: Device) -> tuple[str, str | None]:
    """Return the interface that lists the device, and the driver behind it (None if it is unknown)."""
    return device.api, (device.identity or Identity()).driver


def _is_same(a: Device, b: Device) -> bool | None:
    """Return whether two adapters have the same UUID or PCI address, or None if neither is known for both."""
    own, other = a.identity or Identity(), b.identity or Identity()
    places = (own.uuid, other.uuid), (own.pci, other.pci)
    pairs = [(x, y) for x, y in places if x is not None and y is not None]
    return any(x == y for x, y in pairs) if pairs else None


def _has_ids_of(card: Card, device: Device) -> bool:
    """Return whether the device has the card's vendor and device ids, and no different UUID or address."""
    ids = _ids(device)
    alike = None not in ids and ids == _ids(card[0])
    return alike and not any(_is_same(device, other) is False for other in card)


def _ids(device: Device) -> tuple[int | None, int | None]:
    identity = device.identity or Identity()
    return identity.vendor_id or None, identity.device_id or None


def choose_adapters(
    devices: Sequence[Device], named: Sequence[str], trial: Trial | None
) -> tuple[list[str], list[RunWarning]]:
    """Return the ids of the adapters to leave out, so that each card has one, and the warnings about them.
    `devices` are the GPUs of one backend. Adapters whose ids are in `named` stay. Of a card without one, the
    adapter that `trial` finds fastest stays, or the first without a trial; equal cards keep equal adapters."""
    repeated = [card for card in cards(devices) if len(card) > 1]
    left_out: list[str] = []
    warnings = []
    for equal in group_by(repeated, lambda card: _ids(card[0])).values():
        unnamed = [card for card in equal if not any(device.id in named for device in card)]
        left_out += [d.id for card in equal if card not in unnamed for d in card if d.id not in named]
        if unnamed:
            times: dict[str, float | None] = {}
            if trial is not None:  # equal cards have the same drivers: one is tried; of a split, its GPU
                times = {device.id: trial(inner_device(device.id) or device.id) for device in unnamed[0]}
            best = _fastest(unnamed[0], times)
            chosen = [next((d for d in card if _way(d) == _way(best)), card[0]) for card in unnamed]
            left_out += [d.id for card in unnamed for d in card if d not in chosen]
            warnings.append(_listed_repeatedly(unnamed, chosen, times))
    return left_out, warnings


def _fastest(card: Card, times: dict[str, float | None]) -> Device:
    """Return the first adapter that passed its trial, unless another one is more than MARGIN times as fast."""
    passed = [(device, seconds) for device in card if (seconds := times.get(device.id)) is not None]
    if not passed:  # or none was tried
        return card[0]
    first, first_s = passed[0]
    best, best_s = min(passed, key=itemgetter(1))
    return best if first_s > MARGIN * best_s else first


def _listed_repeatedly(
    equal: Sequence[Card], chosen: Sequence[Device], times: dict[str, float | None]
) -> RunWarning:
    card, taken = equal[0], chosen[0]
    what = "this GPU" if len(equal) == 1 else f"each of {len(equal)} identical GPUs"
    left_out = ",".join(device.id for whole in equal for device in whole if device not in chosen)
    return warning(
        "listed-twice", severity="info",
        message=f"{taken.backend} lists {what} {len(card)} times ({', '.join(map(_label, card))}); {_label(taken)} was"
        f" measured, {_why(card, taken, times)}; others: --devices {left_out}",
        data={"left_out": left_out, "measured": ",".join(device.id for device in chosen)},
    )  # fmt: skip


def _why(card: Card, taken: Device, times: dict[str, float | None]) -> str:
    """Return why `taken` was chosen, such as `1.3x faster in a trial`."""
    least = times.get(taken.id)
    if least is None:
        return f"the first, as no trial {'succeeded' if times else 'was made'}"
    failed = [_label(device) for device in card if times.get(device.id) is None]
    rivals = [
        seconds for device in card if device is not taken and (seconds := times.get(device.id)) is not None
    ]
    if not rivals:
        return f"as the trial of {', '.join(failed)} failed"
    gain = min(rivals) / least
    return f"{gain:.2g}x faster in a trial" if gain >= MARGIN else "as none is clearly faster in a trial"


_NAMES = {
    "vulkan": "Vulkan", "dx12": "DX12", "metal": "Metal", "gl": "OpenGL", "radv": "RADV",
    "AMD open-source driver": "AMDVLK", "AMD proprietary driver": "AMD's own driver",
}  # fmt: skip


def _label(device: Device) -> str:
    """Return the interface and the driver: `Vulkan by RADV`."""
    return " by ".join(_NAMES.get(word, word) for word in _way(device) if word)
