"""hyperfine's JSON export: every sample of each case as the time of a command, in seconds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.report.exporters import Estimated, estimated, only_run
from gpubench.report.layout import RenderOptions, json_text


class HyperfineCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One case. The statistics are those of `times`; `stddev` is null for a single sample."""

    command: str
    mean: float
    stddev: float | None
    median: float
    user: float
    system: float
    min: float
    max: float
    times: list[float]
    exit_codes: list[int]
    parameters: dict[str, str]


class Export(msgspec.Struct, frozen=True):
    """The whole file."""

    results: list[HyperfineCommand]


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The export of one run. Raises UsageError for several runs."""
    cases = estimated(only_run(analyses, "hyperfine"))
    parameters = [_parameters(case) for case in cases]
    names = {name for found in parameters for name in found}
    vary = {name for name in names if len({found.get(name) for found in parameters}) > 1}
    commands = [
        _command(case, {name: value for name, value in found.items() if name in vary})
        for case, found in zip(cases, parameters, strict=True)
    ]
    return json_text(Export(commands), options)


def _command(case: Estimated, parameters: dict[str, str]) -> HyperfineCommand:
    """`parameters`: what hyperfine would have scanned over, so nothing that is the same in all commands."""
    times = case.samples
    return HyperfineCommand(
        command=case.id, mean=statistics.fmean(times), stddev=statistics.stdev(times) if len(times) > 1 else None,
        median=statistics.median(times), user=0.0, system=0.0, min=min(times), max=max(times),
        times=times, exit_codes=[0] * len(times), parameters=parameters,
    )  # fmt: skip


def _parameters(case: Estimated) -> dict[str, str]:
    """What tells the cases apart; hyperfine's plotting scripts take one of them as the x axis."""
    what = case.row.case
    sizes = {name: str(value) for name, value in sorted(what.params.items())}
    return {
        "op": what.op, **sizes, "dtype": what.dtype, "form": what.form_id, "regime": what.regime_id,
        "device": what.device_id,
    }  # fmt: skip
