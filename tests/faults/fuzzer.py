"""Documents of every kind, spoiled by their structure, and the readers that have to report or refuse them.

One seed makes one input, whatever was tried before: `attempt(kind, seed)` repeats it.
"""

import contextlib
import copy
import functools
import gzip
import io
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from gpubench import report
from gpubench.base.errors import ExitCode, GpubenchError
from gpubench.cli import main
from gpubench.report.layout import RenderOptions
from gpubench.result import store
from tests.detect import trees
from tests.unit.report import samples

Plain = Any  # what JSON may hold
Outcome = Literal["reported", "refused", "failed"]
SLOWEST_S = 10.0  # of the processor: the bound of the tool, for inputs that are far smaller than its largest
# A page with charts takes a hundred times as long as any other format.
TEXTS = tuple(name for name in report.FORMATS if name != "html")
RARELY = 0.02
CODES = frozenset(ExitCode)
HOSTILE = (
    "", " ", "\x00", "\x1b[31mred\x1b[0m", "\n\n# heading", "| a | b |", "<script>alert(1)</script>", "‮abc‬⁦x⁩",
    "../../etc/passwd", "%s%n{}{0}", "a" * 5000, "é̀" * 50, "\ud83d\ude00", "::error::x", "n=", "@", "/", ":", ",", "matmul",
    "numpy:0", "cupy:0", "hybrid:cupy:0", "hybrid:hybrid:cupy:0", "9999999999999999999999", "-1", "NaN", "2026-01-01", "null")  # fmt: skip
NUMBERS = (0, -1, 1, 2, 3, 255, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.0, -0.0,
           0.5, 1e-9, -1e-9, 1e-99, 1e99, 5e-324, 1e-308, 1e308, 1.7976931348623157e308, True, False)  # fmt: skip
WORDS = ("measurement", "skip", "failure", "planned", "main", "sweep", "resident", "transfer-once",
         "transfer-always", "library", "tuned", "float64", "float32", "float16", "bfloat16", "cpu", "gpu",
         "software", "hybrid", "fake", "ok", "absent", "budget", "timeout", "warning", "error", "info",
         "throttled", "off", "on", "quick")  # fmt: skip
BEEF = {"id": "00000000-0000-4000-8000-00000000beef"}  # another run
CONFIGURED = ("report", "run", "detect")
OTHER_TYPES = (None, [], {}, "x", 7, 1.5, [[]], [None], {"": None}, {"n": 1}, [1, "a"])


class Tried(NamedTuple):
    """One input and what became of it; `why` of a failure names the exception."""

    kind: str
    seed: int
    outcome: Outcome
    why: str
    took_s: float


def attempt(kind: str, seed: int, folder: Path) -> Tried:
    """Make the input of this kind and seed, and give it to its readers. `folder` is scratch."""
    # A text seeds the same generator on every machine.
    draw = random.Random(f"{kind}/{seed}")
    began = time.process_time()
    try:
        KINDS[kind](draw, folder)
        outcome, why = "reported", ""
    except GpubenchError as error:
        known = error.exit_code in CODES and bool(error.message)
        outcome, why = ("refused", error.code) if known else ("failed", repr(error))
    except Exception as error:
        outcome, why = "failed", _where(error)
    took_s = time.process_time() - began
    if took_s > SLOWEST_S and outcome != "failed":
        outcome, why = "failed", f"it took {took_s:.1f} s"
    return Tried(kind, seed, outcome, why, took_s)  # type: ignore[arg-type]


def _where(error):
    frame, place = error.__traceback__, ""
    while frame is not None:
        code = frame.tb_frame.f_code
        if "gpubench" in code.co_filename:
            place = f"{Path(code.co_filename).name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{type(error).__name__} at {place}: {str(error)[:200]}"


# The documents as they should be.


@functools.cache
def _runs():
    made = (samples.full_run(), samples.cpu_run(), samples.hybrid_run(), samples.software_run(),
            samples.interrupted_run(), samples.tool_run())  # fmt: skip
    here = Path(__file__).parents[1] / "unit" / "store" / "fixtures" / "version-4.json"
    return (*(store.dumps(run) for run in made), here.read_bytes())


def _run(draw):
    return json.loads(draw.choice(_runs()))


def _fleet(draw):
    nodes = [{"key": f"node{i}", "status": "ok", "result": _run(draw)} for i in range(draw.randint(1, 2))]
    nodes.append({"key": "lost", "status": "failed", "error": "no answer"})
    return {"name": "gpubench-fleet", "schema_version": 4, "nodes_expected": 3, "nodes_collected": len(nodes),
            "complete": False, "nodes": nodes}  # fmt: skip


def _noise(draw):
    run = _run(draw)
    cases = [{"id": outcome["id"], "spread": 0.05, "threshold": 0.07, "alarm_share": 0.1}
             for outcome in run["outcomes"][:9]]  # fmt: skip
    return {"name": "gpubench-noise", "schema_version": 2, "run_id": run["id"], "machine": "a machine",
            "fingerprint": run["fingerprint"], "sessions": 5, "alpha": 0.05, "permutations": 126,
            "false_alarm_share": 0.04, "raised_alarm_share": 0.0, "cases": cases, "left_out": []}  # fmt: skip


def _claims(draw):
    return {
        "name": "gpubench-claims", "schema_version": 1, "source": "a page", "tolerance": 0.1,
        "claims": [
            {"claim": "relu 16M", "case": "relu", "speedup": 109.0},
            {"claim": "matmul", "case": "matmul/n=1024/float32", "cpu": "3.15 ms", "gpu": "0.15 ms", "tolerance": 0.2},
            {"claim": "any", "gpu": 0.001}, {"claim": "sum", "cases": ["relu", "add"], "also": "matmul", "speedup": 2},
            {"claim": "time", "case": "relu", "time": ["1 ms", 0.002], "device": "software", "document": "a page"},
            {"claim": "from", "case": "relu", "break_even": [1000, 2000]}]}  # fmt: skip


def _records(draw):
    here = Path(__file__).parents[1] / "detect"
    return json.loads((here / draw.choice(("h200.records.json", "two-h200.records.json"))).read_bytes())


TOML = b"""[common]
color = "never"
[run]
sessions = 5
ops = ["matmul", "add"]
backends = "numpy"
[report]
time-unit = "ms"
"""
CLAIMS_TOML = b"""name = "gpubench-claims"
tolerance = 0.2
[[claims]]
claim = "relu 16M"
case = "relu"
speedup = 109.0
[[claims]]
claim = "matmul"
cpu = "3.15 ms"
gpu = "0.15 ms"
"""
# A machine with a card of AMD and a driver of NVIDIA, in a control group.
_LINK = {"numa_node": "0", "current_link_speed": "16.0 GT/s PCIe"}
_CARD = trees.pci("0000:03:00.0", "1002", "744c", **_LINK, **trees.amdgpu(24 << 30, 8 << 30))
_FILES = (
    trees.HOST | trees.each_cpu(2, {"topology/core_id": "0", "cpufreq/cpuinfo_max_freq": "3500000"})
    | trees.caches((1, "Data", "32K", "0-1")) | trees.kfd_node(0, cpu_cores_count=2, simd_count=0)
    | trees.kfd_node(1, location_id=768, domain=0) | trees.bank(1, 24 << 30) | _CARD
    | trees.group("0::/user.slice", trees.V2, {"user.slice/cpu.max": "100000 100000", "user.slice/memory.max": 8 << 30})
    | {"/proc/self/status": "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n", f"{trees.CPU}/smt/control": "off",
       f"{trees.NODE}/online": "0", "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1"})  # fmt: skip
TREE = {path.lstrip("/"): text for path, text in _FILES.items() if text}


# How they are spoiled.


def spoiled(document, draw):
    """The document with one to four changes, most of them one."""
    document = {"": document}
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        holder, key = draw.choice(_places(document) or [(document, "")])
        with contextlib.suppress(KeyError, IndexError):  # an earlier change took the place away
            draw.choice(CHANGES)(holder, key, draw)
    return document.get("")


def _places(value):
    """Each holder below `value` with each of its keys, in the order of the text."""
    found = []

    def look(value):
        a_list = isinstance(value, list)
        for key, item in enumerate(value) if a_list else value.items():
            # Nearly all of a result is samples: a few places in a long list stand for all.
            if a_list and key > 3 and not isinstance(item, dict):
                break
            found.append((value, key))
            if isinstance(item, dict | list):
                look(item)

    look(value)
    return found


def _chosen(values):
    """The change that puts one of the values into a place."""

    def change(holder, key, draw):
        holder[key] = draw.choice(values)

    return change


def _missing(holder, key, draw):
    del holder[key]


def _same_type(holder, key, draw):
    """What readers are least prepared for: right in type, wrong in value."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = draw.choice((0, -1, 1, value + 1, value * 1000, -value, 2**62, 2**63 - 1))
    elif isinstance(value, float):
        holder[key] = draw.choice((0.0, -value, value * 1e6, value * 1e-6, 1e99, 1e-99, 1e30, -1e99,
                                   value * 1.5))  # fmt: skip
    elif isinstance(value, str):
        holder[key] = draw.choice((value + "x", value[:-1], value.upper(), value * 3, *HOSTILE[:8], *WORDS))
    elif isinstance(value, list):
        others = ([], value[1:], [0.0] * len(value), [-1.0], [1e99] * 5)
        holder[key] = draw.choice((value[:1], value[::-1], value * 2, *others))
    elif isinstance(value, dict):
        for name in list(value)[: draw.randint(0, len(value))]:
            del value[name]


def _repeated(holder, key, draw):
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[draw.choice(HOSTILE)] = copy.deepcopy(holder[key])


def _many(holder, key, draw):
    count = draw.choice((10, 100, 1000))
    holder[key] = [copy.copy(holder[key])] * count


def _deep(holder, key, draw):
    value: Plain = holder[key]
    for _ in range(draw.choice((5, 49, 51, 200))):
        value = [value] if draw.random() < 0.5 else {"x": value}
    holder[key] = value


def _swapped(holder, key, draw):
    other = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


# Most of what is wrong in type ends at the decoder: what is right in type reaches the report.
CHANGES = (*[_same_type] * 24, *[_missing] * 3, *[_repeated] * 2,
           *map(_chosen, (NUMBERS, HOSTILE, WORDS, OTHER_TYPES)), _many, _deep, _swapped)  # fmt: skip


def damaged(data, draw):
    """The bytes, one time in six cut, flipped, packed, or packed and then damaged."""
    how = draw.randrange(42)
    at = draw.randrange(len(data) + 1)
    if how == 6:
        packed = bytearray(gzip.compress(data, 1))
        packed[draw.randrange(len(packed))] ^= 1 << draw.randrange(8)
        return bytes(packed[: draw.randrange(2, len(packed) + 1)] if draw.random() < 0.5 else packed)
    harms = {
        0: lambda: data[:at],
        1: lambda: data[:at] + draw.randbytes(draw.choice((1, 4, 64))) + data[at + 1 :],
        2: lambda: data + draw.choice((b"x", b"\n\n", data, b"\x00" * 100, b"]" * 100)),
        3: lambda: draw.choice((b"", b" " * 1000, b"[" * 100_000, b"\xef\xbb\xbf" + data, data.decode().encode("utf-16"))),
        4: lambda: draw.randbytes(draw.randrange(300)), 5: lambda: gzip.compress(data, 1)}  # fmt: skip
    return harms[how]() if how in harms else data


def _json(document, draw):
    return damaged(json.dumps(spoiled(document, draw), allow_nan=True).encode("utf-8", "surrogatepass"), draw)


def _written(folder, name, data):
    path = folder / name
    path.write_bytes(data)
    return str(path)


# The readers.


def _result(draw, folder):
    _reported([store.load(_written(folder, "result.json", _json(_run(draw), draw)))], draw)


def _two_results(draw, folder):
    first = store.load(_written(folder, "first.json", json.dumps(_run(draw)).encode()))
    _reported([first, store.load(_written(folder, "second.json", _json(_run(draw), draw)))], draw)


def _reported(runs, draw):
    analyses = report.analyse_runs(runs)
    fit = TEXTS if len(runs) == 1 else ("table", "plain", "markdown", "json", "jsonl", "csv")
    for name in (*draw.sample(fit, 3), *(["html"] if draw.random() < RARELY else [])):
        text = report.draw_report(analyses, name, RenderOptions(ascii_only=draw.random() < 0.2))
        text.encode()
        if name == "json":
            msgspec.json.decode(text)


def _program(*arguments):
    """Run the program here; an exit code for a refusal is one, and an unexpected failure is passed on."""
    out, err = io.StringIO(), io.StringIO()
    out.reconfigure = lambda **_: None  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    # --verbose asks for tracebacks.
    traced = "Traceback" in err.getvalue() and not {"-v", "--verbose"} & set(arguments)
    if code not in CODES or traced or "failed unexpectedly" in err.getvalue():
        raise AssertionError(f"exit code {code}: {' '.join(arguments)}: {err.getvalue()[-1500:]}")
    if code in (ExitCode.USAGE, ExitCode.INPUT, ExitCode.UNAVAILABLE):
        lines = err.getvalue().splitlines()
        # Without a command the program shows its help.
        if not any(line.startswith(("error: ", "Usage: ")) for line in lines):
            raise AssertionError(f"no reason: {' '.join(arguments)}: {err.getvalue()!r}")
        raise GpubenchError("refused", lines[0])


@functools.cache
def _good(folder):
    return _written(folder, "good.json", _runs()[0])


def _program_with(name, document, command):
    def read(draw, folder):
        path = _written(folder, name, _json(document(draw), draw))
        _program(*(word.format(path=path, good=_good(folder), folder=folder) for word in command.split()))

    return read


def _toml(text, draw):
    lines = text.splitlines()
    at = draw.randrange(len(lines))
    value = draw.choice((
        "1", "-1", "1e400", "nan", "inf", '"x"', "[]", "{}", "true", "2026-01-01", "[" * 400 + "]" * 400,
        "9" * 5000, '"""', "{a.b.c=1}", "[[1], ['a']]", json.dumps(draw.choice(HOSTILE))))  # fmt: skip
    key = lines[at].partition(b"=")[0]
    tables = (b"[x]", b"[[run]]", b"[run.a]", b"x = 1", b"'' = 1", b"[tool.gpubench]")
    lines[at : at + 1] = draw.choice((
        [key + b"= " + value.encode("utf-8", "surrogatepass")], [lines[at]] * 2, [], [lines[at]],
        [b".".join([b"a"] * draw.choice((3, 49, 60, 5000))) + b" = 1"], [draw.choice(tables), lines[at]]))  # fmt: skip
    return damaged(b"\n".join(lines), draw)


def _toml_with(name, text, *commands):
    def read(draw, folder):
        path = _written(folder, name, _toml(text, draw))
        _program(*(word.format(path=path, good=_good(folder)) for word in draw.choice(commands).split()))

    return read


def _machine_tree(draw, folder):
    root = folder / "tree"
    shutil.rmtree(root, ignore_errors=True)
    unlucky = draw.sample(sorted(TREE), draw.choice((1, 1, 2, 5)))
    for path, text in TREE.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if path not in unlucky:
            place.write_text(text)
            continue
        words = text.split()
        words[draw.randrange(len(words))] = str(draw.choice(NUMBERS))
        spoiled_texts = (draw.choice(HOSTILE), " ".join(words),
                         text.replace("0", str(draw.choice((2**64, -1, 10**30, "x")))), text * 50)  # fmt: skip
        how = draw.randrange(8)
        if how == 0:
            place.mkdir()
        elif how == 1:
            place.symlink_to(draw.choice(("nowhere", place.name, "/", "..")))
        elif how == 2:
            place.write_bytes(draw.randbytes(draw.choice((0, 1, 100, 100_000))))
        elif how == 3:
            place.write_bytes(damaged(text.encode(), draw))
        else:
            place.write_bytes(spoiled_texts[how - 4].encode("utf-8", "replace"))
    _program("detect", "--sysroot", str(root), "--format", draw.choice(("json", "table", "markdown", "env")))


def _command_line(draw, folder):
    words = (
        "report", "compare", "noise", "merge", "advise", "ops", "schema", "--format", "json", "csv", "--sections", "all",
        "--filter", "matmul", "--skip", "n>4", "n=", "--sort", "-time", "--columns", "--size", "1k", "2^70", "1e999",
        "--min-speedup", "relu=2", "=", "--fail-on", "noisy", "-", "--baseline", "numpy:0", "--time-unit", "us", "-o",
        "--threshold", "5%", "nan", "--alpha", "0", "--max-bytes", "1000", "--marker", "--help", "--version", "-v", "--",
        "--from", "--calls", "--dtype", "float32", "--like", "--claims", "builtin", _good(folder), "{good}", *HOSTILE)  # fmt: skip
    chosen = [draw.choice(words) for _ in range(draw.randint(0, 7))]
    first = draw.choice(("report", "compare", "merge", "advise", "ops", "schema", draw.choice(words)))
    line = [first, *draw.sample([_good(folder)] * 2, draw.randint(0, 2)), *chosen]
    # No process is started, and nothing is written where a word might name a place.
    safe = [word for word in line if word not in ("-o", "run", "noise", "detect", "-", "--install-completion")]
    _program(*(word.encode("utf-8", "replace").decode().replace("\x00", "") for word in safe))


def _events(draw, folder):
    lines = report.render([store.loads(draw.choice(_runs()), "a run")], "jsonl").encode()
    kept = b"\n".join(draw.sample(lines.splitlines(), draw.randint(0, 5)))
    _program("report", _written(folder, "events.json", damaged(kept, draw)))


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "result": _result, "two results": _two_results,
    "fleet": _program_with("fleet.json", _fleet, "report {path} --format plain"),
    "compare": _program_with("new.json", _run, "compare {good} {path} --allow-different-machine"),
    "merge": _program_with("part.json", lambda draw: _run(draw) | BEEF, "merge {path} {good} -o {folder}/merged.json"),
    "advise": _program_with("from.json", _run, "advise matmul --size 3000 --from {path}"),
    "thresholds": _program_with("noise.json", _noise, "compare {good} {good} --thresholds {path}"),
    "claims (JSON)": _program_with("claims.json", _claims, "report {good} --claims {path}"),
    "claims (TOML)": _toml_with("claims.toml", CLAIMS_TOML, "report {good} --format plain --claims {path}"),
    "configuration": _toml_with("gpubench.toml", TOML, *(f"{name} --show-config --config {{path}}" for name in CONFIGURED)),
    "records": _program_with("records.json", _records, "detect --records {path} --format json"),
    "machine tree": _machine_tree, "events": _events, "command line": _command_line}  # fmt: skip
# Of a hundred inputs so many are of each kind: most of what people hand around are results.
SHARES = {"result": 50, "two results": 4, "fleet": 3, "compare": 5, "merge": 4, "advise": 5, "thresholds": 3,
          "claims (JSON)": 3, "claims (TOML)": 3, "configuration": 4, "records": 3, "machine tree": 5,
          "events": 2, "command line": 6}  # fmt: skip


def inputs(count: int, first_seed: int) -> Iterator[tuple[str, int]]:
    """The kinds and seeds of `count` inputs, each kind in its share."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    random.Random(first_seed).shuffle(kinds)
    for i in range(count):
        yield kinds[i % len(kinds)], first_seed + i
