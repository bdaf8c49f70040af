"""The program without its start: processes of gpubench that are forked where everything is imported already.

Nine tenths of a short command are Python's start and its imports. A forked program is a process all the same, with its
own arguments, environment, folder, streams, signals and exit status, and it forks its workers and other children in
the same way; what they do runs as it would for a user. Where the interpreter's own start makes a difference (options of
Python, libraries that read the environment while they load), the program is started: see `server.at_start`. What tests
ask about the start itself, they ask of `python -m gpubench`.
"""

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpubench.measure.worker_pool import THREAD_VARIABLES
from tests.forking.link import Link

ROOT = Path(__file__).resolve().parents[2]

OUTSIDE = frozenset(os.environ)
# A session of a CPU sets them for its libraries; neither a program that began with them nor one asked of a server that
# did could be forked.
SET_BY_SESSIONS = ("NUMBA_", "OPENBLAS_", "GOMP_", "KMP_", "OMP_PROC_")


def outside(env=os.environ):
    """The environment without what sessions have set in the process of the tests."""
    names = [name for name in env if name in OUTSIDE or not name.startswith(SET_BY_SESSIONS)]
    return {name: env[name] for name in names}


def environment(home, extra=None):
    """That of a user in the folder `home` who has set nothing of gpubench but `extra`; what tests compiled is kept."""
    kept = {name: value for name, value in outside().items() if not name.startswith(("GPUBENCH_", "XDG_"))}
    cache = {name: os.environ[name] for name in ("GPUBENCH_CACHE_DIR",) if name in os.environ}
    paths = [places["PYTHONPATH"] for places in (extra or {}, kept) if "PYTHONPATH" in places]
    path = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    return {**kept, **cache, "HOME": str(home), "COLUMNS": "100", **(extra or {}), **path}


def drives_a_device(pid):
    """Whether the process is a worker, started or forked; another child of a run reads clocks and temperatures."""
    with contextlib.suppress(OSError):
        place = Path("/proc") / str(pid)
        started = b"gpubench.measure.worker.main" in (place / "cmdline").read_bytes()
        return started or (place / "comm").read_text().endswith("worker.main\n")
    return False


def children(of):
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == of:
                pids.add(int(folder.name))
    return pids


def is_alive(pid):
    """Whether a process is neither gone nor waiting for whoever adopted it to look."""
    import psutil  # works where there is no /proc

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Starter:
    """Starts `python -m gpubench`, by forking where that makes no difference."""

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="gpubench-")  # a socket's path is short
        self._path = f"{self._folder}/socket"
        env = {name: value for name, value in outside().items() if not name.startswith("COVERAGE_PROCESS")}
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), self._path], cwd=ROOT, env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if not self._server.stdout.readline():  # it listens
            raise RuntimeError(self._server.communicate()[1].decode())

    def close(self):
        self._server.communicate()
        shutil.rmtree(self._folder)

    def begin(self, *arguments, cwd, env, **options):
        """`python -m gpubench ARGUMENTS`, not waited for."""
        return Program(self._path, arguments, text=True, cwd=cwd, env=env, **options)

    def run(self, *arguments, cwd, env, input=None, timeout=300, status=None):
        """`python -m gpubench ARGUMENTS` to its end, which has to be this status where one is given."""
        pipe = subprocess.PIPE
        with self.begin(*arguments, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        assert status in (None, process.returncode), err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def children(self):
        """In place of `subprocess.Popen`, for a run in the process of the tests: its workers and probes are forked."""
        path = self._path

        class OfServer(Child):
            server = path

        return OfServer

    def command(self):
        """What a shell types for `python -m gpubench`."""
        return shlex.join([sys.executable, "-S", str(Path(__file__).with_name("link.py")), self._path])


class _Forked(subprocess.Popen):
    """A process whose start and end the server sees to; `Popen` has all the rest, and all of one that is started."""

    def __init__(self, server, command, **options):
        self._link = Link(server)
        super().__init__(command, **options)

    def _asked(self, args, env, new_session):
        """The arguments and the environment that the server is asked with; None: the process is started."""
        raise NotImplementedError

    def _execute_child(self, *of_popen):
        assert self._link is not None
        args, _, in_child, _, _, cwd, env = of_popen[:7]
        streams = of_popen[10], of_popen[13], of_popen[15]
        inherited = [own if stream == -1 else stream for own, stream in enumerate(streams)]
        asked = self._asked(args, env, of_popen[21]) if in_child is None else None
        self.pid = (
            0 if asked is None else self._link.ask(asked[0], str(cwd or os.getcwd()), asked[1], inherited)
        )
        if not self.pid:
            self._let_go()
            super()._execute_child(*of_popen)
            return
        self._child_created = True
        self._close_pipe_fds(*of_popen[10:16])

    def _try_wait(self, wait_flags):
        if self._link is None:
            return super()._try_wait(wait_flags)
        if wait_flags and not select.select([self._link], [], [], 0)[0]:
            return 0, 0
        status = self._link.number()
        self._let_go()
        return self.pid, status

    def _internal_poll(self, *arguments, **options):
        if self._link is None:
            return super()._internal_poll(*arguments, **options)
        if self._waitpid_lock.acquire(blocking=False):  # otherwise another thread waits, and will know
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    @property
    def forked(self):
        """Whether it was forked and not started, until its end is known."""
        return self._link is not None

    def _let_go(self):
        assert self._link is not None
        self._link.close()
        self._link = None


class Program(_Forked):
    def __init__(self, server, arguments, **options):
        super().__init__(server, [sys.executable, "-m", "gpubench", *arguments], **options)

    def _asked(self, args, env, new_session):
        return None if new_session else (args[3:], env)


class Child(_Forked):
    """A child that gpubench starts in the process of the tests; any other process is started."""

    server: str

    def __init__(self, command, **options):
        super().__init__(self.server, command, **options)

    def _asked(self, args, env, new_session):
        if not (new_session and list(args[:2]) == [sys.executable, "-PS"]):
            return None
        env = os.environ if env is None else env
        return args, {**outside(env), **{name: env[name] for name in THREAD_VARIABLES if name in env}}
