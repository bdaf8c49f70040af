"""Runs in a network namespace of its own: a Ray cluster of a head and four nodes, and accidents on it.

Prints a JSON object: what each accident left. Ends only processes that it started. What waits more than it works runs
beside the others.
"""

import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ONE = "--ops add --sizes 1k --implementations library --regimes resident-waited --quick".split()
QUICK = [*ONE, "--backends", "numpy"]
HANGS = [*ONE, "--devices", "fake:hang"]
NODES = 4
UP, SET_FLAGS = 0x41, 0x8914


def lift_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14s", b"lo", UP, b""))


class Program:
    """gpubench on the cluster at `address`, in a folder of its own."""

    def __init__(self, command: str, folder: Path, address: str, *arguments: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "fleet.json"
        words = [sys.executable, "-m", "gpubench", command, "--cluster", address, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(words, cwd=folder, env=os.environ | env, text=True, **pipes)

    def end(self) -> dict[str, object]:
        out, errors = self.process.communicate(timeout=90)
        return {"code": self.process.returncode, "out": out, "errors": errors[-3000:]}


class Fleet(Program):
    def __init__(self, folder: Path, address: str, *arguments: str, **env: str) -> None:
        output = [] if "--append" in arguments else ["-o", str(folder / "fleet.json")]
        super().__init__("run", folder, address, *arguments, *output, **env)

    def end(self) -> dict[str, object]:
        log = self.path.with_suffix(".jsonl")
        return {
            **super().end(),
            "fleet": json.loads(self.path.read_text()) if self.path.exists() else None,
            "events": [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else [],
        }

    def wait_for(self, reason: str) -> None:
        """Until all nodes have reported an event of this kind."""
        until = time.monotonic() + 60
        log = self.path.with_suffix(".jsonl")
        while time.monotonic() < until and self.process.poll() is None:
            lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            told = {line["node"] for line in lines if line.get("event", {}).get("reason") == reason}
            if len(told) >= NODES:
                return
            time.sleep(0.1)


def children() -> dict[int, int]:
    """The runs of nodes that go on, each with the Ray worker that started it."""
    found = {}
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            ours = os.readlink(place / "ns/net") == os.readlink("/proc/self/ns/net")
            if ours and b"gpubench" in words and b"jsonl" in words:
                found[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    return found


def left(pids: list[int], seconds: float) -> list[int]:
    """Those that are still there after so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.1)
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pids(node: Any) -> set[int]:
    """Of the processes that Ray started for the node."""
    return {one.process.pid for started in node.all_processes.values() for one in started}


def main(folder: Path) -> dict[str, object]:
    lift_loopback()
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    os.environ |= {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(folder), "RAY_BACKEND_LOG_LEVEL": "error", "RAY_prestart_worker_first_driver": "0",  # each takes a second of a CPU, and few are used
    }  # fmt: skip
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 << 20, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    found: dict[str, object] = {}
    try:
        nodes = [cluster.add_node(wait=False, num_cpus=2, num_gpus=2, **small) for _ in range(NODES)]
        cluster.wait_for_nodes()
        at = cluster.address

        other = folder / "other-token"
        other.write_text(secrets.token_hex(32))
        refused = Fleet(folder / "token-refused", at, *QUICK, RAY_AUTH_TOKEN_PATH=str(other))
        found["whole"] = Fleet(folder / "whole", at, *QUICK).end()

        saved = folder / "whole" / "fleet.json"
        document = json.loads(saved.read_text())
        document["nodes"][0] |= {"status": "failed", "reason": "hung"}
        saved.write_text(json.dumps(document))
        others = ",".join(node["label"] for node in document["nodes"][1:])
        again = Fleet(folder / "whole", at, *QUICK, "--append", str(saved))
        found["inventory"] = Program("detect", folder / "inventory", at, "--json", "--nodes", others).end()
        found["again"] = again.end()

        stopped = Fleet(folder / "stopped", at, *HANGS)
        stopped.wait_for("run-start")
        found["busy"] = Program("detect", folder / "busy", at, "--queue-timeout", "1s").end()
        stopped.process.send_signal(signal.SIGINT)
        runs = children()
        found["stopped"] = stopped.end()
        found["left"] = left(list(runs), 5)

        # On one node the worker dies, one freezes, one is removed, and one goes on.
        accidents = Fleet(folder / "accidents", at, *HANGS, "--case-timeout", "5s", "--silence-timeout", "8s")
        accidents.wait_for("case-start")
        runs = children()
        found["runs"] = len(runs)
        (victim, worker), (_, frozen), (lost, host), _ = runs.items()
        os.kill(worker, signal.SIGKILL)
        raylet = parent(host)
        cluster.remove_node(next(node for node in nodes if raylet in pids(node)), allow_graceful=False)
        asleep = [frozen, parent(frozen)]  # and its raylet
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        try:
            found["orphans"] = left([victim, lost], 5)
            found["accidents"] = accidents.end()
        finally:
            for pid in asleep:
                os.kill(pid, signal.SIGCONT)
        found["refused"] = refused.end()
    finally:
        cluster.shutdown()
    return found


if __name__ == "__main__":
    result = main(Path(sys.argv[1]))
    Path(sys.argv[1], "found.json").write_text(json.dumps(result))
