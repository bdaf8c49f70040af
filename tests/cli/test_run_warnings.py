"""What `run` says of the machine before it measures."""

import pytest

from gpubench.cli import request as warnings
from gpubench.result.machine import Machine, MachineWarning


@pytest.mark.parametrize(("governor", "on_battery", "severity"), [
    (None, False, []), ("performance", False, []), ("schedutil", False, []), ("powersave", False, ["info"]),
    ("performance", True, ["warning"]), ("powersave", True, ["warning"]), (None, True, ["warning"]),
])  # fmt: skip
def test_a_machine_that_saves_power(governor, on_battery, severity):
    found = warnings.power(governor, on_battery=on_battery)
    assert [(w.code, w.severity) for w in found] == [("powersave", word) for word in severity]


def test_threads_of_a_blas_that_do_not_fit_are_said():
    notes = {"BLAS_THREADS": "64 threads", "NUMA_OVERLAP": "x"}
    machine = Machine(warnings=[MachineWarning(code=code, text=text) for code, text in notes.items()])
    said = warnings.blas_threads(machine)
    assert [(w.code, w.message) for w in said] == [("blas-threads", "64 threads")]
