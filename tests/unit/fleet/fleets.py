"""Synthetic fleets: nodes of identical GPUs, each as fast as it is told."""

import random
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gpubench.analysis.machine import group_by_machine
from gpubench.fleet.nodes import Fleet, Node, gather, node_of, refuse_twice
from gpubench.result.machine import NOT_PROBED, Driver, Fact, Gpu, GpuMemory, Power
from gpubench.result.run import Environment, Fingerprints, Run, SessionRecord, fingerprint
from tests.unit.report.builders import CPU, GPU, case, failed, machine, measured, run_of

CASES = (("matmul", 8192), ("copy", 2**26), ("upload", 2**28), ("download", 2**28))


def gpu(uuid: str, bdf: str = "0000:01:00.0") -> Gpu:
    return Gpu(
        id=uuid, name=Fact("Test GPU", "ok", "nvml"), uuid=Fact(uuid, "ok", "nvml"), bdf=Fact(bdf, "ok", "nvml"),
        memory=GpuMemory(usable_bytes=Fact(16 * 2**30, "ok", "nvml")),
        driver=Driver(name=Fact("nvidia", "ok", "nvml"), version=Fact("570.1", "ok", "nvml")),
        power=Power(limit_w=Fact(700.0, "ok", "nvml")),
    )  # fmt: skip


def node_run(
    name, uuids, *, slow=(), sessions=2, number=1, broken=(), spread=lambda: 1.0, labelled=True, complete=True,
    known=(), ops=CASES,
) -> Run:  # fmt: skip
    """A run of the node `name`, whose GPUs are cupy:0 and so on in the order of `uuids`.

    `slow`: by what factor a GPU takes longer; `broken`: GPUs on which every case fails; `known`: GPUs that the machine
    has beside those that ran.
    """
    devices, outcomes = [CPU], []
    for i, uuid in enumerate(uuids):
        devices.append(replace(GPU, id=f"cupy:{i}", gpu_id=uuid))
        for op, n in ops:
            what = case(op, n, device=f"cupy:{i}")
            seconds = 1e-3 * dict(slow).get(uuid, 1.0) * spread()
            outcomes.append(failed(what) if uuid in broken else measured(what, seconds, sessions=sessions))
    found = run_of(outcomes, devices=devices, sessions=sessions, complete=complete)
    prints = Fingerprints(
        machine=fingerprint({"cpu": "Test CPU"}), device=fingerprint({one.id: one.name for one in devices}),
        software=fingerprint({"numpy": "2.1.0"}),
    )  # fmt: skip
    gpus = [gpu(uuid, f"0000:{i + 1:02x}:00.0") for i, uuid in enumerate([*uuids, *known])]
    day = f"2026-01-{number:02}"
    return replace(
        found, id=f"{name}-{number}", started_at=f"{day}T00:00:00Z", fingerprint=prints,
        machine=replace(machine(), gpus=gpus),
        environment=Environment(context={"node": name} if labelled else {}),
        sessions=[SessionRecord(index=i, started_at=f"{day}T00:{i:02}:00Z") for i in range(sessions)],
    )  # fmt: skip


def anonymous(run: Run, moved: str = "") -> Run:
    """The run on GPUs that tell no UUID, at addresses that begin with `moved`."""
    gpus = [replace(one, id=f"{moved}{one.id}", uuid=NOT_PROBED) for one in run.machine.gpus]
    devices = [replace(device, gpu_id=device.gpu_id and f"{moved}{device.gpu_id}") for device in run.devices]
    return replace(run, machine=replace(run.machine, gpus=gpus), devices=devices)


def fleet_runs(nodes: int, gpus: int = 8, *, seed: int = 1, cv: float = 0.008, **changes: object) -> list[Run]:
    """Healthy nodes, whose GPUs differ by the share `cv`."""
    draw = random.Random(seed)
    changes["spread"] = lambda: 1 + cv * draw.gauss(0, 1)
    uuids = [[f"U{i:04}-{j}" for j in range(gpus)] for i in range(nodes)]
    return [node_run(f"gpu-{i:04}", own, **changes) for i, own in enumerate(uuids)]


def fleet_of(runs: Sequence[Run], failed: Sequence[Node] = (), **more: Any) -> Fleet:
    """The fleet that `merge` makes of files with these runs."""
    refuse_twice(runs)
    groups = group_by_machine(runs)
    return gather([node_of([runs[place] for place in group]) for group in groups], failed, **more)
