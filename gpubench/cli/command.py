"""The parser of the command line, and the configuration. The environment, the project file and the user file
give options their defaults, in this order of precedence.

A command is imported only when it is used, and its options become one object. Configuration files and the
GPUBENCH_ variables that give options their defaults are read here and nowhere else.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_click_param, get_install_completion_arguments
from typer.models import ParamMeta

from gpubench.base import child_main, disk
from gpubench.base.errors import ConfigError, ExitCode, UsageError, suggest
from gpubench.base.installation import CONFIGURATION, user_folder
from gpubench.base.plugins import wings
from gpubench.base.plugins.sections import FORMATS
from gpubench.cli.declaration import HEADINGS, CommandOptions, Declaration
from gpubench.cli.options import CommonOptions, commands, extend

# typer (>= 0.26) includes click, and exports this class only as a base of BadParameter.
ParserUsageError: type[Exception] = typer.BadParameter.__mro__[1]
_PURPOSE = (
    "Should a computation run on the CPU, on the GPU, or on both, from which size on, and what is gained?"
)


def _parameter(declared: Declaration) -> tuple[Any, Any]:
    """Return the parser's parameter for an option, and the function that converts its value, if any."""
    words: dict[str, Any] = {
        "metavar": declared.metavar, "help": declared.help, "min": declared.least, "max": declared.most
    }  # fmt: skip
    default = ... if declared.required else declared.default
    kind = declared.type
    if declared.joined:
        default, kind = default and [default], list[str] | None
    if declared.heading is None:
        info = typer.Argument(default, **words)
    else:
        info = typer.Option(default, f"--{declared.key}", *filter(None, [declared.letter]), **words)
    parameter, convert = get_click_param(ParamMeta(name=declared.name, default=info, annotation=kind))
    if declared.joined:
        parameter.callback, convert = _join, None
    return parameter, convert


def _join(context: Any, parameter: Any, texts: Sequence[str] | None) -> str | None:
    """Return the texts of an option that came in parts as one, or None if it was not given."""
    return ",".join(texts) if texts else None


# ---------------------------------------------------------------- help


def _brief_help() -> TyperOption:
    """Return the option -h, which shows the brief help."""

    def show(ctx: Any, param: Any, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            print(ctx.command.brief_help(ctx))
            raise typer.Exit

    return TyperOption(
        param_decls=["brief_help", "-h"], is_flag=True, expose_value=False, is_eager=True, callback=show,
        help="Show what is used most, on one screen, and exit."
    )  # fmt: skip


class Command(TyperCommand):
    """A command of gpubench. Its options also take values from the environment and from configuration files."""

    def __init__(self, name: str, options: type[CommandOptions]) -> None:
        module = importlib.import_module(options.module or f"gpubench.cli.{name}")
        self.options, self._function = options, getattr(module, name)
        parameters = {name: _parameter(declared) for name, declared in options.declared.items()}
        self._convert = {name: convert for name, (_, convert) in parameters.items() if convert}
        super().__init__(
            name, params=[*(parameter for parameter, _ in parameters.values()), _brief_help()],
            help=self._function.__doc__, short_help=options.purpose, rich_markup_mode=None,
        )  # fmt: skip

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write all arguments, and all options under their headings."""
        rows: dict[str | None, list[Any]] = {}
        for param in self.get_params(ctx):
            declared = self.options.declared.get(param.name or "")
            heading = declared.heading if declared else HEADINGS[-1]
            record = param.get_help_record(ctx)
            if declared and record is not None:
                record = (record[0], record[1] + declared.listing())
            rows.setdefault(heading or "Arguments", []).append(record)
        for heading in ("Arguments", *HEADINGS):
            if heading in rows:
                with formatter.section(heading):
                    formatter.write_dl(rows[heading])

    def brief_help(self, ctx: Any) -> str:
        """Return a help of one screen: the options that are used most, and examples."""
        briefs = {name: declared.brief for name, declared in self.options.declared.items() if declared.brief}
        rows = [
            (record[0], briefs[param.name])
            for param in self.params
            if param.name in briefs and (record := param.get_help_record(ctx))
        ]
        more = len(self.options.declared) - len(rows)
        more_help = f"{ctx.command_path} --help explains {more} more."
        return _screen(self, ctx, ("Options", rows), self.options.examples, more_help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with the configured values as defaults. With --show-config, print the values and
        end the command. Raises UsageError, ConfigError and the parser's own errors, which `explain` turns into
        UsageError."""
        try:
            typed, extra, order = self.make_parser(ctx).parse_args(args=list(args))
        except ParserUsageError as error:
            error.ctx = ctx  # type: ignore[attr-defined]  # the parser leaves it out if an argument is missing
            raise
        if ctx.resilient_parsing or typed.get("help") or typed.get("brief_help"):
            return super().parse_args(ctx, args)
        if sum(param.name == "output" and not param.multiple for param in order) > 1:
            # Of others the last one counts, so that an alias can be overridden; here a file would be missing.
            raise UsageError("output-twice", why=f"{ctx.command_path} writes one file")
        configured = read_settings(
            command=ctx.info_name,
            environ=os.environ,
            folder=_working_folder(),
            file=typed.get("config"),
            files_wanted=not typed.get("no_config"),
        )
        self._configured = configured
        ctx.default_map = {
            name: [setting.value] if self.options.declared[name].joined else setting.value
            for name, setting in configured.items()
        }
        try:
            rest = super().parse_args(ctx, list(args))
        except ParserUsageError as error:
            raise _blame(error, configured, typed) or _name_option(error, ctx, args, extra) or error from error
        if ctx.obj is not None:
            ctx.obj["verbose"] = ctx.params["verbose"]
        if ctx.params["show_config"]:
            print(show_config(self.name or "", ctx, configured))
            raise typer.Exit
        return rest

    def invoke(self, ctx: Any) -> int | None:
        """Run the command and return its exit code; None means 0. Raises ConfigError, with the place of the
        value, for a configured value that only the command refuses."""
        if self.name != "ops":  # the only command without msgspec
            child_main.import_msgspec()
        if not gc.isenabled():  # see `cli.main`
            gc.freeze()
            gc.set_threshold(100_000)  # a short command makes little garbage
            gc.enable()
        values = {
            name: self._convert[name](value) if name in self._convert else value
            for name, value in ctx.params.items()
        }
        sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in values}
        explicit = frozenset(name for name, source in sources.items() if source == "COMMANDLINE")
        try:
            options = self.options(explicit=explicit, **values)
            code = options.instead()
            return self._function(options) if code is None else code
        except UsageError as error:  # a value that only the command refuses
            for name, setting in self._configured.items():
                if name not in explicit and re.match(rf"--{setting.key}(?![\w-])", error.message):
                    message = f"{setting.source}: {error.message}"
                    raise ConfigError(error.code, message, why=error.why, hint=error.hint) from error
            raise


def _working_folder() -> Path | None:
    """Return the working folder, or None if it has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


class Group(TyperGroup):
    """The program itself. It makes a command when it is used, and suggests a name for an unknown command."""

    def __init__(self) -> None:
        version = TyperOption(param_decls=["--version"], is_flag=True, help="Print the version and exit.")
        super().__init__(
            name="gpubench", params=[version, *get_install_completion_arguments(), _brief_help()], help=_PURPOSE,
            epilog="Measure, do not guess. `gpubench COMMAND --help` explains each command.",
            no_args_is_help=True, rich_markup_mode=None,
        )  # fmt: skip

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands of gpubench and its wings."""
        return list(commands())

    def get_command(self, ctx: Any, name: str) -> Command | None:
        """Return the command `name`, or None if there is none. Other packages are searched only if neither
        gpubench nor its wings have it."""
        if name not in commands() and not name.startswith("-"):
            for wing in wings.foreign():
                extend(commands(), wing)
        return Command(name, commands()[name]) if name in commands() else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command with which `args` starts. Raises UsageError if it is unknown."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing and not name.startswith("-"):
            raise UsageError(
                "unknown-command", f"there is no command {name!r}", why="the commands are " + ", ".join(commands()),
                hint=f"write gpubench run {name}" if name.endswith(".py") else
                suggest(name, [*commands(), "--help", "--version"]) or None,
            )  # fmt: skip
        return (name, command, args[1:]) if command else super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the purpose of each command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, options.purpose) for name, options in commands().items()])

    def brief_help(self, ctx: Any) -> str:
        """Return a help of one screen: the commands, and examples."""
        rows = [(name, options.purpose) for name, options in commands().items()]
        examples = (
            "gpubench detect                              what this machine has",
            "gpubench run                                 from which size on the GPU wins",
            "gpubench run my.py:normalise                 the same for your own function",
        )
        more = "gpubench COMMAND -h shows the options that people use, --help all of them."
        return _screen(self, ctx, ("Commands", rows), examples, more)


def _screen(
    command: Any, ctx: Any, section: tuple[str, Sequence[tuple[str, str]]], examples: Sequence[str], more: str
) -> str:
    """Return a help of one screen: the usage, a section of rows, examples and a last sentence."""
    formatter = ctx.make_formatter()
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    heading, rows = section
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)
    with formatter.section("Examples"):
        for line in examples:
            formatter.write(f"  {line}\n")
    formatter.write(f"\n{more}\n")
    return str(formatter.getvalue()).rstrip("\n")


# ---------------------------------------------------------------- what the parser refuses, in our own words


def _blame(error: Any, settings: dict[str, Setting], typed: dict[str, Any]) -> ConfigError | None:
    """Return an error that names the file or variable of the refused value, or None if the value was typed."""
    name = getattr(getattr(error, "param", None), "name", None)
    if name is None or name not in settings or typed.get(name) is not None:
        return None
    setting = settings[name]
    return ConfigError(
        "bad-setting",
        f"{setting.source}: the value {setting.value!r} of {setting.key} is not usable",
        why=error.message,
        hint=f"correct it there, or override it with --{setting.key}",
    )


def _name_option(error: Any, context: Any, args: list[str], extra: list[str]) -> UsageError | None:
    """Return an error with a corrected command, if a surplus word seems to be the value of a missing option.
    Returns None otherwise."""
    if not extra or type(error).__name__ != "MissingParameter":
        return None
    place = args.index(extra[0])
    words = [context.command_path, *args[:place], error.param.opts[0], *args[place:]]
    return UsageError(
        "usage", _lower(error.format_message()), why=f"usage: {_usage_line(context)}", hint=" ".join(words)
    )


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the parser's exceptions in the `with` block into UsageError. An empty command line prints the help
    on stderr and raises SystemExit with the code USAGE."""
    try:
        yield
    except ParserUsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            context: Any = error.ctx  # type: ignore[attr-defined]
            print(context.command.brief_help(context), file=sys.stderr)
            raise SystemExit(ExitCode.USAGE) from None
        raise explain(error) from error


def explain(error: Any) -> UsageError:
    """Return the UsageError for an error of the parser, in gpubench's own words."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "gpubench"
    fallback = f"{path} --help lists what is possible"
    if path == "gpubench check":
        fallback += "; options of gpubench run follow a --, as in gpubench check BASE NEW -- --ops add"
    text = error.format_message()
    if hasattr(error, "possibilities"):
        names = [name for param in context.command.params for name in param.opts] if context else []
        word = error.option_name.lstrip("-")
        declared = getattr(context.command, "options", CommandOptions).declared if context else {}
        takers = [
            taker.key
            for taker in declared.values()
            if word in (taker.choices or (FORMATS if taker.name == "format" else ()))
        ]
        near = f"write --{takers[0]} {word}" if takers else suggest(word, [*names, "--help"])
        return UsageError(
            "unknown-option", f"there is no option {error.option_name}", why=f"{path} does not know it",
            hint=near or fallback,
        )  # fmt: skip
    where, _, why = text.partition(": ")
    if not why:
        return UsageError("usage", _lower(text), why=f"usage: {_usage_line(context)}", hint=fallback)
    return UsageError("bad-value", _lower(where), why=why, hint=fallback)


def _usage_line(context: Any) -> str:
    return context.get_usage().removeprefix("Usage: ") if context else "gpubench COMMAND"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def run_app(arguments: Sequence[str], invocation: dict[str, Any]) -> int:
    """Run one command and return its exit code. Sets `invocation["verbose"]` to what --verbose says. Raises
    UsageError for a wrong command line, and every error of the command."""
    program = Group()
    if "_GPUBENCH_COMPLETE" in os.environ:  # a shell asks how a line can go on
        program.main(list(arguments), prog_name="gpubench", standalone_mode=False)
    with translate_errors():
        try:
            with program.make_context("gpubench", list(arguments), obj=invocation) as context:
                return program.invoke(context) or ExitCode.OK
        except typer.Exit as ended:
            return int(ended.exit_code)


FILE_NAME = "gpubench.toml"


class Setting(NamedTuple):
    """A value that a configuration file or an environment variable gives an option."""

    key: str  # name of the option, without `--`
    value: Any  # the value as written in the file or variable
    source: str  # the file or variable that sets the value


def configurable(kind: type[CommandOptions]) -> dict[str, Declaration]:
    """Return, by key, the options of a class that configuration files and environment variables may set."""
    return {declared.key: declared for declared in kind.declared.values() if declared.configurable}


def read_settings(
    *, command: str, environ: Mapping[str, str], folder: Path | None, file: str | None, files_wanted: bool
) -> dict[str, Setting]:
    """Return the configured values for `command`, by the name of the option's field. They come from `file`,
    else from the file of GPUBENCH_CONFIG, else from the user's file and then the project's (searched from
    `folder` up), and last from variables. Later values replace earlier ones. Without `files_wanted`, no file is
    read. Raises ConfigError if a file or a variable is wrong."""
    if file is not None and not files_wanted:
        raise ConfigError("config-conflict", why="one names a file, the other reads none")
    if file is None and files_wanted:
        file = environ.get("GPUBENCH_CONFIG") or None
    sources = [] if file is None else [(Path(file), _read(Path(file)))]
    if file is None and files_wanted:
        user = user_file(environ)
        sources = [(user, _read(user))] if user is not None and os.path.isfile(user) else []
        sources += filter(None, [_project_file(folder)])
    values: dict[str, Setting] = {}
    for path, tables in sources:
        values.update(_settings_in(tables, path, command))
    for key, option in configurable(commands()[command]).items():
        if text := environ.get(option.variable):
            values[option.name] = Setting(key, text.split() if option.multiple else text, option.variable)
    return values


def show_config(command: str, context: Any, configured: Mapping[str, Setting]) -> str:
    """Return the effective values of the options of `command` as TOML, each with its source. `context` is the
    parser's context with the values, and `configured` has those from files and variables."""
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


def _project_file(folder: Path | None) -> tuple[Path, dict[str, Any]] | None:
    """Find the nearest configuration file from `folder` up to the root of the repository, and read its tables."""
    if folder is None:
        return None
    above = [folder, *folder.parents]
    # Outside a repository, only `folder` is searched.
    # os.path takes what may not be looked at for absent; pathlib raises.
    depth = next((i for i, place in enumerate(above) if os.path.exists(place / ".git")), 0)
    for place in above[: depth + 1]:
        if os.path.isfile(place / FILE_NAME):
            return place / FILE_NAME, _read(place / FILE_NAME)
        project = place / "pyproject.toml"
        if os.path.isfile(project) and _names_us(project):
            tables = _read(project)
            if "gpubench" in _table(tables, "tool", project):
                return project, tables
    return None


def _names_us(project: Path) -> bool:
    """Return whether the file mentions gpubench, or cannot be read."""
    # Most files do not, and parsing TOML takes longer than some commands.
    with contextlib.suppress(OSError):
        return b"gpubench" in disk.read_regular(project)
    return True  # whoever reads it says why


def user_file(environ: Mapping[str, str], platform: str = sys.platform) -> Path | None:
    """Return the path of the user's configuration file, or None if the environment names no folder for it."""
    folder = user_folder(CONFIGURATION, environ, platform)
    return folder / "config.toml" if folder else None


def _read(path: Path) -> dict[str, Any]:
    from gpubench.result.store import document

    try:
        return document.toml(disk.read_text(path, document.MAX_TOML_BYTES))
    except (OSError, ValueError) as error:
        why = disk.reason(error)
        raise ConfigError("bad-config", f"the configuration file {path} cannot be read", why=why) from error


def _settings_in(tables: dict[str, Any], path: Path, command: str) -> dict[str, Setting]:
    tables_known: dict[str, type[CommandOptions]] = {"common": CommonOptions, **commands()}
    options_of = {name: configurable(kind) for name, kind in tables_known.items()}
    if path.name == "pyproject.toml":
        tables = _table(tables, "tool.gpubench", path)
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
            what = (
                f"the table [{table}]" if isinstance(tables[table], dict) else f"{table!r} outside of a table"
            )
            raise _unknown_error(what, table, options_of, path)
    return values


def _table(tables: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = tables
    for key in name.split("."):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise ConfigError(
                "bad-config", f"{path}: {key!r} is not a table", hint=f"write [{name}] above the settings of {name}",
                why="settings stand in tables named after commands",
            )  # fmt: skip
    return table


def _plain(key: str, value: Any, option: Declaration, path: Path) -> Any:
    """Return a TOML value in the form that the parser takes. Raises ConfigError for a value of a wrong type."""
    items = value if isinstance(value, list) and not option.switch else [value]
    right = all(
        isinstance(item, str | int | float)
        and isinstance(item, bool) == option.switch
        and "\0" not in str(item)
        for item in items
    )
    if not right:
        takes = (
            "true or false" if option.switch else "a text without a null character, a number or a list of them"
        )
        raise ConfigError("bad-setting", f"{path}: {key} = {value!r} is not usable", why=f"{key} takes {takes}")
    if option.switch:
        return value
    texts = [str(item) for item in items]
    # A list for an option that is given only once is joined by commas.
    return texts if option.multiple else ",".join(texts)


def _unknown_error(what: str, word: str, names: Collection[str], path: Path) -> ConfigError:
    return ConfigError(
        "unknown-setting", f"{path}: gpubench does not know {what}", why="known: " + ", ".join(names),
        hint=suggest(word, names) or None,
    )  # fmt: skip


def _toml(value: Any) -> str:
    """Return the value as TOML text, empty for None and for an empty list."""
    import json

    # JSON text of such values is TOML, too.
    return "" if value in (None, [], ()) else json.dumps(value, ensure_ascii=False, default=str)
