"""A host of four GPUs as reports show it: ops shared out, all GPUs at once, links, and GPUs that a search left out."""

import json
from functools import cache, partial

from msgspec.structs import replace

from gpubench.report import analyse_runs, draw_report
from gpubench.report.layout import RenderOptions
from gpubench.result.case import Case, group_id
from gpubench.result.machine import Fact, Link, LinkPath
from gpubench.result.run import Device, IdenticalGpuTimes, Parts, RunWarning, Telemetry, TogetherTimes
from tests.unit.report.builders import GPU, machine, measured, run_of

WAITED, ALWAYS = "resident-waited", "transfer-always"
GPUS = [replace(GPU, id=f"cupy:{number}", name="H200", gpu_id=f"GPU-{number}") for number in range(4)]
PAIR, BACK, OTHERS, ALL = (0, 1), (1, 0), (2, 3), (0, 1, 2, 3)
GROUP = Device(id="", backend="group", kind="gpu", api="cuda", name="2 x H200")
GROUPS = [
    replace(GROUP, id=group_id("cupy", ranks), name=f"{len(ranks)} x H200", gpu_ids=[f"GPU-{r}" for r in ranks])
    for ranks in (PAIR, BACK, OTHERS, ALL)
]
MIB = 1 << 20


def on(device, op, n, seconds, *, regime=WAITED, ranks_s=(), factors=None):
    what = Case(op, "network" if op == "mlp_sgd" else "matrix", {"n": n}, "float32", "tuned", regime, device)
    outcome = measured(what, seconds, **({"factors": factors} if factors else {}))
    sides = {f"rank{number}_s": [value] * 3 for number, value in enumerate(ranks_s)}
    return replace(outcome, parts=[Parts(session=0, stage_s=sides)]) if sides else outcome


def shared_out(op, sizes, *, regime=WAITED, ranks=PAIR, **more):
    """By size the seconds of the first GPU, and those of the device group; the second GPU takes 1 % longer."""
    for n, (single_s, group_s) in sizes.items():
        for gpu in (0, 1):
            yield on(f"cupy:{gpu}", op, n, single_s * (1 + gpu / 100), regime=regime)
        yield on(group_id("cupy", ranks), op, n, group_s, regime=regime, **more)


def exchange(op, n, rate, ranks=PAIR):
    params, device = {"n": n, "ranks": len(ranks)}, group_id("cupy", ranks)
    what = Case(op, "collective", params, "float32", "library", "resident", device)
    return replace(measured(what, n / rate), bytes=n, kernel="nccl 2.28.9")


def at_once(op, n, launch_s, late=1.0):
    """Two GPUs alone and together; the second one gets slower by `late` in the second half."""
    for gpu in (0, 1):
        for phase, gpus, work_s in (("alone", 1, 3.0), ("together", 2, 10.0)):
            ends, now = [], 0.0
            while now < work_s:
                slow = late if gpu and phase == "together" and now >= work_s / 2 else 1.0
                ends.append(now := now + 10 * launch_s * slow)
            yield TogetherTimes(
                session=0, case_id=f"{op}/n={n}/float32/tuned/resident-queued@cupy:{gpu}", device_id=f"cupy:{gpu}",
                phase=phase, gpus=gpus, repeat=10, at_s=0.0, begin_s=0.0, ends_s=ends,
            )  # fmt: skip


@cache
def gains_run():
    ranks_s = (2e-4, 2.2e-4)
    outcomes = [
        *shared_out("matmul", {512: (2e-5, 3e-5), 1024: (1e-4, 7e-5), 2048: (8e-4, 4.4e-4)}, ranks_s=ranks_s),
        *shared_out("matmul", {512: (4e-5, 6e-5), 1024: (3e-4, 4e-4)}, regime=ALWAYS),
        *shared_out("softmax", {1024: (1e-4, 6e-5), 2048: (4e-4, 2.1e-4)}, ranks=OTHERS),
        *shared_out("softmax", {1024: (1e-4, 9.5e-5), 2048: (4e-4, 2.1e-4)}, regime=ALWAYS),
        *shared_out("mlp_sgd", {8: (1e-4, 1.5e-4), 16: (1.9e-4, 1.2e-4)}),
        *shared_out("sum", {64: (1e-6, 2e-6)}),
    ]
    ticks = [float(second) for second in range(12)]
    hot = Telemetry(
        device_id="cupy:1", t_s=ticks, clock_hz=[1.98e9 - 2e7 * t for t in ticks], power_w=[690.0] * 12,
        temperature_c=[70.0] * 12, throttle=[["sw_power_cap"] if t > 5 else [] for t in ticks],
        pcie_generation=[5] * 12, pcie_width=[16] * 12,
    )  # fmt: skip
    run = run_of(outcomes, devices=[*GPUS[:2], *GROUPS], sessions=3)
    case_id = "copy/n=1024/float32/tuned/resident-queued@cupy:2"
    lost = TogetherTimes(session=0, case_id=case_id, device_id="cupy:2", reason="lost")
    together = [*at_once("matmul", 8192, 1e-2, 1.25), *at_once("copy", 1024, 2e-2), lost]
    sessions = [replace(run.sessions[0], telemetry=[hot]), *run.sessions[1:]]
    return replace(run, together=together, sessions=sessions)


@cache
def links_run():
    outcomes = [
        *(exchange("p2p", n, 4e11 * n / (n + MIB), ranks) for n in (MIB, 64 * MIB) for ranks in (PAIR, BACK)),
        exchange("p2p", 64 * MIB, 1e11, OTHERS),
        exchange("p2p_both", 64 * MIB, 7e11),
        *(exchange("allreduce", 64 * MIB, rate, ranks) for ranks, rate in ((PAIR, 3e11), (ALL, 2e11))),
        exchange("alltoall", 64 * MIB, 2e11, ALL),
        exchange("broadcast", 64 * MIB, 2.5e11, ALL),
    ]
    known = {
        "kind": "nvlink", "lanes": 18, "via": "switch", "max_bytes_per_s": 478 * 10**9, "common": "numa-node",
    }  # fmt: skip
    path = LinkPath(to="GPU-1", **{name: Fact(value, "ok", "nvml") for name, value in known.items()})
    gpu = replace(machine().gpus[0], id="GPU-0", link=Link(paths=[path]))
    return replace(run_of(outcomes, devices=GROUPS), machine=replace(machine(), gpus=[gpu]))


@cache
def search_run():
    """A search measured the first of five GPUs; one of the others is slow, one was lost and one is used by others."""
    times = [
        IdenticalGpuTimes(
            case_id=f"{op}/n=1/float32/tuned/resident@cupy:{gpu}", device_id=f"cupy:{gpu}", gpu_id=f"GPU-{gpu}",
            blocks_s=[] if gpu == 5 else [1e-3 * (1 + gpu / 1000) * (1.2 if (gpu, op) == (2, "copy") else 1.0)] * 8,
            reason="lost: off the bus" if gpu == 5 else None,
        )
        for op in ("matmul", "copy") for gpu in range(7)
    ]  # fmt: skip
    users = RunWarning(code="other-gpu-users", message="", severity="warning", data={"devices": "cupy:6"})
    return replace(run_of([], devices=GPUS[:1], warnings=[users]), identical_gpus=times)


def draw(make, format):
    sections = ("answer", "scaling", "collectives")
    return draw_report(analyse_runs([make()]), format, RenderOptions(sections=sections))


def rows(make):
    """What other programs read of several GPUs, a row a line."""
    document = json.loads(draw(make, "json"))
    lists = {**document["scaling"], **{name: document[name] for name in ("collectives", "identical_gpus")}}
    return "".join(f"{name} {json.dumps(row)}\n" for name, rows in lists.items() for row in rows)


# Golden texts, by file.
DRAWN = {"txt": partial(draw, format="plain"), "md": partial(draw, format="markdown"), "jsonl": rows}
TEXTS = {
    f"{name}.{suffix}": partial(text, make)
    for name, make in (("gains", gains_run), ("links", links_run), ("search", search_run))
    for suffix, text in DRAWN.items()
}
