"""The sections of a report. A decorator declares each section, with its name, its place and its purpose.

Sections are declared in `gpubench/report/sections`, in modules that a wing names, and in packages with an entry
point of the group `gpubench.sections`. Those of gpubench and its wings are read from the text of the files, so
listing them imports none of these files. A section of another package is shown only if the user names it, so
that reports of a file are the same on every machine.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from gpubench.base import plugins
from gpubench.base.errors import BadPlugin, require_choice
from gpubench.base.plugins import wings

if TYPE_CHECKING:
    import msgspec


F = TypeVar("F", bound=Callable[..., Any])
_PACKAGE = Path(__file__).parents[2]
# The pattern begins with a literal, which `re` finds ten times as fast as the beginning of a line.
_DECLARED = re.compile(
    r'@section\(\s*"(?P<key>[\w-]+)", order=(?P<order>\d+)(?P<more>.*?)\)\s*\ndef ', re.DOTALL
)


class SectionDeclaration(NamedTuple):
    """The declaration of a section as its file states it."""

    key: str  # name of the section in `--sections`
    order: int  # sorts the sections of a report
    more: str  # text of the other arguments
    module: str  # module that declares the section

    @property
    def help(self) -> str:
        """A line about the section for the list of sections, or an empty text."""
        match = re.search(r'help="([^"]*)"', self.more)
        return match[1] if match else ""

    @property
    def usual(self) -> bool:
        """Whether the section is shown if the user chooses no sections."""
        return "usual=False" not in self.more

    @property
    def at_end(self) -> bool:
        """Whether the section is shown at the end of a run, after the answer."""
        return 'usual="end"' in self.more

    @property
    def choice(self) -> bool:
        """Whether the user can choose the section by name. Any other section is shown whenever it has
        content."""
        return "choice=False" not in self.more


@functools.cache
def declarations() -> tuple[SectionDeclaration, ...]:
    """Return the sections that the files of gpubench and its wings declare, in the order of a report."""
    own = (path.stem for path in sorted((_PACKAGE / "report" / "sections").glob("*.py")))
    modules = [f"gpubench.report.sections.{name}" for name in own]
    modules += [module for wing in wings.own() for module in wing.sections]
    sections = [
        SectionDeclaration(match["key"], int(match["order"]), match["more"], module)
        for module in modules
        for match in _DECLARED.finditer(_text(module))
    ]
    return tuple(_in_order(sections))


def _text(module: str) -> str:
    return _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def names() -> tuple[str, ...]:
    """List the sections of gpubench and its wings that `--sections` may name, in the order of a report."""
    return tuple(dict.fromkeys(declaration.key for declaration in declarations() if declaration.choice))


def usual() -> tuple[str, ...]:
    """List the sections that are shown if the user chooses none, except those that are always shown."""
    return tuple(
        dict.fromkeys(
            declaration.key for declaration in declarations() if declaration.choice and declaration.usual
        )
    )


def require(keys: Iterable[str]) -> None:
    """Raise UsageError for a name that no section of gpubench or of an installed package has."""
    for key in keys:
        if key not in names() and not plugins.entries(plugins.SECTIONS, key):
            require_choice(key, (*names(), *plugins.names(plugins.SECTIONS)), "--sections")


class Maker(NamedTuple):
    """A function that draws a section (`make(analysis, options)`) or a chart."""

    key: str  # name of the section
    order: int  # sorts the sections of a report
    make: Callable[..., Any]  # the function itself
    help: str = ""  # title of the section if the function returns a Table alone; empty for a chart
    together: bool = False  # whether the function draws several files together, as `make(analyses, options)`


class Rows(NamedTuple):
    """The rows that a section adds to the JSON document under a name. The file of a section lists its rows in
    the tuple ROWS."""

    name: str  # key in the document; `a.b` means the key b of the object a
    kind: type[msgspec.Struct]  # struct type of the rows
    make: Callable[[Any], Iterable[Any]]  # returns the rows of an analysis
    order: int  # sorts the rows of the document
    csv: Mapping[str, str] = {}  # by CSV column: the field of a row to show in the line of its case
    # returns the columns of further CSV lines below the line of the case
    parts: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None


_sections: dict[tuple[str, str], Maker] = {}
_charts: dict[tuple[str, str], Maker] = {}


def section(
    key: str,
    *,
    order: int,
    help: str = "",
    usual: bool | Literal["end"] = True,
    choice: bool = True,
    together: bool = False,
) -> Callable[[F], F]:
    """Register a function that draws the section `key`: a Section, a Table, several of them, or None. The
    arguments are read from the text of the file, so they must be literals, `key` and `order` first.

    - `order` sorts the sections; those of gpubench have multiples of ten;
    - `help` is a line for the list of sections;
    - `usual` tells whether it is shown if the user chooses none, with "end" also at the end of a run;
    - `choice=False` shows it whenever it has content;
    - `together` tells that the function draws several files.
    """

    def register(make: F) -> F:
        _sections[make.__module__, make.__qualname__] = Maker(key, order, make, help, together=together)
        return make

    return register


def chart(key: str, *, order: int) -> Callable[[F], F]:
    """Register a function that draws a Chart of the section `key`. `order` sorts the charts of a report."""

    def register(make: F) -> F:
        _charts[make.__module__, make.__qualname__] = Maker(key, order, make)
        return make

    return register


def sections(keys: Collection[str], *, together: bool = False) -> list[Maker]:
    """Return the functions that draw the sections `keys` and the sections that are always shown, in the order
    of a report. `together` selects the functions that draw several files together, or all others."""
    _load(keys)
    always = {declaration.key for declaration in declarations() if not declaration.choice}
    makers = [maker for maker in _sections.values() if maker.key in keys or maker.key in always]
    return _in_order(maker for maker in makers if maker.together == together)


def charts(keys: Collection[str]) -> list[Maker]:
    """Return the functions that draw the charts of these sections, in the order of a report."""
    _load(keys)
    return _in_order(maker for maker in _charts.values() if maker.key in keys)


def _in_order(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=lambda item: item.order)


def all_rows(keys: Collection[str] = ()) -> list[Rows]:
    """Return the rows of all sections of gpubench and its wings, and of the sections of other packages in
    `keys`, sorted by `order`."""
    modules = _load({declaration.key for declaration in declarations()} | {*keys})
    return _in_order(rows for module in modules for rows in getattr(module, "ROWS", ()))


def _load(keys: Collection[str]) -> list[Any]:
    """Import the files of these sections and return the modules. A broken module of a wing is left out."""
    modules: dict[str, Any] = {}
    for declaration in declarations():
        if declaration.key in keys or not declaration.choice:
            try:
                modules[declaration.module] = importlib.import_module(declaration.module)
            except Exception as error:
                if declaration.module.startswith("gpubench.report."):
                    raise
                wings.tell(f"the part {declaration.module} of a wing cannot be used", plugins.error_text(error))
    for key in sorted({*keys} - {declaration.key for declaration in declarations()}):
        for entry in plugins.entries(plugins.SECTIONS, key)[:1]:
            try:
                modules[entry.value] = plugins.load(entry)
            except plugins.PluginError as error:
                raise BadPlugin(
                    "bad-plugin", f"the section {key} of the package {plugins.package(entry)} cannot be drawn",
                    why=str(error), hint=f"leave {key} out of --sections, or tell the authors of the package",
                ) from error  # fmt: skip
    return list(modules.values())


# By format: its module in gpubench.report, and its function there if that is not `render`. The module is
# imported only when the format is requested.
FORMATS = {
    "table": "renderers:render_terminal", "plain": "renderers:render_plain", "markdown": "renderers:render_markdown",
    "json": "document",
    "jsonl": "document:render_events", "csv": "exporters:render_csv", "html": "renderers.html",
}  # fmt: skip
# Likewise for formats that other tools read.
TOOLS = {
    "gha-smaller": "exporters:render_smaller", "gha-bigger": "exporters:render_bigger",
    "bmf": "exporters:render_bmf", "pytest-benchmark": "exporters:render_pytest_benchmark",
    "hyperfine": "exporters:render_hyperfine",
    "google-benchmark": "exporters:render_google_benchmark", "go": "exporters:render_go",
}  # fmt: skip
# Formats that are pictures (report/plots.py).
PICTURES = ("svg", "png")
TIME_UNITS = ("auto", "s", "ms", "us", "ns")
