"""The description of a user's function.

A child process gives the description, and the parent makes an op of it. The manifest file tells the children of a run
where the functions are.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from gpubench.kernels import elementwise
from gpubench.kernels.contract.op import (
    EXACT,
    Array,
    Dtype,
    Ladder,
    Made,
    Op,
    Operand,
    Params,
    Range,
    Role,
    Shape,
    Tolerance,
)
from gpubench.kernels.templates.formula import UNITS
from gpubench.result.case import FUNCTIONS

# What an argument without `inputs` holds: positive numbers, of which roots and logarithms exist.
DRAWN = Range(0.5, 2.0)
DTYPES: tuple[Dtype, ...] = ("float32", "float64", "float16")

Points = list[tuple[int, float]]  # (n, value), by n
MOST_POWER = 3.0


class Shown(msgspec.Struct, frozen=True):
    """An input or a result at the sizes that were tried."""

    name: str  # of the argument or result
    extents: list[Points]  # by axis
    bytes: Points  # in all
    floating: bool = True  # its elements are numbers of the case's dtype
    stays: bool = False  # on the device, as weights do


class Description(msgspec.Struct, frozen=True):
    """A function as the child process described it."""

    source: str  # the name of its file or module
    name: str  # of the function
    digest: str  # of its text
    summary: str  # the first line of its docstring
    inputs: list[Shown]  # its arguments
    results: list[Shown]  # what it returns
    peak: Points  # bytes that a call took beside inputs and results
    seconds: Points  # of a call on NumPy
    low: int  # the smallest size that works
    high: int  # the largest size of a search
    dtypes: list[Dtype]  # in which it is measured
    pair: bool = False  # it has two programs
    backends: list[str] | None = None  # those to measure; None: all
    flops: Points | None = None  # None: nobody told
    operations: int | None = None  # of an element, if the formula is compiled
    untraced: str = ""  # why it is not compiled
    own_inputs: bool = False  # the user makes them
    file_digest: str = ""  # of the whole file: a worker refuses to measure another text

    @property
    def id(self) -> str:
        """The name of the op: `options.pairwise`."""
        return f"{self.source}.{self.name}"


def extrapolate(points: Points, n: int) -> float:
    """Extrapolate a value to size n.

    If three or more points lie on a line, use that line. Otherwise use a power of n, rounded to halves, through the
    last two points. A single point is read as a multiple of n * n or of n, else as a constant.
    """
    values = dict(points)
    if n in values:
        return values[n]
    if not points:
        return 0.0
    (first, low), (last, high) = points[0], points[-1]
    if first == last:
        whole = 2 if low == first * first else 1 if low and low % first == 0 else 0
        return low * float(n / first) ** whole
    slope = (high - low) / (last - first)
    # Extents are whole numbers, so that half of them is on no line; of seconds, which are small, 1 % is off it.
    close = min(0.5, 0.01 * high)
    if len(points) > 2 and all(abs(low + slope * (m - first) - value) <= close for m, value in points):
        return max(0.0, low + slope * (n - first))
    before, smaller = points[-2]
    power = math.log(max(high, 1e-9) / max(smaller, 1e-9)) / math.log(last / before)
    # Seconds that an interruption made long grow by no more than those of a matrix product.
    return float(high * (n / last) ** (round(2 * min(max(power, 0.0), MOST_POWER)) / 2))


def shape_text(shown: Shown) -> str:
    """Return the shape of an input as a text in n: `(n, 64)`."""
    return f"({', '.join(map(_extent_text, shown.extents))})"


def _extent_text(points: Points) -> str:
    powers = {"n": 1, "n^2": 2}
    texts = [text for text, power in powers.items() if all(value == n**power for n, value in points)]
    if len({value for _, value in points}) == 1:
        texts += [f"{points[0][1]:g}"]
    return texts[0] if texts else f"{points[0][1]:g} at n = {points[0][0]}"


class Code(msgspec.Struct, frozen=True):
    """The user's code in the form that an op takes."""

    expr: Callable[..., Array]  # a placeholder in the parent, which has no user's code
    formula: Callable[..., Any] | None = None  # the text that is compiled; None in the parent
    tolerance: Tolerance | None = None  # None: the usual one
    made: Sequence[Callable[[Params, str, int], Array]] | None = None  # inputs of its own, by argument
    calls: Any = None  # the function itself, where it takes any objects


class Extent(Operand, frozen=True, kw_only=True):
    """An operand that states its own bytes: an object, or an array whose elements have no dtype of a case."""

    sized: Callable[[Params], int]  # bytes, of the params

    def bytes(self, params: Params, dtype: Dtype) -> int:
        """The operand's bytes; the dtype does not matter."""
        return self.sized(params)


def operand(shown: Shown) -> Operand:
    """Make the operand of an input or a result."""

    def shape(params: Params) -> Shape:
        return tuple(max(0, round(extrapolate(points, params["n"]))) for points in shown.extents)

    role: Role = "state" if shown.stays else "activation"
    if shown.floating:
        return Operand(shown.name, shape, role=role)
    return Extent(
        shown.name, shape, role=role, sized=lambda params: round(extrapolate(shown.bytes, params["n"]))
    )


def make_op(description: Description, code: Code) -> Op:
    """Make the op of a function from its description."""
    ladder = Ladder(description.low, description.high)

    def seconds(params: Params) -> float:
        return extrapolate(description.seconds, params["n"])

    flops, only = description.flops, tuple(description.backends or ())
    if description.operations is not None:
        names = [f"{shown.name}_in" for shown in description.inputs]  # a name may be a word of WGSL
        operands = tuple(
            Operand(name, lambda params: (params["n"],), values=DRAWN if code.made is None else Made(make))
            for name, make in zip(names, code.made or [_nothing] * len(names), strict=True)
        )
        op = elementwise(
            name=f"{description.source}_{description.name}", group=FUNCTIONS, summary=description.summary,
            inputs=operands, flops_per_element=description.operations, expr=code.expr,
            formula=code.formula or (lambda m, x, *others: x), tolerance=code.tolerance or EXACT,
            dtypes=tuple(description.dtypes), library={"torch": code.expr},
            not_finite="the function says what its results mean",
        )  # fmt: skip
        return msgspec.structs.replace(
            op, name=description.id, sizes=ladder, digest=description.digest, only=only, reference=None,
            split=None if description.own_inputs else op.split, seconds=seconds,
        )  # fmt: skip
    first, *others = description.results
    # Several results are downloaded as one.
    sizes = [shown.bytes for shown in description.results]
    together = msgspec.structs.replace(
        first,
        floating=False,
        bytes=[(at[0][0], sum(size for _, size in at)) for at in zip(*sizes, strict=True)],
    )
    beside = Shown("temporaries", [], description.peak, floating=False)
    return Op(
        name=description.id, group=FUNCTIONS, summary=description.summary, params={"n": "what the function says it is"},
        sizes=ladder, dtypes=tuple(description.dtypes), inputs=tuple(operand(shown) for shown in description.inputs),
        output=operand(together if others else first), between=(operand(beside),),
        flops=lambda params: round(extrapolate(flops, params["n"])) if flops else 0,
        expr=code.expr, tolerance=code.tolerance or Tolerance(UNITS), digest=description.digest, calls=code.calls,
        only=only, seconds=seconds,
    )  # fmt: skip


def _nothing(params: Params, dtype: str, seed: int) -> Array:
    raise NotImplementedError("the inputs of a user's function are made in a worker")


# ---------------------------------------------------------------- the file by which children find functions

# The variable that has the file's path: every child process inherits it.
MANIFEST_VARIABLE = "_GPUBENCH_FUNCTIONS"


class CodeSource(msgspec.Struct, frozen=True):
    """A source of functions: a file, a module or a pickle."""

    name: str  # in messages
    kind: Literal["file", "module", "pickle"]  # of source
    place: str  # a path, or the dotted name of a module
    path: tuple[str, ...] = ()  # folders to import from
    only: str = ""  # the one function that a pickle holds


class Manifest(msgspec.Struct):
    """All functions of a process and their sources; of sources with the same name only the latest."""

    sources: list[CodeSource] = []  # files, modules, pickles
    functions: list[Description] = []  # as their children saw them


_known = Manifest()
_path = ""


def read_manifest() -> Manifest:
    """Read the manifest that the parent wrote; without one, return an empty manifest."""
    path = os.environ.get(MANIFEST_VARIABLE)
    if not path:
        return Manifest()
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=Manifest)


def add_to_manifest(source: CodeSource, functions: list[Description]) -> None:
    """Add the functions to the manifest, which children started from now on read."""
    global _path
    _known.sources = [*(entry for entry in _known.sources if entry.name != source.name), source]
    ids = {function.id for function in functions}
    _known.functions = [*(entry for entry in _known.functions if entry.id not in ids), *functions]
    if not _path:
        descriptor, _path = tempfile.mkstemp(prefix="gpubench-functions-", suffix=".json")
        os.close(descriptor)
        atexit.register(_remove, _path, os.getpid())
        os.environ[MANIFEST_VARIABLE] = _path
    with open(_path, "wb") as file:
        file.write(msgspec.json.encode(_known))


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            os.unlink(path)
