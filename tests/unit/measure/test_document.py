"""The document of a run names no path, user or host; its fingerprints do not depend on order."""

import getpass
import os
import platform
import re
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.measure.recorder import Origin, Recorder, fingerprint, new_run
from gpubench.result import store
from gpubench.result.case import Case
from gpubench.result.machine import Fact, Gpu, Machine
from gpubench.result.run import (
    Block,
    Check,
    Device,
    Identity,
    Measurement,
    Planned,
    RunWarning,
    Selection,
    SessionRecord,
    Settings,
    Skip,
    Stop,
)

DEVICE = Device(
    id="cupy:0", backend="cupy", kind="gpu", name="Example", api="cuda", memory_bytes=2**34,
    identity=Identity(uuid="0123456789abcdef", pci="0000:09:00.0"),
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def outside_of_a_checkout(tmp_path_factory):
    """Asking git of the checkout takes longer than all else here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("nowhere"))
        yield


def document(argv=(), environ=None):
    origin = Origin(argv=argv, versions={"numpy": "2.0"}, environ=environ or {})
    return new_run(Selection(ops=["add"]), Settings(), Machine(), [DEVICE], origin)


names = st.from_regex(re.compile(r"[A-Za-z0-9_.@-]{3,12}"), fullmatch=True)
paths = st.builds(
    lambda parts, name: "/".join(["", *parts, name]), st.lists(names, min_size=1, max_size=4), names
)


@given(paths, st.sampled_from(["{}", "-o{}", "--output={}", "--config={}"]))
def test_paths_are_cut_to_their_last_part(path, written):
    (argument,) = document([written.format(path)]).argv
    assert os.sep not in argument
    assert argument.endswith(path.rpartition("/")[2])


@pytest.mark.parametrize(
    "written", ["*/*/library/*@numpy:0", "--skip=add/n=64/*", "add/n=64/float32/tuned/resident@numpy:0"]
)
def test_a_selector_of_cases_is_no_path(written):
    assert document([written]).argv == [written]


def test_the_environment_is_recorded_by_name_and_nothing_else_of_it(monkeypatch):
    for module, name in ((socket, "gethostname"), (platform, "node"), (getpass, "getuser")):
        monkeypatch.setattr(module, name, lambda: "private-box")
    secret = {"AWS_SECRET": "hunter2", "HOME": "/home/someone", "USER": "someone", "HOSTNAME": "private-box"}
    run = document(["run", "-o", "/home/someone/r.json"], {**secret, "OMP_NUM_THREADS": "1"})
    assert run.environment.variables == {"OMP_NUM_THREADS": "1"}
    text = store.dumps(run).decode()
    for word in ("hunter2", "someone", "private-box", os.getcwd()):
        assert word not in text


def test_raw_ids_of_devices_are_not_written():
    text = store.dumps(document()).decode()
    assert "0123456789abcdef" not in text
    assert "0000:09:00.0" not in text


@pytest.mark.parametrize("uuid", ["GPU-8fd2ceae-1e56-1aae-077f-81452b8715a7", "GPU-fa8f3d8e91c2b7a0"])
def test_a_uuid_becomes_a_digest_everywhere_and_stays_one_name(uuid):
    gpu = Gpu(id=uuid, uuid=Fact(uuid, "ok", "nvml"))
    device = msgspec.structs.replace(DEVICE, gpu_id=uuid)
    runs = [
        new_run(Selection(ops=["add"]), Settings(), Machine(gpus=[gpu]), [device], Origin()) for _ in range(2)
    ]
    assert uuid.encode() not in store.dumps(runs[0])
    found = runs[0].machine.gpus[0]
    assert found.id == found.uuid.value == runs[0].devices[0].gpu_id
    assert found.id.startswith("GPU-")
    assert found.id == runs[1].machine.gpus[0].id


@pytest.mark.parametrize(
    ("environ", "provider"),
    [({}, None), ({"CI": "1"}, "unknown"), ({"CI": "true", "GITHUB_ACTIONS": "true"}, "github")],
)
def test_the_ci_is_named(environ, provider):
    ci = document(environ=environ).environment.ci
    assert (ci.provider if ci else None) == provider


def test_outside_of_a_checkout_there_is_no_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert document().environment.git is None
    monkeypatch.setenv("PATH", "")
    assert document().environment.git is None


@given(st.dictionaries(names, names, max_size=6), st.randoms())
def test_fingerprints_depend_on_every_field_and_not_on_order(fields, random):
    items = list(fields.items())
    random.shuffle(items)
    assert fingerprint(dict(items)).hash == fingerprint(fields).hash
    for name in fields:
        assert fingerprint({**fields, name: fields[name] + "x"}).hash != fingerprint(fields).hash


# ------------------------------------------------------------------- the recorder


def case(n):
    return Case("add", "vector", {"n": n}, "float32", "library", "resident", "numpy:0")


def measured(n):
    check = Check(ok=True, max_error=0.0, limit=1e-7, scale="value")
    return Measurement(id=case(n).id, case=case(n), flops=n, bytes=12 * n, op_hash="0", check=check)


@pytest.fixture
def saved():
    return []


@pytest.fixture
def recorder(saved):
    return Recorder(document(), saved.append)


def test_what_was_planned_and_never_reached_is_a_skip_at_the_end(recorder, saved):
    recorder.plan([Planned(id=case(n).id, case=case(n)) for n in (1, 2)])
    recorder.put(measured(1))
    run = recorder.finish(124, "budget", complete=True)
    assert [type(o) for o in run.outcomes] == [Measurement, Skip]
    assert run.outcomes[1].reason == "budget"
    assert run.complete
    assert saved[-1] == run


def test_an_interrupted_run_keeps_its_plan(recorder):
    recorder.plan([Planned(id=case(1).id, case=case(1))])
    run = recorder.finish(130, "interrupted", complete=False)
    assert [type(o) for o in run.outcomes] == [Planned]
    assert (run.complete, run.exit_code, run.exit_reason) == (False, 130, "interrupted")
    assert run.finished_at


def test_blocks_stops_sessions_and_warnings_are_added_in_order(recorder):
    recorder.put(measured(1))
    for number in range(3):
        recorder.add(case(1).id, blocks=Block(session=0, round=number, position=0, repeat=1, wall_s=[1.0]))
    recorder.add(case(1).id, stops=Stop(session=0, reason="precision"))
    recorder.session(SessionRecord(index=0, started_at="now"))
    recorder.session(SessionRecord(index=0, started_at="later"))
    recorder.warn(RunWarning(code="budget", message="m"))
    run = recorder.run
    assert [b.round for b in run.outcomes[0].blocks] == [0, 1, 2]
    assert [s.reason for s in run.outcomes[0].stops] == ["precision"]
    assert [(s.index, s.started_at) for s in run.sessions] == [(0, "later")]
    assert [w.code for w in run.warnings] == ["budget"]


def test_a_plan_never_replaces_what_is_known(recorder):
    recorder.put(measured(1))
    recorder.plan([Planned(id=case(1).id, case=case(1))])
    assert isinstance(recorder.outcome(case(1).id), Measurement)
