"""roundtrip: an empty launch and the wait for it: the least that any result costs."""

from gpubench.kernels._overhead import overhead
from gpubench.model.op import Overhead

OP = overhead("roundtrip", "an empty launch and the wait for it", Overhead("roundtrip"))
