"""Runs of which one section stands in tests/golden/parts.txt: what a section says of a case that the full run lacks."""

from msgspec.structs import replace

from gpubench.analysis import claims as claims_room
from gpubench.analysis.claims import Claim
from gpubench.cli.ci import parse_gates
from gpubench.report import analyse_runs
from gpubench.result.case import QUEUED, WAITED
from gpubench.result.machine import Fact
from gpubench.result.run import Blas, Parts, RunWarning, Selection
from tests.unit.report.answer_runs import ALWAYS, SIDE, answer_run, op_case, small_notes
from tests.unit.report.builders import (
    CPU,
    GPU,
    SOFTWARE,
    TORCH,
    case,
    curve,
    machine,
    measured,
    run_of,
    skipped,
)
from tests.unit.report.samples import full_run

SHARED = (CPU, replace(GPU, gpu_id="GPU-1"), replace(GPU, id="wgpu:0", backend="wgpu", gpu_id="GPU-1"))
LARGE = 2**26  # a copy of float32 moves 512 MiB


def copied(gb_per_s, n=LARGE, **where):
    return measured(case("copy", n, **where), 2 * 8 * n / gb_per_s / 1e9, hot_s=8 * n / gb_per_s / 1e9)


def multiplied(tflops, n=4096, **where):
    seconds = 2 * n**3 / tflops / 1e12
    return measured(case(n=n, **where), 2 * seconds, hot_s=seconds)


def early(run, **selection):
    return replace(run, selection=Selection(ops=[case().op], **selection))


def stopped(sessions=5, **more):
    return run_of([measured(case(), 1e-3, sessions=min(sessions, 3))], sessions=sessions, complete=False, exit_reason="interrupted", **more)  # fmt: skip


def searched():
    """Sizes of a search, of which few situations have some."""
    sizes = {64 * 2**i: 0.25 * 2**i for i in range(6)}
    outcomes = [*curve(sizes | {100: 0.4}), *curve(sizes | {200: 0.5}, regime="transfer-once")]
    return run_of([*{row.id: row for row in [*outcomes, *curve(sizes, regime="transfer-always")]}.values()])


def a_kernel():
    plain = measured(case(n=64, implementation="tuned"), 2e-3)
    chosen = replace(
        measured(case(n=64, implementation="tuned", device="wgpu:0"), 1e-3), kernel="64x128x16, 8x8|<b>"
    )
    return run_of([plain, chosen], devices=(CPU, SHARED[2]))


IMPLEMENTATIONS_OF_OVERHEADS = (
    ("cupy:0", "upload", "library"), ("cupy:0", "download", "tuned"), ("wgpu:0", "upload", "library"), ("wgpu:0", "download", "tuned"),
    ("wgpu:0", "allocate", "library"), ("cupy:0", "allocate", "tuned"), ("fake:gpu", "upload", "tuned"), ("cupy:0", "launch", "library"),
)  # fmt: skip


def made_for_peaks(*, asked):
    run = run_of([copied(4000, device="cupy:0"), multiplied(50, device="cupy:0")])
    selection = replace(run.selection, ops=["copy", "matmul"], regimes=["resident-queued"])
    return replace(run, selection=selection) if asked else run


CALL = Parts(
    session=0, compile_s=0.3, first_launch_s=2e-3, alloc_s=[1e-5], upload_s=[4e-4, 4e-4, 9.0], launch_s=[1e-5], sync_s=[2e-5],
    single_s=[1.3e-4], download_s=[2e-4],
)  # fmt: skip
SUM_S = 1e-5 + 4e-4 + 1e-5 + 1e-4 + 2e-5 + 2e-4  # with a kernel of 1e-4


def one_call(whole_s):
    always = measured(case(regime="transfer-always", device="cupy:0"), whole_s, cold_s=1e-4, parts=CALL)
    return run_of([measured(case(), 1e-3), always])


def weights(gpu_s):
    """A size whose weights took 8.5 ms to load, and a larger one that found them there; slower code, and queued calls."""
    outcomes = []
    for n in (256, 1024):
        kept = {"factors": (0.999, 1.001, 1.0, 1.0, 0.9995, 1.0005), "sessions": 1}
        gpu = {"library": (WAITED, gpu_s), "tuned": (WAITED, 3 * gpu_s), "tuned ": ("resident", 0.5 * gpu_s)}
        timed = [
            measured(case(n=n, regime=regime, implementation=name.strip(), device="cupy:0"), seconds, **kept)
            for name, (regime, seconds) in gpu.items()
        ]
        if n == 256:
            timed[0] = replace(timed[0], parts=[Parts(session=0, weights_s=8.5e-3, weights_bytes=2**20)])
        outcomes += [measured(case(n=n), 1e-3, **kept), *timed]
    return run_of(outcomes)


BOTH = ["machines", "history"]


def of_machine(ratios, *, cpu="Test CPU", cpu_s=1e-3, started="2026-01-02T03:04:05Z", label=None):
    """A run on a machine of its own: each CPU name has another fingerprint."""
    found = run_of(curve(ratios, cpu_s=cpu_s))
    mark = replace(found.fingerprint.machine, hash=cpu, fields={"cpu": cpu})
    host = replace(machine().cpu, model=Fact(cpu, "ok", "proc"))
    return replace(
        found, id=f"{cpu}-{started}", started_at=started, label=label, machine=replace(machine(), cpu=host),
        fingerprint=replace(found.fingerprint, machine=mark),
    )  # fmt: skip


def days_of(seconds, **more):
    return [
        of_machine({1024: 4.0}, cpu_s=s, started=f"2026-01-{day:02}T00:00:00Z", **{name: f"{word}{day - 1}" for name, word in more.items()})
        for day, s in enumerate(seconds, 1)
    ]  # fmt: skip


HERE = of_machine({64: 0.5, 1024: 40.0, 4096: 60.0})
THERE = of_machine({64: 0.5, 256: 0.8, 1024: 8.0}, cpu="Another CPU", cpu_s=2e-3)


def claimed(run, *claims):
    """The analysis of a run that claims are held against; those of gpubench if none is named."""
    return analyse_runs([run], claims=claims or claims_room.load("builtin"))


CLAIMED = run_of(curve({512: 14.0, 1024: 40.0, 2048: 140.0}))
WAITED_MATMUL = "matmul/*/*/*/resident-waited@cupy"
SOME_CLAIMS = [
    Claim(claim=f"claim {i}", cases=cases, **fields)
    for i, (cases, fields) in enumerate((
        (("matmul@cupy",), {"speedup": 30}), ((WAITED_MATMUL,), {"speedup": 30}), (("matmul@cupy", "relu@cupy"), {"speedup": 30}),
        (("matmul@cupy",), {"time_s": (1e-3, 2e-3)}), (("matmul@numpy",), {"cpu_s": 40e-3}), ((WAITED_MATMUL,), {"break_even": (1, 2)}),
        (("matmul@cupy",), {"also": WAITED_MATMUL, "speedup": 30}),
    ))
]  # fmt: skip


def in_situations():
    """Of matmul queued and waited calls, of relu waited ones alone."""
    calls = (("matmul", QUEUED, 1e-3), ("matmul", WAITED, 2e-3), ("relu", WAITED, 2e-3))
    on_gpu = [measured(case(op, regime=regime, device="cupy:0"), seconds) for op, regime, seconds in calls]
    return run_of([*(measured(case(op), 40e-3) for op in ("matmul", "relu")), *on_gpu])


def gated():
    rows = [*curve({64: 0.5, 256: 4.0}), skipped(case(n=512, device="cupy:0"))]
    return analyse_runs([run_of(rows)], gates=parse_gates(["matmul/n<=256=2", "matmul/n=256=3"], "skipped"))


OPENBLAS = Blas(library="openblas", version="0.3.34.0.0", kernel="Haswell")
OPENBLAS_TEXT = "OpenBLAS 0.3.34.0.0 (Haswell)"


def on(what, seconds, kernel=None):
    return replace(measured(what, seconds, sessions=5), kernel=kernel)


def contest(*, gpu=GPU):
    """numba computes `add` and PyTorch `relu`; of matmul OpenBLAS the small sizes and MKL the others."""
    found = []
    for n in (1024, 65536, 16777216):
        found.append(on(case("relu", n, device="torch:cpu"), 1e-6 * n**0.5))
        for op, scale in (("add", 1e-6), ("relu", 2e-6)):
            tuned = on(case(op, n, "tuned"), scale * n**0.5, "numba, 2 threads")
            found += [tuned, on(case(op, n), 3e-6 * n**0.5)]
            gains = {WAITED: 1e-4, QUEUED: 1e-5, ALWAYS: 1e-5 * n**0.5, "transfer-once": 1e-5 + 1e-6 * n**0.5}
            found += [on(op_case(op, n, regime, "cupy:0"), seconds) for regime, seconds in gains.items()]
    for n in SIDE:
        found += [on(case(n=n), 1e-6 * n), on(case(n=n, device="torch:cpu"), 3e-4 + 2e-7 * n)]
        found += [on(op_case("matmul", n, regime, "cupy:0"), 1e-4) for regime in (WAITED, QUEUED, ALWAYS)]
    run = answer_run(found, devices=(CPU, TORCH, gpu))
    blas = {"numpy:0": OPENBLAS, "torch:cpu": Blas(library="mkl", version="2024.2")}

    def with_blas(worker):
        return replace(worker, blas=blas.get(worker.device_id), threads=worker.threads and 16)

    return replace(run, sessions=[replace(one, workers=[*map(with_blas, one.workers)]) for one in run.sessions])


CONTEST = contest()


def without_numba():
    """One op, of which plain NumPy computes all."""
    lacking = RunWarning(code="cpu-not-compiled", message="the CPU is not at its best")
    rows = [replace(row, kernel=None) for row in CONTEST.outcomes if row.case.op == "add"]
    return replace(CONTEST, outcomes=rows, warnings=[lacking])


SIX = [2**10, 2**14, 2**18, 2**20, 2**24, 2**30]
SMALL_PEAKS = [copied(9000, 2**20, device="cupy:0"), multiplied(18, 512, device="cupy:0")]

# Name -> what makes the run, the format, the options.
PARTS = {
    **{f"ended by {reason}, complete {complete}": (lambda r=reason, c=complete: run_of([measured(case(), 1e-3)], complete=c, exit_reason=r), "plain", {"sections": ["answer", "breakeven"], "width": 120})
       for reason, complete in (("ok", False), ("wrong-result", True), ("budget", True), ("interrupted", False))},
    "an early end": (lambda: early(stopped(), sizes={case().op: [case().n]}), "plain", {"sections": ["answer"]}),
    "an early end of a search": (lambda: early(stopped(1)), "plain", {"sections": ["answer"]}),
    "speedups in text, sizes of a search": (searched, "plain", {"sections": ["speedup"]}),
    "speedups sorted": (lambda: run_of(curve({64: 5.0, 128: 0.5, 256: 50.0, 512: 2.0})), "plain", {"sections": ["speedup"], "sort": "-speedup"}),
    "speedups by their columns": (full_run, "plain", {"sections": ["speedup"], "columns": ["copied", "n", "cpu"]}),
    "speedups in ms": (full_run, "plain", {"sections": ["speedup"], "time_unit": "ms"}),
    **{f"a break-even of {ratio}": (lambda r=ratio: run_of(curve({64: r})), "plain", {"sections": ["breakeven"]}) for ratio in (0.5, 1.0)},
    "the first result": (lambda: one_call(SUM_S), "markdown", {"sections": ["breakdown"]}),
    "no first result": (lambda: one_call(2 * SUM_S), "markdown", {"sections": ["breakdown"]}),
    "implementations of overheads": (lambda: run_of([measured(case(op, 2**20, implementation, device=device), 1e-3) for device, op, implementation in IMPLEMENTATIONS_OF_OVERHEADS]), "plain", {"sections": ["breakdown"]}),
    "six transfers in Markdown": (lambda: run_of([measured(case("upload", n, device="cupy:0"), 1e-5 + n / 1e10) for n in SIX]), "markdown", {"sections": ["breakdown"]}),
    "weights that pay": (lambda: weights(1e-4), "plain", {"sections": ["amortization"]}),
    "weights that never pay": (lambda: weights(2e-3), "plain", {"sections": ["amortization"]}),
    "peaks of small sizes": (lambda: run_of(SMALL_PEAKS, devices=SHARED), "plain", {"sections": ["roofline"]}),
    "all sizes below a peak": (lambda: run_of([copied(4000, n, device="cupy:0") for n in (2**25 - 1, 2**25)], devices=(CPU, GPU, SOFTWARE)), "plain", {"sections": ["roofline"]}),
    "the kernel beside the case": (a_kernel, "markdown", {"sections": ["raw"]}),
    "a whole report, made for its peaks": (lambda: made_for_peaks(asked=True), "plain", {}),
    "a whole report, TF32": (lambda: run_of([multiplied(50, device="cupy:0"), multiplied(300, device="cupy:0", variant="tf32")], devices=SHARED), "plain", {}),
    "a whole report, overheads": (lambda: run_of([measured(case("sync", 1, device="cupy:0"), 5e-6)], devices=(CPU, GPU)), "plain", {"width": 120}),
    "a whole report, sizes of a search": (searched, "plain", {}),
    "machines side by side": (lambda: [HERE, THERE], "plain", {"sections": BOTH, "width": 120}),
    "machines that share nothing": (lambda: [HERE, replace(THERE, outcomes=[measured(case("relu", 64), 1e-3)])], "plain", {"sections": BOTH}),
    "warnings of one advice": (small_notes, "plain", {"sections": ["warnings"]}),
    "a history": (lambda: days_of([1e-3, 2e-3, 4e-3])[::-1], "plain", {"sections": BOTH}),
    "histories of two machines": (lambda: [HERE, of_machine({1024: 4.0}, cpu_s=2e-3, started="2026-01-03T00:00:00Z"), THERE], "plain", {"sections": ["history"]}),
    **{f"claims in {name} at {width}": (lambda: claimed(CLAIMED), name, {"sections": ["claims"], "width": width}) for name, width in (("plain", 60), ("markdown", 80))},
    "claims by situation": (lambda: claimed(in_situations(), *SOME_CLAIMS), "plain", {"sections": ["claims"], "width": 120}),
    "a claim of gpubench that a CPU lacks": (lambda: claimed(run_of([measured(case(), 1e-3)], devices=[CPU]), Claim(claim="m", cases=("relu/*/float32",), speedup=2.0)), "plain", {"sections": ["claims"]}),
    "gates": (gated, "plain", {"sections": ["answer"]}),
    "several codes of a CPU": (lambda: CONTEST, "plain", {"sections": ["answer", "breakeven", "amortization"], "width": 120}),
    "a CPU without numba": (without_numba, "plain", {"sections": ["answer", "breakeven", "amortization", "speedup"]}),
    "a name that is long": (lambda: answer_run([measured(case("options.a_rather_long_name", device=device), 1e-3) for device in ("numpy:0", "torch:cpu")], devices=(CPU, TORCH)), "plain", {}),
}  # fmt: skip
