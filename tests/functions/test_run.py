"""`gpubench run options.py`: functions of a user's own and the examples, from the file to the answer."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gpubench.functions import declare
from gpubench.functions.describe import CodeSource
from gpubench.functions.loading import bind_library, load_source
from gpubench.functions.trial import TrialRequest, describe
from tests.forking import is_alive

BRIEF = "--quick --sessions 1 --max-samples 4 --max-time 20ms --no-autotune --no-progress".split()
ROOT = Path(__file__).parents[2]


def measure(gpubench, *arguments, status=0):
    gpubench("run", *arguments, *BRIEF, "-o", "r.json", status=status)
    return reported(gpubench)


def reported(gpubench):
    return json.loads(gpubench("report", "r.json", "--format", "json").stdout)


def write(folder, text, name="mine.py"):
    (folder / name).write_text("import gpubench\nimport numpy as np\n\n\n" + text, encoding="utf-8")


def times(report):
    return {case["id"] for case in report["cases"] if case["reason"] is None}


def said(report, code):
    return " | ".join(warning["message"] for warning in report["warnings"] if warning["code"] == code)


def documented(folder):
    """Write the function of the page, as it stands there."""
    text = (ROOT / "docs" / "your-own-function.md").read_text(encoding="utf-8")
    code = text.partition("# Your own function\n")[2].split("```python\n")[1].split("```")[0]
    (folder / "options.py").write_text(code, encoding="utf-8")


OF_NUMPY = """
from numpy import exp
from numpy.linalg import norm
import functools
import pandas
import scipy.special
from scipy.special import erf
@gpubench.function
def twice(x): return np.add(x, x)
def centred(x, *, times=2): return times * x - twice(np.mean(x))
def ratio(x, lib=np): return np.sqrt(4) * lib.abs(centred(x)) / norm(np.arange(4, dtype=x.dtype))
def falling(x): return 2 * exp(-x) + erf(x) - scipy.special.erf(2 * x)
def spread(x): return x / x.std()
def made(lib):
    def again(x, depth): return x if depth == 0 else lib.tanh(again(x, depth - 1))
    return lambda x: again(x, 2)
nested = made(np)
class Scale:
    def __call__(self, x): return np.negative(x)
scale = Scale()
def means(x): return pandas.Series(x).rolling(5).mean()
def scaled(x, by): return np.abs(x) * by
tripled = functools.partial(scaled, by=3.0)
def bare(call): return lambda *inputs: call(*inputs)
again = bare(falling)
"""
ON_PYTORCH = """
import torch
weights = torch.nn.Linear(256, 4).weight.detach().numpy()
@gpubench.function
def layer(xp, x): return xp.asarray(weights) @ x
@gpubench.function
def width(xp, x): return xp.ptp(x)
def slope(xp, x):
    if xp is np:
        return 2 * x
    x = x.detach().requires_grad_()
    (x * x).sum().backward()
    return x.grad
recorded = gpubench.function(slope, gradients=True)
plain = gpubench.function(slope)
"""


@pytest.mark.torch
@pytest.mark.vulkan
def test_the_page_runs_as_it_stands_and_what_a_library_lacks_is_named(gpubench, tmp_path):
    """Run the page's file beside mine.py, which needs what PyTorch lacks, and functions as they are written for NumPy.
    test_python.py runs the front page's script."""
    documented(tmp_path)
    write(tmp_path, ON_PYTORCH)
    write(tmp_path, OF_NUMPY, "plain.py")
    compiled = ["falling", "nested", "scale", "erf", "tripled", "again"]
    chosen = [f"plain.py:{name}" for name in ("ratio", ":spread", "means", *compiled)]
    report = measure(
        gpubench,
        "options.py",
        "mine.py",
        *chosen,
        *"--sizes 256 --backends numpy,torch,wgpu --allow-software".split(),
    )
    assert times(report) >= {f"options.{case}" for case in (
            "call_price/n=256/float32/library/resident@numpy:0", "call_price/n=256/float32/tuned/resident@numpy:0",
            "call_price/n=256/float32/library/resident@torch:cpu", "pairwise/n=256/float32/library/resident@torch:cpu",
            "call_price/n=256/float32/tuned/transfer-always@wgpu:0")}  # fmt: skip
    assert times(report) >= {f"plain.{case}" for case in (
        "ratio/n=256/float32/library/resident@torch:cpu", *(f"{name}/n=256/float32/tuned/transfer-always@wgpu:0" for name in compiled))}  # fmt: skip
    assert not [case for case in times(report) if case.startswith(("plain.centred", "plain.twice"))], (
        "they were not named"
    )
    assert "measured as written: pairwise (takes other inputs" in said(report, "not-compiled")
    assert said(report, "widens").startswith("ratio: the results are float64")
    details = {case["id"].split("/")[0].rpartition(".")[2]: case["detail"]
               for case in report["cases"] if case["id"].endswith("/library/resident@torch:cpu")}  # fmt: skip
    assert (details["width"], details["recorded"], details["layer"]) == ("torch has no ptp", None, None)
    assert details["means"] == "it computes with NumPy, not with the array library"
    kernels = {
        case["id"].split("/")[0]: case["kernel"]
        for case in report["cases"]
        if case["id"].endswith("/library/resident@numpy:0")
    }
    assert (kernels["plain.means"], kernels["plain.ratio"]) == ("pandas", None)
    assert details["spread"].startswith("PyTorch means another result by this text of NumPy")
    assert "does not require grad" in details["plain"]
    assert details["plain"].endswith("say gradients=True")


@pytest.mark.torch
@pytest.mark.parametrize("text", [
    "x * np.sqrt(2) + np.log(np.pi)", "np.maximum(x, 0) ** 2", "np.power(2, x)", "np.mod(x, 0.3)",
    "np.fabs(np.rint(4 * x)) + np.round(x, 2)", "np.cumsum(m)", "np.cumsum(m, axis=1)", "np.cumprod(x, 0)",
    "np.std(x, ddof=1) + np.var(m, axis=0)", "np.median(x) - np.percentile(m, 90, axis=1)", "np.transpose(m)",
    "np.transpose(m[None], (1, 0, 2))", "np.squeeze(m[:, None])", "np.squeeze(m[None], 0)",
    "np.shape(m)[1] * np.ndim(x) * x / np.size(m)", "np.array([1.0, 2.0], dtype=x.dtype) * m[:, :2]",
    "np.float32(0.1) * x * np.int64(2) * (x.dtype == np.float32) * (x.dtype != np.float64)", "np.float32(x) - np.float64(0.1)",
    "np.zeros(64, np.float32) + np.ones(64, dtype='f4') + np.full((64,), 2, dtype=float) + np.zeros_like(x, dtype=np.float32) + np.arange(64)",
    "np.sum(x, dtype=np.float64) + np.array([1, 2], float).sum()", "m.astype(int) + m.astype(bool) * m.astype('f8')",
    "np.copy(x).astype(np.float64) + x.copy().astype('float32')", "np.ascontiguousarray(m.T) > (x * 9).astype(int)[0]",
])  # fmt: skip
def test_names_of_numpy_mean_the_same_to_pytorch(text):
    import torch

    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in (64, (6, 5))]
    program = eval(f"lambda x, m: {text}", {"np": np})
    got = bind_library(declare.UserFunction(program), torch)(*map(torch.from_numpy, inputs))
    np.testing.assert_allclose(np.asarray(got), program(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.torch
def test_a_name_that_means_something_else_to_pytorch_is_found_at_a_large_size_too(gpubench, tmp_path):
    write(tmp_path, OF_NUMPY)  # of 2^20 numbers, n - 1 in place of n is no difference
    report = measure(gpubench, *"mine.py:spread --sizes 64,1M --devices numpy:0,torch:cpu".split())
    assert {case.rpartition("@")[2] for case in times(report)} == {"numpy:0"}


@pytest.mark.cuda
def test_the_page_runs_with_cupy(gpubench, tmp_path):
    documented(tmp_path)
    write(tmp_path, OF_NUMPY, "plain.py")
    ids = times(measure(gpubench, "options.py", "plain.py:ratio", "plain.py:falling", "--sizes", "256",
                        "--backends", "numpy,cupy"))  # fmt: skip
    assert {
        f"plain.{name}/n=256/float32/library/resident-waited@cupy:0" for name in ("ratio", "falling")
    } <= ids
    for implementation in ("library", "tuned"):
        assert f"options.call_price/n=256/float32/{implementation}/transfer-always@cupy:0" in ids
    assert "options.pairwise/n=256/float32/library/resident-waited@cupy:0" in ids


PROGRAMS = """
import torch
import torch.nn as nn
drawn = nn.Linear(256, 4)  # the weights are drawn anew in each process
def gradient(x):
    weights = drawn.weight.to(x.device).detach().requires_grad_()
    (x @ weights.T).square().sum().backward()
    return weights.grad
step = gpubench.pair(cpu=gradient, gpu=gradient, inputs=lambda n: torch.ones(n, 256))
def copied(x):
    import cupy
    return cupy.sort(x)
own = gpubench.pair(cpu=np.sort, gpu=copied)
"""


@pytest.mark.cuda
@pytest.mark.torch
def test_gpu_programs_train_and_are_measured_by_their_library(gpubench, tmp_path):
    write(tmp_path, PROGRAMS)
    ids = times(measure(gpubench, "mine.py", "--sizes", "256", "--backends", "numpy,cupy,torch"))
    measured = {
        f"mine.{case}/n=256/float32/library/resident-waited@{device}:0"
        for case, device in (("step", "torch:cuda"), ("own", "cupy"))
    }
    assert {id for id in ids if "resident-waited" in id} == measured


BAD = """
@gpubench.function
def crashes(xp, x):
    import os
    os.abort()
@gpubench.function
def small(xp, x):
    if len(x) > 300:
        raise ValueError("too many")
    print("called")
    return x[::2].sum(), {"most": x.max()}
@gpubench.function
def twice(xp, x): return x
@gpubench.function
def twice(xp, x): return x + 1
add = gpubench.function(lambda xp, a, b: a + b)
exits = gpubench.function(lambda xp, x: exit(3))
"""
OTHERS = """
state = []
def annotated(x: int): ...
assert annotated.__annotations__ == {"x": int}  # no module of gpubench says how the file is compiled
@gpubench.function
def counts(xp, x):  # global state that its result does not show
    state.append(1)
    return x.sum()
@gpubench.function(backends="torch")
def elsewhere(xp, x): return x.sum()
@gpubench.function(inputs=lambda rng, n: [rng.random(n, dtype="float32"), np.float32(rng.random())])
def by_scalar(xp, x, factor): return xp.sort(x) * factor
@gpubench.function
def lossy(xp, x): return xp.sort((x + 1e6) - 1e6)
@gpubench.function(dtypes="float64")
def wide(xp, x):
    assert x.dtype == np.float64
    return x.sum()
@gpubench.function
def alone(x): return np.tanh(x)
import dataclasses
import sys
import pandas
assert sys.argv[1:] == []  # a parser of arguments is content
def table(rng, n):
    values = np.where(np.arange(n) % 3, rng.random(n), np.nan)
    texts = np.array(["a", None])[np.arange(n) % 2]
    return [pandas.DataFrame({"text": texts, "day": pandas.to_datetime(values), "value": values})]
def order(table): return table.sort_values("value")
missing = gpubench.pair(cpu=order, gpu=order, inputs=table)
Numbers = dataclasses.make_dataclass("Numbers", ["all"])
numbers = gpubench.function(lambda xp, x: Numbers([x.sum(), len(x), x.max()]))
odder = gpubench.function(lambda xp, x: {"an": object()}, same=lambda a, b: list(a) == list(b))
lonely = gpubench.function(lambda xp: xp.arange(9.0))
endless = gpubench.function(lambda xp, x: xp.sort(x / 0))
hidden = gpubench.function(lambda xp, x: np.ma.masked_greater(x, 1))
class Scale:
    def __init__(self): self.tolerance, self.make = "hard", None
    def __call__(self, x): return 2 * x
    @gpubench.function
    def held(self, xp, x): return x
called = gpubench.pair(cpu=Scale(), gpu=Scale())
ordered = gpubench.function(
    lambda xp, x: int(x.flags.f_contiguous), inputs=lambda rng, n, k=3: [np.asfortranarray(rng.random((n, k)))])
of_n = gpubench.function(lambda xp, x: x.sum(), inputs=lambda size: np.random.random(size))  # seeded for it
swapped = gpubench.function(lambda xp, x: x.max(), inputs=lambda n=9, rng=None: [rng.random(n)])
levels = gpubench.function(lambda xp, x: xp.unique(x), inputs=lambda rng, n: [rng.integers(0, 9, n) * np.float32(1)])
codes = gpubench.function(lambda xp, i: xp.unique(i) / 2, inputs=lambda rng, n: [rng.integers(0, 9, n)])
"""


def test_what_is_wrong_with_a_function_costs_it_alone(gpubench, tmp_path):
    write(tmp_path, BAD + OTHERS)
    report = measure(gpubench, "mine.py", "--sizes", "256,512", "--backends", "numpy")
    sound = "add counts by_scalar wide alone missing numbers endless lonely hidden called ordered of_n swapped levels codes odder".split()
    both = {f"mine.{name}/n={n}" for name in sound for n in (256, 512)}
    measured = {case.partition("/float")[0] for case in times(report)}
    assert measured >= {"mine.small/n=256", *both}
    assert {case for case in times(report) if "float64" in case} == {
        f"mine.wide/n={n}/float64/library/resident@numpy:0" for n in (256, 512)}  # fmt: skip
    wrong = said(report, "bad-function")
    reasons = {
        "crashes": "its first call ended the process, which was ended by SIGABRT", "exits": "it raises SystemExit: 3",
        "twice": "two functions are called twice", "held": "it has no name in the file"}  # fmt: skip
    assert not [name for name, why in reasons.items() if f"{name} is left out: {why}" not in wrong]
    assert "lonely takes no inputs (arguments with" in said(report, "own-sizes")
    details = {case["id"]: case["detail"] for case in report["cases"]}
    rows = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    answers = {row["id"].split("/")[0]: row.get("answer") for row in rows}
    assert [answers[f"mine.{name}"] for name in ("lonely", "ordered", "odder")] == [[*range(9)], [1], []]

    def detail(name, n=256):
        return details[f"mine.{name}/n={n}/float32/library/resident@numpy:0"]

    assert detail("small", 512) == "it raises ValueError: too many (mine.py, line 13)"
    assert detail("elsewhere") == "mine.elsewhere is declared for torch alone"
    assert detail("lossy").startswith("in float32 NumPy's own result is off by")


@pytest.mark.parametrize(("text", "words", "why"), [
    ("x = undefined\n", "cannot be imported", "line 5: NameError"),
    ("def f(\n", "cannot be imported", "SyntaxError"), ("x = 1\n", "declares no function", "and it has no functions"),
    ("def f(x): return x\ndef _g(x): return x\n", "declares no function", "none of its functions f\n  fix: name the one to measure"),
    ("@gpubench.function\nasync def f(xp, x):\n    return x\n", "cannot be imported", "f is async"),
    ("from functools import partial\ndef f(xp, x): yield x\ngpubench.function(partial(f))\n", "cannot be imported", "is a generator"),
    ("@gpubench.function(tolerence=1)\ndef f(xp, x):\n    return x\n", "cannot be imported", "tolerence"),
    ("import no_such\n", "cannot be imported", "or import it inside of the function"), ("from . import other\n", "cannot be imported", ".mine:NAME"),
    ("fs = [gpubench.function(lambda xp, x: x)]\n", "no function to measure", "lambda is left out: it has no name in the file"),
    ("raise SystemExit(3)\n", "cannot be imported", "sys.exit(3)"),
    ("@gpubench.function\ndef f(xp, x):\n    return x.foo\n", "no function to measure", "no attribute 'foo'")])  # fmt: skip
@pytest.mark.usefixtures("forked_children")
def test_a_file_that_cannot_be_used(in_process, tmp_path, text, words, why):
    write(tmp_path, text)
    ended = in_process("run", "mine.py", "--sizes", "64")
    assert (ended.returncode, words in ended.stderr, why in ended.stderr) == (2, True, True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_names_that_nothing_has(in_process, tmp_path):
    write(tmp_path, "@gpubench.function\ndef pairwise(xp, x):\n    return x\n")
    assert "did you mean 'pairwise'?" in in_process("run", "mine.py:pairwis").stderr
    assert "did you mean 'mine.py'?" in in_process("run", "mime.py").stderr
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "folded.py")
    assert "did you mean" not in in_process("run", "folder.py").stderr
    for name in ("mine.py", "mine.txt"):
        write(tmp_path / "folder.py", "", name)
    assert "a file of functions ends in .py" in in_process("run", "folder.py/mine.txt").stderr
    assert "two files are called mine" in in_process("run", "mine.py", "folder.py/mine.py").stderr
    write(tmp_path, "", "\udcff.py")
    assert "not valid UTF-8" in in_process("run", "\udcff.py", status=2).stderr
    hints = {"matmul": "--ops matmul", "mine": "mine.py\n", "mine.py pairwise": "mine.py:pairwise", "mine.py:a,b": f"{tmp_path}/mine.py:a "}  # fmt: skip
    assert "a blank separates" in in_process("run", "mine.py:a,mine.py:b").stderr
    assert "atleast_1d" not in in_process("run", "numpy:zeross").stderr, "it has hundreds"
    for words, hint in hints.items():
        assert f"write {hint}" in in_process("run", *words.split()).stderr


PAIRS = """
import multiprocessing, os, random, subprocess
def make(rng, n): return [{"key": rng.integers(0, 50, n), "value": rng.random(n)}]
def sums(table): return [table["value"][table["key"] == key].sum() for key in range(50)]
def sums_at_once(columns):
    keys, values = columns
    return np.bincount(keys, weights=values, minlength=50)
def columns(table): return table["key"], table["value"]
def start(columns): return {"sums": sums_at_once(columns), "ready": False}
def finish(result): result["ready"] = True
def fetch(result):
    if not result["ready"]:
        raise RuntimeError("nobody waited")
    return result["sums"]
groups = gpubench.pair(cpu=sums, gpu=sums_at_once, inputs=make, to_gpu=columns)
waits = gpubench.pair(cpu=sums, gpu=start, inputs=make, to_gpu=columns, to_cpu=fetch, wait=finish)
hurries = gpubench.pair(cpu=sums, gpu=start, inputs=make, to_gpu=columns, to_cpu=fetch)
def by_processes(x):  # forked while the worker waits for its next request
    with multiprocessing.Pool(1) as pool:
        return np.array(pool.map(abs, x[:4].tolist()))
def by_a_program(x):  # that reads what stands in the standard input
    return x[:4] + len(subprocess.run(["cat"], stdout=subprocess.PIPE).stdout)
forks = gpubench.pair(cpu=by_processes, gpu=by_a_program)
def doubles(x):
    return x + (os.fork() is None)
runs_on = gpubench.pair(cpu=doubles, gpu=lambda x: x)
moves_itself = gpubench.pair(cpu=lambda x: x + 1, gpu=lambda x: x + 1, to_gpu=lambda x: x)
weight = np.random.default_rng().random() + np.random.rand() + random.random()  # drawn by each process that imports
weighs = gpubench.pair(cpu=lambda x: x * weight, gpu=lambda x: x * weight)
wrong = gpubench.pair(cpu=sums, gpu=lambda c: sums_at_once(c) * 1.001, inputs=make, to_gpu=columns)
refused = gpubench.pair(cpu=sums, gpu=sums_at_once, inputs=make, to_gpu=columns, same=lambda a, b: False)
shape = gpubench.pair(cpu=lambda x: x + 1, gpu=lambda x: (x + 1)[:, None])
changes = gpubench.pair(cpu=lambda x: x + 1, gpu=lambda x: x.__iadd__(1))
texts = gpubench.pair(cpu=lambda x: (x > 0).astype("U5"), gpu=lambda x: (x < 0).astype("U5"))
dates = gpubench.pair(cpu=lambda x: (x * 0 + 1).astype("datetime64[D]"), gpu=lambda x: (x * 0 + 2).astype("datetime64[D]"))
"""


def test_pairs_of_any_objects(gpubench, tmp_path):
    write(tmp_path, PAIRS)
    report = measure(gpubench, "mine.py", "--sizes", "256", "--devices", "numpy:0,fake:gpu", status=1)
    details = {case["id"]: case["detail"] or "" for case in report["cases"]}

    def at(name, regime):
        return details[f"mine.{name}/n=256/float32/library/{regime}@fake:gpu"]

    for regime in ("resident-waited", "resident-queued", "transfer-once-10", "transfer-always"):
        assert [
            at(name, regime) for name in ("groups", "waits", "moves_itself", "weighs", "forks", "runs_on")
        ] == [""] * 6
        assert at("hurries", regime).startswith("it raises RuntimeError: nobody waited")
        assert at("wrong", regime).startswith("largest error 0.000")
        assert at("refused", regime) == "same(cpu, gpu) says that the results differ"
        assert at("shape", regime) == "out has the shape (256, 1), not (256,)"
        assert at("changes", regime).startswith("it changes x")
        assert at("texts", regime) == "out[0] is False, not True"
        assert at("dates", regime) == "out[0] is 1970-01-03, not 1970-01-02"
    gpubench("advise", "groups", "--size", "256", "--from", "r.json", status=0)
    assert "did you mean 'groups'" in gpubench("advise", "gruops", "--size", "256", "--from", "r.json").stderr


EDITS = """
@gpubench.function
def first(xp, x): return xp.sort(x)
@first.inputs
def _(rng, n):
    if n == 512:
        with open(__file__, "a") as file:
            file.write("# edited")
    return [rng.random(n, dtype="float32")]
"""


def test_a_file_that_is_edited_during_a_run_is_not_measured(gpubench, tmp_path):
    """The trial imports the file as it was, and the run's worker as it is."""
    write(tmp_path, EDITS)
    ended = gpubench("run", "mine:first", "--sizes", "256,512", "--backends", "numpy", *BRIEF, "-o", "r.json")
    assert "was edited during the run" in " ".join(ended.stdout.split())
    assert {case["reason"] for case in reported(gpubench)["cases"]} == {"bad-function"}


def test_the_answer_says_which_session_an_edit_cut_short(gpubench, tmp_path):
    """The file is edited by the second process that makes inputs, the worker of session 1."""
    late = """
    import os
    with open("pids", "a+") as pids:
        print(os.getpid(), file=pids)
        pids.seek(0)
        n = 512 if len(set(pids)) == 2 else n
"""
    head, rest = EDITS.split("    if n == 512:")
    write(tmp_path, head + late + "    if n == 512:" + rest.replace("rng.random(n,", "rng.random(256,"))
    late_brief = (*BRIEF[:2], "2", *BRIEF[3:])
    ended = gpubench("run", "mine.py", "--sizes", "256", "--backends", "numpy", *late_brief, "-o", "r.json")
    told = " ".join(ended.stdout.split())
    assert "session 2 is incomplete: mine.py was edited during the run." in told, ended.stderr


ENDS = """
import os
@gpubench.function
def ends(xp, x):
    if len(x) > 300:
        os._exit(7)
    return xp.sort(x[:64])
@gpubench.function
def after(xp, x): return xp.sort(x[:64])
@gpubench.function
def pairs(xp, x): return xp.sum(xp.abs(x[:, None] - x), axis=1)
"""


def test_a_larger_size_costs_itself_alone(gpubench, tmp_path):
    write(tmp_path, ENDS)
    report = measure(gpubench, "mine.py", "--sizes", "256,10M", "--backends", "numpy", status=1)
    reasons = {case["id"].split("/float32")[0]: case["reason"] for case in report["cases"]}
    assert reasons == {"mine.ends/n=256": None, "mine.ends/n=10485760": "worker-crashed",
                       "mine.after/n=256": None, "mine.after/n=10485760": None, "mine.pairs/n=256": None,
                       "mine.pairs/n=10485760": "out-of-memory"}  # fmt: skip


CALLED = """
import functools
class First:
    def __call__(self, xp, x): return x[:1]
first = gpubench.function(First())
cut = gpubench.function(functools.partial(lambda end, xp, x: x[end:], -2))
"""


def test_sessions_are_added_where_the_file_is_named(gpubench, tmp_path):
    write(tmp_path, "@gpubench.function\ndef last(xp, x):\n    return x[-1:]\n" + CALLED)
    measure(gpubench, "mine.py", "--sizes", "256", "--backends", "numpy")
    gpubench("run", "mine.py", "--append", "r.json", "--no-progress", status=0)
    assert json.loads((tmp_path / "r.json").read_text())["settings"]["sessions"] >= 1
    without = gpubench("run", "--append", "r.json")
    assert (without.returncode, "name it too: gpubench run mine.py:last" in without.stderr) == (4, True)
    write(tmp_path, "@gpubench.function\ndef last(xp, x):\n    return x[-2:]\n" + CALLED)
    before = (tmp_path / "r.json").read_bytes()
    changed = gpubench("run", "mine.py", "--append", "r.json", "--no-progress")
    told = (changed.returncode, "mine.last is another function now" in changed.stderr)
    assert told == (4, True), changed.stderr
    assert (tmp_path / "r.json").read_bytes() == before


HELPER = """
import subprocess
K = 3.0
with open("processes", "a") as file:
    print(subprocess.Popen(["sleep", "300"]).pid, file=file)
"""
SHAPES = """
from helper import K
@gpubench.function
def scale(xp, x): return x * K
@gpubench.function(flops=lambda n: 2 * n * n)
def product(xp, weights, x): return weights @ x
@product.inputs
def _(rng, n, dtype):
    return [gpubench.stays(rng.random((n, n)).astype(dtype)), rng.random(n).astype(dtype)]
@gpubench.function
def spectrum(xp, z): return xp.abs(xp.fft.fft(z))
@spectrum.inputs
def _(rng, n): return [rng.random(n) + 1j * rng.random(n)]
@gpubench.function
def gather(xp, x, i): return x[i]
@gather.inputs
def _(rng, n): return [rng.random((n, 3), dtype="float32"), rng.integers(0, n, n)]
"""


def test_files_modules_and_ops_in_one_run(gpubench, tmp_path):
    """A file with a helper beside it, a module by its dotted name, and a built-in op, each by its own words."""
    (tmp_path / "deep" / "package").mkdir(parents=True)
    (tmp_path / "package").mkdir()
    (tmp_path / "deep" / "helper.py").write_text(HELPER, encoding="utf-8")
    write(tmp_path / "deep", SHAPES, "my-options.py")
    write(tmp_path / "package", "@gpubench.function\ndef twice(xp, x):\n    return 2 * x\n", "mod.py")
    command = "--ops package.mod:twice,add --sizes 256 --devices numpy:0,fake:gpu --dtypes float32,float64 --regimes copied"
    report = measure(gpubench, "deep/my-options.py", *command.split())
    names = {case.split("/")[0] for case in times(report) if "/float64/" in case and "transfer-always@" in case}
    assert names == {*(f"my_options.{name}" for name in ("scale", "product", "spectrum", "gather")), "mod.twice", "add"}  # fmt: skip
    started = list(map(int, (tmp_path / "processes").read_text().split()))
    assert not any(map(is_alive, started)), "what a file starts ends with the child that imported it"
    sizes = "product takes weights (n, n), x (n); spectrum takes z (n); gather takes x (n, 3), i (n)"
    assert said(report, "own-sizes") == sizes
    rates = {case["id"].split("/")[0]: case["rates"] for case in report["cases"] if case["rates"]}
    assert rates["my_options.product"]["flops_per_s"] > 0
    stored = {row["id"]: row for row in json.loads((tmp_path / "r.json").read_text())["outcomes"]}
    copied = stored["my_options.product/n=256/float32/library/transfer-always@fake:gpu"]
    assert copied["input_bytes"] == 4 * 256  # the weights stay


# ---------------------------------------------------------------------- examples/functions: what a newcomer copies is right


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
