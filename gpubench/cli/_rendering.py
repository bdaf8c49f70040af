"""How a report looks where it goes: format, width, colour. Shared by `run` and `report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gpubench.cli import _plots
from gpubench.cli.report import chosen_format, table_width, wants_color
from gpubench.errors import UsageError
from gpubench.suggestions import require_choice

if TYPE_CHECKING:
    from gpubench.report.analysis import Analysis


class Look(msgspec.Struct, frozen=True):
    """The options of a report, checked before anything is measured."""

    format: str
    color: bool
    ascii_only: bool
    width: int
    sections: tuple[str, ...] | None
    time_unit: str
    columns: tuple[str, ...] = ()
    sort: str | None = None

    def format_of(self, path: str) -> str:
        """The format of a report file, by its suffix. Raises UsageError for an unknown suffix."""
        try:
            return chosen_format(None, path, False)
        except UsageError as error:
            raise UsageError(
                error.code, error.message,
                why=".json and .json.gz hold the result, .jsonl the events;"
                " .md, .html, .csv, .txt, .svg and .png a report",
                hint="give the file one of these suffixes",
            ) from error  # fmt: skip

    def render(self, analyses: Sequence[Analysis], format: str) -> str:
        """The report as text; files get neither colour nor the terminal's width, and all columns: CSV has others.

        A column that no table turns out to have is told on stderr: what was measured is shown all the same.
        """
        if format != self.format:
            return self._drawn(analyses, format, width=80, color=False, columns=())
        try:
            return self._drawn(analyses, format, width=self.width, color=self.color, columns=self.columns)
        except UsageError as error:
            if not self.columns:
                raise
            print(f"warning: {error.message}; all columns are shown", file=sys.stderr)
            return self._drawn(analyses, format, width=self.width, color=self.color, columns=())

    def _drawn(
        self, analyses: Sequence[Analysis], format: str, *, width: int, color: bool, columns: tuple[str, ...]
    ) -> str:
        from gpubench import report

        return report.drawn(
            analyses, format, width=width, color=color, ascii_only=self.ascii_only, sections=self.sections,
            time_unit=self.time_unit, columns=columns, sort=self.sort,
        )  # fmt: skip


def look(
    format: str | None, color: str, ascii_only: bool, sections: str | None, time_unit: str,
    columns: tuple[str, ...] = (), sort: str | None = None,
) -> Look:  # fmt: skip
    """Raises UsageError for an unknown format, section, unit or key, and for columns that the format has not."""
    from gpubench import report
    from gpubench.report.analysis.order import KEYS
    from gpubench.report.formats._options import SECTIONS, TIME_UNITS

    terminal = sys.stdout.isatty()
    name = require_choice(
        chosen_format(format, None, terminal), [*report.FORMATS, *report.PICTURES], "--format"
    )
    _plots.check_format(name, to_terminal=terminal)
    chosen = None
    if sections is not None:
        words = [word.strip() for word in sections.split(",") if word.strip()]
        chosen = tuple(require_choice(word, SECTIONS, "--sections") for word in words)
    require_choice(time_unit, TIME_UNITS, "--time-unit")
    report.require_columns(name, columns)
    if sort is not None:
        require_choice(sort.removeprefix("-"), KEYS, "--sort")
    return Look(
        name,
        wants_color(color, os.environ, terminal=terminal),
        ascii_only,
        table_width(terminal),
        chosen,
        time_unit,
        columns,
        sort,
    )
