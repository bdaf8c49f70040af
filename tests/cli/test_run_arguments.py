"""`run` refuses what makes no sense before anything starts: three lines, exit 2, no traceback, no file, no worker."""

import pytest

from gpubench import cli
from gpubench.base import processes
from gpubench.base.errors import ExitCode
from gpubench.cli.selection import parse_regimes


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run in an empty folder where starting a worker is an error; the three lines of the refusal."""

    def no_worker(*arguments, **options):
        raise AssertionError("a worker was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes.subprocess, "Popen", no_worker)

    def run(*arguments):
        code = cli.main(["run", "--devices", "fake:cpu", "--no-config", *arguments])
        out, err = capsys.readouterr()
        assert (code, out) == (ExitCode.USAGE, "")
        what, why, fix = err.splitlines()
        assert what.startswith("error: ")
        assert why.startswith("  why: ")
        assert fix.startswith("  fix: ")
        assert list(tmp_path.iterdir()) == []
        return err

    return run


@pytest.mark.parametrize(
    ("sizes", "reported"),
    [
        ("0", "at least 1"), ("-1", "'-1'"), ("-5:10", "'-5'"), ("99999999999999", "at most 2^40"),
        ("2^99", "at most 2^40"), ("1e400", "at most 2^40"), ("junk", "'junk'"), ("1k,,4k", "missing"),
        ("", "missing"), ("1k:", "missing"), ("4k:1k", "ascends"), ("1k:4k:x1", "at least 2"), ("1.3", "whole"),
        ("1T", "'1T'"), ("1k;4k", "'1k;4k'"), ("nan", "'nan'"), ("١٢", "'١٢'"), ("addd=1k", "did you mean 'add'?"),
        ("matmul=1k", "'matmul'"), ("add=0", "at least 1"),
    ],
)  # fmt: skip
def test_sizes(refused, sizes, reported):
    err = refused("--ops", "add", f"--sizes={sizes}")
    assert "--sizes" in err
    assert reported in err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ("--ops matmull", "did you mean 'matmul'?"), ("--ops activations", "did you mean 'activation'?"),
        ("--ops add --backends cuda", "the backend of cuda is 'cupy'"),
        ("--ops add --backends nunpy", "did you mean 'numpy'?"),
        ("--ops add --backends cuppy?", "did you mean 'cupy'?"),
        ("--ops add --devices wgup:0", "did you mean 'wgpu'?"), ("--ops add --devices numpy", "write numpy:0"),
        ("--ops add --dtypes float23", "did you mean 'float32'?"),
        ("--ops add --regimes residnet", "did you mean 'resident'?"),
        ("--ops add --regimes quued", "did you mean 'queued'?"),
        ("--ops add --regimes nosuch", "possible: waited, queued, 10 calls a copy, copied, streamed, in place, "),
        ("--ops add --implementations libary", "did you mean 'library'?"),
        ("--ops add --forms=libary", "did you mean 'library'?"),
        ("--ops add --format markdwon", "did you mean 'markdown'?"),
        ("--ops add --order interleaved", "did you mean 'interleave'?"),
        ("--ops add --inputs one", "did you mean 'ones'?"),
        ("--ops add --sections speedups", "did you mean 'speedup'?"), ("--ops add --time-unit hour", "time-unit"),
        ("--ops add --filter add/x", "--filter"), ("--ops add --skip add/1/2/3/4/5/6/7", "--skip"),
        ("--ops add --budget 5x", "--budget"), ("--ops add --budget 0", "--budget"),
        ("--ops add --budget=-1s", "--budget"), ("--ops add --case-timeout 0s", "--case-timeout"),
        ("--ops add --max-time soon", "--max-time"), ("--ops add --precision 0", "--precision"),
        ("--ops add --precision 200%", "--precision"), ("--ops add --calls 1", "--calls"),
        ("--ops add --threads 0", "--threads"), ("--ops matmul --params colums=3", "no op has a param 'colums'"),
        ("--ops matmul --params kk=3", "matmul takes m, k, batch"),
        ("--ops matmul --params batsh=3", "did you mean 'batch'?"),
        ("--ops add --params k=3", "nothing beside the size"),
        ("--ops matmul,softmax --params k=3,columns=4", "of its own"), ("--ops matmul --params n=3", "--sizes"),
        ("--ops matmul --params 3", "no name"), ("--ops matmul --params =3", "NAME=LIST"),
        ("--ops matmul --params k=3,k=4", "'k=4'"), ("--ops matmul --params k=", "a number is missing"),
        ("--ops matmul --params k=0", "at least 1"), ("--ops matmul --params k=few", "'few'"),
        ("--ops matmul --params matmull:k=3", "did you mean 'matmul'?"),
        ("--ops matmul --params k=3,matmul:m=4", "NAME=LIST"),
        ("--ops matmul --variant niave", "did you mean 'naive'?"),
        ("--ops launch --variant naive", "no named kernels"), ("--ops matmul --variant ,", "empty"),
        ("--ops matmul --variant tf32", "--allow-tf32"), ("--ops add --sessions 0", "--sessions"),
        ("--ops add --sessions many", "'many'"), ("--ops add --seed x", "--seed"),
        ("--ops add --min-samples 20 --max-samples 10", "--max-samples"),
        ("--ops add --quick --rigorous", "contradict"), ("--ops add --context novalue", "K=V"),
        ("--ops , --sizes 1k", "empty"), ("--ops add --sizess 1k", "did you mean '--sizes'?"),
        ("--ops add surplus", "surplus"), ("--ops add --format csv --columns nope", "--columns"),
    ],
)  # fmt: skip
def test_everything_else(refused, arguments, reported):
    assert reported in refused(*arguments.split())


@pytest.mark.parametrize(
    ("path", "reported"),
    [
        ("x.xyz", "suffix"), ("nowhere/r.json", "the folder"), ("nowhere/r.md", "the folder"),
        ("/proc/r.json", "cannot write"),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_written_is_found_before_measuring(refused, path, reported):
    err = refused("--ops", "add", "--sizes", "1k", "-o", path)
    assert "--output" in err
    assert reported in err


def test_every_output_is_tried_not_just_the_first(refused, tmp_path):
    assert "nowhere" in refused("--ops", "add", "--sizes", "1k", "-o", "r.json", "-o", "nowhere/r.csv")


def test_a_results_folder_that_cannot_be_made(refused):
    assert "--results-dir" in refused("--ops", "add", "--sizes", "1k", "--results-dir", "/proc/results")


@pytest.mark.parametrize("calls", [10, 20])
def test_calls_with_one_copy_are_named_by_their_number(calls):
    assert parse_regimes(f"{calls} calls a copy", calls) == ["transfer-once"]
