"""Configuration: environment > project file > user file, as defaults of the options.

With `command`, this is the only reader of GPUBENCH_ variables and of configuration files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.base import disk
from gpubench.base.errors import ConfigError, suggest
from gpubench.base.installation import CONFIGURATION, user_folder
from gpubench.cli.declaration import CommandOptions, Declaration
from gpubench.cli.options import CommonOptions, commands

FILE_NAME = "gpubench.toml"
_SMALL_BYTES = 2**16


class Setting(NamedTuple):
    """A configured value of the option `--key`, and the file or variable that it comes from."""

    key: str
    value: Any
    source: str


def configurable(kind: type[CommandOptions]) -> dict[str, Declaration]:
    """The options of a class that files and variables may set, by their keys."""
    return {declared.key: declared for declared in kind.declared.values() if declared.configurable}


def settings(
    *, command: str, environ: Mapping[str, str], folder: Path | None, file: str | None, files_wanted: bool
) -> dict[str, Setting]:
    """Every configured value of `command` by the option's name. Raises ConfigError."""
    if file and not files_wanted:
        raise ConfigError("config-conflict", why="one names a file, the other reads none")
    values: dict[str, Setting] = {}
    paths = [Path(file)] if file else [user_file(environ), _project_file(folder)] if files_wanted else []
    for path in paths:
        if path is not None and (file or os.path.isfile(path)):
            values.update(_from_file(path, command))
    for key, option in configurable(commands()[command]).items():
        text = environ.get(option.variable)
        if text:
            values[option.name] = Setting(key, text.split() if option.multiple else text, option.variable)
    return values


def show(command: str, context: Any, configured: Mapping[str, Setting]) -> str:
    """The effective values of `command` as TOML, each with its source."""
    lines = [f"[{command}]"]
    for key, option in configurable(commands()[command]).items():
        value = context.params.get(option.name)
        origin = context.get_parameter_source(option.name)
        source = "default"
        if origin is not None and origin.name == "COMMANDLINE":
            source = "option"
        elif option.name in configured:
            source = configured[option.name].source
        text = _toml(value)
        lines.append(f"{key} = {text}  # {source}" if text else f"# {key} is not set")
    return "\n".join(lines)


def _project_file(folder: Path | None) -> Path | None:
    """The nearest file from `folder` up to the repository's root; outside a repository, `folder` alone."""
    if folder is None:
        return None
    above = [folder, *folder.parents]
    # os.path takes what may not be looked at for absent; pathlib raises.
    depth = next((i for i, place in enumerate(above) if os.path.exists(place / ".git")), 0)
    for place in above[: depth + 1]:
        if os.path.isfile(place / FILE_NAME):
            return place / FILE_NAME
        project = place / "pyproject.toml"
        if os.path.isfile(project) and _may_name_us(project) and "gpubench" in _read(project).get("tool", {}):
            return project
    return None


def _may_name_us(project: Path) -> bool:
    """False for a small file without our name, as most projects have: reading TOML takes longer than some commands."""
    try:
        data = disk.read_regular(project, _SMALL_BYTES)
    except OSError:
        return True  # whoever reads it says why
    return len(data) == _SMALL_BYTES or b"gpubench" in data or b"\\" in data  # a key may be written in escapes


def user_file(environ: Mapping[str, str], platform: str = sys.platform) -> Path | None:
    """The file of the user's own settings; None where no folder is known for it."""
    folder = user_folder(CONFIGURATION, environ, platform)
    return folder / "config.toml" if folder else None


def _read(path: Path) -> dict[str, Any]:
    from gpubench.result.store import limits

    try:
        return limits.toml(disk.read_regular(path, limits.MAX_TOML_BYTES + 1))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError("bad-config", f"the configuration file {path} cannot be read", why=why) from error


def _from_file(path: Path, command: str) -> dict[str, Setting]:
    tables_known: dict[str, type[CommandOptions]] = {"common": CommonOptions, **commands()}
    options_of = {name: configurable(kind) for name, kind in tables_known.items()}
    tables = _read(path)
    if path.name == "pyproject.toml":
        tables = tables.get("tool", {}).get("gpubench", {})
    values = {}
    for table, allowed in options_of.items():
        for key, value in _table(tables, table, path).items():
            if key not in allowed:
                raise _unknown_error(f"{key!r} in [{table}]", key, allowed, path)
            if table in ("common", command):
                option = allowed[key]
                values[option.name] = Setting(key, _plain(key, value, option, path), str(path))
    for table in tables:
        if table not in options_of:
            raise _unknown_error(f"the table [{table}]", table, options_of, path)
    return values


def _table(tables: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if isinstance(table, dict):
        return table
    raise ConfigError(
        "bad-config", f"{path}: {name!r} is not a table", why="settings stand in tables named after commands",
        hint=f"write [{name}] above the settings of {name}",
    )  # fmt: skip


def _plain(key: str, value: Any, option: Declaration, path: Path) -> Any:
    """A TOML value as the parser takes it: lists of a single option are joined by commas."""
    items = value if isinstance(value, list) else [value]
    right = all(
        isinstance(item, str | int | float) and isinstance(item, bool) == option.switch for item in items
    )
    if not right or (option.switch and isinstance(value, list)):
        takes = "true or false" if option.switch else "a text, a number or a list of them"
        raise ConfigError("bad-setting", f"{path}: {key} = {value!r} is not usable", why=f"{key} takes {takes}")
    if option.switch:
        return value
    texts = [str(item) for item in items]
    return texts if option.multiple else ",".join(texts)


def _unknown_error(what: str, word: str, names: Iterable[str], path: Path) -> ConfigError:
    names = list(names)
    return ConfigError(
        "unknown-setting", f"{path}: gpubench does not know {what}", why="known: " + ", ".join(names),
        hint=suggest(word, names) or None,
    )  # fmt: skip


def _toml(value: Any) -> str:
    """Return the value as TOML writes it, which is how JSON writes such values; an empty text for none."""
    import json

    return "" if value in (None, [], ()) else json.dumps(value, ensure_ascii=False, default=str)
