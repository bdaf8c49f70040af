"""The suite itself: each promise, broken on purpose by one line, becomes a finding that names it."""

from unittest.mock import Mock

import msgspec
import pytest

from gpubench import kernels
from gpubench.backends.hidden.fake import FakeBackend, FakeSession
from gpubench.base.errors import BackendUnavailable, DeviceOutOfMemory, RequiredUnavailable, Unsupported
from gpubench.measure import conformance


@pytest.fixture(autouse=True)
def no_large_transfers(monkeypatch):
    """Scripted devices have no staging buffers, which a large transfer would have to take turns in."""
    monkeypatch.setattr(conformance, "LARGE_BYTES", (1 << 20) + 12)


class Broken(FakeBackend):
    def __init__(self, method, reassignment):
        self._broken = type("BrokenSession", (FakeSession,), {method: reassignment})

    def open(self, device_id, threads=None, *, autotune=True):
        whole = super().open(device_id)
        whole.__class__ = self._broken
        return whole


def findings(method, reassignment, **options):
    backend = Broken(method, reassignment)
    # Without bfloat16, so that there is a dtype to refuse.
    op = msgspec.structs.replace(kernels.load("add"), dtypes=("float64", "float32", "float16"))
    return conformance.suite(backend, "fake:gpu", [op], conformance.Checks(seeds=(1,), **options)).findings


@pytest.mark.parametrize(("error", "refused", "found"), [
    (BackendUnavailable("another process holds it"), "another process holds it", []),
    (DeviceOutOfMemory("it is full"), None, ["it is full"]),
])  # fmt: skip
def test_a_device_that_cannot_be_opened_leaves_the_next_one_checked(error, refused, found, monkeypatch):
    def opening(self, device_id, threads=None, *, autotune=True, whole=FakeBackend.open):
        if device_id == "fake:unavailable":
            raise error
        return whole(self, device_id)

    monkeypatch.setattr("gpubench.backends.hidden.fake.WORDS", ("unavailable", "gpu"))
    monkeypatch.setattr(FakeBackend, "open", opening)
    checks = conformance.Checks(seeds=(1,), around=False)
    report = conformance.check_backend(FakeBackend(), [kernels.load("add")], checks)
    details = [finding.detail for finding in report.findings]
    assert (details, report.refused.get("fake:unavailable")) == (found, refused)
    assert report.checked


def test_a_backend_that_lists_no_device_ends_the_authors_command_with_its_reason(monkeypatch):
    missing = BackendUnavailable("no driver", hint="install it")
    monkeypatch.setattr(FakeBackend, "devices", Mock(side_effect=missing))
    with pytest.raises(RequiredUnavailable) as caught:
        conformance.main("fake")
    assert (caught.value.why, caught.value.hint) == ("no driver", "install it")


def truncating_download(self, buffer, host):
    host.reshape(-1)[:70_000] = buffer.array.reshape(-1)[:70_000]


shared = {}


def overlapping_allocate(self, shape, dtype):
    return shared.setdefault(self, FakeSession.allocate(self, shape, dtype))


def drifting_run(self, launch, repeat=1):
    FakeSession.run(self, launch, repeat)
    if launch.output.array.size and repeat > 1:
        launch.output.array = launch.output.array + 1


def scribbling_compile(self, op, case, inputs, output):
    launch = FakeSession.compile(self, op, case, inputs, output)
    compute = launch.compute

    def compute_and_scribble():
        result = compute()
        inputs[0].array = inputs[0].array * 0
        return result

    launch.compute = compute_and_scribble
    return launch


def silent_supports(self, op, case):
    return Unsupported("") if case.implementation == "tuned" else FakeSession.supports(self, op, case)


def bold_supports(self, op, case):
    return None if case.implementation == "library" else FakeSession.supports(self, op, case)


def taking(seconds):
    return lambda self, launch, repeat=1, *, cold=False: seconds(repeat)


def leaking_allocate(self, shape, dtype):
    self.taken = getattr(self, "taken", 0) + 1
    if self.taken > 30:
        raise DeviceOutOfMemory("never given back")
    return FakeSession.allocate(self, shape, dtype)


def endless_allocate(self, shape, dtype):
    return FakeSession.allocate(self, tuple(min(extent, 1 << 20) for extent in shape), dtype)


failing_close = Mock(side_effect=OSError("already closed"))
SENTENCE = "a refusal is a BackendError with a reason of the list of messages and a sentence"


@pytest.mark.parametrize(("method", "reassignment", "promise"), [
    ("download", truncating_download, "what comes back is what was sent"), ("allocate", overlapping_allocate, "is right"),
    ("allocate", leaking_allocate, "memory that was freed is used again"), ("run", drifting_run, "a launch is idempotent"),
    ("compile", scribbling_compile, "a launch leaves its inputs alone"),
    ("sync", Mock(side_effect=RuntimeError("nothing to wait for")), "empty launches and syncs return"),
    ("supports", Mock(side_effect=KeyError("add")), "supports answers and does not raise"), ("supports", silent_supports, SENTENCE),
    ("supports", bold_supports, "an undeclared dtype is refused"),
    ("time", taking(lambda repeat: 1e-3), "ten launches take about ten times as long as one"),
    ("time", taking(float), "device time is at most wall time"),
    ("time", taking(lambda repeat: -1e-6), "device time is None or above 0"),
    ("close", failing_close, "close is idempotent and never raises"),
])  # fmt: skip
def test_a_broken_promise_is_found(method, reassignment, promise):
    # What is kept of cases alone is found without transfers, memory and the clock.
    around = method in ("download", "allocate", "sync", "time")
    found = findings(method, reassignment, around=around)
    assert any(promise in finding.what for finding in found), found


def test_more_memory_than_the_device_has():
    found = findings("allocate", endless_allocate, exhaust=True)
    assert "more than a buffer may hold is out of memory" in [finding.what for finding in found]


@pytest.mark.parametrize("name", ["flsh", "use_thread", "device_clock"])
def test_a_misspelt_method_is_found(name):
    (found,) = findings(name, failing_close, around=False)
    assert found.what == "a Session has the methods of the contract alone"
    assert name in found.detail


FOUND = conformance.Finding("close is idempotent", "own:0", "", "it raises")
REFUSED = {"add/n=3/float16": "no-dtype", "add/n=4/float16": "no-dtype", "own:1": "it is in use"}


@pytest.mark.parametrize(
    ("findings", "checked", "code"), [([FOUND], ["a", "b", "a"], 1), ([], ["a"], 0), ([], [], 1)]
)
def test_an_author_reads_what_was_checked_refused_and_found(monkeypatch, capsys, findings, checked, code):
    report = conformance.Report(findings, checked, REFUSED)
    monkeypatch.setattr(conformance, "check_backend", lambda *_: report)
    monkeypatch.setattr(
        conformance.kernels, "find_namesakes", lambda: {"x": Mock(message="the op x", why="it is taken")}
    )
    assert conformance.main("fake") == code
    assert capsys.readouterr().out.splitlines() == [
        "left out the op x: it is taken", *(f"checked {name}" for name in dict.fromkeys(checked)),
        "refused add/float16: no-dtype", "refused own:1: it is in use",
        *["found on own:0: close is idempotent: it raises"] * len(findings), f"{len(findings)} findings in {len(checked)} checks",
    ]  # fmt: skip


def test_an_op_is_checked_on_each_backend_at_sizes_that_take_a_moment(monkeypatch):
    asked = []

    def check(backend, ops, checks):
        asked.append(
            (backend.name, [op.name for op in ops], checks.sizes, checks.seeds, checks.kinds, checks.around)
        )
        if backend.name == "wgpu":
            raise BackendUnavailable("there is no adapter")
        return conformance.Report([FOUND], ["a"], {"b": "no-dtype"})

    monkeypatch.setattr(conformance, "check_backend", check)
    monkeypatch.setattr(conformance.backends, "usual", lambda: ("numpy", "wgpu"))
    report = conformance.check_op(kernels.load("add"))
    assert (report.findings, report.checked, report.refused) == (
        [FOUND],
        ["a"],
        {"b": "no-dtype", "wgpu": "there is no adapter"},
    )
    assert asked == [
        (name, ["add"], conformance.author_sizes, (1,), ("random", "normal"), False)
        for name in ("numpy", "wgpu")
    ]
    monkeypatch.setattr(conformance, "LARGE_BYTES", 3 * 8 * 1000)
    assert [conformance.author_sizes(kernels.load(name)) for name in ("add", "matmul", "softmax")] == [
        [1, 1000],
        [1],
        [1, 1000, 1024],
    ]
    monkeypatch.setattr(conformance, "MOST_FLOPS", 999)
    assert conformance.author_sizes(kernels.load("add")) == [1]
