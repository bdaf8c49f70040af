"""Windows or macOS as gpubench would see it, in every Python process whose PYTHONPATH names this folder.

GPUBENCH_SIMULATED is "win32" or "darwin". Modules of gpubench get another `sys`, `os`, `time`, `signal`, `psutil` and so
on; libraries and the standard library see the Linux that is there. The file rules of Windows hold for the whole process:
an audit hook refuses to rename or to remove what any simulated process has open or mapped, and names that Windows does
not have. No file of a kernel (/proc, /sys, /dev) exists for gpubench.
"""

import builtins
import collections
import contextlib
import importlib
import os
import sys
import threading
import types
from sys import _getframe

SYSTEM = os.environ.get("GPUBENCH_SIMULATED", "")
WINDOWS = SYSTEM == "win32"
VARIABLE = f"GPUBENCH_SIMULATED={SYSTEM}".encode()
HERE = os.path.dirname(os.path.abspath(__file__))
PRODUCT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "gpubench") + os.sep
STANDARD = os.path.dirname(os.__file__) + os.sep
TICK_S = 1 / 64
KERNEL = "/proc /sys /dev /run /.dockerenv /usr/share/hwdata /usr/share/misc /usr/lib/wsl".split()
REFUSED = "The process cannot access the file because it is being used by another process"
POSIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog"}
POSIX_NAMES = {
    "os": {*"""
        O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC O_TMPFILE chown fchmod fchown fork getegid geteuid getgid getloadavg
        getpgid getuid killpg lchown mkfifo posix_fadvise pread pwrite sched_getaffinity sched_setaffinity sched_yield setpriority
        setsid statvfs sync uname wait4 waitid""".split()},
    "signal": {*"""
        SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 alarm pthread_kill pthread_sigmask
        setitimer sigwait""".split()},
    "select": {"poll", "epoll"},
    "time": {"clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC"},
    "socket": {"AF_UNIX"}}  # fmt: skip
LINUX_NAMES = {"os": {"sched_getaffinity", "sched_setaffinity", "posix_fadvise", "O_TMPFILE"},
               "select": {"epoll"}}  # fmt: skip
O_BINARY, SIGBREAK = 0x8000, 21


class View(types.ModuleType):
    """Another module without the names `hidden`, and with those of `instead`. What is set is set there."""

    def __init__(self, real, hidden, instead):
        super().__init__(real.__name__)
        vars(self).update(_real=real, _hidden=hidden, **instead)

    def __getattr__(self, name):
        if name in vars(self)["_hidden"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on {SYSTEM}")
        return getattr(vars(self)["_real"], name)

    def __setattr__(self, name, value):
        setattr(vars(self)["_real"], name, value)


def seen_by_us(number):
    """Whether gpubench asked, itself or through the standard library, at `number` frames above."""
    try:
        frame = _getframe(number)
    except ValueError:  # the interpreter itself
        return False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PRODUCT):
            return True
        if not name.startswith((STANDARD, "<frozen", HERE)) or "site-packages" in name:
            return False
        frame = frame.f_back
    return False


def of_kernel(path):
    """Whether the path is one of a Linux kernel or of its system."""
    path = os.fsdecode(path) if isinstance(path, bytes) else path
    if not isinstance(path, str) or path == os.devnull or path.startswith("/dev/shm"):
        return False
    return any(path == place or path.startswith(f"{place}/") for place in KERNEL)


def without_kernel(function):
    """The function of a path, for which gpubench finds no file of the kernel."""

    def ask(path, *args, **kwargs):
        if not busy.now and of_kernel(path) and seen_by_us(2):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)

    return ask


# ---------------------------------------------------------------- file rules of Windows
class Busy(threading.local):
    """Whether this thread applies a rule, for which no rule holds."""

    now = False


busy = Busy()
NAMES = {"CON", "PRN", "AUX", "NUL", *(f"{name}{i}" for name in ("COM", "LPT") for i in range(1, 10))}


def processes():
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/environ", "rb") as file:
            if VARIABLE in file.read().split(b"\0"):
                yield number


def holders(path):
    """Simulated processes that have the file open or mapped, or work in the folder, or have a file of it open."""
    below = path + os.sep
    for number in processes():
        with contextlib.suppress(OSError):
            files = (f"/proc/{number}/fd/{n}" for n in os.listdir(f"/proc/{number}/fd"))
            for name in (f"/proc/{number}/cwd", *files):
                with contextlib.suppress(OSError):
                    target = os.readlink(name)
                    folder = target == path and not name.endswith("cwd") and os.path.isdir(path)
                    if (target == path and not folder) or target.startswith(below):
                        yield number, target
            with open(f"/proc/{number}/maps", encoding="utf-8") as file:
                for line in file:
                    target = line.rstrip("\n").partition("/")[2]
                    if target and (f"/{target}" == path or f"/{target}".startswith(below)):
                        yield number, f"/{target}"


def absolute(path, folder=-1):
    path = os.fsdecode(path)
    if not os.path.isabs(path) and folder != -1:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path))


def refuse_open(path, folder=-1):
    for number, target in holders(absolute(path, folder)):
        error = PermissionError(13, f"{REFUSED} ({number}: {target})", path)
        error.winerror = 32
        raise error


def refuse_name(path):
    name = os.path.basename(os.fsdecode(path))
    if set(name) & set('<>:"|?*\\') or name.rstrip(". ") != name or name.partition(".")[0].upper() in NAMES:
        raise OSError(22, "The filename, directory name, or volume label syntax is incorrect", path)


def no_unix_text(path, flags):
    """Writing through a descriptor without O_BINARY changes line ends."""
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    if writes and not flags & O_BINARY and path != os.devnull:
        raise AssertionError(f"os.open of {path} for writing without O_BINARY")


def temporary_file():
    """Whether the standard library makes a nameless file; on Windows it has a name, and is removed as it is closed."""
    with contextlib.suppress(ValueError):
        return _getframe(3).f_code.co_name in ("TemporaryFile", "opener")
    return False


def on_open(path, mode, flags):
    if not isinstance(path, (str, bytes)) or temporary_file():
        return
    if of_kernel(path) and seen_by_us(3):
        raise FileNotFoundError(2, "No such file or directory", path)
    if WINDOWS and seen_by_us(3):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        if (flags or 0) & os.O_CREAT or set(mode or "") & set("wax"):
            refuse_name(path)


def on_list(path):
    if of_kernel(path) and seen_by_us(3):
        raise FileNotFoundError(2, "No such file or directory", path)


def on_rename(source, target, source_folder=-1, target_folder=-1):
    refuse_name(target)
    refuse_open(source, source_folder)
    if os.path.lexists(absolute(target, target_folder)):
        refuse_open(target, target_folder)


def on_remove(path, folder=-1):
    if not temporary_file():
        refuse_open(path, folder)


def on_link(source, target, *_):
    raise OSError(22, "A required privilege is not held by the client", source)


RULES = {"open": on_open, "os.listdir": on_list, "os.scandir": on_list}
if WINDOWS:
    RULES |= {"os.rename": on_rename, "os.remove": on_remove, "os.rmdir": on_remove, "os.symlink": on_link,
              "os.mkdir": lambda path, *_: refuse_name(path)}  # fmt: skip


def audit(event, args):
    rule = RULES.get(event)
    if rule is None or busy.now:
        return
    busy.now = True
    try:
        rule(*args)
    finally:
        busy.now = False


# ---------------------------------------------------------------- what modules of gpubench import
def coarse(clock):
    """A clock in the steps of Windows."""
    return lambda: clock() // TICK_S * TICK_S


def windows_open(path, flags, mode=0o777, **more):
    no_unix_text(path, flags)
    return os.open(path, flags & ~O_BINARY | os.O_CLOEXEC, mode, **more)


def locking(file, mode, count):
    """Lock or unlock as msvcrt does: the lock belongs to the handle, and LK_NBLCK refuses at once."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None


def windows_signal(number, handler):
    import signal

    known = "SIGABRT SIGFPE SIGILL SIGINT SIGSEGV SIGTERM".split()
    if number not in (*(getattr(signal, name) for name in known), SIGBREAK):
        raise ValueError("invalid signal value")
    return None if number == SIGBREAK else signal.signal(number, handler)


def windows_popen():
    import subprocess

    class Popen(subprocess.Popen):
        """Knows the flags of Windows, and none of what POSIX alone has; ends a process without asking it."""

        def __init__(self, *args, creationflags=0, preexec_fn=None, pass_fds=(), start_new_session=0, **more):
            assert (preexec_fn, pass_fds) == (None, ()), "neither is supported on Windows platforms"
            super().__init__(*args, start_new_session=bool(creationflags & 0x200), **more)

        def terminate(self):
            super().kill()

    return Popen


def psutil_view(psutil):
    Times = collections.namedtuple("scputimes", "user system idle interrupt dpc")
    Frequency = collections.namedtuple("scpufreq", "current min max")

    def cpu_times(percpu=False):
        def convert(cpu):
            if not WINDOWS:
                return cpu
            values = (cpu.user + cpu.nice, cpu.system + cpu.irq + cpu.softirq, cpu.idle + cpu.iowait, cpu.irq, cpu.softirq)  # fmt: skip
            return Times(*(value // TICK_S * TICK_S for value in values))

        found = psutil.cpu_times(percpu=percpu)
        return [convert(cpu) for cpu in found] if percpu else convert(found)

    frequency = Frequency(2400.0, 0.0, 3200.0) if WINDOWS else Frequency(3228.0, 600.0, 3228.0)
    told = {"cpu_times": cpu_times, "cpu_freq": lambda percpu=False: [frequency] if percpu else frequency}
    return View(psutil, set(), told)


def views():
    """For each module that differs, a function that makes what gpubench sees from the real one."""
    hidden = POSIX_NAMES if WINDOWS else LINUX_NAMES
    Uname = collections.namedtuple("uname_result", "sysname nodename release version machine")
    instead = {"sys": {"platform": SYSTEM}, "platform": {"system": lambda: "Windows" if WINDOWS else "Darwin",
                                                         "release": lambda: "11" if WINDOWS else "24.6.0",
                                                         "machine": lambda: "AMD64" if WINDOWS else "arm64"}}  # fmt: skip
    if WINDOWS:
        import signal
        import time

        instead |= {
            "os": {"name": "nt", "O_BINARY": O_BINARY, "open": windows_open},
            "time": {name: coarse(vars(time)[name]) for name in ("monotonic", "process_time", "thread_time")},
            "signal": {"SIGBREAK": SIGBREAK, "signal": windows_signal, "getsignal": signal.getsignal},
            "subprocess": {"Popen": windows_popen(), "CREATE_NEW_PROCESS_GROUP": 0x200},
        }
    else:
        instead["os"] = {"uname": lambda: Uname("Darwin", "mac", "24.6.0", "Darwin Kernel", "arm64")}
    for name in hidden.keys() | instead.keys():
        yield name, lambda real, name=name: View(real, hidden.get(name, set()), instead.get(name, {}))
    yield "psutil", psutil_view


def simulate():
    import shutil

    make, made, real_import, real_module = dict(views()), {}, builtins.__import__, importlib.import_module
    msvcrt = types.ModuleType("msvcrt")
    vars(msvcrt).update(LK_NBLCK=2, LK_UNLCK=0, LK_LOCK=1, locking=locking)

    def load(name, globals=None, locals=None, fromlist=(), level=0):
        file = (globals or {}).get("__file__") or ""
        if not level and file.startswith(PRODUCT):
            if WINDOWS and name == "msvcrt":
                return msvcrt
            if WINDOWS and name == "winreg":
                return real_import("simulated_winreg", globals, locals, fromlist, level)
            if WINDOWS and name in POSIX_MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            found = real_import(name, globals, locals, fromlist, level)
            return made.setdefault(name, make[name](found)) if name in make else found
        return real_import(name, globals, locals, fromlist, level)

    def load_module(name, package=None):
        found = real_module(name, package)
        return made.setdefault(name, make[name](found)) if name in make and seen_by_us(2) else found

    builtins.__import__, importlib.import_module = load, load_module
    for name in ("stat", "lstat", "readlink", "access"):
        setattr(os, name, without_kernel(getattr(os, name)))
    if WINDOWS:
        vars(shutil)["_use_fd_functions"] = False
        real_rename = os.rename

        def rename(source, target, **folders):
            if os.path.lexists(target):
                raise FileExistsError(17, "Cannot create a file that already exists", source, None, target)
            real_rename(source, target, **folders)

        os.rename = rename
    sys.addaudithook(audit)


if SYSTEM:
    simulate()
