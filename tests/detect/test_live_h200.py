"""What `gpubench detect --json` printed on machines with one and with two H200s (uuids replaced): the document
still reads, fits its schema, and says what those machines are."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from gpubench import detect
from gpubench.result import store
from gpubench.result.machine import Machine

FOLDER = Path(__file__).parent


@pytest.fixture(params=[("h200.detect.json", 1), ("two-h200.detect.json", 2)], ids=["one", "two"])
def live(request):
    name, count = request.param
    return (FOLDER / name).read_bytes(), count


def test_the_document_fits_its_schema_and_reads_back(live):
    data, _ = live
    document = json.loads(data)
    jsonschema.validate(document, store.schema("gpubench-detect", Machine))
    machine = msgspec.json.decode(data, type=Machine)
    # The documents are older than these facts.
    unknown = {"value": None, "status": "not_probed", "source": None}
    document["cpu"]["now_hz"] = unknown
    for gpu in document["gpus"]:
        gpu["link"]["paths"] = []
        gpu["driver"]["cuda"] = gpu["compute"]["now_hz"] = unknown
    assert json.loads(detect.to_json(machine)) == document


def test_each_card_is_one_gpu_with_all_its_facts(live):
    data, count = live
    machine = msgspec.json.decode(data, type=Machine)
    assert machine.live
    assert machine.gpu_count.value == len(machine.gpus) == count
    assert len({gpu.id for gpu in machine.gpus}) == len({gpu.bdf.value for gpu in machine.gpus}) == count
    for gpu in machine.gpus:
        assert (gpu.name.value, gpu.kind.value, gpu.vendor.value) == ("NVIDIA H200", "discrete", "nvidia")
        assert (gpu.memory.dedicated_bytes.value, gpu.memory.reserved_bytes.value) == (150754820096, 644939776)
        assert (gpu.driver.version.value, gpu.compute.arch.value) == ("580.159.04", "sm_90")
        assert (gpu.link.gen_max.value, gpu.link.width_max.value) == (5, 16)
        assert (gpu.compute.ecc.value, gpu.power.limit_w.value, gpu.usable.value) == (True, 700.0, True)
    assert machine.recommendation.mode == "gpu"
    assert set(machine.recommendation.device_ids) == {gpu.id for gpu in machine.gpus}


def test_two_cards_know_each_other():
    machine = msgspec.json.decode((FOLDER / "two-h200.detect.json").read_bytes(), type=Machine)
    first, second = machine.gpus
    assert first.link.peers == [second.id]
    assert second.link.peers == [first.id]


def test_the_picture_shows_them(live):
    data, count = live
    picture = detect.render(msgspec.json.decode(data, type=Machine), "table")
    assert "NVIDIA H200" in picture
    assert "140" in picture
    assert count == 1 or "2" in picture
