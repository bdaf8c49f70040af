"""What an open wgpu device allows."""

from __future__ import annotations

from typing import Any

from gpubench.model.kernel import Limits


def limits_of(device: Any, *, software: bool) -> Limits:
    """The limits and features of an open wgpu device, as kernels ask for them; `software`: it is a rasteriser."""
    limits, features = device.limits, device.features
    return Limits(
        max_buffer_bytes=limits["max-buffer-size"],
        max_binding_bytes=limits["max-storage-buffer-binding-size"],
        max_workgroup_bytes=limits["max-compute-workgroup-storage-size"],
        max_workgroup_threads=min(
            limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]
        ),
        max_groups_per_dimension=limits["max-compute-workgroups-per-dimension"],
        subgroups="subgroup" in features,
        float16="shader-f16" in features,
        float64="shader-f64" in features,
        software=software,
        binding_alignment=max(16, limits["min-storage-buffer-offset-alignment"]),
    )
