from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench import detect
from gpubench.detect import _merge, _record

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


def document(records):
    machine = msgspec.to_builtins(detect.inspect(records=records, debug=True))
    return machine | {"took_s": 0}


@given(RECORDS, st.randoms())
def test_the_order_of_records_does_not_count(records, random):
    shuffled = list(records)
    random.shuffle(shuffled)
    assert document(shuffled) == document(records)


@given(RECORDS)
def test_no_device_holds_two_records_of_one_enumeration(records):
    merged = _merge.merge([_record.parse(raw) for raw in records])
    for device in merged.devices:
        seen = [record.enumeration for record in device.records]
        assert len(seen) == len(set(seen))


@given(RECORDS)
@example([{"source": "pci-sysfs", "vendor_id": "1af4"},
          {"source": "pci-sysfs", "driver": "radv", "partition_of": "0000:01:00.0", "vendor_id": "1af4"}])  # fmt: skip
def test_merging_what_was_merged_changes_nothing(records):
    first = detect.inspect(records=records, debug=True)
    again = detect.inspect(records=[raw for gpu in first.gpus for raw in gpu.records], debug=True)
    assert [gpu.id for gpu in again.gpus] == [gpu.id for gpu in first.gpus]
    assert [gpu.memory for gpu in again.gpus] == [gpu.memory for gpu in first.gpus]


@given(RECORDS)
def test_every_document_is_sound(records):
    machine = detect.inspect(records=records)
    ids = [gpu.id for gpu in machine.gpus]
    assert len(set(ids)) == len(ids) == machine.gpu_count.value
    assert set(machine.recommendation.device_ids) <= set(ids)
    assert {rejected.device_id for rejected in machine.recommendation.rejected} <= set(ids)


@given(RECORDS)
def test_records_survive_json(records):
    for raw in records:
        record = _record.parse(raw)
        assert _record.parse(msgspec.json.decode(msgspec.json.encode(_record.to_json(record)))) == record


def ids(*records):
    return [gpu.id for gpu in detect.inspect(records=list(records)).gpus]


def test_four_cards_under_one_wrong_bus_id_stay_four():
    assert len(ids(*({"source": "cuda", "ordinal": n, "bdf": "0000:01:00.0"} for n in range(4)))) == 4


def test_two_gpus_under_one_uuid_stay_two():
    both = [{"source": "nvml", "uuid": UUIDS[0], "bdf": f"0000:0{n}:00.0"} for n in (1, 2)]
    assert ids(*both) == ["pci:0000:01:00.0", "pci:0000:02:00.0"]


def test_equal_twins_without_addresses_stay_two():
    twin = {"source": "wgpu:vulkan", "driver": "radv", "vendor_id": "1002", "device_id": "744c", "name": "twin"}
    assert len(ids(twin, dict(twin))) == 2


def test_layered_drivers_make_no_device():
    assert (
        ids({"source": "wgpu:vulkan", "driver": "venus", "vendor_id": "1af4", "name": "Virtio-GPU Venus"}) == []
    )


def test_sizes_far_apart_are_a_conflict_and_allocation_limits_are_not():
    base = {"bdf": "0000:01:00.0", "vendor_id": "10de"}
    machine = detect.inspect(records=[
        base | {"source": "nvml", "memory_bytes": 80 << 30}, base | {"source": "cuda", "memory_bytes": 40 << 30},
        base | {"source": "opencl", "memory_bytes": 20 << 30},
    ])  # fmt: skip
    fact = machine.gpus[0].memory.dedicated_bytes
    assert (fact.value, fact.status, len(fact.alternatives)) == (80 << 30, "conflict", 2)
    machine = detect.inspect(records=[
        base | {"source": "nvml", "memory_bytes": 80 << 30}, base | {"source": "opencl", "memory_bytes": 20 << 30},
    ])  # fmt: skip
    assert machine.gpus[0].memory.dedicated_bytes.status == "ok"


def test_unified_memory_needs_two_proofs():
    refused = {"source": "nvml", "bdf": "0000:01:00.0", "vendor_id": "10de",
               "memory": {"dedicated_bytes": {"value": None, "status": "unsupported"}}}  # fmt: skip
    discrete = detect.inspect(records=[refused | {"device_id": "2335"}]).gpus[0]
    assert (discrete.memory.dedicated_bytes.status, discrete.kind.value) == ("unsupported", "discrete")
    soc = detect.inspect(records=[refused | {"device_id": "2e12"}]).gpus[0]
    assert (soc.memory.unified.value, soc.kind.value) == (True, "integrated")
    assert soc.memory.dedicated_bytes.value is None
