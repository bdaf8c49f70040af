"""allocate: take n bytes of device memory and give them back; library asks the driver, tuned the pool."""

from gpubench.kernels._overhead import BYTES, overhead
from gpubench.model.op import Overhead

OP = overhead(
    "allocate",
    "take n bytes on the device and give them back: library from the driver, tuned from the pool",
    Overhead("allocate", ("library", "tuned")),
    sizes=BYTES,
)
