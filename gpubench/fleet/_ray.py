"""Ray as an engine: one generator task a node, which takes all that the node has. The only module that imports Ray.

Ray is believed about what arrives, never about what does not: a node that freezes stays pending for ever, even when it
is cancelled. So a task is forgotten as soon as it is cancelled.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.base.errors import GpubenchError, RequiredUnavailable
from gpubench.base.installation import install_command
from gpubench.fleet import node as wire
from gpubench.fleet.driver import Arrival, EngineNode
from gpubench.fleet.nodes import NodeReason
from gpubench.measure.scratch import CLUSTER_PREFIX, Scratch

LOCAL, AUTO = "local", "auto"
_STORE_BYTES = 80 << 20  # nothing of ours goes there
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_node(arguments: Sequence[str]) -> Iterator[bytes]:
    """The task of a node. Ray sends the name of this function, so each node runs the code that is installed there."""
    yield from wire.messages(arguments)


class RayEngine:
    """A connection to a cluster, or to a Ray of our own on this host."""

    name = "ray"

    def __init__(self, address: str) -> None:
        """`local`, `auto` or HOST:PORT. Raises RequiredUnavailable."""
        self._tasks: dict[str, Any] = {}
        self._ours = contextlib.ExitStack()
        # Ray tells on stdout what it hears of its workers; that is the report's place.
        self._ours.enter_context(contextlib.redirect_stdout(sys.stderr))
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            how = self._private() if address == LOCAL else {"address": address}
            import ray  # not before: it reads the token once, as it is imported

            self._ray: Any = ray
            self.version = str(ray.__version__)
            # A version of Ray or Python that differs ends here, with Ray's own sentence.
            ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=False, **how)
        except ImportError as error:
            self._ours.close()
            raise RequiredUnavailable(
                "no-cluster", "Ray is not installed", why=str(error),
                hint=install_command("ray"),
            ) from error  # fmt: skip
        except GpubenchError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise RequiredUnavailable("no-cluster", why=_words(error)) from error
        except BaseException:
            self.close()
            raise
        finally:
            for number, handler in handlers.items():  # Ray puts its own in their place
                signal.signal(number, handler)

    def _private(self) -> dict[str, Any]:
        """Return what starts a Ray of our own, which nobody enters without the token that is made here."""
        scratch = Scratch(CLUSTER_PREFIX)
        self._ours.callback(scratch.remove)
        token = scratch.folder / "token"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        ours = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_BACKEND_LOG_LEVEL": "error",
        }  # fmt: skip
        before = {name: os.environ.get(name) for name in (*ours, "RAY_AUTH_TOKEN", "RAY_ADDRESS")}
        self._ours.callback(_restore, before)
        for name in before:
            os.environ.pop(name, None)
        os.environ.update(ours)
        # Never a bare init: it may join somebody else's cluster.
        return {
            "address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES,
            # Ray lets everybody write there; above it stands our folder, which nobody else may enter.
            "_temp_dir": str(scratch.folder / "r"),
        }  # fmt: skip

    def nodes(self) -> list[EngineNode]:
        """Return the nodes that Ray says are alive, as it may for a minute too long. One without CPUs and GPUs leads,
        and runs nothing."""
        found = [
            EngineNode(
                id=one["NodeID"], host=str(one["NodeManagerHostname"]), cpus=float(one["Resources"].get("CPU", 0)),
                gpus=float(one["Resources"].get("GPU", 0)),
            )
            for one in self._ray.nodes() if one["Alive"]
        ]  # fmt: skip
        return [node for node in found if node.cpus or node.gpus]

    def start(self, node: EngineNode, arguments: Sequence[str]) -> None:
        """Ask for all of the node: the task is the reservation."""
        task = self._ray.remote(run_node).options(
            num_returns="streaming", max_retries=0, num_cpus=node.cpus, num_gpus=node.gpus,
            label_selector={"ray.io/node-id": node.id},
        )  # fmt: skip
        self._tasks[node.id] = task.remote(list(arguments))

    def poll(self, timeout_s: float) -> list[Arrival]:
        """One message of each node that has any."""
        by_task = {task: node for node, task in self._tasks.items()}
        if not by_task:
            return []
        wait = self._ray.wait
        first, _ = wait(list(by_task), num_returns=1, timeout=timeout_s)
        if not first:
            return []
        ready, _ = wait(list(by_task), num_returns=len(by_task), timeout=0)
        return [self._arrival(by_task[task], task) for task in ready]

    def _arrival(self, node: str, task: Any) -> Arrival:
        try:
            message = self._ray.get(next(task), timeout=0)
        except StopIteration:
            self._tasks.pop(node, None)
            return Arrival(node, reason="died", why="its task ended before its run did")
        except Exception as error:
            self._tasks.pop(node, None)
            return Arrival(node, reason=_reason(error), why=_words(error))
        if not isinstance(message, bytes):
            self.cancel(node)
            return Arrival(node, reason="failed", why=f"it sent a {type(message).__name__} and no bytes")
        return Arrival(node, message)

    def cancel(self, node: str) -> None:
        """Ask Ray to end the task, and forget it."""
        task = self._tasks.pop(node, None)
        if task is not None:
            with contextlib.suppress(Exception):
                self._ray.cancel(task)

    def close(self) -> None:
        """End our tasks, leave the cluster, and end a Ray that is ours. Never `ray stop`: it ends everybody's."""
        for node in list(self._tasks):
            self.cancel(node)
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        self._ours.close()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# By name: a class of another version of Ray may be missing.
_REASONS: dict[str, NodeReason] = {
    "WorkerCrashedError": "died", "NodeDiedError": "died", "OutOfMemoryError": "died", "LocalRayletDiedError": "died",
    "TaskUnschedulableError": "busy", "ActorUnschedulableError": "busy", "RuntimeEnvSetupError": "failed",
    "TaskCancelledError": "died", "ObjectLostError": "died", "OwnerDiedError": "died",
}  # fmt: skip


def _reason(error: Exception) -> NodeReason:
    names = [kind.__name__ for kind in type(error).__mro__]
    return next((_REASONS[name] for name in names if name in _REASONS), "failed")


def _words(error: Exception) -> str:
    """Return what Ray says, on one line: its messages hold stack traces and colours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:600] or type(error).__name__
