import zlib
from pathlib import Path

import pytest

from gpubench import detect
from gpubench.detect import pci
from gpubench.detect.facts import Root
from gpubench.detect.pci import name_of
from tests.detect.trees import HOST
from tests.detect.trees import pci as function

BOOK = """#
#\tVersion: {date}
#\tDate:    {date} 03:15:02
#
0e11  Somebody Else
\t2330  Not this one
10de  NVIDIA Corporation
# a comment
\t2330  GH100 [H100 of tomorrow]
\t\t10de 16c1  A board
\t2684  AD102 [GeForce RTX 4090]
\tzz84  spoiled
\t9999
1af4  Red Hat
\t2684  Wrong vendor
C 00  Unclassified device"""
SHIPPED = pci.table().source
NEWER, OLDER, OTHER = (BOOK.format(date=f"{year}-01-01") for year in (2099, 2001, 2098))
MODEL = "Model: \t\t NVIDIA H100 PCIe\nGPU UUID: \t GPU-00000000-0000-0000-0000-000000000001"
BOARD, (HWDATA, MISC) = "/proc/driver/nvidia/gpus/0000:01:00.0/information", pci.PLACES


@pytest.fixture
def card(plant):
    return lambda **files: plant(HOST | function("0000:01:00.0", "10de", "2330", "nvidia") | files)


def name(root):
    (gpu,) = detect.inspect(sysroot=root).gpus
    return gpu.name.value, gpu.name_precision, gpu.name.source


@pytest.mark.parametrize(("files", "text", "precision", "source"), [
    ({}, "H100", "family", SHIPPED), ({BOARD: MODEL, HWDATA: NEWER}, "NVIDIA H100 PCIe", "exact", BOARD),
    ({HWDATA: NEWER}, "of tomorrow", "family", HWDATA), ({MISC: NEWER}, "of tomorrow", "family", MISC),
    ({HWDATA: OTHER, MISC: NEWER}, "of tomorrow", "family", MISC), ({HWDATA: OLDER}, "H100", "family", SHIPPED),
    *(({HWDATA: spoiled}, "H100", "family", SHIPPED) for spoiled in ("nothing", "# Date: soon", b"\xff\x00\xfe"))])  # fmt: skip
def test_which_source_names_a_gpu(card, files, text, precision, source):
    reported = name(card(**files))
    assert text in reported[0]
    assert reported[1:] == (precision, source)


@pytest.mark.parametrize(("vendor", "device", "product"), [
    (0x10DE, 0x2335, "H200"), (0x1002, 0x74A1, "MI300X"), (0x10DE, 0x26B9, "L40S"), (0x10DE, 0x2B85, "RTX 5090"),
    (0x8086, 0xE20B, "Arc B580"), (0x8086, 0x56A0, "A770"), (0x10DE, 0x1EB8, "T4"), (0x1002, 0x1636, "Renoir"),
    (0x1002, 0x744C, "Navi 31")])  # fmt: skip
def test_the_shipped_table_names_the_gpus_of_its_year(vendor, device, product):
    reported, source = name_of(None, vendor, device) or ("", "")
    assert product in reported
    assert source == SHIPPED


def test_the_notice_and_the_documentation_name_the_day_of_the_table():
    day = pci.table().date
    assert pci.TABLE.stat().st_size < 200 << 10
    notice = " ".join((pci.TABLE.parent / "pci.ids.LICENSE").read_text().split())
    assert (f"version {day.replace('-', '.')}," in notice, f"-{day[:4]} Martin Mares" in notice) == (True, True)
    assert f"`pci.ids` of {day}" in (Path(__file__).parents[2] / "docs/detection.md").read_text()


def test_without_a_machine_no_file_is_read_and_a_spoiled_table_costs_the_names_only(monkeypatch, tmp_path):
    monkeypatch.setattr(Root, "read", lambda *_: pytest.fail("a file of the host was read"))
    assert "H100" in name_of(None, 0x10DE, 0x2330)[0]
    for content in (b"junk", zlib.compress(b"")):
        (tmp_path / "table").write_bytes(content)
        monkeypatch.setattr(pci, "TABLE", tmp_path / "table")
        pci.books.cache_clear()
        assert name_of(None, 0x10DE, 0x2330) is None
    pci.books.cache_clear()


def test_a_recording_keeps_the_names_of_its_devices_and_no_others(card, tmp_path, plain):
    root = card(**{HWDATA: NEWER})
    detect.save_recording(tmp_path / "copy", root)
    assert "2684" not in (tmp_path / "copy" / HWDATA.lstrip("/")).read_text()
    assert plain(detect.inspect(sysroot=tmp_path / "copy")) == plain(detect.inspect(sysroot=root))
