"""Tables whose rows have names."""

import pytest


def rows(columns, table):
    """Call a test with each row of the table, which has them by the names of the cases. `columns`: "a, b"."""
    cases = [pytest.param(*row, id=name) for name, row in table.items()]
    return pytest.mark.parametrize(columns.split(", "), cases)
