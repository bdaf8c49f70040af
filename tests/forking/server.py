"""The process that forks programs: `python server.py SOCKET`, until its stdin ends."""

import ast
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from gpubench.measure.worker_pool import THREAD_VARIABLES

MOST_BYTES = 1 << 18
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUMBER_BYTES = 8
MOST_NAME = 15  # letters of a process's name
# What children of the program run; they import it themselves, but nearly all that it imports is there.
CHILDREN = (
    "gpubench.measure.worker.main", "gpubench.measure.monitor_child", "gpubench.detect.probes.libraries",
    "gpubench.kernels.contract.foreign", "gpubench.functions.trial",
)  # fmt: skip
OTHERS = ("gpubench.__main__", "gpubench.base.child_main", "gpubench.report.plots")
# What workers of a CPU load, and what describes charts. Libraries that open devices are loaded by who needs them.
LIBRARIES = ("numpy", "numba", "threadpoolctl", "psutil", "concurrent.futures.thread", "coverage")
# Variables that are read while Python or a library starts.
READ_AT_START = tuple("PYTHON LD_ LC_ LANG TZ OMP_ OPENBLAS_ MKL_ NUMEXPR_ NUMBA_".split())


def at_start(env):
    """What a process cannot change of its environment any more; threads that nobody counts are as many as the CPUs."""
    usual = dict.fromkeys(THREAD_VARIABLES, str(len(os.sched_getaffinity(0))))
    read = {name: value for name, value in env.items() if name.startswith(READ_AT_START)}
    read.pop("PYTHONPATH", None)
    return {**usual, **read}


OURS = at_start(os.environ)


def may_fork(env):
    """Whether a process with this environment would start as this one did."""
    return at_start(env) == OURS and not any(map(is_too_late_for, python_path(env)))


def is_child(command):
    return list(command[:2]) == [sys.executable, "-PS"] and command[4] in CHILDREN


def python_path(env):
    return list(filter(None, env.get("PYTHONPATH", "").split(os.pathsep)))


def is_too_late_for(folder):
    """Whether Python would have imported a module of this folder as it starts, or in place of one that is loaded."""
    names = {entry.partition(".")[0] for entry in os.listdir(folder)} if os.path.isdir(folder) else set()
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names & sys.modules.keys()}
    at_once = {"sitecustomize", "usercustomize"} & names
    if at_once or not os.path.isabs(folder):
        return True
    return not all(file.startswith(f"{folder}{os.sep}") for file in files.values())


def import_all():
    """Import what the program and its children may import, and run none of it."""
    import gpubench

    for module in pkgutil.walk_packages(gpubench.__path__, "gpubench."):
        if module.name not in (*CHILDREN[:2], *CHILDREN[3:], *OTHERS):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def rehearse():
    """Read and show a document: types, regular expressions and tables that are made once are there in each fork, a
    tenth of a short run. What depends on the packages of a process is forgotten."""
    from gpubench import kernels
    from gpubench.base.plugins import sections
    from gpubench.cli import main

    document = os.path.join("tests", "unit", "store", "fixtures", "version-4.json")
    for command in (["--full"], ["--format", "json"]):  # a page would keep the script that draws it
        nowhere = io.StringIO()
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            assert main(["report", document, *command]) == 0
    kernels.groups()
    sections.declarations.cache_clear()


def import_as_a_worker_does():
    """Threads are set up before a library is loaded: a forked worker comes too late for that."""
    from gpubench.backends.shared.host import on_all_cpus, set_up_threads

    set_up_threads()
    with on_all_cpus():
        import_all()


def leave_the_load_unread():
    """Tests run beside each other: a session that others disturbed would be measured again, up to twice as many in all.
    tests/fake/test_sessions.py tells what such a session counts, and tests/unit/base/test_processes.py that the load can be read."""
    from gpubench.base import processes

    processes.read_cpu_times = processes.no_cpu_times


def serve(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    waiting = selectors.SelectSelector()
    for place in (0, woken, listener):
        waiting.register(place, selectors.EVENT_READ)
    children = {}
    print("listening", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:
                os._exit(0)
            elif key.fileobj == woken:
                os.read(woken, 1 << 12)
                _tell_ended(children)
            else:
                asking, _ = listener.accept()
                pid = _fork_for(asking)
                _tell(asking, pid)
                if pid:
                    children[pid] = asking


def _fork_for(asking):
    """The number of the program that was forked; 0: it has to be started."""
    message, streams, _, _ = socket.recv_fds(asking, MOST_BYTES, 3)
    if not message:  # it started a program itself
        return 0
    arguments, cwd, env = json.loads(message)
    pid = 0
    child = is_child(arguments)
    if may_fork(env) and (child or arguments[:1] != [sys.executable]):
        server = os.getpid()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            if child:  # of a run in the process of the tests: it ends with this one, or with its stdin
                os.setsid()
                arguments[3] = str(server)
            become(run_child if child else run_program, arguments, streams, (cwd, env))
    for stream in streams:
        os.close(stream)
    return pid


def _tell_ended(children):
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with children.pop(pid) as asked:
                _tell(asked, status)


def _tell(asked, number):
    with contextlib.suppress(OSError):  # whoever asked is gone
        asked.send(number.to_bytes(NUMBER_BYTES, "little"))


def become(
    run: Callable[[Sequence[str]], None], arguments: Sequence[str], streams: Sequence[int],
    surroundings: tuple[str | None, Mapping[str, str]],
) -> NoReturn:  # fmt: skip
    """Take on the streams, the folder and the environment, run, and end as Python does."""
    gc.freeze()  # what the forked process had open is not ours: were it collected, a file of ours might be closed
    for number in (*SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    folder, env = surroundings
    sys.path[:] = [*python_path(env), *(one for one in sys.path if one not in python_path(os.environ))]
    if folder is not None:
        os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    count(env)
    alter(env)
    gc.enable()
    code = 0
    try:
        run(arguments)
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def count(env):
    """Let coverage count this process where it counts programs, and keep its lines when SIGTERM ends it, as workers are."""
    if any(name.startswith("COVERAGE_PROCESS") for name in env):
        import coverage

        counted, usual, ending = (
            coverage.process_startup(force=True),
            signal.signal,
            (signal.SIGTERM, signal.SIG_DFL),
        )

        def leave(number, _):
            counted.save()
            usual(*ending)
            os.kill(os.getpid(), number)

        signal.signal = lambda number, to: usual(number, leave if (number, to) == ending else to)


def alter(env):
    """Set what the variable TESTS_ALTER names, as "module:NAME=VALUE module:NAME=VALUE": tests wait for parts of seconds
    where users wait for seconds. A program that is not forked takes its time."""
    for change in env.get("TESTS_ALTER", "").split():
        place, _, value = change.partition("=")
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(module), name)
        setattr(sys.modules[module], name, ast.literal_eval(value))


def run_program(arguments):
    import gpubench

    sys.argv = [f"{gpubench.__path__[0]}/__main__.py", *arguments]
    sys.path.insert(0, os.getcwd())
    try:
        runpy.run_module("gpubench", run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


def run_child(command):
    """`python -P -S child_main.py PARENT_PID MODULE ARGUMENTS...`, whose name says which module it is."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as name:
        name.write(command[4][-MOST_NAME:])
    # Text that the program has not written yet stays in its own streams, which `sys.__stdout__` keeps from being closed.
    sys.stdin = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=sys.stderr.encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = list(command[2:])
    runpy.run_path(sys.argv[0], run_name="__main__")


_POPEN = subprocess.Popen


def _fork():
    """As os.fork, and the signals that arrived meanwhile: Python ignores what they raise then."""
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        return os.fork(), []
    late = []
    handlers = {number: signal.signal(number, lambda number, _: late.append(number)) for number in SIGNALS}
    try:
        pid = os.fork()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return pid, late


class ForkingPopen(_POPEN):
    """How a program starts its children. Theirs are started: to open a device in a fresh process is what they measure."""

    def _execute_child(self, *of_popen):
        args, _, _, _, _, cwd, env = of_popen[:7]
        env = dict(os.environ if env is None else env)
        if not (is_child(args) and may_fork(env)):
            super()._execute_child(*of_popen)
            return
        streams, new_session = (of_popen[10], of_popen[13], of_popen[15]), of_popen[21]
        self.pid, late = _fork()
        if not self.pid:
            subprocess.Popen = _POPEN
            if new_session:
                os.setsid()
            become(run_child, args, streams, (cwd, env))
        self._child_created = True
        self._close_pipe_fds(*of_popen[10:16])
        for number in late:
            signal.raise_signal(number)


if __name__ == "__main__":
    del sys.path[0]  # this folder
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)  # threads are left behind
    subprocess.Popen = ForkingPopen
    import_as_a_worker_does()
    leave_the_load_unread()
    rehearse()
    gc.collect()
    gc.freeze()
    serve(sys.argv[1])
