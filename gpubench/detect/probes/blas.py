"""The BLAS that NumPy loads here, and the threads it starts."""

from __future__ import annotations

from typing import Any

from gpubench.detect.probes._failure import ProbeFailure


def probe() -> dict[str, Any]:
    """`blas`: one entry per library, as threadpoolctl names it."""
    try:
        import numpy  # noqa: F401
        from threadpoolctl import threadpool_info
    except ImportError as error:
        raise ProbeFailure("absent", type(error).__name__, "install numpy and threadpoolctl") from error
    pools = [pool for pool in threadpool_info() if pool.get("user_api") == "blas"]
    found = [
        {
            "library": pool["internal_api"],
            "version": pool.get("version"),
            "threads": pool.get("num_threads"),
            "kernel": pool.get("architecture"),
        }
        for pool in pools
    ]
    return {"records": [], "blas": found}
