"""Go benchmark text: what a strict reader of the published format finds in `--format go`."""

import itertools
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from gpubench.report import render
from gpubench.report.exporters import decimal
from tests.consumers.conftest import small_run
from tests.consumers.go_text import filtered, read
from tests.unit.report.builders import CPU, GPU, case, measured, run_of
from tests.unit.report.samples import full_run

ROOT = Path(__file__).parents[2]


def test_one_line_per_case_and_session():
    found = read(render([small_run(sessions=5)], "go"))
    assert set(Counter(row.name for row in found).values()) == {5}
    row = next(row for row in found if row.parts["backend"] == "cupy")
    assert row.name == (
        "BenchmarkMatmul/n=1024/dtype=float32/implementation=library/regime=resident-queued/backend=cupy/dev=0"
    )
    assert row.values == {"ns/op": 1e6, "GFLOP/s": pytest.approx(2 * 1024**3 / 1e-3 / 1e9, rel=1e-5)}
    assert row.iterations == 10 * 10_000  # ten samples of ten thousand launches


def test_names_are_unique_per_case_and_say_all_of_it():
    what = [
        case("gelu_grad", 64, "tuned", "transfer-once", "cupy:0"), case("gelu_grad", 64, "tuned", device="hybrid:cupy:0"),
        case("gelu_grad", 64, "tuned", device="cupy:0", variant="naive"), case("gelu_grad", 64, device="fake:slow"),
    ]  # fmt: skip
    names = [
        row.name
        for row in read(
            render(
                [run_of([measured(c, 1e-3, sessions=1) for c in what], devices=(CPU, GPU), sessions=1)], "go"
            )
        )
    ]
    assert sorted(names) == [
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=library/regime=resident/backend=fake/dev=slow",
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=tuned-naive/regime=resident-queued/backend=cupy/dev=0",
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=tuned/regime=resident-queued/backend=hybrid-cupy/dev=0",
        "BenchmarkGeluGrad/n=64/dtype=float32/implementation=tuned/regime=transfer-once-10/backend=cupy/dev=0",
    ]


def recipe() -> list[str]:
    """The arguments of benchstat as docs/formats.md has them."""
    (line,) = re.findall(
        r"^\$ (benchstat .*)$", (ROOT / "docs" / "formats.md").read_text(encoding="utf-8"), re.M
    )
    return shlex.split(line)


def test_the_documented_command_of_benchstat_leaves_one_implementation_and_one_regime_in_each_cell():
    options = dict(itertools.pairwise(recipe()))
    found = filtered(read(render([full_run()], "go")), options["-filter"])
    column, order = re.fullmatch(r"/(\w+)@\((.*)\)", options["-col"]).groups()
    row_key = re.fullmatch(r"/(\w+)@num", options["-row"])[1]
    cells = {}
    for row in found:
        assert re.fullmatch(r"\d+", row.parts[row_key])
        rest = {key: value for key, value in row.parts.items() if key not in (column, row_key)}
        cells.setdefault((row.parts[row_key], row.parts[column]), []).append(rest)
    assert {backend for _, backend in cells} == set(order.split())
    assert len({n for n, _ in cells}) > 2
    for rests in cells.values():
        assert all(rest == rests[0] for rest in rests), "what is left differs in nothing"


@pytest.mark.parametrize(
    ("value", "text"),
    [(600.0, "600"), (1.23456789e-7, "0.000000123457"), (134227726.4, "134228000"), (0.1, "0.1")],
)
def test_numbers_have_no_exponent(value, text):
    assert decimal(value) == text
