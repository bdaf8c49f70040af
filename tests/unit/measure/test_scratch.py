"""Scratch folders of killed runs do not pile up; those of living ones stay, and so does everything else."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from unittest.mock import Mock

import pytest

from gpubench.base.errors import GpubenchError
from gpubench.measure import scratch
from gpubench.measure.scratch import CLUSTER_PREFIX, MARKER, PREFIX, Scratch
from tests.raising import raised

_KILLED = """
import os, pathlib, sys, tempfile
tempfile.tempdir = sys.argv[1]
from gpubench.measure.scratch import Scratch
made = Scratch(sys.argv[3])
(made.folder / "x.npy").write_bytes(b"x")
print(made.folder, flush=True)
if sys.argv[2] == "lives":
    sys.stdin.read()
os._exit(9)
"""


def start(folder, word, prefix=PREFIX):
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(folder), word, prefix], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, process.stdout.readline().strip()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("prefix", [PREFIX, CLUSTER_PREFIX])
def test_a_folder_of_the_dead_is_removed_and_one_of_the_living_is_not(temporary, prefix):
    killed, orphan = start(temporary, "dies", prefix)
    killed.wait()
    living, used = start(temporary, "lives", prefix)
    made = Scratch()
    assert sorted(map(str, temporary.iterdir())) == sorted([used, str(made.folder)])
    assert orphan not in map(str, temporary.iterdir())
    living.communicate()
    made.remove()
    assert [str(path) for path in temporary.iterdir()] == [used]


def test_references_stay_until_those_measured_longest_ago_have_no_room(temporary):
    made = Scratch(host_bytes=16 * 250)
    for op, left in (("add", "a"), ("mul", "am"), ("add", "am"), ("sub", "ams"), ("dot", "as")):
        made.serve({op})
        if op != "dot":
            (made.folder / f"{op[0]}-want0.npy").write_bytes(bytes(100))
        assert {path.name[0] for path in made.folder.glob("*.npy")} == {*left}, "add was measured after mul"
    made.remove()


FOREIGN = ["gpubench-2026-results", "gpubench-999999-abc", "gpubench-scratch-notes", None]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_that_is_not_ours_stays_and_no_link_to_one_is_followed(temporary, tmp_path_factory, name):
    theirs = temporary / (name or "gpubench-scratch-link")
    if name is None:
        process, orphan = start(tmp_path_factory.mktemp("elsewhere"), "dies")
        process.wait()
        theirs.symlink_to(orphan)
    else:
        theirs.mkdir()
        (theirs / "x.npy").write_bytes(b"x")
    Scratch().remove()
    assert (theirs / "x.npy").read_bytes() == b"x"


def test_a_folder_that_a_killed_run_left_before_or_after_it_had_a_marker_is_removed(temporary):
    (temporary / "gpubench-scratch-empty").mkdir()
    marked = temporary / "gpubench-scratch-marked"
    marked.mkdir()
    (marked / MARKER).touch()
    (marked / "x.npy").write_bytes(b"x")
    another = temporary / f"{CLUSTER_PREFIX}of-another-program"  # so short a name is no proof
    another.mkdir()
    Scratch().remove()
    assert list(temporary.iterdir()) == [another]
    scratch.discard(temporary, Mock(release=lambda keep: temporary.rmdir()))
    assert not temporary.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="giving a folder away needs root")
def test_a_folder_of_another_user_stays(temporary):
    theirs = temporary / "gpubench-scratch-theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    Scratch().remove()
    assert theirs.is_dir()


def refusing(number):
    return Mock(side_effect=OSError(number, os.strerror(number)))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_where_no_file_can_be_locked_a_run_has_a_folder_that_no_other_removes(temporary, monkeypatch, number):
    with monkeypatch.context() as patch:
        patch.setattr("gpubench.result.store.journal._lock", refusing(number))
        made = Scratch()
        assert made.folder.is_dir()
    Scratch().remove()
    assert made.folder.is_dir()
    made.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotFoundError, OSError])
def test_a_folder_that_another_run_took_for_an_orphan_is_made_anew(temporary, monkeypatch, error):
    fates, paths = [error(errno.EIO, "no"), True], []

    def lock(path):
        paths.append(path)
        return Mock(take=Mock(side_effect=[fates.pop(0)]))

    monkeypatch.setattr(scratch, "Lock", lock)
    if error is OSError:
        raised(GpubenchError, Scratch)
        assert (list(temporary.iterdir()), len(fates)) == ([], 1)
    else:
        made = Scratch()
        assert (paths[-1], len(list(temporary.iterdir()))) == (made.folder / MARKER, 2)


FULL, READ_ONLY = (errno.ENOSPC, "free some space"), (errno.EROFS, "mount it for writing")


@pytest.mark.parametrize(("number", "mend"), [FULL, READ_ONLY])
def test_a_temporary_folder_that_takes_nothing_is_named_with_its_remedy(temporary, monkeypatch, number, mend):
    monkeypatch.setattr(tempfile, "mkdtemp", refusing(number))
    refused = raised(GpubenchError, Scratch)
    assert str(temporary) in refused.why
    assert refused.hint.startswith(mend)
    assert "TMPDIR" in refused.hint


@pytest.mark.parametrize("free", ["enough", "little", "closed"])
def test_references_lie_in_memory_where_it_has_room(tmp_path, monkeypatch, free):
    """A disk that writes them back takes a CPU from what is timed."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(scratch, "MEMORY", memory)
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    usage = shutil.disk_usage(memory)
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    needed = os.W_OK | os.X_OK
    monkeypatch.setattr(scratch.os, "access", lambda path, mode: free != "closed" or mode & needed != needed)
    made = Scratch(host_bytes=16 * (600 if free == "little" else 400))
    assert (made.folder.parent == memory) == (free == "enough")
    made.remove()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    named = Scratch(host_bytes=16)
    assert named.folder.parent == tmp_path, "who names a folder gets it"
    named.remove()
