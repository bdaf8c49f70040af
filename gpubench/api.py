"""The Python interface: `gpubench.bench` measures a function, `run` measures ops, `load` reads a result, and
`detect` inspects the machine."""

from __future__ import annotations

import functools
import html
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import gpubench.detect as detection
from gpubench.base.errors import UsageError, suggest
from gpubench.base.installation import note_shadow
from gpubench.functions import declare
from gpubench.functions.declare import Meaning, UserFunction
from gpubench.result import store

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.policy import Policy
    from gpubench.analysis.thresholds import GpuThreshold
    from gpubench.cli.declaration import Declaration
    from gpubench.functions.describe import CodeSource
    from gpubench.result.machine import Machine
    from gpubench.result.run import Run


_ONE_AT_A_TIME = threading.RLock()  # two runs would disturb each other, and functions of a session share a name


class RunSettings(TypedDict, total=False):
    """The settings of `bench` and `run`. They are options of `gpubench run`, with underscores."""

    # such as "1k:64k", 4096, [1024, 4096] or ["add=1k", "4k"]; default: found by a search
    sizes: str | int | Iterable[int | str]
    budget: str | float  # the time of the run in seconds, or a text such as "2m"
    backends: str  # the names of the backends, separated by commas, or "auto"
    devices: str  # the ids of the devices, separated by commas
    dtypes: str  # the dtypes, such as "f32,f16"
    regimes: str  # the situations, such as "waited,copied,streamed"
    implementations: str  # "library", as a library computes it, "tuned" or "all"
    params: str | Iterable[str]  # the shapes beside the size, such as "columns=256,1024" or ["m=16", "k=16"]
    quick: bool  # whether to run with a precision of 5 %, and without `sizes` for at most 20 s
    sessions: int  # the number of sessions, each with new worker processes
    rigorous: bool  # whether to measure as precisely as a publication needs
    allow_software: bool  # whether to measure software adapters like GPUs
    threads: int  # the number of CPU threads
    seed: int  # the seed of the inputs and of the order of cases
    min_samples: int  # the smallest number of samples of a case in a session
    max_samples: int  # the largest number of samples of a case in a session
    max_time: str | float  # the largest time of a case in a session
    check_only: bool  # whether to check the results without timing
    quiet: bool  # whether to print no progress


class BenchOptions(RunSettings, Meaning):
    """The settings of a run, and the options of `gpubench.function` for a function without that decorator."""


class Result:
    """The result of a run, which can be printed, queried and saved. `path` is its file, or None if it was not
    saved."""

    def __init__(self, run: Run, path: str | Path | None = None) -> None:
        self.run, self.path = run, path

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the run and the path. A copy makes its analysis anew."""
        return Result, (self.run, self.path)

    @functools.cached_property
    def _analysis(self) -> Analysis:
        from gpubench import report

        return report.analyse_runs([self.run])[0]

    def __str__(self) -> str:
        """Return the answer as `gpubench run` prints it."""
        from gpubench import report
        from gpubench.base.installation import quote
        from gpubench.report.layout import RenderOptions

        text = report.screen([self._analysis], "plain", RenderOptions(command=""), height=40)
        steps = "" if self.path else 'result.save("r.json"), then '
        return f"{text}all: {steps}gpubench report {quote(str(self.path or 'r.json'))} --full"

    def __repr__(self) -> str:
        from gpubench.analysis.contenders import has_time

        cases = sum(map(has_time, self._analysis.cases))
        return f"<gpubench.Result of {', '.join(self.ops) or 'nothing'}: {cases} cases with a time>"

    def _repr_html_(self) -> str:
        """Return the answer as HTML for a notebook."""
        from gpubench.report.renderers.html import notebook

        return notebook(self._analysis)

    @property
    def ops(self) -> tuple[str, ...]:
        """The ids of the measured ops, in the requested order."""
        return tuple(self.run.selection.ops)

    def threshold(
        self,
        op: str | None = None,
        situation: str = "waited",
        backend: str | None = None,
        dtype: Any = None,
    ) -> GpuThreshold:
        """Return from which size on the GPU is faster, as `n` with its 95 % interval `lo` to `hi`. `n` is inf if the
        GPU wins at no measured size, and None if the size is unknown; `text` and `verdict` say why.

        - `op` may be omitted if the result has only one op;
        - `situation` is "waited", "queued", "10 calls a copy" or "copied";
        - `backend` is a backend or the id of a device, and None means any;
        - `dtype` is a name or an object with a name, such as a NumPy dtype, and None means any.

        Of several GPUs, dtypes or params the smallest size counts, and the result says where it holds. Raises
        UsageError for an unknown op or situation, and for a missing op if the result has several.
        """
        from gpubench.analysis.thresholds import find_threshold

        return find_threshold([self.run], op, situation, backend, dtype)

    def speedup(self, n: int, op: str | None = None, situation: str = "waited") -> float | None:
        """Return the speedup at size n: the time of the fastest CPU implementation / that of the fastest GPU
        implementation. Of several dtypes, params or backends the largest speedup counts. Returns None if n is
        outside the measured sizes, or if nothing was compared.

        Raises UsageError for an unknown op or situation, and for a missing op if the result has several.
        """
        from gpubench.analysis.contenders import situation_regime
        from gpubench.analysis.thresholds import resolve_op
        from gpubench.curves import speedup_at

        if not isinstance(n, Real):
            raise _bad_value("n", n, "a size")
        name, regime = resolve_op(op, self.ops), situation_regime(situation)
        curves = [curve for curve in self._analysis.break_even if (curve.op, curve.regime) == (name, regime)]
        ratios = (speedup_at(curve.threshold, n) for curve in curves)
        return max(filter(None, ratios), default=None)

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row for each case. The columns are those of `gpubench report --format
        csv`. Raises UsageError if pandas is not installed."""
        import io

        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise UsageError(
                "unavailable", "pandas is not installed", why=str(error), hint="install pandas"
            ) from error
        from gpubench import report

        return pandas.read_csv(io.StringIO(report.draw_report([self._analysis], "csv")))

    def policy(self) -> Policy:
        """Return a policy that advises for single calls, based on this result alone."""
        from gpubench.analysis.policy import Policy

        return Policy([self.run])

    def save(self, path: str | Path) -> None:
        """Write the result (.json, .json.gz) or a report to a file, like `gpubench run -o`. The suffix of the name
        determines the format.

        Raises UsageError for an unknown suffix, and GpubenchError if the file cannot be written.
        """
        from gpubench.cli import delivery
        from gpubench.report.layout import RenderOptions

        if "\0" in str(path):
            raise _bad_value("path", path, "the name of a file")
        if store.is_result_name(path):
            store.save(self.run, path)
            self.path = path
            return
        style = delivery.ReportStyle(delivery.format_of(str(path)), RenderOptions(), brief=True, quiet=True)
        delivery.write_report([self._analysis], style, style.format, str(path))


class DetectedMachine:
    """The hardware of this machine, and whether to compute on its CPU, its GPU or both."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def mode(self) -> str:
        """The recommended mode: `cpu`, `gpu` or `hybrid`."""
        return self.machine.recommendation.mode

    def __str__(self) -> str:
        return detection.render(self.machine, "plain")

    def __repr__(self) -> str:
        return f"<gpubench.DetectedMachine: {detection.machine_line(self.machine)}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Unmeasured:
    """A stand-in for a result, which `bench` and `run` return while a child process of gpubench imports the
    caller's file.

    Every attribute and every call returns this object. It has no items, is formatted as an empty text, and is
    neither smaller nor larger than anything.
    """

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __format__(self, spec: str) -> str:
        return ""


def bench(
    function: Callable[..., Any] | None = None,
    *,
    cpu: Callable[..., Any] | None = None,
    gpu: Callable[..., Any] | None = None,
    **options: Unpack[BenchOptions],
) -> Result:
    """Measure one function, as in `bench(f, sizes="1k:64k", budget=20)`, or one computation that has a function
    `cpu` and a function `gpu`. Settings and Ctrl-C are as in `gpubench.run`. A function that was not declared
    also takes the options of `gpubench.function`.

    Raises UsageError for a function or setting that cannot be used, and RequiredUnavailable for a named device
    that is absent.
    """
    if not declare.MEASURES:
        return Unmeasured()  # type: ignore[return-value]
    words: Any = dict(options)
    meaning: Any = {name: words.pop(name) for name in Meaning.__annotations__ if name in words}
    if not (function is None) == (cpu is not None) == (gpu is not None):
        raise UsageError(
            "bad-function", f"there is {'nothing' if function is None else 'more than one thing'} to measure",
            why="bench takes a function, or cpu= and gpu=", hint="gpubench.bench(f) or gpubench.bench(cpu=f, gpu=g)",
        )  # fmt: skip
    named = None if meaning else function  # a child that imports its file finds it by its name
    if not isinstance(function, UserFunction):
        program: Any = cpu if function is None else function
        function = UserFunction(program, gpu, **meaning)
    elif meaning:
        raise UsageError(
            "bad-function", f"{function.name} is declared", why="it has its options from there",
            hint=f"give {', '.join(meaning)} to gpubench.function or gpubench.pair",
        )  # fmt: skip
    from gpubench.cli import selection
    from gpubench.functions import sources
    from gpubench.functions.trial import TrialRequest

    began = time.monotonic()
    chosen = _options(None, words, BenchOptions.__annotations__)
    with _ONE_AT_A_TIME, _source(function, named) as source:
        names = [source.only or function.name]
        ids = sources.add([TrialRequest(source, names, **selection.trial_words(chosen))])
        return _measure(selection.with_ops(chosen, ids), began)


def run(ops: str | Path | Sequence[str | Path] | None = None, **settings: Unpack[RunSettings]) -> Result:
    """Measure ops, groups of ops or files of functions, as in `run("matmul,options.py", sizes="1k,4k")`. None
    means the ops of a plain `gpubench run`.

    The settings are options of `gpubench run`, which `gpubench run --help` explains:
    - what: `sizes` ("1k:64k", 4096 or [1024, 4096]), `dtypes` ("f32,f16"), `regimes` ("waited,copied"),
      `implementations` ("library"), `params` ("columns=256"), `check_only` (check the results, time nothing);
    - where: `backends` ("numpy,cupy"), `devices` ("cupy:0"), `threads`, `allow_software`;
    - how long: `budget` and `max_time` (seconds or a text such as "2m"), `quick`, `rigorous`, `sessions`,
      `min_samples`, `max_samples`, `seed`, `quiet` (print no progress).

    Ctrl-C ends the run early with a warning. The result then has what was measured so far, and its `run.complete`
    is False. Raises UsageError for an unknown name or a wrong setting, and RequiredUnavailable for a named device
    that is absent.
    """
    if not declare.MEASURES:
        return Unmeasured()  # type: ignore[return-value]
    from gpubench.cli import selection

    began = time.monotonic()
    if callable(ops):
        raise _bad_value("ops", ops, "names of ops and files; gpubench.bench measures a function")
    with _ONE_AT_A_TIME:
        return _measure(selection.with_functions(_options(ops, settings)), began)


def load(path: str | Path) -> Result:
    """Read a result that `save` or `gpubench run` has written. Raises InputError if the file cannot be read."""
    return Result(store.load(path), path)


def detect() -> DetectedMachine:
    """Inspect the CPU, the memory and the GPUs of this machine. Raises UsageError for a bad
    GPUBENCH_PROBE_LIMIT."""
    return DetectedMachine(detection.inspect(gathered=detection.gather()))


# ---------------------------------------------------------------- how


def _options(ops: Any, settings: RunSettings, names: Iterable[str] = RunSettings.__annotations__) -> Any:
    """Return the parsed settings of a run. `names` are the options that the error for an unknown one lists."""
    from gpubench.cli.options import commands

    for name in settings:
        if name not in names:
            raise UsageError(
                "unknown-option", f"there is no option {name!r}", why=f"the options are {', '.join(names)}",
                hint=suggest(name, names) or None,
            )  # fmt: skip
    options = commands()["run"]
    values = {"ops": str(ops) if isinstance(ops, os.PathLike) else ops, **settings}
    return options(
        **{name: _word(options.declared[name], value) for name, value in values.items() if value is not None}
    )


def _word(declared: Declaration, value: Any) -> Any:
    """Convert the value of a setting to what the command line makes of an option, or raise UsageError."""
    name = declared.name
    if getattr(value, "shape", None) == ():  # an array that is a single number
        value = value.item()
    if declared.switch:
        if value in (True, False):
            return bool(value)
        raise _bad_value(name, value, "True or False")
    if declared.type in (int, int | None):
        least = declared.least or 0
        if isinstance(value, Integral) and int(value) >= least:
            return int(value)
        raise _bad_value(name, value, f"a whole number of at least {least}")
    if name in ("budget", "max_time") and isinstance(value, Real):
        return f"{min(value, 1e15):f}s"
    if name == "sizes" and isinstance(value, Real):
        value = str(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        texts = list(map(str, value))
        if declared.multiple and any("=" in text for text in texts):
            return texts  # sizes by op, or a shape each
        value = ",".join(texts)
    if not isinstance(value, str) or "\0" in value:
        raise _bad_value(name, value, "a text without a null character, or a list of texts")
    return [value] if declared.multiple else value


def _bad_value(name: str, value: Any, kind: str) -> UsageError:
    return UsageError(
        "bad-value", f"{name} is {value!r}", why=f"it has to be {kind}",
        hint="help(gpubench.api) tells what is possible",
    )  # fmt: skip


def _measure(options: Any, began: float) -> Result:
    """Measure what the options describe. The budget counts from `began`, a time.monotonic()."""
    from gpubench.base.plugins import containment
    from gpubench.cli import delivery, progress, resume
    from gpubench.measure import runner

    options = options.replace(quiet=options.quiet or not shows_progress())
    restorers = containment.handler_restorers()
    try:
        with progress.show(options, os.environ) as display:
            spec = progress.tell(display, options, lambda tell: resume.request(options, began=began, tell=tell))
            finished = runner.run(spec, display, lambda _: None)
        if finished.exit_reason == "interrupted":
            with warnings.catch_warnings():
                warnings.simplefilter("always")  # an error would lose the result
                warnings.warn(
                    "the run was interrupted: its result has what was measured until then", stacklevel=3
                )
        return Result(delivery.read_back(finished))
    except (ImportError, AttributeError) as error:
        note_shadow(error)
        raise
    finally:  # an interrupted run ignores further signals
        for restore in restorers:
            restore()


def shows_progress() -> bool:
    """Return whether progress is shown, which is the case in a notebook and if stderr is a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", bool)()
    terminal = getattr(sys.stderr, "isatty", bool)  # programs without a console have no stderr
    return terminal() or hasattr(shell, "kernel")


@contextmanager
def _source(function: UserFunction, named: Any) -> Iterator[CodeSource]:
    """Yield the source from which child processes load the function: its file, if that gives its name to the object
    `named`, else a pickle, which lives as long as the block."""
    from gpubench.functions.describe import CodeSource
    from gpubench.functions.sources import source_of

    name = function.__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    folders = tuple(map(os.path.abspath, sys.path))  # an empty path, as in a notebook, is the working folder
    if name != "__main__" and file and getattr(module, function.name, module) is named:
        source = source_of(name if getattr(module, "__package__", None) else file)  # a part of a package
        yield CodeSource(source.name, source.kind, source.place, path=folders)
        return
    import cloudpickle

    name = re.sub(r"\W", "_", function.name) or "function"
    # A pickle has the function with everything that it refers to.
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        path = Path(folder) / "function.pickle"
        try:
            path.write_bytes(cloudpickle.dumps(function))
        except Exception as error:
            raise UsageError(
                "bad-function", f"{function.name} cannot be sent to another process",
                why=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                hint="make what it refers to inside of it, or put it into a file of its own",
            ) from error  # fmt: skip
        yield CodeSource("session", "pickle", str(path), path=folders, only=name)
