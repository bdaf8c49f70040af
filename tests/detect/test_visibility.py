from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect import gpu as access
from gpubench.detect.facts import ABSENT, make_fact
from gpubench.detect.gpu import parse_visible
from gpubench.result.machine import Compute, Gpu, Partition

UUIDS = ["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333"]


@pytest.mark.parametrize(
    ("text", "ordinals"),
    [("", ()), ("-1", ()), ("x", ()), ("0,0", ()), ("1,x,2", (1,)), ("2,0", (2, 0)), ("0,7,1", (0,)), ("1,-1,2", (1,)),
     ("0,GPU-aaaa1111", (0,)), (" 1 , 2 ", (1, 2))],
)  # fmt: skip
def test_lists_of_numbers(text, ordinals):
    assert parse_visible(text, 3, UUIDS) == (ordinals, ())


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("GPU-bbbb", ("GPU-bbbb3333",)),
        ("GPU-aaaa", ()),
        ("GPU-aaaa2222,0", ("GPU-aaaa2222",)),
        ("gpu-b", ()),
        ("GPU-", ()),
    ],
)
def test_lists_of_uuids(text, uuids):
    assert parse_visible(text, 3, UUIDS) == ((), uuids)


@given(st.text(), st.integers(0, 8))
def test_any_text_names_only_devices_that_exist(text, count):
    seen = parse_visible(text, count, UUIDS[:count])
    assert all(n < count for n in seen.ordinals)
    assert set(seen.uuids) <= set(UUIDS)


def gpus(vendor, *models):
    return [
        Gpu(
            id=f"g{n}",
            vendor=make_fact(vendor, "t"),
            uuid=make_fact(UUIDS[n], "t"),
            device_id=make_fact(model, "t"),
            name=make_fact(model, "t"),
        )
        for n, model in enumerate(models)
    ]


def hidden(found, **environ):
    return {key: fact.value or fact.status for key, fact in access.hidden(found, environ).items()}


def test_numbers_follow_speed_unless_models_are_equal():
    variable = "CUDA_VISIBLE_DEVICES"
    assert hidden(gpus("nvidia", "a", "a"), **{variable: "1"}) == {"g0": variable, "g1": "absent"}
    assert hidden(gpus("nvidia", "a", "b"), **{variable: "1"}) == {"g0": "not_probed", "g1": "not_probed"}
    by_bus = {variable: "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert hidden(gpus("nvidia", "a", "b"), **by_bus) == {"g0": variable, "g1": "absent"}


def test_cuda_says_nothing_about_other_vendors():
    assert hidden(gpus("amd", "a"), CUDA_VISIBLE_DEVICES="") == {"g0": "absent"}
    assert access.hidden(gpus("amd", "a"), {})["g0"] == ABSENT


def test_rocr_filters_before_hip_counts():
    found = hidden(gpus("amd", "a", "a", "a"), ROCR_VISIBLE_DEVICES="1,2", HIP_VISIBLE_DEVICES="1")
    assert found == {"g0": "ROCR_VISIBLE_DEVICES", "g1": "HIP_VISIBLE_DEVICES", "g2": "absent"}


MIG = "MIG-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("text", "shown"),
    [(MIG, "g1"), (MIG[:12], "g1"), (MIG.lower().replace("mig", "MIG"), "g1"), ("MIG-9", ""), (f"{MIG},{MIG}", ""), (f"0,{MIG}", "g0"),
     (f"{MIG},0", "g1"), ("GPU-aaaa1111", "g0"), ("GPU-AAAA1111", "g0"), ("GPU-aaaa", ""), ("MIG-GPU-aaaa1111/3/0", "")],
)  # fmt: skip
def test_an_instance_shows_the_gpu_that_it_is_a_slice_of(text, shown):
    first, second = gpus("nvidia", "a", "a")
    slices = Compute(partitions=[Partition(id=MIG)])
    found = hidden([first, msgspec.structs.replace(second, compute=slices)], CUDA_VISIBLE_DEVICES=text)
    assert [name for name, verdict in found.items() if verdict == "absent"] == ([shown] if shown else [])


def test_unlike_models_by_number_are_told_where_all_are_named():
    """Whatever the order is, a list of all numbers hides none, and a list of none hides all."""
    variable = "CUDA_VISIBLE_DEVICES"
    assert hidden(gpus("nvidia", "a", "b"), **{variable: "1,0"}) == {"g0": "absent", "g1": "absent"}
    assert hidden(gpus("nvidia", "a", "b"), **{variable: "-1"}) == {"g0": variable, "g1": variable}
    assert hidden(gpus("nvidia", "a", "b"), **{variable: "0,0"}) == {"g0": variable, "g1": variable}
