"""hyperfine's JSON export: every sample of each case as the time of a command, in seconds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gpubench.analysis.analyse import Analysis
from gpubench.report.exporters import Estimated, estimated, only_run
from gpubench.report.layout import RenderOptions, json_text


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
    return json_text({"results": commands}, options)


def _command(case: Estimated, parameters: dict[str, str]) -> dict[str, Any]:
    """`parameters`: what hyperfine would have scanned over, so nothing that is the same in all commands. The
    statistics are those of `times`; `stddev` is null for a single sample."""
    times = case.samples
    return {
        "command": case.id, "mean": statistics.fmean(times),
        "stddev": statistics.stdev(times) if len(times) > 1 else None, "median": statistics.median(times),
        "user": 0.0, "system": 0.0, "min": min(times), "max": max(times), "times": times,
        "exit_codes": [0] * len(times), "parameters": parameters,
    }  # fmt: skip


def _parameters(case: Estimated) -> dict[str, str]:
    """What tells the cases apart; hyperfine's plotting scripts take one of them as the x axis."""
    what = case.row.case
    sizes = {name: str(value) for name, value in sorted(what.params.items())}
    return {
        "op": what.op, **sizes, "dtype": what.dtype, "form": what.form_id, "regime": what.regime_id,
        "device": what.device_id,
    }  # fmt: skip
