"""The run of the golden files: every kind of outcome once, times of a plausible machine."""

import functools

from msgspec.structs import replace

from gpubench.report import analyse_runs, draw_report
from gpubench.report.layout import RenderOptions
from gpubench.result.case import WAITED
from gpubench.result.machine import Cache, Fact, Platform
from gpubench.result.run import Environment, Git, Outcome, Parts, RunWarning
from tests.unit.report.builders import (
    CPU,
    GPU,
    HYBRID,
    SOFTWARE,
    assigned,
    case,
    failed,
    in_stages,
    measured,
    planned,
    run_of,
    skipped,
    split,
)

NOISY = (0.8, 0.9, 1.0, 1.1, 1.0, 0.95, 1.1, 1.0, 0.9, 1.1)


def full_run():
    """CPU, GPU and software adapter; a win, a loss, a break-even, a skip, a failure, a noisy case."""
    found: list[Outcome] = []
    for n in (64, 256, 1024, 4096):
        cpu_s, gpu_s = 3e-6 + 2 * n**3 / 8e11, 12e-6 + 2 * n**3 / 4.5e13
        copy_s = 16 * n * n / 1e10
        found += [measured(case(n=n), cpu_s), measured(case(n=n, implementation="tuned"), cpu_s * 0.97)]
        found += _gpu_cases(n, gpu_s, copy_s)
    for n in (65536, 1048576, 16777216):
        found += [
            measured(case("relu", n), n * 8 / 2e10), measured(case("relu", n, "tuned"), n * 8 / 3e10, factors=NOISY),
            measured(case("relu", n, device="cupy:0"), 8e-6 + n * 8 / 2e12),
            measured(case("relu", n, regime="transfer-always", device="cupy:0"), 3e-5 + n * 8 / 1e10),
            measured(case("relu", n, "tuned", device="wgpu:0"), 2.5e-4 + n * 8 / 1e10),
            skipped(case("relu", n, "tuned", device="cupy:0"), "no-implementation", "relu has no tuned kernel here"),
        ]  # fmt: skip
    found += _peak_cases() + _overhead_cases()
    found.append(failed(case("add", 1000, "tuned", device="cupy:0")))
    found.append(skipped(case("add", 2**36, device="cupy:0")))
    return run_of(found, devices=(CPU, GPU, SOFTWARE))


def _gpu_cases(n, gpu_s, copy_s):
    parts = Parts(
        session=0, compile_s=0.3, first_launch_s=2e-3, alloc_s=[2e-6], upload_s=[copy_s * 0.7], launch_s=[4e-6],
        sync_s=[5e-6], single_s=[gpu_s + 9e-6], download_s=[copy_s * 0.3],
    )  # fmt: skip
    always_s = gpu_s + copy_s + 12e-6
    return [
        measured(case(n=n, device="cupy:0"), gpu_s, cold_s=gpu_s * 0.9),
        measured(case(n=n, regime="resident-waited", device="cupy:0"), gpu_s + 9e-6),
        measured(case(n=n, regime="transfer-once", device="cupy:0"), gpu_s + copy_s / 10),
        measured(case(n=n, regime="transfer-always", device="cupy:0"), always_s, parts=parts),
    ]


def _peak_cases():
    """A copy that is out of cache, its vendor's implementation, and a rung of the ladder of matmul."""
    n = 2**26
    rung = case(n=4096, implementation="tuned", device="cupy:0", variant="naive")
    return [
        measured(case("copy", n, "tuned"), 0.05), measured(case("copy", n, device="cupy:0"), 7e-4, hot_s=6.8e-4),
        measured(case("copy", n, "tuned", device="cupy:0"), 3e-4, hot_s=2.9e-4),
        measured(case("copy", 2**20, "tuned", device="cupy:0"), 2e-5, hot_s=1e-6), measured(rung, 0.03, hot_s=0.029),
    ]  # fmt: skip


def _overhead_cases():
    found: list[Outcome] = [
        measured(case("open", 1, device="cupy:0"), 0.4), measured(case("launch", 1, device="cupy:0"), 6e-6),
        measured(case("sync", 1, device="cupy:0"), 5e-6), measured(case("add", 2**20, device="cupy:0"), 2e-5),
        measured(case("allocate", 2**22, "tuned", device="cupy:0"), 6e-7),
        measured(case("allocate", 2**22, device="cupy:0"), 3e-4),
    ]  # fmt: skip
    for n in (2**10, 2**20, 2**24, 2**30):
        for name, rate in (("library", 8e9), ("tuned", 5.5e10)):
            found.append(measured(case("upload", n, name, device="cupy:0"), 1e-5 + n / rate))
    return found


def hybrid_run():
    """Splits that pay, that cannot, that lose for a reason, and one whose device gave up."""
    found: list[Outcome] = []
    for n, regime, cpu_s, gpu_s, both_s, sides in (
        (1024, "resident", 3e-3, 1e-3, 0.78e-3, {"cpu_alone_s": [7.5e-4], "cpu_beside_s": [7.6e-4]}),
        (4096, "resident", 2e-1, 2e-3, 2.1e-3, {}),
        (1024, "transfer-always", 3e-3, 2e-3, 1.99e-3, {"cpu_alone_s": [1e-3], "cpu_beside_s": [1.8e-3]}),
    ):
        if regime == "resident":
            found.append(measured(case(n=n), cpu_s, sessions=6))
        found.append(measured(case(n=n, regime=regime, device="cupy:0"), gpu_s, sessions=6))
        what = case(n=n, implementation="tuned", regime=regime, device="hybrid:cupy:0")
        share = round(cpu_s / (cpu_s + gpu_s), 2)
        found.append(split(what, (cpu_s, gpu_s), both_s, gpu_share=share, sessions=6, sides=sides))
    found.append(
        skipped(case(n=1, implementation="tuned", device="hybrid:cupy:0"), "no-split", "matmul has 1 unit to cut"),
    )  # fmt: skip
    return run_of(found, devices=(CPU, GPU, HYBRID), sessions=6)


def stages_run():
    """A workload in stages: on the CPU, on a GPU whose stages do not add up at the smaller size, and on an adapter that
    waits for each stage."""
    found: list[Outcome] = []
    for n, cpu_s, gpu_s, rest_s in ((64, 4e-5, 5e-6, 6e-5), (4096, 3e-3, 4e-5, 2e-6)):
        stages = {"ffn_in": 0.55, "ffn_out": 0.45}
        for implementation, factor in (("library", 1.3), ("tuned", 1.0)):
            what = measured(case("ffn", n, implementation), cpu_s * factor)
            timed = {name: share * cpu_s for name, share in stages.items()}
            found.append(what if implementation == "library" else in_stages(what, timed, rest_s=1e-6))
        on_gpu = measured(case("ffn", n, "tuned", WAITED, "cupy:0"), gpu_s + 3e-5)
        timed = {name: share * gpu_s for name, share in stages.items()}
        found.append(
            in_stages(on_gpu, timed, launch_s=1e-5, gap_s=4e-6, rest_s=rest_s, stamping_s=6e-6, clock="event")
        )
    adapter = measured(case("ffn", 4096, "tuned", WAITED, "wgpu:0"), 5e-2)
    found.append(in_stages(adapter, {"ffn_in": 3e-2, "ffn_out": 2.2e-2}, launch_s=4e-4, clock="waited"))
    return run_of(found, devices=(CPU, GPU, SOFTWARE))


def assignment_run():
    """A workload on two sides: a mixture pays where its input is on both, and the GPU alone wins where all is copied."""
    found: list[Outcome] = []
    stages = {"hidden": (4.3e-5, 6.6e-6), "logits": (2.4e-6, 6e-6), "probabilities": (1e-6, 6e-6)}
    for regime, copy_s, assignment, seconds in (
        (WAITED, 3e-6, "gcc", 1.7e-5),
        ("transfer-always", 9e-6, "ggg", 2.8e-5),
    ):
        what = case("mlp_forward", 16, "tuned", regime, "hybrid:cupy:0")
        found.append(assigned(what, stages, assignment, seconds, copy_s=copy_s, sessions=6))
    return run_of(found, devices=(CPU, GPU, HYBRID), sessions=6)


def cpu_run():
    """A machine without a GPU; cupy and wgpu say why they are absent."""
    found: list[Outcome] = []
    for n in (65536, 1048576):
        found.append(measured(case("relu", n), n * 8 / 2e10))
        found.append(measured(case("relu", n, "tuned"), n * 8 / 3e10))
    found.append(measured(case(n=1024), 2.7e-3))
    warnings = [
        RunWarning(code="unavailable", severity="info", message="cupy: the package cupy is not installed",
                   hint="pip install 'gpubench-cli[cuda12]'"),
        RunWarning(code="unavailable", severity="info", message="wgpu: no Vulkan adapter was found",
                   hint="install the GPU's Vulkan driver"),
    ]  # fmt: skip
    return run_of(found, devices=(CPU,), warnings=warnings, with_machine=False)


def software_run():
    found: list[Outcome] = []
    for n in (65536, 1048576, 16777216):
        found.append(measured(case("relu", n), n * 8 / 2e10))
        found.append(measured(case("relu", n, "tuned", device="wgpu:0"), 2.5e-4 + n * 8 / 3e10))
        for device in ("wgpu:0", "hybrid:wgpu:0"):
            found.append(measured(case("relu", n, "tuned", "transfer-always", device), 3.5e-4 + n * 8 / 5e9))
    split = replace(SOFTWARE, id="hybrid:wgpu:0", backend="hybrid")
    return run_of(found, devices=(CPU, SOFTWARE, split), with_machine=False)


def interrupted_run():
    """Stopped in the first session: one case measured, one failed, the rest planned."""
    found: list[Outcome] = [measured(case(n=64), 4e-6, sessions=1), failed(case(n=64, device="cupy:0"), "timeout",
                            "no answer within 60 s while sampling")]  # fmt: skip
    found += [planned(case(n=n, device=device)) for n in (256, 1024) for device in ("numpy:0", "cupy:0")]
    return run_of(found, sessions=1, complete=False, exit_reason="interrupted")


def tool_run():
    """Short enough to be read in the formats of other tools, with all that these tell of a machine and a commit."""
    found: list[Outcome] = [
        measured(case(), 4e-3, sessions=2), measured(case(device="cupy:0"), 1e-3, sessions=2, cold_s=9e-4),
        measured(case("open", 1, device="cupy:0"), 0.4, sessions=2), skipped(case("add", 2**36, device="cupy:0")),
    ]  # fmt: skip
    run = run_of(found, sessions=2)
    caches = [
        Cache(level=1, type="data", size_bytes=49152, instances=2),
        Cache(level=3, type="unified", size_bytes=2**25, instances=1),
    ]
    cpu = replace(
        run.machine.cpu, caches=Fact(caches, "ok", "sys"), max_hz=Fact(2_500_000_000, "ok", "sys"),
        governor=Fact("powersave", "ok", "sys"),
    )  # fmt: skip
    platform = Platform(
        os=Fact("linux", "ok", "uname"), arch=Fact("x86_64", "ok", "uname"), kernel=Fact("6.1.0", "ok", "uname")
    )
    return replace(
        run, machine=replace(run.machine, cpu=cpu, platform=platform), settings=replace(run.settings, sample_s=0.002),
        tool={**run.tool, "python": "3.12.3", "implementation": "CPython"},
        environment=Environment(git=Git(commit="0" * 40, branch="main", dirty=False, commit_time="2026-01-02T03:00:00+00:00")),
    )  # fmt: skip


@functools.cache
def analysed(*makes):
    """The analyses of runs by the functions that make them, once for all tests."""
    return analyse_runs([make() for make in makes])


def drawn(*makes, format="plain", **look):
    return draw_report(analysed(*makes), format, RenderOptions(**look))
