"""Chains of launches as one CUDA graph: the driver launches all of it in one call.

A launch through CuPy costs the host 5 to 10 us, more than most stages of a small workload take on the device. The graph
is captured at the chain's first call, so what the gate checks is what is timed, and its kernels do not run while they
are captured, so a stage that adds to its state adds once.

CuPy refuses to call cuBLAS while a stream captures. cuBLAS allows it (its documentation, section CUDA graphs), given a
workspace of ours; so a captured product calls the library that CuPy has loaded, past CuPy.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from gpubench.backends.contract import Buffer, HostCall, Launch
from gpubench.backends.cupy.launches import CublasProduct, CudaLaunch

# What cuBLAS gives itself on Hopper (its documentation, cublasSetWorkspace); with less it might choose other kernels.
WORKSPACE_BYTES = 32 << 20
# One launch is launched faster by itself.
FEWEST = 2

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_SIDES = (_P, _I, _I, _I, _I, _I, _P)
_GEMM = (*_SIDES, _P, _I, _I, _P, _I, _I, _P, _P, _I, _I, _I, _I)
_BATCHED = (*_SIDES, _P, _I, _I, _L, _P, _I, _I, _L, _P, _P, _I, _I, _L, _I, _I, _I)


class CapturedCublas:
    """The functions of the loaded cuBLAS that a capture needs, and their workspace. Raises OSError without it."""

    def __init__(self, cupy: Any) -> None:
        cublas, self._handle = cupy.cuda.cublas, cupy.cuda.device.get_cublas_handle()
        major = cublas.getVersion(self._handle) // 10_000
        windows = sys.platform == "win32"
        library = ctypes.CDLL(f"cublas64_{major}.dll" if windows else f"libcublas.so.{major}")
        self._error = cublas.CUBLASError
        self._workspace = cupy.empty(WORKSPACE_BYTES, cupy.uint8)
        self._set_stream, self._set_workspace = library.cublasSetStream_v2, library.cublasSetWorkspace_v2
        self._set_stream.argtypes, self._set_workspace.argtypes = (_P, _P), (_P, _P, ctypes.c_size_t)
        self._gemm, self._batched = library.cublasGemmEx, library.cublasGemmStridedBatchedEx
        self._gemm.argtypes, self._batched.argtypes = _GEMM, _BATCHED

    def begin(self, stream: int) -> None:
        """From now on products go to this stream, until CuPy's next call sets its own."""
        self._check(self._set_stream(self._handle, stream))
        self._check(self._set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES))

    def product(self, step: CublasProduct) -> None:
        self._check((self._batched if step.batched else self._gemm)(*step.arguments))

    def _check(self, status: int) -> None:
        if status:
            raise self._error(status)


class CudaGraphs:
    """Makes chains of one session; the workspace of their products is shared, since they run one after the other."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._cublas: CapturedCublas | None = None

    def chain(self, launches: Sequence[Launch], output: Buffer) -> CudaLaunch | None:
        """The launches as one; None where a library call among them takes memory, which a graph cannot."""
        own = [launch for launch in launches if not isinstance(launch, HostCall)]
        if len(own) < FEWEST or not all(isinstance(one, CudaLaunch) and one.steps is not None for one in own):
            return None
        return CudaGraph(self, launches, output)

    def captured(self, steps: Sequence[Any]) -> Any:
        """The steps as a graph that can be launched. Raises what CuPy, the driver or cuBLAS raise."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        if self._cublas is None and any(isinstance(step, CublasProduct) for step in steps):
            self._cublas = CapturedCublas(self._cupy)
        with stream:
            # Other threads may copy meanwhile, and a kernel that is launched first may be loaded.
            stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeRelaxed)
            try:
                if self._cublas is not None:
                    self._cublas.begin(stream.ptr)
                for step in steps:
                    if isinstance(step, CublasProduct):
                        assert self._cublas is not None
                        self._cublas.product(step)
                    else:
                        step()
            except Exception:
                with contextlib.suppress(Exception):  # what was captured is lost, and the stream is free again
                    stream.end_capture()
                raise
            return stream.end_capture()


class CudaGraph(CudaLaunch):
    """What the host does, then all other launches as one graph; one by one where the driver captures none."""

    def __init__(self, graphs: CudaGraphs, launches: Sequence[Launch], output: Buffer) -> None:
        super().__init__(lambda: output)
        self._graphs = graphs
        self._hosts = [launch for launch in launches if isinstance(launch, HostCall)]
        self._own = [launch for launch in launches if isinstance(launch, CudaLaunch)]
        self._graph: Any = None

    def __call__(self) -> None:
        for host in self._hosts:
            host()
        if self._graph is None:
            self._graph = self._capture()
        self._graph.launch()
        self.output = self._function()

    def _capture(self) -> Any:
        try:
            return self._graphs.captured([step for one in self._own for step in one.steps or ()])
        except Exception:  # a driver, a virtual GPU or a build of cuBLAS that cannot
            return OneByOne(self._own)


class OneByOne:
    """Stands for a graph where there is none."""

    def __init__(self, launches: Sequence[CudaLaunch]) -> None:
        self._launches = launches

    def launch(self) -> None:
        for one in self._launches:
            one()
