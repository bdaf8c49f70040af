"""The peaks of a real wgpu device: correct kernels, plausible rates. A rasteriser has none in a run."""

import pytest

from gpubench.backends.shared import peaks as chains
from gpubench.measure.protocol import PeakRequest
from gpubench.measure.worker import hardware

pytestmark = pytest.mark.vulkan


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_multiply_adds_are_right_and_have_a_rate(session, dtype):
    if dtype == "float64" and not session.limits.float64:
        pytest.skip("this adapter has no double precision")
    wanted = PeakRequest(memory=False, compute=[dtype], cache_bytes=0, memory_bytes=1 << 33, limit_s=20.0)
    (found,) = hardware.measure_peaks(session, wanted)
    assert found.reason is None
    assert 1e8 < found.flops_per_s < 1e13


@pytest.mark.serial  # it compares times
def test_no_compiler_leaves_steps_out(session):
    """Sixteen times the rounds take about sixteen times as long; what is known beforehand would take no time."""

    def seconds(rounds):
        launch = session.multiply_adds("float32", rounds)
        session.run(launch)
        session.sync()
        found = min(
            hardware.launch_seconds(session, launch, 1) for _ in range(48 // rounds)
        )  # as long for both
        session.free(launch.output)
        return found

    assert chains.chain_flops(16) == 16 * chains.chain_flops(1)
    assert seconds(16) > 4 * seconds(1)
