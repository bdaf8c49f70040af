"""The size grammar, as documented, and on text that nobody would write."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench.base.errors import ExitCode, UsageError
from gpubench.base.units import MAX_SIZE, MAX_SIZES, format_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1k,4k", [1024, 4096]), ("1000", [1000]), ("1e6", [1_000_000]), ("1_000", [1000]), ("1Ki", [1024]),
        ("1.5k", [1536]), ("1.1K,586 K", [1126, 600_064]), ("2^20", [2**20]),
        ("1k:16k", [1024, 2048, 4096, 8192, 16384]), ("1k:64M:x4", [1024 * 4**i for i in range(9)]),
        ("256:1024:+256", [256, 512, 768, 1024]), ("256:1023:+256", [256, 512, 768]),
        ("100:1k", [100, 200, 400, 800]), ("4k,1k,4096", [1024, 4096]), (" 1k , 4K ", [1024, 4096]),
        ("1MI,1g", [2**20, 2**30]), ("2^40", [MAX_SIZE]), ("7:7", [7]), ("1^999999", [1]),
    ],
)  # fmt: skip
def test_documented_implementations(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text",
    [
        "", "0", "-4", "1k,,4k", "1k,4q", "1k,0", "0.0001k", "1.5",
        "2^41", "1e13", "2^99999999999999", "10i", "1__0", "_1", "٣",
        "9" * 5000, "4k:1k", "1k:", ":1k", "1k:4k:2", "1k:4k:x1", "1k:4k:x",
        "1k:4k:+0", "1:2:3:4", "1:2^40:+1", "auto",
    ],
)  # fmt: skip
def test_everything_else_is_a_usage_error_that_names_its_part(text):
    with pytest.raises(UsageError) as caught:
        parse_sizes(text)
    error = caught.value
    assert error.exit_code == ExitCode.USAGE
    assert re.fullmatch(r"--sizes: '.*' in '.*' is not usable", error.message)
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


@given(st.lists(st.integers(1, MAX_SIZE), min_size=1, max_size=20), st.booleans())
def test_what_is_printed_reads_back(sizes, table):
    text = ",".join(format_size(n, table=table) for n in sizes)
    assert parse_sizes(text) == sorted(set(sizes))
