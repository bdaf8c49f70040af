"""How an option is declared, and the base class of the options of a command."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from gpubench.base.errors import UsageError, require_choice

# The headings of `--help`, in their order.
WHAT, WHERE, LONG, OUTPUT, GATES, CI, RARE = "What", "Where", "How long", "Output", "Gates", "CI", "Rare"
HEADINGS = (WHAT, WHERE, LONG, OUTPUT, GATES, CI, RARE)

LARGEST = 2**63 - 1  # the largest integer of an option: a result file cannot hold a larger one


class Declaration(NamedTuple):
    """The declaration of an option or, if it has no heading, of an argument."""

    help: str  # the text of the option in `--help`
    heading: str | None  # the heading in `--help`; None for an argument
    metavar: str | None  # name of the value in `--help`; None: the name of its type, or nothing for a switch
    brief: str | None  # the text of the option in `-h`; None if `-h` does not show it
    default: Any = None  # value if none is given
    letter: str | None = None  # the short form, such as `-o`; None if there is none
    least: int | None = None  # least value of a number; None: no limit
    most: int | None = None  # largest value of a number; None: no limit
    long_name: str | None = None  # the name on the command line; None means the name of the field
    # The field of a result's plan that stores its value (`cli.resume`); None if each run may have another
    # value.
    plan_field: str | None = None
    listing: Callable[[], str] = str  # returns the end of `help`; called only when `--help` is shown
    configurable: bool = True  # whether configuration files and environment variables may set the option
    name: str = ""  # name of the field
    type: Any = None  # type of the value

    @property
    def key(self) -> str:
        """The option's name in a configuration file: its long name or, without one, the parameter's."""
        return self.long_name or self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name of the option's environment variable."""
        return "GPUBENCH_" + self.key.upper().replace("-", "_")

    @property
    def switch(self) -> bool:
        """Whether the option takes no value."""
        return self.type is bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the option accepts, if its metavar lists all of them, otherwise an empty tuple."""
        words = tuple((self.metavar or "").split("|"))
        return words if len(words) > 1 and all(map(str.islower, words)) else ()

    @property
    def required(self) -> bool:
        """Whether the option must be given, because it has no default and its type does not allow None."""
        return self.default is None and "None" not in str(self.type)

    @property
    def multiple(self) -> bool:
        """Whether the option may be given several times, which requires a list as its value."""
        return "list" in str(self.type)

    @property
    def joined(self) -> bool:
        """Whether the value is a text of words with commas between them. Given several times, the texts are joined."""
        return self.metavar == "LIST" and not self.multiple


def option(
    metavar: str | None, heading: str | None, help: str, *, brief: str | bool = False, **more: Any
) -> Any:
    """Return a declaration with these fields. `brief` is the text for `-h`: True means the text for `--help`,
    and False means that `-h` does not show the option."""
    return Declaration(help, heading, metavar, help if brief is True else brief or None, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """Return the declaration of an argument. Files and variables cannot set it."""
    return option(metavar, None, help, configurable=False, **more)


class CommandOptions:
    """The values of a command's options, as read-only attributes. A class has the options of its bases, then
    its own. Raises UsageError for a word that an option does not accept, and for a number above LARGEST."""

    # The declarations of all options, by field name.
    declared: ClassVar[dict[str, Declaration]] = {}
    # A line about the command in `-h`.
    purpose: ClassVar[str] = ""
    # The module of the command; empty: a module of gpubench.cli.
    module: ClassVar[str] = ""
    # Command lines that `-h` shows.
    examples: ClassVar[tuple[str, ...]] = ()
    # The names of the options that were given on the command line, not by the environment or a file.
    explicit: frozenset[str]

    def __init_subclass__(cls) -> None:
        own = {
            name: declaration._replace(
                name=name, type=kind, default=False if kind is bool else declaration.default
            )
            for name, kind in inspect.get_annotations(cls).items()
            if isinstance(declaration := cls.__dict__.get(name), Declaration)
        }
        bases = [base for base in cls.__bases__ if issubclass(base, CommandOptions)]
        inherited = {name: declaration for base in bases for name, declaration in base.declared.items()}
        cls.declared = inherited | own

    def __init__(self, *, explicit: frozenset[str] = frozenset(), **values: Any) -> None:
        defaults = {name: declared.default for name, declared in self.declared.items() if not declared.required}
        if values.keys() - self.declared.keys() or self.declared.keys() - {*defaults, *values}:
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.declared)}")
        self.__dict__.update(defaults | values, explicit=explicit)
        if self.__dict__.get("as_json"):
            if {"as_json", "format"} <= explicit and self.__dict__["format"] != "json":
                raise UsageError("two-formats", why=f"--format asks for {self.__dict__['format']}")
            if "format" not in explicit:  # else the command line's format replaces the --json of a file
                self.__dict__["format"] = "json"
        for name, declared in self.declared.items():
            value = getattr(self, name)
            if declared.choices and value is not None:
                require_choice(value, declared.choices, f"--{declared.key}")
            if isinstance(value, int) and value.bit_length() > LARGEST.bit_length():
                why = f"the largest integer of a result is {LARGEST}"
                raise UsageError(
                    "bad-value",
                    f"--{declared.key}: {value} is too large",
                    why=why,
                    hint="give a smaller number",
                )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} does not change")

    def instead(self) -> int | None:
        """Do the work of another command and return its exit code, or return None if no option asks for that.
        The default returns None."""
        return None

    def replace(self, **changes: Any) -> Self:
        return type(self)(**{**self.__dict__, **changes})
