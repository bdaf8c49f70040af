"""A device group at work: an op on random operands, beside the plain expression."""

from typing import Any

import numpy as np

from gpubench import kernels
from gpubench.backends.contract import Session
from gpubench.result.case import Case


def computed(session: Session, case: Case, launches: int = 1) -> tuple[Any, Any]:
    """What the ranks make of their shares, into an output that was full of NaN, and what one computes of the whole."""
    op, params = kernels.load(case.op), dict(case.params)
    assert session.supports(op, case) is None
    rng = np.random.default_rng(1)
    arrays = [rng.random(operand.shape(params), dtype=np.float32) for operand in op.inputs]
    buffers = [session.allocate(array.shape, "float32") for array in arrays]
    output = session.allocate(op.output.shape(params), "float32")
    for buffer, array in zip(buffers, arrays, strict=True):
        session.upload(buffer, array)
    launch = session.compile(op, case, buffers, output)
    session.upload(output, np.full(op.output.shape(params), np.nan, np.float32))
    session.run(launch, launches)
    session.sync()
    found = np.empty(op.output.shape(params), np.float32)
    session.download(launch.output, found)
    for buffer in (*buffers, output):
        session.free(buffer)
    return found, np.asarray(op.at(params).expr(np, *arrays))
