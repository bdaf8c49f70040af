"""Which records are one GPU, and how GPUs reach each other."""

import itertools
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpubench import detect
from gpubench.detect import merge, picture
from gpubench.detect.facts import parse_record, record_to_json
from gpubench.detect.probes import nvml
from gpubench.result.run import Identity
from tests.detect.recorded import last_answer
from tests.detect.trees import GIB, check, pci
from tests.examples import examples
from tests.held import hold
from tests.nvml import Nvml
from tests.raising import raised

UUIDS = [f"GPU-{n:08x}-0000-0000-0000-0000000000{n:02x}" for n in range(1, 4)]
RECORD = st.fixed_dictionaries(
    {"source": st.sampled_from(["pci-sysfs", "drm", "nvml", "cuda", "opencl", "wgpu:vulkan", "proc-nvidia"])},
    optional={
        "driver": st.sampled_from(["radv", "amdvlk", "zink"]),
        "bdf": st.sampled_from(["0000:01:00.0", "00000000:01:00.0", "0001:01:00.0", "0000:02:00.0"]),
        "uuid": st.sampled_from([*UUIDS, UUIDS[0].upper()]),
        "vendor_id": st.sampled_from(["10de", "1002", "8086", "10005", "1af4"]),
        "device_id": st.sampled_from(["2335", "744c", "1050"]),
        "pci_class": st.sampled_from(["0300", "0302", "0b40", "1200", "0380"]),
        "name": st.sampled_from(["a GPU", "llvmpipe", "another"]),
        "adapter_type": st.sampled_from(["discrete", "integrated", "cpu", "other"]),
        "memory_bytes": st.integers(1 << 28, 1 << 36),
        "ordinal": st.integers(0, 3),
        "partition_of": st.sampled_from([UUIDS[0], "0000:01:00.0"]),
    },
)
RECORDS = st.lists(RECORD, max_size=10)
# Records at random reach some branches of the merging rarely: each property has as many examples as usual.
MANY = settings(max_examples=examples(60))
# Two different GPUs of one vendor, and what an API without addresses says about each.
UNLIKE = (("0000:01:00.0", "2684", 24 << 30), ("0000:02:00.0", "2504", 12 << 30))
H200 = {"uuid": UUIDS[0], "bdf": "0000:01:00.0", "vendor_id": "10de", "device_id": "2335"}
NOTHING = detect.inspect(records=[])
OF_MODEL = Identity(vendor_id=0x10DE, device_id=0x2335)


def test_a_record_is_compared_with_few_of_many_devices(monkeypatch):
    asked, listed_by = [], merge.MergedDevice.listed_by
    monkeypatch.setattr(merge.MergedDevice, "listed_by", lambda *both: asked.append(0) or listed_by(*both))
    records = [{**H200, "uuid": f"GPU-{n:08}", "bdf": f"0000:{n:02x}:00.0", "source": source}
               for n in range(1, 201) for source in ("pci-sysfs", "nvml")]  # fmt: skip
    assert (detect.inspect(records=records).gpu_count.value, len(asked) < 800) == (200, True)


@MANY
@given(RECORDS, st.randoms())
@example([{"source": "pci-sysfs", "vendor_id": "1af4"},
          {"source": "pci-sysfs", "driver": "radv", "partition_of": "0000:01:00.0", "vendor_id": "1af4"}], Random(1))  # fmt: skip
def test_what_is_merged_is_sound_in_any_order_and_when_it_is_merged_again(records, random):
    machine = detect.inspect(records=records, debug=True)
    ids = [gpu.id for gpu in machine.gpus]
    assert len(set(ids)) == len(ids) == machine.gpu_count.value
    assert set(machine.recommendation.device_ids) <= set(ids)
    assert {rejected.device_id for rejected in machine.recommendation.rejected} <= set(ids)
    again = detect.inspect(records=[raw for gpu in machine.gpus for raw in gpu.records], debug=True)
    assert [(gpu.id, gpu.memory) for gpu in again.gpus] == [(gpu.id, gpu.memory) for gpu in machine.gpus]
    shuffled = list(records)
    random.shuffle(shuffled)
    other = detect.inspect(records=shuffled, debug=True)
    assert msgspec.structs.replace(other, took_s=0) == msgspec.structs.replace(machine, took_s=0)
    for device in merge.merge([parse_record(raw) for raw in records]).devices:
        seen = [record.enumeration for record in device.records]
        assert len(seen) == len(set(seen)), "two records of one enumeration"


@MANY
@given(RECORDS)
def test_records_survive_json(records):
    raised(ValueError, parse_record, records)
    for raw in records:
        record = parse_record(raw)
        assert parse_record(msgspec.json.decode(msgspec.json.encode(record_to_json(record)))) == record


@pytest.mark.parametrize(("known", "bdf"), [("integrated", "0000:02:00.0"), ("discrete", "0000:01:00.0")])
def test_a_kind_leads_to_its_like_then_to_the_gpu_that_says_nothing(known, bdf):
    first, second = ({"source": "drm", "bdf": f"0000:0{n}:00.0", "vendor_id": "1002"} for n in (1, 2))
    reported = {"source": "wgpu:vulkan", "vendor_id": "1002", "adapter_type": "discrete"}
    for placed in ([first | {"adapter_type": known}, second], [second, first | {"adapter_type": known}]):
        gpus = detect.inspect(records=[*placed, reported]).gpus
        assert [gpu.bdf.value for gpu in gpus if gpu.apis] == [bdf]


INSTANCE = "MIG-11111111-2222-3333-4444-555555555555"
WHOLE = {"source": "nvml", "uuid": UUIDS[0], "bdf": "0000:01:00.0", "vendor_id": "10de"}
PART = {"source": "nvml", "uuid": INSTANCE, "partition_of": UUIDS[0], "memory_bytes": 10 << 30}
BUS = {"source": "pci-sysfs", "bdf": "0000:01:00.0"}
RADV = {"source": "wgpu:vulkan", "driver": "radv", "vendor_id": "1002", "device_id": "744c", "name": "a GPU"}
ADRENO = {"vendor_id": "4d4f4351", "device_id": "36334330", "adapter_type": "integrated"}
NO_SIZE = {"memory": {"dedicated_bytes": {"value": None, "status": "unsupported"}}}
SIZE, SIZES = "gpus.0.memory.dedicated_bytes", "gpus.*.memory.dedicated_bytes"
PARTITIONS = "gpus.*.compute.partitions.*.id"
NVIDIA, BUS_ID = {"uuid": UUIDS[0], "vendor_id": "10de", "device_id": "2335"}, {"bdf": "0000:01:00.0"}
MIGS = [f"MIG-11111111-0000-0000-0000-00000000000{n}" for n in (1, 2, 3)]


def parts(source, *uuids):
    """Return the instances of one GPU as a source lists them."""
    return [{"source": source, "ordinal": n, "partition_of": "0000:01:00.0"} | ({"uuid": uuid} if uuid else {})
            for n, uuid in enumerate(uuids)]  # fmt: skip


def sized(**sizes):
    return [BUS | {"source": source, "vendor_id": "10de", "memory_bytes": gib << 30} for source, gib in sizes.items()]  # fmt: skip


# Records of one machine, and what is made of them.
ROWS = {
    "four cards under one wrong bus id": ([{"source": "cuda", "ordinal": n, "bdf": "0000:01:00.0"} for n in range(4)], {"gpu_count": 4}),
    "two GPUs under one uuid": (
        [{"source": "nvml", "uuid": UUIDS[0], "bdf": f"0000:0{n}:00.0"} for n in (1, 2)], {"gpus.*.id": ["pci:0000:01:00.0", "pci:0000:02:00.0"]}),
    "one uuid, two addresses": ([{"source": source, "uuid": UUIDS[0], "bdf": f"0000:0{n}:00.0"}
                                 for n, source in ((1, "nvml"), (2, "cuda"))], {"gpu_count": 2}),
    "two uuids, one address": ([BUS | {"source": source, "uuid": UUIDS[n]} for n, source in enumerate(("nvml", "cuda"))], {"gpu_count": 2}),
    "two vendors, one address": ([BUS | {"source": "nvml", "vendor_id": "10de"}, BUS | {"source": "cuda", "vendor_id": "1002"}], {"gpu_count": 2}),
    **{f"an instance that an API lists as {uuid[:3]} is its parent, and gives it no size": (  # CUDA's uuid is that of the instance
        [WHOLE | {"memory_bytes": 80 << 30}, PART, {"source": "cuda", "uuid": uuid, "memory_bytes": 10 << 30, "name": "an instance"} | place],
        {"gpus.*.id": [UUIDS[0]], SIZE: 80 << 30, f"{SIZE}.status": "ok", PARTITIONS: [[INSTANCE]], "gpus.0.apis.cuda.ordinal": None})
       for uuid, place in ((INSTANCE, {}), (INSTANCE.replace("MIG", "GPU"), BUS_ID))},
    # NVML lists no GPUs of others.
    "an instance whose parent, by uuid, no API lists": ([PART], {"gpus.*.uuid": [UUIDS[0]], "gpus.0.vendor": "nvidia", PARTITIONS: [[INSTANCE]]}),
    "an instance whose parent, by address, no API lists": ([PART | {"partition_of": "0000:01:00.0"}], {"gpus.*.bdf": ["0000:01:00.0"], "gpus.0.vendor": "nvidia", PARTITIONS: [[INSTANCE]]}),
    **{f"an instance of {place} among three": (
        [*(WHOLE | {"uuid": UUIDS[n], "bdf": f"0000:0{n + 1}:00.0"} for n in range(3)), PART | {"partition_of": place}],
        {PARTITIONS: [[], [INSTANCE], []]}) for place in (UUIDS[1], "0000:02:00.0")},
    "an instance of a GPU that nobody tells of": ([{"source": "cuda", "uuid": INSTANCE, "memory_bytes": 10 << 30}], {"gpus.*.id": ["api:cuda:0"], SIZE: 10 << 30}),
    **{f"a display {kind} of {vendor}": ([BUS | {"vendor_id": number, "pci_class": kind}], {"gpus.*.vendor": [vendor]})
       for number, vendor in (("10de", "nvidia"), ("1002", "amd"), ("8086", "intel"), ("106b", "apple")) for kind in ("0300", "0302", "0380")},
    **{f"a display {kind} of another vendor": ([BUS | {"vendor_id": "1022", "pci_class": kind}], {"gpus": []}) for kind in ("0300", "0302", "0380")},
    **{f"a controller {kind} of no vendor that can be read": ([BUS | {"pci_class": kind}], {"gpus.*.bdf": ["0000:01:00.0"] * gpus})
       for kind, gpus in (("0302", 1), ("0300", 0), ("0380", 0))},
    "identical GPUs without addresses": ([RADV, dict(RADV)], {"gpu_count": 2}),
    "a layered driver": ([{"source": "wgpu:vulkan", "driver": "venus", "vendor_id": "1af4", "name": "Virtio-GPU Venus"}], {"gpus": []}),
    "in WSL a layer that computes is a GPU": (
        [RADV | {"driver": "Dozen", "checked": True}, RADV | {"source": "wgpu:gl", "driver": "", "checked": True}], {"gpu_count": 1}),
    # OpenGL lists what others list; D3D12 may list a card twice, but alone it tells how many there are.
    "OpenGL beside two models": ([BUS | RADV | {"source": "drm"}, {"source": "wgpu:gl", "vendor_id": "1002", "device_id": 0, "name": "x"},
                                  {"source": "drm", "bdf": "0000:02:00.0", "vendor_id": "1002", "device_id": "164e"}], {"gpu_count": 2, "warnings": []}),
    **{f"{vulkan} of Vulkan and {dx12} of D3D12": ([RADV] * vulkan + [RADV | {"source": "wgpu:dx12", "driver": ""}] * dx12, {"gpu_count": gpus})
       for vulkan, dx12, gpus in ((1, 2, 1), (2, 3, 2), (0, 2, 2), (2, 1, 2))},
    **{f"a layer over it that lists {source}'s GPU twice": (
        [RADV | {"source": source, "driver": "z", **own}, *[RADV | {"driver": "Dozen", "checked": True}] * 2], {"gpu_count": 1})
       for source, own in (("cuda", {"uuid": UUIDS[0]}), ("wgpu:vulkan", {}))},
    "ids that are no PCI ids differ by API": (  # a Snapdragon in Windows
        [ADRENO | {"source": "wgpu:vulkan", "vendor_id": "5143", "device_id": "43050c01"}, ADRENO | {"source": "wgpu:dx12"},
         ADRENO | {"source": "wgpu:vulkan", "driver": "Dozen"}], {"gpu_count": 1}),
    "a Jetson's GPU has no address, and another uuid in each API": (
        [{"source": "platform", "vendor_id": "10de"}, WHOLE | {"bdf": None}, WHOLE | {"source": "cuda", "uuid": UUIDS[1], "bdf": "0000:00:00.0"}], {"gpus.*.id": [UUIDS[0]], "warnings": []}),
    "tiles that an API lists": ([BUS | {"vendor_id": "8086", "device_id": "0bd5"}, *[{"source": "torch:xpu", "vendor_id": "8086"}] * 2], {"gpu_count": 1, "warnings": []}),
    "numbers of a source are numbers": ([{"source": "x", "vendor_id": "1002", "ordinal": ordinal, "name": name}
                                         for ordinal, name in ((10, "b"), ("a", "a"), (2, "z"))], {"gpus.*.name": ["z", "b", "a"]}),
    "sizes far apart": (sized(nvml=80, cuda=40, opencl=20), {SIZE: 80 << 30, f"{SIZE}.status": "conflict", f"{SIZE}.alternatives.*.source": ["cuda", "opencl"]}),
    "a limit of allocation": (sized(nvml=80, opencl=20), {f"{SIZE}.status": "ok"}),
    **{f"a size of {size}": ([WHOLE | {"memory": {"dedicated_bytes": size}}, WHOLE | {"source": "cuda", "memory_bytes": size}], {SIZE: told})
       for size, told in ((-1, "not_probed"), (0, "unsupported"), (1 << 60, "not_probed"), ((1 << 60) - 1, (1 << 60) - 1))},
    **{f"Mesa's number with {kind}": ([{"source": "vulkan", "vendor_id": "10005", "name": "X", "adapter_type": kind}], {"gpu_count": count})
       for kind, count in ((None, 0), ("integrated", 1), ("cpu", 0))},
    "Metal by two sources, of which one lists two": (
        [{"source": "metal", "name": "Apple M4"}] * 2 + [{"source": "wgpu:metal", "name": "Apple M4"}], {"gpu_count": 2, "warnings.*.code": ["UNMATCHED_ADAPTER"]}),
    "a class that no display has": ([BUS | {"vendor_id": "10de", "pci_class": "0200"}], {"gpus.*.bdf": ["0000:01:00.0"]}),
    "a chip that CUDA knows": ([NVIDIA | {"source": "cuda", "adapter_type": "integrated"}], {"gpus.0.memory.unified": True}),
    "Metal by two sources": ([{"source": source, "name": "Apple M4"} for source in ("metal", "wgpu:metal")], {"gpu_count": 1}),
    # Unified memory needs two proofs.
    "a card that tells no size": ([WHOLE | NO_SIZE | {"device_id": "2335"}], {SIZE: "unsupported", "gpus.0.kind": "discrete"}),
    "a chip that tells no size": (
        [WHOLE | NO_SIZE | {"device_id": "2e12"}], {f"{SIZE}.value": None, "gpus.0.kind": "integrated", "gpus.0.memory.unified": True}),
    "of two listings of one card the one with its address is of the card": (
        [NVIDIA | {"source": "nvml"} | BUS_ID, NVIDIA | {"source": "cuda", "ordinal": 0}, NVIDIA | {"source": "cuda", "ordinal": 1} | BUS_ID],
        {"gpus.*.bdf": ["0000:01:00.0", "absent"], "gpus.*.apis.cuda.ordinal": [1, 0]}),
    # A partition that two sources list is one; of two sources without uuids the one that lists most counts.
    **{f"partitions listed twice, {count}": ([WHOLE, *parts("nvml", *MIGS[:2]), *parts("tool", *second)], {PARTITIONS: [[*MIGS[:2], *more]]})
       for count, second, more in (("by uuid", MIGS[:2], ()), ("without uuids", (None, None), ()), ("one more", MIGS[2:], MIGS[2:]))},
    "numbers without end": ([WHOLE, *parts("a", None), parts("a", None)[0] | {"ordinal": "9" * 5000}], {"gpu_count": 1}),
    "partitions without uuids": ([WHOLE, *parts("a", None), *parts("b", None, None)], {PARTITIONS: [["b:0", "b:1"]]})}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_records_of_a_machine(name):
    records, expected = ROWS[name]
    machine = detect.inspect(records=records)
    check(machine, expected)
    hold(machine, NOTHING)


def bus(*models, **more):
    own = {"source": "pci-sysfs", "vendor_id": "10de", "pci_class": "0302"} | more
    return [{"bdf": bdf, "device_id": device} | own for bdf, device, _ in models]


def listed(*models, source="wgpu:vulkan", **more):
    """Records without addresses, in the order given, with names that tell the models apart."""
    return [{"source": source, "ordinal": n, "vendor_id": "10de", "device_id": device,
             "name": f"model {device}"} | {"memory_bytes": size, "adapter_type": "discrete"} | more
            for n, (_, device, size) in enumerate(models)]  # fmt: skip


def blind(records):
    return [{name: value for name, value in record.items() if name != "device_id"} for record in records]


FIRST, SECOND = UNLIKE
TWINS = [(f"0000:0{n}:00.0", "2684", 24 << 30) for n in (1, 2)]
THREE = [FIRST, SECOND, ("0000:03:00.0", "2684", 24 << 30)]
LYING = listed(SECOND, name="model 2684") + listed(FIRST, name="model 2504")
CARD, CHIP = blind(listed(SECOND)), blind(listed(FIRST, adapter_type="integrated"))
OWN = [(bdf, device, f"model {device}", size) for bdf, device, size in UNLIKE]
SILENT = [(bdf, device, None, None) for bdf, device, _ in UNLIKE]
NO_IDS = [(bdf, None, None, None) for bdf, _, _ in UNLIKE]
# Records of the bus, those of APIs without addresses, and the address, model, name and memory of each GPU, whatever the order of the records.
APART = {
    **{f"{source}, {order}": (bus(*UNLIKE), listed(*UNLIKE[::order], source=source), OWN)
       for source in ("wgpu:vulkan", "cuda", "opencl") for order in (1, -1)},
    "names do not outweigh device ids": (
        bus(*UNLIKE), LYING, [(FIRST[0], "2684", "model 2504", FIRST[2]), (SECOND[0], "2504", "model 2684", SECOND[2])]),
    "a GPU that an API does not list": (bus(*UNLIKE), listed(SECOND), [SILENT[0], OWN[1]]),
    "identical GPUs beside another model": (bus(*THREE), listed(SECOND, FIRST), [*OWN, ("0000:03:00.0", "2684", None, None)]),
    "a uuid and no address": (
        [*bus(FIRST), {"source": "nvml", "uuid": UUIDS[0], "vendor_id": "10de", "device_id": "2504"}], listed(*UNLIKE[::-1]),
        [OWN[0], (None, *OWN[1][1:])]),
    "a device id that cannot be read takes what is left": (blind(bus(FIRST)) + bus(SECOND), listed(*UNLIKE), OWN),
    "identical GPUs of which the bus tells no id": (
        blind(bus(*TWINS)), listed(*TWINS), [(bdf, device, f"model {device}", size) for bdf, device, size in TWINS]),
    "identical GPUs of which the API tells no id": (
        bus(*TWINS), blind(listed(*TWINS)), [(bdf, device, f"model {device}", size) for bdf, device, size in TWINS]),
    "a stranger takes no place of a record without an id": (
        bus(FIRST), listed(SECOND) + blind(listed(FIRST)), [(FIRST[0], "2684", "model 2684", FIRST[2]), (None, *OWN[1][1:])]),
    # Without device ids the kind is what tells; the order of the bus would swap them.
    "a chip and a card": (bus(FIRST, kind="integrated") + bus(SECOND, kind="discrete"), CARD + CHIP, OWN),
    # Where nothing tells unlike GPUs apart nothing is guessed.
    "the bus is blind": (blind(bus(*UNLIKE)), listed(*UNLIKE[::-1]), NO_IDS),
    "the API is blind": (bus(*UNLIKE), blind(listed(*UNLIKE[::-1])), SILENT),
    "both are blind": (blind(bus(*UNLIKE)), blind(listed(*UNLIKE[::-1])), NO_IDS)}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_unlike_gpus_of_one_vendor_keep_their_own_facts(name):
    placed, reported, expected = APART[name]
    for order in itertools.permutations(placed + reported):
        machine = detect.inspect(records=list(order))
        told = [(gpu.bdf.value, gpu.device_id.value, gpu.name.value if gpu.name_precision == "exact" else None,
                 gpu.memory.dedicated_bytes.value) for gpu in machine.gpus]  # fmt: skip
        assert sorted(told, key=str) == sorted(expected, key=str)
    if "blind" in name:  # both are listed, and by no number
        assert [gpu.apis["wgpu:vulkan"].ordinal for gpu in machine.gpus] == [None, None]
        assert machine.warnings == []


@pytest.mark.parametrize(("placed", "reported"), [
    (blind(bus(*UNLIKE)), listed(SECOND)), (bus(*UNLIKE), blind(listed(SECOND)))])  # fmt: skip
def test_one_listing_that_may_be_any_of_two_gpus_is_a_warning_and_no_device(placed, reported):
    machine = detect.inspect(records=placed + reported)
    assert [gpu.apis for gpu in machine.gpus] == [{}, {}]
    (warning,) = machine.warnings
    assert (warning.code, "any of 2" in warning.text) == ("UNMATCHED_ADAPTER", True)


@pytest.mark.parametrize(("vendor", "number"), [
    ("NVIDIA Corporation", 0x10DE), ("AMD", 0x1002), ("Advanced Micro Devices, Inc.", 0x1002), ("ATI", 0x1002),
    ("Radeon", 0x1002), ("Intel(R) Corporation", 0x8086), ("Apple", 0x106B), ("Lamda", None), (None, None)])  # fmt: skip
def test_a_vendor_in_words_is_its_number(vendor, number):
    assert merge.vendor_of(parse_record({"source": "opencl", "vendor": vendor})) == number


@pytest.mark.parametrize(("name", "read"), [
    ("OEM", None), ("EV56", "EV56"), ("NUC12WSKi7", "NUC12WSKi7"), ("Nonesuch X", "Nonesuch X")])  # fmt: skip
def test_a_placeholder_is_no_name(name, read):
    assert parse_record({"source": "nvml", "name": name}).name == read


@pytest.mark.parametrize(("records", "identity", "bdf"), [
    ([H200], Identity(uuid=UUIDS[0].upper()), "0000:01:00.0"), ([H200], Identity(uuid=UUIDS[1], pci="0000:01:00.0"), "0000:01:00.0"),
    ([H200], Identity(pci="00000000:01:00.0"), "0000:01:00.0"), ([H200], OF_MODEL, "0000:01:00.0"),
    ([H200], Identity(vendor_id=0x10DE, device_id=0x2336), None), ([H200], Identity(pci="0000:07:00.0"), None),
    ([H200], Identity(), "0000:01:00.0"),  # the only one that its API lists
    ([H200, H200 | {"uuid": UUIDS[1], "bdf": "0000:02:00.0"}], OF_MODEL, None),  # it may be either
    ([H200], Identity(vendor_id=0x5143, device_id=0x36334330), "0000:01:00.0"),  # an id of its own API
    ([WHOLE, PART, WHOLE | {"uuid": UUIDS[1], "bdf": "0000:02:00.0"}], Identity(uuid=INSTANCE.replace("MIG", "GPU")), "0000:01:00.0"),  # an instance
])  # fmt: skip
def test_a_backends_device_finds_its_gpu(records, identity, bdf):
    machine = detect.inspect(records=[record | {"source": "nvml"} for record in records])
    gpu_id = detect.gpu_for(machine, identity, "nvml")
    assert [gpu.bdf.value for gpu in machine.gpus if gpu.id == gpu_id] == ([bdf] if bdf else [])


def recorded(name):
    return detect.inspect(records=json.loads((Path(__file__).parent / name).read_text())["records"])


def test_six_enumerations_of_an_h200_are_one_gpu_whose_memory_comes_from_nvml():
    uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff"
    expected = {"gpus.*.id": [uuid], "gpus.*.name": ["NVIDIA H200"], "gpus.*.bdf": ["0000:00:06.0"],
                SIZE: 150754820096, f"{SIZE}.source": "nvml", f"{SIZE}.alternatives.*.source": ["cuda"],
                "gpus.0.memory.usable_bytes": 150754820096 - 644939776, "gpus.0.memory.unified": False}  # fmt: skip
    machine = recorded("h200.records.json")
    check(machine, expected)
    hold(machine, NOTHING)


def test_two_cards_stay_two_and_know_their_link():
    machine = recorded("two-h200.records.json")
    first, second = machine.gpus
    assert (first.link.peers, second.link.peers) == ([second.id], [first.id])
    hold(machine, NOTHING)


# ---------------------------------------------------------------- links, from the folders of PCI and KFD and from a scripted NVML
DEVICES = "sys/bus/pci/devices"
SWITCH = "pci0000:10/0000:10:01.0/0000:11:00.0"
SWITCHED, DIRECT = 2, 0


def card(bdf, above, node=None):
    """One NVIDIA card in its real folder below the bridges `above`, and the bus's link to it."""
    folder = f"sys/devices/{above}/{bdf}"
    files = {f"{folder}/class": "0x030200", f"{folder}/vendor": "0x10de", f"{folder}/device": "0x2335"}
    files |= {} if node is None else {f"{folder}/numa_node": str(node)}
    return files | {f"{DEVICES}/{bdf}": f"-> ../../../devices/{above}/{bdf}"}


# Above each card, its node; what they share.
@pytest.mark.parametrize(("one", "other", "common", "kind"), [
    ((f"{SWITCH}/0000:12:00.0", 0), (f"{SWITCH}/0000:12:01.0", 0), "switch", "pcie"),
    ((f"{SWITCH}/0000:12:00.0", 0), ("pci0000:10/0000:10:02.0", 0), "host-bridge", "pcie"),
    (("pci0000:00", None), ("pci0000:00", None), "host-bridge", "pcie"),
    (("pci0000:10/0000:10:01.0", 0), ("pci0000:20/0000:20:01.0", 0), "numa-node", "host"),
    (("pci0000:10/0000:10:01.0", 0), ("pci0000:80/0000:80:01.0", 1), "system", "host"),
    (("pci0000:10/0000:10:01.0", None), ("pci0000:80/0000:80:01.0", 1), None, None)])  # fmt: skip
def test_the_folders_of_pci_tell_what_two_cards_share(look, one, other, common, kind):
    first, second = look(card("0000:13:00.0", *one) | card("0000:23:00.0", *other)).gpus
    (path,) = first.link.paths
    assert (path.to, path.common.value, path.kind.value) == (second.id, common, kind)
    assert path.common.source == f"/{DEVICES}/0000:13:00.0" + ("/numa_node" if kind in (None, "host") else "")
    assert (path.read.status, first.link.peers) == ("not_probed", [])


@pytest.mark.parametrize(("gpu", "upstream", "downstream", "link"), [
    ("1002", "1002", "1002", (3, 8)), ("8086", "8086", "8086", (3, 8)),  # a switch on the card
    ("10de", "10b5", "10b5", (1, 1)), ("1002", "1022", "1022", (1, 1)), ("1002", "1002", None, (1, 1)),
    ("1002", "1022:1470", "1022:1471", (3, 8))])  # fmt: skip
def test_the_link_of_a_card_is_that_of_its_own_switch(look, gpu, upstream, downstream, link):
    above, tree = "pci0000:00", {}
    ports = (("0000:00:01.0", gpu, "5.0", 16), ("0000:01:00.0", upstream, "8.0", 8), ("0000:02:00.0", downstream, "2.5", 1),
             ("0000:03:00.0", gpu, "2.5", 1))  # fmt: skip
    for bdf, vendor, speed, lanes in ports:
        if vendor is not None:
            kind = "0x030000" if bdf == "0000:03:00.0" else "0x060400"
            texts = {"class": kind, "vendor": f"0x{vendor[:4]}", "device": f"0x{vendor[5:] or '1478'}"}
            texts |= {f"{when}_link_{what}": str(text) for when in ("max", "current")
                      for what, text in (("speed", f"{speed} GT/s PCIe"), ("width", lanes))}  # fmt: skip
            tree |= {f"sys/devices/{above}/{bdf}/{name}": text for name, text in texts.items()}
            tree[f"{DEVICES}/{bdf}"] = f"-> ../../../devices/{above}/{bdf}"
        above += f"/{bdf}"
    generation, lanes = link
    check(look(tree), {"gpus.0.link.gen_max": generation, "gpus.0.link.width_max": lanes, "gpus.0.link.gen_now": generation,
                       "gpus.0.link.width_now": lanes})  # fmt: skip


def test_a_folder_that_is_no_link_tells_nothing(look):
    cards = [pci(f"0000:0{n}:00.0", "10de", "2335") for n in (1, 2)]
    for gpu in look(cards[0] | cards[1]).gpus:
        assert [(path.kind.status, path.common.status) for path in gpu.link.paths] == [("absent", "absent")]


def test_a_sleeping_card_has_its_place_all_the_same(look):
    tree = card("0000:13:00.0", "pci0000:00") | card("0000:23:00.0", "pci0000:00")
    tree["sys/devices/pci0000:00/0000:13:00.0/power/runtime_status"] = "suspended"
    check(look(tree), {"gpus.*.link.paths.0.common": ["host-bridge"] * 2})


def kfd(links):
    """Two AMD GPUs, nodes 1 and 2; `links` are those of node 1 by folder."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    tree = {f"{nodes}/0/properties": "cpu_cores_count 8\nsimd_count 0"}
    for number, location in ((1, 0x300), (2, 0x400)):
        table = f"simd_count 208\nsimd_per_cu 4\nlocation_id {location}\nunique_id {number}\nvendor_id 4098"
        tree[f"{nodes}/{number}/properties"] = table
    return tree | {f"{nodes}/1/{folder}/properties": text for folder, text in links.items()}


XGMI = {"io_links/1": "type 11\nnode_from 1\nnode_to 2\nmax_bandwidth 50000\nflags 1",
        "io_links/0": "type 2\nnode_from 1\nnode_to 0"}  # fmt: skip
PCIE = {"p2p_links/0": "type 2\nnode_to 2\nflags 12"}
SENSELESS = {"io_links/0": "type 11\nnode_to 9", "io_links/1": "junk", "p2p_links/0": "?"}


@pytest.mark.parametrize(("links", "paths"), [
    (XGMI, [{"kind": "xgmi", "via": "direct", "max_bytes_per_s": 50_000_000_000, "read": True, "write": True, "atomics": True,
             "kind.source": "/sys/class/kfd/kfd/topology/nodes/1/io_links/1/properties"}]),
    (PCIE, [{"kind": "pcie", "read": True, "atomics": False, "via": "absent", "max_bytes_per_s": "absent"}]), (SENSELESS, [])])  # fmt: skip
def test_kfd_tells_the_links_of_a_node(look, links, paths):
    first, second = look(kfd(links)).gpus
    assert len(first.link.paths) == len(paths)
    for path, expected in zip(first.link.paths, paths, strict=True):
        check(path, {"to": second.id, **expected})
    check(first, {"bdf": "0000:03:00.0", "kind": "absent", "compute.arch": "absent", "compute.max_hz": "absent", "compute.units": 52})  # fmt: skip
    assert first.link.peers == [second.id] * (links is XGMI)
    assert second.link.peers == [], "its own folder says nothing"


def library(**answers):
    """An NVML of GPUs of 100 GiB; a number is an error, where no number is the answer."""
    numbers = ("nvmlDeviceGetCount", "nvmlSystemGetCudaDriverVersion_v2")
    answers = {
        "nvmlSystemGetCudaDriverVersion_v2": 13000, "nvmlDeviceGetUUID": "GPU-00000000-1111-2222-3333-444444444444",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100 * GIB, free=90 * GIB, reserved=GIB, used=9 * GIB)} | answers  # fmt: skip
    return Nvml(**{name: Nvml.NVMLError(answer) if isinstance(answer, int) and name not in numbers else answer
                   for name, answer in answers.items()})  # fmt: skip


def host(links, **answers):
    """GPUs 0000:00:06.0 and up, whose links are lists of (remote type, remote number) or None for one that is down."""

    def link_of(handle, number):
        if number >= len(links[handle]):
            raise Nvml.NVMLError(2)
        return links[handle][number]

    def place(number):
        return SimpleNamespace(busId=f"00000000:0{6 + number}:00.0".encode(), pciDeviceId=0x233510DE)

    answers = {
        "nvmlDeviceGetCount": len(links), "nvmlDeviceGetPciInfo": place,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle + 1:08x}-1111-2222-3333-444444444444",
        "nvmlDeviceGetNvLinkState": lambda handle, number: int(link_of(handle, number) is not None),
        "nvmlDeviceGetNvLinkVersion": lambda _handle, number: 4 + number,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle, number: link_of(handle, number)[0],
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, number: place(link_of(handle, number)[1]),
        "nvmlDeviceGetFieldValues": lambda _handle, fields: [
            SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal={90: 26562}[field])) for field in fields],
        "nvmlDeviceGetTopologyCommonAncestor": lambda _a, _b: 40, "nvmlDeviceGetP2PStatus": lambda _a, _b, _index: 0} | answers  # fmt: skip
    return detect.inspect(records=last_answer(nvml.probe_nvml, library(**answers))["records"])


def test_cards_on_a_switch_have_the_fewer_lanes_of_both_sides():
    first, second = host([[(SWITCHED, 0)] * 18, [(SWITCHED, 0)] * 17 + [None]]).gpus
    for gpu, other in ((first, second), (second, first)):
        (path,) = gpu.link.paths
        assert (path.to, path.kind.value) == (other.id, "nvlink")
        assert (path.lanes.value, path.version.value, path.via.value) == (17, 4, "switch")
        assert path.max_bytes_per_s.value == 17 * 26_562_000_000
        assert (path.common.value, path.read.value, path.atomics.value) == ("numa-node", True, True)
        assert gpu.link.peers == [other.id]


def test_direct_links_count_for_the_card_at_their_end():
    links = [[(DIRECT, 1), (DIRECT, 1), (DIRECT, 2)], [(DIRECT, 0), (DIRECT, 0)], [(DIRECT, 0)]]
    machine = host(links, nvmlDeviceGetP2PStatus=lambda a, b, index: 5 if index == 2 and 0 not in (a, b) else 0)
    lanes = {path.to: (path.lanes.value, path.via.value) for path in machine.gpus[0].link.paths}
    assert lanes == {machine.gpus[1].id: (2, "direct"), machine.gpus[2].id: (1, "direct")}
    unlinked = next(path for path in machine.gpus[1].link.paths if path.to == machine.gpus[2].id)
    assert (unlinked.kind.value, unlinked.read.value) == (None, True)
    assert machine.gpus[1].link.peers == [machine.gpus[0].id]


@pytest.mark.parametrize(("code", "common"), [
    *((code, "switch") for code in (0, 10, 20)), (30, "host-bridge"), (40, "numa-node"), (50, "system"), (60, None)])  # fmt: skip
def test_what_two_cards_share_and_may_do(code, common):
    """P2P of the driver: 0 reads, 1 writes, 3 atomics. Of a card at most 36 links are asked."""
    may = {"read": 0, "write": 1, "atomics": 3}
    for name, index in may.items():
        machine = host([[(SWITCHED, 0)] * 40] * 2, nvmlDeviceGetTopologyCommonAncestor=lambda _a, _b: code,
                       nvmlDeviceGetP2PStatus=lambda _a, _b, asked, index=index: 0 if asked == index else 5)  # fmt: skip
        (path,) = machine.gpus[0].link.paths
        assert (path.common.value, path.lanes.value) == (common, 36)
        assert [getattr(path, other).value for other in may] == [other == name for other in may]


def test_what_a_library_does_not_tell_costs_that_fact_alone():
    path = "gpus.0.link.paths.0."
    guest = host([[], []])  # it sees no lane
    check(guest, {f"{path}kind": "nvlink", f"{path}lanes.value": None, f"{path}lanes.status": "invalid"})
    old = host([[], []], nvmlDeviceGetP2PStatus=3, nvmlDeviceGetNvLinkState=3)
    check(old, {f"{path}common": "numa-node", f"{path}read": "unsupported", f"{path}kind.value": None})
    instances = host([[(SWITCHED, 0)] * 18] * 2, nvmlDeviceGetMigMode=lambda handle: (handle, handle))
    assert [gpu.link.paths for gpu in instances.gpus] == [[], []]


def test_the_matrix_shows_each_pair_and_needs_two_gpus(look):
    assert "Links" not in detect.render(look(card("0000:13:00.0", "pci0000:00")), "plain")
    assert "Links" not in detect.render(host([[]]), "plain")
    linked = host([[(SWITCHED, 0)] * 18] * 2)
    rows = ["      0     1", "0     -  NV18", "1  NV18     -"]
    assert picture.matrix(linked.gpus) == [*rows, "NVn: n NVLinks"]
    parts = picture.sections(msgspec.structs.replace(linked, gpus=linked.gpus * 99))
    assert [len(part.lines) for part in parts if part.title == "Links"] == [1 + 64], "of a fleet the first GPUs"
    text = [line.removeprefix("Links").strip() for line in detect.render(linked, "plain").splitlines()]
    assert [row for row in (*rows, "NVn: n NVLinks") if row.strip() not in text] == []


def test_records_carry_their_paths_there_and_back():
    records = last_answer(nvml.probe_nvml, library(nvmlDeviceGetCount=2))["records"]
    known = {"to": "00:07.0", "kind": 3, "lanes": {"value": 4, "status": "ok"}}
    record = parse_record(records[0] | {"paths": [{"to": "no address"}, "junk", known]})
    (path,) = record.paths
    assert (path.kind.status, path.lanes.value, path.lanes.source) == ("not_probed", 4, "nvml")
    assert parse_record(record_to_json(record)).paths == record.paths
