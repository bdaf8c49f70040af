"""Which devices are measured: auto takes what is usable, a name is a promise, software only when asked for."""

import functools

import pytest

from gpubench import backends
from gpubench.base.errors import ExitCode, RequiredUnavailable
from gpubench.measure import protocol, targets
from gpubench.measure.targets import DeviceRequest, Listing, choose, list_devices, with_gpu_memory
from gpubench.result.run import Identity
from tests.raising import raised
from tests.unit.measure import builders

device = functools.partial(builders.device, api="vulkan")
LISTINGS = {
    "numpy": Listing("numpy", (device("numpy:0", "cpu"),), ("library", "tuned"), "2.0"),
    "cupy": Listing("cupy", reason="unavailable", detail="CuPy cannot be imported", hint="install it"),
    "wgpu": Listing("wgpu", (device("wgpu:0"), device("wgpu:1", "software")), ("tuned",), "0.32"),
    "fake": Listing(
        "fake", tuple(device(f"fake:{w}") for w in ("cpu", "gpu", "crash")), ("library",),
        default_devices=("cpu", "gpu"),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    asked = []

    def listings(names, **_):
        asked.append(tuple(names))
        return [LISTINGS[name] for name in names]

    monkeypatch.setattr(targets, "list_devices", listings)
    monkeypatch.setattr(targets.backends, "usual", lambda: ("numpy", "cupy", "wgpu"))
    return asked


def ids(wanted):
    return [target.device.id for target in choose(wanted).targets]


@pytest.mark.parametrize(("wanted", "expected"), [
    (DeviceRequest(), ["numpy:0", "wgpu:0"]), (DeviceRequest(allow_software=True), ["numpy:0", "wgpu:0", "wgpu:1"]),
    (DeviceRequest(required=("numpy", "wgpu")), ["numpy:0", "wgpu:0", "wgpu:1"]),
    (DeviceRequest(optional=("cupy", "numpy")), ["numpy:0"]), (DeviceRequest(devices=("wgpu:1",)), ["wgpu:1"]),
    (DeviceRequest(required=("numpy",), devices=("wgpu:1",)), ["numpy:0", "wgpu:1"]),
    (DeviceRequest(required=("fake",)), ["fake:cpu", "fake:gpu"]),
    (DeviceRequest(devices=("fake:crash",)), ["fake:crash"]),
])  # fmt: skip
def test_choice(wanted, expected):
    assert ids(wanted) == expected


@pytest.mark.parametrize(("wanted", "reported"), [
    (DeviceRequest(required=("cupy",)), "the backend cupy is not available"),
    (DeviceRequest(devices=("cupy:0",)), "there is no device cupy:0"),
    (DeviceRequest(devices=("numpy:3",)), "there is no device numpy:3"),
])  # fmt: skip
def test_what_was_named_and_is_not_there(wanted, reported):
    refused = raised(RequiredUnavailable, choose, wanted)
    assert (refused.exit_code, refused.message) == (ExitCode.UNAVAILABLE, reported)
    assert refused.why == ("numpy has numpy:0" if "numpy" in reported else "CuPy cannot be imported")
    assert refused.hint


def test_only_a_backend_that_is_known_to_have_no_cpu_is_left_out_of_mode_cpu(monkeypatch, listed):
    other = Listing("other", (device("other:0", "cpu"), device("other:1")), ("library",))
    monkeypatch.setitem(LISTINGS, "other", other)
    monkeypatch.setattr(targets.backends, "usual", lambda: ("numpy", "cupy", "wgpu", "other"))
    assert ids(DeviceRequest(mode="cpu")) == ["numpy:0", "other:0"]
    assert listed == [("numpy", "other")]


def test_what_is_left_out_is_told():
    choice = choose(DeviceRequest())
    missing, software = choice.warnings
    assert [missing.code, software.code] == ["unavailable", "software-device"]
    assert {missing.severity, software.severity} == {"info"}
    assert ("CuPy cannot be imported" in missing.message, missing.hint) == (True, "install it")
    assert choice.versions == {"numpy": "2.0", "wgpu": "0.32"}
    assert choose(DeviceRequest(required=("numpy",))).warnings == ()
    assert choose(DeviceRequest(devices=("wgpu:1",))).warnings == (), "no other GPU is software"
    assert [w.code for w in choose(DeviceRequest(allow_software=True)).warnings] == ["unavailable"]


# What CuPy and PyTorch tell of two GPUs; the third has no CuPy.
ONE, TWO = (Identity(uuid=f"aa{i}", pci="0000:09:00.0", vendor_id=0x10DE) for i in range(2))
THIRD = Identity(pci="0000:0a:00.0", vendor_id=0x1002)
CUDA = Listing(
    "cupy", (device("cupy:0", api="cuda", identity=ONE), device("cupy:1", api="cuda", identity=TWO)), ("library",),
)  # fmt: skip
TORCH = Listing(
    "torch", (device("torch:cpu", "cpu"), *(device(f"torch:cuda:{i}", identity=x) for i, x in enumerate((TWO, ONE, THIRD)))),
    ("library",), yields_to=("cupy",),
)  # fmt: skip


@pytest.mark.parametrize(("wanted", "expected"), [
    (DeviceRequest(), ["numpy:0", "cupy:0", "cupy:1", "torch:cpu", "torch:cuda:2"]),
    (DeviceRequest(mode="cpu"), ["numpy:0", "torch:cpu"]),
    (DeviceRequest(yielding=False), ["numpy:0", "cupy:0", "cupy:1", "torch:cpu", "torch:cuda:0", "torch:cuda:1", "torch:cuda:2"]),
    (DeviceRequest(required=("torch",)), ["torch:cpu", "torch:cuda:0", "torch:cuda:1", "torch:cuda:2"]),
    (DeviceRequest(required=("cupy",), devices=("torch:cuda:0",)), ["cupy:0", "cupy:1", "torch:cuda:0"]),
])  # fmt: skip
def test_a_backend_yields_the_gpus_that_another_one_has(monkeypatch, wanted, expected):
    monkeypatch.setitem(LISTINGS, "cupy", CUDA)
    monkeypatch.setitem(LISTINGS, "torch", TORCH)
    monkeypatch.setattr(targets.backends, "usual", lambda: ("numpy", "cupy", "torch"))
    assert ids(wanted) == expected


@pytest.mark.parametrize(("known", "told", "left"), [
    ("0000:09:00.0", "0000:09:00.0", []), ("0000:09:00.0", "0000:0a:00.0", ["torch:cuda:0"]), (None, None, ["torch:cuda:0"]),
])  # fmt: skip
def test_gpus_without_a_uuid_are_the_same_by_their_address(monkeypatch, known, told, left):
    for backend, name, pci, others in (
        ("cupy", "cupy:0", known, ()),
        ("torch", "torch:cuda:0", told, ("cupy",)),
    ):
        gpu = device(name, identity=Identity(pci=pci, vendor_id=0x10DE))
        monkeypatch.setitem(LISTINGS, backend, Listing(backend, (gpu,), ("library",), yields_to=others))
    monkeypatch.setattr(targets.backends, "usual", lambda: ("numpy", "cupy", "torch"))
    assert ids(DeviceRequest()) == ["numpy:0", "cupy:0", *left]


def test_a_search_takes_one_of_identical_gpus_and_says_which_others_it_leaves_out(monkeypatch):
    gpus = tuple(device(f"cupy:{i}", name="Y" if i == 1 else "X") for i in range(4))
    soft = tuple(device(f"wgpu:{i}", "software", name="llvmpipe") for i in range(2))
    monkeypatch.setitem(LISTINGS, "cupy", Listing("cupy", gpus, ("library",)))
    monkeypatch.setitem(LISTINGS, "wgpu", Listing("wgpu", soft, ("tuned",)))
    choice = choose(DeviceRequest(allow_software=True), one_of_each=True)
    assert [t.device.id for t in choice.targets] == ["numpy:0", "cupy:0", "cupy:1", "wgpu:0"]
    assert [[t.device.id for t in group] for group in choice.identical] == [["cupy:0", "cupy:2", "cupy:3"]]
    assert [(w.code, w.message.split(" ")[0]) for w in choice.warnings] == [("budget", "wgpu:1")]
    named = choose(DeviceRequest(devices=("cupy:0", "cupy:2")), one_of_each=True)
    assert ([t.device.id for t in named.targets], named.identical) == (["cupy:0", "cupy:2"], ())


def test_records_for_detection_carry_ids_in_its_spelling(monkeypatch):
    known = Identity(uuid="abc", pci="0000:09:00.0", vendor_id=0x10DE, device_id=0x2335)
    own = (device("cupy:1", api="cuda", identity=known),)
    monkeypatch.setitem(LISTINGS, "cupy", Listing("cupy", own, ("library",), "14"))
    (record,) = targets.records(choose(DeviceRequest(required=("numpy", "cupy"))).listings)
    assert record.items() >= {
        "source": "cuda", "ordinal": 1, "uuid": "GPU-abc", "bdf": "0000:09:00.0", "vendor_id": "10de", "device_id": "2335",
    }.items()  # fmt: skip


def test_backends_on_one_gpu_share_its_memory():
    cuda, vulkan = device("cupy:0", gpu_id="GPU-1", usable_bytes=100), device("wgpu:0", gpu_id="GPU-1")
    alone, cpu = device("cupy:1", gpu_id="GPU-2", usable_bytes=70), device("numpy:0", "cpu")
    found = with_gpu_memory([cuda, vulkan, alone, cpu], {"GPU-1": 90, "GPU-2": None})
    assert [device.usable_bytes for device in found] == [45, 45, 70, None]


@pytest.mark.parametrize(("words", "expected"), [
    (("cupy:*",), ("cupy:0", "cupy:1", "cupy:2")), (("cupy:1-2", "cupy:*"), ("cupy:1", "cupy:2", "cupy:0")),
    (("cupy:0-1", "numpy:0"), ("cupy:0", "cupy:1", "numpy:0")), (("wgpu:*",), ("wgpu:*",)),
    (("group:cupy:0-3",), ("group:cupy:0-3",)), (("cupy:2-1",), ("cupy:2-1",)),
])  # fmt: skip
def test_a_word_may_stand_for_several_devices(words, expected):
    listings = [targets.Listing("cupy", tuple(device(f"cupy:{number}", api="cuda") for number in range(3)))]
    assert targets.expand_ids(targets.DeviceRequest(devices=words), listings).devices == expected


YIELDING, FIRST = next((name, known.yields_to[0]) for name, known in backends.KNOWN.items() if known.yields_to)


@pytest.fixture
def asked(monkeypatch):
    """Which requests the workers got; `gpus` says who has a GPU."""
    found, gpus = [], {}

    class Worker:
        next_id = 1

        def __init__(self, threads):
            pass

        def ask(self, request, deadline_s):
            found.append((request.backend, request.host_only))
            kinds = ["gpu"] if gpus.get(request.backend) and not request.host_only else []
            kinds += ["cpu"] if request.backend == YIELDING else []
            found_here = tuple(device(f"{request.backend}:0", kind) for kind in kinds)
            return protocol.Devices(id=1, listing=protocol.Listing(request.backend, found_here))

        def close(self):
            pass

    monkeypatch.setattr(targets, "Worker", Worker)
    return found, gpus


@pytest.mark.parametrize(("names", "who_has_gpus", "yielding", "requests", "kinds"), [
    # It is asked for its CPUs where another backend has the GPU, and again where nobody has one.
    ([FIRST, YIELDING], [FIRST, YIELDING], True, [(FIRST, False), (YIELDING, True)], [["gpu"], ["cpu"]]),
    ([FIRST, YIELDING], [YIELDING], True, [(FIRST, False), (YIELDING, False), (YIELDING, True)], [[], ["gpu", "cpu"]]),
    # Who is asked for by name or alone is asked for all.
    ([YIELDING], [], True, [(YIELDING, False)], [["cpu"]]),
    ([FIRST, YIELDING], [], False, [(FIRST, False), (YIELDING, False)], [[], ["cpu"]]),
])  # fmt: skip
def test_a_backend_that_yields_is_asked_for_its_cpus(asked, names, who_has_gpus, yielding, requests, kinds):
    found, gpus = asked
    gpus.update(dict.fromkeys(who_has_gpus, True))
    listings = list_devices(names, yielding=yielding)
    assert sorted(found) == sorted(requests)
    assert [[one.kind for one in listing.devices] for listing in listings] == kinds


# ---------------------------------------------------------------------- modes


CPU, CUPY, WGPU = device("numpy:0", "cpu"), device("cupy:0", name="H"), device("wgpu:0", name="H")
ADAPTER = device("wgpu:1", "software")
BOTH = [device(f"hybrid:{gpu}:0", "hybrid") for gpu in ("cupy", "wgpu")]
SLOW = device("hybrid:wgpu:1", "software")


def list_alone(monkeypatch, *devices):
    """Have the backends list these devices and no others."""
    for name in ("numpy", "cupy", "wgpu", "hybrid"):
        own = tuple(device for device in devices if device.backend == name)
        missing = Listing(name, reason="unavailable", detail=f"no {name} here")
        monkeypatch.setitem(LISTINGS, name, Listing(name, own, ("library",)) if own else missing)


@pytest.mark.parametrize(("wanted", "asked", "taken"), [
    (DeviceRequest(), ["numpy", "cupy", "wgpu"], ["numpy:0", "cupy:0", "wgpu:0"]),
    (DeviceRequest(mode="cpu"), ["numpy"], ["numpy:0"]),
    (DeviceRequest(mode="gpu"), ["numpy", "cupy", "wgpu"], ["numpy:0", "cupy:0", "wgpu:0"]),
    (DeviceRequest(mode="hybrid"), ["numpy", "cupy", "wgpu", "hybrid"], ["numpy:0", "cupy:0", "wgpu:0", "hybrid:cupy:0"]),
    (DeviceRequest(required=("hybrid",)), ["hybrid"], ["hybrid:cupy:0", "hybrid:wgpu:0", "hybrid:wgpu:1"]),
    (DeviceRequest(devices=("hybrid:fake:gpu",)), ["hybrid"], ["hybrid:fake:gpu"]),
])  # fmt: skip
def test_a_mode_chooses_the_devices(monkeypatch, listed, wanted, asked, taken):
    list_alone(monkeypatch, CPU, CUPY, WGPU, ADAPTER, *BOTH, SLOW, device("hybrid:fake:gpu", "hybrid"))
    choice = choose(wanted)
    assert [t.device.id for t in choice.targets] == taken
    assert [name for names in listed for name in names] == asked
    assert not any("hybrid" in warning.message for warning in choice.warnings)


def test_what_a_mode_is_about_may_not_fail_to_open(monkeypatch):
    list_alone(monkeypatch, CPU, CUPY, WGPU, *BOTH)
    for mode, ids in (("cpu", set()), ("gpu", {"cupy:0", "wgpu:0"}), ("hybrid", {"hybrid:cupy:0"})):
        wanted = DeviceRequest(mode=mode)
        assert targets.ids_required_by(wanted, choose(wanted)) == ids
    lenient = DeviceRequest(mode="gpu", lenient=True)
    assert targets.ids_required_by(lenient, choose(lenient)) == set()


@pytest.mark.parametrize("mode", ["gpu", "hybrid"])
def test_a_mode_without_its_gpu_is_unavailable_and_says_why(monkeypatch, mode):
    list_alone(monkeypatch, CPU, ADAPTER, SLOW)
    refused = raised(RequiredUnavailable, choose, DeviceRequest(mode=mode))
    assert refused.why == "cupy: no cupy here; a software adapter is no GPU"
    assert choose(DeviceRequest(mode=mode, lenient=True)).targets
    assert choose(DeviceRequest(mode=mode, allow_software=True)).targets
