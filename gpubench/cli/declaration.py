"""The declaration of an option, and the values of the options that a command declares."""

import inspect
from typing import Any, ClassVar, NamedTuple, Self

from gpubench.base.errors import UsageError, require_choice

# The headings of `--help`, in their order.
WHAT, WHERE, LONG, OUTPUT, GATES, CI, RARE = "What", "Where", "How long", "Output", "Gates", "CI", "Rare"
HEADINGS = (WHAT, WHERE, LONG, OUTPUT, GATES, CI, RARE)


class Declaration(NamedTuple):
    """An option or, if it has no heading, an argument."""

    help: str  # what `--help` says of it
    heading: str | None  # of the group in `--help`; None: an argument
    metavar: str | None  # the value in words
    brief: str | None  # what `-h` says of it; an option without it stands in `--help` alone
    default: Any = None  # where nobody gives a value
    letter: str | None = None  # its short form
    least: int | None = None  # of a number
    most: int | None = None  # of a number
    long_name: str | None = None  # where it is not the field's name
    # What of a result's plan holds its answer (`cli.resume`); None where each run says it for itself.
    answer: str | None = None
    configurable: bool = True  # files and variables may set it
    name: str = ""  # of the field
    type: Any = None  # of the value

    @property
    def key(self) -> str:
        """The option's name in a configuration file."""
        return self.long_name or self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The option's name in the environment."""
        return "GPUBENCH_" + self.key.upper().replace("-", "_")

    @property
    def switch(self) -> bool:
        """Whether the option takes no value."""
        return self.type is bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the option accepts, if the metavar lists all of them; else an empty tuple."""
        words = tuple((self.metavar or "").split("|"))
        return words if len(words) > 1 and all(map(str.islower, words)) else ()

    @property
    def required(self) -> bool:
        """Whether the option must be given: it has no default, and its type does not allow None."""
        return self.default is None and "None" not in str(self.type)

    @property
    def multiple(self) -> bool:
        """Whether the option may be given more than once."""
        return "list" in str(self.type)


def option(
    metavar: str | None, heading: str | None, help: str, *, brief: str | bool = False, **more: Any
) -> Any:
    """Declare an option by the fields of Declaration. `brief=True`: `-h` shows the same text as `--help`."""
    return Declaration(help, heading, metavar, help if brief is True else brief or None, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    return option(metavar, None, help, configurable=False, **more)


class CommandOptions:
    """The values of a command's options, under the options' names. They cannot be changed.

    A class has the options of its bases, then its own. An option that it declares again keeps its place. Raises
    UsageError for a word that an option does not accept.
    """

    declared: ClassVar[dict[str, Declaration]] = {}
    # What `-h` says of a command, in a line and by examples.
    purpose: ClassVar[str] = ""
    # The module of a command that a wing brings; gpubench's own are in gpubench.cli.
    module: ClassVar[str] = ""
    examples: ClassVar[tuple[str, ...]] = ()
    # The names of the options that the command line itself holds: not those of the environment or of a file.
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
            if declared.choices and (word := getattr(self, name)) is not None:
                require_choice(word, declared.choices, f"--{declared.key}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} does not change")

    def instead(self) -> int | None:
        """Do the work of another command and return its exit code. Returns None if no option asks for that."""
        return None

    def replace(self, **changes: Any) -> Self:
        return type(self)(**{**self.__dict__, **changes})
