import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect import gpu as access
from gpubench.detect.facts import make_fact
from gpubench.detect.gpu import parse_visible
from gpubench.result.machine import Compute, Gpu, Partition

UUIDS = ["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333"]
CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
UNKNOWN, SHOWN = "not_probed", "absent"
MIG = "MIG-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(("text", "ordinals", "uuids"), [
    ("", (), ()), ("-1", (), ()), ("x", (), ()), ("0,0", (), ()), ("1,x,2", (1,), ()), ("2,0", (2, 0), ()), ("0,7,1", (0,), ()),
    ("0,GPU-aaaa1111", (0,), ()), (" 1 , 2 ", (1, 2), ()), ("3", (), ()), ("GPU-bbbb", (), UUIDS[2:]), ("GPU-aaaa", (), ()),
    ("GPU-aaaa2222,0", (), UUIDS[1:2]), ("GPU-AAAA1111", (), UUIDS[:1]), ("gpu-b", (), ()), ("GPU-", (), ()),
    ("GPU-bbbb,GPU-bbbb3333", (), ())])  # fmt: skip
def test_lists_of_numbers_or_uuids(text, ordinals, uuids):
    assert parse_visible(text, 3, UUIDS) == (ordinals, tuple(uuids))


@given(st.text(), st.integers(0, 8))
def test_any_text_names_only_devices_that_exist(text, count):
    seen = parse_visible(text, count, UUIDS[:count])
    assert all(n < count for n in seen.ordinals)
    assert set(seen.uuids) <= set(UUIDS)


def gpus(vendor, models):
    return [Gpu(id=f"g{n}", **{name: make_fact(value, "t") for name, value in
                               (("vendor", vendor), ("uuid", UUIDS[n]), ("device_id", model), ("name", model))})
            for n, model in enumerate(models)]  # fmt: skip


def hidden(found, **environ):
    return [fact.value or fact.status for fact in access.hidden(found, environ).values()]


@pytest.mark.parametrize(("vendor", "models", "environ", "verdicts"), [
    # CUDA's numbers follow speed, unless models are equal or the bus is asked for.
    ("nvidia", "aa", {CUDA: "1"}, [CUDA, SHOWN]), ("nvidia", "ab", {CUDA: "1"}, [UNKNOWN, UNKNOWN]),
    ("nvidia", "ab", {CUDA: "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [CUDA, SHOWN]),
    # Whatever the order is, a list of all numbers hides none, and a list of none hides all.
    ("nvidia", "ab", {CUDA: "1,0"}, [SHOWN, SHOWN]), ("nvidia", "ab", {CUDA: "-1"}, [CUDA, CUDA]),
    ("nvidia", "ab", {CUDA: "0,0"}, [CUDA, CUDA]), ("nvidia", "a", {CUDA: ""}, [CUDA]), ("amd", "a", {}, [SHOWN]),
    # HIP reads CUDA's variable where its own is empty, and an empty one hides nothing.
    ("amd", "a", {CUDA: ""}, [SHOWN]), ("amd", "a", {HIP: "", ROCR: "0"}, [SHOWN]), ("amd", "a", {ROCR: ""}, [ROCR]),
    ("amd", "ab", {CUDA: "1"}, [CUDA, SHOWN]), ("amd", "ab", {HIP: "0", CUDA: "1"}, [SHOWN, HIP]),
    ("amd", "ab", {ROCR: "1", "GPU_DEVICE_ORDINAL": "1"}, [ROCR, SHOWN]),  # OpenCL's; Slurm sets both
    ("amd", "aaa", {ROCR: "1,2", HIP: "1"}, [ROCR, HIP, SHOWN]),  # ROCR filters before HIP counts
    ("intel", "ab", {CUDA: "-1", ROCR: "-1", "ZE_AFFINITY_MASK": "0"}, [SHOWN, SHOWN]),  # WebGPU heeds none
])  # fmt: skip
def test_which_gpus_variables_hide(vendor, models, environ, verdicts):
    assert hidden(gpus(vendor, models), **environ) == verdicts


def test_an_instance_shows_the_gpu_that_it_is_a_slice_of():
    first, second = gpus("nvidia", "aa")
    sliced = [first, msgspec.structs.replace(second, compute=Compute(partitions=[Partition(id=MIG)]))]
    for text, verdicts in ((MIG[:12], [CUDA, SHOWN]), (f"0,{MIG}", [SHOWN, CUDA]),
                           (f"{MIG},{MIG}", [CUDA, CUDA])):  # fmt: skip
        assert hidden(sliced, CUDA_VISIBLE_DEVICES=text) == verdicts
