"""One session of a run: its workers, what its devices reached and showed, and who else was there."""

from __future__ import annotations

from gpubench.model.record import Record

# Of the CPUs' time: what others may take without disturbing (measurement.md section 2).
BUSY_SHARE = 0.05


class Blas(Record, frozen=True, kw_only=True):
    """The BLAS that NumPy calls, as threadpoolctl names it."""

    library: str
    version: str | None = None
    kernel: str | None = None


class WorkerRecord(Record, frozen=True, kw_only=True):
    """What one worker process was, and what its device costs without any work."""

    device_id: str
    threads: int | None = None
    blas: Blas | None = None
    env: dict[str, str] = {}
    clock_step_s: float = 0.0
    clock_cost_s: float = 0.0
    open_s: float | None = None
    overhead_s: list[float] = []


class Ceiling(Record, frozen=True, kw_only=True):
    """What one device reached in one session with a kernel that does nothing else: memory's rate, or that of arithmetic
    in one dtype; where there is none, `reason` says why. `own`: not of other backends, which reach tensor cores.
    """

    device_id: str
    dtype: str | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    own: bool = False
    reason: str | None = None


class Telemetry(Record, frozen=True, kw_only=True):
    """Clocks, temperature, power and throttle reasons of one device, sampled beside the blocks."""

    device_id: str
    t_s: list[float] = []
    clock_hz: list[float | None] = []
    memory_clock_hz: list[float | None] = []
    temperature_c: list[float | None] = []
    power_w: list[float | None] = []
    throttle: list[list[str]] = []


class SessionRecord(Record, frozen=True, kw_only=True):
    """One set of fresh worker processes. A superseded session is kept and not used.

    `repeats` is the index of the session in whose place it was measured, because others disturbed that one.
    """

    index: int
    started_at: str
    superseded: bool = False
    repeats: int | None = None
    foreign_cpu_share: float | None = None
    steal_share: float | None = None
    workers: list[WorkerRecord] = []
    ceilings: list[Ceiling] = []
    telemetry: list[Telemetry] = []

    @property
    def turn(self) -> int:
        """The session of the plan that it stands for: a session and its repeats are one turn."""
        return self.index if self.repeats is None else self.repeats

    @property
    def disturbance(self) -> float:
        """The larger of the shares that other processes and the hypervisor took; what is unknown disturbs nothing."""
        return max(self.foreign_cpu_share or 0.0, self.steal_share or 0.0)

    @property
    def contended(self) -> bool:
        """Whether others took so much of the CPUs that the session's figures may have suffered."""
        return self.disturbance > BUSY_SHARE
