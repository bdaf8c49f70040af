"""Ops and backends of other packages that break: each costs itself, and every command works for everything else."""

import json
import re
import subprocess
import sys
from unittest.mock import Mock

import msgspec
import pytest

from gpubench import kernels
from gpubench.base.child_main import FRAME
from gpubench.base.errors import BadPlugin
from gpubench.base.plugins import sections
from gpubench.kernels.contract import foreign
from tests.faults.packages import install
from tests.forking import environment, outside
from tests.raising import raised

QUICK = "--quick --no-progress --regimes resident-queued --min-samples 5 --max-samples 10 --max-time 50ms --sizes 1k".split()
FAST = ("--devices", "fake:cpu,fake:gpu", *QUICK)
_ELEMENTWISE = """
from gpubench.kernels import elementwise
from gpubench.kernels.contract.op import EXACT
import msgspec
OP = elementwise(
    name={name!r}, group="activation", summary="out = 2 x", inputs=("x",), flops_per_element=1,
    formula=lambda m, x: x * 2, tolerance=EXACT,
)
change = lambda **fields: msgspec.structs.replace(OP, **fields)
"""
BESIDE = ("raises", "quits", "renamed")
VERSIONS = ("Text('2.9.1')", "(2, 9)")


def op(name, more=""):
    """A module with an op that works, and what `more` makes of it."""
    return _ELEMENTWISE.format(name=name) + more


# The module of each op that is broken, or the object of its entry point beside it, and what the reason has to tell.
BROKEN: dict[str, tuple[str, str]] = {
    "raises": ("raise ValueError('no luck')", "raises ValueError: no luck"),
    "leaves": ("import sys; sys.exit('bye')", "sys.exit('bye')"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "quits": ("import os; os._exit(9)", "exited with status 9"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "was ended by SIGSEGV"),
    "lingers": ("import threading, time; threading.Thread(target=time.sleep, args=(3600,)).start()\n" + op("lingers"), "thread"),
    "number": ("OP = 7", "no Op but of the type int"), "empty": ("", "has no attribute 'OP'"),
    "renamed": (op("another_name"), "calls itself 'another_name'"),
    "nameless": (op("nameless", "OP = change(name=None)"), "`$.name`"),
    "endless": (op("endless", "OP = change(sizes=msgspec.structs.replace(OP.sizes, factor=1))"), "factor"),
    "uncallable": (op("uncallable", "OP = change(flops=3)"), "`$.flops`"),
    "paramless": (op("paramless", "OP = change(params={})"), "what n is"),
    "no_default": (op("no_default", "OP = change(params={'n': 'n', 'k': 'k'}, flops=lambda p: p['n'] * p['k'])"), "param 'k', which has no default"),
    "groupless": (op("groupless", "OP = change(group='')"), "no group or no dtype"),
    "typeless": (op("typeless", "OP = change(dtypes=())"), "no group or no dtype"),
    "odd_option": (op("odd_option", "OP = change(options={'k2': 'k'})"), "the option 'k2'"),
    "descends": (op("descends", "OP = change(sizes=msgspec.structs.replace(OP.sizes, low=9, high=8))"), "ascend from low"),
    "half": (op("half", "OP = change(flops=lambda p: p['n'] / 2)"), "flops raises TypeError"),
    "exits_late": (op("exits_late", "import sys; OP = change(flops=lambda p: sys.exit(3))"), "flops raises SystemExit"),
    "speechless": ("class E(Exception):\n    def __str__(self): raise OSError\nraise E", "raises E"),
    "chatters": ("import os; print('{\"broken\": \"\"}'); os.write(1, b'noise'); os._exit(0)", "exited with status 0"),
    "untyped": (op("untyped", "OP = change(dtypes=('int7',))"), "int7"),
    "unknown": (op("unknown").replace("x * 2", "m.gamma(x)"), "the formula of unknown calls gamma"),
    "quits_late": (op("quits_late", "import os; OP = change(fits=lambda p: os._exit(3))"), "exited with status 3")}  # fmt: skip


@pytest.fixture(scope="module")
def listing(tmp_path_factory, starter):
    """What `ops --format json` tells of all of them, of one that works, and of some whose entry points name nothing."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "sound_package", op("sound"), ops={"sound": "sound_package:OP"})
    for name, (module, _) in BROKEN.items():
        install(folder, f"p_{name}", module, ops={name: f"p_{name}:OP"})
    astray = {"astray": "a_module_that_is_not_there:OP", "garbled": "::", "odd/name": "p_astray:OP"}
    install(folder, "p_astray", "", ops=astray)
    for number, text in enumerate(("[gpubench.ops]\nno equals sign\n", "\x00\n[[[", "[gpubench.ops]\n= =\n")):
        info = folder / f"p_illegible{number}-1.0.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(text)
    env = environment(folder, {"PATH": "", "PYTHONPATH": str(folder)})
    done = starter.run("ops", "--format", "json", cwd=tmp_path_factory.mktemp("cwd"), env=env)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    listing = json.loads(done.stdout)
    assert {row["name"] for row in listing["ops"]} == {*kernels.names(), "sound"}
    assert {row["name"] for row in listing["broken"]} == {*BROKEN, *astray}
    return listing


@pytest.mark.parametrize("name", BROKEN)
def test_ops_names_what_is_broken_and_why(listing, name):
    (row,) = [row for row in listing["broken"] if row["name"] == name]
    assert (row["reason"], BROKEN[name][1] in row["detail"]) == ("bad-plugin", True), row["detail"]
    assert (f"{name} = p_{name}:OP" in row["detail"], row["detail"].isprintable()) == (True, True)


@pytest.mark.usefixtures("forked_children")
def test_an_import_that_does_not_end_is_given_up(monkeypatch, tmp_path):
    floods = "time.sleep(0.005); os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)"
    for name, loop in (("hangs", "time.sleep(1)"), ("floods", floods)):
        install(tmp_path, name, f"import os, time\nwhile True: {loop}", ops={name: f"{name}:OP"})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(foreign, "TRIAL_S", 0.5)
    for name in ("hangs", "floods"):
        assert "its import did not end within 0.5 s" in raised(BadPlugin, kernels.load, name).why


def test_an_op_that_breaks_behind_its_trial_or_gets_none_is_named(monkeypatch, tmp_path):
    broken = dict.fromkeys(("late", "later", "noisy"), "p_late:OP")
    monkeypatch.syspath_prepend(install(tmp_path, "p_late", BROKEN["raises"][0], ops=broken))
    ends = [
        foreign.processes.Ended(0, FRAME.decode() + '{"broken": ""}', "", 0.1),
        foreign.processes.Ended(1, "hello", "", 0.1),
    ]
    monkeypatch.setattr(foreign.processes, "run_all", lambda commands: [ends.pop(0)])
    assert "no luck" in raised(BadPlugin, kernels.load, "late").why
    assert (
        "exited with status 1; its output is not ours: 'hello'" in raised(BadPlugin, kernels.load, "noisy").why
    )
    monkeypatch.setattr(foreign.processes, "run_all", Mock(side_effect=OSError("full")))
    assert "can be started to import it: full" in raised(BadPlugin, kernels.load, "later").why
    refuses = msgspec.structs.replace(kernels.load("add"), fits=lambda params: "too odd")
    assert foreign.guard(refuses).fits({"n": 3}) == "too odd"


PANIC = "raise type('Panic', (BaseException,), {})('oh')"


@pytest.mark.parametrize(("module", "why"), [("exit(3)", "sys.exit(3)"), (PANIC, "raises Panic: oh")])
def test_a_section_that_cannot_be_imported_is_named(monkeypatch, tmp_path, module, why):
    monkeypatch.syspath_prepend(install(tmp_path, "p_odd", module, sections={"odd": "p_odd:odd"}))
    assert why in raised(BadPlugin, sections.sections, ["odd"]).why


def few(tmp_path, *names):
    site = tmp_path / "few"
    install(site, "sound_package", op("sound"), ops={"sound": "sound_package:OP"})
    for name in names:
        install(site, f"p_{name}", BROKEN[name][0], ops={name: f"p_{name}:OP"})
    return {"PYTHONPATH": str(site)}


def test_beside_broken_ops_sound_ones_are_measured_and_each_report_warns(starter, tmp_path):
    """A run asks for both; then `report` and `--append` say the same of them."""
    env = environment(tmp_path, few(tmp_path, *BESIDE))
    printed = []
    for command in (["run", *FAST, "--ops", ",".join((*BESIDE, "add", "sound")), "-o", "r.json", "--format",
                     "plain"], ["report", "r.json", "--format", "markdown"],
                    ["run", *FAST[:-2], "--append", "r.json", "--sessions", "1", "--full"]):  # fmt: skip
        printed.append(starter.run(*command, cwd=tmp_path, env=env, status=0).stdout)
    result = json.loads((tmp_path / "r.json").read_text())
    assert measured(result["outcomes"]) == {"add", "sound"}
    warnings = [warning["message"] for warning in result["warnings"] if warning["code"] == "bad-plugin"]
    for name in BESIDE:
        (message,) = [text for text in warnings if f"p_{name}:" in text]
        assert BROKEN[name][1] in message
        assert all(f"p_{name}" in text for text in printed), "every report prints it"


def measured(outcomes):
    return {outcome["case"]["op"] for outcome in outcomes if outcome["type"] == "measurement"}


@pytest.mark.parametrize(("command", "name"), [
    *((("run", *FAST, "--ops"), name) for name in ("quits", "renamed")),
    (("advise", "--size", "4k"), "quits"),
], ids=lambda value: value if isinstance(value, str) else value[0])  # fmt: skip
def test_alone_it_ends_the_command_with_a_sentence(gpubench, tmp_path, command, name):
    done = gpubench(*command, name, env=few(tmp_path, name), status=1)
    what, why, fix = done.stderr.splitlines()
    assert what == f"error: the op {name} of the package p_{name} is left out"
    assert (f"{name} = p_{name}:OP" in why, BROKEN[name][1] in why) == (True, True), why
    assert f"p_{name}" in fix
    assert done.stdout == ""


@pytest.mark.parametrize("command", [
    ("run", "--help"), ("detect",), ("run", *FAST, "--ops", "vector", "--dry-run")],
    ids=lambda words: " ".join(words[:2]))  # fmt: skip
def test_who_asks_for_none_of_them_pays_for_none(gpubench, tmp_path, command):
    marking = f"open({str(tmp_path / 'imported')!r}, 'w'); import os; os._exit(9)"
    site = install(tmp_path / "marking", "marking", marking, ops={"marking": "marking:OP"})
    gpubench(*command, env={"PYTHONPATH": str(site)}, status=0)
    assert not (tmp_path / "imported").exists()


# What an import does to the process beside bringing an op that works; the reason where that is refused.
INTRUDERS: dict[str, tuple[str, str]] = {
    "writes_in_c": ("import ctypes; c = ctypes.CDLL(None); c.write(1, b'x' * 9999, 9999); c.puts(b'y'); c.fflush(None)", ""),
    "writes_to_the_stream": ("import sys; sys.__stdout__.write('x'); sys.__stdout__.flush(); print('y')", ""),
    "writes_from_a_thread": ("import os, threading\ndef loud():\n    while True: os.write(1, b'x' * 1000)\nthreading.Thread(target=loud, daemon=True).start()", "a thread that goes on"),
    "ends_late": ("import os, threading, time; threading.Timer(1.5, os._exit, (3,)).start()", "a thread that goes on"),
    "hangs_at_the_end": ("import atexit, time; atexit.register(time.sleep, 3600)", ""),
    "shallow": ("import sys; sys.setrecursionlimit(sys.getrecursionlimit() // 5)", ""),
    "closes_all_streams": ("import os; os.closerange(0, 3)", ""),
    "closes_everything": ("import os; os.closerange(0, 256)", "ends the process"),
    "has_an_alarm": ("import signal; signal.alarm(1); signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)", ""),
    "dumps_late": ("import faulthandler; faulthandler.dump_traceback_later(1, exit=True)", ""),
    "takes_signals": ("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.pthread_sigmask(0, {15})", ""),
    "moves": ("import os; os.chdir('/'); os.umask(0o777)", ""),
    "forgets_the_environment": ("import os; os.environ.clear(); os.environ['OMP_NUM_THREADS'] = '1'", ""),
    "one_cpu": ("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", ""),
    "few_files": ("import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (3, r.getrlimit(r.RLIMIT_NOFILE)[1]))", ""),
    "raises_warnings": ("import warnings; warnings.simplefilter('error')", ""),
    "replaces_print": ("import builtins\nbuiltins.print = builtins.open = builtins.sorted = None", ""),
    "traces": ("import sys\nsys.settrace(lambda *_: None)\nsys.setprofile(print)\nsys.excepthook = None", ""),
    "is_nice": ("import os; os.nice(1)", "the priority"), "forks": ("import os; os.fork()", ""),
    "prints_while_planned": ("", "")}  # fmt: skip


@pytest.fixture(scope="module")
def intruded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intruders")
    talks = "OP = change(flops=lambda p: print('x') or __import__('os').write(1, b'y') * p['n'])"
    for name, (does, _) in INTRUDERS.items():
        module = op(name, talks if name == "prints_while_planned" else "") + f"\n{does}\n"
        install(folder, f"p_{name}", module, ops={name: f"p_{name}:OP"})
    return folder


def test_what_an_import_does_to_the_process_costs_the_package_alone(gpubench, intruded):
    """All are imported by one process, the one that lists them: each after what the others did to it."""
    done = gpubench("ops", "--format", "json", env={"PYTHONPATH": str(intruded)}, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    found = json.loads(done.stdout)
    reasons = {row["name"]: row["detail"] for row in found["broken"]}
    assert {*reasons} == {name for name, (_, why) in INTRUDERS.items() if why}
    assert all(INTRUDERS[name][1] in why for name, why in reasons.items()), reasons
    assert {row["name"] for row in found["ops"]} == {*kernels.names(), *INTRUDERS} - {*reasons}


def test_a_run_beside_them_is_right(gpubench, tmp_path, intruded):
    """Workers import them too."""
    command = ("run", *FAST, "--ops", ",".join(("add", *INTRUDERS)), "-o", "r.json", "--format", "json")
    done = gpubench(*command, env={"PYTHONPATH": str(intruded)}, timeout=120, status=0)
    assert json.loads(done.stdout) == json.loads((tmp_path / "r.json").read_text())
    outcomes = json.loads(done.stdout)["outcomes"]
    assert {outcome["type"] for outcome in outcomes} <= {"measurement", "skip"}
    assert measured(outcomes) == {"add", *(name for name, (_, why) in INTRUDERS.items() if not why)}


def test_the_real_program_ends_as_it_would(tmp_path, intruded):
    """Started and not forked, its interpreter ends by itself; one program has all that might keep it from that."""
    names = ("hangs_at_the_end", "has_an_alarm", "shallow", "closes_all_streams")
    command = [sys.executable, "-m", "gpubench", "run", *FAST, "--ops", ",".join(names), "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, env={**outside(), "PYTHONPATH": str(intruded)},
                          capture_output=True, timeout=60, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(f"{name}/n=1024" in done.stdout for name in names)


def test_a_package_is_tried_once_a_process_and_prints_nowhere_but_to_stderr(gpubench, tmp_path):
    site, count = tmp_path / "site", tmp_path / "count"
    marking = f"import os; print('hello'); open({str(count)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    install(site, "marking", marking + op("marking"), ops={"marking": "marking:OP"})
    done = gpubench("run", *FAST, "--ops", "marking,add", "--dry-run", env={"PYTHONPATH": str(site)})
    assert (done.returncode, "hello" in done.stdout) == (0, False), done.stderr
    assert "marking/n=1024/float32" in done.stdout
    pids = count.read_text().split()
    assert len(set(pids)) == len(pids) == 2, "the trial and the program"


_LATE = {
    "flops": "flops=lambda p: 1 // (p['n'] != 1000)",
    "fits": "fits=lambda p: {1000: 1}[p['n'] - 1000] if p['n'] == 1000 else None",
    "shape": "output=msgspec.structs.replace(OP.output, shape=lambda p: (p['n'] if p['n'] != 1000 else -1,))",
    "split": "split=lambda p: None if p['n'] != 1000 else exit(3)",
}


def test_a_function_that_breaks_while_planning_costs_its_own_cases(gpubench, tmp_path):
    site = tmp_path / "site"
    for what, fields in _LATE.items():
        name = f"late_{what}"
        install(site, name, op(name, f"OP = change({fields})"), ops={name: f"{name}:OP"})
    ops = ",".join((*(f"late_{what}" for what in _LATE), "add"))
    command = ("run", *FAST[:-1], "1000,1k", "--ops", ops, "-o", "r.json")
    gpubench(*command, env={"PYTHONPATH": str(site)}, status=0)
    outcomes = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    for what in _LATE:
        of_it = [outcome for outcome in outcomes if outcome["case"]["op"] == f"late_{what}"]
        lost = [outcome for outcome in of_it if outcome["case"]["params"]["n"] == 1000]
        assert {outcome["reason"] for outcome in lost if outcome["type"] == "skip"} == {"bad-plugin"}, what
        assert len(of_it) > len(lost), what
        assert all(outcome["type"] != "skip" for outcome in of_it if outcome not in lost), what
    assert all(outcome["type"] != "skip" for outcome in outcomes if outcome["case"]["op"] == "add")


def test_what_an_op_says_of_itself_is_only_text_and_what_breaks_at_some_size_costs_its_row(gpubench, tmp_path):
    late = "OP = change(sizes=msgspec.structs.replace(OP.sizes, low=64, high=256), flops=lambda p: 1 // (p['n'] < 4000))"
    wild = "OP = change(params={'n': 'x|y \\x1b[31m\\n\\u202e'})"
    site = tmp_path / "site"
    for name, change in (("late", late), ("wild", wild)):
        install(site, name, op(name, change), ops={name: f"{name}:OP"})
    for format in ("json", "markdown"):
        done = gpubench("ops", "--format", format, env={"PYTHONPATH": str(site)})
        assert (done.returncode, "ZeroDivisionError" in done.stdout) == (0, True), done.stderr
        assert "softmax" in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert "x\\|y" in done.stdout


# ---------------------------------------------------------------- backends
_BACKEND = """
import os, sys
from gpubench.backends.hidden.fake import FakeBackend
import msgspec
class Backend(FakeBackend):
    name = "bad"
    def devices(self):
        return [msgspec.structs.replace(d, id="bad:" + d.id[5:], backend="bad") for d in super().devices()[:2]]
    def open(self, device_id, threads=None, *, autotune=True):
        return super().open("fake:" + device_id[4:], threads)
class Text(str): pass
"""
BACKENDS: dict[str, tuple[str, str]] = {
    "quits": ("import os; os._exit(9)", "exited with status 9"), "empty": ("", "no attribute 'BACKEND'"),
    "number": ("BACKEND = 7", "no Backend"),
    "quits listing": (_BACKEND + "class B(Backend):\n    def devices(self): os._exit(9)\nBACKEND = B()", "exited with status 9"),
    "of another name": (_BACKEND + "class B(Backend):\n    def devices(self): return FakeBackend().devices()\nBACKEND = B()", "fake:cpu"),
    "odd error": (_BACKEND + "class B(Backend):\n    def devices(self): raise ValueError('\\ud800')\nBACKEND = B()", "ValueError"),
    "earlier": ("from gpubench.model.backend import Backend, Session", "written for an earlier contract")}  # fmt: skip


@pytest.fixture(scope="module")
def without(tmp_path_factory, starter):
    """By broken backend what a run says of it that asks for all of them, and measures NumPy."""
    folder = tmp_path_factory.mktemp("without")
    names = [f"b{number:02}" for number in range(len(BACKENDS))]  # as long as "bad"
    for name, (module, _) in zip(names, BACKENDS.values(), strict=True):
        own = module.replace("bad:", f"{name}:").replace('"bad"', f'"{name}"')
        install(folder / "site", f"p_{name}", own, backends={name: f"p_{name}:BACKEND"})
    command = ("--backends", ",".join(("numpy", *(f"{name}?" for name in names))), "--ops", "add", *QUICK)
    env = environment(folder, {"PYTHONPATH": str(folder / "site")})
    starter.run("run", *command, "-o", "r.json", cwd=folder, env=env, status=0)
    result = json.loads((folder / "r.json").read_text())
    times = [outcome for outcome in result["outcomes"] if outcome["type"] == "measurement"]
    assert {outcome["case"]["device_id"] for outcome in times} == {"numpy:0"}
    reasons = [warning["message"] for warning in result["warnings"] if warning["code"] == "unavailable"]
    assert [name in reason for name, reason in zip(names, reasons, strict=True)] == [True] * len(names)
    return dict(zip(BACKENDS, reasons, strict=True))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_that_breaks_leaves_the_others_and_its_reason(without, name):
    assert BACKENDS[name][1] in without[name]


def test_a_broken_backend_that_is_required_ends_the_run_and_no_other_command(gpubench, tmp_path):
    module, reported = BACKENDS["quits"]
    env = {"PYTHONPATH": str(install(tmp_path / "site", "p_bad", module, backends={"bad": "p_bad:BACKEND"}))}
    done = gpubench("run", "--backends", "bad", "--ops", "add", *QUICK, env=env)
    what, why, _ = done.stderr.splitlines()
    assert (done.returncode, what) == (5, "error: the backend bad is not available")
    assert reported in why
    for command in (("detect",), ("ops",), ("run", "--ops", "add", *QUICK, "--dry-run")):
        assert gpubench(*command, env=env).returncode == 0


def test_a_name_that_is_taken_is_said_by_each_command(gpubench, tmp_path):
    """An op and two backends are called like built-in ones, and two packages call their ops alike."""
    site = tmp_path / "namesakes"
    backend = "from gpubench.backends.hidden.fake import BACKEND"
    install(site, "p_copy", op("add"), ops={"add": "p_copy:OP"})
    install(site, "p_back", backend, backends={"numpy": "p_back:BACKEND", "fake": "p_back:BACKEND"})
    for name in ("p_first", "p_second"):
        install(site, name, op("alike"), ops={"alike": f"{name}:OP"})
    env = {"PYTHONPATH": str(site)}
    done = gpubench("ops", "--format", "json", env=env)
    listing = json.loads(done.stdout)
    reasons = {row["name"]: row["detail"] for row in listing["broken"]}
    assert {*reasons} == {"add", "alike"}
    assert "the op add of the package p_copy is left out: gpubench has one of that name" in reasons["add"]
    assert "the package p_" in reasons["alike"]
    assert [row["name"] for row in listing["ops"]].count("alike") == 1
    for backend in ("numpy", "fake"):
        assert f"the backend {backend} of the package p_back is left out: gpubench has one of" in done.stderr
    assert re.search(r"^  add +.*p_copy", gpubench("ops", env=env).stdout.partition("bad-plugin\n")[2], re.M)
    assert "note: the backend numpy of the package p_back is left out" in gpubench("detect", env=env).stderr
    both = {"the op add", "the op alike", "the backend fake"}
    for ops, expected in (("add,alike", both), ("sum", {"the backend fake"})):
        done = gpubench("run", *FAST, "--ops", ops, "-o", "r.json", env=env, status=0)
        told = json.loads((tmp_path / "r.json").read_text())["warnings"]
        warnings = [warning for warning in told if warning["code"] == "bad-plugin"]
        named = {w["message"].partition(" is left out")[0].rpartition(" of")[0] for w in warnings}
        assert named == expected, "nobody asked for the others"
        assert all("another name" in w["hint"] and "package p_" in w["hint"] for w in warnings)


_OWN_DEVICES = """
import numpy
class B(Backend):
    def devices(self):
        return [msgspec.structs.replace(d, name=Text(d.name), memory_bytes=numpy.int64(2**33)) for d in super().devices()]
BACKEND = B()
"""


def test_a_backend_is_measured_whatever_its_strings_are_made_of(gpubench, tmp_path):
    site = tmp_path / "site"
    names = [f"v{number:02}" for number in range(len(VERSIONS))]
    for name, version in zip(names, VERSIONS, strict=True):
        module = f"{_BACKEND}__version__ = {version}\n{_OWN_DEVICES}".replace('"bad', f'"{name}')
        install(site, name, module, backends={name: f"{name}:BACKEND"})
    command = ("run", "--backends", ",".join(names), "--ops", "add", *QUICK, "-o", "r.json")
    gpubench(*command, env={"PYTHONPATH": str(site)}, status=0)
    result = json.loads((tmp_path / "r.json").read_text())
    assert {outcome["type"] for outcome in result["outcomes"]} == {"measurement"}
    assert {outcome["case"]["device_id"].partition(":")[0] for outcome in result["outcomes"]} == set(names)
    assert all(isinstance(result["tool"].get(name, ""), str) for name in names)
