"""Passes on simulated devices and a simulated clock: steps take no time, the clock moves by what they would have."""

import math
import random

from gpubench import curves, kernels
from gpubench.measure.passes import Passes
from gpubench.measure.plan import Constraints, Series, Target
from gpubench.measure.recorder import Recorder
from gpubench.result.run import Failure, Selection, Settings
from tests.unit.measure import builders
from tests.unit.measure.builders import device, empty_run, measured

CPU, GPU, TORCH = "numpy:0", "cupy:0", "torch:cpu"
CELL = (GPU, "resident-queued")
DEVICES = {
    CPU: device(CPU, "cpu"), TORCH: device(TORCH, "cpu"), GPU: device(GPU, api="cuda", usable_bytes=2**34),
}  # fmt: skip
CROSSINGS = {"add": 30_000.0, "relu": 700_000.0, "mul": 3_000_000.0}  # sizes at which both sides take 10 us
LOOK_S = 1e-5
CASE_S = 0.02  # what a case takes beside its launches
BYTE_S = 1e-9
LAUNCHES = 6  # of each case: blocks, checks


def gpu_s(n, crossing):
    """Seconds of a launch; it wins above the crossing."""
    return 1e-5 * (0.9 + 0.1 * n / crossing)


def cpu_s(n, crossing):
    return 1e-5 * n / crossing


class Simulation:
    """The steps of a run on these devices.

    `slow` multiplies all times of an op, `fails(case)` says which cases break, `copy_s` is what a copying call takes
    beside its launch. `noise`: standard deviations of ln(seconds) of a block, and of a size.
    """

    def __init__(
        self, ops=tuple(CROSSINGS), *, budget_s=45.0, noise=(0.0, 0.0), slow=(), host_bytes=2**36,
        fails=lambda case: False, gpu=gpu_s, cpu=cpu_s, regimes=("resident-queued",), copy_s=lambda n: 0.0,
        devices=(CPU, GPU), implementations=("library",), whole=False, keep=None, seed=1,
    ):  # fmt: skip
        chosen = Settings(budget_s=budget_s, min_samples=4, max_samples=8, warmup_s=0.0, seed=seed)
        targets = tuple(Target(DEVICES[name], implementations) for name in devices)
        selection = Selection(ops=list(ops), regimes=list(regimes))
        self.constraints = Constraints(targets, selection, host_bytes, keep, settings=chosen)
        run = empty_run(selection=selection, settings=chosen, devices=list(DEVICES.values()))
        self.recorder = Recorder(run, lambda run: None)
        self.series = [Series(kernels.load(op), "float32") for op in ops]
        self.now, self.steps, self._draw, self._noise = 0.0, [], random.Random(seed), noise
        self.slow, self.fails, self.gpu_s, self.cpu_s, self.copy_s = dict(slow), fails, gpu, cpu, copy_s
        self.budget_s, self.whole = math.inf if budget_s is None else budget_s, whole
        self.resume()

    def resume(self):
        """Passes that know no more than the file."""
        self.passes = Passes(self.series, self.constraints, self.recorder, self._left_s, whole=self.whole)

    def _left_s(self):
        """As on a machine, no two looks at the clock see the same time."""
        self.now += LOOK_S
        assert self.now < 2 * self.budget_s + 1, "the search waits for a time that never comes"
        return self.budget_s - self.now

    def seconds(self, case):
        """The true time of a launch."""
        n, crossing = case.params["n"], CROSSINGS.get(case.op)
        seconds = (self.gpu_s if case.device_id == GPU else self.cpu_s)(n, crossing)
        copies = 0.0 if case.resident else self.copy_s(n) / (case.calls or 1)
        return (seconds + copies) * self.slow.get(case.op, 1)

    def measure(self, step):
        began = self.now
        for item in step.workloads:
            self.now += BYTE_S * item.op.bytes(item.params, item.dtype)
            for case in item.cases:
                self._enter(case, self.seconds(case), step.purpose.blocks or 4)
        self.passes.note_times(step)
        self.passes.took(step, self.now - began)
        self.steps.append(step)

    def _enter(self, case, seconds, blocks):
        self.now += CASE_S + LAUNCHES * seconds * (case.calls or 1)
        if self.fails(case):
            self.recorder.put(Failure(id=case.id, case=case, reason="timeout", detail=""))
            return
        known = self.recorder.outcome(case.id)
        if known is None:
            self.recorder.put(measured(case))
        block, size = self._noise
        own = random.Random(f"{self._draw.random() if size else 0} {case.id}").gauss(0, size)
        for number in range(blocks):
            middle = seconds * math.exp(own + self._draw.gauss(0, block))
            self.recorder.add(case.id, blocks=builders.block([middle] * 2, round=number))

    def run(self, most=1000):
        for _, step in zip(range(most), self.passes.steps(), strict=False):
            self.measure(step)
        return self

    def sizes(self, op, steps=None):
        """The sizes at which the op was measured, step by step."""
        steps = self.steps if steps is None else steps
        return [item.n for step in steps for item in step.workloads if item.op.name == op and item.cases]

    def threshold(self, op, cell=CELL):
        """The threshold of one situation, by all that was measured."""
        (series,) = (item for item in self.series if item.op.name == op)
        self.resume()
        fitted = self.passes.points.fit(series)
        ours = [curve for name, curve in fitted.items() if (name[0], name[2]) == cell]
        return curves.compare(ours, [curve for name, curve in fitted.items() if name[0] in (CPU, TORCH)])
