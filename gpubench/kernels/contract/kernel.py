"""Kernels as data: everything that a backend needs to build and launch one implementation of an op.

A CUDA or WGSL kernel is a pure function of params, dtype and limits. It imports nothing and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """The limits of a device. Kernels choose tiles from these numbers, never from a vendor's name."""

    max_buffer_bytes: int  # of one allocation
    max_binding_bytes: int  # of what one kernel sees of a buffer
    max_workgroup_bytes: int = 16384  # shared by the threads of a group
    max_workgroup_threads: int = 256  # of a group
    max_groups_per_dimension: int = 65535  # of a launch
    multiprocessors: int | None = None  # None: not told
    float16: bool = False  # it computes with them
    float64: bool = False  # it computes with them
    software: bool = False  # a program on the CPU acts it out
    binding_alignment: int = 256  # of the offset of a binding, in bytes
    # blocks of a CUDA grid can run together and reach each other's shared memory (9.0 and above)
    clusters: bool = False


class WgslPass(msgspec.Struct, frozen=True):
    """One dispatch. Inputs are bound as read-only storage, output and scratch as the source declares them.

    Kernels read 16 bytes at a time, so the size of a buffer and of its binding is rounded up to a multiple of 16 bytes.
    Bytes past the end of the data may be read but are never written. An array larger than one binding takes several
    passes.
    """

    source: str  # the text of the shader module
    grid: tuple[int, int, int]  # groups of threads in x, y and z
    # names of inputs, outputs and scratch buffers in binding order (group 0, from 0 up)
    bindings: tuple[str, ...]
    entry: str = "main"  # the name of the entry point
    # u32 values in one more binding, the last, as `var<uniform> p: Params` (padded to 16 bytes); empty: no such
    # binding
    uniform: tuple[int, ...] = ()
    # the bindings that see a part of their buffer only: (offset, size) in bytes, the offset a multiple of
    # `Limits.binding_alignment`
    windows: Mapping[str, tuple[int, int]] = {}


class WgslProgram(msgspec.Struct, frozen=True):
    """The passes of one launch."""

    passes: tuple[WgslPass, ...]  # in order
    scratch: Mapping[str, int] = {}  # bytes of each buffer that the passes share


class CudaPass(msgspec.Struct, frozen=True):
    """One CUDA launch."""

    source: str  # the text of the translation unit
    entry: str  # the name of the kernel
    grid: tuple[int, int, int]  # blocks in x, y and z
    block: tuple[int, int, int]  # threads of a block in x, y and z
    # names of buffers (inputs, outputs, scratch), and plain integers (int64)
    arguments: tuple[str | int, ...]
    shared_bytes: int = 0  # dynamic shared memory of a block
    options: tuple[str, ...] = ()  # options of NVRTC, beside the language standard that the backend gives


class CudaProduct(msgspec.Struct, frozen=True):
    """A matrix product by cuBLAS as a pass: out = A B."""

    a: str  # the buffer of A, m x k, row by row
    b: str  # the buffer of B, k x n, row by row
    out: str  # the buffer of the result, m x n
    m: int  # rows of A
    n: int  # columns of B
    k: int  # columns of A
    ta: bool = False  # A lies column by column
    tb: bool = False  # B lies column by column
    batch: int = 1  # products, one behind the other in each buffer


class CudaProgram(msgspec.Struct, frozen=True):
    """The CUDA passes of one launch."""

    passes: tuple[CudaPass | CudaProduct, ...]  # in order
    # bytes of each buffer; zero before the first launch, and no launch clears it again
    scratch: Mapping[str, int] = {}


class NumbaPass(msgspec.Struct, frozen=True):
    """One compiled kernel over units of work. By default it runs in one slice for each thread."""

    kernel: str  # the name of the function
    # the kernel's four arrays: inputs, "out", scratch; None where it has fewer
    operands: tuple[str | None, str | None, str | None, str | None]
    units: int  # units of work
    granule: int = 1  # slices begin at multiples of it
    m: int = 0  # a length that the kernel is given
    s: int = 0  # another one
    slices: int | None = None  # so many slices, if not one a thread


class NumpyPass(msgspec.Struct, frozen=True):
    """A step by NumPy after the compiled passes, such as a product."""

    build: Callable[..., Callable[..., None]]  # `build(np, blocks)` returns `launch(operands, output)`
    operands: tuple[str, ...]  # inputs, and arrays that the passes have written


class NumbaProgram(msgspec.Struct, frozen=True):
    """Compiled kernels of the CPU and the passes of one launch."""

    # the text of a Python module, which defines the kernels with what `gpubench.backends.numpy.native` offers
    source: str
    passes: tuple[NumbaPass, ...]  # in order
    threads: int = 1  # threads that run them
    scratch: Mapping[str, int] = {}  # bytes of each scratch array that the passes share
    behind: NumpyPass | None = None  # the rest of the launch, by NumPy
    # shapes of the arrays, in the dtype of the case, that `behind` reads of the passes
    between: Mapping[str, tuple[int, ...]] = {}


class Candidate(msgspec.Struct, frozen=True):
    """One of several ways in which a kernel can do the same launch."""

    name: str  # what is special about it; it holds no size, so that a choice can be remembered
    build: Callable[[], Any]  # returns its program


class Kernel(msgspec.Struct, frozen=True):
    """One tuned implementation of an op on one backend."""

    language: str  # the kind of program that `build` makes; a backend may have one of its own
    # "wgsl", "cuda", "numba": `build(params, dtype, limits)` returns a WgslProgram, CudaProgram or NumbaProgram, or
    # raises `errors.Unsupported` naming the limit it meets. "numpy": `build(np, blocks, params)` returns
    # `launch(inputs, output)`, where `blocks.run` runs a function over slices on `blocks.threads` threads
    build: Callable[..., Any]
    variant: str = "default"  # the name that a user gives
    # the kernel is the library call: with resident data it is measured once and fills both implementations. Where data
    # travels the implementations differ, because the tuned one stages it
    library: bool = False
    # the dtypes it works in; None: all that the op declares, as far as `build` does not refuse
    dtypes: tuple[str, ...] | None = None
    # `candidates(params, dtype, limits)` lists what a device may choose from by timing, the default first; `build`
    # returns the default's program
    candidates: Callable[..., tuple[Candidate, ...]] | None = None

    def repeats_library(self, regime: str) -> bool:
        """Tell whether its cases of this regime would measure the library implementation a second time."""
        return self.library and regime.startswith(("resident", "in-place"))


def choose_kernel(language: str, candidates: Callable[..., tuple[Candidate, ...]], **declared: Any) -> Kernel:
    """Return a kernel that chooses among these candidates. The first candidate is the default."""

    def build(params: Any, dtype: str, limits: Limits) -> Any:
        return candidates(params, dtype, limits)[0].build()

    return Kernel(language, build, candidates=candidates, **declared)


def by_backend(numpy: Any, cuda: Any, wgsl: Any) -> dict[str, tuple[Kernel, ...]]:
    """Return an op's kernels on NumPy, CuPy and WebGPU. Each argument is a tuple of kernels, one kernel, or the `build`
    of a kernel in the backend's language."""

    def kernels(language: str, build: Any) -> tuple[Kernel, ...]:
        if isinstance(build, tuple):
            return build
        return (build if isinstance(build, Kernel) else Kernel(language, build),)

    return {"numpy": kernels("numpy", numpy), "cupy": kernels("cuda", cuda), "wgpu": kernels("wgsl", wgsl)}
