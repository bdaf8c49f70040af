"""Names of control groups without the users, hosts, pods and containers in them.

A name such as `user-1000.slice` or `docker-4f0c...9a.scope` is made of public words (user, slice, docker, scope)
and of parts that belong to somebody. In the document such a part is `*`, as in a shell pattern; in a recording
it is a number, the same one wherever it stands, so that the recording still is a machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Change = Callable[[str], str]
_WORDS = frozenset(
    # places and controllers; systemd's units and groups; runtimes, orchestrators, batch systems; files of a group
    re.findall(
        r"\w+",
        """
        sys fs cgroup cgroups cgroup2 unified dev run proc mnt cpu cpuacct cpuset memory blkio io pids devices freezer
        hugetlb net cls prio perf event rdma misc systemd
        slice scope service user system machine init session app background root
        docker buildkit lxc payload monitor podman libpod conmon containerd cri crio kubepods burstable besteffort
        guaranteed kubelet kubelite k8s ecs batch slurm slurmstepd uid job step task garden nomad actions runner
        container pod
        max high current stat quota period us limit usage in bytes cpus mems effective cfs
        """,
    )
)
_TOKEN = re.compile(r"([/.,:@_\-])")


class Numbers:
    """Private parts by order of appearance; equal parts get equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def rename(self, path: str) -> str:
        """`path` with a number in place of each private part."""
        return _replaced(path, self._number)

    def _number(self, part: str) -> str:
        return str(self._numbers.setdefault(part, len(self._numbers) + 1))


def masked(path: str) -> str:
    """`path` with `*` in place of each private part."""
    return _replaced(path, lambda _part: "*")


def _replaced(path: str, change: Change) -> str:
    return "/".join(_name(name, change) for name in path.split("/"))


def _name(name: str, change: Change) -> str:
    """One name: runs of tokens that are no public words are replaced as a whole."""
    out: list[str] = []
    run: list[str] = []
    for token in [*_TOKEN.split(name), None]:
        separator = token is not None and bool(_TOKEN.fullmatch(token))
        if token is not None and (token == "" or separator or token not in _WORDS):
            run.append(token)
            continue
        out.append(_run(run, change))
        run = []
        out.append(token or "")
    return "".join(out)


def _run(run: list[str], change: Change) -> str:
    """Separators at the ends of a run stay: they join it to public words."""
    text = "".join(run)
    core = text.strip("/.,:@_-")
    if not core:
        return text
    start = text.index(core)
    return text[:start] + change(core) + text[start + len(core) :]
