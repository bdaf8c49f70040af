"""Which splits to measure after a search: each costs a sweep, so only where the model promises something."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from gpubench import backends
from gpubench.measure import search
from gpubench.measure.plan import Scope, Series, Workload, workload
from gpubench.measure.search import Times

# Where one side is slower than this many times the other, both rates added up gain less than a tenth.
FARTHEST = 10.0


def alone(scope: Scope) -> Scope:
    """The same without the composed devices: a search compares single ones."""
    single = tuple(t for t in scope.targets if t.device.backend not in backends.COMPOSED)
    return msgspec.structs.replace(scope, targets=single)


def asked(scope: Scope) -> bool:
    """Whether there is a composed device to measure."""
    return any(target.device.backend in backends.COMPOSED for target in scope.targets)


def worth_trying(curve: Series, times: Times, cpu: Collection[str], scope: Scope) -> Sequence[Workload]:
    """Of each device and regime the split case at the largest measured size at which both sides are near enough."""
    sizes: dict[int, set[search.Curve]] = {}
    for (device, regime), ratios in search.ratios(times, cpu).items():
        near = [n for n, ratio in ratios.items() if 1 / FARTHEST <= ratio.middle <= FARTHEST]
        if near:
            sizes.setdefault(max(near), set()).add((device, regime))
    found = []
    for n, wanted in sorted(sizes.items()):
        item = workload(curve, n, scope)
        cases = tuple(c for c in item.cases if (c.shared_with, c.regime_id) in wanted)
        if cases:
            found.append(msgspec.structs.replace(item, cases=cases, skips=(), device_clock=False))
    return found
