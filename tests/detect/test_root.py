import os

from gpubench.detect.facts import Root


def test_absolute_and_climbing_links_stay_inside(plant):
    root = Root(
        str(plant({"/a/file": "inside", "/b": "-> /a", "/c": "-> ../../../../../a/file", "/loop": "-> loop"}))
    )
    assert root.read("/b/file").text == "inside"
    assert root.read("/c").text == "inside"
    assert root.read("/loop").status == "absent"
    assert root.read("/b/../../../etc/passwd").status == "absent"


def test_only_regular_files_are_opened(plant, tmp_path):
    base = plant({"/folder": None})
    os.mkfifo(base / "pipe")
    root = Root(str(base))
    assert root.read("/pipe").status == "invalid"
    assert root.read("/folder").status == "invalid"
    assert root.read("/nothing").status == "absent"


def test_nul_bytes_and_white_space_are_stripped(plant):
    assert Root(str(plant({"/file": b" 0-3\n\0"}))).read("/file").text == "0-3"


def test_at_most_4_mib_are_read(plant):
    assert len(Root(str(plant({"/big": b"x" * (5 << 20)}))).read("/big").text or "") == 4 << 20
