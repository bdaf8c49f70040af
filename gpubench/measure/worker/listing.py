"""Child side: what a backend lists, and errors of a backend as replies."""

from __future__ import annotations

import contextlib
import re
import sys
from importlib import metadata
from typing import get_args

import gpubench.backends
from gpubench.backends.contract import ListsCpus
from gpubench.base.errors import BackendError, BackendUnavailable
from gpubench.base.messages import Reason
from gpubench.kernels.contract.kernel import Kernel
from gpubench.measure import protocol
from gpubench.result.run import Device


def list_devices(request: protocol.ListDevices) -> protocol.Devices:
    """Return the devices of a backend, or why there are none. Raises BackendError for a device that is not its own."""
    backend = gpubench.backends.load(request.backend)
    devices, refused = list[Device](), None
    try:
        sooner = backend if request.host_only and isinstance(backend, ListsCpus) else None
        devices = backend.devices() if sooner is None else sooner.host_devices()
    except BackendUnavailable as error:
        refused = refusal_of(request.id, error)
    for device in devices:
        if device.backend != request.backend or not re.fullmatch(rf"{request.backend}:\S+", device.id):
            raise BackendError(
                f"the backend {request.backend} lists {device.id!r} of {device.backend!r} as a device of its own",
                hint=f"a device of it has an id that begins with {request.backend}: and holds no blank",
            )
    default = backend.default_devices
    # Of a composed device the other one's backend has the clock.
    scripted = [
        d.id for d in devices if gpubench.backends.load(gpubench.backends.names_of(d.id)[-1]).scripted_time
    ]
    return protocol.Devices(
        id=request.id, devices=devices, forms=list(backend.forms), library_version=_version(request.backend),
        kernels={op: [_facts(kernel) for kernel in found] for op, found in backend.kernels.items()},
        default_devices=None if default is None else list(default), yields_to=list(backend.yields_to),
        scripted=scripted, refused=refused,
    )  # fmt: skip


def refusal_of(number: int, error: BackendError) -> protocol.Refused:
    reason, detail = name_reason(error)
    return protocol.Refused(id=number, reason=reason, detail=detail, hint=error.hint)


def name_reason(error: BackendError) -> tuple[Reason, str]:
    """The reason and the detail of a case that `error` ends. A word of another package's own is no reason of the
    catalogue: the detail says it, and the reason is that of the error's class."""
    if error.reason in get_args(Reason):
        return error.reason, error.detail
    known = next(
        vars(kind)["reason"] for kind in type(error).__mro__ if vars(kind).get("reason") in get_args(Reason)
    )
    return known, f"{error.reason}: {error.detail}"


def _facts(kernel: Kernel) -> protocol.KernelFacts:
    return protocol.KernelFacts(
        language=kernel.language, variant=kernel.variant, library=kernel.library, dtypes=kernel.dtypes
    )


def _version(backend: str) -> str | None:
    """The version of the library; of one that listing its devices has not imported, what is installed."""
    version = getattr(sys.modules.get(backend), "__version__", None)
    if version is None and backend in gpubench.backends.built_in():
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(backend)
    return None if version is None else str(version)
