"""Runs for the final screen: many ops with known thresholds and gains in two situations."""

from msgspec.structs import replace

from gpubench.result.run import Outcome, RunWarning, Selection
from tests.unit.report.builders import CPU, GPU, case, measured, run_of

SUITE = (
    "add", "chain", "copy", "div", "dot", "gelu", "matmul", "mul", "relu", "saxpy", "sigmoid", "softmax", "sub", "tanh",
)  # fmt: skip
VECTOR = (1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
SIDE = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WEBGPU = replace(GPU, id="wgpu:0", backend="wgpu", api="vulkan")
SECOND = replace(GPU, id="cupy:1")
WAITED, QUEUED, ALWAYS = "resident-waited", "resident-queued", "transfer-always"


def op_case(op, n, regime="resident", device="numpy:0", **more):
    """As `case`, with matmul alone in its group."""
    found = case(op, n, regime=regime, device=device, **more)
    return replace(found, calls=10) if regime == "transfer-once" else found


def op_rows(op, ratios, *, device="cupy:0", cpu_s=1e-3, dtype="float32", shifts=(), cpu=True):
    """For each regime and size a GPU case `ratio` times as fast as the CPU's, in 5 sessions, which `shifts` set apart."""
    sizes = sorted(set().union(*ratios.values()))
    found: list[Outcome] = []
    if cpu:
        found += [measured(op_case(op, n, dtype=dtype), cpu_s, sessions=5) for n in sizes]
    for regime, by_size in ratios.items():
        for n, ratio in by_size.items():
            what = op_case(op, n, regime, device, dtype=dtype)
            found.append(measured(what, cpu_s / ratio, sessions=5, shifts=shifts))
    return found


def rising(sizes, threshold, slope=0.5):
    """Ratios that cross 1 at `threshold`."""
    return {n: (n / threshold) ** slope for n in sizes}


def answer_run(outcomes, *, named=None, **more):
    """A run of 55 seconds; `named`: the sizes that were asked for, by op."""
    run = run_of(outcomes, **more)
    ops = sorted({outcome.case.op for outcome in outcomes})
    selection = Selection(ops=ops, sizes=dict(named or {}))
    return replace(run, selection=selection, finished_at="2026-01-02T03:05:00Z")


def suite_run(*, sessions=5):
    """14 ops in three situations: queued calls pay four times earlier than waited ones, copies pay for three ops alone."""
    found: list[Outcome] = []
    for i, op in enumerate(SUITE):
        sizes = SIDE if op == "matmul" else VECTOR
        at = 180.0 if op == "matmul" else 20_000 * 1.5**i
        late = 700.0 if op == "matmul" else 3e6 if op in ("gelu", "softmax") else 6e8
        ratios = {WAITED: rising(sizes, at), QUEUED: rising(sizes, at / 4), ALWAYS: rising(sizes, late)}
        found += op_rows(op, ratios)
    return answer_run(found, sessions=sessions)


def one_op_run():
    """One op in its four situations, one of them without a threshold."""
    ratios = {
        QUEUED: rising(VECTOR, 23_000), WAITED: rising(VECTOR, 154_000), "transfer-once": rising(VECTOR, 149_000),
        ALWAYS: rising(VECTOR, 6e8),
    }  # fmt: skip
    return answer_run(op_rows("add", ratios))


def named_run():
    """One op at two sizes that were asked for."""
    ratios = {
        QUEUED: {1024: 21.0, 4096: 24.0}, WAITED: {1024: 6.7, 4096: 22.0}, ALWAYS: {1024: 0.25, 4096: 7.0},
    }  # fmt: skip
    return answer_run(op_rows("matmul", ratios), named={"matmul": [1024, 4096]})


def no_gpu_run():
    """Plain NumPy and another implementation; the latter is faster for two of three ops."""
    found: list[Outcome] = []
    for op, plain_s, tuned_s in (("softmax", 1.69e-3, 8e-4), ("add", 1.37e-4, 1.38e-4), ("gelu", 2e-3, 1e-3)):
        for n in (65536, 1048576):
            found.append(measured(case(op, n), plain_s, sessions=5))
            found.append(measured(case(op, n, "tuned"), tuned_s, sessions=5))
    warnings = [
        RunWarning(code="unavailable", severity="info", message="cupy was left out: there is no NVIDIA driver", data={"backend": "cupy"}),
    ]  # fmt: skip
    return answer_run(found, devices=(CPU,), warnings=warnings, with_machine=False)


def seconds(fixed_s, each_s):
    """Times of a function by size."""
    return {n: fixed_s + n * each_s for n in (2**k for k in range(8, 24, 2))}


WRITTEN = {("numpy:0", "library"): seconds(1e-6, 1e-8), ("cupy:0", "library"): seconds(1e-4, 1e-10)}


def function_run(code, on_gpu=WAITED):
    """A run of `mine.f` with these times by device and implementation, in one situation on a GPU."""
    rows = []
    for (device, implementation), times in code.items():
        for n, time in times.items():
            regime = "resident" if device in ("numpy:0", "torch:cpu") else on_gpu
            what = case("mine.f", n=n, implementation=implementation, device=device, regime=regime)
            rows.append(measured(replace(what, group="function"), time))
    return run_of(rows)
