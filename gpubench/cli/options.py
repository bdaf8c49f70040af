"""Every option of every command, declared once: its name, type, default, help, heading and place in a file's
plan.

The parser, the configuration files, the environment, `--append` and `--like`, `--show-config` and docs/cli.md
use these declarations. An option `some_option` is `--some-option` on the command line, `some-option` in a file
and `GPUBENCH_SOME_OPTION` in the environment. `--help` imports this module, so it imports nothing that takes
long.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpubench.base.plugins import sections as report_sections
from gpubench.base.plugins import wings
from gpubench.base.plugins.sections import FORMATS, PICTURES, TIME_UNITS, TOOLS
from gpubench.cli.declaration import (
    CI,
    GATES,
    LONG,
    OUTPUT,
    RARE,
    WHAT,
    WHERE,
    CommandOptions,
    argument,
    option,
)

# fmt: off
# The words that stand for some ops in `--ops`.
PRESETS = {
    "roofline": "copy and matmul with resident data, at sizes chosen to show what each device can do",
    "health": "matmul, copy, upload and download at one large size on every GPU, to find the slow one; with several "
              "GPUs p2p and allreduce among them",
    "claims": "what the claims of --claims are about (those that come with gpubench: docs/claims.md), at their sizes",
}
FORMAT_NAMES = f"{', '.join((*FORMATS, *PICTURES))}; for other tools {', '.join(TOOLS)}"


def _installed_backends() -> str:
    """Return a sentence with the names of other packages' backends, or an empty text if there are none."""
    from gpubench.base import plugins

    names = plugins.names(plugins.BACKENDS)
    return f" Of installed packages: {' '.join(names)}." if names else ""


# ---------------------------------------------------------------- of every command

JSON = option(None, OUTPUT, "Same as --format json.", long_name="json")


class CommonOptions(CommandOptions):
    """The options of every command. A command accepts them even if it does not need them, so that scripts may
    always add them."""

    color: str = option("auto|always|never", OUTPUT, "Colour of the output.", default="auto")
    ascii: bool = option(None, OUTPUT, "No box drawing and no block characters.")
    quiet: bool = option(None, OUTPUT, "Errors only on stderr.", letter="-q")
    verbose: bool = option(None, OUTPUT, "Tracebacks and probe details on stderr.", letter="-v")
    no_progress: bool = option(None, OUTPUT, "No progress on stderr.")
    config: Path | None = option("FILE", RARE, "Read this configuration file and no other.",
        configurable=False)
    no_config: bool = option(None, RARE, "Read no configuration file.", configurable=False)
    show_config: bool = option(None, RARE, "Print each effective value with its source, then exit.", configurable=False)


# ---------------------------------------------------------------- what to measure and how: `run` and `noise`


class SelectionOptions(CommandOptions):
    """The options that choose the cases and devices to measure."""

    ops: str | None = option("LIST", WHAT, "Op names or groups, all (layers, network, overhead, collective apart), or "
        "roofline (what the hardware can do), health (is a GPU as fast as its like) or claims (docs/claims.md). "
        "Default: vector,matmul,activation; health with --cluster.", plan_field="ops",
        brief="Op names or groups, see `gpubench ops`.")
    sizes: list[str] | None = option("LIST", WHAT, "1k,4k or 1k:64M:x4, or OP=LIST; repeatable. Default: "
        "found by a search inside the budget.", plan_field="sizes",
        brief="1k,4k or 1k:64M:x4, where 1k is 1024.")
    params: list[str] | None = option("[OP:]NAME=LIST", WHAT, "Shapes beside the size: columns=256,1024 or "
        "matmul:m=64,k=4k; repeatable, each adds its shapes. See `gpubench ops`.",
        plan_field="params")
    dtypes: str = option("LIST", WHAT, "float64 float32 float16 bfloat16, short f64 f32 f16 bf16.",
        default="float32", plan_field="dtypes", brief="f64, f32, f16, bf16. Default: f32.")
    backends: str = option("LIST", WHERE, "auto, or numpy cupy wgpu torch hybrid; `cupy?` may be absent.",
        default="auto", plan_field="backends", brief="numpy, cupy, wgpu, torch, hybrid. Default: all.",
        listing=_installed_backends)
    devices: str | None = option("LIST", WHERE, "Device ids such as cupy:0; cupy:0-3 and cupy:* are several.",
        plan_field="devices")
    mode: str | None = option("cpu|gpu|hybrid|auto", WHERE, "CPU alone; CPU and GPUs, which have to be there; "
        "also each op split over both, each workload's stages; or what `detect` says.", plan_field="mode",
        brief="CPU alone, with GPUs, also split over both.")
    allow_software: bool = option(None, WHERE, "Measure software adapters too; they never headline.")
    implementations: str | None = option("LIST", WHAT, "library,tuned, or all: implementations that a backend lacks "
        "are then listed as skipped. Default: what there is.", plan_field="implementations")
    variant: list[str] | None = option("LIST", WHAT, "Named kernels, measured beside the best: naive,tiled; "
        "repeatable.", plan_field="variants")
    allow_tf32: bool = option(None, RARE, "Measure cupy's float32 matmul once more, with TF32 inputs.",
        plan_field="variants")
    no_autotune: bool = option(None, RARE, "Take the default kernels; time and remember no candidates.",
        plan_field="autotune")
    no_repeats: bool = option(None, RARE, "Measure no session again because others disturbed it.")
    regimes: str | None = option("LIST", WHAT, "resident-waited,resident-queued,transfer-once,transfer-always; "
        "resident: both of the first. Or waited, queued, copied. By name alone: streamed, copies overlap; in-place "
        "(in-place-mapped,in-place-managed), the GPU computes in host memory. Default: the first four, on a GPU whose "
        "memory is the host's in-place-mapped in place of copies; with --ops roofline resident-queued.",
        plan_field="regimes")
    calls: int = option("N", WHAT, "Launches per transfer in transfer-once.", least=2, default=10,
        plan_field="calls")
    threads: int | None = option("N", WHERE, "CPU threads of the baseline. Default: all usable CPUs.", least=1,
        plan_field="threads")
    filter: list[str] | None = option("SEL", WHAT, "Measure these cases only; repeatable.",
        plan_field="filter")
    skip: list[str] | None = option("SEL", WHAT, "Leave these cases out; repeatable.",
        plan_field="skip")

    @classmethod
    def measuring(cls) -> list[str]:
        """Return the names of the options that choose cases or say how to measure them. Wings may have added
        some of them."""
        own = {**SelectionOptions.declared, **SamplingOptions.declared, **ConditionOptions.declared}
        return [name for name, declared in cls.declared.items() if name in own or declared.plan_field]

    def more_settings(self) -> dict[str, Any]:
        """Return the settings that options of wings add; the default returns none. Raises UsageError if one of
        these options is wrong."""
        return {}

    def wish(self, request: Any, settings: Any) -> Any:
        """Return the DeviceRequest `request`, changed by options of wings. `settings` are the run's
        settings."""
        return request

    def fit(self, spec: Any) -> Any:
        """Return the RunSpec `spec`, changed by options of wings for the devices that are there. Raises
        RequiredUnavailable if a required device is missing."""
        return spec


class SamplingOptions(CommandOptions):
    """The options for the time and the precision of measurements."""

    quick: bool = option(None, LONG, "20s without --sizes, else precision 5 %.", plan_field="preset",
        brief=True)
    rigorous: bool = option(None, LONG, "10 sessions; with --sizes precision 1 %.", plan_field="preset",
        brief=True)
    sessions: int | None = option("N", LONG, "Sessions of fresh workers. Default: 1; more are what "
        "compare judges by.", least=1, most=1000)
    min_samples: int | None = option("N", LONG, "Per case and session.", least=2,
        plan_field="min_samples")
    max_samples: int | None = option("N", LONG, "Per case and session.", least=2,
        plan_field="max_samples")
    max_time: str | None = option("TIME", LONG, "Sampling time per case and session.",
        plan_field="max_time_s")
    precision: str | None = option("PCT", LONG, "Target half-width of the interval.",
        plan_field="precision")
    case_timeout: str = option("TIME", LONG, "Kill a case that takes longer.", default="60s",
        plan_field="case_timeout_s")
    budget: str | None = option("TIME", LONG, "Limit of the whole run, which is used up. Default: at most 45s a "
        "session without --sizes (20s with --quick, double beside overheads or splits, a quarter more in the first run "
        "on a machine), and less where all is sharp before; else none. Each 100s are another session, three at most.",
        brief="Limit of the whole run, as 60s or 5m.")


class ConditionOptions(CommandOptions):
    """The options for conditions of measurements, such as the order of cases and the state of caches."""

    order: str = option("interleave|sequential", RARE, "Sequential is for debugging.", default="interleave",
        plan_field="order")
    seed: int = option("N", RARE, "Seeds inputs and order.", default=1, plan_field="seed")
    inputs: str = option("random|zeros|ones", RARE, "Anything but random only shows an effect.",
        default="random", plan_field="inputs")
    cache: str = option("warm|cold", RARE, "cold: caches are flushed before every sample.", default="warm",
        plan_field="cache")
    page_locked: bool = option(None, RARE, "The arrays that GPUs copy from and to are page-locked, as a program's "
        "are that reuses them.", plan_field="page_locked")


class SavingOptions(CommandOptions):
    """The options for where results are saved."""

    results_dir: Path | None = option("DIR", OUTPUT, "Where results go without -o. Default: results.")
    no_save: bool = option(None, OUTPUT, "Keep no result file.")


# ---------------------------------------------------------------- reports: `run`, `report` and `compare`

TIME_UNIT = option("|".join(TIME_UNITS), OUTPUT, "Unit of times in tables.", default="auto")


class RowOptions(CommandOptions):
    """The options for the baseline of a report, its claims, and its rows and columns."""

    baseline: str | None = option("ID", OUTPUT,
        "DEVICE, IMPLEMENTATION or IMPLEMENTATION@DEVICE (default: best CPU implementation).")
    claims: str | None = option("FILE", OUTPUT, "Expected speedups beside the measured ones: TOML or JSON, or "
        "builtin.")
    sort: str | None = option("KEY", OUTPUT, "Rows by case, op, n, device, time or speedup; -KEY: largest "
        "first.")
    columns: str | None = option("LIST", OUTPUT, "Tables and CSV with these columns only.")


class GateOptions(CommandOptions):
    """The options for gates of a report."""

    min_speedup: list[str] | None = option("SEL=X", GATES, "Exit 3 if a selected case is slower than X times "
        "the baseline, or has no number; repeatable.")
    fail_on: str | None = option("LIST", GATES, "Exit 3 for any of noisy,skipped,incomplete.")


class CiOptions(CommandOptions):
    """The options for continuous integration."""

    summary: bool = option(None, CI, "Append the Markdown report to the file $GITHUB_STEP_SUMMARY.")
    annotations: str = option("auto|always|never", CI, "Failed gates and warnings as ::error and ::warning on "
        "stderr; auto: under GitHub Actions.", default="auto")
    marker: str | None = option("ID", CI, "Start Markdown with <!-- gpubench:ID -->, by which a comment is "
        "found again.")
    max_bytes: int | None = option("N", CI, "Shorten Markdown to N bytes. Default: 65000 with --marker, else "
        "whole.", least=1000)


class PlotOptions(CommandOptions):
    """The options for charts as files."""

    plots: Path | None = option("DIR", OUTPUT, "Write the charts into this folder.")
    plot_format: str = option("svg|png", OUTPUT, "How --plots writes them.", default="svg")


# ---------------------------------------------------------------- the commands


class DetectedOptions(CommandOptions):
    """The options of an inspection of a machine."""

    as_json: bool = JSON
    format: str | None = option("table|plain|json|markdown|env", OUTPUT,
        "Default: table on a terminal, plain in a pipe.")
    deep: bool = option(None, WHAT, "Also open the devices and run one checked kernel on each.",
        brief="Also run one checked kernel on each device.")
    wake: bool = option(None, WHAT, "Allow probes that wake a sleeping GPU.",
        brief="Wake a sleeping GPU.")
    sysroot: Path | None = option("DIR", WHERE, "Describe the machine recorded under DIR.",
        brief="The machine recorded under DIR.")
    records: Path | None = option("FILE", WHERE, "Merge the provider records in FILE.")
    mode: str | None = option("cpu|gpu|hybrid", WHAT, "Choose the mode yourself.")
    results: Path | None = option("PATH", WHERE, "Measured results to use (default: results).",
        brief="Measured results to use.")
    require: str | None = option("cpu|gpu|BACKEND|DEVICE", GATES, "Exit with 5 if it is not available.", brief=True)
    explain: bool = option(None, OUTPUT, "Source and alternatives of every fact.", brief=True)
    record: Path | None = option("DIR|FILE.tar.gz", OUTPUT, "Save the files that were read.",
        brief=True)
    debug: bool = option(None, RARE, "Keep the raw records of each GPU; name another package in place of "
        "gpubench.")


class DetectOptions(DetectedOptions, CommonOptions):
    purpose = "CPU, RAM and GPUs of this machine, and what to compute on."
    examples = (
        "gpubench detect",
        "gpubench detect --deep --require cupy",
        "eval \"$(gpubench detect --format env)\"",
    )


class ResultOptions(SavingOptions):
    """The options for the files of a result and of its reports."""

    output: list[str] | None = option("FILE", OUTPUT, "Result (.json, .json.gz), events (.jsonl) or report "
        "(.md .html .csv .txt); repeatable.", letter="-o",
        brief="Result (.json) or report (.md .html .csv).")


BY_DEVICE = option(None, OUTPUT, "A row for each GPU backend in the answer.")
FULL = option(None, OUTPUT, "Print the whole report. Default: the answer on one screen; a line for each of several.",
    brief="Print the whole report, not the answer alone.")
OPEN = option(None, OUTPUT, "Show the report as a page in the browser.", long_name="open")


class RunOptions(
    SelectionOptions, SamplingOptions, ConditionOptions, ResultOptions,
    RowOptions, GateOptions, CiOptions, PlotOptions, CommonOptions,
):
    functions: list[str] | None = argument("[FILE[:NAME]]...", "Python files with functions of your own, or one "
        "function of a file: my.py:normalise. Default: the ops of --ops.")
    dry_run: bool = option(None, WHAT, "Print the plan and stop.", brief=True)
    check_only: bool = option(None, WHAT, "Check every case once, without timing: of ops without --sizes low, "
        "middle and top of the ladder. Only a --budget ends it early, with exit code 124.",
        plan_field="check_only")
    append: str | None = option("FILE", OUTPUT, "Add sessions to FILE, with its own plan; finish it if it was "
        "interrupted; create it if it is absent.")
    like: str | None = option("FILE", OUTPUT, "Start a new file with FILE's plan, settings, repeat counts and "
        "seed.")
    lock_timeout: str = option("TIME", RARE, "Wait so long for another run that writes the same file, then "
        "exit 4.", default="10s")
    label: str | None = option("TEXT", OUTPUT, "Stored with the result.", plan_field="label")
    tag: list[str] | None = option("TEXT", OUTPUT, "Stored with the result; repeatable.",
        plan_field="tags")
    context: list[str] | None = option("K=V", OUTPUT, "Stored with the result; repeatable.",
        plan_field="context")
    full: bool = FULL
    by_device: bool = BY_DEVICE
    as_json: bool = JSON
    open_page: bool = OPEN
    format: str | None = option("NAME", OUTPUT,
        f"The whole report in this format: {FORMAT_NAMES}; json is the result document, jsonl the events as they "
        "happen.", brief="The whole report as table, markdown, json, ...")
    sections: str | None = option("LIST", OUTPUT, "Sections of the report; see `gpubench report`.")
    time_unit: str = TIME_UNIT
    purpose = "Check and measure ops on CPU and GPU, and print the answer."
    examples = (
        "gpubench run my.py:normalise                 a NumPy function of yours",
        "gpubench run --ops matmul --mode gpu",
        "gpubench run --rigorous --ops vector -o result.json -o report.md",
    )


class NoiseOptions(
    SelectionOptions, SamplingOptions, ConditionOptions, SavingOptions,
    CommonOptions,
):
    """The options of `gpubench noise`: its own, and the options of `run` that choose cases and say how to
    measure them."""

    file: str | None = argument("[FILE]", "A result with 10 sessions or more, - for stdin. Default: measure.")
    sessions: int = option("N", LONG, "Sessions a side: twice as many are measured.", least=5, most=100,
        default=5, brief=True)
    budget: str | None = option("TIME", LONG, "Limit of the whole run. Default: that of `run`.",
        brief="Limit of the whole run, as 60s or 5m.")
    output: str | None = option("FILE", OUTPUT, "Write the thresholds here, for compare --thresholds; - in "
        "place of the table.", letter="-o", brief="Write thresholds for `compare --thresholds`.")
    check: bool = option(None, GATES, "Exit 3 if more than 5 % of the comparisons have a false alarm.",
        brief="Exit 3 if there are too many false alarms.")
    as_json: bool = JSON
    format: str | None = option("table|plain|markdown|json", OUTPUT,
        "Default: table on a terminal, else plain text.")
    purpose = "How much unchanged work seems to change here."
    examples = (
        "gpubench noise --ops matmul --sizes 1k,4k -o noise.json",
        "gpubench noise result.json -o noise.json",
        "gpubench compare base.json new.json --thresholds noise.json",
    )


class ReportOptions(RowOptions, PlotOptions, GateOptions, CiOptions, CommonOptions):
    files: list[str] | None = argument("[FILE]...", "Results, fleets, folders of them, - for stdin. Default: "
        "the newest result.")
    format: str | None = option("NAME", OUTPUT,
        f"The whole report in this format: {FORMAT_NAMES}.", brief="The whole report as table, markdown, json, ...")
    output: str | None = option("FILE", OUTPUT, "Write here; format by suffix.", letter="-o",
        brief=True)
    sections: str | None = option("LIST", OUTPUT, "Only these. Default: the answer; in a file and with --full all but "
        "map, noise and raw, in Markdown a page of them. There are", brief="Only these, as answer,breakeven.",
        listing=lambda: f" {', '.join(report_sections.names())}.")
    full: bool = FULL
    by_device: bool = BY_DEVICE
    as_json: bool = JSON
    open_page: bool = OPEN
    filter: list[str] | None = option("SEL", WHAT, "Show these cases only; repeatable.",
        brief=True)
    skip: list[str] | None = option("SEL", WHAT, "Leave these cases out; repeatable.", brief=True)
    results_dir: Path = option("DIR", WHERE, "Where the newest result is looked for.", default=Path("results"),
        brief=True)
    time_unit: str = TIME_UNIT
    purpose = "Render saved results."

    def whole(self, files: Sequence[tuple[str, Any]], format: str, *, to_terminal: bool) -> int | None:
        """Print the report if a wing handles all of `files`, and return the exit code. Returns None if the command
        reports them, as by default."""
        return None

    def runs(self, files: Sequence[tuple[str, Any]]) -> list[Any] | None:
        """Return the runs that an option of a wing chooses from the files, or None if no option does. The
        default returns None."""
        return None

    examples = (
        "gpubench report result.json --sections breakeven,speedup",
        "gpubench report results                     a line for each result of a folder",
        "gpubench report result.json -o report.html",
    )


class JudgingOptions(CiOptions, CommonOptions):
    """The options for what counts as a regression, and for how a comparison is written."""

    as_json: bool = JSON
    format: str | None = option("table|plain|markdown|html|json|csv", OUTPUT,
        "Default: table on a terminal, else plain text.")
    output: str | None = option("FILE", OUTPUT, "Write here; format by suffix.", letter="-o",
        brief=True)
    full: bool = option(None, OUTPUT, "List every case. Default: those that are slower or faster, and a count of the "
        "rest.", brief="List every case, those that did not change too.")
    fail_on: str | None = option("LIST", GATES, "Exit 3 for any of slower,unsure,failed,missing,noisy. "
        "Default: slower,failed,missing.", brief="Exit 3 for any of these, as slower,failed.")
    min_speedup: list[str] | None = option("SEL=X", GATES, "Exit 3 if a selected case is not X times faster "
        "than in BASE; repeatable.", brief="Exit 3 if they are not X times faster.")
    threshold: list[str] | None = option("[SEL=]PCT", GATES, "Smaller changes are none; repeatable. Default: "
        "5 %, or 10 % if sessions did not take turns.",
        brief="Smaller changes are none. Default: 5 %.")
    thresholds: str | None = option("FILE", GATES, "What `gpubench noise -o` wrote: raises the threshold of "
        "noisy cases.", brief="What `gpubench noise -o` wrote.")
    alpha: float = option("P", RARE, "Chance of a false alarm over all cases.", default=0.05)
    ignore: list[str] | None = option("SEL", GATES, "Show these cases, but no gate looks at them; repeatable.",
        brief="Show these cases, but no gate looks at them.")
    advisory: bool = option(None, GATES, "Tell failed gates, but exit 0.", brief=True)
    allow_different_machine: bool = option(None, RARE, "Compare results of different machines all the same.")
    time_unit: str = TIME_UNIT


class ComparisonOptions(JudgingOptions):
    base: str = argument("BASE", "Result file to compare with, - for stdin.")
    new: list[str] = argument("NEW...", "Result files, each [LABEL=]FILE.")
    purpose = "Is a new result faster or slower than a base?"
    examples = (
        "gpubench compare base.json new.json",
        "gpubench compare base.json new.json --fail-on slower --threshold 3",
        "gpubench compare base.json before=a.json after=b.json -o table.md",
    )


class CheckOptions(JudgingOptions):
    base: str = argument("BASE", "Environment with the version before: its folder, or a program that runs gpubench.")
    new: str = argument("NEW", "Environment with the new version.")
    plan: list[str] | None = argument("[-- OPTION...]", "What to measure: functions and options of `gpubench run`.")
    sessions: int = option("N", LONG, "Sessions of each version, in turns; a regression needs 5.", least=1,
        default=5, brief="Sessions of each version; a regression needs 5.")
    base_folder: Path | None = option("DIR", WHERE, "Where BASE runs, as a checkout of the version before. Default: "
        "here.", brief="Where BASE runs. Default: here.")
    new_folder: Path | None = option("DIR", WHERE, "Where NEW runs. Default: here.")
    results_dir: Path | None = option("DIR", OUTPUT, "Where base.json and new.json are kept. Default: a new folder "
        "in results.")
    purpose = "Has a new version become slower? Two environments, in turns."
    examples = (
        "gpubench check old/ new/ -- --ops add,matmul --sizes 64k,1M",
        "gpubench check old/ new/ --base-folder ../main -- bench_functions.py",
        "gpubench check old/ new/ --threshold 10 -o table.md -- --ops add",
    )


class AdviseOptions(CommonOptions):
    op: str = argument("OP", "An op, as `gpubench ops` lists them.")
    size: str = option("N", WHAT, "The size, as 1000, 4k or 2^20.", brief="The size, as 1000, 4k (4096) or "
        "2^20.")
    dtype: str = option("DTYPE", WHAT, "Type of the elements.", default="float32",
        brief="Type of the elements. Default: float32.")
    params: str | None = option("NAME=N[,NAME=N]", WHAT, "Params beside the size, as in `run`.",
        brief=True)
    data: str = option("host|device", WHAT, "Where the data is before and after the call.", default="host",
        brief=True)
    calls: int = option("N", WHAT, "Calls that share one copy, with --data host.", least=1, default=1,
        brief=True)
    queued: bool = option(None, WHAT, "With --data device: many calls are queued and waited for once. Default: the "
        "caller waits for each.", brief="Many calls are waited for once, not each.")
    source: str | None = option("FILE", WHERE, "Answer from this result, - for stdin. Default: the newest "
        "ones.", long_name="from", brief="Answer from this result. Default: the newest ones.")
    results_dir: Path = option("DIR", WHERE, "Where this machine's results are looked for.",
        default=Path("results"), brief=True)
    as_json: bool = JSON
    format: str = option("table|json|env", OUTPUT, "How to write the answer.", default="table", brief=True)
    purpose = "On which device one call should run."
    examples = (
        "gpubench advise matmul --size 4k",
        "gpubench advise matmul --size 4k --data device",
        "gpubench advise add --size 1M --calls 100 --format json",
    )

    def amend(self, advice: Any) -> Any:
        """Return the Advice, changed by options of wings. Raises UsageError if one of these options is
        wrong."""
        return advice


class OpsOptions(CommonOptions):
    names: list[str] | None = argument("[NAME]...", "Ops or groups to tell all of. Default: a line for each op.")
    as_json: bool = JSON
    format: str = option("table|json|markdown", OUTPUT, "How to write the list.", default="table", brief=True)
    purpose = "List the ops that can be measured."
    examples = ("gpubench ops", "gpubench ops matmul", "gpubench ops --format markdown")


class SchemaOptions(CommonOptions):
    name: str = argument("NAME", "gpubench-result (default), or another document; a wrong name lists them.",
        default="gpubench-result")
    purpose = "Print the JSON Schema of a document."
    examples = ("gpubench schema", "gpubench schema report", "gpubench schema detect > detect.schema.json")


# One module each, with a function of the same name. The order is that of the help.
_OWN: dict[str, type[CommandOptions]] = {
    "detect": DetectOptions, "run": RunOptions, "report": ReportOptions, "compare": ComparisonOptions,
    "check": CheckOptions, "noise": NoiseOptions, "advise": AdviseOptions, "ops": OpsOptions, "schema": SchemaOptions,
}


@functools.cache
def commands() -> dict[str, type[CommandOptions]]:
    """Return the options class of every command by name, including commands of gpubench's wings. Commands of
    other packages are added later."""
    by_name = dict(_OWN)
    wings.tell_broken()
    for wing in wings.own():
        extend(by_name, wing)
    return by_name


def extend(by_name: dict[str, type[CommandOptions]], wing: wings.Wing) -> None:
    """Add the commands of a wing to `by_name`, in place. A command that exists gets the wing's options in
    addition to its own."""
    for name, kind in wings.find_all(wing.commands).items():
        before = by_name.get(name, kind)
        by_name[name] = kind if issubclass(kind, before) else type(kind.__name__, (kind, before), {})
        by_name[name].declared = before.declared | kind.declared
