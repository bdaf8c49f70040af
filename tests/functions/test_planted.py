"""Each planted fault (`planted.py`) is refused: no time of it stands in a result. Functions without a fault are not."""

import re
import shutil

import pytest

from tests.functions import planted
from tests.functions.test_run import reported

BRIEF = "--quick --sessions 1 --max-samples 4 --max-time 2ms --no-autotune --no-progress --dtypes float32".split()  # fmt: skip
REGIMES = ("resident-waited", "resident-queued", "transfer-once-10", "transfer-always")
PAIRS = """
from functools import partial
import gpubench
import numpy as np
import planted
for name, (right, wrong) in planted.IMPLEMENTATIONS.items():
    if name in NAMES:
        inputs = vars(planted)[name].make
        globals()[name] = gpubench.pair(cpu=partial(right, np), gpu=partial(wrong, np), inputs=inputs)
fine = gpubench.pair(cpu=planted_line, gpu=lambda x: 2 * x + 1)
"""


def measure(gpubench, folder, file, *arguments):
    shutil.copy(planted.__file__, folder / "planted.py")
    gpubench("run", file, "--sizes", "1000", *BRIEF, *arguments, "-o", "r.json")
    return {case["id"]: case for case in reported(gpubench)["cases"]}


def require_refused(cases, names, ending, file="planted"):
    told = {name: cases[f"{file}.{name}/n=1000/float32/library/{ending}"] for name in names}
    assert {name: case["detail"] for name, case in told.items() if case["reason"] not in ("wrong-result", "bad-function")
            or not re.search(planted.FAULTS[name], case["detail"])} == {}  # fmt: skip


@pytest.mark.torch
def test_pytorch_implementations(gpubench, tmp_path):
    assert len(planted.FAULTS) >= 50
    command = "planted.py --backends numpy,torch --devices numpy:0,torch:cpu"
    cases = measure(gpubench, tmp_path, *command.split())
    require_refused(cases, planted.FAULTS, "resident@torch:cpu")
    assert {name: case["detail"] for name, case in cases.items() if "@numpy" in name and case["reason"]} == {}


@pytest.mark.cuda
@pytest.mark.parametrize("regime", REGIMES)
def test_cupy_implementations(gpubench, tmp_path, regime):
    asked = regime.removesuffix("-10")  # of so many calls a copy, unless --calls says otherwise
    cases = measure(gpubench, tmp_path, "planted.py", "--backends", "numpy,cupy", "--regimes", asked)
    require_refused(cases, planted.FAULTS, f"{regime}@cupy:0")


# Faults that a copy before each call, or a result that is fetched, might hide.
COPIED = ("tail_is_zero", "an_element_is_missing", "returns_nothing", "kept_by_shape", "kept_by_value",
          "stops_after_five_calls", "each_other_call_is_skipped", "result_of_the_call_before",
          "output_is_filled_once")  # fmt: skip


def test_pairs_in_each_situation(gpubench, tmp_path):
    text = PAIRS.replace("NAMES", repr(COPIED)).replace("planted_line", "partial(planted.line, np)")
    (tmp_path / "pairs.py").write_text(text, encoding="utf-8")
    cases = measure(gpubench, tmp_path, "pairs.py", "--devices", "numpy:0,fake:gpu")
    for regime in REGIMES:
        require_refused(cases, COPIED, f"{regime}@fake:gpu", "pairs")
        assert cases[f"pairs.fine/n=1000/float32/library/{regime}@fake:gpu"]["reason"] is None
