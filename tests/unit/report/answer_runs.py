"""Runs for the final screen: ops with known thresholds and gains, and those of tests/golden/screens.txt."""

from msgspec.structs import replace

from gpubench.result.run import Check, Failure, Outcome, RunWarning, Selection
from tests.unit.report.builders import (
    CPU,
    GPU,
    SOFTWARE,
    TORCH,
    case,
    failed,
    measured,
    planned,
    run_of,
    skipped,
)
from tests.unit.report.samples import software_run

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


# ---------------------------------------------------------------- a screen for each thing that it can say


# Ratios at the bottom, in the middle and at the top of the ladder of vectors.
ENDS = (1024, 131072, 16777216)
WINS, LOSES = dict.fromkeys(ENDS, 9.0), dict.fromkeys(ENDS, 0.2)
OPEN_LOSS = {1024: 0.1, 4096: 0.2}
APART = (0.4, 0.8, 1.0, 1.25, 2.5)  # sessions that tell no winner of sides within 2x
SHARP = rising([1024, 15_000, 18_000, 16777216], 16_000, 2.0)
WIDE = {1024: 0.1, 16777216: 20.0}
THREE = {"add": (8192, 2**20, 2**24), "dot": (8192, 2**20, 2**22), "matmul": (96, 1024, 4096)}
ALONE = {"devices": (CPU,), "with_machine": False}


def ops(*ratios, regime=WAITED, **more):
    """A run of as many ops as there are ratios by size."""
    vectors = [name for name in SUITE if name != "matmul"]
    return answer_run([row for op, by in zip(vectors, ratios, strict=False) for row in op_rows(op, {regime: by}, **more)])  # fmt: skip


def one(waited, copied=None, named=None, **more):
    """A run of `add` in one situation or in two."""
    ratios = {WAITED: waited} if copied is None else {WAITED: waited, ALWAYS: copied}
    return answer_run(op_rows("add", ratios, **more), named=named)


def plus(run, *outcomes):
    return replace(run, outcomes=[*run.outcomes, *outcomes])


def beside(ratios, device, op="add", **more):
    """The rows of a second GPU, without the CPU's."""
    return op_rows(op, ratios, device=device, cpu=False, **more)


def two_backends(first, second, device=WEBGPU, **more):
    rows = [*op_rows("add", first), *beside(second, device.id)]
    return answer_run(rows, devices=(CPU, GPU, device), **more)


def gpus_of_two_kinds():
    """`add` is as fast on both, `copy` is not."""
    slow = dict.fromkeys(ENDS, 3.0)
    rows = [
        *op_rows("add", {WAITED: WINS}), *beside({WAITED: WINS}, "cupy:1"), *op_rows("copy", {WAITED: WINS}),
    ]  # fmt: skip
    return answer_run([*rows, *beside({WAITED: slow}, "cupy:1", "copy")], devices=(CPU, GPU, SECOND))


def dtypes(*names, chosen=("add", "copy")):
    return answer_run(
        [row for dtype in names for op in chosen for row in op_rows(op, {WAITED: WINS}, dtype=dtype)]
    )


def wrong_results():
    checked = Check(ok=False, max_error=0.031, limit=1e-4, scale="value")
    wrong = [op_case("gelu", n, regime, "cupy:0") for regime in (WAITED, ALWAYS) for n in ENDS]
    failures = [
        Failure(id=what.id, case=what, reason="wrong-result", detail="wrong", phase="check", check=checked)
        for what in wrong
    ]
    both = [row for op in ("add", "copy") for row in op_rows(op, {WAITED: WINS, ALWAYS: WINS})]
    return answer_run([*both, *(measured(op_case("gelu", n), 1e-3, sessions=5) for n in ENDS), *failures])  # fmt: skip


def three_sizes(*, named=False):
    """The tuned implementation is 1, 2 and 3 times as fast as plain NumPy at three sizes, PyTorch half as fast; other sizes lie
    between them."""
    found = []
    for op, sizes in THREE.items():
        for i, n in enumerate([*sizes, sizes[1] * 3 // 2]):
            found.append(measured(op_case(op, n), 1e-3, sessions=5))
            found.append(measured(op_case(op, n, implementation="tuned"), 1e-3 / (1 + i), sessions=5))
            found.append(measured(op_case(op, n, device="torch:cpu"), 2e-3, sessions=5))
    sizes = {"add": [8192, 2**20]} if named else {}
    kept = [
        row for row in found if not named or (row.case.op == "add" and row.case.params["n"] in sizes["add"])
    ]
    return answer_run(kept, devices=(CPU, TORCH), with_machine=False, named=sizes)


def within(run, budget_s):
    return replace(run, settings=replace(run.settings, budget_s=budget_s))


def interrupted_answer(*outcomes):
    return answer_run(list(outcomes), complete=False, exit_reason="interrupted")


def small_notes():
    halved = [
        RunWarning(code="top-halved", message=f"{op}/float32 is measured up to n = 1024, not 4096: that would take long")
        for op in ("add", "gelu")
    ]  # fmt: skip
    plain = [RunWarning(code="not-compiled", message=f"measured as written: {op} (calls {op})") for op in "ab"]
    left = [RunWarning(code="bad-function", message=f"{op} is left out.", hint="mend it") for op in "ab"]
    return replace(no_gpu_run(), warnings=halved + plain + left)


LOOKED_FOR = [
    RunWarning(code="unavailable", message="cupy was left out: CuPy cannot be imported: No module named 'cupy'", data={"backend": "cupy"}),
    RunWarning(code="software-device", message="wgpu:0 (llvmpipe (LLVM 15.0.6, 256 bits)) is a software adapter, not a GPU: it was left out"),
]  # fmt: skip
CALM = (rising(VECTOR, 30_000), rising(VECTOR, 40_000))
BOTH = [*op_rows("add", {WAITED: WINS}), *op_rows("copy", {WAITED: WINS})]
OUT_OF_TIME = "the time budget was used up before this case"
ABSENT = RunWarning(code="unavailable", message="cupy: the package cupy is not installed")
FEW = measured(case(), 1e-3, factors=(1.0,) * 3, stop="budget", sessions=1)
SPENT = [skipped(case(n=n), "budget", OUT_OF_TIME) for n in (64, 256)]
NO_DRIVER = [
    failed(op_case("add", n, WAITED, "cupy:0"), "worker-crashed", "the driver is too old") for n in ENDS
]
HOST = [skipped(op_case("gelu", 1000, regime, GPU.id), reason="host-stage") for regime in (WAITED, ALWAYS)]
HALF = [replace(row, case=(half := replace(row.case, dtype="float16")), id=half.id) for row in HOST]
HUNG = Failure(
    id=op_case("gelu", 1024).id, case=op_case("gelu", 1024), reason="timeout", detail="no answer within 4 s while in phase first launch",
)  # fmt: skip


def checked(what):
    return replace(measured(what, 1e-3), blocks=[], stops=[])


SCREENS = {
    # Cells
    "both ends of the ladder": lambda: ops(WINS, LOSES, dict.fromkeys(VECTOR[:-1], 9.0), dict.fromkeys(VECTOR[1:], 9.0), dict.fromkeys(VECTOR[:-1], 0.2)),
    "thresholds by their certainty": lambda: ops(SHARP, *CALM, WIDE, WINS),
    "no upper end": lambda: ops({1024: 0.1, 131072: 0.3, 16777216: 1.3}, shifts=APART),
    "gains at many sizes": lambda: ops(*({1024: 0.1, 8192: 0.4, 2**top: 20.0} for top in (20, 19, 18, 17))),
    "crossings that are mixed": lambda: ops(
        {1024: 0.2, 8192: 3.0, 65536: 0.3, 90_000: 5.0, 16777216: 9.0}, {1024: 0.2, 8192: 3.0, 65536: 0.3, 1048576: 5.0, 16777216: 9.0}, WINS),
    "wins and loses by turns": lambda: ops({1024: 0.2, 4096: 4.0, 16384: 0.2}, WINS),
    "a tie at the top": lambda: ops({1024: 0.2, 131072: 0.6, 16777216: 1.0}, WINS),
    "a gain in doubt": lambda: ops({**WINS, 16777216: 1.4}, WINS, shifts=APART),
    "within 15 percent in doubt": lambda: ops({**WINS, 16777216: 1.0}, WINS, shifts=APART),
    # Sentences
    "the CPU of both, copied of one": lambda: answer_run([*op_rows("add", {WAITED: LOSES, ALWAYS: LOSES}), *op_rows("copy", {WAITED: LOSES, ALWAYS: WINS})]),
    "three dtypes of one op": lambda: dtypes("float64", "float32", "float16", chosen=("add",)),
    "four dtypes": lambda: dtypes("bfloat16", "float16", "float32", "float64", chosen=SUITE[:6]),
    "one of three is noisy": lambda: plus(ops(WINS, WINS), *op_rows("tanh", {WAITED: dict.fromkeys(ENDS, 1.3)}, shifts=APART)),
    "half of four": lambda: ops(*(rising(VECTOR, at) for at in (300_000, 5_000, 60_000, 20_000))),
    "half is unknown": lambda: ops(*[{1024: 1.3, 131072: 1.4, 16777216: 9.0}] * 4, shifts=APART),
    **{f"the sentence of {text}": (lambda of=of: ops(*of)) for text, of in {
        "three wins": [WINS] * 3, "losses as far as measured": [LOSES, LOSES, OPEN_LOSS], "none and a tie": [LOSES, LOSES, {**WINS, 16777216: 1.0}],
        "2 of 5": [WINS, WINS, LOSES, LOSES, LOSES], "6 of 7": [WINS] * 6 + [LOSES], "4 of 8": [WINS] * 4 + [LOSES] * 4, "5 of 8": [WINS] * 5 + [LOSES] * 3, "1 of 3, two open": [WINS, OPEN_LOSS, OPEN_LOSS]}.items()},
    # Devices
    "equal GPUs, and others": gpus_of_two_kinds,
    "a backend failed": lambda: answer_run([*NO_DRIVER, *op_rows("add", {WAITED: WINS}, device="wgpu:0")], devices=(CPU, GPU, WEBGPU)),
    "wrong results": wrong_results,
    "a wrong size among right ones": lambda: plus(
        one({1024: 0.2, 131072: 9.0}), measured(op_case("add", 16777216), 1e-3, sessions=5), failed(op_case("add", 16777216, WAITED, "cupy:0"))),
    "failed, and had no room": lambda: plus(
        one(WINS), *(measured(op_case(op, 1024), 1e-3, sessions=5) for op in ("mul", "tanh")),
        failed(op_case("mul", 1024, WAITED, "cupy:0"), "timeout", "no answer within 60 s"), skipped(op_case("tanh", 1024, WAITED, "cupy:0"))),
    "a software adapter": software_run,
    **{f"queued calls pay {less} times earlier": (lambda less=less: answer_run([row for op in SUITE[:4] for row in op_rows(op, {WAITED: rising(VECTOR, 60_000), QUEUED: rising(VECTOR, 60_000 / less)})])) for less in (1.3, 1.9)},
    "each dtype in a situation of its own": lambda: answer_run([row for op in ("add", "mul") for dtype, regime in (("float32", WAITED), ("float16", ALWAYS)) for row in op_rows(op, {regime: WINS}, dtype=dtype)]),
    **{f"queued calls alone have a time, sizes {named}": (lambda named=named: answer_run([*op_rows("add", {QUEUED: WINS}), skipped(op_case("add", 1024, WAITED, "cupy:0"), "budget")], named=named)) for named in (None, {"add": list(WINS)})},
    **{f"a software adapter of {count} ops": (lambda count=count: answer_run([row for op in SUITE[:count] for row in op_rows(op, {WAITED: {4096: 0.5}}, device=SOFTWARE.id)], devices=(CPU, SOFTWARE))) for count in (3, 5)},
    "a software adapter in two dtypes": lambda: answer_run(
        [measured(op_case("add", 4096, regime, device, dtype=dtype), seconds, sessions=5) for dtype, seconds in (("float16", 1e-3), ("float32", 2e-3))
         for regime, device in (("resident", CPU.id), (WAITED, SOFTWARE.id))], devices=(CPU, SOFTWARE), with_machine=False),
    "no GPU, plain alone": lambda: answer_run([row for row in no_gpu_run().outcomes if row.case.implementation == "library"], **ALONE),
    "no GPU, three sizes": three_sizes,
    "no GPU, named sizes": lambda: three_sizes(named=True),
    "no GPU, named sizes of one op": lambda: answer_run(
        [measured(case(op, n, form), seconds / (1 + (form == "tuned")), sessions=5)
         for op in ("add", "matmul") for n, seconds in ((64, 1e-5), (128, 1e-4)) for form in ("library", "tuned")], named={"matmul": [64, 128]}, **ALONE),
    "no GPU, tuned alone": lambda: answer_run([measured(case("add", 1024, "tuned"), 1e-3, sessions=5)], **ALONE),
    "looked for": lambda: replace(no_gpu_run(), warnings=LOOKED_FOR),
    "small notes": small_notes,
    "no GPU was asked for": lambda: answer_run([measured(case("add", 1024), 1e-3, sessions=5)], devices=(CPU,)),
    "overheads alone": lambda: answer_run([measured(case("launch", 1, device="cupy:0"), 6e-6, sessions=5)]),
    # One op, and sizes that were named
    "one op, both": lambda: one(rising(VECTOR, 30_000), rising(VECTOR, 3e6)),
    "one op, far": lambda: one(WIDE, LOSES),
    "one op, every size measured": lambda: one({4096: 9.0, 65536: 9.0}, OPEN_LOSS),
    "one op, copied equal": lambda: one(rising(VECTOR, 30_000), {1024: 0.1, 16777216: 1.0}),
    **{f"named, {text}": (lambda by=by: one(by, named={"add": list(by)})) for text, by in {
        "equal": {1024: 1.02}, "CPU at both": {1024: 0.2, 2048: 0.5}, "GPU at three": {1024: 2.0, 2048: 3.0, 4096: 4.0}}.items()},
    "named, two ops at two sizes": lambda: answer_run(
        [row for op in ("add", "gelu") for row in op_rows(op, {WAITED: {1024: 0.5, 2048: 2.0}})], named={"add": [1024, 2048], "gelu": [1024, 2048]}),
    "named, not reached": lambda: answer_run(
        [*op_rows("add", {WAITED: {4096: 2.0}}), *op_rows("gelu", {WAITED: {4096: 2.0}}), *(skipped(op_case("gelu", n), reason="budget") for n in (1024, 2048))],
        named={"add": [4096], "gelu": [1024, 2048, 4096]}),
    "on the host in any case, in two dtypes": lambda: answer_run(
        [*BOTH, *(measured(op_case("gelu", 1000, dtype=dtype), 2e-3) for dtype in ("float16", "float32")), *HOST, *HALF]),
    "on the host in any case": lambda: answer_run([*BOTH, measured(op_case("gelu", 1000), 2e-3), *HOST]),
    # Ends
    "the budget ends first": lambda: within(answer_run([]), 2.0),
    "interrupted at once": lambda: within(interrupted_answer(), 60.0),
    "interrupted": lambda: interrupted_answer(*BOTH, planned(op_case("tanh", 1024)), planned(op_case("tanh", 1024, WAITED, "cupy:0"))),
    **{f"no time for {count} ops": (lambda count=count: answer_run([*BOTH, *(skipped(op_case(op, 1024), reason="budget") for op in SUITE[3 : 3 + count])]))
       for count in (5, 6)},
    "a hang in a small budget": lambda: within(answer_run([HUNG, skipped(op_case("gelu", 64), reason="budget")]), 2.0),
    # Nothing to compare
    "the GPU is not installed": lambda: run_of([measured(case(), 1e-3), skipped(case(device="cupy:0"), "unavailable", "cupy is not installed.", "get it")]),
    "no CPU beside the GPU": lambda: run_of([measured(case(device="cupy:0"), 1e-3)]),
    "GPUs alone": lambda: run_of([
        *(measured(case(n=n, device=name), n * 1e-6) for n in (64, 256) for name in ("cupy:0", "wgpu:0")), measured(case(op="add", device="cupy:0"), 1e-6)]),
    "the GPU failed": lambda: run_of([failed(case(device="cupy:0"))]),
    "too few samples and no time": lambda: run_of([FEW, *SPENT], exit_reason="budget", warnings=[ABSENT]),
    "interrupted before the first": lambda: run_of([planned(case())], complete=False, exit_reason="interrupted", warnings=[ABSENT]),
    "a backend is absent": lambda: run_of([], warnings=[ABSENT]),
    "checked": lambda: run_of([checked(case()), checked(case(device="cupy:0"))]),
    "checked, interrupted": lambda: replace(run_of([checked(case()), planned(case(n=64))], complete=False, exit_reason="interrupted"), argv=["run", "--check-only"]),
}  # fmt: skip
# The same with every device in a row of its own.
BY_DEVICE = {
    "two backends by device": lambda: two_backends({WAITED: WINS, ALWAYS: LOSES}, {WAITED: dict.fromkeys(ENDS, 5.0), ALWAYS: LOSES}),
}  # fmt: skip
