"""A wgpu device times the candidates of a kernel once, takes the fastest and remembers it."""

import json
from unittest.mock import Mock

import msgspec
import pytest

from gpubench import kernels
from gpubench.backends import wgpu as wgpu_backend
from gpubench.backends.shared.choices import FILE_NAME
from gpubench.backends.wgpu.programs import WgpuLaunch
from gpubench.base.errors import DeviceOutOfMemory, Unsupported
from gpubench.measure.worker.workspace import Workspace, gate
from gpubench.result.case import Case
from gpubench.result.store.cache import SealedFiles

pytestmark = pytest.mark.vulkan

OP = kernels.load("matmul")
PARAMS = {"n": 48, "m": 40, "k": 36}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBENCH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def opened(folder):
    """Open the first device; `tuning` does as if it were a GPU."""
    sessions = []

    def start(tuning: bool = True, **options) -> wgpu_backend.WgpuSession:
        device = next(d for d in wgpu_backend.BACKEND.devices() if d.kind in ("software", "gpu"))
        sessions.append(wgpu_backend.BACKEND.open(device.id, **options))
        if tuning:
            sessions[-1].tunes = True
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


def case_of(session, op=OP, params=PARAMS, variant: str | None = None) -> Case:
    device_id = session.device.id
    return Case(op.name, op.group, params, "float32", "tuned", "resident-queued", device_id, variant=variant)


def names(session, op=OP) -> list[str]:
    return [candidate.name for candidate in session.programs.candidates(op, case_of(session, op))]


def scripted(session, costs: dict) -> list[str]:
    """Trials take what `costs` says (1 ms otherwise); returns the names of those that were tried, as they are."""
    tried: list[str] = []

    def trial(op, case, candidate, inputs, output):
        tried.append(candidate.name)
        cost = costs.get(candidate.name, 1e-3)
        if isinstance(cost, Exception):
            raise cost
        return WgpuLaunch([], None, None, candidate.name)

    session.programs.trial = trial
    session.time = lambda launch, repeat=1, *, cold=False: costs.get(launch.kernel_name, 1e-3) * repeat
    return tried


def measured(session, tmp_path, phases: list[str] | None = None):
    """The whole gate: tuned, compiled, launched and compared in full. Raises if the result is wrong."""
    workspace = Workspace(session, OP, case_of(session), 1, "random", tmp_path)
    return gate(workspace, case_of(session), (phases if phases is not None else []).append)


def test_without_a_clock_of_the_device_the_host_times_the_trials(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(wgpu_backend, "TUNING_S", 0.2)
    session = opened()
    session.stamps, session.build = None, lambda cases: None
    launch = measured(session, tmp_path).launch
    assert session.programs.has_choice(case_of(session))
    assert (launch.kernel_name in names(session), len(launch.kernel_hash)) == (True, 12)


def test_the_trials_choose_and_the_result_is_right(opened, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(wgpu_backend, "TUNING_S", 1.0)  # of compiling, on a software adapter
    session, phases = opened(), []
    checked = measured(session, tmp_path, phases)
    assert checked.check.ok
    assert checked.launch.kernel_name in names(session)
    assert phases == ["upload", "autotune", "compile", "first launch", "check"]
    (known,) = json.loads(SealedFiles(folder).read(FILE_NAME, "")).values()
    assert [choice["name"] for choice in known.values()] == [checked.launch.kernel_name]


def test_the_fastest_is_compiled_named_and_found_again_by_the_next_session(opened, tmp_path):
    session = opened()
    wanted = names(session)[2]
    tried = scripted(session, {wanted: 5e-4})
    checked = measured(session, tmp_path)
    assert checked.check.ok
    assert (checked.launch.kernel_name, sorted(tried)) == (wanted, sorted(names(session)))
    tried.clear()
    assert measured(session, tmp_path).launch.kernel_name == wanted
    assert tried == []  # once a session

    other = opened()
    tried = scripted(other, {})
    again = measured(other, tmp_path)
    assert tried == []  # and once a device
    assert again.launch.kernel_name == wanted
    assert again.launch.kernel_hash == checked.launch.kernel_hash


def test_the_vendors_exceptions_count_as_ours(opened, tmp_path):
    import wgpu

    session = opened()
    first, second, third, *_ = names(session)
    scripted(session, {second: wgpu.GPUOutOfMemoryError("scratch"), third: wgpu.GPUValidationError("a group")})
    assert measured(session, tmp_path).launch.kernel_name == first


@pytest.mark.parametrize("autotune", [True, False])
def test_a_software_adapter_and_who_wants_no_trials_take_the_default(opened, folder, tmp_path, autotune):
    session = opened(tuning=False, autotune=autotune)
    assert session.device.kind == "software" or not autotune
    tried = scripted(session, {})
    assert (measured(session, tmp_path).launch.kernel_name, tried) == (names(session)[0], [])
    assert not folder.exists()


def test_a_kernel_without_a_choice_has_no_name_and_no_trial(opened, folder):
    session = opened()
    for op, params, variant in ((kernels.load("add"), {"n": 100}, None), (OP, PARAMS, "tiled")):
        case = case_of(session, op, params, variant)
        inputs = [session.allocate(x.shape(params), "float32") for x in op.inputs]
        session.tune(op, case, inputs)
        launch = session.compile(op, case, inputs, session.allocate(op.output.shape(params), "float32"))
        assert launch.kernel_name is None
    assert not folder.exists()


def test_a_choice_that_this_size_is_too_large_for_gives_way_to_the_default(opened, tmp_path):
    """Sizes of a half octave share a choice, and a limit may lie between two of them."""
    session = opened()
    default, other, *_ = session.programs.candidates(OP, case_of(session))
    refuse = Mock(side_effect=Unsupported("more groups than the device has", reason="limit"))
    refused = msgspec.structs.replace(other, build=refuse)
    session.programs.candidates = lambda op, case: (default, refused)
    session.programs.choose(case_of(session), other.name)
    session.tunes = False
    checked = measured(session, tmp_path)
    assert checked.check.ok
    assert checked.launch.kernel_name == default.name


def test_idle_buffers_make_room_for_scratch(opened):
    """Odd rows are copied into longer ones: that memory is taken when the kernel is built."""
    session = opened(tuning=False)
    params = {"n": 5, "m": 5, "k": 5}
    idle = session.allocate((999,), "float32")
    session.free(idle)
    inputs = [session.allocate(x.shape(params), "float32") for x in OP.inputs]
    output = session.allocate(OP.output.shape(params), "float32")
    create = session.programs.scratch_buffer

    def scarce(size: int):
        if session.pool.idle_bytes():
            raise DeviceOutOfMemory("full")
        return create(size)

    session.programs.scratch_buffer = scarce
    launch = session.compile(OP, case_of(session, params=params), inputs, output)
    session.run(launch)
    session.sync()
    assert session.pool.idle_bytes() == 0
    session.programs.scratch_buffer = Mock(side_effect=DeviceOutOfMemory("full for good"))
    with pytest.raises(DeviceOutOfMemory, match="for good"):
        session.compile(OP, case_of(session, params={"n": 6, "m": 7, "k": 5}), inputs, output)
