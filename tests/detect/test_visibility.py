import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.detect import gpu as access
from gpubench.detect.facts import make_fact
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
    [("GPU-bbbb", ("GPU-bbbb3333",)), ("GPU-aaaa", ()), ("GPU-aaaa2222,0", ("GPU-aaaa2222",)), ("gpu-b", ()), ("GPU-", ())],
)  # fmt: skip
def test_lists_of_uuids(text, uuids):
    assert parse_visible(text, 3, UUIDS) == ((), uuids)


@given(st.text(), st.integers(0, 8))
def test_any_text_names_only_devices_that_exist(text, count):
    seen = parse_visible(text, count, UUIDS[:count])
    assert all(n < count for n in seen.ordinals)
    assert set(seen.uuids) <= set(UUIDS)


@pytest.mark.parametrize(
    ("text", "seen"),
    [("0", (True, False, False)), ("2,0", (True, False, True)), ("1.0,1.1", (False, True, False)), ("7", (False, False, False)),
     ("", None), ("all", None), ("-1", None)],
)  # fmt: skip
def test_masks(text, seen):
    assert access.read_mask(text, 3) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [("level_zero:0", (True, False)), ("level_zero:gpu", (True, True)), ("*:gpu", (True, True)), ("*:cpu", (False, False)),
     ("opencl:cpu;level_zero:1", (False, True)), ("cuda:*", (False, False)), ("level_zero:0,1", (True, True)),
     ("level_zero:0.1", (True, False)), ("!level_zero:*", (True, True)), ("!level_zero:*;!opencl:*", (False, False)),
     ("!*:gpu", (False, False)), ("level_zero:*;!level_zero:1", (True, False)), ("LEVEL_ZERO:GPU", (True, True)),
     ("level_zero", None), ("vulkan:0", None), ("level_zero:first", None), ("", None)],
)  # fmt: skip
def test_selectors(text, seen):
    assert access.read_selector(text, 2) == seen


def gpus(vendor, models):
    return [
        Gpu(id=f"g{n}", **{name: make_fact(value, "t") for name, value in
                           (("vendor", vendor), ("uuid", UUIDS[n]), ("device_id", model), ("name", model))})
        for n, model in enumerate(models)
    ]  # fmt: skip


def hidden(found, **environ):
    return [fact.value or fact.status for fact in access.hidden(found, environ).values()]


CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
MASK, SELECTOR = "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"
UNKNOWN, SHOWN = "not_probed", "absent"


@pytest.mark.parametrize(
    ("vendor", "models", "environ", "verdicts"),
    [
        # CUDA's numbers follow speed, unless models are equal or the bus is asked for.
        ("nvidia", "aa", {CUDA: "1"}, [CUDA, SHOWN]), ("nvidia", "ab", {CUDA: "1"}, [UNKNOWN, UNKNOWN]),
        ("nvidia", "ab", {CUDA: "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [CUDA, SHOWN]),
        # Whatever the order is, a list of all numbers hides none, and a list of none hides all.
        ("nvidia", "ab", {CUDA: "1,0"}, [SHOWN, SHOWN]), ("nvidia", "ab", {CUDA: "-1"}, [CUDA, CUDA]),
        ("nvidia", "ab", {CUDA: "0,0"}, [CUDA, CUDA]),
        ("amd", "a", {CUDA: ""}, [SHOWN]), ("amd", "a", {}, [SHOWN]),
        ("amd", "aaa", {ROCR: "1,2", HIP: "1"}, [ROCR, HIP, SHOWN]),  # ROCR filters before HIP counts
        # oneAPI's follow the driver, unless models are equal or the bus is asked for.
        ("intel", "aa", {MASK: "1"}, [MASK, SHOWN]), ("intel", "ab", {MASK: "1"}, [UNKNOWN, UNKNOWN]),
        ("intel", "ab", {MASK: "1", access.BY_BUS: "1"}, [MASK, SHOWN]), ("intel", "ab", {MASK: "0,1"}, [SHOWN, SHOWN]),
        ("intel", "ab", {SELECTOR: "opencl:cpu"}, [SELECTOR, SELECTOR]),
        ("intel", "aaa", {MASK: "1,2", SELECTOR: "level_zero:1"}, [MASK, SELECTOR, SHOWN]),  # the mask filters first
    ],
)  # fmt: skip
def test_which_gpus_variables_hide(vendor, models, environ, verdicts):
    assert hidden(gpus(vendor, models), **environ) == verdicts


MIG = "MIG-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("text", "shown"),
    [(MIG, "g1"), (MIG[:12], "g1"), (MIG.lower().replace("mig", "MIG"), "g1"), ("MIG-9", ""), (f"{MIG},{MIG}", ""), (f"0,{MIG}", "g0"),
     (f"{MIG},0", "g1"), ("GPU-aaaa1111", "g0"), ("GPU-AAAA1111", "g0"), ("GPU-aaaa", ""), ("MIG-GPU-aaaa1111/3/0", "")],
)  # fmt: skip
def test_an_instance_shows_the_gpu_that_it_is_a_slice_of(text, shown):
    first, second = gpus("nvidia", "aa")
    slices = Compute(partitions=[Partition(id=MIG)])
    found = hidden([first, msgspec.structs.replace(second, compute=slices)], CUDA_VISIBLE_DEVICES=text)
    assert [f"g{n}" for n, verdict in enumerate(found) if verdict == SHOWN] == ([shown] if shown else [])


@given(st.text(alphabet="*:;!,.01gpulev_zro ", max_size=30), st.integers(1, 4))
def test_any_text_is_judged_for_every_gpu(text, count):
    for judge in (access.read_mask, access.read_selector):
        seen = judge(text, count)
        assert seen is None or len(seen) == count
    (fact,) = access.hidden(gpus("intel", "a"), {SELECTOR: "what?"}).values()  # it hides nothing, and is shown
    assert (fact.value, fact.status, fact.source, "what?" in fact.note) == (None, "invalid", SELECTOR, True)
