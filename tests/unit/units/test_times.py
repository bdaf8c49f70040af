"""Times that files hold, whoever wrote them: in UTC, or None."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from gpubench import report
from gpubench.base import units
from gpubench.compare.pairing import take_turns
from gpubench.result.run import SessionRecord
from tests.unit.report.samples import full_run

TIMES = {
    "2026-11-20T19:00:00Z": datetime(2026, 11, 20, 19, tzinfo=UTC),
    "2026-11-20T20:00:00+01:00": datetime(2026, 11, 20, 19, tzinfo=UTC),
    "2026-11-20T19:00:00": datetime(2026, 11, 20, 19, tzinfo=UTC),
    "2026-11-20": datetime(2026, 11, 20, tzinfo=UTC),
    "0001-01-01T00:00:00Z": datetime(1, 1, 1, tzinfo=UTC),
    "9999-12-31T23:00:00Z": datetime(9999, 12, 31, 23, tzinfo=UTC),
    "0001-01-01T00:00:00+14:00": None,
    "9999-12-31T23:59:59-14:00": None,
    "0000-01-01T00:00:00Z": None, "10000-01-01T00:00:00Z": None, "2026-02-30T00:00:00Z": None,
    "yesterday": None, "": None, "2026-11-20T19:00:00+99:99": None, "\x00": None, "٢٠٢٦-11-20": None,
}  # fmt: skip


@pytest.mark.parametrize("text", TIMES)
def test_a_time_of_a_file_is_read_or_none(text):
    assert units.parse_time(text) == TIMES[text]


@pytest.mark.parametrize(
    "text", ["yesterday", "0001-01-01T00:00:00+14:00", "2026-11-20T19:00:00", "9999-12-31"]
)
def test_formats_with_times_take_every_time(text):
    """Two runs of one machine have a history, by time."""
    run = full_run()
    sessions = [SessionRecord(index=one.index, started_at=text) for one in run.sessions]
    first = replace(run, started_at=text, finished_at=run.started_at, sessions=sessions)
    second = replace(run, finished_at=text, id="0" * 32)
    for name in ("json", "jsonl", "pytest-benchmark", "google-benchmark"):
        assert report.render([first], name)
    assert report.render([first, second], "plain")
    assert take_turns(first, second) in (True, False)
