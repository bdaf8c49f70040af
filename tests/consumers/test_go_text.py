"""Go benchmark text: what a strict reader of the published format finds in `--format go`."""

import re
from pathlib import Path

import pytest

from gpubench.report import render
from gpubench.report.exporters import decimal
from tests.consumers.go_text import read
from tests.unit.report.builders import case, measured, run_of
from tests.unit.report.samples import full_run

ROOT = Path(__file__).parents[2]


def test_names_are_unique_per_case_and_say_all_of_it():
    what = [
        case("gelu_grad", 64, "tuned", "transfer-once", "cupy:0"), case("gelu_grad", 64, "tuned", device="hybrid:cupy:0"),
        case("gelu_grad", 64, "tuned", device="cupy:0", variant="naive"), case("gelu_grad", 64, device="fake:slow"),
        case("f.softMax", 64), case("f.softmax", 64),
    ]  # fmt: skip
    run = run_of([measured(c, 1e-3, sessions=1) for c in what], sessions=1)
    assert sorted(row.name for row in read(render([run], "go"))) == [
        "BenchmarkF.softMax/n=64/dtype=float32/implementation=library/regime=resident/backend=numpy/dev=0",
        "BenchmarkF.softmax/n=64/dtype=float32/implementation=library/regime=resident/backend=numpy/dev=0",
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=library/regime=resident/backend=fake/dev=slow",
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=tuned-naive/regime=resident-queued/backend=cupy/dev=0",
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=tuned/regime=resident-queued/backend=hybrid-cupy/dev=0",
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=tuned/regime=transfer-once-10/backend=cupy/dev=0",
    ]


@pytest.mark.parametrize(("value", "text"), [
    (600.0, "600"), (1.23456789e-7, "0.000000123457"), (134227726.4, "134228000"), (0.1, "0.1"),
])  # fmt: skip
def test_numbers_have_no_exponent(value, text):
    assert decimal(value) == text


def test_the_documented_command_of_benchstat_names_parts_that_are_there():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^\$ (benchstat .*)$", page, re.M)
    rows = read(render([full_run()], "go"))
    for part, values in re.findall(r"/(\w+)[:@]\(?([\w. -]+)", recipe):
        known, named = {row.parts[part] for row in rows}, set(values.replace(" OR ", " ").split())
        assert known & named or (values == "num" and max(map(int, known))), part
