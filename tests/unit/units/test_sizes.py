"""The size grammar, as documented, and on text that nobody would write."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench.base.errors import ExitCode, UsageError
from gpubench.base.units import MAX_SIZE, MAX_SIZES, format_size, parse_sizes


@pytest.mark.parametrize(("text", "sizes"), [
    ("1k,4k", [1024, 4096]), ("1000", [1000]), ("1e6", [1_000_000]), ("1_000", [1000]), ("1Ki", [1024]),
    ("1.5k", [1536]), ("1.1K,586 K", [1126, 600_064]), ("2^20", [2**20]),
    ("1k:16k", [1024, 2048, 4096, 8192, 16384]), ("1k:64M:x4", [1024 * 4**i for i in range(9)]),
    ("256:1024:+256", [256, 512, 768, 1024]), ("256:1023:+256", [256, 512, 768]),
    ("100:1k", [100, 200, 400, 800]), ("4k,1k,4096", [1024, 4096]), (" 1k , 4K ", [1024, 4096]),
    ("1MI,1g", [2**20, 2**30]), ("2^40", [MAX_SIZE]), ("7:7", [7]), ("1^999999", [1]),
])  # fmt: skip
def test_documented_implementations(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(("text", "position"), [
    ("", 1), ("0", 1), ("-4", 1), ("1k,,4k", 4), ("1k,4q", 4), ("1k,0", 4), ("0.0001k", 1), ("1.5", 1),
    ("2^41", 1), ("1e13", 1), ("2^99999999999999", 1), ("10i", 1), ("1__0", 1), ("_1", 1), ("٣", 1),
    ("9" * 5000, 1), ("4k:1k", 1), ("1k:", 4), (":1k", 1), ("1k:4k:2", 7), ("1k:4k:x1", 7), ("1k:4k:x", 8),
    ("1k:4k:+0", 8), ("1:2:3:4", 1), ("1:2^40:+1", 8), ("auto", 1),
])  # fmt: skip
def test_everything_else_is_a_usage_error_with_its_position(text, position):
    with pytest.raises(UsageError) as caught:
        parse_sizes(text)
    error = caught.value
    assert error.exit_code == ExitCode.USAGE
    assert f"position {position} " in error.message
    assert error.why
    assert error.hint
    assert len(error.message) < 250


@given(st.text(max_size=60) | st.text(alphabet="0123456789kMGi.,:x+^e_ ", max_size=40))
@example("1:1099511627776:x2,1:1000")
def test_arbitrary_text_gives_sizes_or_a_usage_error(text):
    try:
        sizes = parse_sizes(text)
    except UsageError:
        return
    assert sizes == sorted(set(sizes))
    assert 1 <= len(sizes) <= MAX_SIZES
    assert sizes[0] >= 1
    assert sizes[-1] <= MAX_SIZE


@given(st.lists(st.integers(1, MAX_SIZE), min_size=1, max_size=20))
def test_what_is_printed_reads_back(sizes):
    text = ",".join(map(format_size, sizes))
    assert parse_sizes(text) == sorted(set(sizes))


@given(st.integers(1, 2**20), st.integers(0, 2**20), st.integers(2, 16))
def test_ranges_stay_inside_and_start_at_the_start(low, width, factor):
    sizes = parse_sizes(f"{low}:{low + width}:x{factor}")
    assert sizes[0] == low
    assert sizes[-1] <= low + width < sizes[-1] * factor
