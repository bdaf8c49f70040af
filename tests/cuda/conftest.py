"""The CUDA device, opened once for the tests of a file."""

import os
from pathlib import Path

import pytest

DEVICE = "cupy:0"
# The checkout first; what the machine has on its own path stays.
SEARCH_PATH = os.pathsep.join(
    filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))
)


@pytest.fixture(scope="module")
def session():
    from gpubench.backends.cupy import BACKEND

    opened = BACKEND.open(DEVICE)
    yield opened
    opened.close()
