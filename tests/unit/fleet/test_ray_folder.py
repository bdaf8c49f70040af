"""Ray as an engine: its folder, which nobody else enters, and what it is asked, on a stub."""

import os
import signal
import stat
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from gpubench.base.errors import RequiredUnavailable
from gpubench.fleet import node as node_module
from gpubench.fleet.node import LOCAL, Arrival, EngineNode, RayEngine

# Ray as far as it is asked here: it lets everybody write in its folder, as the real one does.
RAY = """
import os
__version__ = "2.60.0"
def init(**how):
    folder = how["_temp_dir"]
    os.makedirs(folder + "/session_1/sockets", exist_ok=True)
    os.chmod(folder, 0o777)
    open(folder + "/session_1/sockets/raylet", "w").close()
def shutdown(): pass
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    ray = types.ModuleType("ray")
    exec(RAY, vars(ray))
    monkeypatch.setitem(sys.modules, "ray", ray)
    return folder


def test_a_private_folder_stands_above_what_ray_opens_for_all(temporary: Path) -> None:
    engine = RayEngine(LOCAL)
    (folder,) = temporary.iterdir()
    about = folder.stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o700, os.geteuid())
    open_for_all = [path for path in folder.rglob("*") if path.stat().st_mode & 0o022]
    assert (bool(open_for_all), folder in open_for_all) == (True, False)
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert (token.parent, stat.S_IMODE(token.stat().st_mode)) == (folder, 0o600)
    engine.close()
    assert ([*temporary.iterdir()], "RAY_AUTH_TOKEN_PATH" in os.environ) == ([], False)


def test_a_ray_that_does_not_start_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**how: Any) -> None:
        raise RuntimeError("no ports")

    monkeypatch.setattr(sys.modules["ray"], "init", refuse)
    with pytest.raises(RequiredUnavailable):
        RayEngine(LOCAL)
    assert not list(temporary.iterdir())


class Ray(types.ModuleType):
    """Ray's calls, noted; `ready` are the tasks that have something, and a task yields what it sends or raises."""

    __version__ = "2.60.0"

    def __init__(self) -> None:
        super().__init__("ray")
        self.calls: list[Any] = []
        self.ready: list[Any] = []

    def init(self, **how: Any) -> None:
        self.calls.append(how)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("what Ray says")

    def nodes(self) -> list[dict[str, Any]]:
        owned = {"a": {"CPU": 4, "GPU": 2}, "b": {"CPU": 1}, "gone": {"CPU": 4}, "head": {}}
        return [
            {"NodeID": name, "NodeManagerHostname": f"host-{name}", "Alive": name != "gone", "Resources": what}
            for name, what in owned.items()
        ]

    def remote(self, function: Any) -> Any:
        def options(**asked: Any) -> Any:
            self.calls.append(asked)
            return types.SimpleNamespace(remote=lambda words: self.calls.append(words) or self.ready[-1])

        assert function is node_module.run_node
        return types.SimpleNamespace(options=options)

    def wait(self, tasks: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.calls.append((num_returns, timeout))
        return [task for task in tasks if task in self.ready][:num_returns], []

    def get(self, message: Any, *, timeout: float) -> Any:
        assert timeout == 0
        if isinstance(message, Exception):
            raise message
        return message

    def cancel(self, task: Any) -> None:
        self.calls.append(("cancel", task))

    def shutdown(self) -> None:
        self.calls.append("shutdown")


class NodeDiedError(RuntimeError):
    """As Ray names it."""


def test_a_node_is_one_task_that_takes_all_of_it_and_gives_a_message_at_a_time(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray := Ray())
    handler = signal.getsignal(signal.SIGTERM)
    engine = RayEngine("h:1")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    assert ray.calls.pop() == {**quiet, "address": "h:1"}
    assert (engine.version, signal.getsignal(signal.SIGTERM)) == ("2.60.0", handler)
    a, b = engine.nodes()
    assert a == EngineNode(id="a", host="host-a", cpus=4, gpus=2)
    assert b == EngineNode(id="b", host="host-b", cpus=1)
    bare = EngineNode(id="", host="")
    assert (b.gpus, bare.cpus, bare.gpus, engine.poll(1.0)) == (0, 0, 0, [])
    sent = {"a": [b"one", b"two", NodeDiedError("  off\n\n power ")], "b": [b"x", 5, b"y"]}
    for place in (a, b):
        ray.ready.append(iter(sent[place.id]))
        engine.start(place, ("run", "--quick"))
        assert ray.calls[-2:] == [
            {"num_returns": "streaming", "max_retries": 0, "num_cpus": place.cpus, "num_gpus": place.gpus,
             "label_selector": {"ray.io/node-id": place.id}}, ["run", "--quick"],
        ]  # fmt: skip
    tasks = list(ray.ready)
    ray.calls.clear()
    assert engine.poll(2.5) == [Arrival("a", b"one"), Arrival("b", b"x")]
    assert ray.calls == [(1, 2.5), (2, 0)]
    number = Arrival("b", reason="failed", why="it sent a int and no bytes")
    assert (engine.poll(2.5), ray.calls[-1]) == ([Arrival("a", b"two"), number], ("cancel", tasks[1]))
    assert engine.poll(2.5) == [Arrival("a", reason="died", why="off power")]
    ray.ready.append(iter(()))
    engine.start(b, ())
    assert engine.poll(0.5) == [Arrival("b", reason="died", why="its task ended before its run did")]
    engine.start(b, ())
    ray.ready.clear()
    assert engine.poll(0.5) == []
    engine.close()
    assert ray.calls[-2:] == [("cancel", ANY), "shutdown"]
    out, errors = capsys.readouterr()
    assert (out, errors) == ("", "what Ray says\n"), "the report has stdout for itself"
    print("back")
    assert capsys.readouterr().out == "back\n"


def test_what_ray_says_is_one_line_and_an_unknown_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [node_module.error_text(RuntimeError(text)) for text in ("a" * 700, "")]
    assert texts == ["a" * 600, "RuntimeError"]
    assert [node_module.error_reason(error("")) for error in (NodeDiedError, KeyError)] == ["died", "failed"]
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequiredUnavailable, match="Ray is not installed"):
        RayEngine("auto")
