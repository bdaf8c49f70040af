"""Compiled kernels of the CPU: a module of text for each, kept with its machine code in the user's cache folder.

The name of a module is a hash of its text, of `native` and of the versions: numba's own cache does not see a change
in a file that a module imports. The module is in `sys.modules` before it is executed, or its functions could not be
loaded from the cache a second time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gpubench import processes
from gpubench.backends.shared.host import aligned, spin_briefly
from gpubench.installation import cache_folder
from gpubench.model.kernel import NumbaProgram
from gpubench.model.op import Array

# Kernels that are worth a process of their own, and so many of those at most: each imports numba first. After so many
# seconds the rest is left to the moment that needs it.
LEAST_SHARE, MOST_PROCESSES, AHEAD_S = 2, 8, 15.0
# A region costs 2 us in the first, 3 in the second, 50 in the third.
_LAYERS = "omp tbb workqueue"
NUMBA_THREADS = "NUMBA_NUM_THREADS"


def import_numba(most: int) -> Path:
    """Import numba with `most` threads and our folder for its machine code, which is returned. Raises ImportError, and
    whatever else a broken numba raises."""
    os.environ.setdefault("NUMBA_THREADING_LAYER_PRIORITY", _LAYERS)
    if "numba" not in sys.modules:  # afterwards numba refuses another number
        os.environ[NUMBA_THREADS] = str(most)  # not what is inherited: the CPUs that may be used
    spin_briefly()
    folder = _writable(cache_folder())
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder / "machine"))
    importlib.import_module("gpubench.backends.numpy.native")
    return folder


class NumbaThreads:
    """The one pool of compiled kernels' threads in this process. `compilations` counts what no cache held."""

    def __init__(self, most: int) -> None:
        """Raises what `import_numba` raises."""
        self._folder = import_numba(most)
        import llvmlite.binding
        import numba

        from gpubench.backends.numpy import native

        self._numba = numba
        self._native = native
        self.most = min(most, numba.config.NUMBA_NUM_THREADS)
        self.limit = self.most
        self.compilations = 0
        self._active = 0
        text = Path(native.__file__).read_text(encoding="utf-8")
        self._version = hashlib.sha256(f"{numba.__version__} {sys.version} {text}".encode()).hexdigest()
        self.described = f"numba {numba.__version__} for {llvmlite.binding.get_host_cpu_name()}"

    def compiles(self, program: NumbaProgram) -> bool:
        """Whether its kernels are there, compiled: an expression of another package may be CUDA's alone."""
        try:
            self._module(program.source)
        except Exception:  # SyntaxError, or any of numba's own
            return False
        return True

    def compile_ahead(self, programs: Sequence[NumbaProgram]) -> float:
        """Have the kernels of these programs at hand. What no cache holds is compiled by processes side by side, since
        numba compiles one kernel at a time in each. Returns the seconds that compiling took."""
        began = time.perf_counter()
        sources, cached = dict.fromkeys(program.source for program in programs), self._cached()
        missing = [self._written(source) for source in sources if self._name(source) not in cached]
        shares = min(self.most // 2, len(missing) // LEAST_SHARE, MOST_PROCESSES)
        if shares > 1:
            commands = [processes.python(__name__, *map(str, missing[i::shares])) for i in range(shares)]
            # What becomes of them shows here: what is not there yet is compiled by this process.
            with contextlib.suppress(OSError):
                limits = [(command, AHEAD_S) for command in commands]
                processes.run_all(limits, processes.environment({"GPUBENCH_CACHE_DIR": str(self._folder)}))
        for program in programs:
            if time.perf_counter() - began > AHEAD_S:
                break
            self.compiles(program)
        return time.perf_counter() - began if missing else 0.0

    def launch(self, program: NumbaProgram, arrays: Mapping[str, Array]) -> Callable[[], None]:
        """One launch of the program on these arrays. It holds their addresses, so it keeps them, and its scratch."""
        import numpy as np

        module = self._module(program.source)
        known = {**arrays, **{name: aligned((size,), np.uint8) for name, size in program.scratch.items()}}
        rows = []
        for step in program.passes:
            places = [known[name].ctypes.data if name else 0 for name in step.operands]
            slices = step.slices or program.threads
            kernel = getattr(module, step.kernel)
            rows.append([kernel.address, *places, step.units, slices, step.granule, step.m, step.s])
        plan = np.array(rows, np.int64).reshape(-1, 10)
        if program.threads == 1:
            alone = self._native.alone
            return lambda kept=(known, module): alone(plan)  # type: ignore[misc]
        share = self._native.share

        def shared(kept: Any = (known, module)) -> None:
            threads = min(program.threads, self.limit)
            if self._active != threads:
                self._numba.set_num_threads(threads)
                self._active = threads
            share(plan)

        return shared

    def assembly(self, program: NumbaProgram) -> str:
        """The machine code of the program's kernels, as the compiler writes it: anew from the optimised form, which the
        cache holds beside the code."""
        module = self._module(program.source)
        libraries = [getattr(module, step.kernel)._library for step in program.passes]
        return "\n".join(one.codegen._tm.emit_assembly(one._get_module_for_linking()) for one in libraries)

    def _name(self, source: str) -> str:
        digest = hashlib.sha256(f"{self._version}\n{source}".encode()).hexdigest()[:20]
        return f"gpubench_kernel_{digest}"

    def _written(self, source: str) -> Path:
        """The file with the source, from which numba compiles it."""
        path = self._folder / "kernels" / f"{self._name(source)}.py"
        _write_once(path, source)
        return path

    def _cached(self) -> set[str]:
        """The modules for which numba has an index: on another processor it may hold nothing for this one."""
        return {path.name.partition(".")[0] for path in Path(self._numba.config.CACHE_DIR).glob("*/*.nbi")}

    def _module(self, source: str) -> ModuleType:
        name = self._name(source)
        if name in sys.modules:
            return sys.modules[name]
        path = self._written(source)
        specification = importlib.util.spec_from_file_location(name, path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[name] = module
        try:
            specification.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        self.compilations += sum(not value.cache_hits for value in vars(module).values() if _is_kernel(value))
        return module


def _is_kernel(value: Any) -> bool:
    return hasattr(value, "cache_hits") and hasattr(value, "address")


def _write_once(path: Path, text: str) -> None:
    """The file, whose time stays the same for the same text: numba compares it with that of its cache. What stands in
    its place with another text is replaced: it will be executed."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.utime(temporary, (0, 0))
    temporary.replace(path)


def _writable(folder: Path | None) -> Path:
    """`folder`, or a temporary one of this process where it cannot be written."""
    try:
        if folder is not None:
            (folder / "kernels").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder / "kernels"):
                return folder
    except OSError:
        pass
    return _temporary()


@functools.cache
def _temporary() -> Path:
    import atexit
    import shutil

    folder = Path(tempfile.mkdtemp(prefix="gpubench-kernels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def main(paths: Sequence[str]) -> None:
    """Compile the kernels in these files of the cache."""
    compiler = NumbaThreads(1)
    for path in paths:
        compiler._module(Path(path).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(sys.argv[1:])
