"""Containment for the import of other packages: afterwards the state of this process is restored."""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from gpubench.base import allowed_cpus, streams

Restorer = Callable[[], Any]
# Seconds within which the threads of an import may end.
THREADS_S = 1.0
_STREAMS = (0, 1, 2)
used = threading.Event()  # set once this process has run code of another package
_ATTRIBUTES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (sys, ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")),
    (sys, ("argv", "excepthook", "unraisablehook", "displayhook")),
    (threading, ("excepthook",)),
)


@contextlib.contextmanager
def contain() -> Iterator[None]:
    """Restore the state of this process after the `with` block, which imports another package. In the block all
    output, from Python or from C, goes to standard error. A process that is forked in the block ends at the
    end of the block."""
    used.set()
    streams.keep_apart()
    began, before = os.getpid(), threading.enumerate()
    # These are restored first, because a low limit or a traced call could make the rest fail.
    first = [
        partial(sys.settrace, sys.gettrace()),
        partial(sys.setprofile, sys.getprofile()),
        partial(sys.setrecursionlimit, sys.getrecursionlimit()),
    ]
    rest = _restorers()
    try:
        with warnings.catch_warnings():
            sys.stdout = sys.stderr
            with contextlib.suppress(OSError):
                os.dup2(2, 1)
            yield
    finally:
        if os.getpid() != began:
            os._exit(0)
        steps: list[Restorer] = [*first, partial(_wait, before), *rest]
        for put_back in steps:
            with contextlib.suppress(Exception):
                put_back()


def _wait(before: list[threading.Thread]) -> None:
    """Wait for the threads that are not among `before`, at most THREADS_S seconds in all."""
    end = time.monotonic() + THREADS_S
    for thread in new_threads(before):
        thread.join(max(0.0, end - time.monotonic()))


def new_threads(before: list[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that run now and are not among `before`."""
    return [thread for thread in threading.enumerate() if thread not in before]


def lasting_state() -> dict[str, Any]:
    """Return the parts of this process's state that `contain` may be unable to restore, by name. Compare them
    before and after an import to find what it changed."""
    state: dict[str, Any] = {"the standard streams": [_identity(number) for number in _STREAMS]}
    for what, call in (("the process group", "getpgrp"), ("the user", "getuid")):
        if hasattr(os, call):
            state[what] = getattr(os, call)()
    if hasattr(os, "getpriority"):
        state["the priority"] = os.getpriority(os.PRIO_PROCESS, 0)
    state["the limits"] = [limit for _, limit in _limits()]
    return state


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def end(code: int) -> NoReturn:
    """End the process at once with the exit code `code`, without the exit functions that a package has
    registered, because they may hang."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _restorers() -> list[Restorer]:
    """Read the state of the process, and return functions that each restore one part of it."""
    restorers: list[Restorer] = [faulthandler.cancel_dump_traceback_later]
    for holder, names in _ATTRIBUTES:
        restorers += [partial(setattr, holder, name, getattr(holder, name)) for name in names]
    restorers += [
        partial(vars(builtins).update, dict(vars(builtins))),
        partial(_set_environment, dict(os.environ)),
        partial(sys.setswitchinterval, sys.getswitchinterval()),
        gc.enable if gc.isenabled() else gc.disable,
        *_descriptors(),
        *_of_system(),
    ]
    with contextlib.suppress(OSError):  # the folder was deleted
        restorers.append(partial(os.chdir, os.getcwd()))
    mask = os.umask(0o077)
    os.umask(mask)
    restorers.append(partial(os.umask, mask))
    if threading.current_thread() is threading.main_thread():
        restorers += handler_restorers()
    return restorers


def handler_restorers() -> list[Restorer]:
    """Return functions that each restore the present handler of one signal."""
    return [partial(_set_handler, number, signal.getsignal(number)) for number in signal.valid_signals()]


def _set_environment(environ: dict[str, str]) -> None:
    """Set the environment variables of this process to `environ`, and delete all others."""
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in environ.items() if os.environ.get(name) != value})


def _set_handler(number: int, handler: Any) -> None:
    """Set the handler of a signal, unless it is set already."""
    # None: the handler was not set in Python, and cannot be set.
    if handler is not None and signal.getsignal(number) is not handler:
        signal.signal(number, handler)


def _descriptors() -> Iterator[Restorer]:
    """Yield functions that restore the descriptors of the standard streams, or close those that are closed now."""
    for number in _STREAMS:
        try:
            yield partial(_set_descriptor, os.dup(number), number)
        except OSError:
            yield partial(os.close, number)


def _set_descriptor(copy: int, number: int) -> None:
    os.dup2(copy, number)
    os.close(copy)


def _of_system() -> Iterator[Restorer]:
    """Yield functions that restore timers, blocked signals, CPU affinity and limits, if the system has them."""
    if hasattr(signal, "setitimer"):
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            yield partial(signal.setitimer, timer, *signal.getitimer(timer))
    if hasattr(signal, "pthread_sigmask"):
        yield partial(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    if cpus := allowed_cpus():
        yield partial(os.sched_setaffinity, 0, cpus)
    for number, limit in _limits():
        import resource

        yield partial(resource.setrlimit, number, limit)


def _limits() -> list[tuple[int, tuple[int, int]]]:
    """Return the number and the values of each limit of the process. A system without limits has an empty
    list."""
    try:
        import resource
    except ImportError:
        return []
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return [(number, resource.getrlimit(number)) for number in sorted(numbers)]
