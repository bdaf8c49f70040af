"""The parts of a call on scripted devices: they are the whole, exactly, or a warning says so and nothing is predicted."""

import pytest

from gpubench import backends, kernels
from gpubench.analysis.analyse import analyse
from gpubench.measure.worker import parts, timer
from gpubench.measure.worker.workspace import gate, kind_of
from gpubench.result.case import Case
from gpubench.result.store import load

OPS = ("--ops", "matmul,add,softmax", "--sizes", "matmul=1k", "--sizes", "add=64k", "--sizes", "softmax=4k")
# The file has six digits: half of the last one for the whole and for each of six parts.
ROUNDING = 7 * 5e-6
SHORTEST_S = 2e-9  # no time in a file is 0


CALLS = [("gpu", "matmul", 96), ("gpu", "add", 1000), ("no-clock", "max", 5000)]


@pytest.mark.parametrize(("device", "op", "n"), CALLS)
def test_the_residual_is_exactly_zero(tmp_path, device, op, n):
    """On a clock that nothing disturbs, and with nothing rounded: what is left are the digits of a float."""
    session, declared = backends.load("fake").open(f"fake:{device}"), kernels.load(op)
    case = Case(op, declared.group, {"n": n}, "float32", "library", "transfer-always", f"fake:{device}")
    workspace = kind_of(declared)(session, declared, case, 1, "random", tmp_path)
    cycle = timer.Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)
    whole = cycle.seconds(1)
    one = parts.parts_of_call(cycle)
    kernel = session.time(cycle.launch, 1, cold=True)
    if kernel is None:
        kernel = one["single_s"] - one["launch_s"] - one["sync_s"]
    listed = [one[name] for name in ("alloc_s", "upload_s", "launch_s", "sync_s", "download_s")]
    assert min(listed) > 0
    assert whole - sum(listed) - kernel == pytest.approx(0, abs=1e-16)
    session.close()


@pytest.fixture(scope="module")
def rows(run_well):
    """The calls that copy, by device and op."""
    ran = run_well("--devices", "fake:cpu,fake:gpu,fake:no-clock,fake:overlaps", *OPS)
    assert "transfer-mismatch" not in ran.out
    clocks = {device["id"]: (device["clock"] or {}).get("kind") for device in ran.result["devices"]}
    assert (clocks["fake:cpu"], clocks["fake:no-clock"]) == (None, "derived")
    cases = analyse(load(ran.folder / "r.json")).cases
    return {(row.case.device_id, row.case.op): row for row in cases if row.case.regime == "transfer-always"}


@pytest.mark.parametrize("device", ["fake:gpu", "fake:no-clock"])
def test_the_parts_in_a_file_are_the_whole_to_its_last_digit(rows, device):
    for op in ("matmul", "add", "softmax"):
        parts = rows[device, op].time_breakdown
        assert abs(parts.residual_s) <= ROUNDING * parts.whole_s + SHORTEST_S, op
        assert parts.first_result_s is not None
        assert parts.kernel_derived == (device == "fake:no-clock")


def test_where_copies_and_kernels_overlap_the_steps_of_the_call_still_add_up(rows):
    """The kernel of 54 us hides behind an upload of 184: parts timed alone would add up to a fifth more."""
    row = rows["fake:overlaps", "matmul"]
    assert abs(row.time_breakdown.residual_share) < 0.01
    assert "transfer-mismatch" not in row.findings
    assert row.time_breakdown.first_result_s is not None
