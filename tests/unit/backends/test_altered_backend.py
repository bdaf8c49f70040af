"""The device that does more than it is asked in some sessions (benchmarks/false_alarms.py rests on it)."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.report.builders import GPU, case

PATH = Path(__file__).parents[3] / "benchmarks" / "altered_backend.py"


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("altered_backend", PATH)
    altered = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(altered)
    return altered


@pytest.mark.parametrize(("share", "n", "extra"), [(0.1, 64, 5), (0.2, 64, 11), (0.2, 128, 0), (0.0, 64, 0)])
def test_the_share_of_launches_of_a_size_is_made_twice(module, share, n, extra):
    counts, compiled, repeats = [], [], (1, 7, 40, 9)
    inner = SimpleNamespace(
        device=GPU,
        compile=lambda op, case, *_: compiled.append(case.device_id) or object(),
        run=lambda launch, repeat: counts.append(repeat),
    )
    session = module.AlteredSession(inner, GPU, share, frozenset({64}))
    launch = session.compile(None, case(n=n, device="altered:0"), [], None)
    for repeat in repeats:
        session.run(launch, repeat)
    assert sum(counts) == sum(repeats) + extra
    assert compiled == [GPU.id], "the device knows its kernels by its own name"


def test_sessions_take_their_shares_in_turns(module, tmp_path, monkeypatch):
    monkeypatch.setenv("ALTERED_DEVICE", "fake:cpu")
    monkeypatch.setenv("ALTERED_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("ALTERED_EXTRA", "0.0,0.1")
    monkeypatch.setenv("GPUBENCH_FAKE_SEED", "")  # it is set by opening
    backend = module.AlteredBackend()
    assert [backend.open("altered:0").device.id for _ in range(3)] == ["altered:0"] * 3
    assert (tmp_path / "log").read_text().split() == ["0.0", "0.1", "0.0"]
