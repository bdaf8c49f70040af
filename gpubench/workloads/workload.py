"""Workloads: ops that are made of other ops, the stages, which run one after the other, as a network is made of
layers.

The workload's shapes, costs, expression and reference come from the ops of its stages. A value that one stage
writes and another reads stays on the device; its bytes do not count as traffic, because fused stages would not move
them. A state is a value to which several stages add, such as the keys and values of the tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn

from gpubench import kernels
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Kernel
from gpubench.kernels.contract.op import (  # fmt: skip
    Array,
    Dtype,
    Op,
    Operand,
    Params,
    Repeat,
    Role,
    Shape,
    Stage,
    Tolerance,
    Values,
    always_fits,
    each,
    flat,
)

# Units of round-off that the tolerance allows for each stage on the longest path to a value.
_UNITS_PER_STAGE = 8
# Sizes at which a value must have the same shape in every stage that uses it.
_PROBES = (1, 7)


_Formula = Callable[[Op], Callable[..., Any]]


def _exact(op: Op) -> Callable[..., Any]:
    from gpubench.backends.shared import reference  # only workers compute it

    return partial(reference.exact, op)


def workload(
    *,
    stages: Sequence[Stage | Repeat],
    inputs: Mapping[str, Values],
    outputs: Mapping[str, Role],
    weights: Mapping[str, Values] | None = None,
    state: Sequence[str] = (),
    judged: Mapping[str, Tolerance | Callable[..., Array]] | None = None,
    **declared: Any,
) -> Op:
    """Return the op that runs `stages` in order, with each `Repeat` written out. `inputs` and `weights` give by name
    how values are drawn, `outputs` the roles, `judged` the tolerance of some outputs, or its slack. `state` names
    the values to which stages add. `declared` are further fields of the op. Raises ValueError for stages that do
    not fit together."""
    # a `fits` in `declared` adds to the conditions of the stages
    weights, judged = weights or {}, judged or {}
    fits = declared.pop("fits", always_fits)
    of = _Stages(flat(stages), tuple(state))
    of.check([*inputs, *weights], [*outputs])
    read: list[Operand] = [of.operand(x, values=values, role=of.role(x)) for x, values in inputs.items()]
    read += [of.operand(x, values=values, role="weight") for x, values in weights.items()]
    written = [
        of.operand(x, role=role, tolerance=of.tolerance(x, read, judged.get(x))) for x, role in outputs.items()
    ]
    inner = dict.fromkeys(x for stage in of.stages for x in stage.writes if x not in outputs)
    between = tuple(of.operand(x, role="state" if x in of.state else "activation") for x in inner)
    ops = of.ops.values()
    names = tuple(operand.name for operand in read)

    def by(formula: _Formula) -> Callable[..., Any]:
        return partial(of.results, names, tuple(outputs), formula)

    return Op(
        dtypes=of.dtypes(),
        inputs=tuple(read), output=written[0], more_outputs=tuple(written[1:]), between=between, stages=of.stages,
        flops=of.flops, expr=by(lambda op: op.expr), reference=by(_exact),
        library={"torch": by(lambda op: op.library["torch"])} if all(op.returns("torch") for op in ops) else {},
        tolerance=Tolerance(_UNITS_PER_STAGE),
        takes=("n", *declared.get("options", {})), fits=lambda params: fits(params) or of.fits(params),
        slow=of.slow(), blas=of.blas(), tuned={
            backend: (Kernel("stages", _never),)
            for backend in ("numpy", "cupy", "wgpu")
            if all(op.tuned.get(backend) for op in ops if op.host is None)
        }, **{"group": "network", **declared},
    )  # fmt: skip


class _Stages:
    """The stages of a workload together with their ops."""

    def __init__(self, stages: tuple[Stage, ...], state: tuple[str, ...]) -> None:
        self.stages, self.state = stages, state
        self.ops: dict[str, Op] = {stage.op: kernels.load(stage.op) for stage in stages}

    def blas(self) -> tuple[str, ...]:
        """Return the backends whose BLAS computes at least one of the stages."""
        # One is enough: beside a matrix product the other stages take little time.
        return tuple(dict.fromkeys(backend for op in self.ops.values() for backend in op.blas))

    def dtypes(self) -> tuple[Dtype, ...]:
        """Return the dtypes that all ops have in common, except those of host stages."""
        first, *others = (op.dtypes for op in self.ops.values() if op.host is None)
        return tuple(dtype for dtype in first if all(dtype in other for other in others))

    def check(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Raise ValueError unless the stages fit together in values, states, operands and shapes."""
        written, device = {*inputs, *self.state}, False
        for stage in self.stages:
            op = self.ops[stage.op]
            if op.host is not None and device:
                raise ValueError(f"the host stage {stage.name} comes after a stage on the device")
            device = op.host is None
            if len(stage.reads) != len(op.inputs) or len(stage.writes) != len(op.outputs):
                raise ValueError(f"the stage {stage.name} does not name each operand of {stage.op}")
            if missing := set(stage.reads) - written:
                raise ValueError(f"the stage {stage.name} reads {min(missing)}, which nobody has written")
            added = {stage.writes[i] for i, j in op.updated.items() if stage.writes[i] == stage.reads[j]}
            if fixed := added - {*self.state}:
                raise ValueError(f"the stage {stage.name} adds to {min(fixed)}, which is no state")
            if twice := (written & set(stage.writes)) - added:
                raise ValueError(f"the stage {stage.name} writes {min(twice)}, which is there already")
            written |= set(stage.writes)
        if missing := set(outputs) - written:
            raise ValueError(f"no stage writes {min(missing)}")
        for n in _PROBES:
            shapes: dict[str, Shape] = {}
            for stage in self.stages:
                params = stage.params({"n": n})
                for value, operand in self._uses(stage):
                    shape = operand.shape(params)
                    if shapes.setdefault(value, shape) != shape:
                        raise ValueError(f"{value} is {shapes[value]} and, in the stage {stage.name}, {shape}")

    def _uses(self, stage: Stage) -> Iterator[tuple[str, Operand]]:
        """Yield (name of a value, operand of the stage's op) for what the stage reads, then for what it writes."""
        return zip((*stage.reads, *stage.writes), self.ops[stage.op].operands, strict=True)

    @cached_property
    def first(self) -> dict[str, tuple[Stage, Operand]]:
        """For the name of each value: the first stage that uses it, and that stage's operand for it."""
        uses: dict[str, tuple[Stage, Operand]] = {}
        for stage in self.stages:
            for value, operand in self._uses(stage):
                uses.setdefault(value, (stage, operand))
        return uses

    def operand(self, value: str, **declared: Any) -> Operand:
        """Return the value as an operand of the workload, with the shape and the dtype of its first use."""
        stage, operand = self.first[value]
        return Operand(
            value, lambda params: operand.shape(stage.params(params)), dtype=operand.dtype, **declared
        )

    def role(self, value: str) -> Role:
        """Return the role of an input: `host` if it is a host input of any stage, otherwise `activation`."""
        roles = {operand.role for stage in self.stages for name, operand in self._uses(stage) if name == value}
        return "host" if "host" in roles else "activation"

    def depth(self, value: str) -> int:
        """Return the number of stages on the longest path to a value."""
        depths: dict[str, int] = {}
        for stage in self.stages:
            after = 1 + max(depths.get(name, 0) for name in stage.reads)
            depths.update(dict.fromkeys(stage.writes, after))
        return depths[value]

    def tolerance(
        self, value: str, inputs: Sequence[Operand], declared: Tolerance | Callable[..., Array] | None
    ) -> Tolerance:
        """Return `declared` if it is a tolerance. Otherwise return the tolerance of the stage that writes the value,
        with more units for each stage before that one, and with `declared` as the slack."""
        if isinstance(declared, Tolerance):
            return declared
        last = next(stage for stage in self.stages if value in stage.writes)
        own = self.ops[last.op].tolerance_of(self.ops[last.op].outputs[last.writes.index(value)])
        names = tuple(operand.name for operand in inputs)

        def scale(xp: Array, *arrays: Array, **params: int) -> Array:
            want, *read = self.results(names, (value, *last.reads), _exact, xp, *arrays, **params)
            # One scale for the whole value: a number that is small because terms cancel has the error of the terms.
            largest = xp.max(xp.abs(want)) if want.size else xp.zeros(())
            op = self.ops[last.op].at(last.params(params))
            bound = op.tolerance_of(op.outputs[last.writes.index(value)]).scale
            spread = bound(xp, *read) if bound is not None else want
            return xp.maximum(largest, xp.max(spread)) if spread.size else largest

        return Tolerance(own.units + _UNITS_PER_STAGE * (self.depth(value) - 1), scale, slack=declared)

    def results(
        self,
        names: Sequence[str],
        names_out: Sequence[str],
        formula: _Formula,
        xp: Array,
        *arrays: Array,
        **params: int,
    ) -> Any:
        """Compute stage by stage from `arrays`, the values of `names`. Return the values of `names_out`: a tuple, or
        the array alone if there is only one. `formula(op)` returns the function that computes a stage's op."""
        values = dict(zip(names, arrays, strict=True))
        beside = next(values[name] for name in names if self.first[name][1].role != "host")
        for name in self.state:
            values[name] = _zeros(
                self.operand(name).shape(params), self._state_dtype(name, values, xp), xp, beside
            )
        for stage in self.stages:
            op = self.ops[stage.op].at(stage.params(params))
            made = each(formula(op)(xp, *(values[name] for name in stage.reads)))
            if hasattr(beside, "new_zeros"):  # PyTorch: the host's results are moved to the device
                made = tuple(array.to(beside.device) for array in made)
            values.update(zip(stage.writes, made, strict=True))
        outputs = tuple(values[name] for name in names_out)
        return outputs if len(outputs) > 1 else outputs[0]

    def _state_dtype(self, state: str, values: Mapping[str, Array], xp: Array) -> Any:
        """Return the dtype that a state declares, or else the dtype of the case, which some `values` have."""
        own = self.operand(state).dtype
        if own is not None:
            return getattr(xp, own)
        return next(array.dtype for name, array in values.items() if self.first[name][1].dtype is None)

    def flops(self, params: Params) -> int:
        return sum(self.ops[stage.op].flops(stage.params(params)) for stage in self.stages)

    def fits(self, params: Params) -> str | None:
        """Return the reason of the first stage that refuses these params, or None if all accept them."""
        reasons = (self.ops[stage.op].fits(stage.params(params)) for stage in self.stages)
        return next((why for why in reasons if why is not None), None)

    def slow(self) -> dict[tuple[str, Dtype], float]:
        """Return `Op.slow` of the workload: for each (backend, dtype) the lowest rate among its ops."""
        rates: dict[tuple[str, Dtype], float] = {}
        for op in self.ops.values():
            for key, rate in op.slow.items():
                rates[key] = min(rate, rates.get(key, rate))
        return rates


def _zeros(shape: Shape, dtype: Any, xp: Array, beside: Array) -> Array:
    """Return zeros on the device of the array `beside`."""
    # PyTorch uses host memory by default.
    if hasattr(beside, "new_zeros"):
        return beside.new_zeros(shape, dtype=dtype)
    return xp.zeros(shape, dtype=dtype)


def _never(*_: Any) -> NoReturn:
    raise Unsupported("a workload is compiled stage by stage", reason="no-implementation")
