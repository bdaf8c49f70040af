"""download: n bytes from device to host; library into ordinary memory, tuned through the best staging."""

from gpubench.kernels._overhead import BYTES, overhead
from gpubench.model.op import Overhead

OP = overhead(
    "download",
    "n bytes to the host: library into ordinary memory, tuned pinned or mapped",
    Overhead("download", ("library", "tuned")),
    sizes=BYTES,
)
