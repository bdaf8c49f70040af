"""Compare calls that copy their data with calls that read it in place over the link, as a Markdown table
(docs/in-place.md).

gpubench run --quick --sessions 2 --max-time 60ms --regimes in-place,copied,waited --backends numpy,cupy \
    --ops add,copy,sum,gelu,softmax,matmul,gemv --sizes 4k,64k,1M,16M --sizes matmul=256,1024,4096 \
    --sizes gemv=256,1024,4096 -o a.json          # again with --page-locked: b.json
python benchmarks/in_place.py cupy:0 a.json b.json

Each time is that of the device's fastest implementation. A gain is the time of the copying call / the time of
the call in place. Its interval follows from those of both times.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpubench.analysis.analyse import analyse
from gpubench.analysis.estimate import CaseTime
from gpubench.base.units import format_seconds, format_size
from gpubench.result import store
from gpubench.result.case import MANAGED, MAPPED, WAITED

COPIED = "transfer-always"
Key = tuple[str, int, str]  # op, size, regime


def best_times(path: str, device: str) -> dict[Key, CaseTime]:
    """Return, by op, size and regime, the time of the fastest implementation on the device."""
    times: dict[Key, CaseTime] = {}
    for case in analyse(store.load(Path(path))).cases:
        key = (case.case.op, case.n, case.case.regime)
        if case.case.device_id == device and case.time is not None:
            times[key] = min(times.get(key, case.time), case.time, key=lambda time: time.estimate)
    return times


def gain(copied: CaseTime, other: CaseTime) -> str:
    """Return the gain as a text such as `7.9x (6.6-9.5)`."""
    low, high = copied.low / other.high, copied.high / other.low
    return f"{copied.estimate / other.estimate:.2g}x ({low:.2g}-{high:.2g})"


def main(device: str, ordinary: str, page_locked: str) -> None:
    """Print the table, with a row for each op and size. `ordinary` and `page_locked` are the result files
    without and with --page-locked."""
    times, locked = best_times(ordinary, device), best_times(page_locked, device)
    print("| op | n | on the GPU | in place | managed | copied | gain | copied, page-locked | gain |")
    print("|---|--:|--:|--:|--:|--:|---|--:|---|")
    for op, n in sorted({key[:2] for key in times}):
        copied, again = times[op, n, COPIED], locked[op, n, COPIED]
        mapped, own = times[op, n, MAPPED], locked[op, n, MAPPED]
        there, managed = (format_seconds(times[op, n, regime].estimate) for regime in (WAITED, MANAGED))
        cells = (
            op, format_size(n), there, format_seconds(mapped.estimate), managed, format_seconds(copied.estimate),
            gain(copied, mapped), format_seconds(again.estimate), gain(again, own),
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
