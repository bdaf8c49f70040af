"""False alarms and power of `gpubench compare` on real sessions: the tables in docs/comparing.md.

Run: .venv/bin/python benchmarks/false_alarms.py DEVICE [--sessions N] [--ops LIST] [--sizes A,B]
    [--samples N] [--budget TIME] [-o FILE] [--from FILE]

One run of N fresh sessions (48) measures DEVICE (numpy:0, cupy:0, wgpu:0 or fake:cpu). Every second session is
unchanged. In the others, every tenth or every fifth launch at the larger size of each op is made twice
(benchmarks/altered_backend.py). Then two questions are asked:

- False alarms: five neighbouring pairs of unchanged sessions are assigned to base and new in all ways. Any
  SLOWER is a false alarm.
- Power: five changed sessions are compared with five unchanged sessions, which took turns with them. One slowed
  case is looked for among all cases that were not changed.

The verdicts come from `compare` itself. Sessions during which other processes used the CPU are repeated and
left out, as in every run. Overlapping sets of sessions are not independent trials: with 24 unchanged sessions,
the shares are accurate to a few percent. `--from` reads a file that `-o` has saved.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpubench.analysis.samples import observations, used_sessions
from gpubench.base.units import parse_sizes
from gpubench.compare.comparison import CompareOptions, JudgedCase
from gpubench.compare.two_runs import compare, noise, permutations
from gpubench.curves import stats
from gpubench.result import store
from gpubench.result.run import Measurement, Run

SIDE = 5
SHARES = (0.1, 0.2)
ORDER = (0.0, 0.1, 0.0, 0.2)
TARGETS = {0.1: 0.80, 0.2: 0.95}
MOST_ALARMS = 0.05
MOST_SETS = 10


class Pool(NamedTuple):
    """One run with altered sessions."""

    run: Run  # run
    extra: dict[int, float]  # by session: the share of launches that were made twice

    def sessions(self, *shares: float) -> list[int]:
        """Return the used sessions with one of these shares, in the order of time.

        A session and its repeats give one session, because `compare` takes them as one observation.
        """
        used = used_sessions(self.run) or ()
        return observations(self.run, [i for i in self.extra if self.extra[i] in shares and i in used])


def measure(options: argparse.Namespace, folder: Path) -> Pool:
    """Measure one run whose sessions repeat the shares of ORDER, and return its pool. Ends the program if the
    run has not all of its sessions."""
    site = folder / "site" / "altered-1.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: altered\nVersion: 1\n")
    (site / "entry_points.txt").write_text("[gpubench.backends]\naltered = altered_backend:BACKEND\n")
    log, result = folder / "log", folder / "pool.json"
    largest = max(parse_sizes(options.sizes))
    paths = [str(site.parent), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "ALTERED_DEVICE": options.device, "ALTERED_LOG": str(log),
        "ALTERED_EXTRA": ",".join(map(str, ORDER)), "ALTERED_SIZES": str(largest),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "gpubench", "run", "--quick", "--no-progress", "--devices", "altered:0",
        "--ops", options.ops, "--sizes", options.sizes, "--implementations", options.implementations, "--regimes",
        "resident-queued",
        "--sessions", str(options.sessions), "--min-samples", str(options.samples),
        "--max-samples", str(options.samples),
        "--format", "csv", "-o", str(result), *(["--budget", options.budget] if options.budget else []),
    ]  # fmt: skip
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
    extra = [float(line) for line in log.read_text().splitlines()]
    run = store.load(result)
    if len(extra) != len(run.sessions):
        raise SystemExit(
            f"{len(extra)} openings for {len(run.sessions)} sessions: a worker died; measure again"
        )
    order = sorted(session.index for session in run.sessions)
    return Pool(run, dict(zip(order, extra, strict=True)))


def part(run: Run, sessions: Sequence[int], ids: frozenset[str], name: str) -> Run:
    """Return the run with only these sessions and cases."""
    chosen = frozenset(sessions)
    outcomes = [
        msgspec.structs.replace(outcome, blocks=[block for block in outcome.blocks if block.session in chosen])
        for outcome in run.outcomes
        if isinstance(outcome, Measurement) and outcome.id in ids
    ]
    records = [session for session in run.sessions if session.index in chosen]
    return msgspec.structs.replace(run, id=name, sessions=records, outcomes=outcomes)


def five_pairs(sessions: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """Return sets of five pairs of neighbouring sessions: all sets, or a sample of MOST_SETS with a fixed seed."""
    pairs = list(zip(sessions[0::2], sessions[1::2], strict=False))
    every = list(itertools.combinations(pairs, SIDE))
    return every if len(every) <= MOST_SETS else random.Random(1).sample(every, MOST_SETS)


def false_alarms(pool: Pool, raised: dict[str, float]) -> Iterator[tuple[float, float, float, float]]:
    """Yield four numbers for each comparison of unchanged sessions: whether any case is SLOWER, whether any is SLOWER
    beyond its `raised` threshold, the share of cases that are SAME, and the share that would be SAME by the low ends
    alone."""
    ids = frozenset(case.id for case in pool.run.outcomes)
    unchanged = pool.sessions(0.0)
    sets = [*five_pairs(unchanged), *five_pairs(unchanged[1:])]
    for permutation in itertools.chain.from_iterable(map(permutations, sets)):
        for base, new in ((permutation.base, permutation.new), (permutation.new, permutation.base)):
            sides = part(pool.run, base, ids, "base"), part(pool.run, new, ids, "new")
            comparison = compare(("base", sides[0]), [("new", sides[1])], CompareOptions())
            slower = [case for case in comparison.cases if case.verdict == "SLOWER"]
            same = [case.verdict == "SAME" for case in comparison.cases]
            alone = [case.verdict == "SAME" or _same_but_for_shape(case) for case in comparison.cases]
            yield (
                bool(slower), any((case.ratio or 0) > 1 + raised[case.id] for case in slower),
                sum(same) / len(same), sum(alone) / len(alone),
            )  # fmt: skip


def _same_but_for_shape(case: JudgedCase) -> bool:
    """Return whether the low ends are SAME but the medians or slow ends differ."""
    assert case.threshold is not None
    return case.reason == "shape" and max(case.ratio or 1, 1 / (case.ratio or 1)) <= 1 + case.threshold


def finds(pool: Pool, share: float, case_id: str, others: frozenset[str]) -> Iterator[tuple[str, float]]:
    """Compare sessions in which the case `case_id` was slowed by `share` with neighbouring unchanged sessions. Yield
    the verdict on this case and its ratio new / base for each comparison. `others` are the cases that were not
    changed."""
    slowed, unchanged = pool.sessions(share), pool.sessions(0.0)
    near = [
        [
            *[index for index in unchanged if index < session][-1:],
            *[index for index in unchanged if index > session][:1],
        ]
        for session in slowed
    ]
    for start in range(len(slowed) - SIDE + 1):
        for base in itertools.product(*near[start : start + SIDE]):
            if len(set(base)) < SIDE:
                continue
            new = slowed[start : start + SIDE]
            sides = (
                part(pool.run, base, others | {case_id}, "base"),
                part(pool.run, new, others | {case_id}, "new"),
            )
            comparison = compare(("base", sides[0]), [("new", sides[1])], CompareOptions())
            case = next(case for case in comparison.cases if case.id == case_id)
            yield case.verdict, case.ratio or float("nan")


def report(pool: Pool) -> bool:
    """Print the tables, and return whether every target is met."""
    rows = [case for case in pool.run.outcomes if isinstance(case, Measurement)]
    largest = max(case.case.params["n"] for case in rows)
    changed = [case.id for case in rows if case.case.params["n"] == largest]
    others = frozenset(case.id for case in rows) - frozenset(changed)
    quiet = noise(part(pool.run, pool.sessions(0.0), others | frozenset(changed), "quiet"))
    raised = {case.id: case.threshold for case in quiet.cases}
    seen = list(false_alarms(pool, raised))
    alarms, beyond, same, alone = (sum(case[i] for case in seen) / len(seen) for i in range(4))
    print(
        f"{pool.run.devices[0].name}, {len(pool.sessions(0.0))} unchanged sessions and "
        f"{len(pool.sessions(*SHARES))} with more work, {len(rows)} cases, {SIDE} sessions a side"
    )
    load = [session.foreign_cpu_share for session in pool.run.sessions if session.foreign_cpu_share is not None]
    if load:
        print(f"other processes took {min(load):.0%} to {max(load):.0%} of the CPUs in a session")
    print(f"A/A: {len(seen)} comparisons, any SLOWER in {alarms:.1%} (at most {MOST_ALARMS:.0%}); "
          f"with the thresholds of `gpubench noise` {beyond:.1%}")  # fmt: skip
    print(f"A/A: {same:.0%} of the verdicts are SAME; by the low ends alone {alone:.0%} were")
    print(
        "case                                              spread  "
        + "  ".join(f"{s:+.0%} found  ratio" for s in SHARES)
    )
    totals: dict[float, list[bool]] = {share: [] for share in SHARES}
    spreads = {case.id: case.spread for case in quiet.cases}
    for case_id in changed:
        line = f"{case_id.replace('@altered:0', ''):48}  {spreads[case_id]:5.1%} "
        for share in SHARES:
            verdicts = list(finds(pool, share, case_id, others))
            hits = [word == "SLOWER" for word, _ in verdicts]
            totals[share] += hits
            line += f"  {sum(hits) / len(hits):9.0%}  {stats.median([ratio for _, ratio in verdicts]):5.3f}"
        print(line)
    met = alarms <= MOST_ALARMS
    for share, hits in totals.items():
        part_found = sum(hits) / len(hits)
        met = met and part_found >= TARGETS[share]
        print(
            f"{share:+.0%}: {part_found:.0%} of {len(hits)} comparisons found (at least {TARGETS[share]:.0%})"
        )
    print("every target is met" if met else "A TARGET IS MISSED")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", nargs="?", default="numpy:0")
    parser.add_argument("--sessions", type=int, default=48)
    parser.add_argument("--samples", type=int, default=30, help="of each case in each session")
    parser.add_argument("--ops", default="add,mul,relu,tanh,sum")
    parser.add_argument("--sizes", default="20000,40000")
    parser.add_argument("--implementations", default="library")
    parser.add_argument("--budget", help="as many sessions as fit, such as 230s")
    parser.add_argument("-o", "--output", help="where the sessions are saved, .json or .json.gz")
    parser.add_argument("--from", dest="source", help="a file that -o has saved: measure nothing")
    options = parser.parse_args()
    if options.source:
        run = store.load(options.source)
        extra = [float(text) for text in run.environment.context["extra"].split(",")]
        pool = Pool(run, dict(zip(sorted(session.index for session in run.sessions), extra, strict=True)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            pool = measure(options, Path(folder))
    if options.output:
        shares = ",".join(f"{pool.extra[index]:g}" for index in sorted(pool.extra))
        environment = msgspec.structs.replace(pool.run.environment, context={"extra": shares})
        store.save(msgspec.structs.replace(pool.run, environment=environment), options.output)
    sys.exit(not report(pool))


if __name__ == "__main__":
    main()
