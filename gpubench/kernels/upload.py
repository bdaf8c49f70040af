"""upload: n bytes from host to device, waited for; library from ordinary memory, tuned through the best staging."""

from gpubench.kernels._overhead import BYTES, overhead
from gpubench.model.op import Overhead

OP = overhead(
    "upload",
    "n bytes to the device: library from ordinary memory, tuned pinned or mapped",
    Overhead("upload", ("library", "tuned")),
    sizes=BYTES,
)
