"""Kernels as data: what a backend needs to build and launch one implementation of an op.

A CUDA or WGSL kernel is a pure function of params, dtype and limits; it imports nothing and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """The limits of a device. Kernels choose tiles from these numbers, never from a vendor's name.

    `clusters`: blocks of a CUDA grid can run together and reach each other's shared memory (9.0 and above).
    """

    max_buffer_bytes: int
    max_binding_bytes: int
    max_workgroup_bytes: int = 16384
    max_workgroup_threads: int = 256
    max_groups_per_dimension: int = 65535
    multiprocessors: int | None = None
    float16: bool = False
    float64: bool = False
    software: bool = False
    binding_alignment: int = 256
    clusters: bool = False


class WgslPass(msgspec.Struct, frozen=True):
    """One dispatch. `bindings` name the buffers in binding order (group 0, from 0 up).

    A binding is an input's name, the output's name, or a scratch buffer's name. If `uniform` is not
    empty, its u32 values stand in one more binding, last, as `var<uniform> p: Params` (padded to 16 bytes).
    Inputs are bound as read-only storage, output and scratch as the source declares them. Kernels read 16 bytes
    at a time: a buffer's size and its binding are rounded up to a multiple of 16 bytes. The bytes past the end
    are read at most, never written.
    `windows` names the bindings that see a part of their buffer only: (offset, size) in bytes, the offset a
    multiple of `Limits.binding_alignment`. An array beyond one binding takes several passes.
    """

    source: str
    grid: tuple[int, int, int]
    bindings: tuple[str, ...]
    entry: str = "main"
    uniform: tuple[int, ...] = ()
    windows: Mapping[str, tuple[int, int]] = {}


class WgslProgram(msgspec.Struct, frozen=True):
    """The passes of one launch in order, and the bytes of each scratch buffer they share.

    No passes at all is a launch that does nothing: an op over no elements.
    """

    passes: tuple[WgslPass, ...]
    scratch: Mapping[str, int] = {}


class CudaPass(msgspec.Struct, frozen=True):
    """One CUDA launch. `arguments` name buffers (inputs, output, scratch) or are plain integers (int64).

    `options` are NVRTC's, beside the language standard that the backend gives.
    """

    source: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[str | int, ...]
    shared_bytes: int = 0
    options: tuple[str, ...] = ()


class CudaProduct(msgspec.Struct, frozen=True):
    """A matrix product by cuBLAS as a pass: `out` = A B, A of m x k and B of k x n, which the buffers `a` and `b` hold
    row by row, or column by column (`ta`, `tb`). `batch`: so many, one behind the other in each buffer."""

    a: str
    b: str
    out: str
    m: int
    n: int
    k: int
    ta: bool = False
    tb: bool = False
    batch: int = 1


class CudaProgram(msgspec.Struct, frozen=True):
    """The CUDA passes of one launch in order (none: nothing to do), and the bytes of each scratch buffer.

    Scratch is zero before the first launch and belongs to the kernel afterwards: no launch clears it again.
    """

    passes: tuple[CudaPass | CudaProduct, ...]
    scratch: Mapping[str, int] = {}


class NumbaPass(msgspec.Struct, frozen=True):
    """One kernel over `units` of work, in as many slices as the program has threads, or in `slices`.

    `operands` name the kernel's four arrays: inputs, "out", scratch; None where it has fewer. Slices begin at multiples
    of `granule`. `m` and `s` are two lengths that the kernel is given.
    """

    kernel: str
    operands: tuple[str | None, str | None, str | None, str | None]
    units: int
    granule: int = 1
    m: int = 0
    s: int = 0
    slices: int | None = None


class NumpyPass(msgspec.Struct, frozen=True):
    """The work of NumPy behind compiled passes, such as a product: `build(np, blocks)` returns
    `launch(operands, output)`. `operands` name inputs and arrays that the passes have written."""

    build: Callable[..., Callable[..., None]]
    operands: tuple[str, ...]


class NumbaProgram(msgspec.Struct, frozen=True):
    """Compiled kernels of the CPU: the text of a Python module that defines them with what
    `gpubench.backends.numpy.native` offers, the passes of one launch in order, the bytes of each scratch array they
    share, and how many threads run them. What the passes leave to NumPy stands in `behind`; `between` are the shapes
    of the arrays, in the dtype of the case, that it reads of them."""

    source: str
    passes: tuple[NumbaPass, ...]
    threads: int = 1
    scratch: Mapping[str, int] = {}
    behind: NumpyPass | None = None
    between: Mapping[str, tuple[int, ...]] = {}


class Candidate(msgspec.Struct, frozen=True):
    """One of the ways in which a kernel may do the same launch: `build()` returns its program.

    `name` says what is special about it and holds no size, so that a choice can be remembered.
    """

    name: str
    build: Callable[[], Any]


class Kernel(msgspec.Struct, frozen=True):
    """One tuned implementation of an op on one backend.

    `language` says what `build` makes; a backend may have one of its own. "wgsl", "cuda" and "numba":
    `build(params, dtype, limits)` returns a WgslProgram, CudaProgram or NumbaProgram, or raises `errors.Unsupported`
    naming the limit it meets. "numpy": `build(np, blocks, params)` returns `launch(inputs, output)`, where `blocks.run`
    runs a function over slices on `blocks.threads` threads.
    `library` marks a kernel that *is* the library call: with resident data it is measured once and fills both forms.
    Where data travels the forms differ, because the tuned one stages it.
    `dtypes` are those it works in; None: all that the op declares, as far as `build` does not refuse.
    `candidates(params, dtype, limits)` lists what a device may choose from by timing, the default first;
    `build` returns the default's program.
    """

    language: str
    build: Callable[..., Any]
    variant: str = "default"
    library: bool = False
    dtypes: tuple[str, ...] | None = None
    candidates: Callable[..., tuple[Candidate, ...]] | None = None

    def repeats_library(self, regime: str) -> bool:
        """Whether its cases of this regime would be those of the library form once more."""
        return self.library and regime.startswith("resident")


def choose_kernel(language: str, candidates: Callable[..., tuple[Candidate, ...]], **declared: Any) -> Kernel:
    """The kernel of these ways to do a launch, whose first is the default."""

    def build(params: Any, dtype: str, limits: Limits) -> Any:
        return candidates(params, dtype, limits)[0].build()

    return Kernel(language, build, candidates=candidates, **declared)


def by_backend(numpy: Any, cuda: Any, wgsl: Any) -> dict[str, tuple[Kernel, ...]]:
    """An op's kernels on NumPy, CuPy and WebGPU: several, one, or the `build` of one in the backend's language."""

    def kernels(language: str, build: Any) -> tuple[Kernel, ...]:
        if isinstance(build, tuple):
            return build
        return (build if isinstance(build, Kernel) else Kernel(language, build),)

    return {"numpy": kernels("numpy", numpy), "cupy": kernels("cuda", cuda), "wgpu": kernels("wgsl", wgsl)}
