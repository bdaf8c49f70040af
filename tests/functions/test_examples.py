"""The functions under examples/functions: what a newcomer copies is right on NumPy and PyTorch."""

from pathlib import Path

import pytest

from gpubench.functions import declare
from gpubench.functions.describe import CodeSource
from gpubench.functions.loading import load_source
from gpubench.functions.trial import TrialRequest, describe
from tests.functions.test_run import reported

FOLDER = Path(__file__).parents[2] / "examples" / "functions"
FILES = sorted(FOLDER.glob("*.py"))


def test_there_are_twenty_short_ones():
    assert len(FILES) == 20
    assert [f.name for f in FILES if len(f.read_text(encoding="utf-8").splitlines()) > 15] == []


@pytest.mark.torch
def test_all_are_right_on_numpy_and_pytorch(gpubench, tmp_path):
    ended = gpubench("run", *map(str, FILES), "--sizes", "100", "--devices", "numpy:0,torch:cpu",
                     "--implementations", "library", "--max-samples", "4", "--max-time", "5ms", "--no-progress",
                     "-o", "r.json")  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cases = reported(gpubench)["cases"]
    assert {case["id"].partition(".")[0] for case in cases} == {file.stem for file in FILES}
    assert [(case["id"], case["detail"]) for case in cases if case["reason"] is not None] == []
    assert len(cases) == 2 * len(FILES)


@pytest.mark.parametrize("file", sorted((FOLDER / "pairs").glob("*.py")), ids=lambda file: file.stem)
def test_pairs_run_on_the_cpu(file, monkeypatch):
    monkeypatch.setattr(declare, "MEASURES", False)  # this process imports a user's file, as a child does
    source = CodeSource(file.stem, "file", str(file))
    for name, function in load_source(source).functions.items():
        assert [d.pair for d in describe(name, function, TrialRequest(source, sizes=[100]))] == [True]
