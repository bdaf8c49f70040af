"""`--ops claims`: the ops, sizes and cases that answer a table of claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpubench import backends, kernels
from gpubench.analysis.claims import BUILTIN, Claim, load
from gpubench.base.errors import UsageError
from gpubench.base.units import parse_sizes, split_words
from gpubench.cli.options import RunOptions
from gpubench.kernels.contract.op import Ladder
from gpubench.result.case import SITUATIONS, Case, selector
from gpubench.result.run import Device

CLAIMS = "claims"  # the word of --ops
STEP = 4  # sizes inside the range of a break-even lie at most so far apart


class _Part(NamedTuple):
    """A selector of a claim, and its segments as far as they are written."""

    claim: Claim  # that it is of
    text: str  # as far as it is written

    @property
    def segments(self) -> list[str]:
        return [*self.text.partition("@")[0].split("/"), "*", "*", "*", "*"]

    @property
    def ops(self) -> list[str]:
        """The ops that it names; none if any op answers it."""
        word = self.segments[0]
        return [word] if word in kernels.names() else list(kernels.groups().get(word, ()))

    @property
    def variant(self) -> str:
        """The kernel that it names: `tiled` of `tuned-tiled`."""
        return self.segments[3].partition("-")[2]

    @property
    def kind(self) -> str:
        """The kind of device that answers it."""
        return self.claim.device or ("hybrid" if "@hybrid" in self.text else "gpu")

    def sizes(self, ladder: Ladder) -> list[int]:
        """Return the sizes that it names, sizes around the claimed break-even, or the largest of the op."""
        size = self.segments[1].partition(",")[0].removeprefix("n=")
        if size[:1].isdigit():
            return parse_sizes(size.replace("..", ":"))
        if self.claim.break_even is None:
            return [ladder.high]
        low, high = self.claim.break_even
        first, last = max(low, ladder.low), min(high, ladder.high)
        steps = max(1, math.ceil(math.log(last / first, STEP)))
        inside = [first * (last / first) ** (i / steps) for i in range(1, steps)]
        around = [max(low / 2, ladder.low), *map(ladder.whole, inside), min(2 * high, ladder.high)]
        return sorted({int(n) for n in (first, last, *around)})


class ClaimPlan:
    """Words of `run` that measure what some claims are about."""

    def __init__(self, claims: Iterable[Claim]) -> None:
        self._parts = [_Part(claim, text) for claim in claims for text in _selectors(claim)]
        self._tests = [(part, selector(part.text, option="--claims")) for part in self._parts]
        self.hybrid = any(part.kind == "hybrid" for part in self._parts)
        self.sizes: dict[str, list[int]] = {}
        for part in self._parts:
            for op in part.ops:
                named = part.sizes(kernels.load(op).sizes)
                self.sizes[op] = sorted({*self.sizes.get(op, []), *named})

    def options(self, options: RunOptions) -> RunOptions:
        """Return the options with the ops in place of the word. What is given beside it stays."""
        if not self.sizes:
            raise UsageError(
                "empty-selection", f"--ops {CLAIMS} measures nothing", why="no claim names an op of gpubench"
            )
        others = [word for word in split_words(options.ops) if word != CLAIMS]
        sizes = [f"{op}={','.join(map(str, named))}" for op, named in self.sizes.items()]
        variants = dict.fromkeys(part.variant for part in self._parts if part.variant)
        software = any(part.kind == "software" for part in self._parts)
        return options.replace(
            ops=",".join([*self.sizes, *others]), sizes=[*sizes, *(options.sizes or [])],
            regimes=options.regimes or "waited,queued,copied", variant=options.variant or [*variants],
            allow_software=options.allow_software or software, quick=not options.rigorous,
        )  # fmt: skip

    def keep(self, devices: Sequence[Device], keep: Callable[[Case], bool] | None) -> Callable[[Case], bool]:
        """Return a filter of the cases: all of the CPU, and what a claim selects on a device of its kind.

        A GPU is also measured with copies, which the table shows. Another backend of the same GPU answers only for
        kernels that a claim names. A split with a software adapter answers nothing.
        """
        kinds = {device.id: "hybrid" if device.composed else device.kind for device in devices}
        gpus = [device for device in devices if device.kind == "gpu"]
        first = backends.drivers(gpus)
        second = {device.id for device in gpus if first[device.name] != device.backend}

        def selects(case: Case) -> bool:
            kind = kinds[case.device_id]
            if kind == "cpu":
                return True
            tests = [(part, matches) for part, matches in self._tests if part.kind == kind]
            if case.device_id in second:
                tests = [(part, matches) for part, matches in tests if part.variant]
            elif kind == "gpu" and case.regime == SITUATIONS["copied"]:
                return True
            return (kind != "hybrid" or bool(gpus)) and any(matches(case) for _, matches in tests)

        return lambda case: selects(case) and (keep is None or keep(case))


def _selectors(claim: Claim) -> Iterator[str]:
    """Yield what a claim selects: its cases, what stands beside them, and what they are held against."""
    yield from claim.cases
    yield from (text for text in (claim.also, claim.against) if text and text not in ("cpu", "gpu"))


def default(options: RunOptions) -> str | None:
    """Return the table that `--ops claims` is about where none is named."""
    return BUILTIN if CLAIMS in split_words(options.ops) else None


def plan(options: RunOptions) -> ClaimPlan | None:
    """Return the plan of `--ops claims`; None without that word."""
    table = default(options)
    return None if table is None else ClaimPlan(load(options.claims or table))
