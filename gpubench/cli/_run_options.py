"""The options of `run`, declared once: their types, metavars and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli._options import FORMAT_NAMES

Ops = Annotated[
    str | None,
    typer.Option(
        "--ops",
        metavar="LIST",
        help="Op names or groups, all (overhead apart), or roofline (what the hardware can do)."
        " Default: vector,matmul,activation.",
        show_default=False,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="LIST",
        help="1k,4k or 1k:64M:x4, or OP=LIST; repeatable. Default: found by a search inside the budget.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--params",
        metavar="[OP:]NAME=LIST",
        help="Shapes beside the size: columns=256,1024 or matmul:m=64,k=4k; repeatable, each adds its shapes. "
        "See `gpubench ops`.",
    ),
]
Dtypes = Annotated[
    str,
    typer.Option("--dtypes", metavar="LIST", help="float64 float32 float16 bfloat16, short f64 f32 f16 bf16."),
]
Backends = Annotated[
    str,
    typer.Option("--backends", metavar="LIST", help="auto, or numpy cupy wgpu hybrid; `cupy?` may be absent."),
]
Devices = Annotated[
    str | None, typer.Option("--devices", metavar="LIST", help="Device ids such as cupy:0.", show_default=False)
]
AllowSoftware = Annotated[
    bool, typer.Option("--allow-software", help="Measure software adapters too; they never headline.")
]
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="cpu|gpu|hybrid|auto",
        help="CPU alone; CPU and GPUs, which have to be there; also each op split over both; or what `detect` says.",
        show_default=False,
    ),
]
Forms = Annotated[
    str | None,
    typer.Option(
        "--forms",
        metavar="LIST",
        help="library,tuned, or all: forms that a backend lacks are then listed as skipped. Default: what there is.",
        show_default=False,
    ),
]
Variant = Annotated[
    list[str] | None,
    typer.Option(
        "--variant", metavar="LIST", help="Named kernels, measured beside the best: naive,tiled; repeatable."
    ),
]
AllowTf32 = Annotated[
    bool, typer.Option("--allow-tf32", help="Measure cupy's float32 matmul once more, with TF32 inputs.")
]
NoAutotune = Annotated[
    bool, typer.Option("--no-autotune", help="Take the default kernels; time and remember no candidates.")
]
Regimes = Annotated[
    str | None,
    typer.Option(
        "--regimes",
        metavar="LIST",
        help="resident,transfer-once,transfer-always. Default: all; with --ops roofline resident.",
        show_default=False,
    ),
]
Calls = Annotated[int, typer.Option("--calls", min=2, help="Launches per transfer in transfer-once.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, help="CPU threads of the baseline. Default: all usable CPUs.", show_default=False
    ),
]
Filter = Annotated[
    list[str] | None, typer.Option("--filter", metavar="SEL", help="Measure these cases only; repeatable.")
]
Skip = Annotated[
    list[str] | None, typer.Option("--skip", metavar="SEL", help="Leave these cases out; repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
CheckOnly = Annotated[bool, typer.Option("--check-only", help="Check every case once, without timing.")]
Quick = Annotated[bool, typer.Option("--quick", help="1 session, precision 5 %.")]
Rigorous = Annotated[bool, typer.Option("--rigorous", help="10 sessions, precision 1 %.")]
Sessions = Annotated[
    int | None,
    typer.Option(
        "--sessions",
        min=1,
        max=1000,
        help="Sessions of fresh workers. Default: 3; 1 when sizes are searched.",
        show_default=False,
    ),
]
MinSamples = Annotated[
    int | None, typer.Option("--min-samples", min=2, help="Per case and session.", show_default=False)
]
MaxSamples = Annotated[
    int | None, typer.Option("--max-samples", min=2, help="Per case and session.", show_default=False)
]
MaxTime = Annotated[
    str | None,
    typer.Option("--max-time", metavar="TIME", help="Sampling time per case and session.", show_default=False),
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", metavar="PCT", help="Target half-width of the interval.", show_default=False),
]
CaseTimeout = Annotated[
    str, typer.Option("--case-timeout", metavar="TIME", help="Kill a case that takes longer.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="Limit of the whole run. Default: 60s without --sizes (120s beside overheads or splits), else none.",
        show_default=False,
    ),
]
Refine = Annotated[
    str,
    typer.Option(
        "--refine",
        metavar="auto|on|off",
        help="Search for break-evens. auto: unless --sizes are given; on: between those, too.",
    ),
]
BreakEvenTimings = Annotated[
    int,
    typer.Option(
        "--break-even-timings",
        metavar="N",
        min=84,
        help="Timings of both sides for one break-even, its search included.",
    ),
]
Append = Annotated[
    str | None,
    typer.Option(
        "--append",
        metavar="FILE",
        help="Add sessions to FILE, with its own plan; finish it if it was interrupted; create it if it is absent.",
        show_default=False,
    ),
]
Like = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="FILE",
        help="Start a new file with FILE's plan, settings, repeat counts and seed.",
        show_default=False,
    ),
]
Order = Annotated[
    str, typer.Option("--order", metavar="interleave|sequential", help="Sequential is for debugging.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seeds inputs and order.")]
Inputs = Annotated[
    str, typer.Option("--inputs", metavar="random|zeros|ones", help="Anything but random only shows an effect.")
]
Cache = Annotated[
    str, typer.Option("--cache", metavar="warm|cold", help="cold: caches are flushed before every sample.")
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Result (.json, .json.gz), events (.jsonl) or report (.md .html .csv .txt); repeatable.",
    ),
]
ResultsDir = Annotated[
    Path | None,
    typer.Option(
        "--results-dir",
        metavar="DIR",
        help="Where results go without -o. Default: results.",
        show_default=False,
    ),
]
NoSave = Annotated[bool, typer.Option("--no-save", help="Keep no result file.")]
Label = Annotated[
    str | None, typer.Option("--label", metavar="TEXT", help="Stored with the result.", show_default=False)
]
Tag = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TEXT", help="Stored with the result; repeatable.")
]
Context = Annotated[
    list[str] | None, typer.Option("--context", metavar="K=V", help="Stored with the result; repeatable.")
]
ReportFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help=f"Of the report: {FORMAT_NAMES}. Default: table on a terminal, else plain; json is the result document, "
        "jsonl the events as they happen.",
        show_default=False,
    ),
]
Sections = Annotated[
    str | None,
    typer.Option(
        "--sections", metavar="LIST", help="Sections of the report; see `gpubench report`.", show_default=False
    ),
]
TimeUnit = Annotated[
    str, typer.Option("--time-unit", metavar="auto|s|ms|us|ns", help="Unit of times in tables.")
]
