"""The declaration of an op: its shapes, costs, array expression, reference and kernels.

Listing, planning, the memory guard, execution, the correctness gate and the rates all use this declaration.
Units: sizes as the op's `params` say of n, `flops` in operations per launch, `bytes` in bytes per launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from gpubench.kernels.contract.kernel import Kernel

Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Implementation = Literal["library", "tuned"]
Params = Mapping[str, int]
Shape = tuple[int, ...]
Array = Any  # a NumPy, CuPy or array-API array: the model imports none of them
# The dtype of an operand: that of the case, int32 for token ids and labels, or uint8 for text.
Stored = Dtype | Literal["int32", "uint8"]
Role = Literal["activation", "weight", "state", "host"]

ITEMSIZE: dict[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "uint8": 1}
# Unit round-off u: the largest relative error of one correctly rounded operation. No case has the dtype TF32:
# tensor cores round float32 inputs to this format of 10 bits of mantissa and the range of float32.
UNIT_ROUNDOFF: dict[str, float] = {
    "float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip
# Below the smallest normal number a rounding error no longer shrinks with the value. A value of at least
# `OVERFLOW`, less half a unit in the last place, rounds to infinity.
SMALLEST_NORMAL: dict[str, float] = {
    "float64": 2.0**-1022, "float32": 2.0**-126, "tf32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126,
}  # fmt: skip
OVERFLOW: dict[str, float] = {
    "float64": math.inf, "float32": 2.0**128, "tf32": 2.0**128, "float16": 2.0**16, "bfloat16": 2.0**128,
}  # fmt: skip


def each(output: Any) -> tuple[Any, ...]:
    """Return the outputs of a launch or of an expression as a tuple, also if there is only one."""
    return output if isinstance(output, tuple) else (output,)


class Range(msgspec.Struct, frozen=True, tag=True):
    """Input values drawn from [low, high), for an op that needs values of this range. Rounding to the dtype of
    the case may give `high` itself."""

    low: float  # smallest value
    high: float  # a number above all values
    whole: bool = False  # whether only whole numbers are drawn, as for counts


class Ids(msgspec.Struct, frozen=True, tag=True):
    """Input values that are ids, such as those of tokens or classes: whole numbers from 0."""

    below: Callable[[Params], int]  # returns the smallest number above all ids


class Given(msgspec.Struct, frozen=True, tag=True):
    """Fixed input values, used in place of drawn ones."""

    # returns the whole operand for the params, as bytes in its dtype, row by row
    make: Callable[[Params], bytes]


class Made(msgspec.Struct, frozen=True, tag=True):
    """Input values that a user's function makes."""

    make: Callable[[Params, str, int], Array]  # make(params, dtype, seed) returns the array


Values = (
    Literal["uniform", "normal", "fan-in", "ones", "zeros", "relu", "probabilities"]
    | Range
    | Ids
    | Given
    | Made
)


class Tolerance(msgspec.Struct, frozen=True):
    """The largest allowed error. A result passes if |got - want| <= units * u(dtype) * scale + slack for
    all elements."""

    units: float  # number of round-off units
    # `scale(xp, *inputs)` gets the float64 inputs and returns an array that broadcasts against the output: the sum of
    # absolute terms where terms can cancel, the product of the vectors' norms for dot products. None means |want|
    scale: Callable[..., Array] | None = None
    why: str = ""  # reason for a bound that does not follow from the roundings (docs/extending.md)
    # `slack(xp, u, *inputs)` returns the additional tolerance near a jump of the formula, where round-off may
    # decide which side is computed. A tolerance with a slack needs a `scale`
    slack: Callable[..., Array] | None = None
    # `shortfall(xp, got, *inputs)` is for outputs that are choices, of which several may be right. It returns how
    # far each choice falls short of the best one in float64, divided by the scale of the compared values. This
    # replaces |got - want|
    shortfall: Callable[..., Array] | None = None


class Operand(msgspec.Struct, frozen=True):
    """An input or an output of an op."""

    # name; an input and an output that are states of the same name are one buffer, which a launch updates
    name: str
    shape: Callable[[Params], Shape]  # returns the shape for the params
    # how an input is drawn: "uniform" in [-1, 1), "normal" (mean 0, deviation 1), "fan-in" (normal, with
    # deviation 1 / sqrt(terms of a sum)), "ones", "zeros", "relu" (normal, but 0 in place of negative values),
    # "probabilities" (softmax of normal values along the last axis), a Range, Ids, Given or Made
    values: Values = "uniform"
    # regimes that copy move an activation between host and device. A weight and a state stay on the device in
    # every regime, as inputs and as outputs. A host input is read on the host, whatever the device is
    role: Role = "activation"
    dtype: Literal["int32", "uint8"] | None = None  # dtype; None means the dtype of the case
    tolerance: Tolerance | None = None  # tolerance of an output; None means the tolerance of the op

    @property
    def travels(self) -> bool:
        """Whether the operand moves between host and device in regimes that copy data."""
        return self.role == "activation"

    def stored_dtype(self, dtype: Dtype) -> Stored:
        """Return the dtype of the elements in a case with this dtype."""
        return self.dtype or dtype

    def form(self, params: Params, dtype: Dtype) -> tuple[Shape, Stored]:
        """Return the shape and the dtype of the elements in a case with these params and this dtype."""
        return self.shape(params), self.stored_dtype(dtype)

    def bytes(self, params: Params, dtype: Dtype) -> int:
        return math.prod(self.shape(params)) * ITEMSIZE[self.stored_dtype(dtype)]


EXACT = Tolerance(0)
# The usual dtypes of an op. A backend that lacks one refuses the case; only CUDA has bfloat16.
WORKING_DTYPES: tuple[Dtype, ...] = ("float32", "float64", "float16", "bfloat16")
_BLAS_DTYPES = ("float32", "float64")


# The places of the rungs on a long and on a short ladder, where the last one is the end of the ladder. A ladder is
# long from LONG_OCTAVES on.
LONG_RUNGS, LONG_OCTAVES = (0, 3, 6, 8, 10, 12, 14), 12
SHORT_RUNGS = (0, 2, 4, 5, 6, 7)


class Ladder(msgspec.Struct, frozen=True):
    """The default sizes of an op: `rungs` for a search that chooses sizes, `sizes` for a fixed series."""

    low: int  # approximately the first size
    high: int  # largest size
    factor: int = 4  # ratio of two neighbouring sizes
    granule: int = 1  # sizes are multiples of this

    def sizes(self) -> list[int]:
        """Return all sizes, ascending."""
        sizes, n = [], float(self.low)
        while n < self.high and self.snap(n) < self.high:
            sizes.append(self.snap(n))
            n *= self.factor
        return [*sizes, self.high]

    def rungs(self) -> list[int]:
        """Return the sizes that a search begins with, on any machine: at most seven on a long ladder, at most
        six on a short one. They are closer together towards the top."""
        octaves = math.log2(self.high / self.low)
        *places, end = LONG_RUNGS if octaves >= LONG_OCTAVES else SHORT_RUNGS
        below = {self.whole(self.low * 2 ** round(place / end * octaves)) for place in places}
        return sorted({n for n in below if n < self.high} | {self.high})

    @staticmethod
    def ends(rungs: Sequence[int]) -> tuple[int, int, int]:
        """Return the lowest, the third highest and the highest of the ascending `rungs`. With one or two rungs,
        the third highest is the lowest."""
        # A search times each GPU at these sizes, except at tops that it drops for lack of time. An output there
        # is checked whole, not as the beginning of a larger one.
        return rungs[0], rungs[-3:][0], rungs[-1]

    def whole(self, n: float) -> int:
        """Return the multiple of the granule nearest to `n`, at most `high`. Below one granule, it is the
        nearest whole number."""
        step = self.granule if n >= self.granule else 1
        return min(max(round(n / step), 1) * step, self.high)

    def snap(self, n: float) -> int:
        """Return the number of the series 2^((k + 1/2) / 4), k = 0, 1, ..., that is nearest to `n` by ratio, at most
        `high`. It is rounded to a multiple of the granule. If `low` is no such multiple, a number below two granules
        is only rounded to a whole number."""
        # No powers of two, at which padded and tiled kernels look better than they are.
        place = math.floor(4 * math.log2(max(n, 1.0))) + 0.5
        size = 2 ** (place / 4)
        whole = size >= 2 * self.granule or self.low % self.granule == 0
        step = self.granule if whole else 1
        return min(max(round(size / step), 1) * step, self.high)


class HostLibrary(msgspec.Struct, frozen=True):
    """The library that an op calls on the host."""

    name: str  # name of the module to import
    extra: str  # extra of gpubench that installs it


SessionCall = Literal["open", "launch", "roundtrip", "sync", "allocate", "upload", "download"]


class Overhead(msgspec.Struct, frozen=True):
    """A session's call that is timed in place of an expression (`kernels.OVERHEADS` lists such calls). For calls
    with n bytes, `library` is the plain way, with new memory and ordinary host arrays, and `tuned` is the fastest
    known way."""

    call: SessionCall | Literal["exchange"]  # name of the timed call
    implementations: tuple[Implementation, ...] = ("library",)  # implementations in which the call differs

    @property
    def moves(self) -> bool:
        """Whether n bytes move between host and device."""
        return self.call in ("upload", "download")

    def bytes(self, params: Params) -> int:
        """Return the bytes that one call moves between host and device, 0 for most calls."""
        return params["n"] if self.moves else 0


class Collective(Overhead, frozen=True, kw_only=True):
    """An exchange of data among the ranks of a device group. n is the number of bytes of a rank's
    largest buffer."""

    call: Literal["exchange"] = "exchange"  # kind of call
    name: str  # name of the collective, if there are no `pairs`
    # `expected(value, rank, ranks, i, part)` returns element i of what `rank` receives. `value(rank, i)` returns
    # element i of what a rank sent. `part` is the number of elements of the largest buffer divided by `ranks`
    expected: Callable[[Callable[[Any, Array], Array], int, int, Array, int], Array]
    # `bus(ranks)` is the factor from algbw to busbw
    bus: Callable[[int], float]
    # `sends(count, ranks)` is how many elements a rank sends if the largest buffer has `count` elements
    sends: Callable[[int, int], int] = lambda count, ranks: count
    # `gets(count, ranks)` is how many elements a rank receives if the largest buffer has `count` elements
    gets: Callable[[int, int], int] = lambda count, ranks: count
    # (sender, receiver) of each copy between two ranks; empty if all ranks take part
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def pairwise(self) -> bool:
        """Whether only two ranks take part."""
        return bool(self.pairs)

    def bytes(self, params: Params) -> int:
        """Return the bytes of the exchange: n, or 2 n if data moves in both directions."""
        return params["n"] * max(1, len(self.pairs))

    def exchange(self, links: Any, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Enqueue the exchange on all ranks of the `Links`. `sent` and `got` have an array for each rank."""
        if self.pairs:
            links.copy(self.pairs, sent, got)
        else:
            links.collect(self.name, sent, got)


class Defect(str):
    """The reason why an op of another package cannot be planned at some params: one of its functions fails."""

    __slots__ = ()


def always_fits(params: Params) -> str | None:
    """Return None, which allows all combinations of params."""
    return None


class Split(msgspec.Struct, frozen=True):
    """The rules for dividing an op along its outer dimension into parts that can be computed separately."""

    axes: Mapping[str, int]  # axis along which each input is divided; inputs without an entry are not divided
    # `part(params, units)` returns the params of the same op for `units` units of that dimension
    part: Callable[[Params, int], Params]
    # the function that joins the partial outputs; None: they are concatenated along axis 0
    join: Literal["add", "maximum"] | None = None


class Stage(msgspec.Struct, frozen=True):
    """One op inside a workload. If the op runs on the host, it is a host stage."""

    name: str  # name, which is equal in all turns of a repeat
    op: str  # name of the op
    reads: tuple[str, ...]  # names of the values that are its inputs, in order
    writes: tuple[str, ...]  # names of the values that are its outputs
    # returns the op's params. The argument has the workload's params, and for each repeat around the stage the
    # number of its turn, by the repeat's `index`
    params: Callable[[Params], Params]
    turns: tuple[int, ...] = ()  # numbers of the turns of the repeats around the stage, the outermost first


class Repeat(msgspec.Struct, frozen=True):
    """Stages that run several times, as layers or as successive steps."""

    index: str  # `{index}` in the name of a value is replaced by the turn, `{index+1}` by the next turn
    times: int  # number of turns
    stages: tuple[Stage | Repeat, ...]  # stages of one turn; repeats may be nested
    name: str = ""  # prefix of the names of its stages, followed by a dot

    def flat(self) -> tuple[Stage, ...]:
        """Return the stages of all turns, in order."""
        return tuple(self._in_turn(stage, i) for i in range(self.times) for stage in flat(self.stages))

    def _in_turn(self, stage: Stage, turn: int) -> Stage:
        def name_values(values: tuple[str, ...]) -> tuple[str, ...]:
            places = {f"{{{self.index}}}": str(turn), f"{{{self.index}+1}}": str(turn + 1)}
            for word, number in places.items():
                values = tuple(value.replace(word, number) for value in values)
            return values

        own = stage.params
        return Stage(
            f"{self.name}.{stage.name}" if self.name else stage.name, stage.op, name_values(stage.reads),
            name_values(stage.writes), lambda params: own({**params, self.index: turn}), (turn, *stage.turns),
        )  # fmt: skip


def flat(stages: Sequence[Stage | Repeat]) -> tuple[Stage, ...]:
    """Return the stages in order, with each repeat replaced by the stages of all its turns."""
    return tuple(step for stage in stages for step in (stage.flat() if isinstance(stage, Repeat) else (stage,)))


def start_in(room: Callable[[Params], int]) -> Operand:
    """Return the input `start`, one index: where n elements begin in a buffer of `room(params)` elements."""
    return Operand(
        "start", lambda params: (1,), Ids(lambda params: room(params) - params["n"] + 1), dtype="int32"
    )


def counted_by(param: str) -> Callable[[Params, int], Params]:
    """Return the `part` function of a split whose number of units is this param."""
    return lambda params, units: {**params, param: units}


class Op(msgspec.Struct, frozen=True):
    """The declaration of an op."""

    name: str  # name that a user types
    group: str  # heading of the op in listings
    summary: str  # formula of the op in one line
    params: Mapping[str, str]  # params of the op, each with its meaning; `n` is the size
    sizes: Ladder  # ladder of the op, used if the user gives no sizes
    inputs: tuple[Operand, ...]  # inputs in the order of the expression's arguments
    output: Operand  # first output
    flops: Callable[[Params], int]  # floating-point operations of a launch
    # `expr(xp, *inputs)` is the array expression as a user of NumPy or CuPy writes it, the library
    # implementation. It returns a tuple if the op has `more_outputs`
    expr: Callable[..., Array]
    tolerance: Tolerance  # tolerance of the output
    dtypes: tuple[Dtype, ...] = WORKING_DTYPES  # dtypes of its cases
    reference: Callable[..., Array] | None = None  # `reference(xp, *inputs)` in float64; None means `expr`
    # how to divide the op, or a function that returns this for the params; None if the op cannot be divided
    split: Split | Callable[[Params], Split] | None = None
    # for an op that is linear in its inputs: `terms(params)` returns, for each of them, the axis along which an
    # output adds up terms or takes the largest. With it the gate finds a single missing term (`Workspace.check_terms`)
    terms: Callable[[Params], Mapping[str, int]] | None = None
    zero_terms: tuple[
        str, ...
    ] = ()  # inputs in `terms` in which the op is not linear; the check sets them to 0
    # for an op without `terms`, to find a missing term: `probe(np, params)` returns float64 inputs (None for one that
    # is drawn as usual) and the first output. A missing term changes this output by more than 8 units of bfloat16
    probe: Callable[[Any, Params], tuple[list[Array | None], Array]] | None = None
    # kernels of the op by backend. The first one for a dtype is measured; a user may name the others as variants
    tuned: Mapping[str, tuple[Kernel, ...]] = {}
    options: Mapping[str, str] = {}  # further params that a user may give, with their meanings
    # `fits(params)` returns why a combination of params is not allowed, or None if it is
    fits: Callable[[Params], str | None] = always_fits
    tf32: tuple[str, ...] = ()  # backends whose library call can round float32 inputs to TF32
    # most operations per second of the library call, by (backend, dtype); only where the library has no fast code
    slow: Mapping[tuple[str, Dtype], float] = {}
    blas: tuple[str, ...] = ()  # backends whose BLAS does most of the work of the library call
    # why finite inputs may give an infinity or a NaN; if it is empty, such an output is wrong
    not_finite: str = ""
    # the op computes nothing; this call is timed instead, on devices other than the CPU
    overhead: Overhead | None = None
    # by backend, the call that its users write if it is not `expr`: `call(torch, *inputs)` returns the results.
    # If it has an argument `out`, it writes the results there unless `out` is None
    library: Mapping[str, Callable[..., Any]] = {}
    # Params that the formulas (`expr`, `reference`, `library`, and `scale` and `shortfall` of the tolerances)
    # have as keywords with defaults. `at(params)` returns the op with these keywords bound.
    takes: tuple[str, ...] = ()
    more_outputs: tuple[Operand, ...] = ()  # outputs after the first; an op with such outputs is not split
    # `traffic(params, dtype)` returns the bytes that a launch has to move. None: those of all operands. An op
    # that reads only some rows of a table moves fewer
    traffic: Callable[[Params, Dtype], int] | None = None
    # the op runs on the host, whatever the device is, and calls this library
    host: HostLibrary | None = None
    stages: tuple[Stage, ...] = ()  # stages, if the op is made of other ops
    # values that one stage writes and another one reads; they are on the device, and are neither inputs nor
    # outputs
    between: tuple[Operand, ...] = ()
    # gradients of parts of a batch, which the ranks of a device group average before a stage reads them
    averaged: tuple[str, ...] = ()
    # by a prefix of stage names, such as `prefill`: returns, for the params, the number of tokens that these
    # stages read or write in a call
    tokens: Mapping[str, Callable[[Params], int]] = {}
    # hash of the text of a user's function, used for its kernels. The hash of the op is made of name, arguments
    # and dtypes instead, so that results can be compared after an edit
    digest: str = ""
    # only in a worker: a user's function that takes any objects, not only arrays of numbers
    calls: Any = None
    only: tuple[str, ...] = ()  # backends on which the op is measured; empty for all backends
    # backends that would run the same program: the first of them that drives a GPU in the run measures the op
    one_of: tuple[str, ...] = ()
    # for a user's function: returns the approximate seconds of a call on NumPy, measured by a trial; 0 without one
    seconds: Callable[[Params], float] = lambda params: 0.0
    # for a user's function: returns the approximate seconds in which the inputs of a call are made; 0 without a trial
    inputs_s: Callable[[Params], float] = lambda params: 0.0

    @property
    def collective(self) -> Collective | None:
        """The exchange on a device group, or None if the op runs on a single device."""
        return self.overhead if isinstance(self.overhead, Collective) else None

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """All outputs, in order."""
        return (self.output, *self.more_outputs)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def updated(self) -> dict[int, int]:
        """The outputs that share the buffer of an input, as {index of the output: index of the input}."""
        places = {operand.name: i for i, operand in enumerate(self.inputs)}
        return {i: places[operand.name] for i, operand in enumerate(self.outputs) if operand.name in places}

    def tolerance_of(self, output: Operand) -> Tolerance:
        """Return the tolerance of an output: its own, or else that of the op."""
        return output.tolerance or self.tolerance

    def at(self, params: Params) -> Op:
        """Return the op with the values of the params in `takes` bound in its formulas."""
        own = {name: params[name] for name in self.takes if name in params}
        if not own:
            return self

        def bound(formula: Callable[..., Array] | None) -> Any:
            return None if formula is None else partial(formula, **own)

        def bind_tolerance(tolerance: Tolerance | None) -> Any:
            return tolerance and replace(
                tolerance, scale=bound(tolerance.scale), shortfall=bound(tolerance.shortfall)
            )

        def output(operand: Operand) -> Operand:
            return replace(operand, tolerance=bind_tolerance(operand.tolerance))

        return replace(
            self, expr=bound(self.expr), reference=bound(self.reference),
            library={backend: bound(call) for backend, call in self.library.items()},
            tolerance=bind_tolerance(self.tolerance), output=output(self.output),
            more_outputs=tuple(map(output, self.more_outputs)),
        )  # fmt: skip

    def exact(self) -> Callable[..., Array]:
        """Return the function whose results in float64 are the reference."""
        return self.reference or self.expr

    def call(self, backend: str) -> Callable[..., Any]:
        """Return the call that users of the backend's library write, as a function of (library, *inputs)."""
        return self.library.get(backend, self.expr)

    def fills(self, backend: str) -> bool:
        """Return whether `call(backend)` has an argument `out`, the arrays that it writes to."""
        return self._out(backend) is not None

    def returns(self, backend: str) -> bool:
        """Return whether the op has a call in the backend's library that can be used without `out`."""
        out = self._out(backend)
        return backend in self.library and (out is None or out.default is not out.empty)

    def _out(self, backend: str) -> Any:
        import inspect  # most commands ask nothing of it

        return inspect.signature(self.call(backend)).parameters.get("out")

    def kernel(self, backend: str, dtype: Dtype, variant: str | None = None) -> Kernel | None:
        """Return the first tuned kernel of `backend` for this dtype, or None. With a `variant`, only a kernel of that
        name counts."""
        return next(
            (
                kernel
                for kernel in self.tuned.get(backend, ())
                if variant in (None, kernel.variant) and (kernel.dtypes is None or dtype in kernel.dtypes)
            ),
            None,
        )

    def by_blas(self, backend: str, implementation: str, dtype: Dtype) -> bool:
        """Return whether the backend's BLAS does most of the work."""
        # in half precision a tuned kernel alone uses BLAS, after converting to float32
        return backend in self.blas and (implementation == "tuned" or dtype in _BLAS_DTYPES)

    def with_kernels(self, backend: str, kernels: tuple[Kernel, ...]) -> Op:
        """Return the op with more kernels for a backend, placed before the declared ones."""
        if not kernels:
            return self
        return replace(self, tuned={**self.tuned, backend: (*kernels, *self.tuned.get(backend, ()))})

    def split_at(self, params: Params) -> Split | None:
        """Return how the op is divided at these params, or None if it cannot be divided."""
        if self.more_outputs:
            return None
        return self.split(params) if callable(self.split) else self.split

    def units(self, params: Params) -> int:
        """Return the length of the dimension along which the op is divided, or 0 if it cannot be divided."""
        split = self.split_at(params)
        if split is None:
            return 0
        return next(x.shape(params)[split.axes[x.name]] for x in self.inputs if x.name in split.axes)

    def begins(self, params: Params, larger: Params) -> bool:
        """Return whether each input at `params` is the beginning, along the first dimension, of the same input at
        `larger`. Returns False if the op cannot be divided, or not with all inputs along that dimension."""
        split = self.split_at(larger)
        if split is None or {x.name for x in self.inputs} != set(split.axes) or any(split.axes.values()):
            return False
        if self.units(params) > self.units(larger):
            return False
        part = split.part(larger, self.units(params))
        return all(operand.shape(part) == operand.shape(params) for operand in self.operands)

    def whole(self, params: Params) -> str | None:
        """Return why the op cannot be divided in two, or None if it can."""
        if self.split_at(params) is None:
            return f"{self.name} does not say how it is cut"
        units = self.units(params)
        return None if units >= 2 else f"{self.name} has {units} unit to cut"

    def bytes(self, params: Params, dtype: Dtype) -> int:
        """Return the bytes that one launch has to move. Without `traffic` or an overhead, each input is read
        once and each output written once."""
        if self.overhead is not None:
            return self.overhead.bytes(params)
        if self.traffic is not None:
            return self.traffic(params, dtype)
        return sum(operand.bytes(params, dtype) for operand in self.operands)

    def written_bytes(self, params: Params, dtype: Dtype) -> int:
        """Return the bytes of all outputs."""
        return sum(operand.bytes(params, dtype) for operand in self.outputs)

    def held_bytes(self, params: Params, dtype: Dtype) -> int:
        """Return the bytes that a device holds for one launch: all operands except host inputs, and the values
        between stages. A state that is both input and output counts once."""
        held = {operand.name: operand for operand in (*self.operands, *self.between) if operand.role != "host"}
        return sum(operand.bytes(params, dtype) for operand in held.values())


# ---------------------------------------------------------------- overheads: what a device costs around any work

_OF_BYTES = ("allocate", "upload", "download")
_PART_OF_A_WORD = "n is a number of bytes, and devices move words of 4: {} is no multiple"
_ONCE = Ladder(low=1, high=1)
# From less than a page to the bytes that a link moves in a fifth of a second.
_BYTES = Ladder(low=2**10, high=2**30, factor=16, granule=4)


# Makes an op that computes nothing: the call of its `overhead` is timed.
timed_call = partial(
    Op, dtypes=("float32",), inputs=(), output=Operand("nothing", lambda params: (0,)), flops=lambda params: 0,
    expr=lambda xp: xp.zeros((0,)), tolerance=EXACT,
)  # fmt: skip


@cache
def overhead(call: Any, summary: str) -> Op:
    """Return the op that times `call`, a name in `kernels.OVERHEADS`. A call with n bytes has a library and a
    tuned implementation; any other call has n = 1 and no tuned implementation."""
    of_bytes = call in _OF_BYTES
    return timed_call(
        name=call, group="overhead", summary=summary,
        params={"n": "number of bytes" if of_bytes else "always 1"}, sizes=_BYTES if of_bytes else _ONCE,
        fits=lambda params: _PART_OF_A_WORD.format(params["n"]) if of_bytes and params["n"] % 4 else None,
        overhead=Overhead(call, ("library", "tuned") if of_bytes else ("library",)),
    )  # fmt: skip
