"""open: a process imports the library and opens the device; each sample is the first context of a fresh process."""

from gpubench.kernels._overhead import overhead
from gpubench.model.op import Overhead

OP = overhead("open", "import the library and open the device, in a fresh process", Overhead("open"))
