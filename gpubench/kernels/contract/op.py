"""The declaration of an op: shapes, costs, its array expression, its reference and its kernels.

One declaration feeds listing, planning, the memory guard, execution, the correctness gate and the rates.
Units: sizes in elements, `flops` in floating-point operations per launch, `bytes` in bytes per launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal

import msgspec

from gpubench.kernels.contract.kernel import Kernel

Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Implementation = Literal["library", "tuned"]
Params = Mapping[str, int]
Shape = tuple[int, ...]
Array = Any  # a NumPy, CuPy or array-API array: the model imports none of them
# What an operand holds: numbers of the case's dtype, or token ids and labels, or text.
Stored = Dtype | Literal["int32", "uint8"]
Role = Literal["activation", "weight", "state", "host"]

ITEMSIZE: dict[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "uint8": 1}
# Unit round-off u: the largest relative error of one correctly rounded operation. TF32 is no dtype but what
# tensor cores make of float32 inputs: 10 bits of mantissa, the range of float32.
UNIT_ROUNDOFF: dict[str, float] = {
    "float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip
# Below the smallest normal number a rounding error no longer shrinks with the value; from `OVERFLOW` (less half a
# unit in the last place) up a value rounds to infinity.
SMALLEST_NORMAL: dict[str, float] = {
    "float64": 2.0**-1022, "float32": 2.0**-126, "tf32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126,
}  # fmt: skip
OVERFLOW: dict[str, float] = {
    "float64": math.inf, "float32": 2.0**128, "tf32": 2.0**128, "float16": 2.0**16, "bfloat16": 2.0**128,
}  # fmt: skip


def each(output: Any) -> tuple[Any, ...]:
    """Return the outputs of a launch, a compilation or an expression as a tuple, even if there is only one."""
    return output if isinstance(output, tuple) else (output,)


class Range(msgspec.Struct, frozen=True, tag=True):
    """Inputs from a range. The op has no meaning outside of it.

    The dtype of the case may round the largest inputs to `high`.
    """

    low: float  # the smallest input
    high: float  # a bound that no input reaches
    whole: bool = False  # integers, such as counts


class Ids(msgspec.Struct, frozen=True, tag=True):
    """Inputs that name things: whole numbers from 0 up."""

    below: Callable[[Params], int]  # of the params; no number reaches it


class Given(msgspec.Struct, frozen=True, tag=True):
    """Inputs with fixed values, which are not drawn."""

    make: Callable[[Params], bytes]  # of the params: the bytes


class Made(msgspec.Struct, frozen=True, tag=True):
    """Inputs that a user's function makes."""

    make: Callable[[Params, str, int], Array]  # (params, dtype, seed) -> the array


Values = (
    Literal["uniform", "normal", "fan-in", "ones", "zeros", "relu", "probabilities"]
    | Range
    | Ids
    | Given
    | Made
)


class Tolerance(msgspec.Struct, frozen=True):
    """A result passes when |got - want| <= units * u(dtype) * scale + slack, element by element."""

    units: float  # round-off units
    # `scale(xp, *inputs)` gets the float64 inputs and returns an array that broadcasts against the output: the sum of
    # absolute terms where terms can cancel, the product of the vectors' norms for dot products. None means |want|
    scale: Callable[..., Array] | None = None
    why: str = ""  # the reason of a bound that does not follow from the roundings (docs/extending.md)
    # `slack(xp, u, *inputs)` is what a jump adds, where a value is so near to it that round-off decides the side;
    # beside a `scale` alone
    slack: Callable[..., Array] | None = None
    # `shortfall(xp, got, *inputs)` judges choices, of which a tie has several right ones: by how much each falls
    # short of the best in float64, over the scale of what was compared. It stands in place of |got - want|
    shortfall: Callable[..., Array] | None = None


class Operand(msgspec.Struct, frozen=True):
    """An input or an output."""

    # the name; a state that is an input and an output of the same name is one buffer, to which a launch adds
    name: str
    shape: Callable[[Params], Shape]  # the shape by the params
    # how an input is drawn: "uniform" in [-1, 1), "normal" (mean 0, deviation 1), "fan-in" (normal, of the deviation
    # 1 / sqrt(terms of a sum)), "ones", "zeros", "relu" (normal, negative ones are 0), "probabilities" (softmax of
    # normals along the last axis), a Range, Ids, Given or Made
    values: Values = "uniform"
    # an activation travels where a regime moves data. A weight and a state are on the device in every regime, and a
    # weight does not change with the size; an output of these roles stays there too. An input of the host is read
    # there, whatever the device
    role: Role = "activation"
    dtype: Literal["int32", "uint8"] | None = None  # None means the dtype of the case
    tolerance: Tolerance | None = None  # the tolerance of an output; None means the op's

    @property
    def travels(self) -> bool:
        """True if it moves between host and device in regimes that move data."""
        return self.role == "activation"

    def stored_dtype(self, dtype: Dtype) -> Stored:
        """Return the dtype of its elements in a case of the given dtype."""
        return self.dtype or dtype

    def bytes(self, params: Params, dtype: Dtype) -> int:
        return math.prod(self.shape(params)) * ITEMSIZE[self.stored_dtype(dtype)]


EXACT = Tolerance(0)
# A backend that lacks one refuses the case. bfloat16 is CUDA's alone.
WORKING_DTYPES: tuple[Dtype, ...] = ("float32", "float64", "float16", "bfloat16")
_BLAS_DTYPES = ("float32", "float64")


# How far up a ladder its rungs stand, by octaves.
LONG_RUNGS, LONG_OCTAVES = (0, 3 / 14, 6 / 14, 8 / 14, 10 / 14, 12 / 14, 1), 12
SHORT_RUNGS = (0, 2 / 7, 4 / 7, 5 / 7, 6 / 7, 1)


class Ladder(msgspec.Struct, frozen=True):
    """The default sizes of an op. Sizes below the highest avoid powers of two, where padded and tiled kernels look
    better than they are."""

    low: int  # about the first size
    high: int  # the last size
    factor: int = 4  # from size to size
    granule: int = 1  # sizes are multiples of it

    def sizes(self) -> list[int]:
        """Return all sizes, ascending."""
        sizes, n = [], float(self.low)
        while n < self.high and self.snap(n) < self.high:
            sizes.append(self.snap(n))
            n *= self.factor
        return [*sizes, self.high]

    def rungs(self) -> list[int]:
        """Return the sizes that every search measures, the same on every machine: seven on a long ladder, six on a
        short one. They are `low` times powers of two in whole granules, closer together towards the top."""
        octaves = math.log2(self.high / self.low)
        shares = LONG_RUNGS if octaves >= LONG_OCTAVES else SHORT_RUNGS
        below = {self.whole(self.low * 2 ** round(share * octaves)) for share in shares[:-1]}
        return sorted({n for n in below if n < self.high} | {self.high})

    @staticmethod
    def ends(rungs: Sequence[int]) -> tuple[int, int, int]:
        """Return the lowest, a middle and the highest of `rungs`. GPUs are always timed at these three sizes, and
        outputs are compared whole there."""
        return rungs[0], rungs[-3:][0], rungs[-1]

    def whole(self, n: float) -> int:
        """Return the number of whole granules nearest to `n`, at most `high`. Below one granule it is the nearest whole
        number."""
        step = self.granule if n >= self.granule else 1
        return min(max(round(n / step), 1) * step, self.high)

    def snap(self, n: float) -> int:
        """Return the size of the grid round(2^((k + 1/2) / 4)) that is nearest to `n` by ratio. It is rounded to whole
        granules from two granules on, and below that only if `low` is a multiple of a granule."""
        place = math.floor(4 * math.log2(max(n, 1.0))) + 0.5
        size = 2 ** (place / 4)
        whole = size >= 2 * self.granule or self.low % self.granule == 0
        step = self.granule if whole else 1
        return min(max(round(size / step), 1) * step, self.high)


class HostLibrary(msgspec.Struct, frozen=True):
    """The library that a host op calls."""

    name: str  # to import
    extra: str  # of gpubench that brings it


SessionCall = Literal["open", "launch", "roundtrip", "sync", "allocate", "upload", "download"]


class Overhead(msgspec.Struct, frozen=True):
    """A call of the device's session that is timed in place of an expression. It is timed once for each implementation
    in which it differs.

    `open`: a fresh process imports the library and opens the device. `launch`: an empty launch is enqueued.
    `roundtrip`: an empty launch is enqueued and waited for. `sync`: a wait with nothing enqueued. `allocate`, `upload`,
    `download`: n bytes, where library is the plain way (fresh memory, ordinary host arrays) and tuned is the fastest
    way known.
    """

    call: SessionCall | Literal["exchange"]  # which one
    implementations: tuple[Implementation, ...] = ("library",)  # in which it differs

    @property
    def moves(self) -> bool:
        """True if n bytes travel between host and device."""
        return self.call in ("upload", "download")

    def bytes(self, params: Params) -> int:
        """Return the bytes that one call moves."""
        return params["n"] if self.moves else 0


class Collective(Overhead, frozen=True, kw_only=True):
    """The exchange among the ranks of a device group. n is the bytes of the largest buffer that a rank holds."""

    call: Literal["exchange"] = "exchange"  # of the session
    # `exchange(links, sent, got)` enqueues it on all ranks
    exchange: Callable[[Any, Sequence[Array], Sequence[Array]], None]
    # `expected(value, rank, ranks, i, part)` is element `i` of what the rank gets, where `value(rank, i)` is element
    # i of what a rank sent, and `part` is `count // ranks`
    expected: Callable[[Callable[[Any, Array], Array], int, int, Array, int], Array]
    # `bus(ranks)` turns bytes per second of the algorithm into those of the busiest link
    bus: Callable[[int], float]
    # `sends(count, ranks)`: elements that a rank sends, where the largest buffer has `count`
    sends: Callable[[int, int], int] = lambda count, ranks: count
    gets: Callable[[int, int], int] = lambda count, ranks: count  # likewise what a rank gets
    pairwise: bool = False  # it is about two ranks alone
    receivers: tuple[int, ...] | None = None  # the ranks that get something; None means all
    both: bool = False  # twice n bytes move

    def bytes(self, params: Params) -> int:
        """Return the bytes of the algorithm: n, or 2 n if data moves in both directions."""
        return params["n"] * (2 if self.both else 1)


class Defect(str):
    """The reason why an op of another package has no plan at some params: one of its own functions breaks there."""

    __slots__ = ()


def always_fits(params: Params) -> str | None:
    """Return None: every combination of params has a shape."""
    return None


class Split(msgspec.Struct, frozen=True):
    """The way to cut an op along its outer dimension into parts that can be computed separately."""

    axes: Mapping[str, int]  # the axis along which each input is cut; inputs left out are shared whole
    # `part(params, units)`: the params of the same op on so many units of that dimension
    part: Callable[[Params, int], Params]
    # the function of the array library that combines the parts' outputs; None: they follow each other along axis 0
    join: Literal["add", "maximum"] | None = None


class Stage(msgspec.Struct, frozen=True):
    """One op inside a workload. A stage whose op runs on the host is a host stage."""

    name: str  # the same in all turns of a repeat
    op: str  # the op's name
    reads: tuple[str, ...]  # the values that stand for its inputs, in order
    writes: tuple[str, ...]  # the values that stand for its outputs
    # the op's params by the workload's and the turns of the repeats around the stage, by their index
    params: Callable[[Params], Params]
    turns: tuple[int, ...] = ()  # those turns, the outermost first


class Repeat(msgspec.Struct, frozen=True):
    """Stages that run several times, as layers or as successive steps."""

    index: str  # `{index}` in the name of a value stands for the turn, `{index+1}` for the next one
    times: int  # how often
    stages: tuple[Stage | Repeat, ...]  # of one turn
    name: str = ""  # comes before the names of its stages, with a dot

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
    """Return the stages with their repeats written out."""
    return tuple(step for stage in stages for step in (stage.flat() if isinstance(stage, Repeat) else (stage,)))


def counted_by(param: str) -> Callable[[Params, int], Params]:
    """Return the `part` of a split whose outer dimension is the given param."""
    return lambda params, units: {**params, param: units}


class Op(msgspec.Struct, frozen=True):
    """A mathematical operation that the user names."""

    name: str  # the id that a user gives
    group: str  # the heading in listings
    summary: str  # the formula in a line
    params: Mapping[str, str]  # the params, each with its meaning; `n` is the size
    sizes: Ladder  # the default sizes
    inputs: tuple[Operand, ...]  # in the order of the expression's arguments
    output: Operand  # the first output
    flops: Callable[[Params], int]  # floating-point operations of a launch
    # `expr(xp, *inputs)` is the program as a NumPy or CuPy user writes it: the library implementation. It returns a
    # tuple where the op has `more_outputs`
    expr: Callable[..., Array]
    tolerance: Tolerance  # of the output
    dtypes: tuple[Dtype, ...] = WORKING_DTYPES  # the dtypes of cases
    reference: Callable[..., Array] | None = None  # `reference(xp, *inputs)` in float64; None means `expr`
    # how the work is split in two, for all params or by them; None: it cannot be split. `split(params)` is what holds
    split: Split | Callable[[Params], Split] | None = None
    # by backend its kernels; the first is measured, others are named variants
    tuned: Mapping[str, tuple[Kernel, ...]] = {}
    options: Mapping[str, str] = {}  # params beside the size that may be given, each with its meaning
    # `fits(params)` says why a combination has no shape, or None
    fits: Callable[[Params], str | None] = always_fits
    tf32: tuple[str, ...] = ()  # backends whose library call can round float32 inputs to TF32
    # operations a second, at most, of a library call that has no fast code behind it
    slow: Mapping[tuple[str, Dtype], float] = {}
    blas: tuple[str, ...] = ()  # backends whose library call leaves most of its work to their BLAS
    # why inputs that are finite may give an infinity or a NaN; empty: they may not, and one is wrong
    not_finite: str = ""
    # nothing is computed; what is timed is this call, on devices other than the CPU
    overhead: Overhead | None = None
    # by backend the call that its users write where that is not `expr`: `call(torch, *inputs)` returns the results;
    # with the argument `out` it fills that, unless it is None
    library: Mapping[str, Callable[..., Any]] = {}
    # params that the formulas (`expr`, `reference`, the tolerance's scale, `library`) take by name, each with a
    # default of its own: `at(params)` is the op that has them
    takes: tuple[str, ...] = ()
    more_outputs: tuple[Operand, ...] = ()  # outputs beside the first; such an op is not split
    # `traffic(params, dtype)`: bytes that a launch has to move, where they are not those of all operands, such as
    # only the rows of a table that are asked for
    traffic: Callable[[Params, Dtype], int] | None = None
    # the op runs on the host, whatever device there is, by the calls of that library
    host: HostLibrary | None = None
    stages: tuple[Stage, ...] = ()  # the op is a workload, made of others
    # values that one stage writes for another; a device holds them, and they are neither inputs nor outputs
    between: tuple[Operand, ...] = ()
    # gradients that the ranks of a device group average, each of its part of the batch, before a stage reads them
    averaged: tuple[str, ...] = ()
    # tokens that a call reads or writes, by the part that the names of its stages begin with
    tokens: Mapping[str, Callable[[Params], int]] = {}
    # of the text of a user's function: the hash of its kernels. Its own hash is that of its name, arguments and
    # dtypes, so that results compare after an edit
    digest: str = ""
    # in a worker alone, a user's function that takes any objects, not only arrays of numbers
    calls: Any = None
    only: tuple[str, ...] = ()  # backends that it is measured on; empty: all
    # about what a call takes on NumPy, where a trial told it
    seconds: Callable[[Params], float] | None = None

    @property
    def collective(self) -> Collective | None:
        """The exchange on a device group. None means that the op runs on a single device."""
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
        """The outputs that share the buffer of an input: index of the output -> index of the input."""
        places = {operand.name: i for i, operand in enumerate(self.inputs)}
        return {i: places[operand.name] for i, operand in enumerate(self.outputs) if operand.name in places}

    def tolerance_of(self, output: Operand) -> Tolerance:
        """Return the tolerance of an output."""
        return output.tolerance or self.tolerance

    def at(self, params: Params) -> Op:
        """Return the op with the params that its formulas take bound to these values."""
        own = {name: params[name] for name in self.takes if name in params}
        if not own:
            return self

        def bound(formula: Callable[..., Array] | None) -> Any:
            return None if formula is None else partial(formula, **own)

        def bind_tolerance(tolerance: Tolerance) -> Tolerance:
            return msgspec.structs.replace(
                tolerance, scale=bound(tolerance.scale), shortfall=bound(tolerance.shortfall)
            )

        def output(operand: Operand) -> Operand:
            return (
                operand
                if operand.tolerance is None
                else msgspec.structs.replace(operand, tolerance=bind_tolerance(operand.tolerance))
            )

        return msgspec.structs.replace(
            self, expr=bound(self.expr), reference=bound(self.reference),
            library={backend: bound(call) for backend, call in self.library.items()},
            tolerance=bind_tolerance(self.tolerance), output=output(self.output),
            more_outputs=tuple(map(output, self.more_outputs)),
        )  # fmt: skip

    def exact(self) -> Callable[..., Array]:
        """Return the function whose float64 results are the reference for the op's results."""
        return self.reference or self.expr

    def call(self, backend: str) -> Callable[..., Any]:
        """Return the call that users of the backend's library write: `call(library, *inputs)`."""
        return self.library.get(backend, self.expr)

    def fills(self, backend: str) -> bool:
        """Tell whether `call(backend)` takes `out`, the arrays that it fills."""
        return self._out(backend) is not None

    def returns(self, backend: str) -> bool:
        """Tell whether the op has a call in the backend's library that works without `out`."""
        out = self._out(backend)
        return backend in self.library and (out is None or out.default is not out.empty)

    def _out(self, backend: str) -> Any:
        import inspect  # most commands ask nothing of it

        return inspect.signature(self.call(backend)).parameters.get("out")

    def kernel(self, backend: str, dtype: Dtype, variant: str | None = None) -> Kernel | None:
        """Return the tuned kernel `variant` on `backend`; without a variant, the first kernel for the dtype. Return
        None if there is no such kernel."""
        return next(
            (
                kernel
                for kernel in self.tuned.get(backend, ())
                if variant in (None, kernel.variant) and (kernel.dtypes is None or dtype in kernel.dtypes)
            ),
            None,
        )

    def by_blas(self, backend: str, implementation: str, dtype: Dtype) -> bool:
        """Tell whether the backend's BLAS does most of the work. In half precision only a tuned kernel uses BLAS, by
        widening."""
        return backend in self.blas and (implementation == "tuned" or dtype in _BLAS_DTYPES)

    def with_kernels(self, backend: str, kernels: tuple[Kernel, ...]) -> Op:
        """Return the op with more kernels for a backend, placed before its declared kernels."""
        if not kernels:
            return self
        return msgspec.structs.replace(
            self, tuned={**self.tuned, backend: (*kernels, *self.tuned.get(backend, ()))}
        )

    def split_at(self, params: Params) -> Split | None:
        """Return how the work is cut at these params. Return None if it cannot be split."""
        if self.more_outputs:
            return None
        return self.split(params) if callable(self.split) else self.split

    def units(self, params: Params) -> int:
        """Return the length of the outer dimension, along which the work is cut. Return 0 if it cannot be split."""
        split = self.split_at(params)
        if split is None:
            return 0
        return next(x.shape(params)[split.axes[x.name]] for x in self.inputs if x.name in split.axes)

    def begins(self, params: Params, larger: Params) -> bool:
        """Tell whether each input at `params` is the first part of the input at `larger`, along the first dimension."""
        split = self.split_at(larger)
        if split is None or not self._leads(split) or self.units(params) > self.units(larger):
            return False
        part = split.part(larger, self.units(params))
        return all(operand.shape(part) == operand.shape(params) for operand in self.operands)

    def _leads(self, split: Split) -> bool:
        """Tell whether all inputs are cut along their first dimension."""
        return {x.name for x in self.inputs} == set(split.axes) and not any(split.axes.values())

    def whole(self, params: Params) -> str | None:
        """Return why the work cannot be cut in two. Return None if it can."""
        if self.split_at(params) is None:
            return f"{self.name} does not say how it is cut"
        units = self.units(params)
        return None if units >= 2 else f"{self.name} has {units} unit to cut"

    def bytes(self, params: Params, dtype: Dtype) -> int:
        """Return the compulsory traffic of one launch: each input read once, each output written once. For a transfer
        it is n."""
        if self.overhead is not None:
            return self.overhead.bytes(params)
        if self.traffic is not None:
            return self.traffic(params, dtype)
        return sum(operand.bytes(params, dtype) for operand in self.operands)

    def written_bytes(self, params: Params, dtype: Dtype) -> int:
        """Return the bytes of all outputs."""
        return sum(operand.bytes(params, dtype) for operand in self.outputs)

    def held_bytes(self, params: Params, dtype: Dtype) -> int:
        """Return the bytes that a device holds for one launch: all operands, and the arrays between stages."""
        held = {operand.name: operand for operand in (*self.operands, *self.between) if operand.role != "host"}
        return sum(operand.bytes(params, dtype) for operand in held.values())


# ---------------------------------------------------------------- overheads: what a device costs around any work

_OF_BYTES = ("allocate", "upload", "download")
_ONCE = Ladder(low=1, high=1)
# From less than a page to what fills a link for a fifth of a second.
_BYTES = Ladder(low=2**10, high=2**30, factor=16, granule=4)


@cache
def overhead(call: Any, summary: str) -> Op:
    """Return the op that times `call`. A call with n bytes has a library and a tuned implementation; any other call has
    n = 1 and the library implementation alone."""
    of_bytes = call in _OF_BYTES
    return Op(
        name=call, group="overhead", summary=summary,
        params={"n": "number of bytes" if of_bytes else "always 1"}, sizes=_BYTES if of_bytes else _ONCE,
        dtypes=("float32",), inputs=(), output=Operand("nothing", lambda params: (0,)),
        flops=lambda params: 0, expr=lambda xp: xp.zeros((0,)), tolerance=EXACT,
        fits=_whole_words if of_bytes else always_fits,
        overhead=Overhead(call, ("library", "tuned") if of_bytes else ("library",)),
    )  # fmt: skip


def _whole_words(params: Params) -> str | None:
    if params["n"] % 4:
        return f"n is a number of bytes, and devices move words of 4: {params['n']} is no multiple"
    return None
