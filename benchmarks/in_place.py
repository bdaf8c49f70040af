"""Where reading over the link beats copying: of a result the calls that copy beside those in place, as Markdown.

gpubench run --quick --sessions 2 --ops add,copy,sum,gelu,softmax,matmul,gemv --regimes in-place,copied,waited \
    --sizes 4k,64k,1M,16M --sizes matmul=256,1024,4096 --sizes gemv=256,1024,4096 -o r.json
python benchmarks/in_place.py r.json

A gain is the copying call's time over that of the call in place, each by the device's best implementation, with the
interval of the two times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpubench.analysis.analyse import analyse
from gpubench.analysis.estimate import CaseResult
from gpubench.base.groups import group_by
from gpubench.base.units import format_seconds
from gpubench.result import store
from gpubench.result.case import MANAGED, MAPPED, WAITED

COPIED = "transfer-always"


def best(cases: list[CaseResult], regime: str) -> CaseResult | None:
    """Return the fastest of these cases in this regime."""
    timed = [case for case in cases if case.case.regime == regime and case.time is not None]
    return min(timed, key=lambda case: case.time.estimate, default=None)  # type: ignore[union-attr]


def gain(copied: CaseResult, other: CaseResult | None) -> str:
    """Return `219 us, 7.9x (6.1-10)`."""
    if other is None or other.time is None or copied.time is None:
        return "-"
    a, b = copied.time, other.time
    low, high = a.low / b.high, a.high / b.low
    return f"{format_seconds(b.estimate)}, {a.estimate / b.estimate:.2g}x ({low:.2g}-{high:.2g})"


def rows(cases: list[CaseResult]) -> Iterator[tuple[str, ...]]:
    """Yield op, size, device and times of every size that has a call that copies and one in place."""
    gpus = [case for case in cases if case.device_kind == "gpu"]
    for (op, n, device), same in sorted(group_by(gpus, lambda c: (c.case.op, c.n, c.case.device_id)).items()):
        copied, waited, mapped = (best(same, regime) for regime in (COPIED, WAITED, MAPPED))
        if copied is not None and copied.time is not None and mapped is not None:
            there = "-" if waited is None or waited.time is None else format_seconds(waited.time.estimate)
            times = (
                format_seconds(copied.time.estimate),
                gain(copied, mapped),
                gain(copied, best(same, MANAGED)),
            )
            yield (op, str(n), device, there, *times)


def main(path: str) -> None:
    print(
        "| op | n | device | data on the GPU | copied | in place | in place, managed |\n|---|--:|---|--:|--:|---|---|"
    )
    for row in rows(list(analyse(store.load(Path(path))).cases)):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main(sys.argv[1])
