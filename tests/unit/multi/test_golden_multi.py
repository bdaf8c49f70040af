"""The reports of several GPUs word for word. If a difference is wanted: python -m tests.golden, and look at it."""

from pathlib import Path

import pytest

from tests.unit.multi.samples import TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name):
    assert TEXTS[name]() == (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")
