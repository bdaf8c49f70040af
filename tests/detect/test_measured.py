from __future__ import annotations

import pytest

from gpubench.detect import measured
from gpubench.detect.measured import Key, Times


def curve(*pairs, op="matmul", regime="resident"):
    return {Key(op, "float32", regime, n): Times(cpu, gpu, None, "cupy") for n, cpu, gpu in pairs}


@pytest.mark.parametrize(
    ("s", "separate", "threads", "mode", "code"),
    [(0.05, True, 8, "gpu", "GPU_DOMINATES"), (5.0, True, 8, "cpu", "CPU_DOMINATES"), (0.5, True, 8, "hybrid", "HYBRID_PAYS"),
     (0.5, False, 8, "gpu", "FASTER_ALONE"), (2.0, True, 2, "cpu", "FASTER_ALONE")],
)  # fmt: skip
def test_the_ratio_decides(s, separate, threads, mode, code):
    verdict = measured.judge(s, separate=separate, threads=threads)
    assert (verdict.mode, verdict.code) == (mode, code)


def test_a_measured_hybrid_run_overrules_the_estimate():
    assert measured.judge(0.05, separate=True, threads=8, hybrid_gain=1.2).mode == "hybrid"
    assert measured.judge(0.5, separate=True, threads=8, hybrid_gain=0.9).mode == "gpu"


def test_split_is_by_rates():
    assert measured.judge(0.25, separate=True, threads=8).split == pytest.approx(0.8)


def test_break_even_needs_a_win_at_all_larger_sizes():
    (point,) = measured.break_evens(curve((64, 1, 0.5), (128, 1, 2), (256, 4, 2), (512, 9, 3)))
    assert (point.size, point.gpu_s, point.cpu_s) == (256, 2, 4)
    (never,) = measured.break_evens(curve((64, 1, 0.5), (128, 1, 2)))
    assert (never.size, never.note) == (None, "never up to n = 128")


def test_the_ratio_takes_the_largest_common_size_of_resident_data():
    table = (
        curve((64, 1, 8), (128, 4, 1))
        | curve((64, 1, 4), op="sum")
        | curve((256, 1, 100), regime="transfer-always")
    )
    assert measured.ratio(table) == pytest.approx(1.0)


def test_a_folder_without_results_changes_nothing(tmp_path, look, host):
    machine = look(host)
    (tmp_path / "notes.json").write_text("{}")
    assert measured.apply(machine, machine.recommendation, tmp_path) is machine.recommendation
