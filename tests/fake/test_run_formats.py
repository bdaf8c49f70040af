"""`run` prints in every format for tools what `report` prints from its file."""

import pytest

RUN = "run --ops relu --sizes 1k --devices fake:gpu --regimes resident-queued --quick --no-progress -o r.json".split()


@pytest.mark.parametrize("name", ["gha-smaller", "csv"])
def test_run_and_report_print_the_same(gpubench, in_process, name):
    ran = gpubench(*RUN, "--format", name)
    assert ran.returncode == 0, ran.stderr
    reported = in_process("report", "r.json", "--format", name)
    assert ran.stdout == reported.stdout
    assert "relu" in ran.stdout.lower()
    named = in_process("report", "r.json", "--format", name, "-o", "out.json")  # the name outweighs the suffix
    assert (named.returncode, named.stdout) == (0, "")


def test_a_column_that_no_table_turns_out_to_have_hides_no_result(gpubench):
    command = (
        "run --ops add --sizes 1k --quick --devices fake:cpu,fake:gpu --no-save --format plain --columns nope"
    )
    ended = gpubench(*command.split())
    assert ended.returncode == 0, ended.stderr
    assert "warning: --columns: there is no 'nope'; all columns are shown" in ended.stderr
    assert "Break-even: " in ended.stdout


def test_a_baseline_that_would_not_be_measured_is_refused_before_measuring(gpubench):
    ran = gpubench(*RUN, "--baseline", "cupy:0")
    assert ran.returncode == 2
    assert "choose one of: library@fake:gpu" in ran.stderr
    assert "saved" not in ran.stderr
