"""Where the time of a GPU case goes: parts that add up to the whole, with a signed residual."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from gpubench.analysis.labels import workers
from gpubench.analysis.samples import device_time, main_blocks, used_sessions
from gpubench.curves.stats import median
from gpubench.result.run import Measurement, Parts, Run


class Anatomy(msgspec.Struct, frozen=True, kw_only=True):
    """Where the wall time of one `transfer-always` launch goes.

    The parts and `residual_s` add up to `whole_s`; a negative residual is overlap, `residual_share` is signed.
    `kernel_derived` says that the device has no clock and the kernel's time is single - launch - sync. `mismatch`: the
    parts miss the whole by more than 10 % and more than 20 us; then nothing is predicted from them, and
    `first_result_s` is None.
    """

    alloc_s: float
    upload_s: float
    launch_s: float
    kernel_s: float
    sync_s: float
    download_s: float
    residual_s: float
    residual_share: float
    whole_s: float
    kernel_derived: bool
    mismatch: bool
    single_s: float | None
    compile_s: float | None
    first_launch_s: float | None
    first_result_s: float | None


PARTS = ("alloc_s", "upload_s", "launch_s", "kernel_s", "sync_s", "download_s")


Residents = Mapping[tuple[str, str, str], Measurement]


def residents(run: Run, without: Collection[str] = ()) -> Residents:
    """The cases with resident data by workload, form and device, but for the ids in `without`: their kernel is that of
    the other regimes."""
    return {
        _kernel_key(outcome): outcome
        for outcome in run.outcomes
        if isinstance(outcome, Measurement) and outcome.case.queued and outcome.id not in without
    }


def anatomy(
    run: Run, outcome: Measurement, wall_s: float, cold_s: float | None, beside: Residents
) -> Anatomy | None:
    """The anatomy of a `transfer-always` case; None for other regimes and when a part was not measured.

    Where the parts miss the whole, nothing is predicted from them.
    """
    if outcome.case.regime != "transfer-always":
        return None
    resident = beside.get(_kernel_key(outcome))
    parts = _counted(run, outcome) or (_counted(run, resident) if resident else [])
    times = {name: _typical(getattr(part, name) for part in parts) for name in (*_LISTED, "single_s")}
    result_s = _typical(part.result_s for part in parts)
    kernel_s = cold_s
    if kernel_s is None and resident is not None:
        kernel_s = device_time(main_blocks(run, resident), "cold")
    derived = kernel_s is None
    if kernel_s is None:
        kernel_s = _derived_kernel(times)
    if result_s is not None and kernel_s is not None:
        # That step waits for the kernel before it fetches, so it is no shorter: alone, on caches that were flushed, a
        # kernel may take longer than in the call.
        kernel_s = min(kernel_s, result_s)
        times["download_s"] = max(0.0, result_s - kernel_s - (times["sync_s"] or 0.0))
    listed = {name: times[name] for name in _LISTED}
    if kernel_s is None or any(value is None for value in listed.values()):
        return None
    known = {name: value for name, value in listed.items() if value is not None}
    open_s = _typical([worker.open_s] for worker in workers(run, outcome.case.device_id) if worker.open_s)
    compile_s = _typical([part.compile_s] for part in parts if part.compile_s is not None)
    first_s = _typical([part.first_launch_s] for part in parts if part.first_launch_s is not None)
    once = [open_s, compile_s, first_s, known["alloc_s"], known["upload_s"], known["download_s"]]
    residual_s = wall_s - sum(known.values()) - kernel_s
    mismatch = abs(residual_s / wall_s) > 0.10 and abs(residual_s) > 20e-6
    paid = [value for value in once if value is not None]
    return Anatomy(
        **known, kernel_s=kernel_s, residual_s=residual_s, residual_share=residual_s / wall_s, whole_s=wall_s,
        kernel_derived=derived, mismatch=mismatch, single_s=times["single_s"], compile_s=compile_s,
        first_launch_s=first_s, first_result_s=None if mismatch or len(paid) < len(once) else sum(paid),
    )  # fmt: skip


_LISTED = tuple(name for name in PARTS if name != "kernel_s")


def _derived_kernel(times: dict[str, float | None]) -> float | None:
    """Without a device clock: kernel = single - launch - sync, at least 0."""
    single, launch, sync = times["single_s"], times["launch_s"], times["sync_s"]
    if single is None or launch is None or sync is None:
        return None
    return max(0.0, single - launch - sync)


def single_s(run: Run, outcome: Measurement) -> float | None:
    """One launch and its wait: the typical one of a session, the middle one of them; None if it was not timed."""
    return _typical(part.single_s for part in _counted(run, outcome))


def _counted(run: Run, outcome: Measurement) -> list[Parts]:
    allowed = used_sessions(run)
    return [part for part in outcome.parts if allowed is None or part.session in allowed]


def _typical(samples_by_session: Iterable[list[float] | list[float | None]]) -> float | None:
    """Median over sessions of the session medians; None when no session has a sample."""
    medians = []
    for samples in samples_by_session:
        values = [value for value in samples if value is not None]
        if values:
            medians.append(median(values))
    return median(medians) if medians else None


def _kernel_key(outcome: Measurement) -> tuple[str, str, str]:
    case = outcome.case
    return (case.workload, case.form_id, case.device_id)
