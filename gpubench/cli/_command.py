"""What every command does around its own work: shared options, configuration, suggestions."""

from __future__ import annotations

import functools
import gc
import os
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_params_convertors_ctx_param_name_from_function as params_of

from gpubench.cli import _config
from gpubench.cli._exit import PipeBroken, Terminated
from gpubench.cli._options import COLORS, shared
from gpubench.cli._usage import ParserUsageError
from gpubench.errors import ConfigError, ExitCode, UsageError
from gpubench.suggestions import require_choice, suggest


@functools.cache
def _shared_params() -> tuple[Any, ...]:
    return tuple(params_of(shared)[0])


class Command(TyperCommand):
    """A command whose options also come from the environment and from configuration files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {param.name for param in self.params}
        self.hidden_shared = {param.name for param in _shared_params() if param.name not in own}
        self.params.extend(param for param in _shared_params() if param.name not in own)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The whole first sentence: `gpubench --help` wraps it, where the parser would end it in three dots."""
        return super().get_short_help_str(limit=10 * limit)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with the configured values as defaults, and answer --show-config."""
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if ctx.resilient_parsing or given.get("help"):
            return super().parse_args(ctx, args)
        settings = self._settings(ctx, given)
        ctx.default_map = {name: setting.value for name, setting in settings.items()}
        try:
            rest = super().parse_args(ctx, args)
        except ParserUsageError as error:
            raise _blame(error, settings, given) or error from error
        if ctx.obj is not None:
            ctx.obj["verbose"] = ctx.params["verbose"]
        require_choice(ctx.params["color"], COLORS, "--color")
        if ctx.params["show_config"]:
            typer.echo(_config.show(self.name or "", ctx, settings))
            raise typer.Exit
        for name in self.hidden_shared:
            del ctx.params[name]
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run it; what the parser would swallow keeps its meaning."""
        if not gc.isenabled():  # see `cli.main`
            gc.freeze()
            gc.enable()
        try:
            return super().invoke(ctx)
        except Terminated as error:
            raise typer.Exit(ExitCode.TERMINATED) from error
        except BrokenPipeError as error:
            raise PipeBroken from error

    def _settings(self, ctx: Any, given: dict[str, Any]) -> dict[str, _config.Setting]:
        return _config.settings(
            command=ctx.info_name,
            own=_config.options_of(self.params),
            tables=_tables,
            environ=os.environ,
            folder=Path.cwd(),
            file=given.get("config"),
            files_wanted=not given.get("no_config"),
        )


def _tables() -> dict[str, _config.Known]:
    """The tables that a configuration file may hold: loads every command, so only for a file that is there."""
    from gpubench.cli.app import build

    commands = build().commands
    known = {name: _config.options_of(command.params) for name, command in commands.items()}
    return {"common": _config.options_of(_shared_params()), **known}


def given(ctx: Any) -> list[str]:
    """The names of the options that the command line itself holds: not those of the environment or of a file."""
    return [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]


class Group(TyperGroup):
    """The program itself: unknown commands get a suggestion."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` starts with. Raises UsageError for an unknown one."""
        if args[0] not in self.commands and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise UsageError(
                "unknown-command",
                f"there is no command {args[0]!r}",
                why="the commands are " + ", ".join(self.commands),
                hint=suggest(args[0], self.commands) or "gpubench --help explains them",
            )
        return super().resolve_command(ctx, args)


def _blame(error: Any, settings: dict[str, _config.Setting], given: dict[str, Any]) -> ConfigError | None:
    """The ConfigError naming the file or variable that a refused value came from, if it did."""
    name = getattr(getattr(error, "param", None), "name", None)
    if name is None or name not in settings or given.get(name) is not None:
        return None
    setting = settings[name]
    return ConfigError(
        "bad-setting",
        f"{setting.source}: the value {setting.value!r} of {setting.key} is not usable",
        why=error.message,
        hint=f"correct it there, or override it with --{setting.key}",
    )
