"""The place of the largest number of each row in WGSL: the lowest one of several."""

from __future__ import annotations

import numpy as np
import pytest

from gpubench import kernels
from gpubench.result.case import WAITED, Case
from tests.shapes import ROWS_OF_CLASSES

pytestmark = pytest.mark.vulkan


@pytest.mark.parametrize(("n", "classes"), ROWS_OF_CLASSES)
def test_ties_go_to_the_lowest_place(session, n, classes):
    """Few values, so that each row has several largest ones; and rows of minus infinity alone."""
    op = kernels.load("argmax")
    case = Case("argmax", op.group, {"n": n, "classes": classes}, "float32", "tuned", WAITED, session.device.id)
    z = np.random.default_rng(n).integers(-3, 3, (n, classes)).astype(np.float32)
    z[::3] = -np.inf
    given, found = session.allocate(z.shape, "float32"), session.allocate((n,), "int32")
    got = np.full(n, -1, np.int32)
    session.upload(given, z)
    session.run(session.compile(op, case, [given], found))
    session.download(found, got)
    np.testing.assert_array_equal(got, np.argmax(z, axis=-1))
    for buffer in (given, found):
        session.free(buffer)
