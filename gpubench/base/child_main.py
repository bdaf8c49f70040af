"""The entry point of a Python child process, `python -P -S child_main.py PARENT_PID MODULE ARGUMENTS...`, and
its messages.

Until the child is bound to its parent, only modules are imported that the interpreter has loaded anyway,
because an import may hang. `-S` postpones the start-up code of other packages (.pth files, sitecustomize,
usercustomize), which may print or close streams. This module runs that code later.
"""

import os
import sys

TYPE_CHECKING = False  # as in typing, which is not imported yet
if TYPE_CHECKING:
    import queue
    from typing import NoReturn

ROOT = os.path.abspath(f"{__file__}/../../..")  # the folder that holds gpubench
PR_SET_PDEATHSIG = 1
SIGKILL = 9
# The beginning of each line that is a message of gpubench. All other lines of a child's output come from other
# code.
FRAME = b"\x02gpubench "


class Messages:
    """Sends messages of a child to its parent, on the original standard output. Everything else that is printed
    to standard output goes to stderr."""

    def __init__(self) -> None:
        self._stream, self._process = os.fdopen(os.dup(1), "wb"), os.getpid()
        os.dup2(2, 1)

    def write(self, message: bytes) -> None:
        """Send one message, which is a line of text. End a process that a user's function has forked."""
        if os.getpid() != self._process:
            os._exit(0)
        self._stream.write(b"\n" + FRAME + message.rstrip(b"\n") + b"\n")
        self._stream.flush()


def lines_of_parent() -> "queue.SimpleQueue[bytes]":
    """Return a queue of the lines of standard input, each with its line end. A thread fills it. When the input
    ends, the parent is gone, and the thread ends this process."""
    import queue
    import threading

    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # The thread does not read sys.stdin: a forked child closes it, and would wait for the thread. It does not read
    # descriptor 0: a program that this process starts reads that.
    stream = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def read() -> None:
        for line in stream:
            lines.put(line)
        end()

    threading.Thread(target=read, daemon=True).start()
    return lines


def end() -> "NoReturn":
    """End this process at once, without exit functions. If it leads its process group, the whole group gets
    SIGTERM, such as a pool of processes that a user's file started."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        import signal

        os.killpg(0, signal.SIGTERM)
    os._exit(0)


def die_with(parent: int) -> None:
    """Ask the Linux kernel to kill this process when the thread that started it ends. `parent` is the id of the
    parent process.

    On other systems, and if libc cannot be called, only the end of stdin shows that the parent is gone.
    """
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL))
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def import_ours(root: str) -> None:
    """Import the parent's gpubench, from the folder `root`, even if another package has that name. A folder
    that was not on the path is put there, after the standard library."""
    sys.path.insert(0, root)
    import gpubench  # noqa: F401 - it imports nothing, so that nothing is taken from this place of the path

    del sys.path[0]
    if os.path.realpath(root) in map(os.path.realpath, sys.path):
        return
    # The parent may have found its libraries in this folder, too.
    standard = os.path.dirname(os.__file__)
    inside = [
        at for at, path in enumerate(sys.path) if path in (standard, os.path.join(standard, "lib-dynload"))
    ]
    sys.path.insert(max(inside, default=-1) + 1, root)


def import_msgspec() -> None:
    """Import msgspec without typing_extensions."""
    # That library takes half of the import time and adds only names that `typing` has, too. None is Python's own way
    # to say: not installed. What is loaded already stays.
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    try:
        import msgspec  # noqa: F401
    finally:
        if sys.modules["typing_extensions"] is None:
            del sys.modules["typing_extensions"]


_replaced: list[object] = []  # streams that other code made: collecting one may close its descriptor


def run_start_up_code() -> None:
    """Run the start-up code that `-S` left out, with empty input and with its output on stderr. Then restore
    the three standard streams."""
    if not sys.flags.no_site:
        return
    import site

    own = [os.dup(number) for number in range(3)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        site.main()
    except SystemExit as error:
        os.write(
            own[2], f"a .pth file, sitecustomize or usercustomize calls sys.exit({error.code!r})\n".encode()
        )
    _flush_all()
    for number, stream in enumerate(own):
        os.dup2(stream, number)
    for descriptor in (nothing, *own):
        os.close(descriptor)
    _replaced.extend((sys.stdin, sys.stdout, sys.stderr))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _flush_all() -> None:
    """Flush the output buffers of Python and, on Linux, of C."""
    import contextlib

    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        with contextlib.suppress(Exception):  # closed, None, or somebody's own class
            stream.flush()  # type: ignore[union-attr]
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).fflush(None)


def main() -> None:
    """Bind the process to its parent, run the start-up code of other packages, then run the module of the
    command line as `python -m` does."""
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    run_start_up_code()
    import_ours(ROOT)
    import_msgspec()
    import runpy

    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
