"""What a Python child runs first: `python -P child_main.py PARENT_PID MODULE ARGUMENTS...`, then the module.

Only what the interpreter has loaded anyway comes before the child is bound to its parent: an import may hang.
"""

import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def die_with(parent: int) -> None:
    """On Linux the kernel kills this process when the thread that started it ends, whatever this process does then.

    Elsewhere, and where libc cannot be called, the end of stdin is all that tells.
    """
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL))
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


def import_ours(root: str) -> None:
    """The package of the parent, whatever else is called so; its folder comes behind the standard library.

    The parent may have found its libraries in that folder too. If it is on the path already, it stays where it is.
    """
    sys.path.insert(0, root)
    import gpubench  # noqa: F401 - it imports nothing, so that nothing is taken from this place of the path

    del sys.path[0]
    if os.path.realpath(root) in map(os.path.realpath, sys.path):
        return
    standard = os.path.dirname(os.__file__)
    inside = [
        at for at, path in enumerate(sys.path) if path in (standard, os.path.join(standard, "lib-dynload"))
    ]
    sys.path.insert(max(inside, default=-1) + 1, root)


def import_msgspec() -> None:
    """msgspec without typing_extensions, which is half of what it loads and has nothing for it that `typing` lacks."""
    sys.modules["typing_extensions"] = None  # type: ignore[assignment] # Python's own way to say: not installed
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


def main() -> None:
    """Bind to the parent, then run the module as `python -m` does."""
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    import_ours(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import_msgspec()
    import runpy

    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
