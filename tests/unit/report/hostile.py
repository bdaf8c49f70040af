"""Runs whose every free text is chosen by somebody who wants to break a format."""

import itertools

from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench.result.machine import Fact
from gpubench.result.run import Blas, Ci, Environment, Git, RunWarning
from tests.examples import CHARACTERS
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, curve, failed, measured, run_of, skipped

# Each of them means something to some reader of ours.
NAMES = (
    "a|b", "`rm -rf`", "``` code", "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!-- x", "-->", "&lt;b&gt;",
    "[x](javascript:alert(1))", "![x](http://example.com/x.png)", "<http://example.com>", "[x]: http://example.com", "[x]", "> quote", "===", "---", "+ item", "1) item", "    code","**b** _i_ ~~s~~", "# heading", "- item", "1. item",
    "| --- |", "\\", "\\|", "=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '"quoted","', "a\nb", "a\r\nb", "a\n\n## h", "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://example.com\x07link\x1b]8;;\x07", "\x9b31m", "\x00", "\x07\x08\x7f", "\u202egpu\u202c", "\u2066x\u2069", "\u200bzero\u200d",
    "\u2028line\u2029", "\x85next", "\x0b\x0c", "🔥👩\u200d🚀", "ＧＰＵ", "עברית", "e\u0301" * 20, "x" * 200, "a b  c", " ", "NaN", "null", "True", "1e9", "::error::x", "%0A", "$(id)", "';--",
)  # fmt: skip
JOINED = st.lists(st.sampled_from(NAMES), min_size=2, max_size=4).map("".join)
TEXTS = st.one_of(st.sampled_from(NAMES), st.text(CHARACTERS, min_size=1, max_size=200), JOINED)


def hostile_run(texts, *, ids=False):
    """One run with `texts` in turn wherever a result has free text; `ids`: in device ids and case ids, too.

    (No run of ours writes such ids; a file that somebody has changed may.)
    """
    some = itertools.cycle(texts).__next__
    wild = f"cupy:{some()}" if ids else "cupy:0"
    found = list(curve({64: 0.25, 256: 4.0}, sessions=1, device=wild))
    found += [
        failed(case("add", 64, device=wild), "worker-crashed", some()),
        replace(failed(case("add", 128, device=wild)), hint=some(), stderr_tail=some()),
        skipped(case("add", 256, device=wild), "out-of-memory", some()),
        replace(skipped(case("add", 512, device=wild)), hint=some(), reason=some()),
        replace(measured(case(n=64, implementation="tuned", device="wgpu:0"), 1e-3, sessions=1), kernel=some()),
    ]  # fmt: skip
    gpus = replace(GPU, id=wild, name=some(), driver=some()), replace(SOFTWARE, name=some(), driver=some())
    devices = (replace(CPU, name=some()), *gpus)
    run = run_of(
        found, devices=devices, sessions=1,
        warnings=[RunWarning(code="noisy", message=some(), hint=some(), id=found[1].id, data={some(): some()})],
    )  # fmt: skip
    gpu = replace(run.machine.gpus[0], name=Fact(some(), "ok", "nvml"))
    cpu = replace(run.machine.cpu, model=Fact(some(), "ok", "proc"))
    workers = [
        replace(worker, blas=Blas(library=some(), version=some(), kernel=some()), env={some(): some()})
        for worker in run.sessions[0].workers
    ]
    return replace(
        run, label=some(), tags=[some(), some()], argv=[some()], tool={"gpubench": some(), some(): some()},
        machine=replace(run.machine, gpus=[gpu], cpu=cpu),
        environment=Environment(
            variables={some(): some()}, context={some(): some()}, git=Git(commit=some(), branch=some()),
            ci=Ci(provider=some(), run_url=some(), runner_image=some()),
        ),
        sessions=[replace(run.sessions[0], workers=workers)],
    )  # fmt: skip
