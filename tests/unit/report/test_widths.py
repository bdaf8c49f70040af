"""A terminal of 60 to 120 columns: no line is longer, whatever things are called and however many there are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from gpubench.analysis import claims as claims_room
from gpubench.base.plugins import sections
from gpubench.report import analyse_runs, draw_report
from gpubench.report.layout import RenderOptions
from gpubench.result.machine import Fact
from tests.examples import examples
from tests.unit.report.answer_runs import named_run, no_gpu_run, one_op_run, suite_run
from tests.unit.report.builders import case, failed, skipped
from tests.unit.report.samples import cpu_run, full_run, interrupted_run, software_run

MAKES = [full_run, cpu_run, software_run, interrupted_run, suite_run, one_op_run, named_run, no_gpu_run]
LONGEST = ["x" * 200, "Ünïcode " * 20, "日本語" * 30, "a-b-c" * 40]
LONG = st.text(min_size=1, max_size=200) | st.sampled_from(LONGEST)


def named(run, text):
    """`run` with everything that a user or a driver names called `text`."""
    devices = [replace(device, name=text, driver=text) for device in run.devices]
    gpus = [replace(gpu, name=Fact(text, "ok", "nvml")) for gpu in run.machine.gpus]
    machine = replace(run.machine, cpu=replace(run.machine.cpu, model=Fact(text, "ok", "proc")), gpus=gpus)
    return replace(
        run, devices=devices, label=text, environment=replace(run.environment, variables={"OMP_NUM_THREADS": text}),
        tool={"gpubench": text}, machine=machine,
        outcomes=[*run.outcomes, failed(case("add", 7), detail=text), skipped(case("add", 9), detail=text)],
    )  # fmt: skip


def analysed(run):
    return analyse_runs([run], claims=claims_room.load("builtin"))


def too_long(analyses, format, width, **more):
    text = draw_report(analyses, format, RenderOptions(width=width, **more))
    return [line for line in text.splitlines() if cell_len(line) > width]


@settings(max_examples=examples(8), deadline=None)
@given(st.sampled_from(MAKES), LONG, st.integers(60, 120), st.sampled_from(["table", "plain"]), st.booleans())
def test_no_line_is_longer_than_the_terminal(make, text, width, format, ascii_only):
    assert not too_long(analysed(named(make(), text)), format, width, ascii_only=ascii_only)


@pytest.fixture(scope="module")
def whole():
    return analysed(full_run())


@pytest.mark.parametrize("format", ["table", "plain"])
@pytest.mark.parametrize("section", sections.names())
def test_every_section_by_itself(whole, format, section):
    assert not [width for width in (60, 80, 119) if too_long(whole, format, width, sections=[section])]
