"""What makes no sense is refused before anything starts: three lines, the exit code, no traceback, no file, no worker."""

import os
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpubench import cli
from gpubench.base import processes
from gpubench.base.errors import ExitCode
from gpubench.result.store import save
from tests.cli.test_advise import RUN
from tests.unit.report.builders import curve, run_of
from tests.unit.report.sides import pair

FIXTURE = Path(__file__).parents[1] / "unit" / "store" / "fixtures" / "version-4.json"
GOOD = FIXTURE.read_bytes()
NO_FILE_HAS_THIS = "a" * 300  # like a folder that one may not enter, it cannot even be asked for
BAD_RESULTS = [
    (b"", "empty"), (GOOD[:-30], "truncated"), (b"speedup: 200x", "not JSON"), (b"\x1f\x8b\x08\x00", "gzip"), (b"[1, 2]", "gpubench-result"),
    (GOOD.replace(b'"schema_version": 4', b'"schema_version": 7', 1), "upgrade gpubench"),
    (GOOD.replace(b'"schema_version": 4', b'"schema_version": 1', 1), "measure again"),
    (b'{"name": "gpubench-detect", "schema_version": 1}', "gpubench-detect"),
    (GOOD.replace(b'"reason": "unavailable"', b'"reason": "melted"', 1), "Invalid enum value 'melted'"),
]  # fmt: skip
NO_THRESHOLDS = [
    (b"", "it is empty"), (b"{", "truncated"), (b"[]", "not a valid gpubench-noise"), (b'{"name": "gpubench-noise"}', "schema_version"),
    (b'{"name": "gpubench-result", "schema_version": 1}', "it is a gpubench-result document"),
    (b'{"name": "gpubench-noise", "schema_version": 3}', "upgrade gpubench"),
    (b'{"name": "gpubench-noise", "schema_version": 2}', "missing required field"),
]  # fmt: skip

SIZES = [
    ("0", "at least 1"), ("-1", "'-1'"), ("-5:10", "'-5'"), ("99999999999999", "at most 2^40"), ("2^99", "at most 2^40"),
    ("1e400", "at most 2^40"), ("junk", "'junk'"), ("1k,,4k", "missing"), ("", "missing"), ("1k:", "missing"), ("4k:1k", "ascends"),
    ("1k:4k:x1", "at least 2"), ("1.3", "whole"), ("1T", "'1T'"), ("'1k;4k'", "write 1k,4k"), ("'1k;'", "a number is 1000"), ("30x40", "rows of a square"), ("nan", "'nan'"), ("١٢", "'١٢'"),
    ("addd=1k", "did you mean 'add'?"), ("matmul=1k", "'matmul'"), ("add=0", "at least 1"),
]  # fmt: skip
OF_RUN = [
    *((f"--ops add --sizes={sizes}", part) for sizes, part in SIZES),
    ("--ops matmull", "did you mean 'matmul'?"), ("--ops activations", "did you mean 'activation'?"),
    ("--ops rooflin", "did you mean 'roofline'?"), ("--ops add --backends cuda", "did you mean 'cupy'?"),
    ("--ops add --backends nunpy", "did you mean 'numpy'?"), ("--ops add --backends cuppy?", "did you mean 'cupy'?"),
    ("--ops add --backends hybird", "did you mean 'hybrid'"), ("--ops add --devices wgup:0", "did you mean 'wgpu'?"),
    ("--ops add --devices hybird:cupy:0", "did you mean 'hybrid'"), ("--ops add --devices torch", "write --backends torch"), ("--ops add --devices cpu", "write --mode cpu"),
    ("--ops add --mode hybird", "did you mean 'hybrid'"), ("--ops add --mode gpu", "leave one of them out"),
    ("--ops add --dtypes float23", "did you mean 'float32'?"), ("--ops add --regimes residnet", "did you mean 'resident'?"),
    ("--ops add --regimes quued", "did you mean 'queued'?"),
    ("--ops add --regimes nosuch", "possible: waited, queued, 10 calls a copy, copied, streamed, in place, "),
    ("--ops add --implementations libary", "did you mean 'library'?"),
    ("--ops add --format markdwon", "did you mean 'markdown'?"), ("--ops add --order interleaved", "did you mean 'interleave'?"),
    ("--ops add --inputs one", "did you mean 'ones'?"), ("--ops add --sections speedups", "did you mean 'speedup'?"),
    ("--ops add --time-unit hour", "time-unit"), ("--ops add --filter add/x", "--filter"), ("--ops add --skip add/1/2/3/4/5/6/7", "--skip"),
    ("--ops add --budget 5x", "--budget"), ("--ops add --budget 0", "--budget"), ("--ops add --budget=-1s", "--budget"),
    ("--ops add --case-timeout 0s", "--case-timeout"), ("--ops add --max-time soon", "--max-time"),
    ("--ops add --precision 0", "--precision"), ("--ops add --precision 200%", "--precision"), ("--ops add --calls 1", "--calls"),
    ("--ops add --threads 0", "--threads"), *((f"{path}.py", "is no file") for path in (NO_FILE_HAS_THIS, f"{NO_FILE_HAS_THIS}/f", "loop", "loop.py/f")), ("loop.py", "fix: give the path"),
    ("--ops attention_append --params tokens=8", "attention_append takes width, heads, room"),
    ("--ops matmul --params colums=3", "no op has a param 'colums'"), ("--ops matmul --params kk=3", "matmul takes m, k, batch"),
    ("--ops matmul --params batsh=3", "did you mean 'batch'?"), ("--ops add --params k=3", "nothing beside the size"),
    ("--ops matmul,softmax --params k=3,columns=4", "of its own"), ("--ops matmul --params n=3", "--sizes"),
    ("--ops matmul --params 3", "no name"), ("--ops matmul --params =3", "NAME=LIST"), ("--ops matmul --params k=3,k=4", "'k=4'"),
    ("--ops matmul --params k=", "a number is missing"), ("--ops matmul --params k=0", "at least 1"),
    ("--ops matmul --params k=few", "'few'"), ("--ops matmul --params matmull:k=3", "did you mean 'matmul'?"),
    ("--ops matmul --params k=3,matmul:m=4", "NAME=LIST"), ("--ops matmul --variant niave", "did you mean 'naive'?"),
    ("--ops launch --variant naive", "no named kernels"), ("--ops matmul --variant ,", "empty"),
    ("--ops matmul --variant tf32", "--allow-tf32"), ("--ops add --sessions 0", "--sessions"), ("--ops add --sessions many", "'many'"),
    ("--ops add --seed x", "--seed"), ("--ops add --seed 9223372036854775808", "too large"), ("--ops add --min-samples 20 --max-samples 10", "--max-samples"),
    ("--ops add --quick --rigorous", "contradict"), ("--ops add --context novalue", "K=V"), ("--ops , --sizes 1k", "empty"),
    ("--ops add --sizess 1k", "did you mean '--sizes'?"), ("--ops add surplus", "surplus"), ("--ops add mul", "write --ops add,mul"),
    ("--sizes 1k 4k", "write --sizes 1k,4k"), ("--sizes 1k a.py black", "write a.py:black"), ("a.py add", "write --ops add"), ("relo", "'relu'"),
    ("--ops add --format csv --columns nope", "--columns"),
    ("--ops add --label '\udcff'", "valid UTF-8"), ("trade.py --cluster local", "a function of your own"), ("--ops add --summary", "GITHUB_STEP_SUMMARY is not set"), ("--ops add --energy", "--sizes 1M"),
    ("--ops add --scaling strong --ranks 1,2", "two GPUs or more"), ("--ops add --sizes 1k --append r.md", ".json"), ("--ops add --sizes 1k --append -", ".json"),
    # An output that cannot be written is found before measuring, and every one is tried.
    ("--ops add --sizes 1k -o x.xyz", "suffix"), ("--ops add --sizes 1k -o nowhere/r.json", "the folder"),
    ("--ops add --sizes 1k -o nowhere/r.md", "the folder"), ("--ops add --sizes 1k -o /proc/r.json", "cannot write"),
    ("--ops add --sizes 1k -o r.json -o nowhere/r.csv", "nowhere"), ("--ops add --sizes 1k --results-dir /proc/results", "--results-dir"),
    (f"--ops add --sizes 1k --results-dir {NO_FILE_HAS_THIS}", "File name too long"),
]  # fmt: skip
USAGE = [
    *((f"run --devices fake:cpu --no-config {words}", part) for words, part in OF_RUN),
    ("rnu", "did you mean 'run'?"), ("options.py", "write gpubench run options.py"), ("help run", "did you mean '--help'?"),
    ("run --cpu", "write --mode cpu"), ("report --html", "write --format html"), ("run --zzz", "gpubench run --help"),
    ("ops 'add mul'", "write add,mul"), ("xyzzy", "gpubench --help"), ("bench", "did you mean 'run'?"), ("run --mode both", "did you mean 'hybrid'?"), ("run --backends GPU", "write --mode gpu"), ("run loop.name", "options.py:NAME"), ("run trade.price", "write trade.py:price"), ("check a b --ops add", "follow a --"), ("--halp", "did you mean '--help'?"),
    ("ops matmull", "did you mean 'matmul'? `gpubench ops` lists them all"), ("ops matmull", "; similar: matmul, mul"),
    ("ops --fromat json", "did you mean '--format'?"), ("ops --format jsno", "did you mean 'json'?"),
    ("ops --format", "requires an argument"), ("ops --format", "gpubench ops --help"), ("ops --color blue", "auto, always, never"),
    ("ops --json --format markdown", "--json and --format contradict each other"),
    ("schema report surplus", "unexpected extra argument"), ("schema gpubench-resutl", "did you mean 'result'?"), ("schema run", "did you mean 'result'?"),
    ("schema --verbos", "did you mean '--verbose'?"),
    ("report -o a.md --output=b.md", "more than once"), ("compare a.json b.json -o a.md -o b.html", "more than once"),
    ("report good.json --format tabel", "did you mean 'table'?"), *((f"{words} -o good.json", "is a file that is read") for words in ("report ./good.json", "compare r.json new=./good.json", "noise good.json", "merge r.json good.json", "run --like good.json", "report r.json --claims good.json")), ("report good.json -o no/such/folder/report.md", "does not exist"),
    ("report good.json --format csv -o .", "folder"), (f"report good.json --format csv -o {os.devnull}", "regular file"),
    (f"report good.json --plots {NO_FILE_HAS_THIS}", "File name too long"), ("report good.json -o report.xyz", "name the format with --format"),
    ("report good.json --columns copid", "--columns: there is no 'copid'"), ("report good.json --sections anser", "did you mean 'answer'?"),
    ("report good.json --filter matmul/4096", "is no size"), ("report good.json --filter conv2d", "leave no case"),
    ("compare base.json", "NEW"), ("compare - -", "more than once"), ("schema run", "did you mean 'result'?"),
    *((f"compare base.json new.json {words}", part) for words, part in [
        ("--fail-on slow", "slower"), ("--threshold x", "--threshold"), ("--threshold matmul/n=128", "--threshold"),
        ("--threshold softmax=5", "'softmax' selects no case"), ("--ignore *@cupy", "'*@cupy' selects no case"), ("--ignore a//b", "not a selector"),
        ("--min-speedup softmax=2", "'softmax' selects no case"), ("--min-speedup softmax", "--min-speedup"),
        ("--alpha 2", "--alpha"), ("--alpha 0", "--alpha"), ("--alpha 0.51", "--alpha"), ("--alpha nan", "--alpha"), ("--format jsn", "did you mean 'json'?"),
        ("-o x.pdf", "suffix"), ("-o no/x.md", "no/x.md"), ("--time-unit h", "--time-unit: there is no")]),
    ("report r.json --marker 'a --> b' --format markdown", "--marker"), ("report r.json --max-bytes 10", "--max-bytes"),
    ("report r.json --annotations allways", "did you mean 'always'?"), ("report r.json --min-speedup softmax=2", "selects no case"),
    ("report r.json --min-speedup *@numpy=2", "selects no case that has a speedup"), ("report r.json --fail-on slower", "--fail-on"),
    *((f"report r.json '--min-speedup={text}'", "--min-speedup") for text in (
        "", "=", "matmul", "matmul=", "matmul=x", "matmul=0", "matmul=-1", "matmul=inf", "matmul=nan", "/=2", "a//b=2")),
    *((f"report r.json run.json --format {name}", "takes one result file, not 2") for name in (
        "gha-smaller", "gha-bigger", "bmf", "pytest-benchmark", "hyperfine", "google-benchmark")),
    ("report r.json --format JSONL", "did you mean 'jsonl'?"), ("report r.json --format csv --columns tim_s", "did you mean 'time_s'?"),
    ("report r.json --sort tme", "did you mean 'time'?"), ("report r.json --sort=--n", "did you mean 'n'?"),
    ("report r.json --summary", "GITHUB_STEP_SUMMARY is not set"), ("compare base.json new.json --summary", "GITHUB_STEP_SUMMARY is not set"),
    ("noise quiet.json --ops add", "--ops"), ("noise quiet.json --quick", "--quick"), ("noise quiet.json --sessions 4", "--sessions"),
    ("noise quiet.json --filter relu", "no case"), ("noise quiet.json --format csv", "--format"),
    ("noise quiet.json -o no/noise.json", "no/noise.json"), ("noise quiet.json -o noise.md", "noise.md"), ("noise quiet.json --seed 1", "--seed"), ("noise quiet.json --no-save", "--no-save"),
    ("advise matmul 2k", "gpubench advise matmul --size 2k"), ("advise matmul --from run.json", "--size"),
    *((f"advise {words} --from run.json", part) for words, part in [
        ("matmull --size 1024", "did you mean 'matmul'?"), ("matmul --size 1k,2k", "more than one size"),
        ("matmul --size many", "--size: 'many' at position 1"), ("matmul --size 1k --dtype flot32", "did you mean 'float32'?"),
        ("matmul --size 1k --data hots", "did you mean 'host'?"), ("matmul --size 1k --format jsn", "did you mean 'json'?"),
        ("matmul --size 1k --calls 0", "--calls"), ("matmul --size 1k --params columns=3", "matmul takes m, k, batch"),
        ("matmul --size 1k --params m=3,4", "more than one shape"), ("matmul --size 1k --queued", "--queued does not go with --data host"),
        ("matmul --size 1k --data device --calls 2", "--calls does not go")]),
]  # fmt: skip
INPUT = [
    *((f"report bad-{n}.json", f"bad-{n}.json") for n in range(len(BAD_RESULTS))),
    *((f"report bad-{n}.json", part) for n, (_, part) in enumerate(BAD_RESULTS)),
    *((f"compare base.json new.json --thresholds noise-{n}.json", part) for n, (_, part) in enumerate(NO_THRESHOLDS)),
    ("report absent.json", "no such file"), ("report empty", "folder"), ("report", "gpubench run"), ("report good.json --baseline tpu:0", "no measured case matches"),
    ("report r.json --baseline tpu:0", "library@numpy:0"),
    ("compare base.json absent.json", "absent.json cannot be read"), ("compare base.json all", "for example all/m/20260101T000000Z-aaaaaaaa.json"),
    ("noise few.json", "10 quiet sessions"), ("noise absent.json", "absent.json"), ("noise quiet.json --sessions 6", "12 quiet sessions"),
    ("advise matmul --size 1k", "run `gpubench run` first"), ("advise relu --size 1k --from run.json", "no result of relu"),
    ("advise matmul --size 1k --params m=3 --from run.json", "no result of matmul float32 m=3"),
    ("advise matmul --size 1k --dtype f16 --from run.json", "no result of matmul float16"), ("advise matmul --size 1k --from missing.json", "there is no such file"),
    (f"report {NO_FILE_HAS_THIS}", ""), (f"compare {NO_FILE_HAS_THIS}=gone.json new.json", ""), (f"noise {NO_FILE_HAS_THIS}", ""),
    (f"advise matmul --size 64 --from {NO_FILE_HAS_THIS}", ""), (f"merge {NO_FILE_HAS_THIS} -o all.json", ""),
    (f"report --results-dir {NO_FILE_HAS_THIS}", "no result file"), (f"advise matmul --size 64 --results-dir {NO_FILE_HAS_THIS}", "no result file"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of all kinds, and files that are none; no test writes there."""
    folder = tmp_path_factory.mktemp("files")
    base, new = pair(sigma=0.004)
    quiet, _ = pair(k=10, sigma=0.004)
    wins = run_of(curve({64: 0.5, 256: 4.0}))
    results = {"run": RUN, "base": base, "few": base, "new": new, "quiet": quiet, "r": wins}
    for name, run in results.items():
        save(run, folder / f"{name}.json")
    files = {f"bad-{n}": content for n, (content, _) in enumerate(BAD_RESULTS)}
    files |= {f"noise-{n}": content for n, (content, _) in enumerate(NO_THRESHOLDS)}
    for name, content in (files | {"good": GOOD}).items():
        (folder / f"{name}.json").write_bytes(content)
    (
        (folder / "all" / "m").mkdir(parents=True),
        save(base, folder / "all" / "m" / "20260101T000000Z-aaaaaaaa.json"),
    )
    (folder / "empty").mkdir(), (folder / "loop.py").symlink_to("loop.py"), (folder / "trade.py").touch()
    return folder


@pytest.mark.parametrize(
    ("words", "code", "part"), [(words, code, part) for code, rows in ((2, USAGE), (4, INPUT)) for words, part in rows]
)  # fmt: skip
def test_refusals(folder, words, code, part, monkeypatch, capsys):
    before = sorted(folder.iterdir())
    monkeypatch.chdir(folder)
    monkeypatch.setattr(processes.subprocess, "Popen", Mock(side_effect=AssertionError("a worker was started")))
    assert cli.main(shlex.split(words)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[:7] for line in err.splitlines()] == ["error: ", "  why: ", "  fix: "]
    assert part in err
    assert sorted(folder.iterdir()) == before


@pytest.mark.check
@pytest.mark.parametrize(("words", "code", "part"), [
    ("rnu", ExitCode.USAGE, "'rnu'"), ("report absent.json", ExitCode.INPUT, "no such file"),
    ("run --devices fake:cpu --ops add --sizes 1k --threads 100000", ExitCode.USAGE, "CPUs that may be used"),
    ("run --devices fake:cpu --ops add --sizes 1k --min-speedup matmul=2", ExitCode.USAGE, "matmul=2"),
    ("run --devices fake:cpu --ops add --sizes 1k --filter mul", ExitCode.USAGE, "no planned case matches"),
    ("run --devices group:numpy:2 --ops add --sizes 1k", ExitCode.USAGE, "a device group runs collectives"),
    ("run --devices fake:gpu --ops add --sizes 1k --baseline cupy:0", ExitCode.USAGE, "choose one of: library@fake:gpu"),
    ("detect --results none.json", ExitCode.INPUT, "none.json"), (f"detect --results {NO_FILE_HAS_THIS}", ExitCode.INPUT, ""),
])  # fmt: skip
def test_a_refusal_of_the_real_program(gpubench, tmp_path, words, code, part):
    (tmp_path / "none.json").write_text("{}")
    ended = gpubench(*words.split())
    assert (ended.returncode, ended.stdout) == (code, "")
    assert [line[:7] for line in ended.stderr.splitlines()] == ["error: ", "  why: ", "  fix: "]
    assert part in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["none.json"]


def test_a_folder_is_reported_without_what_is_no_result(in_process, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "good.json").write_bytes(GOOD)
    (tmp_path / "r" / "package.json").write_text('{"name": "another program"}')
    alone = in_process("report", "good.json", cwd=tmp_path / "r").stdout.splitlines()
    ended = in_process("report", "r")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (ExitCode.OK, alone[0])
    assert ended.stderr.startswith("left out: r/package.json cannot be used: ")
    (tmp_path / "r" / "half.json").write_bytes(GOOD[:-30])
    ended = in_process("report", "r", "--quiet")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (ExitCode.INPUT, alone[0])
    why = "it ends in the middle: the JSON is truncated"
    assert ended.stderr.splitlines() == [f"left out: r/half.json cannot be used: {why}"]


def test_the_newest_result_is_found_beside_a_configuration_that_cannot_be_looked_at(in_process, tmp_path, home):
    own = home / ".local" / "share" / "gpubench" / "results" / "x.json"
    for path in (tmp_path / "results" / "m" / "20260101T000000Z-aaaaaaaa.json", own):
        path.parent.mkdir(parents=True)
        path.write_bytes(GOOD)
        ended = in_process("report", "--format", "plain", env={"XDG_CONFIG_HOME": f"/{NO_FILE_HAS_THIS}"})
        assert ended.returncode == ExitCode.OK, ended.stderr
        path.unlink()
