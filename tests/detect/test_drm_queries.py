"""Answers of the kernel, packed as its headers say, and an ioctl that gives them."""

import ctypes
import struct

import pytest

from gpubench import detect
from gpubench.detect.probes import libraries as drm

GIB = 1 << 30


def region(kind, size):
    return struct.pack("=HHIQQ64x", kind, 0, 0, size, 0)


def test_request_numbers_are_those_of_the_headers():
    assert drm.request(1, 0x05, 32) == 0x40206445  # DRM_IOCTL_AMDGPU_INFO
    assert drm.request(3, 0x39, 16) == 0xC0106479  # DRM_IOCTL_I915_QUERY
    assert drm.request(3, 0x00, 40) == 0xC0286440  # DRM_IOCTL_XE_DEVICE_QUERY


@pytest.mark.parametrize(("flags", "kind"), [(1, "integrated"), (0, "discrete"), (6, "discrete")])
def test_the_fusion_flag_is_what_makes_an_apu(flags, kind):
    info = bytearray(1024)
    struct.pack_into("=I", info, 48, 40)
    struct.pack_into("=Q", info, 136, flags)
    facts = drm.amd_facts(bytes(info), struct.pack("=Q", 8 * GIB) + bytes(88))
    (gpu,) = detect.inspect(
        records=[{"source": "drm-ioctl", "bdf": "0000:03:00.0", "vendor_id": "1002"} | facts]
    ).gpus
    assert (gpu.kind.value, gpu.compute.units.value) == (kind, 40)


def test_i915_is_asked_twice_and_sums_device_memory():
    data = struct.pack("=I12x", 3) + region(0, 64 * GIB) + region(1, 8 * GIB) + region(1, 8 * GIB)
    lengths = []

    def ioctl(_handle, number, command):
        assert number == drm.request(3, 0x39, 16)
        item = struct.unpack("=IIQ", command)[2]
        query, length, _, target = struct.unpack("=QiIQ", ctypes.string_at(item, 24))
        lengths.append(length)
        if length:
            ctypes.memmove(target, data, len(data))
        ctypes.memmove(item, struct.pack("=QiIQ", query, len(data), 0, target), 24)

    assert drm.ask_i915(ioctl, 0)["memory.dedicated_bytes"]["value"] == 16 * GIB
    assert lengths == [0, len(data)]


def test_xe_integrated_has_no_device_memory():
    data = struct.pack("=I4x", 1) + region(0, 64 * GIB)

    def ioctl(_handle, _number, command, _mutate):
        _, query, length, target = struct.unpack("=QIIQ16x", command.tobytes())
        if length:
            ctypes.memmove(target, data, len(data))
        struct.pack_into("=QIIQ16x", command, 0, 0, query, len(data), target)

    assert drm.ask_xe(ioctl, 0)["memory.dedicated_bytes"] == {"value": None, "status": "absent"}


def test_cut_answers_are_refused():
    with pytest.raises(struct.error):
        drm.region_bytes(struct.pack("=I12x", 2) + region(1, GIB), 16, 8)


@pytest.mark.parametrize(("size", "kind"), [(8 * GIB, "discrete"), (None, "integrated")])
def test_intels_regions_tell_the_kind(size, kind):
    facts = drm.intel_facts(size)
    assert (facts["kind"], facts["memory.unified"]) == (kind, kind == "integrated")
