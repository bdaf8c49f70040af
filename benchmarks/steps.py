"""Show the steps of a run: the end, the duration, the sizes and the cases of each step, and the time of the
first answers.

Run: .venv/bin/python benchmarks/steps.py [OPTIONS OF gpubench run]

The table goes to stdout, and the answer of the run goes to stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time

from gpubench.cli import main as gpubench
from gpubench.measure import runner


def main() -> None:
    """Make one run, and print its table."""
    began, answered_s = time.monotonic(), dict[str, float]()
    finish = runner.StepRun.finish
    lines = ["| ends at | s | trials | op: size x cases |", "|---|---|---|---|"]

    def finish_and_time(run: runner.StepRun) -> bool:
        passed, end = finish(run), time.monotonic()
        items = run.step.workloads
        cells = [f"{item.op.name}: {item.n} x {len(item.cases)}" for item in items]
        lines.append(f"| {end - began:.1f} | {run.took_s:.2f} | {run.tuning_s:.2f} | {', '.join(cells)} |")
        for item in items:
            answered_s.setdefault(item.op.name, end - began)
        return passed

    setattr(runner.StepRun, "finish", finish_and_time)  # noqa: B010
    sys.argv = ["gpubench", "run", "--no-progress", *sys.argv[1:]]
    with contextlib.redirect_stdout(sys.stderr):
        code = gpubench()
    print("\n".join(lines))
    last = max(answered_s.values(), default=0.0)
    print(f"\nEvery op has an answer at {last:.1f} s, the run ends at {time.monotonic() - began:.1f} s.")
    sys.exit(code)


if __name__ == "__main__":
    main()
