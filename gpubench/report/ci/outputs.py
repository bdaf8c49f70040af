"""Results of a step for later steps: `$GITHUB_OUTPUT`."""

from __future__ import annotations

import hashlib

from gpubench.report.ci.outcome import Outcome


def outputs(found: Outcome, result_file: str | None) -> str:
    """Lines `name=value` for the file; `result_file` is the result that was judged, None where none was kept."""
    pairs = {
        "verdict": found.verdict,
        "slower": str(found.slower),
        "faster": str(found.faster),
        "unsure": str(found.unsure),
        "exit-code": str(found.exit_code),
        "result-file": result_file or "",
    }
    return "".join(_pair(name, value) for name, value in pairs.items())


def _pair(name: str, value: str) -> str:
    if "\n" not in value and "\r" not in value:
        return f"{name}={value}\n"
    # No line of the value can be this end mark, so that a file name cannot set another output.
    mark = "gpubench-" + hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{name}<<{mark}\n{value}\n{mark}\n"
