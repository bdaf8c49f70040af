"""The BLAS that NumPy loads here, and the threads it starts."""

from __future__ import annotations

from typing import Any

from gpubench.base.installation import install_command
from gpubench.detect.probes import ProbeFailure


def probe() -> dict[str, Any]:
    """`blas`: one entry per library, as threadpoolctl names it."""
    try:
        import numpy  # noqa: F401
        from threadpoolctl import threadpool_info
    except ImportError as error:
        raise ProbeFailure(
            "absent", type(error).__name__, f"numpy and threadpoolctl are not installed: {install_command()}"
        ) from error
    keys = {"library": "internal_api", "version": "version", "threads": "num_threads", "kernel": "architecture"}
    pools = [pool for pool in threadpool_info() if pool.get("user_api") == "blas"]
    return {"records": [], "blas": [{ours: pool.get(name) for ours, name in keys.items()} for pool in pools]}
