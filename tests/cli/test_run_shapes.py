"""`run` with shapes, variants, named implementations and switches: what is measured, skipped and written down."""

import io
import json

import pytest

from gpubench import backends
from gpubench.base.errors import BackendUnavailable
from gpubench.cli import selection
from gpubench.measure import protocol
from gpubench.measure.worker import main as worker

SHORT = ("--quick", "--min-samples", "5", "--max-time", "50ms", "--regimes", "resident-queued", "-o", "r.json")
FAKE = ("--devices", "fake:cpu,fake:gpu", *SHORT)
BOTH = ("resident@fake:cpu", "resident-queued@fake:gpu")


def outcomes(folder):
    found = json.loads((folder / "r.json").read_text())
    return {outcome["id"]: outcome for outcome in found["outcomes"]}


def test_every_shape_is_measured_checked_and_reported(gpubench, tmp_path):
    ended = gpubench(
        "run", *FAKE, "--ops", "matmul,add", "--sizes", "64", "--params", "m=16,32,k=8", "--params", "matmul:batch=3"
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = outcomes(tmp_path)
    shapes = ["n=64,k=8,m=16", "n=64,k=8,m=32", "n=64,batch=3"]
    matmul = [f"matmul/{shape}/float32/library/{where}" for shape in shapes for where in BOTH]
    add = [f"add/n=64/float32/library/{where}" for where in BOTH]
    assert sorted(found) == sorted(matmul + add)  # add has no such params: it stays as it is
    assert all(outcome["check"]["ok"] for outcome in found.values())
    assert found[matmul[0]]["flops"] == 2 * 16 * 64 * 8
    assert "k=8 m=16" in ended.stdout
    selection = json.loads((tmp_path / "r.json").read_text())["selection"]
    assert selection["params"] == {"matmul": [{"m": 16, "k": 8}, {"m": 32, "k": 8}, {"batch": 3}]}


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (["matmul=64", "1k"], {"add": [1024], "matmul": [64], "transpose": [1024]}),
        (["transpose=8", "matrix=64", "1k"], {"add": [1024], "matmul": [64], "transpose": [8]}),
        (["matmul=64", "matmul=32"], {"matmul": [32]}),
        (["1k", "matrix=auto", "transpose=8"], {"add": [1024], "transpose": [8]}),
    ],
)
def test_an_ops_own_sizes_win_wherever_they_stand(texts, sizes):
    assert selection.parse_sizes(texts, ["add", "matmul", "transpose"]) == sizes


def test_a_shape_that_does_not_fit_a_size_is_a_skip(gpubench, tmp_path):
    ended = gpubench("run", *FAKE, "--ops", "softmax", "--sizes", "1000,1024", "--params", "columns=256")
    assert ended.returncode == 0, ended.stderr
    found = outcomes(tmp_path)
    skipped = found["softmax/n=1000,columns=256/float32/library/resident-queued@fake:gpu"]
    assert (skipped["type"], skipped["reason"]) == ("skip", "shape")
    assert "256" in skipped["detail"]
    assert found["softmax/n=1024,columns=256/float32/library/resident-queued@fake:gpu"]["type"] == "measurement"


def test_the_search_follows_each_shape_by_itself(gpubench, tmp_path):
    words = "run --devices fake:cpu,fake:gpu --ops matmul --params m=4,64 --budget 5s --regimes resident-queued --skip matmul/n>=2k"
    ended = gpubench(*words.split(), "-o", "r.json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(gpubench("report", "r.json", "--format", "json").stdout)
    params = [found["params"] for found in report["break_even"]]
    assert sorted(params, key=str) == [{"m": 4}, {"m": 64}]


def test_a_named_implementation_that_is_missing_is_listed_and_the_default_is_no_wall_of_skips(
    gpubench, tmp_path
):
    base = ("run", *FAKE, "--ops", "add", "--sizes", "1k")
    assert gpubench(*base).returncode == 0
    assert [o["type"] for o in outcomes(tmp_path).values()] == ["measurement", "measurement"]
    assert gpubench(*base, "--implementations", "all").returncode == 0
    found = outcomes(tmp_path)
    skipped = found["add/n=1024/float32/tuned/resident-queued@fake:gpu"]
    assert (skipped["type"], skipped["reason"]) == ("skip", "no-implementation")
    assert "fake has no tuned implementation" in skipped["detail"]


def test_variants_that_a_backend_lacks_are_listed(gpubench, tmp_path):
    named = ("--variant", "naive,tiled", "--variant", "naive")
    ended = gpubench("run", *FAKE, "--ops", "matmul,add", "--sizes", "64", *named)
    assert ended.returncode == 0, ended.stderr
    skipped = {id: o["reason"] for id, o in outcomes(tmp_path).items() if o["type"] == "skip"}
    assert skipped == {
        f"matmul/n=64/float32/tuned-{name}/{where}": "no-implementation" for name in ("naive", "tiled") for where in BOTH
    }  # fmt: skip
    assert json.loads((tmp_path / "r.json").read_text())["selection"]["variants"] == ["naive", "tiled"]


def test_tf32_and_autotuning_are_written_down(gpubench, tmp_path):
    ended = gpubench(
        "run", *FAKE, *["--ops", "matmul", "--sizes", "64", "--allow-tf32", "--no-autotune", "--full"]
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["selection"]["variants"] == ["tf32"]
    assert result["settings"]["autotune"] is False
    assert not [id for id in outcomes(tmp_path) if "tf32" in id]  # a row of CuPy's alone
    (warning,) = [w for w in result["warnings"] if w["code"] == "no-tf32"]
    assert "adds no row" in warning["message"]
    assert "adds no row" in " ".join(ended.stdout.split())


def test_a_check_without_timing_times_no_candidates(gpubench, tmp_path):
    ended = gpubench("run", *FAKE, "--ops", "matmul", "--sizes", "64", "--check-only")
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["settings"]["autotune"] is False
    assert not [w for w in result["warnings"] if w["code"] == "no-tf32"], "nobody asked for it"


@pytest.mark.parametrize("autotune", [True, False])
def test_a_backend_is_told_whether_to_tune(monkeypatch, autotune):
    reported = []

    def open_it(device_id, threads=None, *, autotune=True):
        reported.append(autotune)
        raise BackendUnavailable("it need not open")

    monkeypatch.setattr(backends.load("fake"), "open", open_it)
    request = protocol.Open(
        id=1, device_id="fake:gpu", threads=None, seed=1, inputs="random", scratch="", since=0.0, autotune=autotune,
    )  # fmt: skip
    assert isinstance(worker.DeviceWorker(io.BytesIO()).answer(request), protocol.Refused)
    assert reported == [autotune]


@pytest.mark.parametrize(
    ("options", "sessions"),
    [("--budget 60s", 1), ("--budget 4m", 2), ("--budget 5m", 3), ("--budget 2h", 3), ("--budget 5m --sessions 1", 1),
     ("--budget 5m --quick", 1), ("--budget 5m --sizes 1k", 1), ("--budget 10s --sizes 1k", 1)],
)  # fmt: skip
def test_a_budget_that_holds_more_than_one_search_gets_more_sessions(gpubench, options, sessions):
    """A size that nobody named is known more closely by another session than by more samples of the same one."""
    ended = gpubench("run", "--ops", "add", "--devices", "fake:cpu,fake:gpu", "--dry-run", *options.split())
    assert ended.returncode == 0, ended.stderr
    assert f", {sessions} session{'s' if sessions > 1 else ''}\n" in ended.stdout


def test_page_locked_without_a_gpu_is_a_note(gpubench):
    words = "run --mode cpu --ops add --sizes 1k --sessions 1 --page-locked --no-save --full"
    ended = gpubench(*words.split())
    text = " ".join(ended.stdout.split())
    assert "--page-locked has no effect: no GPU is measured" in text
    assert "page-locked arrays" not in text
    assert "arrays page-locked" not in text
