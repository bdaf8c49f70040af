"""The child process that describes a user's functions: `python -m gpubench.functions.trial REQUESTS`.

The child sends its reports before and after each function, so the parent knows which function hangs or crashes. A
function is called at the requested sizes, or at the smallest sizes of a search.
"""

from __future__ import annotations

import faulthandler
import inspect
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import msgspec

from gpubench.base.child_main import Messages
from gpubench.base.plugins import PluginError, error_text
from gpubench.base.units import format_bytes
from gpubench.functions import MEMORY_SHARE
from gpubench.functions.declare import Stays, UserFunction
from gpubench.functions.describe import DTYPES, CodeSource, Description, Points, Shown, extrapolate
from gpubench.functions.loading import (
    Unreadable,
    copy_of,
    digest,
    equal,
    formula,
    leaves,
    load_source,
    make_inputs,
    on_host,
    plain,
    size,
    where,
)
from gpubench.kernels.templates.formula import Untraceable
from gpubench.result.case import LONG_DTYPES

# Sizes that are tried: the first that works, and two larger ones while a call is short and small; of a search more,
# until a call takes so long that it tells how time grows. The fastest of a few calls was not interrupted.
LOWEST = (64, 128, 256, 512, 1024)
FACTOR, SHORT_S, SMALL_BYTES, TELLING_S, MOST_SIZES, CALLS = 4, 0.1, 16 * 2**20, 2e-3, 8, 4
# An import, or the trial of one function, may take so long; no larger size is tried after MOST_S.
TRIAL_S, MOST_S = 60.0, 0.25
# A second size is tried after a call that is so many times longer and larger: one size alone tells no growth.
SECOND = 8
HIGHEST = 2**24
# Seconds that a call of the largest size takes, as far as the tried sizes tell.
LONGEST_S = 0.5


class TrialRequest(msgspec.Struct):
    """A source and the functions to try."""

    source: CodeSource  # where the functions are
    names: list[str] | None = None  # None: all
    skip: list[str] = []  # those that an earlier child has tried
    sizes: list[int] = []  # as the user named them
    dtype: str = "float32"  # of the elements
    limit_s: float | None = None  # of each function: what does not fit is not called again


class TrialReport(msgspec.Struct):
    """The state of a trial so far."""

    functions: list[Description] = []  # that were tried
    partial: Description | None = None  # by the first sizes of the function at hand
    wrong: dict[str, str] = {}  # by name: why a function cannot be measured
    known: list[str] = []  # the names that the source declares
    trying: str | None = ""  # the function at hand; empty during the import, None at the end
    broken: str = ""  # why the source cannot be imported


class Trial(msgspec.Struct):
    """A call at one size."""

    n: int  # the size
    inputs: list[Any]  # of the call
    results: list[tuple[str, Any]]  # each with its name
    seconds: float  # of the call
    peak: int  # bytes beside inputs and results


def describe(name: str, function: UserFunction, request: TrialRequest) -> Iterator[Description]:
    """Try a function at increasing sizes, and yield its description after each size. Raises PluginError with the
    reason."""
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
    outs = [name for name, _ in first.results]
    results = [_show(out, [trial.results[i][1] for trial in trials], trials) for i, out in enumerate(outs)]
    low = first.n
    doc = inspect.getdoc(function.cpu) or ""
    return Description(
        source=request.source.name, name=name, digest=digest(function),
        summary=doc.splitlines()[0] if doc else f"{name}({', '.join(arguments)})",
        inputs=shown, results=results, peak=[(t.n, t.peak) for t in trials],
        seconds=[(t.n, t.seconds) for t in trials], low=low, high=_highest(trials),
        dtypes=_dtypes(function), pair=function.gpu is not None,
        backends=[word.strip() for word in function.backends.split(",")] if function.backends else None,
        flops=[(t.n, float(function.flops(t.n))) for t in trials] if function.flops else None,
        operations=operations, untraced=untraced, own_inputs=function.make is not None,
    )  # fmt: skip


def _dtypes(function: UserFunction) -> list[Any]:
    if function.dtypes is None:
        return list(DTYPES)
    return [LONG_DTYPES.get(word.strip(), word.strip()) for word in function.dtypes.split(",")]


def _trials(function: UserFunction, request: TrialRequest) -> Iterator[Trial]:
    """Yield calls at a few sizes. Raises PluginError if no size works."""
    sizes, problem, first, began = sorted(request.sizes), "", None, time.perf_counter()
    for n in sizes or LOWEST:
        try:
            first = last = _call(function, n, request.dtype, limit_s=request.limit_s)
            break
        except PluginError as error:
            problem = problem or str(error)
    if first is None:
        raise PluginError(problem)
    yield first
    steps = [first.n * FACTOR**k for k in range(1, MOST_SIZES)]
    for count, n in enumerate([n for n in sizes if n > first.n][:2] if sizes else steps, 1):
        times = SECOND if count == 1 else 1
        if last.seconds > times * SHORT_S or last.peak > times * SMALL_BYTES:
            return
        if count >= 3 and (last.seconds > TELLING_S or time.perf_counter() - began > MOST_S):
            return
        try:
            last = _call(function, n, request.dtype, again=True)
        except PluginError:  # a skip of its own, in the run
            return
        yield last


def _call(
    function: UserFunction, n: int, dtype: str, *, again: bool = False, limit_s: float | None = None
) -> Trial:
    """Call the CPU program a few times, or as often as the limit allows, and check its behaviour. `again`: at a further
    size, with fewer checks. Raises PluginError."""
    import numpy as np

    inputs = _inputs(function, n, dtype)
    if not again and not equal([plain(x) for x in inputs], [plain(x) for x in _inputs(function, n, dtype)]):
        raise PluginError("its inputs differ from call to call: draw them from rng alone")
    arguments = [copy_of(plain(x)) for x in inputs]
    call: Callable[..., Any] = function.cpu if function.gpu is not None else partial(function.cpu, np)
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
                copies = [copy_of(plain(x)) for x in inputs]
                began = time.perf_counter()
                second = call(*copies)
                took = time.perf_counter() - began
                seconds = min(seconds, took)
                if took > SHORT_S:
                    break
    except Exception as error:
        usual = function.gpu is not None or function.parameters[:1] in (["xp"], ["np"])
        hint = "" if usual else "; its first argument is the array library: f(xp, x)"
        raise PluginError(f"it raises {where(error, function)} at n = {n}{hint}") from error
    names = function.arguments
    for i, (before, after) in enumerate(zip(inputs, arguments, strict=True)):
        if not equal(plain(before), after):
            changed = names[i] if i < len(names) else f"input {i}"
            raise PluginError(
                f"it changes {changed}: it has to leave its inputs as they are, so work on a copy"
            )
    if function.same is None:
        _require_readable(result)
        if not equal(result, second):
            raise PluginError("two calls give different results: draw random numbers in `inputs`, or say same=")
        if not again and (limit_s is None or 3 * first_s <= limit_s):
            _require_fresh(call, result, inputs, _inputs(function, n, dtype, seed=2))
    results = leaves(result)
    if not results:
        raise PluginError("it returns nothing")
    # The inputs were allocated before.
    return Trial(n, inputs, results, seconds, max(0, peak - sum(size(value) for _, value in results)))


def _require_fresh(call: Callable[..., Any], result: Any, inputs: list[Any], others: list[Any]) -> None:
    """Raise PluginError for a function that returns its old result for new inputs."""
    import numpy as np

    if equal([plain(x) for x in inputs], [plain(x) for x in others]):
        return
    arrays = [np.array(on_host(value)) for _, value in leaves(result)]
    try:
        with np.errstate(all="ignore"):
            other = call(*[copy_of(plain(x)) for x in others])
    except Exception:  # these values are none for it
        return
    if equal(arrays, other) and any(a.dtype.kind in "fc" and a.size > 1 and np.ptp(a) != 0 for a in arrays):
        raise PluginError("it returns its first result for other values too: it has to compute at each call")


def _inputs(function: UserFunction, n: int, dtype: str, seed: int = 1) -> list[Any]:
    import psutil

    # A trial holds the inputs twice and a copy of them, beside what the function takes.
    needed = 4 * n * 4 * len(function.arguments)
    if function.make is None and needed > MEMORY_SHARE * psutil.virtual_memory().available:
        raise PluginError(f"n = {n} needs about {format_bytes(needed)} of memory: choose smaller --sizes")
    try:
        return make_inputs(function, function.arguments, n, dtype, seed)
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"its inputs raise {error_text(error)} at n = {n}") from error


def _require_readable(result: Any) -> None:
    if result is None:
        raise PluginError("it returns nothing: return the result")
    try:
        for _, value in leaves(result):
            on_host(value)
    except Unreadable as error:
        raise PluginError(str(error)) from error


def _show(name: str, values: list[Any], trials: list[Trial]) -> Shown:
    stays = isinstance(values[0], Stays)
    values = [plain(value) for value in values]
    shapes = [tuple(getattr(value, "shape", ())) for value in values]
    same_axes = len({len(shape) for shape in shapes}) == 1
    extents: list[Points] = [
        [(trial.n, shape[axis]) for trial, shape in zip(trials, shapes, strict=True)]
        for axis in range(len(shapes[0]) if same_axes else 0)
    ]
    kind = getattr(getattr(values[0], "dtype", None), "kind", "")
    return Shown(
        name, extents, [(trial.n, size(value)) for trial, value in zip(trials, values, strict=True)],
        floating=kind == "f" and hasattr(values[0], "nbytes"), stays=stays,
    )  # fmt: skip


def _highest(trials: list[Trial]) -> int:
    """Return the largest size of the search: a power of two times the lowest size, within the limits of memory and
    time."""
    import psutil

    free = MEMORY_SHARE * psutil.virtual_memory().available
    held: Points = [
        # The reference in float64 takes twice as much as the call itself.
        (t.n, 3 * t.peak + 4 * (sum(size(plain(x)) for x in t.inputs) + sum(size(v) for _, v in t.results)))
        for t in trials
    ]
    seconds: Points = [(t.n, max(t.seconds, 1e-5)) for t in trials]
    low = high = trials[0].n
    while high * 2 <= max(HIGHEST, low):
        if extrapolate(held, 2 * high) > free or extrapolate(seconds, 2 * high) > LONGEST_S:
            break
        high *= 2
    return high


def try_out(request: TrialRequest, report: TrialReport, tell: Callable[[], None]) -> None:
    """Fill the report on the functions of a source; `tell` sends the report at every step."""
    _limit(tell)
    try:
        loaded = load_source(request.source)
    except PluginError as error:
        report.broken = str(error)
        return
    names = list(loaded.functions) if request.names is None else request.names
    report.known = [*loaded.functions, *loaded.wrong]
    report.wrong = {n: why for n, why in loaded.wrong.items() if request.names is None or n in names}
    for name in names:
        if name in request.skip or name not in loaded.functions:
            continue
        report.trying = name
        _limit(tell)
        try:
            for description in describe(name, loaded.functions[name], request):
                report.partial = msgspec.structs.replace(description, file_digest=loaded.file_digest)
                tell()
        except PluginError as error:
            report.wrong[name] = str(error)
        except BaseException as error:
            report.wrong[name] = f"it raises {where(error, loaded.functions[name])}"
        if report.partial is not None and name not in report.wrong:
            report.functions.append(report.partial)
        report.partial = None


def _limit(tell: Callable[[], None]) -> None:
    """Call `tell`, and start a timer that ends this process after TRIAL_S, even inside a library's call."""
    tell()
    faulthandler.dump_traceback_later(TRIAL_S, exit=True, file=2)


def main(text: str) -> NoReturn:
    """Describe the functions of some sources, as the child process."""
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
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
