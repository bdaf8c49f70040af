from __future__ import annotations

import itertools
from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpubench import detect
from gpubench.detect import merge
from gpubench.detect.facts import make_fact, parse_record, record_to_json
from gpubench.result.machine import Gpu, Machine
from gpubench.result.run import Identity
from tests.detect.trees import check
from tests.examples import examples

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
MANY = settings(max_examples=examples(200))


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
    for raw in records:
        record = parse_record(raw)
        assert parse_record(msgspec.json.decode(msgspec.json.encode(record_to_json(record)))) == record


def ids(*records):
    return [gpu.id for gpu in detect.inspect(records=list(records)).gpus]


@pytest.mark.parametrize("kind", ["discrete", "integrated"])
def test_a_kind_leads_to_the_gpu_that_says_nothing_rather_than_to_one_that_disagrees(kind):
    other = {"discrete": "integrated", "integrated": "discrete"}[kind]
    on_bus = [{"source": "drm", "bdf": f"0000:0{n}:00.0", "vendor_id": "1002"} for n in (1, 2)]
    reported = {"source": "wgpu:vulkan", "vendor_id": "1002", "name": "reported", "adapter_type": kind}

    def named(first):
        gpus = detect.inspect(records=[on_bus[0] | first, on_bus[1], reported]).gpus
        return [gpu.bdf.value for gpu in gpus if "wgpu:vulkan" in gpu.apis]

    assert named({"adapter_type": other}) == ["0000:02:00.0"]
    assert named({"adapter_type": kind}) == ["0000:01:00.0"]


INSTANCE = "MIG-11111111-2222-3333-4444-555555555555"
WHOLE = {"source": "nvml", "uuid": UUIDS[0], "bdf": "0000:01:00.0", "vendor_id": "10de"}
PART = {"source": "nvml", "uuid": INSTANCE, "partition_of": UUIDS[0], "memory_bytes": 10 << 30}
BUS = {"source": "pci-sysfs", "bdf": "0000:01:00.0"}
RADV = {"source": "wgpu:vulkan", "driver": "radv", "vendor_id": "1002", "device_id": "744c", "name": "a GPU"}
NO_SIZE = {"memory": {"dedicated_bytes": {"value": None, "status": "unsupported"}}}
SIZE, PARTITIONS = "gpus.0.memory.dedicated_bytes", "gpus.*.compute.partitions.*.id"


def sized(**sizes):
    return [
        {"source": source, "bdf": "0000:01:00.0", "vendor_id": "10de", "memory_bytes": gib << 30}
        for source, gib in sizes.items()
    ]


# Records of one machine, and what is made of them.
ROWS = {
    "four cards under one wrong bus id": ([{"source": "cuda", "ordinal": n, "bdf": "0000:01:00.0"} for n in range(4)], {"gpu_count": 4}),
    "two GPUs under one uuid": (
        [{"source": "nvml", "uuid": UUIDS[0], "bdf": f"0000:0{n}:00.0"} for n in (1, 2)],
        {"gpus.*.id": ["pci:0000:01:00.0", "pci:0000:02:00.0"]}),
    "one uuid, two addresses": ([{"source": source, "uuid": UUIDS[0], "bdf": f"0000:0{n}:00.0"}
                                 for n, source in ((1, "nvml"), (2, "cuda"))], {"gpu_count": 2}),
    "two uuids, one address": ([BUS | {"source": source, "uuid": UUIDS[n]} for n, source in enumerate(("nvml", "cuda"))], {"gpu_count": 2}),
    "two vendors, one address": ([BUS | {"source": "nvml", "vendor_id": "10de"}, BUS | {"source": "cuda", "vendor_id": "1002"}], {"gpu_count": 2}),
    "an instance that an API lists is its parent, and gives it no size": (
        [WHOLE | {"memory_bytes": 80 << 30}, PART, {"source": "cuda", "uuid": INSTANCE, "memory_bytes": 10 << 30, "name": "an instance"}],
        {"gpus.*.id": [UUIDS[0]], SIZE: 80 << 30, f"{SIZE}.status": "ok", PARTITIONS: [[INSTANCE]]}),
    # NVML lists no GPUs of others.
    "an instance whose parent, by uuid, no API lists": ([PART], {"gpus.*.uuid": [UUIDS[0]], "gpus.0.vendor": "nvidia", PARTITIONS: [[INSTANCE]]}),
    "an instance whose parent, by address, no API lists": (
        [PART | {"partition_of": "0000:01:00.0"}], {"gpus.*.bdf": ["0000:01:00.0"], "gpus.0.vendor": "nvidia", PARTITIONS: [[INSTANCE]]}),
    **{f"an instance of {place} among three": (
        [*(WHOLE | {"uuid": UUIDS[n], "bdf": f"0000:0{n + 1}:00.0"} for n in range(3)), PART | {"partition_of": place}],
        {PARTITIONS: [[], [INSTANCE], []]}) for place in (UUIDS[1], "0000:02:00.0")},
    "an instance of a GPU that nobody tells of": (
        [{"source": "cuda", "uuid": INSTANCE, "memory_bytes": 10 << 30}], {"gpus.*.id": ["api:cuda:0"], SIZE: 10 << 30}),
    **{f"a display {kind} of {vendor}": ([BUS | {"vendor_id": number, "pci_class": kind}], {"gpus.*.vendor": [vendor]})
       for number, vendor in (("10de", "nvidia"), ("1002", "amd"), ("8086", "intel"), ("106b", "apple")) for kind in ("0300", "0302", "0380")},
    **{f"a display {kind} of another vendor": ([BUS | {"vendor_id": "1022", "pci_class": kind}], {"gpus": []}) for kind in ("0300", "0302", "0380")},
    **{f"a controller {kind} of no vendor that can be read": ([BUS | {"pci_class": kind}], {"gpus.*.bdf": ["0000:01:00.0"] * gpus})
       for kind, gpus in (("0302", 1), ("0300", 0), ("0380", 0))},
    "identical GPUs without addresses": ([RADV, dict(RADV)], {"gpu_count": 2}),
    "a layered driver": ([{"source": "wgpu:vulkan", "driver": "venus", "vendor_id": "1af4", "name": "Virtio-GPU Venus"}], {"gpus": []}),
    "sizes far apart": (sized(nvml=80, cuda=40, opencl=20), {SIZE: 80 << 30, f"{SIZE}.status": "conflict", f"{SIZE}.alternatives.*.source": ["cuda", "opencl"]}),
    "a limit of allocation": (sized(nvml=80, opencl=20), {f"{SIZE}.status": "ok"}),
    # Unified memory needs two proofs.
    "a card that tells no size": ([WHOLE | NO_SIZE | {"device_id": "2335"}], {SIZE: "unsupported", "gpus.0.kind": "discrete"}),
    "a chip that tells no size": (
        [WHOLE | NO_SIZE | {"device_id": "2e12"}], {f"{SIZE}.value": None, "gpus.0.kind": "integrated", "gpus.0.memory.unified": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_records_of_a_machine(name):
    records, expected = ROWS[name]
    check(detect.inspect(records=records), expected)


# Two different GPUs of one vendor, and what an API without addresses says about each.
UNLIKE = (("0000:01:00.0", "2684", 24 << 30), ("0000:02:00.0", "2504", 12 << 30))


def bus(*models, **more):
    return [
        {"source": "pci-sysfs", "bdf": bdf, "vendor_id": "10de", "pci_class": "0302", "device_id": device}
        | more
        for bdf, device, _ in models
    ]


def listed(*models, source="wgpu:vulkan", **more):
    """Records without addresses, in the order given, with names that tell the models apart."""
    return [
        {"source": source, "ordinal": n, "vendor_id": "10de", "device_id": device, "name": f"model {device}"}
        | {"memory_bytes": size, "adapter_type": "discrete"} | more
        for n, (_, device, size) in enumerate(models)
    ]  # fmt: skip


def without(key, records):
    return [{name: value for name, value in record.items() if name != key} for record in records]


def places(records):
    """Model, name and memory of each GPU by address, whatever the order of the records."""
    orders = [detect.inspect(records=list(order)).gpus for order in itertools.permutations(records)]
    found = [
        {gpu.bdf.value: (gpu.device_id.value, gpu.name.value if gpu.name_precision == "exact" else None,
                         gpu.memory.dedicated_bytes.value) for gpu in gpus}
        for gpus in orders
    ]  # fmt: skip
    assert all(one == found[0] for one in found)
    assert all(len(gpus) == len(found[0]) for gpus in orders)
    return found[0]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("source", ["wgpu:vulkan", "cuda", "opencl"])
def test_unlike_gpus_of_one_vendor_keep_their_own_facts(order, source):
    found = places(bus(*UNLIKE) + listed(*UNLIKE[::order], source=source))
    assert found == {bdf: (device, f"model {device}", size) for bdf, device, size in UNLIKE}


def test_names_do_not_outweigh_device_ids():
    lying = [record | {"name": f"model {other}"}
             for record, (_, other, _) in zip(listed(*UNLIKE), UNLIKE[::-1], strict=True)]  # fmt: skip
    found = places(bus(*UNLIKE) + lying)
    assert [size for _, _, size in found.values()] == [size for _, _, size in UNLIKE]


def test_a_gpu_that_an_api_does_not_list_takes_nothing_of_the_other():
    found = places(bus(*UNLIKE) + listed(UNLIKE[1]))
    assert found == {"0000:01:00.0": ("2684", None, None), "0000:02:00.0": ("2504", "model 2504", 12 << 30)}


def test_identical_gpus_beside_another_model_of_their_vendor():
    models = [("0000:01:00.0", "2684", 24 << 30), UNLIKE[1], ("0000:03:00.0", "2684", 24 << 30)]
    found = places(bus(*models) + listed(models[1], models[0], models[2])[:2])
    assert found["0000:02:00.0"] == ("2504", "model 2504", 12 << 30)
    assert sorted(size or 0 for _, _, size in found.values()) == [0, 12 << 30, 24 << 30]


def test_unlike_gpus_of_which_one_has_a_uuid_but_no_address():
    placed = bus(UNLIKE[0])
    nvml = [{"source": "nvml", "uuid": UUIDS[0], "vendor_id": "10de", "device_id": "2504"}]
    found = places(placed + nvml + listed(*UNLIKE[::-1]))
    assert found == {"0000:01:00.0": ("2684", "model 2684", 24 << 30), None: ("2504", "model 2504", 12 << 30)}


def test_a_gpu_whose_device_id_cannot_be_read_takes_what_is_left():
    placed = without("device_id", bus(UNLIKE[0])) + bus(UNLIKE[1])
    found = places(placed + listed(*UNLIKE))
    assert found["0000:02:00.0"] == ("2504", "model 2504", 12 << 30)
    assert found["0000:01:00.0"] == ("2684", "model 2684", 24 << 30)


def test_identical_gpus_whose_device_ids_the_bus_does_not_tell_take_a_record_each():
    identical = [(f"0000:0{n}:00.0", "2684", 24 << 30) for n in (1, 2)]
    found = places(without("device_id", bus(*identical)) + listed(*identical))
    assert found == {bdf: ("2684", "model 2684", 24 << 30) for bdf, _, _ in identical}


@pytest.mark.parametrize("blind", ["bus", "api", "both"])
def test_where_nothing_tells_unlike_gpus_apart_nothing_is_guessed(blind):
    placed, reported = bus(*UNLIKE), listed(*UNLIKE[::-1])
    if blind in ("bus", "both"):
        placed = without("device_id", placed)
    if blind in ("api", "both"):
        reported = without("device_id", reported)
    machine = detect.inspect(records=placed + reported)
    assert [gpu.bdf.value for gpu in machine.gpus] == [bdf for bdf, _, _ in UNLIKE]
    for gpu in machine.gpus:
        assert gpu.name_precision != "exact"
        assert gpu.memory.dedicated_bytes.value is None
        assert gpu.apis["wgpu:vulkan"].ordinal is None  # both are listed
    assert machine.warnings == []


@pytest.mark.parametrize("blind", ["bus", "api"])
def test_one_listing_that_may_be_any_of_two_gpus_is_a_warning_and_no_device(blind):
    placed, reported = bus(*UNLIKE), listed(UNLIKE[1])
    records = (
        without("device_id", placed) + reported if blind == "bus" else placed + without("device_id", reported)
    )
    machine = detect.inspect(records=records)
    assert [gpu.apis for gpu in machine.gpus] == [{}, {}]
    (warning,) = machine.warnings
    assert warning.code == "UNMATCHED_ADAPTER"
    assert "any of 2" in warning.text


def test_an_integrated_gpu_and_a_card_of_one_vendor_are_told_apart_by_kind():
    """Without device ids the kind is what tells; the order of the bus would swap them."""
    placed = [
        record | {"kind": kind} for record, kind in zip(bus(*UNLIKE), ("integrated", "discrete"), strict=True)
    ]
    card, own = (
        listed(model, adapter_type=kind)
        for model, kind in zip(UNLIKE[::-1], ("discrete", "integrated"), strict=True)
    )
    found = places(placed + without("device_id", card) + without("device_id", own))
    assert found == {bdf: (device, f"model {device}", size) for bdf, device, size in UNLIKE}


def test_a_stranger_does_not_take_the_place_of_a_record_without_an_id():
    blind = without("device_id", listed(UNLIKE[0]))
    machine = detect.inspect(records=bus(UNLIKE[0]) + listed(UNLIKE[1]) + blind)
    assert [(gpu.device_id.value, gpu.memory.dedicated_bytes.value) for gpu in machine.gpus] == [
        ("2684", 24 << 30), ("2504", 12 << 30),
    ]  # fmt: skip


def test_equal_gpus_take_records_without_device_ids_in_turn():
    models = [(f"0000:0{n}:00.0", "15f8", 16 << 30) for n in (1, 2, 3, 4)]
    machine = detect.inspect(records=bus(*models) + without("device_id", listed(*models, source="opencl")))
    assert [gpu.apis["opencl"].ordinal for gpu in machine.gpus] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ids", "role"),
    [
        ((0x1A03, 0x2000), "bmc"), ((0x102B, 0x0522), "bmc"), ((0x1AF4, 0x1050), "virtual"), ((0x1B36, 0x0100), "virtual"),
        ((0x1234, 0x1111), "virtual"), ((0x15AD, 0x0405), "virtual"), ((0x1013, 0x00B8), "virtual"),
        ((0x80EE, 0xBEEF), "virtual"), ((0x1414, 0x5353), "virtual"), ((0x1A03, 0x2001), "other"), ((None, None), "other"),
    ],
)  # fmt: skip
def test_what_a_display_adapter_is_there_for(ids, role):
    """Ids of pci.ids: ASPEED and Matrox in servers; virtio, QXL, Bochs, VMware, Cirrus, VirtualBox and Hyper-V."""
    assert merge.role_of_display(*ids) == role


@pytest.mark.parametrize(
    ("vendor", "number"),
    [
        ("NVIDIA Corporation", 0x10DE), ("AMD", 0x1002), ("Advanced Micro Devices, Inc.", 0x1002), ("ATI", 0x1002),
        ("Radeon", 0x1002), ("Intel(R) Corporation", 0x8086), ("Apple", 0x106B), ("Lamda", None), (None, None),
    ],
)  # fmt: skip
def test_a_vendor_in_words_is_its_number(vendor, number):
    assert merge.vendor_of(parse_record({"source": "opencl", "vendor": vendor})) == number


MODELS = st.lists(st.sampled_from(["2684", "2504", "2335"]), min_size=1, max_size=4)


@MANY
@given(MODELS, st.randoms())
def test_every_device_id_an_api_tells_is_that_of_the_device_it_is_put_to(models, random):
    """Each record bears its model in its size; of any mix of models each address has its own."""
    places = [(f"0000:0{n}:00.0", device, int(device, 16) << 20) for n, device in enumerate(models, 1)]
    reported = listed(*random.sample(places, len(places))) + listed(
        *random.sample(places, random.randint(0, len(places))), source="cuda"
    )
    for gpu in detect.inspect(records=bus(*places) + reported).gpus:
        assert gpu.memory.dedicated_bytes.value == int(gpu.device_id.value, 16) << 20
        assert gpu.name.value == f"model {gpu.device_id.value}"


def identical(**facts):
    return Machine(
        gpus=[Gpu(id=name, **{key: make_fact(value, "t") for key, value in facts.items()}) for name in "ab"]
    )


@pytest.mark.parametrize(
    ("machine", "identity"),
    [
        (identical(vendor_id="10de", device_id="2335"), Identity(vendor_id=0x10DE, device_id=0x2335)),
        (identical(bdf="0000:01:00.0"), Identity(pci="0000:01:00.0")),
    ],
)
def test_a_device_that_may_be_either_of_two_gpus_is_told_to_be_none(machine, identity):
    assert detect.gpu_for(machine, identity) is None
    alone = Machine(gpus=machine.gpus[:1])
    assert detect.gpu_for(alone, identity) == "a"


def test_of_two_listings_of_one_card_the_one_with_its_address_is_of_the_card():
    card = {"uuid": UUIDS[0], "vendor_id": "10de", "device_id": "2335"}
    machine = detect.inspect(
        records=[
            {"source": "nvml", "bdf": "0000:01:00.0", **card},
            {"source": "cuda", "ordinal": 0, **card},
            {"source": "cuda", "ordinal": 1, "bdf": "0000:01:00.0", **card},
        ]
    )
    assert [(gpu.bdf.value, gpu.apis["cuda"].ordinal) for gpu in machine.gpus] == [
        ("0000:01:00.0", 1),
        (None, 0),
    ]


@pytest.mark.parametrize(
    ("second", "count"),
    [
        (
            [
                {"uuid": "MIG-11111111-0000-0000-0000-000000000001"},
                {"uuid": "MIG-11111111-0000-0000-0000-000000000002"},
            ],
            2,
        ),
        ([{"ordinal": 0}, {"ordinal": 1}], 2),  # a source that gives them no uuid
        ([{"uuid": "MIG-11111111-0000-0000-0000-000000000003"}], 3),
    ],
)
def test_a_partition_that_two_sources_list_is_one(second, count):
    parent = {"source": "nvml", "bdf": "0000:01:00.0", "vendor_id": "10de"}
    mine = [
        {"source": "nvml", "ordinal": f"0:{n}", "uuid": f"MIG-11111111-0000-0000-0000-00000000000{n}"}
        for n in (1, 2)
    ]
    other = [{"source": "tool"} | record for record in second]
    parts = [record | {"partition_of": "0000:01:00.0"} for record in mine + other]
    (gpu,) = detect.inspect(records=[parent, *parts]).gpus
    assert len(gpu.compute.partitions) == count


def test_of_two_sources_without_uuids_the_one_that_lists_most_counts():
    parent = {"source": "nvml", "bdf": "0000:01:00.0", "vendor_id": "10de"}
    parts = [
        {"source": source, "ordinal": n, "partition_of": "0000:01:00.0"}
        for source, n in (("a", 0), ("b", 0), ("b", 1))
    ]
    (gpu,) = detect.inspect(records=[parent, *parts]).gpus
    assert [partition.id for partition in gpu.compute.partitions] == ["b:0", "b:1"]
