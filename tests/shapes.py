"""Shapes that meet each branch of a kernel, and limits of devices, for tests of several backends."""

from gpubench.kernels.contract.kernel import Limits

# A large GPU through CUDA; the least that WebGPU promises, with and without optional dtypes.
H200 = Limits(
    max_buffer_bytes=2**37, max_binding_bytes=2**37, max_workgroup_bytes=49152, max_workgroup_threads=1024,
    multiprocessors=132, float16=True, float64=True, clusters=True,
)  # fmt: skip
WEBGPU = Limits(max_buffer_bytes=2**28, max_binding_bytes=2**27)
SMALLEST = Limits(max_buffer_bytes=2**28, max_binding_bytes=2**27, float16=True, float64=True)

# Rows and classes of an argmax: a group a row and a warp a row, whole and ragged ones, fewer classes than lanes.
ROWS_OF_CLASSES = ((1, 1), (3, 65), (128, 257), (129, 2048), (200, 70), (1000, 3), (1, 2048))

# A token over a cache: few keys, of which several threads make each score; several steps of keys; heads that no vector
# holds a whole number of; one whose elements are as many as a group's threads, but for one.
CACHES = (
    {"n": 1},
    {"n": 17, "room": 32},
    {"n": 300, "room": 777},
    {"n": 40, "width": 15, "heads": 5},
    {"n": 600, "width": 48, "heads": 1},
    {"n": 1000, "width": 96, "heads": 3},
    {"n": 33, "width": 256, "heads": 1},
    {"n": 40, "width": 67, "heads": 1},
)
