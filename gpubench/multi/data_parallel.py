"""Training on all ranks of a device group. Each rank computes the gradients of its part of the batch. The ranks
average them, and each updates its own copy of the weights.

The stages of a rank between two exchanges are one launch. An exchange is enqueued on the same stream as the
launches of the ranks, so that no rank waits for the host. Whenever the weights are checked, all copies of them
must be equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from gpubench.backends.contract import Launch, Links, Session
from gpubench.backends.contract.protocols import Chains
from gpubench.backends.shared.host import host_dtype
from gpubench.backends.shared.sides import DividedBuffer, Part, compile_stage, stage_case
from gpubench.base import hash_text
from gpubench.base.errors import BackendError, Unsupported
from gpubench.kernels.contract.op import Array, Op, Operand, Stage, each
from gpubench.measure.worker.workspace import Wrong, chain_refusal
from gpubench.result.case import Case
from gpubench.result.run import Check


def rank_case(case: Case, ranks: int) -> Case:
    """Return the case that one rank runs, whose size is that of `case` divided by `ranks`."""
    return replace(case, params={**case.params, "n": case.params["n"] // ranks})


def refuse(op: Op, case: Case, session: Session, ranks: int) -> BackendError | None:
    """Return why the ranks cannot run the training, or None if they can. `session` is that of the first rank."""
    if case.params["n"] % ranks:
        return Unsupported(
            f"a batch of {case.params['n']} has no equal parts for {ranks} ranks", reason="shape"
        )
    own = rank_case(case, ranks)
    # Without the param `tokens` all rows belong to one sequence, which cannot be divided among ranks.
    if (unfit := op.fits({"tokens": case.params["n"], **own.params})) is not None:
        return Unsupported(f"each of {ranks} ranks has {own.n} rows, but {unfit}", reason="shape")
    return chain_refusal(session, op, own)


def segments(op: Op) -> Iterator[tuple[list[Stage], list[str]]]:
    """Yield the segments of an op, each with its stages and the names of the values that the ranks average after
    it. A segment ends before the first stage that reads one of these values."""
    stages: list[Stage] = []
    waiting: list[str] = []
    for stage in op.stages:
        if not {*waiting}.isdisjoint(stage.reads):
            yield stages, waiting
            stages, waiting = [], []
        stages.append(stage)
        waiting += [name for name in stage.writes if name in op.averaged]
    yield stages, waiting


class Rank:
    """One rank of a training, with its part of every operand and one launch for each segment."""

    def __init__(self, whole: ParallelLaunch, session: Session, place: int) -> None:
        op, case = whole.op, whole.case
        self.session, self._whole, self._place = session, whole, place
        self.way = session.transfers("tuned")
        self._case = rank_case(case, whole.links.ranks)
        self.parts = [
            buffer.part(session, "training", operand.shape(self._case.params))
            for operand, buffer in zip(op.operands, whole.buffers, strict=True)
        ]
        self._between = {
            operand.name: session.allocate(*operand.form(self._case.params, case.dtype))
            for operand in op.between
        }
        names = (operand.name for operand in op.operands)
        self._values = {
            **self._between,
            **{name: part.buffer for name, part in zip(names, self.parts, strict=True)},
        }
        plan = list(segments(op))
        self.launches = [self._compile(stages) for stages, _ in plan]
        self.averaged = [[self._values[name] for name in values] for _, values in plan]

    def _compile(self, stages: Sequence[Stage]) -> Launch:
        own = (stage_case(self.session, stage, self._case) for stage in stages)
        steps = [compile_stage(self.session, stage, self._values) for stage in own]
        assert isinstance(self.session, Chains)
        return self.session.chain(steps, steps[-1][1])

    def run(self, repeat: int) -> None:
        """Enqueue the launches of this rank `repeat` times, without any exchange."""
        for _ in range(repeat):
            for launch in self.launches:
                self.session.run(launch)

    def send(self) -> None:
        """Copy this rank's part of the operands that were uploaded since the last call to the device."""
        import numpy as np

        for operand, buffer, part in zip(self._whole.op.operands, self._whole.buffers, self.parts, strict=True):
            if part.version != buffer.version:
                self.way.upload(part.buffer, np.ascontiguousarray(self.split(operand, part, buffer.host)))
                part.version = buffer.version

    def split(self, operand: Operand, part: Part, array: Array) -> Array:
        """Return this rank's rows of `array`, or the whole array if the operand, such as a weight, is not divided
        among the ranks."""
        rows = part.shape[0]
        return array[self._place * rows : (self._place + 1) * rows] if operand.travels else array

    def close(self) -> None:
        """Free the buffers between the stages."""
        self.session.enter()
        for buffer in self._between.values():
            self.session.free(buffer)
        self._between = {}


class ParallelLaunch(Launch):
    """The launch of a training on all ranks of a device group."""

    def __init__(
        self,
        op: Op,
        case: Case,
        inputs: Sequence[DividedBuffer],
        output: Any,
        sessions: Sequence[Session],
        links: Links,
    ) -> None:
        self.op, self.case, self.links, self.output = op, case, links, output
        self.buffers: list[DividedBuffer] = [*inputs, *each(output)]
        self._sent: list[int] = []
        self.ranks: list[Rank] = []
        for place, session in enumerate(sessions):
            session.enter()
            self.ranks.append(Rank(self, session, place))
        self.staging = self.ranks[0].way.staging
        hashes = " ".join(str(launch.kernel_hash) for launch in self.ranks[0].launches)
        self.kernel_hash = hash_text(hashes)

    @property
    def is_over(self) -> bool:
        """Whether all output buffers were freed. This launch is then never run again."""
        return all(buffer.is_freed for buffer in each(self.output))

    def run(self, repeat: int) -> None:
        """Send newly uploaded operands to the ranks, and enqueue the launches on all ranks `repeat` times, segment
        by segment."""
        versions = [buffer.version for buffer in self.buffers]
        if versions != self._sent:
            for rank in self.ranks:
                rank.session.enter()
                rank.send()
            self._sent = versions
        for buffer in each(self.output):
            buffer.last = self
        for _ in range(repeat):
            for segment in range(len(self.ranks[0].launches)):
                for rank in self.ranks:
                    rank.session.enter()
                    rank.session.run(rank.launches[segment])
                gradients = [rank.averaged[segment] for rank in self.ranks]
                if any(gradients):
                    with self.links.guard():
                        self.links.average(gradients)

    def fetch(self, output: DividedBuffer, host: Array) -> None:
        """Copy an output to `host`: the rows of all ranks, or the weights of the first rank. Raises Wrong if
        another rank has different weights."""
        import numpy as np

        number = self.buffers.index(output)
        operand = self.op.operands[number]
        for place, rank in enumerate(self.ranks):
            rank.session.enter()
            part = rank.parts[number]
            if operand.travels or place == 0:
                target = rank.split(operand, part, host)
            else:
                target = np.empty(part.shape, host_dtype(output.dtype))
            rank.way.download(part.buffer, target)
            if not operand.travels and target.tobytes() != host.tobytes():
                check = Check(ok=False, max_error=None, limit=0.0, scale="value", index=[place])
                raise Wrong(check, f": rank {place} has another {operand.name} than rank 0")

    def close(self) -> None:
        """Free what the ranks allocated for this launch."""
        for rank in self.ranks:
            rank.close()
