"""Go benchmark text, which benchstat reads: one line per case and session, the parts of the id as name=value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.machine import fact
from gpubench.base.escaping import printable
from gpubench.report.exporters import Estimated, decimal, estimated, rate_of
from gpubench.report.layout import RenderOptions

NS = 1e9
# Go's names of what the kernel calls otherwise; the rest has the same name.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "loongarch64": "loong64"}


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The runs one after the other: a heading holds until the next one, so several files go into one."""
    return "\n".join(_run_text(analysis) for analysis in analyses)


def _run_text(analysis: Analysis) -> str:
    machine = analysis.run.machine
    system = printable(str(fact(machine, "platform", "os") or "unknown")).lower()
    kernel_name = printable(str(fact(machine, "platform", "arch") or "unknown"))
    cpu = printable(str(fact(machine, "cpu", "model") or "unknown"))
    heading = [
        f"goos: {system}", f"goarch: {_ARCHITECTURES.get(kernel_name, kernel_name)}", "pkg: gpubench", f"cpu: {cpu}",
    ]  # fmt: skip
    lines = [line for case in estimated(analysis) for line in _lines(case)]
    return "\n".join([*heading, *lines]) + "\n"


def _lines(case: Estimated) -> Iterator[str]:
    name = benchmark_name(case)
    for session in case.sessions:
        rate = rate_of(case.row, session.median_s)
        work = f" {decimal(rate.value)} {rate.unit}" if rate is not None else ""
        yield f"{name} {session.launches} {decimal(session.median_s * NS)} ns/op{work}"


def benchmark_name(case: Estimated) -> str:
    """`BenchmarkMatmul/n=4096/dtype=float32/form=tuned/regime=resident/backend=cupy/dev=0`."""
    what = case.row.case
    backend, _, number = what.device_id.rpartition(":")
    params = [f"{key}={value}" for key, value in sorted(what.params.items(), key=_n_first)]
    parts = [
        "Benchmark" + "".join(word.capitalize() for word in what.op.split("_")), *params,
        f"dtype={what.dtype}", f"form={what.form_id}", f"regime={what.regime_id}",
        f"backend={backend.replace(':', '-')}", f"dev={number.replace('-', '_')}",
    ]  # fmt: skip
    # White space ends a name, a slash begins the next part of it, and -1 at the end would be GOMAXPROCS.
    return "/".join("".join(c if c.isprintable() and c not in " /" else "_" for c in part) for part in parts)


def _n_first(param: tuple[str, int]) -> tuple[bool, str]:
    return param[0] != "n", param[0]
