"""The origin of this gpubench (a checkout or a package index), the command that installs it, and the user's
folders.

Every text that tells the user to install gpubench or one of its extras takes the command from here.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpubench.base import disk, interpreter
from gpubench.base.child_main import ROOT

if TYPE_CHECKING:
    from importlib import metadata


DISTRIBUTION = "gpubench-cli"  # on the package index, gpubench is another package: docs/decisions/0010
NUMBA_MISSING = "numba is not installed"
NOT_AT_BEST = (
    "the CPU is not at its best: it has library calls alone, up to 15 times slower than compiled kernels ({})"
)
MAY_BE_SLOWED = "the CPU may not be at its best"  # said where numba works, perhaps slowly
EXTRAS = ("cpu", "cuda12", "cuda13", "nccl12", "nccl13", "plots", "ray", "torch", "workloads")


@functools.cache
def checkout() -> str | None:
    """Return the folder of the source from which gpubench runs, in a checkout or an editable installation, else
    None."""
    import tomllib

    try:
        text = disk.read_regular(f"{ROOT}/pyproject.toml").decode()
        project = tomllib.loads(text).get("project")
    except (OSError, ValueError, RecursionError):
        return None
    return ROOT if isinstance(project, dict) and project.get("name") == DISTRIBUTION else None


def install_command(extra: str = "") -> str:
    """Return the command that installs gpubench with this extra. The command has no paths of this machine, so
    a file may store it. `locate` inserts the paths before the command is shown."""
    return _command_for(extra, sys.platform)


# Installs what the CPU computes with anew, in versions that go together. A plain command keeps what is there.
REINSTALL = "pip install --upgrade --force-reinstall numpy numba threadpoolctl"
# Said of a package that is there and does not load, because the command to install it changes nothing.
KEPT = "pip keeps it until it is uninstalled"


def cupy_commands() -> str:
    """Return the command that installs CuPy for CUDA 13, followed by the name of the extra for CUDA 12."""
    return f"{install_command('cuda13')}; for CUDA 12 the extra cuda12; uninstall a broken CuPy first"


def _command_for(extra: str, platform: str) -> str:
    if checkout():
        return f"pip install {_quote_source('.', extra, platform)} (in the checkout of gpubench)"
    return f"pip install {_quote_source(DISTRIBUTION, extra, platform)}"


def locate(text: str) -> str:
    """Return `text` with each `install_command` replaced by a command that works on this machine as it is.
    `text` may come from a file of another system, whose shell quotes differently."""
    if "pip install" not in text:
        return text
    for extra in ("", *EXTRAS):
        # The result may contain this system's command, which must be replaced once, so it comes first.
        for command in dict.fromkeys(_command_for(extra, at) for at in (sys.platform, "linux", "win32")):
            text = text.replace(command, _pip(f"install {_source(extra)}"))
    for command in (REINSTALL, f"pip install {_TORCH}"):
        text = text.replace(command, _pip(command[4:]))
    return text


# The package index has wheels of PyTorch for Linux with CUDA, for macOS with Metal, and for Windows without
# GPUs. These are the names of the wheels for other GPUs, by vendor and system.
_TORCH = "torch --index-url https://download.pytorch.org/whl/"
_WHEELS = {
    ("amd", "linux"): "rocm7.2", ("intel", "linux"): "xpu", ("intel", "win32"): "xpu", ("nvidia", "win32"): "cu130",
}  # fmt: skip
# PyTorch's own index has no wheel for AMD's GPUs on Windows.
_AMD_ON_WINDOWS = "https://rocm.docs.amd.com/projects/radeon-ryzen"
_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


def torch_command(vendor: str, platform: str) -> str:
    """Return the command that installs PyTorch for the GPUs of a vendor: "nvidia", "amd", "intel" or "apple".
    `platform` is a value of sys.platform. For AMD on Windows, returns a text that names AMD's page instead."""
    wheel = _WHEELS.get((vendor, platform))
    if vendor == "amd" and platform == "win32":
        return f"AMD's own wheels, as {_AMD_ON_WINDOWS} tells"
    if wheel is None:
        return install_command("torch")
    return f"pip install {_TORCH}{wheel}"


def torch_hint(platform: str = sys.platform) -> str:
    """Return the commands that install PyTorch on the system `platform` (a value of sys.platform), as one text.
    The usual wheel is first, then wheels for the GPUs that it does not drive."""
    others = [
        f"for GPUs of {name} {torch_command(vendor, platform)}"
        for vendor, name in _MAKERS.items()
        if torch_command(vendor, platform) != install_command("torch")
    ]
    return "; ".join([install_command("torch"), *others])


def quote(text: str, platform: str = sys.platform) -> str:
    """Return `text` quoted as one word of a command line, for a POSIX shell or, if `platform` is "win32", for
    both cmd and PowerShell.

    On Windows only double quotes work in both shells. Inside them `%`, `$` and backticks keep their special
    meaning.
    """
    import re
    import shlex

    if platform != "win32":
        return shlex.quote(text)
    plain = re.fullmatch(r"[A-Za-z0-9_./\\:+=-]+", text)
    return text if plain else '"' + text.replace('"', '\\"') + '"'


def upgrade_command() -> str:
    """Return the command that installs the newest gpubench. In a checkout, the text first says to update the
    source."""
    if not checkout():
        return _pip(f"install --upgrade {DISTRIBUTION}")
    return f"update the source in {_source()} (git pull), then {_pip(f'install --upgrade {_source()}')}"


def repair_command(clash: str = "") -> str:
    """Return the command that reinstalls all files of gpubench. `clash` is the name of a distribution that the
    command uninstalls first; "" means none."""
    repair = _pip(f"install --force-reinstall {_source()}")
    # Windows PowerShell knows no `&&`, and cmd no `;`.
    then = ", then" if sys.platform == "win32" else " &&"
    return f"{_pip(f'uninstall {clash}')}{then} {repair}" if clash else repair


def find_clash() -> tuple[str, str] | None:
    """Return the name and version of another distribution that also installs a package `gpubench`, or None.
    Such a distribution and ours overwrite each other's files."""
    import re
    from importlib import metadata

    for distribution in metadata.distributions():
        try:
            name = distribution.name
            # As the package index compares names.
            if re.sub(r"[-_.]+", "-", name).lower() != DISTRIBUTION and _brings_gpubench(distribution):
                return _harmless(name), _harmless(distribution.version)
        except Exception:  # damaged metadata of any package must not matter here
            continue
    return None


def _brings_gpubench(distribution: metadata.Distribution) -> bool:
    if "gpubench" in (distribution.read_text("top_level.txt") or "").split():
        return True
    files = (distribution.read_text("RECORD") or "").splitlines()
    return any(line.startswith(("gpubench/", "gpubench.py,")) for line in files)


def _source(extra: str = "") -> str:
    return _quote_source(checkout() or DISTRIBUTION, extra, sys.platform)


def _quote_source(source: str, extra: str, platform: str) -> str:
    return quote(f"{source}[{extra}]" if extra else source, platform)


def _pip(arguments: str) -> str:
    """Return a pip command with these `arguments`, such as `install numpy`, for this interpreter."""
    import shutil
    from importlib.util import find_spec

    if find_spec("pip") is None:  # as in environments that uv makes
        return f"uv pip {arguments} --python {quote(interpreter())}"
    program = shutil.which("pip")
    if sys.prefix != sys.base_prefix and program and os.path.dirname(program) == os.path.dirname(interpreter()):
        return f"pip {arguments}"  # the pip of the active virtual environment
    return f"{quote(interpreter())} -m pip {arguments}"


def _harmless(text: str) -> str:
    """Return the text with `?` for each character that no valid name or version has, so that no shell or
    terminal interprets it."""
    import re

    return re.sub(r"[^A-Za-z0-9._+!-]", "?", text)


CLASH = "{0} installs a folder gpubench too, and the two packages overwrite each other's files"


SHADOWS = "is imported in place of"


def find_shadow(error: BaseException | None) -> str:
    """Return a text that names the file that is imported in place of the module that `error` is about, and the
    remedy, or an empty text if there is none. Imports nothing that such a file can replace."""
    from importlib.machinery import PathFinder

    if error is None:
        return ""
    # An ImportError has the name of the module, a SyntaxError its file, an AttributeError the module itself.
    names = [getattr(error, key, "") for key in ("name", "filename")]
    names.append(getattr(getattr(error, "obj", ""), "__name__", ""))
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_name == "<module>":  # its import was under way
            names.append(step.tb_frame.f_globals["__name__"])
        step = step.tb_next
    if isinstance(error, ImportError):  # one of compiled code has no name
        names += sys.stdlib_module_names & sys.modules.keys()
    for name in names:
        package = os.path.basename(str(name)).partition(".")[0]
        specs = [PathFinder.find_spec(package, [place]) for place in sys.path if package != "gpubench"]
        first, *others = dict.fromkeys(os.path.realpath(x.origin) for x in specs if x and x.origin) or [""]
        if others and not first.startswith((sys.prefix, sys.base_prefix)):
            return f"the file {first} {SHADOWS} {others[0]}: rename it, or take its folder out of PYTHONPATH"
    return find_shadow(error.__cause__ or error.__context__)


def note_shadow(error: BaseException) -> None:
    """Add the text of `find_shadow` to the error, if there is one, so that its traceback shows it."""
    if shadow := find_shadow(error):
        error.add_note(shadow)


def tell_bug(error: BaseException) -> int:
    """Print the traceback of `error`, then what happened, why, and what to do. Return the exit code 1."""
    import gpubench

    why, fix = _cause(error)
    sys.__excepthook__(type(error), error, error.__traceback__)
    # Another package may have replaced our __init__, which has no version then.
    name = f"gpubench {getattr(gpubench, '__version__', '')}".rstrip()
    print(f"error: {name} has failed unexpectedly\n  why: {why}\n  fix: {fix}", file=sys.stderr)
    return 1


def _cause(error: BaseException) -> tuple[str, str]:
    """Return the likely cause of `error`, and what the user can do."""
    from importlib.util import find_spec

    if shadow := find_shadow(error):  # it imports little, and the rest may need what is replaced
        why, _, fix = shadow.partition(": ")
        return why, fix
    clash = find_clash()
    if clash is not None:
        return CLASH.format(" ".join(clash)), repair_command(clash[0])
    if isinstance(error, ImportError) and error.name:
        package = error.name.partition(".")[0]
        if package == "gpubench":
            return "files of gpubench are missing or replaced", repair_command()
        if package in sys.stdlib_module_names:
            return f"this Python lacks its module {package}", "install another Python, and gpubench in it"
        if find_spec(package) is None:
            return f"the package {package}, which gpubench needs, is not installed", locate(install_command())
        return f"the package {package} does not load", _pip(f"install --upgrade --force-reinstall {package}")
    why = "this is a bug in gpubench, not in what you typed"
    return why, "please report the lines above, with the command, as CONTRIBUTING.md says"


class FolderRules(NamedTuple):
    """The rules for finding the user's folder for one kind of file on each system."""

    windows: str  # environment variable with the folder on Windows
    macos: str  # folder below the home on macOS
    xdg: str  # environment variable with the folder on other systems
    default: str  # folder below the home folder, used if the variable is not set


CONFIGURATION = FolderRules("APPDATA", "Library/Application Support", "XDG_CONFIG_HOME", ".config")
DATA = FolderRules("LOCALAPPDATA", "Library/Application Support", "XDG_DATA_HOME", ".local/share")
CACHE = FolderRules("LOCALAPPDATA", "Library/Caches", "XDG_CACHE_HOME", ".cache")


def user_folder(kind: FolderRules, environ: Mapping[str, str], platform: str) -> Path | None:
    """Return gpubench's folder for one kind of file, without creating it, or None if the environment does not
    name its place. `environ` are the environment variables, and `platform` is a value of sys.platform."""
    home = environ.get("HOME") or environ.get("USERPROFILE")
    if platform == "win32":
        base = environ.get(kind.windows)
    elif platform == "darwin":
        base = home and f"{home}/{kind.macos}"
    else:
        named = environ.get(kind.xdg, "")  # a relative path is invalid
        base = named if os.path.isabs(named) else home and f"{home}/{kind.default}"
    return Path(base) / "gpubench" if base else None


def cache_folder() -> Path | None:
    """Return the folder in GPUBENCH_CACHE_DIR, if that is set, otherwise `user_folder(CACHE, ...)`. The folder
    may not exist yet. Returns None if the environment names none."""
    if named := os.environ.get("GPUBENCH_CACHE_DIR"):
        return Path(named)
    return user_folder(CACHE, os.environ, sys.platform)


def cache_variable() -> str:
    """Return the name of the environment variable that determines `cache_folder`. Messages show the name in
    place of a path."""
    own = {"win32": CACHE.windows, "darwin": "HOME"}.get(sys.platform, CACHE.xdg)
    return next(filter(os.environ.get, ("GPUBENCH_CACHE_DIR", own)), "HOME")
