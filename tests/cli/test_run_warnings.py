"""What `run` says of the machine before it measures."""

import pytest

from gpubench.cli import request as warnings


@pytest.mark.parametrize(
    ("governor", "on_battery", "severity"),
    [
        (None, False, []), ("performance", False, []), ("schedutil", False, []), ("powersave", False, ["info"]),
        ("performance", True, ["warning"]), ("powersave", True, ["warning"]), (None, True, ["warning"]),
    ],
)  # fmt: skip
def test_a_machine_that_saves_power(governor, on_battery, severity):
    found = warnings.power(governor, on_battery=on_battery)
    assert [(w.code, w.severity) for w in found] == [("powersave", word) for word in severity]
