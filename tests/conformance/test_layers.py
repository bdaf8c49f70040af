"""The ops of networks, which are measured on request, in every implementation and dtype of the backends that are here: one row,
odd numbers of rows, and other widths than the usual ones."""

import itertools

import pytest

from gpubench import backends, kernels
from gpubench.measure.worker.workspace import gate, kind_of, refusal
from gpubench.result.case import IMPLEMENTATIONS, Case

OPS = [kernels.load(name) for group in ("layers", "network") for name in kernels.groups().get(group, ())]
# One image of conv2d: its reference in float64 takes a tenth of a second.
MOST_FLOPS = 8e7
BACKENDS = [
    "numpy", pytest.param("torch", marks=pytest.mark.torch), pytest.param("wgpu", marks=pytest.mark.vulkan),
]  # fmt: skip


def shapes(op):
    """The usual shape, and the combinations of small ones that the op has: of more than four three."""
    tokens = (11,) if op.stages else (33, 11)
    options = itertools.product(*(tokens if name == "tokens" else (3, 12) for name in op.options))
    combined = [{"n": 33, **dict(zip(op.options, chosen, strict=True))} for chosen in options]
    usual, small = (
        [params for params in every if op.fits(params) is None and op.flops(params) <= MOST_FLOPS]
        for every in ([{"n": 1}], combined)
    )
    if op.name.startswith(("linear_", "norm_linear_")):  # other epilogues, of single elements and of vectors
        small = small[2:]
    return usual + (small if len(small) <= 4 else small[:: len(small) // 2][:2] + small[-1:])


def tried(op):
    """All shapes in float32; in the other dtypes, each of which takes a kernel of its own, the last one: few rows in every
    dtype are tried where their kernels are. A workload has one, and a short one another in halves: its stages are ops."""
    every = shapes(op)
    if op.stages:
        yield from ((every[-1], "float32"), *[(every[0], "float16")] * (len(op.stages) < 10))
        return
    for dtype in op.dtypes:
        yield from ((params, dtype) for params in (every if dtype == "float32" else every[-1:]))


@pytest.fixture(scope="module", params=BACKENDS)
def session(request):
    backend = backends.load(request.param)
    device = next(device for device in backend.devices() if device.kind != "gpu")
    opened = backend.open(device.id, autotune=False)
    yield opened
    opened.close()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_shape_in_every_implementation_and_dtype(session, op, tmp_path):
    device = session.device
    checked = set()
    for (params, dtype), implementation in itertools.product(tried(op), IMPLEMENTATIONS):
        case = Case(op.name, op.group, params, dtype, implementation, device.resident_regime, device.id)
        refused = refusal(session, op, case)
        if refused is not None:
            known = ("no-dtype", "no-implementation", *(("host-stage",) if op.host is not None else ()))
            assert refused.reason in known, f"{case.id}: {refused.detail}"
            continue
        workspace = kind_of(op)(session, op, case, 1, "random", tmp_path)
        gate(workspace, case, lambda phase: None)
        workspace.release()
        checked.add((dtype, implementation))
    implementations = {*backends.load(device.backend).implementations}
    if op.host is not None:
        implementations = {"library"} if device.backend == "numpy" else set()
    assert {implementation for dtype, implementation in checked if dtype == "float32"} == implementations
