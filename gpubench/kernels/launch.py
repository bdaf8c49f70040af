"""launch: host time to enqueue one empty launch, while earlier ones may still run."""

from gpubench.kernels._overhead import overhead
from gpubench.model.op import Overhead

OP = overhead("launch", "enqueue an empty launch, without waiting", Overhead("launch"))
