"""CUDA kernels of ops, compiled by NVRTC through CuPy.

Not through RawModule: that appends -ftz=true to every option list, and numbers below 1.2e-38 would become 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from gpubench.backends._host import tuned_kernel
from gpubench.errors import BuildError
from gpubench.model.backend import Buffer
from gpubench.model.case import Case
from gpubench.model.kernel import CudaPass, CudaProgram, Limits
from gpubench.model.op import Op

# A stream holds 1024 launches; the next one makes the host wait for the device (H200: empty launches take 1.40 us each
# up to 1024 of them, and 2.24 us with 2048).
MOST_QUEUED = 1000


class CudaLaunch:
    """A prepared call; `output` is the array that holds the result of the last one.

    `queued` launches fit into the stream together, as far as is known: fewer where one launch is several kernels.
    """

    def __init__(self, function: Callable[[], Any], kernel_hash: str | None) -> None:
        self._function = function
        self.output: Buffer = None
        self.kernel_hash = kernel_hash
        self.queued = MOST_QUEUED

    def __call__(self) -> None:
        """Enqueue once."""
        self.output = self._function()


class CudaPrograms:
    """Compiled programs of one session: compiling again with other buffers only binds them."""

    def __init__(self, cupy: Any, limits: Limits) -> None:
        self._cupy = cupy
        self._limits = limits
        self._built: dict[tuple[str, str | None], tuple[CudaProgram, list[Any], str]] = {}
        self._functions: dict[tuple[str, str, tuple[str, ...]], Any] = {}

    def launch(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> CudaLaunch:
        """The case's CUDA kernel bound to these buffers. Raises BuildError with NVRTC's text."""
        program, functions, digest = self._program(op, case)
        buffers = {operand.name: buffer for operand, buffer in zip(op.inputs, inputs, strict=True)}
        buffers[op.output.name] = output
        for name, size in program.scratch.items():
            buffers[name] = self._cupy.zeros(size, self._cupy.uint8)
        steps = [
            (function, step, _arguments(step, buffers))
            for function, step in zip(functions, program.passes, strict=True)
        ]

        def call() -> Any:
            for function, step, arguments in steps:
                function(step.grid, step.block, arguments, shared_mem=step.shared_bytes)
            return output

        return CudaLaunch(call, digest)

    def _program(self, op: Op, case: Case) -> tuple[CudaProgram, list[Any], str]:
        key = (case.workload, case.variant)
        if key not in self._built:
            program: CudaProgram = tuned_kernel(op, case).build(case.params, case.dtype, self._limits)
            functions = [self._function(step) for step in program.passes]
            text = "\n".join(part for step in program.passes for part in (step.source, *step.options))
            self._built[key] = (program, functions, hashlib.sha256(text.encode()).hexdigest()[:12])
        return self._built[key]

    def _function(self, step: CudaPass) -> Any:
        """The compiled entry of a text: most texts serve many sizes, and one module is enough for them."""
        key = (step.source, step.entry, step.options)
        if key not in self._functions:
            cuda = self._cupy.cuda
            try:
                binary, _ = cuda.compiler.compile_using_nvrtc(step.source, ("--std=c++17", *step.options))
            except cuda.compiler.CompileException as error:
                raise BuildError(str(error)) from error
            module = cuda.function.Module()
            module.load(binary)
            self._functions[key] = module.get_function(step.entry)
        return self._functions[key]


def _arguments(step: CudaPass, buffers: dict[str, Buffer]) -> tuple[Any, ...]:
    """Buffers by name; plain integers as 64-bit ones, whatever CuPy would make of a Python int."""
    import numpy as np

    return tuple(buffers[a] if isinstance(a, str) else np.int64(a) for a in step.arguments)
