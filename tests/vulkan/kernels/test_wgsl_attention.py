"""A token's attention over a cache in WGSL against float64."""

from __future__ import annotations

import pytest

from gpubench import kernels
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import WAITED, Case
from tests.shapes import CACHES

pytestmark = pytest.mark.vulkan


@pytest.mark.parametrize("params", CACHES, ids=str)
@pytest.mark.parametrize("name", ["attention_cached", "attention_append"])
def test_a_token_over_a_cache(session, tmp_path, name, params):
    op = kernels.load(name)
    for dtype in ("float32", "float16"):
        if dtype == "float16" and not session.limits.float16:
            continue  # an adapter without halves
        case = Case(name, op.group, params, dtype, "tuned", WAITED, session.device.id)
        workspace = Workspace(session, op, case, 1, "random", tmp_path)
        gate(workspace, case, lambda phase: None)
        workspace.release()
