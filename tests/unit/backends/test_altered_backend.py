"""The device that does more than it is asked in some sessions: exactly the share, on the cases that are named."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.report.builders import GPU, case

PATH = Path(__file__).parents[3] / "benchmarks" / "altered_backend.py"


@pytest.fixture(scope="module")
def altered():
    spec = importlib.util.spec_from_file_location("altered_backend", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["altered_backend"] = module
    spec.loader.exec_module(module)
    return module


class Inner:
    """A session that counts launches."""

    device = GPU
    limits = "limits"

    def __init__(self):
        self.launches = 0
        self.compiled = []

    def compile(self, op, case, inputs, output):
        self.compiled.append(case.device_id)
        return object()

    def run(self, launch, repeat=1):
        self.launches += repeat


@given(st.sampled_from([0.1, 0.2]), st.lists(st.integers(1, 100), min_size=1, max_size=50))
def test_the_share_of_launches_is_made_twice_over_all_samples(altered, share, repeats):
    inner = Inner()
    session = altered.AlteredSession(inner, GPU, share, frozenset({64}))
    slow = session.compile(None, case(n=64, device="altered:0"), [], None)
    for repeat in repeats:
        session.run(slow, repeat)
    assert 0 <= sum(repeats) * share - (inner.launches - sum(repeats)) <= 1 + 1e-6
    assert inner.compiled == ["cupy:0"], "the device knows its kernels by its own name"


def test_other_sizes_and_unchanged_sessions_are_as_they_were(altered):
    for share, n in ((0.2, 128), (0.0, 64)):
        inner = Inner()
        session = altered.AlteredSession(inner, GPU, share, frozenset({64}))
        session.run(session.compile(None, case(n=n), [], None), 1000)
        assert inner.launches == 1000


def test_sessions_take_their_shares_in_turns(altered, tmp_path, monkeypatch):
    monkeypatch.setenv("ALTERED_DEVICE", "fake:cpu")
    monkeypatch.setenv("ALTERED_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("ALTERED_EXTRA", "0.0,0.1")
    monkeypatch.setenv("GPUBENCH_FAKE_SEED", "")  # it is set by opening
    backend = altered.AlteredBackend()
    assert [device.id for device in backend.devices()] == ["altered:0"]
    for _ in range(3):
        assert backend.open("altered:0").device.id == "altered:0"
    assert (tmp_path / "log").read_text().split() == ["0.0", "0.1", "0.0"]
