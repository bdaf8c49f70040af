"""Golden reports of networks."""

import pytest

from tests import golden


@pytest.mark.parametrize(("run", "name"), golden.NETWORK_CASES)
def test_golden(run, name):
    """If the difference is wanted: python -m tests.golden, and look at it."""
    assert golden.text(run, name) == golden.path(run, name).read_text(encoding="utf-8")
