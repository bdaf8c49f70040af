"""Runs in a network namespace of its own: a Ray cluster of a head and two nodes, and accidents on it.

Prints a JSON object: what each accident left. Ends only processes that it started.
"""

from __future__ import annotations

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

ONE = ["--ops", "add", "--sizes", "1k", "--forms", "library", "--regimes", "resident-waited", "--quick"]
QUICK = [*ONE, "--backends", "numpy"]
HANGS = [*ONE, "--devices", "fake:hang", "--case-timeout", "12s"]
UP, SET_FLAGS = 0x41, 0x8914


def lift_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14s", b"lo", UP, b""))


class Fleet:
    """One fleet of the program, in a folder of its own."""

    def __init__(self, folder: Path, address: str, *arguments: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "fleet.json"
        command = [sys.executable, "-m", "gpubench", "run", "--cluster", address, *arguments]
        if "--append" not in arguments:
            command += ["-o", str(self.path)]
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=folder, env=os.environ | env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def end(self) -> dict[str, object]:
        out, errors = self.process.communicate(timeout=90)
        return {
            "code": self.process.returncode, "out": out, "errors": errors[-3000:],
            "took_s": time.monotonic() - self.began,
            "fleet": json.loads(self.path.read_text()) if self.path.exists() else None,
            "events": [json.loads(line) for line in self.path.with_suffix(".jsonl").read_text().splitlines()]
            if self.path.with_suffix(".jsonl").exists() else [],
        }  # fmt: skip

    def wait_for(self, reason: str, nodes: int = 2) -> None:
        """Until so many nodes have reported an event of this kind."""
        until = time.monotonic() + 60
        log = self.path.with_suffix(".jsonl")
        while time.monotonic() < until and self.process.poll() is None:
            lines = log.read_text().splitlines() if log.exists() else []
            reported = {
                one["node"]
                for line in lines
                if (one := json.loads(line)).get("event", {}).get("reason") == reason
            }
            if len(reported) >= nodes:
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


def main(folder: Path) -> dict[str, object]:
    lift_loopback()
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    os.environ |= {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(folder), "RAY_BACKEND_LOG_LEVEL": "error",
    }  # fmt: skip
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    found: dict[str, object] = {}
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2, num_gpus=2, **small)
        cluster.wait_for_nodes()
        at = cluster.address

        other = folder / "other-token"
        other.write_text(secrets.token_hex(32))
        refused = Fleet(
            folder / "token-refused", at, *QUICK, RAY_AUTH_TOKEN_PATH=str(other)
        )  # beside the next one
        found["whole"] = Fleet(folder / "whole", at, *QUICK).end()
        found["refused"] = refused.end()

        saved = folder / "whole" / "fleet.json"
        document = json.loads(saved.read_text())
        document["nodes"][0] |= {"status": "failed", "reason": "hung"}
        saved.write_text(json.dumps(document))
        found["again"] = Fleet(folder / "whole", at, *QUICK, "--append", str(saved)).end()

        killed = Fleet(folder / "killed", at, *HANGS)
        killed.wait_for("case-start")
        runs = children()
        found["runs"] = len(runs)
        victim, worker = next(iter(runs.items()))
        os.kill(worker, signal.SIGKILL)
        found["orphans"] = left([victim], 5)
        found["killed"] = killed.end()

        stopped = Fleet(folder / "stopped", at, *HANGS)
        stopped.wait_for("case-start")
        stopped.process.send_signal(signal.SIGINT)
        runs = children()
        found["stopped"] = stopped.end()
        found["left"] = left(list(runs), 5)

        frozen = Fleet(folder / "frozen", at, *HANGS, "--silence-timeout", "8s")
        frozen.wait_for("case-start")
        worker = next(iter(children().values()))
        asleep = [worker, parent(worker)]  # and its raylet
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        try:
            found["frozen"] = frozen.end()
        finally:
            for pid in asleep:
                os.kill(pid, signal.SIGCONT)
    finally:
        cluster.shutdown()
    return found


if __name__ == "__main__":
    result = main(Path(sys.argv[1]))
    Path(sys.argv[1], "found.json").write_text(json.dumps(result))
