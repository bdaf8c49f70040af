"""What a node sends: the run of a real child, and its `.part` as it grows."""

import os
import sys
from types import SimpleNamespace

import msgspec
import pytest

from gpubench.fleet import node as wire
from gpubench.fleet.cluster import NODE_ARGUMENTS
from gpubench.fleet.driver import load_machine
from gpubench.fleet.node import ChildEnd, NodeIdentity, PartFile, messages
from gpubench.result import store

ADD = "run --ops add --sizes 1k --backends numpy --quick --implementations library --no-config --regimes resident-waited"


@pytest.mark.slow
def test_a_run_is_told_from_who_answers_to_how_it_ended(tmp_path):
    found = list(messages(ADD.split()))
    assert msgspec.json.decode(found[0][1:], type=NodeIdentity) == wire.identity()
    assert msgspec.json.decode(found[-1][1:], type=ChildEnd).status == 0
    assert all(len(message) <= wire.PIECE_BYTES + 1 for message in found)
    events = [msgspec.json.decode(one[1:])["reason"] for one in found if one[:1] == wire.EVENT]
    assert (events[0], events[-1]) == ("run-start", "run-complete")
    (tmp_path / "r.json.gz").write_bytes(b"".join(one[1:] for one in found if one[:1] == wire.RESULT))
    assert store.load(tmp_path / "r.json.gz").complete


@pytest.mark.slow
def test_a_run_that_cannot_begin_says_why():
    *_, last = messages(["run", "--ops", "nothing"])
    end = msgspec.json.decode(last[1:], type=ChildEnd)
    assert (end.status, "there is no 'nothing'" in end.errors) == (2, True)


@pytest.mark.slow
def test_what_detect_writes_is_its_result_in_few_messages(tmp_path):
    found = list(messages(NODE_ARGUMENTS))
    assert [one[:1] for one in found] == [wire.HELLO, wire.RESULT, wire.ENDED]
    assert msgspec.json.decode(found[-1][1:], type=ChildEnd) == ChildEnd(0, "")
    path = tmp_path / "machine.json"
    path.write_bytes(found[1][1:])
    assert load_machine(path).cpu.logical.value == os.cpu_count()


def test_a_node_does_what_its_arguments_say_whatever_the_environment_of_the_driver_was(monkeypatch):
    for name in ("GPUBENCH_CLUSTER", "GPUBENCH_DEEP", "GPUBENCH_FAKE_GPUS"):
        monkeypatch.setenv(name, "1")
    names = {name for name in wire.environment({}) if name.startswith("GPUBENCH_")}
    assert names - {"GPUBENCH_CACHE_DIR"} == {"GPUBENCH_FAKE_GPUS"}
    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetHandleByIndex=["GPU-0", b"GPU-1"].__getitem__,
        nvmlDeviceGetUUID=lambda handle: handle,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    # What is no number, or unknown, stays as it is.
    for devices, names in (("1,0", "GPU-1,GPU-0"), ("", ""), ("GPU-7,GPU-8", "GPU-7,GPU-8"), ("99", "99")):
        monkeypatch.setenv(wire.DEVICES, devices)
        assert wire.environment({wire.DEVICES: devices})[wire.DEVICES] == names


def test_a_part_file_is_read_on_and_from_its_start_when_it_is_written_anew(tmp_path):
    path = tmp_path / "r.part"
    part = PartFile(path)
    assert list(part.news()) == []
    path.write_bytes(b"one\n")
    assert list(part.news()) == [wire.PART_BEGINS, wire.PART + b"one\n"]
    with open(path, "ab") as file:
        file.write(b"two\n")
    assert (list(part.news()), list(part.news())) == ([wire.PART + b"two\n"], [])
    (tmp_path / "fresh").write_bytes(b"anew" * wire.PIECE_BYTES)
    (tmp_path / "fresh").replace(path)
    begins, *pieces = part.news()
    assert (begins, len(pieces)) == (wire.PART_BEGINS, 4)
