"""A terminal of 60 to 120 columns: no line is longer, whatever things are called and however many there are."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from gpubench.analysis import claims as claims_room
from gpubench.base.plugins import sections
from gpubench.report import analyse_runs, draw_report
from gpubench.report.layout import RenderOptions
from gpubench.result.machine import Fact
from tests.examples import examples
from tests.unit.report.builders import case, failed, measured, run_of, skipped
from tests.unit.report.samples import cpu_run, full_run, interrupted_run, software_run

LONG = st.text(min_size=1, max_size=200) | st.sampled_from(
    ["x" * 200, "Ünïcode " * 20, "日本語" * 30, "a-b-c" * 40]
)


def named(run, text):
    """`run` with everything that a user or a driver names called `text`."""
    devices = [replace(device, name=text, driver=text) for device in run.devices]
    cpu = replace(run.machine.cpu, model=Fact(text, "ok", "proc"))
    gpus = [replace(gpu, name=Fact(text, "ok", "nvml")) for gpu in run.machine.gpus]
    environment = replace(run.environment, variables={"OMP_NUM_THREADS": text})
    return replace(
        run, devices=devices, label=text, environment=environment, tool={"gpubench": text},
        machine=replace(run.machine, cpu=cpu, gpus=gpus),
        outcomes=[*run.outcomes, failed(case("add", 7), detail=text), skipped(case("add", 9), detail=text)],
    )  # fmt: skip


def too_long(run, format, width, **more):
    return _too_long(analyse_runs([run], claims=claims_room.load("builtin")), format, width, **more)


def _too_long(analyses, format, width, **more):
    text = draw_report(analyses, format, RenderOptions(width=width, **more))
    return [line for line in text.splitlines() if cell_len(line) > width]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from([full_run, cpu_run, software_run, interrupted_run]), LONG, st.integers(60, 120),
    st.sampled_from(["table", "plain"]), st.booleans(),
)  # fmt: skip
def test_no_line_is_longer_than_the_terminal(make, text, width, format, ascii_only):
    assert not too_long(named(make(), text), format, width, ascii_only=ascii_only)


@pytest.fixture(scope="module")
def whole():
    return analyse_runs([full_run()], claims=claims_room.load("builtin"))


@pytest.mark.parametrize("format", ["table", "plain"])
@pytest.mark.parametrize("section", sections.names())
@pytest.mark.parametrize("width", [60, 61, 72, 80, 100, 119])
def test_every_section_by_itself(whole, format, section, width):
    assert not _too_long(whole, format, width, sections=[section])


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2**40), st.floats(1e-9, 1e4)), min_size=1, max_size=6, unique_by=lambda x: x[0]),
    st.integers(60, 120), st.sampled_from(["table", "plain"]),
)  # fmt: skip
@example([(10_000, 1.0)], 60, "plain")
@example([(2**33 + 1, 1.0)], 60, "table")
def test_no_number_breaks_a_table(times, width, format):
    outcomes = []
    for n, seconds in times:
        outcomes.append(measured(case("sigmoid_grad", n), seconds, sessions=1))
        for regime in ("resident", "transfer-once", "transfer-always"):
            outcomes.append(
                measured(case("sigmoid_grad", n, regime=regime, device="cupy:0"), seconds / 3, sessions=1)
            )
    assert not too_long(run_of(outcomes, sessions=1), format, width)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_legend_is_that_of_the_table_that_is_printed(width):
    """A table without intervals says where they are, and one with intervals does not."""
    for format in ("table", "plain"):
        text = draw_report(analyse_runs([full_run()]), format, RenderOptions(width=width, sections=["speedup"]))
        for part in text.split("matmul float32")[1:2]:
            rows = part.partition("relu")[0]
            assert ("in a wider terminal" in rows) == ("+-" not in rows and "[" not in rows), (format, width)
