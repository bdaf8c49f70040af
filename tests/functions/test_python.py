"""The Python interface: `bench`, `run`, `load`, `detect`, and what their results tell."""

import ast
import html
import math
import pickle
import re
import signal
import subprocess
import sys
import traceback
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

import gpubench
from gpubench import detect as detection
from gpubench.analysis.advice import measuring_command
from gpubench.analysis.contenders import Key
from gpubench.analysis.thresholds import situation_regime
from gpubench.api import shows_progress
from gpubench.base.errors import InputError, UsageError
from gpubench.report.wording import short_text, situation_text
from gpubench.result.case import parse_situation
from tests.raising import raised

RESULTS = Path(__file__).parents[2] / "results" / "intel-r-xeon-r-processor-nvidia-h200-d0f62e"
H200 = RESULTS / "20261125T000334Z-9aaa659e.json.gz"


@pytest.fixture(scope="module")
def result():
    return gpubench.load(H200)


def test_a_result_tells_thresholds_and_speedups(result):
    dot = result.threshold("dot", "waited")
    assert dot.measured[0] < dot.lo < dot.n < dot.hi < dot.measured[1]
    assert re.fullmatch(r"~?[\d.]+ [KM] \(.*[KM]\)", str(dot)), "the cell of a report"
    assert result.threshold("add", situation="copied").n == math.inf
    assert str(result.threshold("dot", "20 calls a copy")).endswith("for '20 calls a copy'")
    assert result.speedup(100_000, "dot") < 1 < result.speedup(16 * 2**20, "dot")
    assert {result.speedup(n, "dot") for n in (2**40, 0, -1)} == {None}


@pytest.mark.parametrize("regime", ["resident-waited", "resident-queued", "transfer-once-10"])
def test_each_name_that_a_reader_sees_is_taken(result, regime):
    """The words of the answer, its tables and earlier versions name the same situation as the id in files."""
    names = {situation_text(regime), situation_text(regime, beside_queued=True), short_text(regime), regime}
    earlier = {"ten calls a copy"} if regime == "transfer-once-10" else set()
    policy = result.policy()
    for name in names | earlier:
        assert situation_regime(name) == regime
        assert policy.choose("dot", 2**20, regime=name) == policy.choose("dot", 2**20, regime=regime)
    assert parse_situation("20 calls a copy") == "transfer-once-20"
    assert parse_situation("1 calls a copy") == "transfer-always"


def test_a_result_shows_itself(result):
    assert "NVIDIA H200" in str(result)
    assert str(pickle.loads(pickle.dumps(result))) == str(result), "also once it was shown"
    assert str(result).endswith(f"all: gpubench report {H200} --full")  # it was loaded, and needs no save
    unsaved = gpubench.Result(result.run)
    vars(unsaved)["_analysis"] = vars(result)["_analysis"]
    assert str(unsaved).endswith('all: result.save("r.json"), then gpubench report r.json --full')
    assert repr(result).startswith("<gpubench.Result of add, chain")
    page = result._repr_html_()
    assert (page.startswith('<div class="gpubench">'), "pays from" in page) == (True, True), page


def test_a_result_becomes_a_frame_and_a_file(result, tmp_path):
    assert {"op", "n", "time_s", "device"} <= set(result.to_pandas().columns)
    result.save(tmp_path / "copy.json.gz")
    assert gpubench.load(tmp_path / "copy.json.gz").run == result.run
    result.save(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text(encoding="utf-8").startswith("run_id,case_id,op")
    assert "no format belongs to the suffix" in str(raised(UsageError, result.save, tmp_path / "table.xlsx"))
    assert not (tmp_path / "table.xlsx").exists()


def test_a_machine_shows_itself_and_without_pandas_there_is_no_frame(result, monkeypatch):
    monkeypatch.setattr("gpubench.api.detection.gather", lambda: "all that is there")
    monkeypatch.setattr(
        "gpubench.api.detection.inspect",
        lambda gathered: (result.run.machine, gathered)[gathered != "all that is there"],
    )
    machine = gpubench.detect()
    shown = detection.render(result.run.machine, "plain")
    assert (str(machine), machine.mode) == (shown, result.run.machine.recommendation.mode)
    assert repr(machine) == f"<gpubench.DetectedMachine: {detection.machine_line(result.run.machine)}>"
    assert machine._repr_html_() == f"<pre>{html.escape(shown)}</pre>"
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pandas is not installed" in str(raised(UsageError, result.to_pandas))


def test_a_child_that_imports_a_file_measures_nothing(monkeypatch):
    monkeypatch.setattr("gpubench.functions.declare.MEASURES", False)
    for nothing in (gpubench.run("add"), gpubench.bench(abs)):
        assert (nothing.threshold("add").n is nothing, [*nothing], f"{nothing:.1f}") == (True, [], "")
        assert (nothing < 1, nothing > 1, nothing <= 1, nothing >= 1) == (False,) * 4


def test_policy_has_the_same_thresholds(result):
    policy = gpubench.Policy.load(H200)
    assert policy.threshold("dot") == result.threshold("dot") == gpubench.Policy([result]).threshold("dot")
    assert "dot" in repr(policy)
    assert "cannot be read" in str(raised(InputError, gpubench.Policy.load, [H200]))
    assert policy.choose("dot", 2**24, regime="resident").backend == "cupy"
    with pytest.raises(TypeError, match=r"Policy\.load"):
        gpubench.Policy("r.json")


@pytest.mark.parametrize(("call", "words"), [
    (lambda result: result.threshold("dott"), "did you mean 'dot'"),
    (lambda result: result.threshold(), "name one of them"), (lambda result: gpubench.Policy([]).threshold(None), "run it again"),
    (lambda result: result.threshold("dot", "wated"), "did you mean 'waited'"),
    (lambda result: result.policy().choose("geluu", 100), "did you mean 'gelu'"),
    (lambda result: result.policy().choose(["gelu"], 9), "'gelu'"), (lambda result: gpubench.bench(abs, tolerence=1), "'tolerance'"),
    (lambda result: result.policy().choose("gelu", 9, regime=["copied"]), "'copied'"),
    (lambda result: gpubench.run("matmull"), "did you mean 'matmul'"), (lambda result: gpubench.run("a\0.py"), "what is possible"),
    (lambda result: gpubench.run(3), "what is possible"), (lambda result: gpubench.run(abs), "what is possible"), (lambda result: gpubench.run("add", budget=10**400), "500ms"),
    (lambda result: result.save("a\0.json"), "what is possible"), (lambda result: result.speedup("x"), "what is possible"),
    (lambda result: result.threshold("dot", None), ""), (lambda result: result.threshold(3), "name one"),
    (lambda result: gpubench.run("matmul", params=["m=2", "m=3"], budget=1e6, max_time=1e-5, threads=9999, backends="numpy"), "leave --threads out"),
    (lambda result: gpubench.run("add", size=3), "did you mean 'sizes'"),
    (lambda result: gpubench.run("add", sessions=0), "what is possible"), (lambda result: gpubench.run("add", sizes=b"1k"), "what is possible"),
    (lambda result: gpubench.run("add", sizes=np.array(64), quick="false"), "what is possible"),
    (lambda result: gpubench.run("add", dtypes=float), "what is possible"), (lambda result: gpubench.run([]), "leave --ops out"),
    (lambda result: gpubench.bench(), "gpubench.bench(f)"), (lambda result: gpubench.bench(cpu=abs), "gpubench.bench(f)"),
    (lambda result: gpubench.bench(abs, gpu=abs), "gpubench.bench(f)"),
    (lambda result: gpubench.bench(gpubench.function(max), tolerance=1.0), "give tolerance to gpubench.function")])  # fmt: skip
@pytest.mark.usefixtures("forked_children")
def test_what_is_misspelt_raises(result, call, words):
    error = raised(UsageError, call, result)
    assert words in error.hint
    assert words in "".join(traceback.format_exception_only(error))


def test_detect_is_called_and_stays_a_package():
    from gpubench import detect

    assert callable(detect)
    assert detect.inspect
    nodes = ast.walk(ast.parse(Path(gpubench.__file__).read_text()))
    typed = [str(node.names[0].asname) for node in nodes if isinstance(node, ast.ImportFrom)]
    names = "bench detect function load pair Policy Result run stays".split()
    assert sorted(typed) == sorted(names), "a type checker knows each name"


@pytest.mark.usefixtures("forked_children")
def test_an_interrupt_returns_what_there_is_and_stays_possible(monkeypatch):
    monkeypatch.setattr("gpubench.measure.runner.Runner.sessions", lambda _: signal.raise_signal(signal.SIGINT))
    handler = signal.getsignal(signal.SIGINT)
    with (
        pytest.warns(match="interrupted"),
        warnings.catch_warnings(action="error"),
    ):  # which would lose the result
        result = gpubench.run("add", sizes="1k", devices="fake:cpu")
    assert (result.run.exit_reason, signal.getsignal(signal.SIGINT)) == ("interrupted", handler)


SCRIPT = """
import threading
import numpy
import gpubench
SCALE = 3.0
lock = threading.Lock()
def decay(xp, x):
    return xp.exp(-x) * SCALE
def locked(xp, x):
    with lock:
        return x
result = gpubench.bench(decay, sizes=[256], backends="numpy", max_samples=4, sessions=1, max_time=0.02)
print(result.ops, len(result.to_pandas()))
SCALE = 4.0
again = gpubench.bench(decay, sizes=numpy.int64(256), backends=["numpy"], check_only=True)
hashes = [r.run.outcomes[0].kernel_hash for r in (result, again)]
print("same text" if hashes[0] == hashes[1] else "another text")
try:
    gpubench.bench(locked, sizes=[256])
except gpubench.base.errors.UsageError as error:
    print(error, "|", error.why)
"""


def test_progress_shows_in_a_terminal(monkeypatch):
    for terminal in (True, False):
        monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(isatty=lambda seen=terminal: seen))
        assert shows_progress() is terminal


def python(folder, *arguments):
    """What a program of the folder prints, and its notes."""
    ended = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True,
                           timeout=300)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def test_a_script_measures_a_function_of_its_own_once(tmp_path):
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    front = page.partition("## Your own function")[2].split("```python\n")[1].split("```")[0]
    brief = "sizes=[256], backends='numpy', max_samples=4, sessions=1, max_time=0.02"
    (tmp_path / "options.py").write_text(front.replace("budget=20", brief), encoding="utf-8")
    dashed = "import gpubench\n@gpubench.function\ndef add(xp, x): return x + x.sum()\n"
    (tmp_path / "my-own.py").write_text(dashed, encoding="utf-8")
    script = f"{SCRIPT}{DASHED}\nimport runpy\nrunpy.run_path('options.py', run_name='__main__')"
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    out, err = python(tmp_path, "script.py")
    first, second, third, dashed, *answer = out.splitlines()
    assert (first, second) == ("('session.decay',) 2", "same text")
    why = "TypeError: cannot pickle '_thread.lock'"
    assert third.startswith(f"locked cannot be sent to another process | {why}")
    assert dashed == "('my_own.add',)", "as in `gpubench run my-own.py`"
    assert err == ""  # nobody watches
    assert "call_price" in "".join(answer), "the front page's runs as it stands"


IN_A_PACKAGE = """
import sys
sys.stderr = None  # as in a program without a console
import gpubench
from package.steps import declared, plain
from concurrent.futures import ThreadPoolExecutor
def once(f):
    return gpubench.bench(f, sizes=256, backends="numpy", check_only=True)
def first(x): return x + 1
def second(x): return x + 2
for result in ThreadPoolExecutor(4).map(once, (declared, plain, first, second)):  # one waits for the other
    print(*result.ops, result.run.outcomes[0].check.ok)
print(*gpubench.run(["package/steps.py", "package/alone.py"], sizes=256, backends="numpy", check_only=True).ops)
"""


def test_functions_of_a_package_in_the_working_folder_are_measured(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .steps import plain")
    (folder / "parts.py").write_text("def twice(x):\n    return x + x\n", encoding="utf-8")
    text = "import gpubench\nfrom . import parts\ndef plain(xp, x):\n    return parts.twice(xp.sort(x))\n"
    text += "assert __name__ == 'package.steps'  # as a child of a pool imports it\n"
    (folder / "steps.py").write_text(text + "declared = gpubench.function(plain)\n", encoding="utf-8")
    text = "import gpubench\nassert __name__ == 'alone'\n"
    (folder / "alone.py").write_text(f"{text}f = gpubench.function(lambda xp, x: x.sum())\n", encoding="utf-8")
    names = "session.plain", "steps.plain", "session.first", "session.second"
    ran = [*(word for name in names for word in (name, "True")), "steps.declared", "alone.f"]
    assert python(tmp_path, "-c", IN_A_PACKAGE)[0].split() == ran


DASHED = """
import importlib
print(gpubench.bench(importlib.import_module("my-own").add, sizes=[256], backends="numpy", check_only=True).ops)
"""
BENCHED = """
decay = gpubench.function(decay)
result = gpubench.bench(decay)
if result.speedup(1000) > 2:
    print("faster")
print(f"{result.threshold().n:.0f}")
"""


def test_a_file_that_calls_bench_is_measured_once(gpubench, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.partition("def locked")[0] + BENCHED, encoding="utf-8")
    gpubench(*"run script.py --sizes 256 --backends numpy --check-only --no-progress".split(), status=0)


def test_an_answer_tells_what_it_rests_on():
    policy = gpubench.Policy.load(H200)
    answer = policy.choose("dot", 3_000_000, regime="resident")
    assert answer.interval[0] < answer.expected_s < answer.interval[1]
    assert answer.confidence in ("clear", "close")
    assert answer.why.startswith("between the measured sizes ")
    assert "times as fast as" in answer.why
    assert answer.command == "gpubench run --ops dot --sizes 3000000"
    outside = policy.choose("dot", 2**40)
    assert (outside.confidence, outside.interval) == ("none", None)
    assert "measured from n = " in outside.why
    unknown = policy.choose("linear", 512)
    assert unknown.command == "gpubench run --ops linear --sizes 512"
    assert measuring_command(Key("session.f", "float32", ()), 64) == "gpubench.bench(f, sizes=64)"
    refused = policy.choose("linear", 512, dtype="int8")
    assert (refused.command, unknown.why) == (None, "no result has this op, dtype and shape")


# A kernel, as far as gpubench can tell, that runs each cell and shows the value of its last line.
KERNEL = """
import ast, json, sys, types
shell = types.SimpleNamespace(kernel=object())
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
cells = json.load(open(sys.argv[1], encoding="utf-8"))["cells"]
for cell in (cell for cell in cells if cell["cell_type"] == "code"):
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"))
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval")) if last else None
    if value is not None:
        print(value._repr_html_())
"""


def test_the_notebook_runs_cell_by_cell(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")
    text = (Path(__file__).parents[2] / "examples" / "your_own_function.ipynb").read_text(encoding="utf-8")
    assert text.count("budget=20") == 2
    small = text.replace("budget=20", "backends='numpy', sessions=1, max_samples=4, max_time=0.02")
    (tmp_path / "small.ipynb").write_text(small, encoding="utf-8")
    out, err = python(tmp_path, "kernel.py", "small.ipynb")
    assert out.count("call_price") > 3
    assert ("pairwise" in out, "<table" in out) == (True, True), out
    assert "Measuring" in err  # a notebook shows progress
