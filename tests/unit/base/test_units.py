"""Sizes, durations, percentages, times of files and printed quantities."""

import contextlib
import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench import report
from gpubench.base import units
from gpubench.base.errors import ExitCode, UsageError
from gpubench.compare.pairing import take_turns
from gpubench.result.run import SessionRecord
from tests.examples import CHARACTERS
from tests.unit.report.samples import full_run


@pytest.mark.parametrize(("text", "sizes"), [
    ("1k,4k", [1024, 4096]), ("1000", [1000]), ("1e6", [1_000_000]), ("1_000", [1000]), ("1Ki", [1024]),
    ("1.5k", [1536]), ("1.1K,586 K", [1126, 600_064]), ("2^20", [2**20]),
    ("1k:16k", [1024, 2048, 4096, 8192, 16384]), ("1k:64M:x4", [1024 * 4**i for i in range(9)]),
    ("256:1024:+256", [256, 512, 768, 1024]), ("256:1023:+256", [256, 512, 768]),
    ("100:1k", [100, 200, 400, 800]), ("4k,1k,4096", [1024, 4096]), (" 1k , 4K ", [1024, 4096]),
    ("1MI,1g", [2**20, 2**30]), ("2^40", [units.MAX_SIZE]), ("1:8:x2", [1, 2, 4, 8]), ("7:7", [7]), ("1^999999", [1]), ("1:1000:+1", [*range(1, 1001)]),
])  # fmt: skip
def test_documented_implementations(text, sizes):
    assert units.parse_sizes(text) == sizes


@pytest.mark.parametrize(("text", "position"), [
    ("", 1), ("0", 1), ("-4", 1), ("1k,,4k", 4), ("1k,4q", 4), ("1k,0", 4), ("0.0001k", 1), ("1.5", 1),
    ("2^41", 1), ("1e13", 1), ("2^99999999999999", 1), ("10i", 1), ("1__0", 1), ("_1", 1), ("٣", 1),
    ("9" * 5000, 1), ("4k:1k", 1), ("1k:", 4), (":1k", 1), ("1k:4k:2", 7), ("1k:4k:x1", 7), ("1k:4k:x", 8),
    ("1k:4k:+0", 8), ("1:2:3:4", 1), ("1:1001:+1", 8), ("auto", 1), ("1:1000:+1,2000", 11),
])  # fmt: skip
def test_everything_else_is_a_usage_error_with_its_position(text, position):
    with pytest.raises(UsageError) as caught:
        units.parse_sizes(text)
    error = caught.value
    assert error.exit_code == ExitCode.USAGE
    assert f"position {position} " in error.message
    assert error.why
    assert error.hint
    assert len(error.message) < 250


@pytest.mark.parametrize(("text", "why", "hint"), [
    ("1k 4k", "a comma separates sizes", "write 1k,4k"), ("1k; 4k", "a comma separates sizes", "write 1k,4k"), ("", "a number is missing here", ""),
    ("64x64", "a size is one number", "give the rows of"), ("64*64*2", "a size is one number", "give the rows of"), ("a", "a number is 1000", ""),
    (" 4k : 1k ", "a range ascends", "write it as 1k:4k"), ("1:2:3:4", "a range has two or three parts", ""), ("0" * 32 + "1", "this number is too long", ""),
    ("1.5", "a size is a whole number", ""), ("0", "a size is at least 1", ""), ("2^41", "a size is at most 2^40", ""), ("1:1001:+1", "this range has more than 1000", "take a larger step"),
    ("1k:4k:x1", "the factor of a range is at least 2", ""), ("1k:4k:2", "the step of a range is", ""), ("1:1000:+1,2000", "the list has more than 1000", "list fewer")])  # fmt: skip
def test_a_size_that_is_wrong_is_told_with_its_reason_and_a_remedy(text, why, hint):
    with pytest.raises(UsageError) as caught:
        units.parse_sizes(text)
    assert (caught.value.why.startswith(why), caught.value.hint.startswith(hint)) == (True, True)
    assert units.parse_sizes("0" * 31 + "1") == [1]


@given(st.text(CHARACTERS, max_size=60) | st.text(alphabet="0123456789kMGi.,:x+^e_ ", max_size=40))
@example("1:1099511627776:x2,1:1000")
def test_arbitrary_text_is_read_or_a_usage_error(text):
    for parse in (units.parse_duration, units.parse_percent):
        with contextlib.suppress(UsageError):
            assert parse(text, option="") > 0
    with contextlib.suppress(UsageError):
        sizes = units.parse_sizes(text)
        assert 1 <= len(sizes) <= units.MAX_SIZES
        assert 1 <= sizes[0] <= sizes[-1] <= units.MAX_SIZE
        assert units.parse_sizes(",".join(map(units.format_size, sizes))) == sizes == sorted(set(sizes))


@pytest.mark.parametrize(("parse", "text", "value"), [
    *((units.parse_duration, *case) for case in (
        ("500ms", 0.5), ("2s", 2.0), ("5m", 300.0), ("1h", 3600.0), ("2", 2.0), ("1.5 s", 1.5), ("720h", 2592000.0))),
    *((units.parse_percent, *case) for case in (("2", 0.02), ("2%", 0.02), ("0.5", 0.005), ("100 %", 1.0))),
    *((units.parse_duration, text, None) for text in ("", "0", "-1s", "2 parsecs", "inf", "nan", "1e9", "1000h", "s")),
    *((units.parse_percent, text, None) for text in ("", "0", "101", "-2", "two", "nan")),
])  # fmt: skip
def test_durations_and_percentages(parse, text, value):
    if value is None:
        with pytest.raises(UsageError, match="--budget"):
            parse(text, option="--budget")
    else:
        assert parse(text, option="") == pytest.approx(value)


@pytest.mark.parametrize(("text", "said"), [
    *((units.format_seconds(seconds), said) for seconds, said in (
        (1.234, "1.23 s"), (0.5, "500 ms"), (0.00123456, "1.23 ms"), (0.0009999, "1.00 ms"), (0.001, "1.00 ms"),
        (2.62e-4, "262 us"), (4.63e-7, "463 ns"), (1.2e-11, "0.0120 ns"), (0.0, "0 ns"), (950.0, "950 s"), (math.inf, "inf"),
        (12345.0, "12300 s"))),
    (units.format_seconds(0.0123, unit="us", digits=2), "12000 us"),
    *((units.format_bytes(n), said) for n, said in (
        (0, "0 B"), (512, "512 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (139 * 2**30, "139 GiB"), (2**60, "1024 PiB"))),
    (units.format_rate(4.22e12, "B/s"), "4.22 TB/s"), (units.format_rate(999.9e9, "FLOP/s"), "1.00 TFLOP/s"),
    (units.format_rate(12.0, "FLOP/s"), "12.0 FLOP/s"), (units.format_watts(1400.0), "1400 W"), (units.format_watts(72.0), "72 W"),
    (units.format_watts(0.25), "250 mW"), (units.format_number(1234.5), "1230"),
    *((units.format_size(n), said) for n, said in (
        (16 * 2**20, "16 M"), (4096, "4096"), (65536, "64 K"), (2**20 + 1, "1048577"), (2**32, "4 G"), (2**14, "16 K"), (15 << 10, "15360"), (20 << 10, "20 K"))),
    *((" ".join(units.scale_size(n)), said) for n, said in (
        (972, "972 "), (973, "1 K"), (10_178, "9.9 K"), (10_240, "10 K"), (10_700, "10 K"), (24_536_678, "23.4 M"), (2**20, "1 M"),
        (104_752_742, "99.9 M"), (105_277_030, "100 M"), (1_610_612_736, "1.5 G"))),
    *((units.earned_digits(*ends), said) for ends, said in (  # up to the second uncertain one
        ((1.2345, 1.228, 1.240), 4), ((1.2, 0.9, 1.5), 3), ((1.0, 1.0, 1.0), 4), ((1.0, 0.0, 100.0), 1))),
])  # fmt: skip
def test_quantities_in_words(text, said):
    assert text == said


def test_a_unit_that_is_none_is_refused():
    with pytest.raises(ValueError, match="unit of time"):
        units.format_seconds(1.0, unit="weeks")


@given(st.floats(1e-9, 999), st.integers(2, 4))
def test_seconds_read_back_within_the_digits_shown(seconds, digits):
    shown = units.parse_duration(units.format_seconds(seconds, digits=digits).replace(" ", ""), option="")
    assert math.isclose(shown, seconds, rel_tol=10.0 ** (1 - digits))


SEVEN = datetime(2026, 11, 20, 19, tzinfo=UTC)
TIMES = {
    **dict.fromkeys(("2026-11-20T19:00:00Z", "2026-11-20T20:00:00+01:00", "2026-11-20T19:00:00"), SEVEN),
    "2026-11-20": datetime(2026, 11, 20, tzinfo=UTC), "0001-01-01T00:00:00Z": datetime(1, 1, 1, tzinfo=UTC),
    "9999-12-31T23:00:00Z": datetime(9999, 12, 31, 23, tzinfo=UTC),
    **dict.fromkeys((
        "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z",
        "2026-02-30T00:00:00Z", "yesterday", "", "2026-11-20T19:00:00+99:99", "\x00", "٢٠٢٦-11-20")),
}  # fmt: skip


@pytest.mark.parametrize("text", TIMES)
def test_a_time_of_a_file_is_read_or_none(text):
    assert units.parse_time(text) == TIMES[text]


@pytest.mark.parametrize("text", ["yesterday", "9999-12-31"])
def test_formats_with_times_take_every_time(text):
    """Two runs of one machine have a history, by time."""
    run = full_run()
    sessions = [SessionRecord(index=one.index, started_at=text) for one in run.sessions]
    first = replace(run, started_at=text, finished_at=run.started_at, sessions=sessions)
    second = replace(run, finished_at=text, id="0" * 32)
    for name in ("json", "pytest-benchmark", "google-benchmark"):
        assert report.render([first], name)
    assert report.render([first, second], "plain")
    assert take_turns(first, second) in (True, False)
