"""Summaries of the nodes of a fleet. The report (`gpubench-fleet-report`, version 1) says which nodes have a
complete result, which GPUs are slow and which software differs. The inventory (`gpubench-inventory`, version 1)
lists the hardware of the nodes. Both depend only on the nodes' files, not on their order.

A peer group is one case on GPUs that should be alike. A GPU is a suspect if its rate lies below the group's
median by more than the tolerance and more than the spread makes likely. It is slow if two sessions of fresh
workers show that independently (docs/fleet.md). Nodes are read one after the other and dropped, and only a few
hundred bytes are kept for each GPU and case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import msgspec

from gpubench.analysis.estimate import CaseResult, case_result
from gpubench.analysis.machine import gpu_text
from gpubench.curves.stats import FEWEST_PEERS, TOLERANCE, growing_k, is_uniform, median, robust_spread
from gpubench.fleet.nodes import Node, NodeReason
from gpubench.result.identity import pair_gpus
from gpubench.result.machine import Gpu, Machine
from gpubench.result.run import Device, Measurement, Outcome, Run, Skip


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of software whose version is not the same on all nodes."""

    what: str  # the software: `kernel`, `CUDA`, a driver or a package
    usual: str  # the version that most nodes have
    others: dict[str, list[str]]  # the names of the nodes with another version, by version


def find_drift(versions: Iterable[tuple[str, Mapping[str, str]]]) -> tuple[Drift, ...]:
    """Return the software whose versions differ between nodes. `versions` has pairs of a node's name and its
    versions by software. The usual version is the most frequent one, or the first in sorted order of several."""
    nodes: dict[str, dict[str, list[str]]] = {}
    for node, software in versions:
        for what, version in software.items():
            nodes.setdefault(what, {}).setdefault(version, []).append(node)
    drift = []
    for what, by_version in sorted(nodes.items()):
        if len(by_version) > 1:
            usual = max(sorted(by_version), key=lambda version: len(by_version[version]))
            others = {
                version: sorted(names) for version, names in sorted(by_version.items()) if version != usual
            }
            drift.append(Drift(what=what, usual=usual, others=others))
    return tuple(drift)


def system_versions(machine: Machine) -> dict[str, str]:
    """Return the versions of the machine's kernel and of its GPUs' drivers, and the newest CUDA version that
    the first driver with CUDA supports. Unknown versions are left out."""
    versions = {"kernel": machine.platform.kernel.value}
    for gpu in machine.gpus:
        versions["CUDA"] = versions.get("CUDA") or gpu.driver.cuda.value
        name = gpu.driver.name.value
        versions[f"driver {name}"] = gpu.driver.version.value if name else None
    return {what: version for what, version in versions.items() if version}


# The ops that show a slow GPU by its arithmetic, its memory, and its link in both directions.
OPS = ("matmul", "copy", "upload", "download")
SEVERE = 0.20  # the shortfall above which a slow GPU is called severe
FEWEST_SAMPLES = 5  # the least number of samples of a session that counts
_UNEVEN = 0.10  # (largest - smallest) / median from which the spread of a group is reported
_SKIPPED = "skipped"
_NOT_COMPARED = ("contended", "unstable", "implausible")

GpuWord = Literal["severe", "slow", "suspect"]
_GRAVITY = {"severe": 0, "slow": 1, "suspect": 2}


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one case on one GPU, and the case itself."""

    node: str  # the name of the node
    gpu: str  # the key of the GPU in the fleet, as in `gpu_keys`
    device: str  # the id of the device in the run
    started_at: str  # when the run began
    bdf: str | None  # the PCI address of the GPU; None: unknown
    case: str  # workload, implementation and regime of the case
    group: str  # the case and the facts that a GPU shares with its peers, as one text
    driver: str  # the version of the driver; equal among peers, except those of a saved fleet
    size: int  # the size n of the case
    rates: tuple[float, ...] = ()  # launches per second in each session with enough samples
    throttle: tuple[str, ...] = ()  # reasons for a lowered clock
    reason: str | None = None  # the reason why the figure does not count; None if it counts

    @property
    def rate(self) -> float:
        """The median of the sessions' rates, in launches per second. `rates` must not be empty."""
        return median(self.rates)


class SlowGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that falls short in one case."""

    word: GpuWord  # the degree: severe, slow or suspect
    node: str  # the name of the node
    gpu: str  # the key of the GPU in the fleet, as in `gpu_keys`
    device: str  # the id of the device in the run
    bdf: str | None  # the PCI address of the GPU; null: unknown
    case: str  # the case in which the GPU is slow
    rate_per_s: float  # its rate in launches per second
    median_per_s: float  # the median rate of its peers, or its own saved rate
    shortfall: float  # how far its rate is below median_per_s, from 0 to 1
    threshold: float  # the threshold that the shortfall exceeds
    peers: int  # the number of GPUs in its group
    sessions: int  # the number of its sessions
    confirmed: bool  # whether two sessions, or a saved rate, confirm the shortfall
    throttle: tuple[str, ...]  # reasons for a lowered clock
    known_good: bool = False  # whether the GPU falls short of its own saved rate


class PeerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of GPUs that should be alike in one case."""

    case: str  # workload, implementation and regime of the case
    group: str  # the case and the facts that the GPUs share, as one text
    peers: int  # the number of GPUs
    median_per_s: float  # the median rate in launches per second
    low_per_s: float  # the rate of the slowest GPU
    high_per_s: float  # the rate of the fastest GPU
    worst: str  # the key of the slowest GPU
    sigma: float  # the robust standard deviation of the rates / their median
    threshold: float | None  # the shortfall from which a GPU is suspect, or null for too few GPUs
    suspects: int  # the number of GPUs that fall short by more than the threshold
    expected_by_chance: float  # the number of suspects to expect by chance from this spread
    uniform: bool  # false if so many GPUs are suspects that no GPU is named
    uneven: bool  # whether the spread is large enough to be reported
    known_good_change: float | None = None  # median / saved median - 1; null without a saved group


class NotCompared(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that was compared in no case, or on which a case failed."""

    node: str  # the name of the node
    gpu: str  # the key of the GPU in the fleet, as in `gpu_keys`
    device: str  # the id of the device in the run
    reason: str  # the reason why the GPU was not compared


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing all GPUs of a fleet."""

    tolerance: float  # the shortfall, from 0 to 1, up to which no GPU is slow
    looks: int  # the number of comparisons: GPUs in groups with a verdict, over all cases
    k: float  # the tolerated number of standard deviations, which grows with looks
    compared: int  # the number of GPUs in a group with a verdict
    verdicts: tuple[SlowGpu, ...]  # the GPUs that fall short, the worst first
    groups: tuple[PeerGroup, ...]  # the groups of peers
    not_compared: tuple[NotCompared, ...]  # the GPUs that were not compared
    new: tuple[str, ...] = ()  # the keys of GPUs that the saved fleet lacks
    gone: tuple[str, ...] = ()  # the keys of GPUs that only the saved fleet has


# ---------------------------------------------------------------- a run -> figures


def gpu_keys(run: Run, node: str, newest: Run | None = None) -> dict[str, str]:
    """Return the keys of a run's GPUs in the fleet, by their ids in the run. A key is the GPU's UUID as results
    hold it. Without a UUID it is the node's name with the GPU's id in the node's `newest` run (None: this
    run)."""
    # An address may change from run to run.
    same = pair_gpus((newest or run).machine.gpus, run.machine.gpus)
    gpus = {gpu.id: same.get(gpu.id, gpu) for gpu in run.machine.gpus}
    return {id: str(gpu.uuid.value or f"{node}/{gpu.id}") for id, gpu in gpus.items()}


def node_figures(node: Node, name: str = "") -> list[Figure]:
    """Return the figures of all runs of the node, under `name` or else under its own name."""
    return [figure for run in node.runs for figure in figures(run, name or node.name, node.result)]


def figures(run: Run, node: str, newest: Run | None = None) -> list[Figure]:
    """Return the figures of the run's GPUs in the order of the file. Only cases that can show a slow GPU have
    one: queued matmul and copy, upload and download, without variants. `node` and `newest` are as in
    `gpu_keys`."""
    devices = {device.id: device for device in run.devices if device.kind == "gpu"}
    gpus, keys = {gpu.id: gpu for gpu in run.machine.gpus}, gpu_keys(run, node, newest)
    rates = []
    for outcome in run.outcomes:
        case = outcome.case
        device = devices.get(case.device_id)
        telling = case.op in OPS and (case.queued or case.op in ("upload", "download"))
        if device is None or not telling or case.variant:
            continue
        gpu = gpus.get(device.gpu_id or "")
        key = keys.get(device.gpu_id or "", f"{node}/{device.id}")
        rates.append(_figure(run, outcome, device, gpu, node, key))
    return rates


def _figure(run: Run, outcome: Outcome, device: Device, gpu: Gpu | None, node: str, key: str) -> Figure:
    result = case_result(run, outcome, {})
    case = outcome.case
    kernel = outcome.kernel_hash if isinstance(outcome, Measurement) else None
    facts = gpu or Gpu(id="")
    likeness = [
        device.name, device.memory_bytes, facts.power.limit_w.value, len(facts.compute.partitions), device.backend,
        kernel, case.op, case.dtype, case.implementation_id, case.regime_id,
        sorted((name, value) for name, value in case.params.items() if name != "n"),
    ]  # fmt: skip
    blocks = outcome.blocks if isinstance(outcome, Measurement) else []
    return Figure(
        node=node, gpu=key, device=device.id,
        started_at=run.started_at, bdf=facts.bdf.value,
        case=f"{case.workload}/{case.implementation_id}/{case.regime_id}",
        group=" ".join(map(str, likeness)), driver=facts.driver.version.value or device.driver or "",
        size=case.params["n"], rates=_rates(result),
        throttle=tuple(sorted({reason for block in blocks for reason in block.throttle})),
        reason=_reason(outcome, result) if gpu else "it matches no GPU that detection found",
    )  # fmt: skip


def _rates(result: CaseResult) -> tuple[float, ...]:
    return tuple(
        1 / median(samples) for _, samples in sorted(result.sessions.items()) if len(samples) >= FEWEST_SAMPLES
    )


def _reason(outcome: Outcome, result: CaseResult) -> str | None:
    """Return the reason why a figure does not count, or None if it counts."""
    # A failed case gets a reason, too: otherwise GPUs on which a case failed would seem to be alike.
    if not isinstance(outcome, Measurement):
        what = _SKIPPED if isinstance(outcome, Skip) else "failed"
        return f"{what}: {result.detail or result.reason}"
    doubt = next((name for name in _NOT_COMPARED if name in result.findings), None)
    if doubt is not None:
        return doubt
    return (
        None if result.time is not None and _rates(result) else f"failed: {result.detail or 'too few samples'}"
    )


# ---------------------------------------------------------------- figures -> verdicts

_Name = tuple[str, str, int]  # the group, the driver and the size


def compare_gpus(
    all_figures: Iterable[Figure], *, tolerance: float = TOLERANCE, known_good: Iterable[Figure] | None = None
) -> Peers:
    """Compare the GPUs of a fleet, case by case, with their peers. `tolerance` is the shortfall, from 0 to 1, up
    to which no GPU is slow. `known_good` are the figures of a saved fleet: each GPU is also compared with itself
    there."""
    figures, saved = sorted(all_figures, key=_age), sorted(known_good or (), key=_age)
    groups, before = _groups(figures), _groups(saved, drivers=False)
    judged = [group for group in groups.values() if len(group) >= FEWEST_PEERS]
    counted = {figure.gpu for group in judged for figure in group}
    looks = sum(map(len, judged))
    k = growing_k(looks)
    peer_groups, verdicts = [], []
    for (alike, _, size), group in sorted(groups.items()):
        peers, slow = _judge(group, before.get((alike, "", size), []), k, tolerance)
        peer_groups.append(peers)
        verdicts += slow
    gravest: dict[tuple[str, str], SlowGpu] = {}  # by GPU and case
    for verdict in sorted(verdicts, key=_order):
        gravest.setdefault((verdict.gpu, verdict.case), verdict)
    now = {figure.gpu for figure in figures}
    then = now if known_good is None else {figure.gpu for group in before.values() for figure in group}
    return Peers(
        tolerance=tolerance, looks=looks, k=k, verdicts=tuple(gravest.values()), groups=tuple(peer_groups),
        not_compared=tuple(_left_out(figures, groups, counted)), compared=len(counted),
        new=tuple(sorted(now - then)), gone=tuple(sorted(then - now)),
    )  # fmt: skip


def _age(figure: Figure) -> tuple[str, ...]:
    """Return the sort key of a figure, by which newer figures come later."""
    return figure.started_at, figure.node, figure.device, figure.case, figure.gpu


def _groups(figures: Sequence[Figure], *, drivers: bool = True) -> dict[_Name, list[Figure]]:
    """Return the groups of figures to compare, by likeness, driver ("" without `drivers`) and size. For each
    likeness and driver there is one size. Figures that do not count are left out."""
    sizes: dict[tuple[str, str], dict[int, dict[str, Figure]]] = {}
    for figure in figures:
        if figure.reason is None:
            name = (figure.group, figure.driver if drivers else "")
            sizes.setdefault(name, {}).setdefault(figure.size, {})[figure.gpu] = figure
    groups = {}
    for (group, driver), by_size in sizes.items():
        # Searches may end at different sizes. The size that most GPUs have counts, or the largest of several such.
        size = max(by_size, key=lambda n: (len(by_size[n]), n))
        groups[group, driver, size] = list(by_size[size].values())
    return groups


def _judge(
    group: Sequence[Figure], before: Sequence[Figure], k: float, tolerance: float
) -> tuple[PeerGroup, list[SlowGpu]]:
    """Return the peer group of these figures, and verdicts on the GPUs that fall short of their peers or of their
    own saved figures (`before`)."""
    rates = [figure.rate for figure in group]
    middle, sigma = median(rates), robust_spread(rates)
    worst = min(group, key=lambda figure: (figure.rate, figure.gpu))
    threshold = max(tolerance, k * sigma) if len(group) >= FEWEST_PEERS else None
    short = [figure for figure in group if threshold is not None and 1 - figure.rate / middle > threshold]
    uniform = is_uniform(len(short), len(group))
    chance = 0.0 if threshold is None or sigma == 0 else 1 - NormalDist().cdf(threshold / sigma)
    own = {figure.gpu: figure.rate for figure in before}
    peers = PeerGroup(
        case=worst.case, group=worst.group, peers=len(group), median_per_s=middle, low_per_s=min(rates),
        high_per_s=max(rates), worst=worst.gpu, sigma=sigma, threshold=threshold, suspects=len(short),
        expected_by_chance=len(group) * chance, uniform=uniform,
        uneven=len(group) > 1 and (max(rates) - min(rates)) / middle > _UNEVEN,
        known_good_change=middle / median(list(own.values())) - 1 if own else None,
    )  # fmt: skip
    # If too many fall short, the group is not uniform, and none of them gets a verdict.
    slow = [_verdict(figure, middle, threshold or 0.0, len(group)) for figure in short if uniform]
    # A GPU that falls short of its own saved figure gets a verdict in any case.
    slow += [
        _verdict(figure, own[figure.gpu], tolerance, 1, known_good=True)
        for figure in group
        if figure.gpu in own and 1 - figure.rate / own[figure.gpu] > tolerance
    ]
    return peers, slow


def _verdict(
    figure: Figure, middle: float, threshold: float, peers: int, *, known_good: bool = False
) -> SlowGpu:
    shortfall = 1 - figure.rate / middle
    alone = sum(1 - rate / middle > threshold for rate in figure.rates)
    confirmed = known_good or alone >= 2
    word: GpuWord = "suspect" if not confirmed else "severe" if shortfall > SEVERE else "slow"
    return SlowGpu(
        word=word, node=figure.node, gpu=figure.gpu, device=figure.device, bdf=figure.bdf, case=figure.case,
        rate_per_s=figure.rate, median_per_s=middle, shortfall=shortfall, threshold=threshold, peers=peers,
        sessions=len(figure.rates), confirmed=confirmed, throttle=figure.throttle, known_good=known_good,
    )  # fmt: skip


def _order(verdict: SlowGpu) -> tuple[object, ...]:
    return _GRAVITY[verdict.word], -verdict.shortfall, verdict.node, verdict.gpu, verdict.case


def _left_out(
    figures: Sequence[Figure], groups: Mapping[_Name, Sequence[Figure]], counted: set[str]
) -> list[NotCompared]:
    peers = {figure.gpu: len(group) for group in sorted(groups.values(), key=len) for figure in group}
    first: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    for figure in figures:
        first.setdefault(figure.gpu, figure)
        skipped = figure.reason is not None and figure.reason.startswith(_SKIPPED)
        if figure.reason is not None and not (skipped and figure.gpu in counted):
            reasons.setdefault(figure.gpu, f"{figure.case} {figure.reason}")
    missing = []
    for gpu, figure in first.items():
        reason = reasons.get(gpu, "its peers measured another size")
        if gpu in counted and gpu not in reasons:
            continue
        if gpu in peers and gpu not in counted:
            reason = f"{peers[gpu] - 1} peers, and a verdict takes {FEWEST_PEERS - 1}"
        missing.append(NotCompared(node=figure.node, gpu=gpu, device=figure.device, reason=reason))
    return missing


NodeWord = Literal[NodeReason, "complete"]
_USABLE: tuple[NodeWord, ...] = ("partial", "complete")
# First the words for nodes of which nothing is known, then for those that broke, then for unavailable ones.
WORST_FIRST: tuple[NodeWord, ...] = (
    "missing", "unusable", "failed", "died", "hung", "version-skew", "unreachable", "too-few-gpus", "busy", *_USABLE,
)  # fmt: skip


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node in the report of a fleet."""

    name: str  # the name to show
    key: str  # the key of the node in the fleet
    word: NodeWord  # `complete`, or why the node has no complete result
    why: str | None  # the reason in words; null if the node is complete
    gpus: int  # the number of GPUs in its results


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a fleet."""

    name: Literal["gpubench-fleet-report"] = "gpubench-fleet-report"  # the name of the document's format
    schema_version: int = 1  # the version of the document's format
    nodes_expected: int  # the expected number of nodes
    nodes_collected: int  # how many nodes brought a result
    nodes_complete: int  # how many nodes have a complete result
    complete: bool  # whether as many nodes as expected have a complete result
    gpus: int  # the number of GPUs in all results
    peers: Peers  # the comparison of the GPUs
    expected_by_chance: float  # the number of suspects to expect by chance in all groups
    nodes: tuple[NodeRow, ...]  # the nodes, the worst first
    drift: tuple[Drift, ...]  # software that differs between nodes

    @property
    def slow(self) -> int:
        """The number of GPUs with a confirmed verdict, each counted once."""
        return len({verdict.gpu for verdict in self.peers.verdicts if verdict.confirmed})

    @property
    def bad_nodes(self) -> list[str]:
        """The names of nodes that brought no result or have a slow GPU. A GPU that is only suspect does not
        make its node bad."""
        return sorted({node.name for node in self.nodes if node.word not in _USABLE} | self._with_slow_gpu())

    @property
    def ok_nodes(self) -> list[str]:
        """The names of complete nodes without a slow GPU."""
        slow = self._with_slow_gpu()
        return sorted(node.name for node in self.nodes if node.word == "complete" and node.name not in slow)

    def _with_slow_gpu(self) -> set[str]:
        return {verdict.node for verdict in self.peers.verdicts if verdict.confirmed}


def survey_fleet(
    nodes: Iterable[Node], *, expected: int | None = None, tolerance: float = TOLERANCE,
    known_good: Iterable[Figure] | None = None,
) -> FleetReport:  # fmt: skip
    """Return the report of the nodes, which are read one after the other and not kept. `expected` is the number of
    nodes that there should be (None: as many as are given). `tolerance` and `known_good` are as in
    `compare_gpus`."""
    all_figures: list[Figure] = []
    rows: list[NodeRow] = []
    without: list[NotCompared] = []
    versions: list[tuple[str, dict[str, str]]] = []
    for node in nodes:
        # Two machines may have been given one name.
        name = node.name if all(node.name != earlier.name for earlier in rows) else node.key
        seen: dict[str, str] = {}  # the id of each GPU in its newest run, by key
        for run in node.runs:
            keys = gpu_keys(run, name, node.result)
            seen |= {keys[gpu.id]: gpu.id for gpu in run.machine.gpus if gpu.usable.value is not False}
        measured = node_figures(node, name)
        with_figures = {figure.gpu for figure in measured}
        now = {*gpu_keys(node.result, name).values()} if node.result else set()
        for gpu, id in seen.items():
            if gpu not in now or gpu not in with_figures:
                reason = "nothing was measured on it" if gpu in now else "the newest run does not see it"
                without.append(NotCompared(node=name, gpu=gpu, device=id, reason=reason))
        all_figures += [figure for figure in measured if figure.gpu in now or figure.gpu not in seen]
        rows.append(NodeRow(name=name, key=node.key, word=_word(node), why=node.error, gpus=len(seen)))
        if node.result is not None:
            versions.append((name, {**node.result.tool, **system_versions(node.result.machine)}))
    peers = compare_gpus(all_figures, tolerance=tolerance, known_good=known_good)
    without += peers.not_compared
    peers = msgspec.structs.replace(
        peers, not_compared=tuple(sorted(without, key=lambda gpu: (gpu.node, gpu.device, gpu.gpu)))
    )
    rows.sort(key=lambda node: (WORST_FIRST.index(node.word), node.name))
    complete = sum(node.word == "complete" for node in rows)
    needed = len(rows) if expected is None else expected
    return FleetReport(
        nodes_expected=needed, nodes_complete=complete, complete=complete >= needed,
        nodes_collected=sum(node.word in _USABLE for node in rows), gpus=sum(node.gpus for node in rows),
        peers=peers, expected_by_chance=sum(group.expected_by_chance for group in peers.groups), nodes=tuple(rows),
        drift=find_drift(versions),
    )  # fmt: skip


def _word(node: Node) -> NodeWord:
    return node.reason or ("failed" if node.status == "failed" else "complete")


# the hardware of nodes

# The relative difference up to which sizes of RAM are equal, because the kernel reserves more or less at each boot.
SAME_MEMORY = 0.01


class ListedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a node in the inventory."""

    id: str  # the digest of its UUID, as in results
    text: str  # its name and memory
    usable: bool | None  # whether the GPU can be used; null: unknown
    why_not: list[str]  # codes of the reasons why the GPU cannot be used


class ListedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the inventory. Facts that are unknown are null."""

    name: str  # the name to show
    # the reason why the node did not answer, null if it did; without an answer only `software` may be known
    reason: NodeReason | None
    why: str | None  # the reason in words; null if it answered
    cpu: str | None  # the model of its CPU
    cpus: int | None  # the number of CPUs that may be used
    memory_bytes: int | None  # the size of its RAM
    gpus: list[ListedGpu]  # all of its GPUs
    software: dict[str, str]  # versions by the name of the software


class EqualNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes with the same CPU, the same GPUs and almost the same memory. Facts that are unknown are null."""

    cpu: str | None  # the model of the CPU
    cpus: int | None  # the number of CPUs of each node
    memory_bytes: int | None  # the size of the first node's RAM
    gpus: dict[str, int]  # how many GPUs of each kind a node has
    nodes: list[str]  # the names of the nodes


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware and software of the nodes of a fleet."""

    name: Literal["gpubench-inventory"] = "gpubench-inventory"  # the name of the document's format
    schema_version: int = 1  # the version of the document's format
    nodes_expected: int  # the expected number of nodes
    nodes_answered: int  # how many nodes answered
    complete: bool  # whether at least as many nodes as expected answered
    gpus: int  # the number of GPUs of the nodes that answered, without those that surely cannot be used
    nodes: list[ListedNode]  # the nodes, the worst first
    groups: list[EqualNodes]  # nodes with the same hardware, the largest group first
    drift: tuple[Drift, ...]  # software that differs between nodes


def inventory_of(nodes: Iterable[ListedNode], *, expected: int | None = None) -> Inventory:
    """Return the inventory of the nodes. It is complete if at least `expected` nodes answered, or all nodes if
    `expected` is None."""
    listed = sorted(nodes, key=lambda node: (WORST_FIRST.index(node.reason or "complete"), node.name))
    answered = [node for node in listed if node.reason is None]
    needed = len(listed) if expected is None else expected
    return Inventory(
        nodes_expected=needed, nodes_answered=len(answered), complete=len(answered) >= needed,
        gpus=sum(gpu.usable is not False for node in answered for gpu in node.gpus), nodes=listed,
        groups=_equal_nodes(answered), drift=find_drift((node.name, node.software) for node in listed),
    )  # fmt: skip


def list_node(
    name: str, machine: Machine | None = None, *, reason: NodeReason | None = None, why: str | None = None,
    gpubench: str | None = None,
) -> ListedNode:  # fmt: skip
    """Return the entry of a node in the inventory: its `machine`, or the `reason` why it did not answer and the same
    in words (`why`). `gpubench` is the version of the code on the node, or None if unknown."""
    machine = machine or Machine()
    gpus = [
        ListedGpu(id=gpu.id, text=gpu_text(gpu), usable=gpu.usable.value, why_not=list(gpu.why_not))
        for gpu in machine.gpus
    ]
    software = {"gpubench": gpubench} if gpubench else {}
    return ListedNode(
        name=name, reason=reason, why=why, cpu=machine.cpu.model.value, cpus=machine.cpu.available.value,
        memory_bytes=machine.memory.total_bytes.value, gpus=gpus, software={**software, **system_versions(machine)},
    )  # fmt: skip


def _equal_nodes(nodes: Sequence[ListedNode]) -> list[EqualNodes]:
    """Return the nodes in groups with the same hardware, the largest group first."""
    groups: list[list[ListedNode]] = []
    for node in sorted(nodes, key=lambda node: (_looks(node), node.memory_bytes or 0, node.name)):
        if not groups or not _equal(groups[-1][0], node):
            groups.append([])
        groups[-1].append(node)
    groups.sort(key=len, reverse=True)
    return [
        EqualNodes(
            cpu=group[0].cpu, cpus=group[0].cpus, memory_bytes=group[0].memory_bytes,
            gpus=dict(Counter(_look(gpu) for gpu in group[0].gpus)), nodes=sorted(node.name for node in group),
        )
        for group in groups
    ]  # fmt: skip


def _equal(node: ListedNode, other: ListedNode) -> bool:
    least, most = sorted((node.memory_bytes or 0, other.memory_bytes or 0))
    return _looks(node) == _looks(other) and most - least <= SAME_MEMORY * most


def _looks(node: ListedNode) -> tuple[str, int, list[str]]:
    return node.cpu or "", node.cpus or 0, sorted(map(_look, node.gpus))


def _look(gpu: ListedGpu) -> str:
    return gpu.text if gpu.usable is not False else f"{gpu.text} (not usable)"
