"""Kernels as data: everything that a backend needs to build and launch one implementation of an op.

The `build` of a CUDA or WGSL kernel is a pure function of params, dtype and limits. It imports no library and
needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """The limits and features of a device. Kernels choose tiles by these numbers, never by a vendor's name."""

    max_buffer_bytes: int  # most bytes of one allocation
    max_binding_bytes: int  # most bytes of a buffer that one binding covers
    max_workgroup_bytes: int = 16384  # most bytes that the threads of a group share
    max_workgroup_threads: int = 256  # most threads of a group
    max_groups_per_dimension: int = 65535  # most groups of a launch in each dimension
    multiprocessors: int | None = None  # number of multiprocessors or CPU threads; None if unknown
    float16: bool = False  # whether the device computes in float16
    float64: bool = False  # whether the device computes in float64
    software: bool = False  # whether the device is a software adapter
    binding_alignment: int = 256  # alignment of the offset of a binding, in bytes
    # whether blocks of a CUDA grid can run together and reach each other's shared memory (compute capability
    # 9.0 and above)
    clusters: bool = False


class WgslPass(msgspec.Struct, frozen=True):
    """One dispatch. Inputs are bound as read-only storage. Arrays larger than one binding take several passes.

    Kernels read 16 bytes at a time, so buffers and bindings are rounded up to multiples of 16 bytes. Bytes past
    the end of the data may be read but are never written.
    """

    source: str  # text of the shader module, whose entry point is `main`
    grid: tuple[int, int, int]  # groups of threads in x, y and z
    # names of inputs, outputs and scratch buffers, in the order of their bindings 0, 1, ... of group 0
    bindings: tuple[str, ...]
    # u32 values of one more binding, the last, `var<uniform> p: Params`, padded to 16 bytes. Without values there is
    # no such binding
    uniform: tuple[int, ...] = ()
    # (offset, size) in bytes of each binding that covers only a part of its buffer; the offset is a multiple of
    # `Limits.binding_alignment`
    windows: Mapping[str, tuple[int, int]] = {}


class WgslProgram(msgspec.Struct, frozen=True):
    """The dispatches of one launch."""

    passes: tuple[WgslPass, ...]  # passes in order
    scratch: Mapping[str, int] = {}  # bytes of each buffer that the passes share


def one_dispatch(*fields: Any, **named: Any) -> WgslProgram:
    """Return the program of one pass with these fields of `WgslPass`."""
    return WgslProgram((WgslPass(*fields, **named),))


class CudaPass(msgspec.Struct, frozen=True):
    """One CUDA launch."""

    source: str  # text of the translation unit
    entry: str  # name of the kernel
    grid: tuple[int, int, int]  # blocks in x, y and z
    block: tuple[int, int, int]  # threads of a block in x, y and z
    # names of buffers (inputs, outputs, scratch), and plain integers (int64)
    arguments: tuple[str | int, ...]
    options: tuple[str, ...] = ()  # options of NVRTC, without the language standard, which the backend adds


class CudaProduct(msgspec.Struct, frozen=True):
    """A pass that is a matrix product by cuBLAS: out = A B."""

    a: str  # buffer of A, m x k, row by row unless `ta`
    b: str  # buffer of B, k x n, row by row unless `tb`
    out: str  # buffer of the result, m x n
    m: int  # rows of A
    n: int  # columns of B
    k: int  # columns of A
    ta: bool = False  # whether A is stored column by column
    tb: bool = False  # whether B is stored column by column
    batch: int = 1  # number of products; their matrices follow each other in each buffer


class CudaProgram(msgspec.Struct, frozen=True):
    """The CUDA passes of one launch."""

    passes: tuple[CudaPass | CudaProduct, ...]  # passes in order
    # bytes of each scratch buffer; it is filled with zeros before the first launch only
    scratch: Mapping[str, int] = {}


class NumbaPass(msgspec.Struct, frozen=True):
    """One compiled kernel that works on a range of units, by default in one slice for each thread."""

    kernel: str  # name of the function
    # names of the kernel's four arrays: inputs, scratch, "out"; None in each place that it does not use
    operands: tuple[str | None, str | None, str | None, str | None]
    units: int  # units of work, such as elements, rows or tiles
    granule: int = 1  # slices begin at multiples of this
    m: int = 0  # kernel's argument `m`, a length whose meaning the kernel defines
    s: int = 0  # kernel's argument `s`, another such length
    slices: int | None = None  # number of slices; None means one for each thread


class NumpyPass(msgspec.Struct, frozen=True):
    """A NumPy step after the compiled passes, such as a matrix product."""

    build: Callable[..., Callable[..., None]]  # `build(np, blocks)` returns `launch(operands, output)`
    operands: tuple[str, ...]  # inputs, and arrays that the compiled passes write


class NumbaProgram(msgspec.Struct, frozen=True):
    """Compiled CPU kernels and the passes of one launch."""

    # the text of a Python module that defines the kernels by means of `gpubench.backends.numpy.native`
    source: str
    passes: tuple[NumbaPass, ...]  # passes in order
    threads: int  # number of threads that run the kernels
    scratch: Mapping[str, int] = {}  # bytes of each scratch array that the passes share
    behind: NumpyPass | None = None  # a NumPy step after the passes
    # shapes of the arrays that the passes write for `behind`, in the dtype of the case
    between: Mapping[str, tuple[int, ...]] = {}


class Candidate(msgspec.Struct, frozen=True):
    """One of several ways in which a kernel can do the same launch."""

    # name, which no other candidate of the kernel has. It does not contain the size n, because one choice may serve
    # several sizes
    name: str
    build: Callable[[], Any]  # returns the program of the candidate


class Kernel(msgspec.Struct, frozen=True):
    """One tuned implementation of an op on one backend."""

    language: str  # kind of program that `build` returns; a backend may define new kinds
    # "wgsl", "cuda", "numba": `build(params, dtype, limits)` returns a WgslProgram, CudaProgram or NumbaProgram, or
    # raises `errors.Unsupported` with the limit that does not allow one. "numpy": `build(np, blocks, params)` returns
    # `launch(inputs, output)`; `blocks` runs functions over slices on several threads (`templates/cpu.py`)
    build: Callable[..., Any]
    variant: str = "default"  # name by which a user selects the kernel
    # whether the kernel is the library call. With resident data such a kernel is measured once, for both
    # implementations. With copied data these differ, because only the tuned one copies in a faster way
    library: bool = False
    # dtypes of the kernel; None: the op's dtypes, except those for which `build` raises Unsupported
    dtypes: tuple[str, ...] | None = None
    # `candidates(params, dtype, limits)` returns the candidates that a device may time, the default first;
    # `build` returns the program of the default
    candidates: Callable[..., tuple[Candidate, ...]] | None = None

    def repeats_library(self, regime: str) -> bool:
        """Return whether cases of this regime would measure the library implementation again."""
        return self.library and regime.startswith(("resident", "in-place"))


def choose_kernel(language: str, candidates: Callable[..., tuple[Candidate, ...]], **declared: Any) -> Kernel:
    """Return a kernel in this language. `candidates(params, dtype, limits)` returns its candidates, the default
    first. `declared` are further fields of the kernel."""

    def build(params: Any, dtype: str, limits: Limits) -> Any:
        return candidates(params, dtype, limits)[0].build()

    return Kernel(language, build, candidates=candidates, **declared)


def by_backend(numpy: Any, cuda: Any, wgsl: Any) -> dict[str, tuple[Kernel, ...]]:
    """Return an op's kernels for NumPy, CuPy and wgpu. Each argument is a tuple of kernels, one kernel, or the
    `build` function of a kernel in the backend's language."""

    def kernels(language: str, build: Any) -> tuple[Kernel, ...]:
        if isinstance(build, tuple):
            return build
        return (build if isinstance(build, Kernel) else Kernel(language, build),)

    return {"numpy": kernels("numpy", numpy), "cupy": kernels("cuda", cuda), "wgpu": kernels("wgsl", wgsl)}
