"""`gpubench run`: check and measure ops on every backend, save the result, report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubench.cli import _run_options as options
from gpubench.cli._options import Ascii, Color, NoProgress, Quiet
from gpubench.cli._suggest import require_choice
from gpubench.errors import UsageError

if TYPE_CHECKING:
    from gpubench import store
    from gpubench.measure.runner import Request
    from gpubench.measure.targets import Choice
    from gpubench.model.case import Case
    from gpubench.model.machine import Machine
    from gpubench.model.op import Op
    from gpubench.model.result import Run, Selection, Settings

_RESULT_SUFFIXES = (".json", ".json.gz")


def run(
    ops: options.Ops = None,
    sizes: options.Sizes = None,
    params: options.Params = None,
    dtypes: options.Dtypes = "float32",
    backends: options.Backends = "auto",
    devices: options.Devices = None,
    allow_software: options.AllowSoftware = False,
    forms: options.Forms = None,
    variant: options.Variant = None,
    allow_tf32: options.AllowTf32 = False,
    no_autotune: options.NoAutotune = False,
    regimes: options.Regimes = None,
    calls: options.Calls = 10,
    threads: options.Threads = None,
    filter: options.Filter = None,
    skip: options.Skip = None,
    dry_run: options.DryRun = False,
    check_only: options.CheckOnly = False,
    quick: options.Quick = False,
    rigorous: options.Rigorous = False,
    sessions: options.Sessions = None,
    min_samples: options.MinSamples = None,
    max_samples: options.MaxSamples = None,
    max_time: options.MaxTime = None,
    precision: options.Precision = None,
    case_timeout: options.CaseTimeout = "60s",
    budget: options.Budget = None,
    order: options.Order = "interleave",
    seed: options.Seed = 1,
    inputs: options.Inputs = "random",
    output: options.Output = None,
    results_dir: options.ResultsDir = None,
    no_save: options.NoSave = False,
    label: options.Label = None,
    tag: options.Tag = None,
    context: options.Context = None,
    format: options.ReportFormat = None,
    sections: options.Sections = None,
    time_unit: options.TimeUnit = "auto",
    color: Color = "auto",
    ascii: Ascii = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> int:
    """Check and measure ops on every backend, save the result file, and print the report."""
    began = time.monotonic()
    from gpubench import kernels, selectors
    from gpubench.cli import _progress, _rendering, _roofline, _shapes
    from gpubench.cli import _selection as words

    for option, texts in (("--label", [label]), ("--tag", tag), ("--context", context), ("--output", output)):
        _storable(option, texts or [])
    names = words.parse_ops(ops or words.DEFAULT_SUITE)
    given_sizes = words.parse_sizes(sizes or [], names)
    roofs = _roofline.asked(ops)
    declared = {name: kernels.load(name) for name in names}
    overheads = {name for name, op in declared.items() if op.overhead is not None}
    sized = {*given_sizes, *overheads, *(_roofline.OPS if roofs else ())}
    brief = quick or roofs or (overheads == set(names) and not given_sizes)
    from gpubench.model.result import Selection

    require_choice(order, ("interleave", "sequential"), "--order")
    require_choice(inputs, ("random", "zeros", "ones"), "--inputs")
    if quick and rigorous:
        raise UsageError(
            "two-presets", "--quick and --rigorous contradict each other",
            why="each sets sessions and precision", hint="leave one of them out",
        )  # fmt: skip
    selection = Selection(
        ops=names, sizes=given_sizes, dtypes=words.parse_dtypes(dtypes), forms=words.parse_forms(forms),
        regimes=words.parse_regimes(regimes or ("resident" if roofs else None)), calls=calls, params=_shapes.parse_params(params or [], declared),
        variants=_shapes.parse_variants(variant or [], declared, allow_tf32=allow_tf32),
    )  # fmt: skip
    settings = words.settings(
        preset="rigorous" if rigorous else "quick" if brief else None,
        every_size_given=all(name in sized for name in names), overheads=bool(overheads), budget=budget, case_timeout=case_timeout,
        max_time=max_time, precision=precision, sessions=1 if check_only else sessions, min_samples=min_samples,
        max_samples=max_samples, order=order, seed=seed, inputs=inputs, threads=threads,
        autotune=not (no_autotune or check_only),  # trials are timings, and --check-only takes none
    )  # fmt: skip
    wish = words.parse_wish(backends, devices, allow_software)
    keep = selectors.selection(filter or [], skip or [])
    pairs = _pairs(context or [])
    look = _rendering.look(format, color, ascii, sections, time_unit)
    outputs = _checked_outputs(output or [], look, results_dir, no_save)

    from gpubench.measure import runner, targets

    choice = targets.choose(wish, one_of_each=len(given_sizes) < len(names))
    request = _request(
        selection, settings, choice, keep, began=began, label=label, tags=tag or [],
        context=pairs, required=_required(wish, choice), check_only=check_only, named_forms=forms is not None,
        roofs=roofs,
    )  # fmt: skip
    if keep is not None and not any(workload.cases for workload in runner.planned(request)):
        raise UsageError(
            "empty-selection", "--filter and --skip leave no case to measure",
            why="no planned case matches", hint="--dry-run without them lists the case ids",
        )  # fmt: skip
    if dry_run:
        from gpubench.cli import _dry_run

        sys.stdout.write(_dry_run.render(request))
        return 0
    sink = _progress.sink(quiet=quiet, no_progress=no_progress, environ=os.environ)
    saver = _Saver(outputs, results_dir, no_save)
    try:
        finished = runner.run(request, sink, saver)
    finally:
        if isinstance(sink, _progress.Live):  # also after an error: give the terminal back
            sink.close()
    if not quiet:
        for path in saver.paths:
            print(f"saved {path}", file=sys.stderr)
    return _deliver(finished, outputs, look)


def _checked_outputs(output: list[str], look: Any, results_dir: Path | None, no_save: bool) -> list[str]:
    """Every output path can be written: found out before measuring, not after. Raises UsageError.

    `-` is standard output, which carries the report in any case.
    """
    from gpubench import store

    output = [path for path in output if path != "-"]
    for path in output:
        if not path.endswith(_RESULT_SUFFIXES):
            look.format_of(path)  # refuses a suffix that no format has
        store.check_writable(path)
    if not no_save and not any(path.endswith(_RESULT_SUFFIXES) for path in output):
        store.check_folder(results_dir or store.default_results_dir())
    return output


def _request(
    selection: Selection, settings: Settings, choice: Choice, keep: Callable[[Case], bool] | None, *, began: float,
    label: str | None, tags: list[str], context: dict[str, str], required: frozenset[str], check_only: bool,
    named_forms: bool, roofs: bool,
) -> Request:  # fmt: skip
    import msgspec

    from gpubench import detect, kernels
    from gpubench.measure import runner
    from gpubench.measure.document import new_run
    from gpubench.measure.plan import Scope, Target
    from gpubench.measure.targets import records, with_gpu_memory

    machine = detect.inspect(extra_records=records(choice))
    usable = machine.cpu.available.value
    _require_cpus(settings.threads, usable)
    settings = msgspec.structs.replace(settings, threads=settings.threads or usable)
    devices = [
        msgspec.structs.replace(
            t.device, gpu_id=detect.gpu_for(machine, t.device.identity) if t.device.identity else None
        )
        for t in choice.targets
    ]
    devices = with_gpu_memory(devices, {gpu.id: gpu.memory.usable_bytes.value for gpu in machine.gpus})
    targets = tuple(Target(d, t.forms) for d, t in zip(devices, choice.targets, strict=True))
    selection = msgspec.structs.replace(selection, devices=[d.id for d in devices])
    if roofs:
        from gpubench.cli import _roofline

        host = _roofline.Host(machine.memory.usable_bytes.value, usable)
        selection, keep = _roofline.chosen(selection, devices, host, keep)
    run = new_run(
        argv=sys.argv[1:], selection=selection, settings=settings, machine=machine, devices=devices,
        versions=choice.versions, label=label, tags=tags, context=context, environ=os.environ,
    )  # fmt: skip
    ops = {name: kernels.load(name) for name in selection.ops}
    warnings = [
        *choice.warnings, *_blas_warnings(machine), *_input_warnings(settings),
        *_tf32_warnings(selection, ops, {device.backend for device in devices}),
    ]  # fmt: skip
    return runner.Request(
        run=msgspec.structs.replace(run, warnings=warnings), ops=ops,
        scope=Scope(targets, selection, machine.memory.usable_bytes.value, keep, settings, named_forms), began=began,
        required=required, check_only=check_only,
    )  # fmt: skip


def _require_cpus(threads: int | None, usable: int | None) -> None:
    """Raises UsageError if more threads are asked for than CPUs may be used: they would take turns."""
    if threads is not None and usable is not None and threads > usable:
        raise UsageError(
            "too-many-threads", f"--threads {threads} is more than the {usable} CPUs that may be used",
            why="threads that take turns on a CPU make a slow baseline, and so a flattering speedup",
            hint="leave --threads out: it takes all usable CPUs; `gpubench detect` tells what limits them",
        )  # fmt: skip


def _blas_warnings(machine: Machine) -> list[Any]:
    """A BLAS whose threads do not fit the usable CPUs: the run sets them, the user's own programs may not."""
    from gpubench.model.result import RunWarning

    return [
        RunWarning(code="blas-threads", message=warning.text, hint="gpubench detect --deep shows each BLAS")
        for warning in machine.warnings
        if warning.code == "BLAS_THREADS"
    ]


def _input_warnings(settings: Settings) -> list[Any]:
    from gpubench.model.result import RunWarning

    if settings.inputs == "random":
        return []
    message = f"all inputs are {settings.inputs}: such figures flatter the hardware and stand alone"
    return [RunWarning(code="inputs-not-random", message=message, hint="leave --inputs out")]


def _tf32_warnings(selection: Selection, ops: Mapping[str, Op], backends: set[str]) -> list[Any]:
    """TF32 was asked for, and there is no row that it could add."""
    from gpubench.model.case import TF32
    from gpubench.model.result import RunWarning

    able = any(backends.intersection(op.tf32) for op in ops.values())
    if TF32 not in selection.variants or (
        able and "float32" in selection.dtypes and "library" in selection.forms
    ):
        return []
    message = "--allow-tf32 adds no row: none of these cases is a float32 matmul in CuPy's library form"
    hint = "it takes --ops matmul, --dtypes float32 and an NVIDIA GPU with CuPy"
    return [RunWarning(code="no-tf32", message=message, hint=hint)]


def _required(wish: Any, choice: Choice) -> frozenset[str]:
    named = {t.device.id for t in choice.targets if t.device.backend in wish.required}
    return frozenset(named | set(wish.devices))


def _storable(option: str, texts: Iterable[str | None]) -> None:
    """Raises UsageError for bytes that are no text: they could not be stored."""
    for text in texts:
        if text is not None and any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
            raise UsageError(
                "not-text", f"{option}: the value is not valid UTF-8", why="a result file holds text",
                hint="write it in UTF-8",
            )  # fmt: skip


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(
                "bad-context", f"--context: {text!r} is not K=V", why="there is no key before an equals sign",
                hint="write for example --context runner=large",
            )  # fmt: skip
        pairs[key] = value
    return pairs


class _Saver:
    """Saves the result to every result file asked for, else to the results folder."""

    def __init__(self, output: list[str], results_dir: Path | None, no_save: bool) -> None:
        self.paths: list[str | Path] = [path for path in output if path.endswith(_RESULT_SUFFIXES)]
        self._folder = results_dir
        self._anywhere = not (self.paths or no_save)
        self._encoder: store.Encoder | None = None

    def __call__(self, run: Run) -> None:
        from gpubench import store

        if self._anywhere and not self.paths:
            self.paths.append(store.result_path(self._folder or store.default_results_dir(), run))
        if self._encoder is None:
            self._encoder = store.Encoder()
        for path in self.paths:
            store.save(run, path, self._encoder)


def _deliver(finished: Run, output: list[str], look: Any) -> int:
    """Reports to files and to stdout, from what the file says: `report` prints the same bytes from it."""
    from gpubench import store

    finished = store.loads(store.dumps(finished), "the result")
    for path in output:
        if not path.endswith(_RESULT_SUFFIXES):
            Path(path).write_text(look.render([finished], look.format_of(path)), encoding="utf-8", newline="\n")
    if look.format == "json":
        sys.stdout.write(store.dumps(finished).decode())
    else:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write(look.render([finished], look.format))
    return int(finished.exit_code)
