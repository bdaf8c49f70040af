"""From a selection and the devices at hand to workloads and their cases, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpubench.model.case import Case, workload_key
from gpubench.model.op import ITEMSIZE, Dtype, Op
from gpubench.model.result import Device, Selection, Settings, Skip

# A plan may fill this share of the memory that is free; the rest is for the system and for temporaries.
MEMORY_SHARE = 0.8


class Target(msgspec.Struct, frozen=True):
    """A device to measure, with the forms its backend has."""

    device: Device
    forms: tuple[str, ...]


class Workload(msgspec.Struct, frozen=True):
    """Op, size and dtype with its cases on all devices: what is measured side by side, interleaved.

    Without `device_clock` (a size that is only searched) the device's own clock is left alone.
    """

    op: Op
    params: dict[str, int]
    dtype: Dtype
    cases: tuple[Case, ...]
    skips: tuple[Skip, ...] = ()
    device_clock: bool = True

    @property
    def key(self) -> str:
        """`matmul/n=1024/float32`."""
        return workload_key(self.op.name, self.params, self.dtype)

    @property
    def n(self) -> int:
        """The size."""
        return self.params["n"]


class Scope(msgspec.Struct, frozen=True):
    """Where and what: devices, the selection, the host memory that is free, and the cases to keep."""

    targets: tuple[Target, ...]
    selection: Selection
    host_bytes: int | None
    keep: Callable[[Case], bool] | None = None


def workload(op: Op, n: int, dtype: Dtype, scope: Scope) -> Workload:
    """All cases of one op, size and dtype. What cannot be measured becomes a Skip with its reason."""
    params = {"n": n}
    cases: list[Case] = []
    skips: list[Skip] = []
    for target in scope.targets:
        for case in _cases(op, params, dtype, target, scope.selection):
            if scope.keep is not None and not scope.keep(case):
                continue
            skip = _refusal(op, case, target.device, scope.host_bytes)
            if skip is None:
                cases.append(case)
            else:
                skips.append(skip)
    return Workload(op, params, dtype, tuple(cases), tuple(skips))


def _cases(op: Op, params: dict[str, int], dtype: Dtype, target: Target, selection: Selection) -> list[Case]:
    device = target.device
    found = []
    for form in target.forms:
        kernels = op.tuned.get(device.backend, ())
        if form not in selection.forms or (form == "tuned" and kernels and kernels[0].library):
            continue  # a tuned kernel that is the library call is measured once, as library
        for regime in selection.regimes if device.kind != "cpu" else ["resident"]:
            fields = {
                "op": op.name, "group": op.group, "params": params, "dtype": dtype, "form": form,
                "regime": regime, "device_id": device.id,
                "calls": selection.calls if regime == "transfer-once" else None,
            }  # fmt: skip
            found.append(msgspec.convert(fields, Case))
    return found


def _refusal(op: Op, case: Case, device: Device, host_bytes: int | None) -> Skip | None:
    if case.dtype not in op.dtypes:
        return _skip(case, "no-dtype", f"{op.name} is declared for {', '.join(op.dtypes)}")
    if case.form == "tuned" and not op.tuned.get(case.backend):
        return _skip(case, "no-implementation", f"{op.name} has no tuned kernel for {case.backend}")
    operands = op.bytes(case.params, case.dtype)
    # Inputs and output, and their float64 copies, the reference and its scale while checking.
    on_host = operands + 3 * operands * 8 // ITEMSIZE[case.dtype]
    if host_bytes is not None and on_host > MEMORY_SHARE * host_bytes:
        return _too_big(case, on_host, host_bytes, "host memory")
    # transfer-always takes a second set of buffers beside the resident one.
    on_device = 2 * operands
    if device.usable_bytes is not None and on_device > MEMORY_SHARE * device.usable_bytes:
        return _too_big(case, on_device, device.usable_bytes, f"memory of {device.id}")
    return None


def _too_big(case: Case, needed: int, available: int, what: str) -> Skip:
    detail = f"needs about {needed} bytes, more than {MEMORY_SHARE:.0%} of the {available} bytes of {what}"
    return _skip(case, "out-of-memory", detail, hint="choose smaller --sizes")


def _skip(case: Case, reason: str, detail: str, hint: str | None = None) -> Skip:
    return Skip(id=case.id, case=case, reason=reason, detail=detail, hint=hint)


def expand(ops: Mapping[str, Op], scope: Scope) -> list[Workload]:
    """The workloads of the sizes that were given, op by op from small to large."""
    return [
        workload(op, n, dtype, scope)
        for name, op in ops.items()
        for dtype in scope.selection.dtypes
        for n in scope.selection.sizes.get(name, [])
    ]


def estimate_seconds(workloads: Sequence[Workload], settings: Settings) -> float:
    """A rough upper bound of what sampling takes: every case runs to its time limit in every session."""
    per_case = settings.max_time_s + 2 * settings.warmup_s
    return sum(len(w.cases) for w in workloads) * per_case * settings.sessions
