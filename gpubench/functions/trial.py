"""The child process that describes a user's functions: `python -m gpubench.functions.trial REQUESTS`.

The child sends its reports before and after each function, so that the parent knows which function hangs or
crashes. It calls a function at up to three of the requested sizes. Without requested sizes it calls the function
at the smallest sizes of a search.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import math
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from numbers import Real
from types import CodeType
from typing import Any, NoReturn

import msgspec

from gpubench import backends
from gpubench.base import hash_text
from gpubench.base.child_main import Messages, end
from gpubench.base.plugins import PluginError, error_text
from gpubench.base.units import format_bytes, split_words
from gpubench.functions import MEMORY_SHARE
from gpubench.functions.declare import GPU_LIBRARIES, Stays, UserFunction, gpu_library
from gpubench.functions.describe import DTYPES, MOST_FLOPS, CodeSource, Description, Points, Shown, extrapolate
from gpubench.functions.loading import (
    equal,
    formula,
    is_floating,
    leaves,
    load_source,
    make_inputs,
    on_host,
    plain,
    size,
    where,
)
from gpubench.kernels.contract.op import Array
from gpubench.kernels.templates.formula import Untraceable
from gpubench.result.case import LONG_DTYPES, SHORT_DTYPES

# The sizes that are tried: the first size that works, then larger sizes while a call is shorter than SHORT_S and
# uses less than SMALL_BYTES. Requested sizes add up to two. A search tries up to MOST_SIZES sizes, each FACTOR times
# the last; after three, it ends when a call takes more than TELLING_S, which shows how the time grows. The fastest
# call counts, of the first one and CALLS repetitions.
LOWEST = (64, 128, 256, 512, 1024)
FACTOR, SHORT_S, SMALL_BYTES, TELLING_S, MOST_SIZES, CALLS = 4, 0.1, 16 * 2**20, 2e-3, 8, 4
# The most seconds for an import, or for the trial of a function at one size. The seconds after which a search tries no
# larger size.
TRIAL_S, MOST_S = 60.0, 0.25
# After the first size, the limits SHORT_S and SMALL_BYTES are this many times larger, because a single size shows no
# growth.
SECOND = 8
# The largest size of a search, and the most seconds that one of its calls may be estimated to take.
HIGHEST, LONGEST_S = 2**24, 0.5


class TrialRequest(msgspec.Struct):
    """Request: try the functions of a source."""

    source: CodeSource  # source of the functions
    names: list[str] | None = None  # names of the functions; None means all functions
    skip: list[str] = []  # names of functions that an earlier child process has tried
    sizes: list[int] = []  # sizes that the user requested; empty for a search
    dtypes: list[str] = []  # dtypes that the user named, in order
    # The most seconds for each size after the first. Calls at the first size are repeated only as far as they fit in.
    # None: TRIAL_S for each size, and every call is repeated.
    limit_s: float | None = None
    usable_bytes: int | None = None  # free memory that the machine leaves to gpubench; None: unknown

    def pick_dtype(self, declared: Sequence[Any]) -> Any:
        """Return the first requested dtype that `declared` has. Without one, return float32 if `declared` has it,
        else the first of `declared`."""
        return next((dtype for dtype in (*self.dtypes, "float32") if dtype in declared), declared[0])

    @property
    def most_bytes(self) -> float:
        """The bytes that a call may take: a share of the free memory, or infinity if that is unknown."""
        return MEMORY_SHARE * (math.inf if self.usable_bytes is None else self.usable_bytes)


class TrialReport(msgspec.Struct):
    """Reply: the results of the trials of a source so far."""

    functions: list[Description] = []  # descriptions of the functions that were tried
    # the current function, as described so far; None if no size has been tried yet
    partial: Description | None = None
    wrong: dict[str, str] = {}  # by the name of a function: why it cannot be measured
    known: list[str] = []  # names that the source declares
    undeclared: list[str] = []  # names of its other functions
    trying: str | None = ""  # name of the current function; empty during the import, None at the end
    broken: str = ""  # reason why the source cannot be imported


class Trial(msgspec.Struct):
    """The calls of a function at one size."""

    n: int  # size n of the op
    inputs: list[Any]  # inputs of the call
    results: list[tuple[str, Any]]  # results, each with its name
    inputs_s: float  # seconds of making the inputs
    seconds: float  # seconds of the fastest call
    peak: int  # bytes that a call used in addition to its inputs and results


def describe(name: str, function: UserFunction, request: TrialRequest) -> Iterator[Description]:
    """Try a function at increasing sizes, and yield its description after each size.

    Raises PluginError, whose text is the reason, if the function cannot be measured.
    """
    trials: list[Trial] = []
    for trial in _trials(function, request):
        trials.append(trial)
        yield _description(name, function, request, trials)


def _description(name: str, function: UserFunction, request: TrialRequest, trials: list[Trial]) -> Description:
    first = trials[0]
    arguments = function.arguments
    names = arguments if len(arguments) == len(first.inputs) else [f"x{i}" for i in range(len(first.inputs))]
    try:
        traced = formula(function, names, [plain(x) for x in first.inputs], first.n)
        operations, untraced = traced.operations, ""
    except Untraceable as error:
        operations, untraced = None, str(error)
    shown = [_show(name, [trial.inputs[i] for trial in trials], trials) for i, name in enumerate(names)]
    results = [
        _show(out, [trial.results[i][1] for trial in trials], trials)
        for i, (out, _) in enumerate(first.results)
    ]
    doc = inspect.getdoc(function.original) or ""
    return Description(
        source=request.source.name, name=name, digest=digest(function),
        summary=doc.splitlines()[0] if doc else f"{name}({', '.join(arguments)})",
        inputs=shown, results=results, peak=[(t.n, t.peak) for t in trials],
        seconds=[(t.n, t.seconds) for t in trials], low=first.n, high=highest_size(trials, request),
        dtypes=_dtypes(function), inputs_s=[(t.n, t.inputs_s) for t in trials], pair=function.gpu is not None,
        backends=_backends(function), one_of=one_of(function),
        flops=[(t.n, _flops(function.flops, t.n)) for t in trials] if function.flops else None,
        operations=operations, untraced=untraced, own_inputs=function.make is not None,
        widens=_widens(list(map(plain, first.inputs)), [value for _, value in first.results]),
    )  # fmt: skip


def _widens(inputs: Sequence[Any], results: Sequence[Any]) -> bool:
    """Tell whether a result is a NumPy array of float64, and inputs are of float32 alone."""
    import numpy as np

    widths = [
        {str(x.dtype) for x in values if isinstance(x, np.ndarray) and x.ndim} for values in (inputs, results)
    ]
    return "float32" in widths[0] and "float64" in widths[1] - widths[0]


def digest(function: UserFunction) -> str:
    """Return the first twelve hexadecimal digits of a hash of the function's source text. Without source text,
    the compiled code is hashed."""
    return hash_text("\n".join(map(_text_of, filter(None, (function.original, function.gpu)))))


def _text_of(program: Any) -> str:
    """Return a text of a program that is the same in each process: its source, or else its compiled code or its
    representation."""
    if isinstance(program, partial):
        return f"{_text_of(program.func)}{_without_addresses((program.args, program.keywords))}"
    # A callable object has the text of its class.
    for part in (program, type(program)):
        with contextlib.suppress(OSError, TypeError):
            return inspect.getsource(part) + ("" if part is program else _without_addresses(program))
        if hasattr(part, "__code__"):
            return _code_text(part.__code__)
    return _without_addresses(program)


def _without_addresses(value: Any) -> str:
    return re.sub(r" at 0x\w+", "", repr(value))


def _code_text(code: CodeType) -> str:
    """Return the content of a compiled function as text, without the addresses of nested functions."""
    consts = [_code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {consts}"


def _backends(function: UserFunction) -> list[str] | None:
    names = split_words(function.backends)
    for name in names:
        if not backends.has(name):
            raise PluginError(f"there is no backend {name!r}: take {', '.join(backends.usual())}")
    return names or None


def one_of(function: UserFunction) -> list[str]:
    """Return the backends that could measure the GPU program, that of its library first. The list is empty if the
    library is unknown."""
    library = gpu_library(function.gpu)
    return sorted(("cupy", "torch"), key=lambda name: name != GPU_LIBRARIES[library]) if library else []


def _dtypes(function: UserFunction) -> list[Any]:
    dtypes: list[Any] = [LONG_DTYPES.get(word, word) for word in split_words(function.dtypes)]
    for dtype in dtypes:
        if dtype not in SHORT_DTYPES:
            raise PluginError(f"there is no dtype {dtype!r}: take {', '.join(SHORT_DTYPES)}")
    return dtypes or list(DTYPES)


def _flops(count: Callable[[int], float], n: int) -> float:
    """Return the user's number of operations at size n, or raise PluginError."""
    try:
        flops = count(n)
    except Exception as error:
        raise PluginError(f"its option flops raises {error_text(error)} at n = {n}") from error
    if not (isinstance(flops, Real) and 0 <= flops <= MOST_FLOPS):
        raise PluginError(f"its option flops returns {flops!r:.40} at n = {n}: return a number of operations")
    return float(flops)


def _trials(function: UserFunction, request: TrialRequest) -> Iterator[Trial]:
    """Yield the trials of the function at a few sizes, ascending. Raises PluginError if it works at none."""
    sizes, problem, began = sorted(request.sizes), "", time.perf_counter()
    for n in sizes or LOWEST:
        try:
            first = last = _call(function, n, request)
            break
        except PluginError as error:
            problem = problem or str(error)
    else:
        raise PluginError(problem)
    yield first
    steps = [first.n * FACTOR**k for k in range(1, MOST_SIZES)]
    for count, n in enumerate([n for n in sizes if n > first.n][:2] if sizes else steps, 1):
        times = SECOND if count == 1 else 1
        if max(last.seconds, last.inputs_s) > times * SHORT_S or last.peak > times * SMALL_BYTES:
            return
        if count >= 3 and (last.seconds > TELLING_S or time.perf_counter() - began > MOST_S):
            return
        try:
            last = _call(function, n, request, again=True)
        except PluginError:  # the run skips this size with its own reason
            return
        yield last


def _call(function: UserFunction, n: int, request: TrialRequest, *, again: bool = False) -> Trial:
    """Call the CPU program a few times at size n. Raises PluginError if the program fails, changes its inputs, or
    gives different results for the same inputs. With `again`, a smaller size was checked, and some checks are left
    out."""
    import numpy as np

    limit_s = None if again else request.limit_s
    inputs, inputs_s = (_inputs if again else _repeatable_inputs)(function, n, request)
    arguments = _copies(inputs)
    call = function.cpu if function.gpu is not None else function.bind(np)
    try:
        with np.errstate(all="ignore"):
            tracemalloc.start()
            began = time.perf_counter()
            try:
                result = second = call(*arguments)
                first_s = seconds = time.perf_counter() - began
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            fits = limit_s is None or 2 * first_s <= limit_s
            for _ in range(CALLS if fits else 0):
                copies = _copies(inputs)
                began = time.perf_counter()
                second = call(*copies)
                took = time.perf_counter() - began
                seconds = min(seconds, took)
                if took > SHORT_S:
                    break
    except Exception as error:
        what = where(error, function)
        hint = ""
        if function.gpu is None and "Tensor" in what:
            hint = "NumPy calls it too (for PyTorch alone write gpubench.pair(cpu=f, gpu=f)): "
        elif function.make is None:
            hint = "called with vectors of n numbers (others: @gpubench.function(inputs=lambda rng, n: [...])) "
        raise PluginError(f"{hint}it raises {what} at n = {n}") from error
    for i, (before, after) in enumerate(zip(inputs, arguments, strict=True)):
        if not equal(plain(before), after):
            changed = dict(enumerate(function.arguments)).get(i, f"input {i}")
            raise PluginError(
                f"it changes {changed}: it has to leave its inputs as they are, so work on a copy"
            )
    if function.same is None:
        arrays = _require_readable(result)
        if not equal(result, second):
            raise PluginError(
                "two calls give different results: draw random numbers in `inputs`, call eval() of a network, or say"
                " same="
            )
        if not again and (limit_s is None or 3 * first_s <= limit_s):
            _require_fresh(
                call, [np.array(x) for x in arrays], inputs, _inputs(function, n, request, seed=2)[0]
            )
    results = leaves(result)
    if not results:
        raise PluginError("it returns nothing")
    # The inputs were allocated before.
    return Trial(n, inputs, results, inputs_s, seconds, max(0, peak - sum(size(value) for _, value in results)))


def _require_fresh(call: Callable[..., Any], arrays: list[Array], inputs: list[Any], others: list[Any]) -> None:
    """Raise PluginError if `call` returns the `arrays` of its old result for new inputs and for scaled numbers."""
    import numpy as np

    own = list(map(plain, inputs))

    def other_values() -> Iterator[list[Any]]:
        share = np.random.default_rng(3).uniform
        yield list(map(plain, others))
        yield [(x * share(0.5, 1.0, x.shape)).astype(x.dtype) if is_floating(x) else x for x in own]

    # New inputs alone may rightly give the old result, such as sorted permutations.
    for values in other_values():
        if equal(own, values):
            return
        try:
            with np.errstate(all="ignore"):
                other = call(*_copies(values))
        except Exception:  # the function does not take these values
            return
        if not equal(arrays, other):
            return
    if any(a.dtype.kind in "fc" and np.unique(a).size > 1 for a in arrays):
        raise PluginError("it returns its first result for other values too: it has to compute at each call")


def _copies(inputs: Sequence[Any]) -> list[Any]:
    """Return copies of the inputs, without the marks `stays`."""
    try:
        return [deepcopy(plain(x)) for x in inputs]
    except Exception as error:
        raise PluginError(f"its inputs cannot be copied: {error_text(error)}") from error


def _repeatable_inputs(function: UserFunction, n: int, request: TrialRequest) -> tuple[list[Any], float]:
    """Return the inputs and the seconds of making them. Raises PluginError if a second call makes other inputs."""
    inputs, _ = _inputs(function, n, request)
    others, inputs_s = _inputs(function, n, request)
    if not equal(list(map(plain, inputs)), list(map(plain, others))):
        raise PluginError("its inputs differ from call to call: draw them from rng alone")
    return inputs, inputs_s


def _inputs(function: UserFunction, n: int, request: TrialRequest, seed: int = 1) -> tuple[list[Any], float]:
    """Return the inputs at size `n`, and the seconds of making them. Raises PluginError if the user's code fails,
    or if a trial with random vectors would need too much memory."""
    # A trial makes float32 inputs twice and copies them; the function needs memory, too.
    needed = 4 * n * 4 * len(function.arguments)
    if function.make is None and needed > request.most_bytes:
        raise PluginError(f"n = {n} needs about {format_bytes(needed)} of memory: choose smaller --sizes")
    began = time.perf_counter()
    try:
        dtype = request.pick_dtype(_dtypes(function))
        return make_inputs(function, function.arguments, n, dtype, seed), time.perf_counter() - began
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"its inputs raise {where(error, function)} at n = {n}") from error


def _require_readable(result: Any) -> list[Array]:
    """Return the arrays of a result. Raises PluginError if it has none that can be compared, or only NaN."""
    import numpy as np

    if result is None:
        raise PluginError("it returns nothing: return the result")
    arrays = [on_host(value) for _, value in leaves(result)]
    if arrays and all(a.size and a.dtype.kind in "fc" and np.isnan(a).all() for a in arrays):
        raise PluginError("its whole result is NaN: `inputs` has to return values for which it has a result")
    return arrays


def _show(name: str, values: list[Any], trials: list[Trial]) -> Shown:
    stays = isinstance(values[0], Stays)
    values = list(map(plain, values))
    shapes = [tuple(getattr(value, "shape", ())) for value in values]
    sizes = [trial.n for trial in trials]
    lengths = zip(*shapes, strict=True) if len(set(map(len, shapes))) == 1 else ()  # of each axis
    kind = getattr(getattr(values[0], "dtype", None), "kind", "")
    return Shown(
        name, [list(zip(sizes, axis, strict=True)) for axis in lengths],
        list(zip(sizes, map(size, values), strict=True)),
        floating=kind == "f" and hasattr(values[0], "nbytes"), stays=stays,
    )  # fmt: skip


def highest_size(trials: list[Trial], request: TrialRequest) -> int:
    """Return the largest size that a search may measure: the lowest size, doubled as far as HIGHEST, memory and
    time allow."""
    held: Points = [
        # The reference in float64 takes twice as much as the call itself.
        (t.n, 3 * t.peak + 4 * (size(list(map(plain, t.inputs))) + sum(size(v) for _, v in t.results)))
        for t in trials
    ]
    # The time of the inputs counts less, because several calls use them.
    seconds: Points = [(t.n, max(t.seconds, t.inputs_s / 4, 1e-5)) for t in trials]
    low = high = trials[0].n
    while high * 2 <= max(HIGHEST, low):
        if extrapolate(held, 2 * high) > request.most_bytes or extrapolate(seconds, 2 * high) > LONGEST_S:
            break
        high *= 2
    return high


def try_out(request: TrialRequest, report: TrialReport, tell: Callable[[], None]) -> None:
    """Try the requested functions of a source, and fill the report. `tell` sends the report; it is called before
    the import, before each function and after each size."""
    _limit(tell)
    try:
        loaded = load_source(request.source)
    except PluginError as error:
        report.broken = str(error)
        return
    report.known, report.undeclared = [*loaded.functions, *loaded.wrong], list(loaded.undeclared)
    names = request.names or report.known
    report.wrong = {n: why for n, why in loaded.wrong.items() if n in names}
    for name in names:
        if name in request.skip or name not in (*loaded.functions, *loaded.undeclared):
            continue
        report.trying = name
        _limit(tell)
        try:
            for description in describe(name, loaded.find(name), request):
                report.partial = msgspec.structs.replace(description, file_digest=loaded.file_digest)
                _limit(tell, request.limit_s or TRIAL_S)
        except PluginError as error:
            report.wrong[name] = str(error)
        except BaseException as error:
            report.wrong[name] = f"it raises {where(error, loaded.find(name))}"
        if report.partial is not None and name not in report.wrong:
            report.functions.append(report.partial)
        report.partial = None


def _limit(tell: Callable[[], None], limit_s: float = TRIAL_S) -> None:
    """Call `tell`, and start a timer that ends this process after `limit_s` seconds, even inside a library
    call."""
    tell()
    faulthandler.dump_traceback_later(limit_s, exit=True, file=2)


def main(text: str) -> NoReturn:
    """Describe the functions of some sources, and end the process. `text` is the JSON list of the requests."""
    reports: list[TrialReport] = []
    messages = Messages()

    def tell() -> None:
        messages.write(msgspec.json.encode(reports))

    for request in msgspec.json.decode(text, type=list[TrialRequest]):
        report = TrialReport()
        reports.append(report)
        try_out(request, report, tell)
        report.trying = None
    tell()
    end()


if __name__ == "__main__":
    main(sys.argv[1])
