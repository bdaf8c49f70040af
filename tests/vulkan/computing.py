"""A WGSL program run on a device over sentinels, and its result held against float64."""

import numpy as np

from gpubench.backends.shared.host import random_inputs
from gpubench.backends.shared.reference import sentinels
from gpubench.backends.wgpu.programs import WgpuLaunch
from tests.judging import compare

PAST = 77  # what lies behind the result, and has to stay


def computed(session, program, inputs, shape, dtype, out="out"):
    """Run a program twice (a launch is idempotent); the inputs, by name, and what follows the result must stay."""
    count, extra = int(np.prod(shape)), 64 // np.dtype(dtype).itemsize
    got = sentinels((count + extra,), dtype)
    got[count:] = PAST
    arrays = {**inputs, out: got}
    buffers = {name: session.allocate(x.shape, dtype) for name, x in arrays.items()}
    for name, x in arrays.items():
        session.upload(buffers[name], x)
    session.run(WgpuLaunch(session.programs.steps(program, buffers), buffers[out], None), 2)
    session.download(buffers[out], got)
    for name, x in inputs.items():
        back = np.empty_like(x)
        session.download(buffers[name], back)
        assert back.tobytes() == x.tobytes()
    for buffer in buffers.values():
        session.free(buffer)
    assert got[count:].tolist() == [PAST] * extra, "written past the end"
    return got[:count].reshape(shape)


def of_op(session, op, program, params, dtype, inputs):
    named = {operand.name: x for operand, x in zip(op.inputs, inputs, strict=True)}
    return computed(session, program, named, op.output.shape(params), dtype, op.output.name)


def check_result(op, params, dtype, inputs, got):
    wide = [x.astype(np.float64) for x in inputs]
    turned = {name: params[name] for name in op.takes if name in params}
    with np.errstate(all="ignore"):  # a divisor may be 0
        scale = np.asarray(op.tolerance.scale(np, *wide, **turned)) if op.tolerance.scale else None
        want = np.asarray((op.reference or op.expr)(np, *wide, **turned))
    found = compare(op, dtype, got, want, scale)
    assert found.ok, (op.name, params, dtype, found)


def check_program(session, op, program, params, dtype, inputs=None):
    """Run a program of an op on inputs, drawn unless given, and compare everything."""
    inputs = random_inputs(op, params, dtype, seed=11) if inputs is None else inputs
    check_result(op, params, dtype, inputs, of_op(session, op, program, params, dtype, inputs))
