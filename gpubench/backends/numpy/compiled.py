"""Compiled kernels of the CPU. The source text of a program becomes a module, whose machine code the cache keeps.

The name of the module is a hash of the text, of `native`, and of the versions of numba and Python. The module is
in `sys.modules` before it is executed, because otherwise its functions could not be loaded from the cache.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from gpubench.backends.shared.host import aligned_array, on_all_cpus, set_up_threads
from gpubench.backends.shared.reference import BLOCK
from gpubench.base import hash_text, load_library, processes
from gpubench.base.errors import BuildError
from gpubench.kernels.contract.kernel import NumbaPass, NumbaProgram
from gpubench.kernels.contract.op import Array
from gpubench.result.store import Lock, cache

# Least number of kernels for each process that compiles, because it has to import numba first, and most such
# processes. After AHEAD_S seconds they are ended, and the other kernels are compiled when they are needed.
LEAST_SHARE, MOST_PROCESSES, AHEAD_S = 2, 8, 15.0
# Threading layers in order of preference. A parallel region takes them 2, 3 and 50 us.
_LAYERS = "omp tbb workqueue"
NUMBA_THREADS = "NUMBA_NUM_THREADS"
# Variables of numba that gpubench sets itself, and the one for numba's cache, which it does not use.
_OURS = (NUMBA_THREADS, "NUMBA_THREADING_LAYER_PRIORITY", "NUMBA_CACHE_DIR")
# Variables that may make all code slower.
_SLOWING = (
    "NUMBA_BOUNDSCHECK", "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "NUMBA_DEBUG", "NUMBA_DEBUGINFO", "NUMBA_ENABLE_AVX",
    "NUMBA_LOOP_VECTORIZE", "NUMBA_OPT",
)  # fmt: skip
_NATIVE = "gpubench.backends.numpy.native"
_MARK = cache.LOADING.format("numpy")
# A kernel that numbers the elements, beginning with `m`. It tests whether numba works.
TRIAL = """from gpubench.backends.numpy.native import *

@kernel("int32", "int32", "int32", "int32")
def number(a, b, c, out, start, stop, slot, m, s):
    for i in range(start, stop):
        out[i] = i + m
"""

# Expressions that read an element of an output, by dtype, for the comparison with its reference.
_READ = {"float32": "got[i]", "float64": "got[i]", "float16": "wide(got[i])"}

# `maximum` returns NaN if either number is one, so the error of a block with a NaN exceeds any limit.
_ERRORS = """from gpubench.backends.numpy.native import *

SMALLEST = float64({smallest!r})

@summing
def largest(got, want, scale, first, last):
    error = float64(0)
    for i in range(first, last):
        error = maximum(error, abs(float64({value}) - want[i]) / maximum({scale}, SMALLEST))
    return error

@kernel("{dtype}", "float64", "float64", "float64")
def errors(got, want, scale, out, start, stop, slot, m, s):
    for block in range(start, stop):
        out[block] = largest(got, want, scale, block * s, min(block * s + s, m))
"""


def import_numba(most: int, *, kernels: bool = True) -> None:
    """Import numba with at most `most` threads and, if `kernels` is true, the code that all kernels share. Raises
    ImportError, NumbaUnusable, and any error of a broken numba."""
    os.environ.setdefault("NUMBA_THREADING_LAYER_PRIORITY", _LAYERS)
    if "numba" not in sys.modules:  # afterwards numba refuses another number
        os.environ[NUMBA_THREADS] = str(most)  # in place of an inherited number
    set_up_threads()
    numba = load_library("numba")
    # Numba refuses to compile with another number than the one with which its threads were started.
    os.environ[NUMBA_THREADS] = str(numba.config.NUMBA_NUM_THREADS)
    if numba.config.DISABLE_JIT:
        raise NumbaUnusable("NUMBA_DISABLE_JIT keeps numba from compiling")
    from gpubench.backends.numpy import machine_code

    if kernels and _NATIVE not in sys.modules:
        machine_code.define(_NATIVE, lambda: importlib.import_module(_NATIVE))


def preload(most: int) -> None:
    """Import numba with at most `most` threads, and the code that all kernels share. Leave out that code if the
    user has set a variable of numba or has no cache."""
    # Without a cache, compiled code goes to the folder of the run, which only the session knows.
    import_numba(most, kernels=cache.user_cache().keeps and not foreign_variables())


def foreign_variables() -> str:
    """Return the names of the variables of numba that the user has set, joined by " and ". Each of these may keep
    numba from working. Returns an empty text for none."""
    return " and ".join(sorted(name for name in os.environ if name.startswith("NUMBA_") and name not in _OURS))


def slowing_variables() -> str:
    """Return the names of the variables that the user has set and that may make all kernels slower, joined by
    " and ". Returns an empty text for none."""
    return " and ".join(name for name in _SLOWING if name in os.environ)


class NumbaUnusable(RuntimeError):
    """Error: numba is installed but cannot be used. The message is a whole sentence."""


class NumbaThreads:
    """Compiled kernels and the thread pool that runs them. A process needs only one object."""

    def __init__(self, most: int) -> None:
        """Import numba and test it. Raises the errors of `import_numba`."""
        with on_all_cpus(), leave_mark():
            import_numba(most)
            import llvmlite.binding
            import numba

            from gpubench.backends.numpy import machine_code, native

            self._numba = numba
            self._native = native
            self._code = machine_code
            self.most = min(most, numba.config.NUMBA_NUM_THREADS)
            self.limit = self.most
            self._active = min(self.most, 2)
            numba.set_num_threads(self._active)
            self._try_out()
        self.described = f"numba {numba.__version__} for {llvmlite.binding.get_host_cpu_name()}"

    def _try_out(self) -> None:
        """Have numba count from 7 to 10, on one thread and on two. Raise NumbaUnusable if the numbers are wrong."""
        import numpy as np

        step = NumbaPass("number", (None, None, None, "out"), units=4, m=7)
        for threads in (1, 2):
            out = np.zeros(4, np.int32)
            self.launch(NumbaProgram(TRIAL, (step,), threads=threads), {"out": out})()
            if out.tolist() != [7, 8, 9, 10]:
                raise NumbaUnusable(f"numba does not work: its code counts {out.tolist()} from 7 on")

    def compile(self, program: NumbaProgram) -> None:
        """Load the program's kernels from the cache, or compile them. Raises BuildError."""
        try:
            self._module(program.source)
        except MemoryError:
            raise
        except Exception as error:  # any error of numba and LLVM
            raise BuildError(f"numba does not compile the kernel: {one_line(error)}") from error

    def compile_ahead(self, programs: Sequence[NumbaProgram]) -> float:
        """Load the kernels of these programs, and compile the kernels that the cache lacks, for about AHEAD_S
        seconds. Raises nothing for a kernel that does not compile. Returns the seconds that this took, or 0 if
        the cache had all kernels."""
        began = time.perf_counter()
        sources = dict.fromkeys(program.source for program in programs)
        names = {source: self.module_name(source) for source in sources}
        missing = [s for s, name in names.items() if name not in sys.modules and not self._code.holds(name)]
        shares = min(self.most // 2, len(missing) // LEAST_SHARE, MOST_PROCESSES)
        # In one process numba compiles one kernel at a time.
        if shares > 1 and cache.user_cache().keeps:
            folders = [str(folder) for folder in cache.fallbacks()]
            commands = [(processes.python(__name__, *folders), AHEAD_S)] * shares
            # Their results are not read, because this process compiles what the cache lacks afterwards.
            with contextlib.suppress(OSError):
                processes.run_all(
                    commands, stdin=[msgspec.json.encode(missing[i::shares]) for i in range(shares)]
                )
        for program in programs:
            if time.perf_counter() - began > AHEAD_S:
                break
            with contextlib.suppress(BuildError):  # it is raised again when the kernel is needed
                self.compile(program)
        return time.perf_counter() - began if missing else 0.0

    def launch(self, program: NumbaProgram, arrays: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that runs the program on these arrays. It uses the addresses of the arrays and of its
        scratch memory, and therefore keeps references to them."""
        import numpy as np

        module = self._module(program.source)
        buffers = {
            **arrays,
            **{name: aligned_array((size,), np.uint8) for name, size in program.scratch.items()},
        }
        rows = []
        for step in program.passes:
            places = [buffers[name].ctypes.data if name else 0 for name in step.operands]
            slices = step.slices or program.threads
            kernel = getattr(module, step.kernel)
            rows.append([kernel.address, *places, step.units, slices, step.granule, step.m, step.s])
        plan = np.array(rows, np.int64).reshape(-1, 10)
        if program.threads == 1:
            alone = self._native.alone
            return lambda alive=(buffers, module): alone(plan)  # type: ignore[misc]
        share = self._native.share

        def run(held: Any = (buffers, module)) -> None:
            threads = min(program.threads, self.limit)
            if self._active != threads:
                self._numba.set_num_threads(threads)
                self._active = threads
            share(plan)

        return run

    def block_errors(self, got: Array, want: Array, scale: Array | None, smallest: float) -> Array | None:
        """Return the largest error of each block of flat arrays, as in `JudgesBlocks.block_errors`."""
        import numpy as np

        arrays = {"got": got, "want": want} if scale is None else {"got": got, "want": want, "scale": scale}
        dtypes = [array.dtype.name for array in arrays.values()]
        contiguous = all(array.flags.c_contiguous for array in arrays.values())
        if dtypes[0] not in _READ or {*dtypes[1:]} != {"float64"} or not contiguous:
            return None
        out = np.empty(-(-want.size // BLOCK))
        source = _ERRORS.format(
            dtype=dtypes[0], value=_READ[dtypes[0]], smallest=smallest,
            scale="abs(want[i])" if scale is None else "scale[i]",
        )  # fmt: skip
        operands = ("got", "want", None if scale is None else "scale", "out")
        step = NumbaPass("errors", operands, units=out.size, m=want.size, s=BLOCK)
        program = NumbaProgram(source, (step,), threads=self.most)
        try:
            self.compile(program)
        except BuildError:
            return None
        self.launch(program, {**arrays, "out": out})()
        return out

    def assembly(self, program: NumbaProgram) -> str:
        """Return the assembly text of the program's kernels. It is generated from the optimised LLVM code, which
        the cache has, too."""
        module = self._module(program.source)
        libraries = [getattr(module, step.kernel)._library for step in program.passes]
        return "\n".join(
            library.codegen._tm.emit_assembly(library._get_module_for_linking()) for library in libraries
        )

    def module_name(self, source: str) -> str:
        """Return the name of the module that the source text defines."""
        digest = hash_text(f"{self._code.version()}\n{source}", 20)
        return f"gpubench_kernel_{digest}"

    def _module(self, source: str) -> ModuleType:
        name = self.module_name(source)
        if name not in sys.modules:
            # Errors of a text that numba can never compile.
            hopeless = (SyntaxError, NameError, self._numba.core.errors.NumbaError)
            self._code.define(name, functools.partial(_execute, name, source), hopeless=hopeless)
        return sys.modules[name]


@contextlib.contextmanager
def leave_mark() -> Iterator[None]:
    """Mark, in the run's folder, that the `with` block loads numba. Raise NumbaUnusable if a dead worker left its
    mark."""
    with contextlib.ExitStack() as marks:
        for folder in cache.fallbacks():
            if any(_died_loading_numba(path) for path in folder.glob(f"{_MARK}*")):
                raise NumbaUnusable("a worker ended, or hung, while it loaded numba")
            with contextlib.suppress(OSError):  # without locks a crash is repeated
                # If numba ends this process, later workers of the run see the mark and do not load it.
                mark = Lock(folder / f"{_MARK}{os.getpid()}")
                if mark.take():
                    marks.callback(mark.release)
                    mark.path.write_text("numba")
        yield


def _died_loading_numba(path: Path) -> bool:
    """Return whether `path` is the mark of a worker that died while it loaded numba."""
    mark = Lock(path)
    with contextlib.suppress(OSError):
        # The lock of a living worker is taken, and an empty mark is about to be removed.
        if mark.take():
            written = path.stat().st_size > 0
            mark.release(keep=written)
            return written
    return False


def _execute(name: str, source: str) -> None:
    module = sys.modules[name] = ModuleType(name)
    try:
        exec(compile(source, f"<{name}>", "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise


def one_line(error: Exception) -> str:
    """Return the type and the message of an error as one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main(folders: Sequence[str]) -> None:
    """Compile the source texts of the JSON list on stdin into the cache. If the cache does not accept them, they go
    to the run's folder, the only item of `folders`, if there is one. Print the first error and exit."""
    sources = msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])
    for folder in folders:
        cache.fall_back_to(Path(folder))
    try:
        compiler = NumbaThreads(1)
        for source in sources:
            compiler._module(source)
    except Exception as error:
        sys.exit(one_line(error))


if __name__ == "__main__":
    main(sys.argv[1:])
