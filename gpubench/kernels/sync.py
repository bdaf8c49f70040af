"""sync: the wait for a device that has nothing to do."""

from gpubench.kernels._overhead import overhead
from gpubench.model.op import Overhead

OP = overhead("sync", "wait with nothing enqueued", Overhead("sync"))
