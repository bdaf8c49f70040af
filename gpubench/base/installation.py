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

from gpubench.base import disk

if TYPE_CHECKING:
    from importlib import metadata


DISTRIBUTION = "gpubench-cli"  # on the package index, gpubench is another package: docs/decisions/0010
NUMBA_MISSING = "numba is not installed"
NOT_AT_BEST = (
    "the CPU is not at its best: it has library calls alone, up to 15 times slower than compiled kernels ({})"
)
EXTRAS = ("cpu", "cuda12", "cuda13", "nccl12", "nccl13", "plots", "ray", "torch", "workloads")


@functools.cache
def checkout() -> str | None:
    """Return the folder of the source from which gpubench runs, in a checkout or an editable installation, else
    None."""
    import tomllib

    folder = os.path.abspath(f"{__file__}/../../..")
    try:
        text = disk.read_regular(f"{folder}/pyproject.toml").decode()
        project = tomllib.loads(text).get("project")
    except (OSError, ValueError, RecursionError):
        return None
    return folder if isinstance(project, dict) and project.get("name") == DISTRIBUTION else None


def install_command(extra: str = "") -> str:
    """Return the command that installs gpubench with this extra. The command has no paths of this machine, so
    a file may store it. `locate` inserts the paths before the command is shown."""
    return _command_for(extra, sys.platform)


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
    return text.replace(f"pip install {_TORCH}", _pip(f"install {_TORCH}"))


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

    python = quote(sys.executable)
    if find_spec("pip") is None:  # as in environments that uv makes
        return f"uv pip {arguments} --python {python}"
    program = shutil.which("pip")
    if (
        sys.prefix != sys.base_prefix
        and program
        and os.path.dirname(program) == os.path.dirname(sys.executable)
    ):
        return f"pip {arguments}"  # the pip of the active virtual environment
    return f"{python} -m pip {arguments}"


def _harmless(text: str) -> str:
    """Return the text with `?` for each character that no valid name or version has, so that no shell or
    terminal interprets it."""
    import re

    return re.sub(r"[^A-Za-z0-9._+!-]", "?", text)


CLASH = "{0} installs a folder gpubench too, and the two packages overwrite each other's files"


def tell_bug(error: BaseException) -> int:
    """Print the traceback of `error`, then what happened, why, and what to do. Return the exit code 1."""
    import traceback

    import gpubench

    why, fix = _cause(error)
    traceback.print_exception(error)
    # Another package may have replaced our __init__, which has no version then.
    name = f"gpubench {getattr(gpubench, '__version__', '')}".rstrip()
    print(f"error: {name} has failed unexpectedly\n  why: {why}\n  fix: {fix}", file=sys.stderr)
    return 1


def _cause(error: BaseException) -> tuple[str, str]:
    """Return the likely cause of `error`, and what the user can do."""
    clash = find_clash()
    if clash is not None:
        return CLASH.format(" ".join(clash)), repair_command(clash[0])
    if isinstance(error, ImportError) and error.name:
        package = error.name.partition(".")[0]
        if package == "gpubench":
            return "files of gpubench are missing or replaced", repair_command()
        if isinstance(error, ModuleNotFoundError):
            return f"the package {package}, which gpubench needs, is not installed", locate(install_command())
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
        base = environ.get(kind.xdg) or (home and f"{home}/{kind.default}")
    return Path(base) / "gpubench" if base else None


def cache_folder(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path | None:
    """Return the folder in GPUBENCH_CACHE_DIR, if that is set, otherwise `user_folder(CACHE, ...)`. The folder
    may not exist yet. Returns None if the environment names none."""
    if named := environ.get("GPUBENCH_CACHE_DIR"):
        return Path(named)
    return user_folder(CACHE, environ, platform)


def cache_variable(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> str:
    """Return the name of the environment variable that determines `cache_folder`. Messages show the name in
    place of a path."""
    own = {"win32": CACHE.windows, "darwin": "HOME"}.get(platform, CACHE.xdg)
    return next((name for name in ("GPUBENCH_CACHE_DIR", own) if environ.get(name)), "HOME")
