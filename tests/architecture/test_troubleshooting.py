"""Every code has one entry of the list of messages, and docs/troubleshooting.md shows it."""

import re
from pathlib import Path

import pytest

from gpubench.base.messages import ERRORS, REASONS, WARNINGS
from tests.scripts import script

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_messages():
    made = script("write_troubleshooting")
    shown = made.TARGET.read_text(encoding="utf-8")
    assert shown == made.page(), "docs/troubleshooting.md is stale: make docs"
    for code in (*REASONS, *WARNINGS, *ERRORS):
        assert f"\n| `{code}` | " in shown


def _text(*rooms: str) -> str:
    """Return what the modules of these packages hold, without the list of messages itself."""
    paths = [path for room in rooms for path in (ROOT / "gpubench" / room).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path.name != "messages.py")


@pytest.mark.parametrize(("table", "pattern", "rooms", "few"), [
    (REASONS, r'\breason(?:=|: Reason = )"([^"]+)"', ("kernels", "backends", "measure"), 15),
    (WARNINGS, r'\b(?:RunWarning\(\s*code=|note\(\s*|warning\()"([^"]+)"', ("",), 20),
    (ERRORS, r'\b(?:Config|Gpubench|Input|Usage|Unavailable)Error\(\s*"([^"]+)"', ("",), 60),
])  # fmt: skip
def test_a_code_that_is_written_somewhere_has_its_sentence_and_its_remedy(table, pattern, rooms, few):
    codes = set(re.findall(pattern, _text(*rooms)))
    assert len(codes) >= few
    assert codes <= {*table}
    everything = _text("")
    assert not [code for code in table if f'"{code}"' not in everything]
    assert all(entry.sentence and entry.remedy for entry in table.values())
