"""Hand-built runs: each case is given its time, so that every answer is known."""

import itertools

from msgspec.structs import replace

from gpubench.result.case import QUEUED, RESIDENT, Case
from gpubench.result.machine import Cpu, Fact, Gpu, GpuMemory, Machine, Memory
from gpubench.result.run import (
    AssignmentTimes,
    Blas,
    Block,
    Check,
    Device,
    DeviceClock,
    Failure,
    Fingerprint,
    Fingerprints,
    Measurement,
    Outcome,
    Parts,
    Planned,
    Run,
    Selection,
    SessionRecord,
    Settings,
    Skip,
    StageTimes,
    Stop,
    WorkerRecord,
)

NETWORK = dict.fromkeys(("ffn", "mlp_forward", "embedding", "conv2d"), "network")
GROUPS = {"matmul": "matrix", "relu": "activation", "add": "vector"} | NETWORK
GROUPS |= dict.fromkeys(("open", "launch", "sync", "allocate", "upload", "download"), "overhead")
# Ten samples around 1: the median is 1, the quartiles lie 0.9 % apart.
QUIET = (0.99, 1.01, 0.995, 1.005, 1.0, 1.0, 0.998, 1.002, 0.996, 1.004)
CPU = Device(id="numpy:0", backend="numpy", kind="cpu", name="Test CPU", api="host")
TORCH = replace(CPU, id="torch:cpu", backend="torch")
GPU = Device(
    id="cupy:0", backend="cupy", kind="gpu", name="Test GPU", api="cuda", driver="570.1",
    memory_bytes=16 * 2**30, usable_bytes=16 * 2**30, clock=DeviceClock(kind="event", step_s=5e-7),
)  # fmt: skip
HYBRID = Device(
    id="hybrid:cupy:0", backend="hybrid", kind="hybrid", name="CPU + Test GPU", api="cuda",
    memory_bytes=16 * 2**30, usable_bytes=16 * 2**30,
)  # fmt: skip
SOFTWARE = Device(
    id="wgpu:0", backend="wgpu", kind="software", name="llvmpipe (LLVM 15)", api="vulkan",
    clock=DeviceClock(kind="pass-timestamp", step_s=1e-9),
)  # fmt: skip


def case(
    op = "matmul", n = 1024, implementation = "library", regime = "resident",
    device = "numpy:0", dtype = "float32", variant = None,
):  # fmt: skip
    """`resident` on a GPU stands for `resident-queued`."""
    calls = 10 if regime == "transfer-once" else None
    group = GROUPS.get(op, "vector")
    if regime == RESIDENT and device.startswith(("cupy", "wgpu", "hybrid")) and group != "overhead":
        regime = QUEUED
    return Case(op, group, {"n": n}, dtype, implementation, regime, device, calls, variant)  # type: ignore[arg-type]


def regime_of(calls):
    """The id of a call's regime: calls that share a copy; None: on data that stays, queued."""
    return QUEUED if calls is None else "transfer-always" if calls == 1 else f"transfer-once-{calls}"


def measured(
    what, seconds, *, sessions = 3, factors = QUIET, repeat = 10_000, cold_s = None, hot_s = None, parts = None,
    discarded = None, stop = "precision", shifts = (),
):  # fmt: skip
    """A measurement whose samples are `seconds * factors` in each session, after one slow warm-up sample; `shifts`: a
    further factor of each session."""
    flops, size = work(what)
    shifts = shifts or [1.0] * sessions
    return Measurement(
        id=what.id, case=what, flops=flops, bytes=size, op_hash="0" * 12,
        check=Check(ok=True, max_error=0.0, limit=1e-6, scale="terms"),
        blocks=[
            Block(
                session=i, round=0, position=0, repeat=repeat, warmup=1, discarded=discarded or {},
                wall_s=[seconds * shift * factor for factor in (7.0, *factors)],
                device_cold_s=None if cold_s is None else [cold_s] * 3,
                device_hot_s=None if hot_s is None else [hot_s] * 3,
            )
            for i, shift in zip(range(sessions), shifts, strict=True)
        ],
        parts=[] if parts is None else [parts], stops=[Stop(session=i, reason=stop) for i in range(sessions)],  # type: ignore[arg-type]
    )  # fmt: skip


def in_stages(
    found, seconds, *, launch_s = 0.0, gap_s = 0.0, rest_s = 0.0, stamping_s = 0.0, recording_s = None,
    clock = "host", alone = 0.8,
):  # fmt: skip
    """With the stages of each of its sessions: between them `gap_s`, beside them an empty launch and `rest_s`; `stamping_s` is
    in the stages and not in the whole. `recording_s`: up to the first submit, and in all, which changes no other time."""
    span_s = sum(seconds.values()) + gap_s
    times = [
        StageTimes(
            session=session, clock=clock, stages=list(seconds),
            chain_s=[[value * factor for factor in QUIET] for value in seconds.values()],
            alone_s=[[value * alone * factor for factor in QUIET] for value in seconds.values()],
            span_s=[span_s * factor for factor in QUIET], empty_s=[launch_s * factor for factor in QUIET],
            wall_s=[(span_s - gap_s + launch_s + rest_s - stamping_s) * factor for factor in QUIET],
            stamping_s=[stamping_s * factor for factor in QUIET] if stamping_s else [],
            first_recording_s=[recording_s[0] * factor for factor in QUIET] if recording_s else [],
            recording_s=[recording_s[1] * factor for factor in QUIET] if recording_s else [],
        )
        for session in sorted({block.session for block in found.blocks})
    ]  # fmt: skip
    return replace(found, stages=times)


def split(what, alone, seconds, *, gpu_share=0.75, sessions=3, factors=QUIET, sides=None, sweep=True):
    """A case split over CPU and GPU: swept in session 0 (`alone`: the CPU's and the GPU's seconds), then `seconds`."""
    found = measured(what, seconds, sessions=sessions, factors=factors)
    blocks = [replace(block, gpu_share=gpu_share) for block in found.blocks]
    swept = [
        Block(
            session=0, round=place, position=0, phase="sweep", gpu_share=share, repeat=10, warmup=1,
            wall_s=[9.0, *(max(share * alone[1], (1 - share) * alone[0]) * factor for factor in QUIET[:5])],
        )
        for place, share in enumerate((0.0, 1.0, gpu_share, gpu_share - 0.05, gpu_share + 0.05))
        if share <= 1
    ]  # fmt: skip
    parts = [Parts(session=i, stage_s=sides or {}) for i in range(sessions)]
    return replace(found, blocks=[*(swept if sweep else []), *blocks], parts=parts)


def assigned(
    what, stages, assignment, seconds, *, copy_s = 1e-6, beside_s = None, free_s = None, sessions = 3,
    factors = QUIET,
):  # fmt: skip
    """A workload on two sides, `stages` with the seconds of each: chosen in session 0, then `seconds`. A change of sides
    and the way home from the GPU cost a copy."""

    def predicted_s(one):
        spent = sum(sides[letter == "g"] for sides, letter in zip(stages.values(), one, strict=True))
        return spent + copy_s * sum(a != b for a, b in itertools.pairwise(f"{one}c"))

    both = {"cpu": "c" * len(stages), "gpu": "g" * len(stages)}
    predicted = {one: predicted_s(one) for one in (*both.values(), assignment)}
    beside = beside_s or {side: predicted[one] for side, one in both.items()}
    found = measured(what, seconds, sessions=sessions, factors=factors)
    blocks = [replace(block, assignment=assignment, beside_s=beside) for block in found.blocks]
    swept = [
        Block(
            session=0, round=place, position=0, phase="sweep", assignment=one, beside_s=beside, repeat=10, warmup=1,
            wall_s=[9.0, *([predicted[one]] * 5)],
        )
        for place, one in enumerate(predicted)
    ]  # fmt: skip
    assignment_times = AssignmentTimes(
        session=0, clock="event", stages=list(stages), cpu_s=[[cpu_s] * 3 for cpu_s, _ in stages.values()],
        gpu_s=[[gpu_s] * 3 for _, gpu_s in stages.values()], up_s={}, down_s={}, enter_s=[copy_s], predicted_s=predicted,
        cpu_whole_s=[sum(cpu_s for cpu_s, _ in stages.values())],
        gpu_whole_s=[copy_s + sum(gpu_s for _, gpu_s in stages.values())],
        free_s=free_s or sum(min(sides) for sides in stages.values()),
    )  # fmt: skip
    return replace(found, blocks=[*swept, *blocks], assignment_times=[assignment_times])


def work(what):
    """FLOP and bytes of one launch: two inputs and an output, but for a copy and for overheads."""
    n = what.params["n"]
    if what.group == "overhead":
        return 0, n if what.op in ("upload", "download") else 0
    if what.op == "copy":
        return 0, 2 * 4 * n
    return (2 * n**3, 3 * 4 * n * n) if what.op == "matmul" else (n, 3 * 4 * n)


def skipped(what, reason="out-of-memory", detail="needs 9 GiB of 4 GiB", hint=None):
    return Skip(id=what.id, case=what, reason=reason, detail=detail, hint=hint)


def failed(what, reason="wrong-result", detail="largest error 0.5 at [3, 7]"):
    return Failure(id=what.id, case=what, reason=reason, detail=detail, phase="check")


def planned(what):
    return Planned(id=what.id, case=what)


def machine():
    """Two of two CPUs and one GPU of 16 GiB."""
    gpu = Gpu(
        id="GPU-1", name=Fact("Test GPU", "ok", "nvml"),
        memory=GpuMemory(usable_bytes=Fact(16 * 2**30, "ok", "nvml")),
    )  # fmt: skip
    cpu = Cpu(
        model=Fact("Test CPU", "ok", "proc"), available=Fact(2, "ok", "proc"), logical=Fact(2, "ok", "proc")
    )
    return Machine(cpu=cpu, memory=Memory(total_bytes=Fact(8 * 2**30, "ok", "proc")), gpus=[gpu])


def run_of(
    outcomes, *, devices = (CPU, GPU), sessions = 5, complete = True, exit_reason = "ok", threads = 2,
    warnings = (), with_machine = True, settings = None,
):  # fmt: skip
    blas = Blas(library="openblas", version="0.3.29", kernel="Haswell")
    workers = [
        WorkerRecord(
            device_id=device.id, threads=threads if device.kind == "cpu" else None,
            blas=blas if device.kind == "cpu" else None, clock_step_s=1e-9, open_s=0.2, overhead_s=[5e-6] * 5,
        )
        for device in devices
    ]  # fmt: skip
    empty = Fingerprint(hash="0" * 12, fields={})
    return Run(
        id="00000000-0000-4000-8000-000000000001", started_at="2026-01-02T03:04:05Z", complete=complete,
        exit_reason=exit_reason, tool={"gpubench": "0.1.0", "numpy": "2.1.0"},
        selection=Selection(ops=["matmul"]), settings=settings or Settings(sessions=sessions),
        machine=machine() if with_machine else Machine(),
        fingerprint=Fingerprints(machine=empty, device=empty, software=empty), devices=list(devices),
        sessions=[
            SessionRecord(index=i, started_at="2026-01-02T03:04:05Z", workers=workers) for i in range(sessions)
        ],
        outcomes=list(outcomes), warnings=list(warnings),
    )  # fmt: skip


def curve(ratios, *, regime="resident", cpu_s=1e-3, device="cupy:0", factors=QUIET, sessions=5, **of):
    """A CPU case and a GPU case of each size, the GPU `ratio` times faster, in so many sessions that no prior counts."""
    found: list[Outcome] = []
    for n, ratio in ratios.items():
        found.append(measured(case(n=n, **of), cpu_s, sessions=sessions))
        what = case(n=n, regime=regime, device=device, **of)
        found.append(measured(what, cpu_s / ratio, factors=factors, sessions=sessions))
    return found
