"""To come."""

from gpubench.errors import Unsupported
from gpubench.model.kernel import Limits, WgslProgram


def build(rows: int, columns: int, dtype: str, limits: Limits) -> WgslProgram:
    raise Unsupported("no WGSL kernel yet", reason="no-implementation")
