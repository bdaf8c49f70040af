"""CPU facts from py-cpuinfo, only where there is no /proc/cpuinfo: it sleeps a second and forks."""

from __future__ import annotations

from typing import Any

from gpubench.detect.probes import ProbeFailure


def probe() -> dict[str, Any]:
    """`cpu`: model and vendor."""
    try:
        import cpuinfo
    except ImportError as error:
        raise ProbeFailure("absent", type(error).__name__, "install py-cpuinfo") from error
    info = cpuinfo.get_cpu_info()
    return {"records": [], "cpu": {"model": info.get("brand_raw"), "vendor": info.get("vendor_id_raw")}}
