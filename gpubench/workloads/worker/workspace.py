"""Child side: the workspace of a network, whose tuned form runs its stages as one launch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from gpubench import kernels
from gpubench.backends.contract import Buffer, Launch, Session
from gpubench.base.errors import BackendError
from gpubench.kernels.contract.op import Op
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Workspace, Wrong, no_library
from gpubench.result.case import Case
from gpubench.result.run import Placing, StageTimes
from gpubench.workloads.worker import chains, places, stages


class ChainWorkspace(Workspace):
    """The workspace of a network on one device: beside inputs and outputs the values between its stages."""

    @functools.cached_property
    def built(self) -> dict[str, chains.Chain]:
        """The chains that were made, by the form of their cases."""
        return {}

    def chain(self, case: Case) -> chains.Chain | None:
        """Return the stages that the case runs. Returns None for the library form, which is one expression."""
        if not chains.staged(self.op, case):
            return None
        if case.form_id not in self.built:
            self.built[case.form_id] = chains.Chain(self.session, self.op, case)
        return self.built[case.form_id]

    def output(self, case: Case) -> Buffer | None:
        """Return the output, full of sentinels as all between the stages is."""
        output = super().output(case)
        self.spoil_between(case)
        return output

    def tune(self, case: Case) -> None:
        """Let each stage choose its kernel."""
        chain = self.chain(case)
        if chain is None:
            super().tune(case)
        else:
            chain.tune(self.buffers, self.output(case))

    def compile(self, case: Case, buffers: Sequence[Buffer], output: Buffer) -> Launch:
        """Return all stages as one launch."""
        chain = self.chain(case)
        return super().compile(case, buffers, output) if chain is None else chain.compile(buffers, output)

    @staticmethod
    def refuse(session: Session, op: Op, case: Case) -> BackendError | None:
        """Return why the session cannot run the stages, or None."""
        missing = [why for name in {stage.op for stage in op.stages} if (why := no_library(kernels.load(name)))]
        if missing:
            return missing[0]
        return chains.refusal(session, op, case) if chains.staged(op, case) else session.supports(op, case)

    @functools.cached_property
    def sides(self) -> Mapping[str, str]:  # type: ignore[override]
        """The placement of each side alone; what the host does stays there."""
        return places.sides(self.op)

    def check_between(self, case: Case, output: Buffer) -> None:
        """Judge the stages one by one. Raises Wrong."""
        chain = self.chain(case)
        if chain is not None:
            chain.check(self.buffers, output, Wrong)

    def spoil_between(self, case: Case) -> None:
        """Fill what lies between the stages with sentinels."""
        chain = self.chain(case)
        if chain is not None:
            chain.spoil(self.sentinel)

    def release_between(self) -> None:
        """Give back what lies between the stages."""
        for chain in self.built.values():
            chain.release()
        self.built.clear()

    def time_stages(self, timed: Timer, session: int, limit_s: float) -> StageTimes | None:
        """Return the times of the stages, alone and in the chain. Returns None if the session cannot time them."""
        return stages.time_stages(timed, session, limit_s)

    def assign_stages(self, timed: Timer, session: int, limit_s: float) -> Placing | None:
        """Return what each stage takes on each side, and what that promises. Returns None if a side cannot time it."""
        return places.placing(timed, session, limit_s)
