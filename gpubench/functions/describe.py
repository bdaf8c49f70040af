"""The description of a user's function, and the op that is made of it.

A child process sends the description to the parent, and the parent makes the op. A manifest file lists the
sources and descriptions of all functions for the child processes of a run.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
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

# The range of the elements of an argument without `inputs`. They are positive, so roots and logarithms exist.
DRAWN = Range(0.5, 2.0)
DTYPES: tuple[Dtype, ...] = ("float32", "float64", "float16")

Points = list[tuple[int, float]]  # pairs (n, value), sorted by n
MOST_POWER = 3.0
MOST_FLOPS = 2.0**62  # a result file holds no larger integers than 2^63 - 1


class Shown(msgspec.Struct, frozen=True):
    """An input or a result of a function at the sizes that were tried."""

    name: str  # name of the argument or result
    extents: list[Points]  # for each axis: its extent at the sizes n that were tried
    bytes: Points  # size in bytes at the sizes n that were tried
    floating: bool = True  # whether the elements have the dtype of the case
    stays: bool = False  # whether the object stays on the device, as weights do


class Description(msgspec.Struct, frozen=True):
    """The description of a function that a child process sent."""

    source: str  # name of the file or module without a suffix
    name: str  # name of the function
    digest: str  # a digest of the source text of the function
    summary: str  # first line of the function's docstring
    inputs: list[Shown]  # arguments
    results: list[Shown]  # results
    peak: Points  # bytes that a call used in addition to its inputs and results, by n
    seconds: Points  # seconds of a call of the CPU program, by n
    low: int  # smallest tried size at which the function works
    high: int  # largest size that a search may measure
    dtypes: list[Dtype]  # dtypes to measure
    inputs_s: Points = []  # seconds of making the inputs, by n
    pair: bool = False  # whether the function has two programs
    backends: list[str] | None = None  # backends to measure; None means all
    one_of: list[str] = []  # backends for the GPU program; the first that drives a GPU here measures it
    flops: Points | None = None  # operations of a call, by n; None if the user gave no `flops`
    # the operations per element; None if the function is not a formula that can be compiled
    operations: int | None = None
    untraced: str = ""  # reason why the function is not compiled
    own_inputs: bool = False  # whether the user's code makes the inputs
    widens: bool = False  # whether float32 inputs give an array of float64
    file_digest: str = ""  # digest of the whole file; a worker refuses to measure a changed file

    @property
    def id(self) -> str:
        """The id of the op, for example `options.pairwise`."""
        return f"{self.source}.{self.name}"


def extrapolate(points: Points, n: int) -> float:
    """Return the value at size n, extrapolated from the points (size, value). Three or more points on a line
    continue the line, but not below 0. Other points continue as a power of n. Without points the value is 0."""
    values = dict(points)
    if n in values:
        return values[n]
    if not points:
        return 0.0
    (first, low), (last, high) = points[0], points[-1]
    if first == last:
        # A single value m^2 is a square, a multiple of m grows with n, and any other is constant.
        whole = 2 if low == first * first else 1 if low and low % first == 0 else 0
        return low * float(n / first) ** whole
    slope = (high - low) / (last - first)
    # How far a point may lie off the line: half an element, because extents are rounded, or 1 % of small values
    # such as seconds.
    close = min(0.5, 0.01 * high)
    if len(points) > 2 and all(abs(low + slope * (m - first) - value) <= close for m, value in points):
        return max(0.0, low + slope * (n - first))
    before, smaller = points[-2]
    # The last two points define the exponent, a multiple of 0.5.
    power = math.log(max(high, 1e-9) / max(smaller, 1e-9)) / math.log(last / before)
    # It is at most that of a matrix product, because an interruption may have made the last call long.
    return float(high * (n / last) ** (round(2 * min(max(power, 0.0), MOST_POWER)) / 2))


def shape_text(shown: Shown) -> str:
    """Return the shape of an input as a text in n, for example `(n, 64)`. An extent that is not n, n^2 or a
    constant is shown at the smallest size: `(96 at n = 64)`."""
    return f"({', '.join(map(_extent_text, shown.extents))})"


def _extent_text(points: Points) -> str:
    powers = {"n": 1, "n^2": 2}
    texts = [text for text, power in powers.items() if all(value == n**power for n, value in points)]
    if len({value for _, value in points}) == 1:
        texts += [f"{points[0][1]:.0f}"]
    return texts[0] if texts else f"{points[0][1]:.0f} at n = {points[0][0]}"


class Code(msgspec.Struct, frozen=True):
    """The user's code in the form that an op needs."""

    expr: Callable[..., Array]  # function; a placeholder in the parent, which has no user code
    formula: Callable[..., Any] | None = None  # function that is traced and compiled; None in the parent
    tolerance: Tolerance | None = None  # tolerance of the result; None means the default
    made: Sequence[Callable[[Params, str, int], Array]] | None = None  # functions that make the inputs
    calls: Any = None  # function itself if it may take objects other than arrays, else None


class SizedOperand(Operand, frozen=True, kw_only=True):
    """An operand with its own rule for its bytes: an object, or an array whose elements do not have the dtype
    of the case."""

    sized: Callable[[Params], int]  # returns the bytes for the params

    def bytes(self, params: Params, dtype: Dtype) -> int:
        """Return the bytes of the operand, which do not depend on the dtype."""
        return self.sized(params)


def operand(shown: Shown) -> Operand:
    """Return the operand for an input or a result."""

    def shape(params: Params) -> Shape:
        return tuple(max(0, round(extrapolate(points, params["n"]))) for points in shown.extents)

    role: Role = "state" if shown.stays else "activation"
    if shown.floating:
        return Operand(shown.name, shape, role=role)
    return SizedOperand(
        shown.name, shape, role=role, sized=lambda params: round(extrapolate(shown.bytes, params["n"]))
    )


def make_op(description: Description, code: Code) -> Op:
    """Return the op for the description of a function. In the parent, `code` is a placeholder."""
    ladder = Ladder(description.low, description.high)

    seconds, inputs_s = map(_by_params, (description.seconds, description.inputs_s))
    flops, only = description.flops, tuple(description.backends or ())
    if description.operations is not None:
        names = [f"{shown.name}_in" for shown in description.inputs]  # a name may be a keyword of WGSL
        operands = tuple(
            Operand(name, lambda params: (params["n"],), values=DRAWN if code.made is None else Made(make))
            for name, make in zip(names, code.made or [worker_alone] * len(names), strict=True)
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
            split=None if description.own_inputs else op.split, seconds=seconds, inputs_s=inputs_s,
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
        flops=lambda params: round(min(extrapolate(flops, params["n"]), MOST_FLOPS)) if flops else 0,
        expr=code.expr, tolerance=code.tolerance or Tolerance(UNITS), digest=description.digest, calls=code.calls,
        only=only, one_of=tuple(description.one_of), seconds=seconds, inputs_s=inputs_s,
    )  # fmt: skip


def _by_params(points: Points) -> Callable[[Params], float]:
    return lambda params: extrapolate(points, params["n"])


def worker_alone(*_: object) -> Array:
    """Raise NotImplementedError. This is the placeholder for the user's code in the parent, which never runs it."""
    raise NotImplementedError("a user's function runs in a worker alone")


# ---------------------------------------------------------------- the file by which children find functions

# The environment variable with the path of the manifest file. Every child process inherits it.
MANIFEST_VARIABLE = "_GPUBENCH_FUNCTIONS"


class CodeSource(msgspec.Struct, frozen=True):
    """A source of functions: a file, a module or a pickle."""

    name: str  # name of the source, with which the ids of its functions begin
    kind: Literal["file", "module", "pickle"]  # kind of the source
    place: str  # path of a file or pickle, or the dotted name of a module
    path: tuple[str, ...] = ()  # folders to add to `sys.path`
    only: str = ""  # name of the only function in a pickle


class Manifest(msgspec.Struct):
    """The functions of a process and their sources. A later source replaces an earlier source with the same
    name."""

    sources: list[CodeSource] = []  # files, modules and pickles
    functions: list[Description] = []  # descriptions that child processes sent


_known = Manifest()
_path = ""


def read_manifest() -> Manifest:
    """Return the manifest that the parent process wrote. Raises KeyError if there is none."""
    return msgspec.json.decode(Path(os.environ[MANIFEST_VARIABLE]).read_bytes(), type=Manifest)


def add_to_manifest(source: CodeSource, functions: list[Description]) -> None:
    """Add `source` and its functions to the manifest file, for child processes that start later. The first call
    makes the file."""
    global _path
    _known.sources = [*(entry for entry in _known.sources if entry.name != source.name), source]
    ids = {function.id for function in functions}
    _known.functions = [*(entry for entry in _known.functions if entry.id not in ids), *functions]
    if not _path:
        descriptor, _path = tempfile.mkstemp(prefix="gpubench-functions-", suffix=".json")
        os.close(descriptor)
        atexit.register(_remove, _path, os.getpid())
        os.environ[MANIFEST_VARIABLE] = _path
    Path(_path).write_bytes(msgspec.json.encode(_known))


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            os.unlink(path)
