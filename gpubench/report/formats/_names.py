"""Words of the tables: devices, regimes, forms, sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.model.case import REGIMES, Case, beside_size
from gpubench.report.analysis.types import Analysis, BreakEven, CaseResult
from gpubench.report.formats._document import shortened
from gpubench.units import format_size

FORMS = {"library": "lib", "tuned": "tuned"}
_DATA = {"resident": "resident", "transfer-always": "always"}
_WHERE = {
    "resident": "resident: the data is on the GPU already", "transfer-always": "always: every call copies both ways"
}  # fmt: skip


def device_text(analysis: Analysis, device_id: str) -> str:
    """`cupy:0 (NVIDIA H200)`; a software adapter says that it is one."""
    device = next((device for device in analysis.run.devices if device.id == device_id), None)
    if device is None:
        return device_id
    software = "software adapter: no GPU, no headline; " if device.kind == "software" else ""
    return f"{device_id} ({software}{shortened(device.name)})"


def devices_text(analysis: Analysis, device_ids: Sequence[str]) -> str:
    """`NVIDIA H200 (cupy:0, wgpu:0)`: devices of the same name together."""
    names = {device.id: shortened(device.name) for device in analysis.run.devices}
    together: dict[str, list[str]] = {}
    for device_id in device_ids:
        together.setdefault(names.get(device_id, "an unknown device"), []).append(device_id)
    return ", ".join(f"{name} ({', '.join(ids)})" for name, ids in together.items())


def size_text(row: CaseResult) -> str:
    """n, and the other params where the op has some: `4096 batch=8`."""
    return format_size(row.case.params.get("n", 0), table=True) + _beside(row.case)


def series_name(row: Case | BreakEven) -> str:
    """`matmul float32`, with the params beside the size: `matmul float32 k=8`."""
    return f"{row.op} {row.dtype}{_beside(row)}"


def _beside(row: Case | BreakEven) -> str:
    return "".join(f" {name}={value}" for name, value in beside_size(row.params))


def data_text(row: Case | BreakEven) -> str:
    """The regime's short name: `resident`, `once-10`, `always`."""
    return f"once-{row.calls}" if row.regime == "transfer-once" else _DATA[row.regime]


def regime_order(row: Case | BreakEven) -> tuple[int, int]:
    """The order in which regimes are told."""
    return (REGIMES.index(row.regime), row.calls or 0)


def regimes(rows: Iterable[Case | BreakEven]) -> list[str]:
    """The short names of the regimes of `rows`, each once and in order."""
    return list(dict.fromkeys(data_text(row) for row in sorted(rows, key=regime_order)))


def where_legend(rows: Iterable[Case | BreakEven]) -> str:
    """What the regimes' short names mean."""
    texts = {
        f"{data_text(row)}: {row.calls} calls share one copy" if row.regime == "transfer-once" else _WHERE[row.regime]
        for row in rows
    }  # fmt: skip
    order = ["resident", "once", "always"]
    return "; ".join(
        sorted(texts, key=lambda text: (order.index(text.partition("-")[0].partition(":")[0]), text))
    )
