"""Facts of the CPU from Python packages: the BLAS that NumPy loads, and py-cpuinfo where there is no /proc/cpuinfo."""

from __future__ import annotations

from typing import Any

from gpubench.detect.probes import require

_CACHES = (
    ("l1_data_cache_size", 1, "data"), ("l1_instruction_cache_size", 1, "instruction"), ("l2_cache_size", 2, "unified"),
    ("l3_cache_size", 3, "unified"),
)  # fmt: skip
# Powers of 1024, by the first letter behind the number: "256 KB", "8 MiB".
_UNITS = {"k": 1, "m": 2, "g": 3}


def blas() -> dict[str, Any]:
    """Return `blas`: one entry per library, as threadpoolctl names it."""
    with require("numpy and threadpoolctl are not installed"):
        import numpy  # noqa: F401
        from threadpoolctl import threadpool_info
    keys = {"library": "internal_api", "version": "version", "threads": "num_threads", "kernel": "architecture"}
    pools = [pool for pool in threadpool_info() if pool.get("user_api") == "blas"]
    return {"records": [], "blas": [{key: pool.get(name) for key, name in keys.items()} for pool in pools]}


def cpuinfo() -> dict[str, Any]:
    """Return `cpu`: model, vendor, flags, the advertised clock in hertz, and the size of each level of cache in bytes.

    It sleeps a second and forks.
    """
    with require("py-cpuinfo is not installed"):
        from cpuinfo import get_cpu_info
    info = get_cpu_info()
    caches = [
        {"level": level, "type": kind, "size_bytes": size, "instances": 1}
        for name, level, kind in _CACHES
        if (size := _bytes(info.get(name)))
    ]
    cpu = {
        "model": info.get("brand_raw"), "vendor": info.get("vendor_id_raw"), "flags": info.get("flags") or [],
        "base_hz": _hertz(info.get("hz_advertised")), "caches": caches,
    }  # fmt: skip
    return {"records": [], "cpu": cpu}


def _hertz(clock: Any) -> int | None:
    """`hz_advertised` is a pair of whole hertz and their decimals."""
    whole = clock[0] if isinstance(clock, list | tuple) and clock else None
    return whole if isinstance(whole, int) and whole > 0 else None


def _bytes(size: Any) -> int | None:
    """A size is a number of bytes or a text such as "256 KB", by the system that py-cpuinfo asked."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size if size > 0 else None
    number, _, unit = size.strip().partition(" ") if isinstance(size, str) else ("", "", "")
    if not number.isascii() or not number.isdigit():
        return None
    return int(number) * 1024 ** _UNITS.get(unit[:1].lower(), 0) or None
