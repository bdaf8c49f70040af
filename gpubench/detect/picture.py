"""The document for people and scripts: a compact overview, Markdown, shell variables, or every fact with its
source.

On a terminal, memory is shown as a bar. The overview needs neither colours nor a wide terminal nor Unicode.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench.base import group_by
from gpubench.base.installation import locate
from gpubench.base.messages import DETECTION
from gpubench.base.streams import escape, fill, visible
from gpubench.base.table import (
    Cell,
    Column,
    Line,
    Table,
    Tone,
    cells,
    heads,
    line_text,
    markdown_table,
    natural_width,
    number,
    paint,
    table_lines,
)
from gpubench.base.units import format_bytes, format_watts, scale_size
from gpubench.detect.cpu import misfits
from gpubench.detect.facts import list_form
from gpubench.detect.pci import ASLEEP
from gpubench.detect.recommend import GIB, about, is_relevant
from gpubench.result.case import MANAGED, MAPPED, QUEUED, STREAMED, WAITED
from gpubench.result.machine import Gpu, Machine, MeasuredBreakEven, NumaNode

_SMT = {"on": "SMT on", "off": "no SMT", "hidden": "SMT hidden by the hypervisor"}
_YES, _NO = "✓", "✗"
# The colours of usable and unusable devices. The signs distinguish them without colours, too.
_TONES: dict[str, Tone] = {_YES: "good", _NO: "warn"}
NARROWEST, WIDEST, BAR_CELLS = 40, 100, 20
MOST_NODES = 8
# The names of vendors, because the names of devices in pci.ids do not contain them.
_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}


class MachinePart(NamedTuple):
    """A titled part of the overview."""

    title: str  # the title, in the first column
    headline: str  # the first line
    lines: list[str]  # the lines below the headline
    used: float | None = None  # the used share of the part's memory, from 0 to 1; None: not shown
    good: bool = True  # whether the part can be used; False only for GPUs


def _part(
    title: str, headline: str, *lines: str | None, used: float | None = None, good: bool = True
) -> MachinePart:
    """Return a part of the overview, without empty lines."""
    return MachinePart(title, headline, [visible(line) for line in lines if line], used, good)


def machine_line(machine: Machine) -> str:
    """Return one line about the machine: CPU model, usable and logical CPUs, RAM, and each GPU with
    its memory."""
    cpu = machine.cpu
    gpus = [f"{title(gpu)} ({_vram(gpu)})" for gpu in machine.gpus]
    parts = [
        visible(cpu.model.value or "unknown CPU"), f"{_or(cpu.available.value)} of {_or(cpu.logical.value)} CPUs",
        f"{gib(machine.memory.total_bytes.value)} RAM",
        *(gpus or ["no GPU" if machine.gpu_count.value == 0 else "GPUs unknown"]),
    ]  # fmt: skip
    return ", ".join(parts)


def render(machine: Machine, format: str, *, color: int = 0, ascii: bool = False, explain: bool = False) -> str:
    """Return the machine as `table`, `plain` text, `markdown` or `env` (shell variables). `explain` lists the
    facts instead of the overview, except for `env`. `color` is the number of colours: 0, 16 or 256. `ascii`
    replaces signs beyond ASCII."""
    if format == "env":
        return "\n".join(
            f"{key}={shlex.quote('' if value is None else str(value))}"
            for key, value in _variables(machine).items()
        )
    if explain:
        return "\n".join([advice(machine), *explain_facts(machine)])
    parts = list(sections(machine))
    if format == "markdown":
        rows = tuple(
            (Cell(part.title), Cell(part.headline, more=tuple(map(Cell, part.lines)))) for part in parts
        )
        table = Table((Column("part"), Column("what was found")), rows)
        text = f"{escape(advice(machine))}\n\n{markdown_table(table)}"
        return spell(text) if ascii else text
    return draw(advice(machine), parts, color=color, ascii=ascii, bars=format == "table")


def advice(machine: Machine) -> str:
    """Return a sentence with the recommended mode, and the first reason for it."""
    recommended = machine.recommendation
    where = {"cpu": "on the CPU", "gpu": "on the GPU", "hybrid": "on CPU and GPU together"}[recommended.mode]
    chosen = _numbers(machine, recommended.device_ids)
    which = f" (GPU {chosen})" if chosen and len(machine.gpus) > 1 else ""
    reason = f" {recommended.reasons[0].text}" if recommended.reasons else ""
    return visible(f"Recommended mode: {recommended.mode}, compute {where}{which}.{reason}")


def spell(text: str) -> str:
    """Return the text with `+` in place of `✓` and `!` in place of `✗`."""
    return text.replace(_YES, "+").replace(_NO, "!")


def sections(machine: Machine) -> Iterator[MachinePart]:
    """Yield the parts of the overview: mode, CPU, RAM, each GPU, links between GPUs, other devices,
    missing libraries."""
    yield _mode(machine)
    yield _cpu(machine)
    yield _ram(machine)
    yield from _gpus(machine)
    *rows, legend = matrix(machine.gpus[:64]) or [""]  # more than a host has, and nobody reads wider ones
    others = [
        *(f"{visible(s.name)} (software, {', '.join(s.apis)})" for s in machine.software_renderers),
        *(f"{a.bdf.value} display adapter ({a.role.value})" for a in machine.display_adapters),
        *(f"{a.bdf.value} accelerator {a.vendor_id.value}:{a.device_id.value}" for a in machine.accelerators),
    ]
    for name, lines in (("Links", [legend, *rows]), ("Other", others), ("Missing", _missing(machine))):
        if lines and lines[0]:
            yield _part(name, visible(lines[0]), *lines[1:])


def _missing(machine: Machine) -> list[str]:
    """Return a line for each library that is not installed, with the command that installs it."""
    lacks = [warning.text for warning in machine.warnings if warning.code == "RUNTIME_MISSING"]
    for provider in machine.providers:
        hint = provider.hint or ""
        remedy = "pip install" in hint or "not installed" in hint
        listed = any(hint in text for text in lacks)
        if provider.status == "absent" and remedy and not listed and is_relevant(provider, machine):
            lacks.append(f"{provider.name}: {hint}")
    return [locate(text) for text in lacks]


def explain_facts(machine: Machine) -> Iterator[str]:
    """Yield a line for each fact: its path, its value or status, its source, its note, and the values of other
    sources. Then yield a line for each reason of the recommendation."""
    for path, node in _facts(msgspec.to_builtins(machine), ""):
        value = node["status"] if node["value"] is None else _short(node["value"])
        line = f"{path} = {value}" + ("" if node["status"] in ("ok", value) else f" ({node['status']})")
        line += f"  <- {node['source']}" if node["source"] else ""
        line += f"  [{node['note']}]" if node.get("note") else ""
        for other in node.get("alternatives") or ():
            line += f"  (or {_short(other['value'])} <- {other['source']})"
        yield visible(line)
    for reason in machine.recommendation.reasons:
        yield visible(
            f"reason {reason.code}{f' {reason.device_id}' if reason.device_id else ''}: {reason.text}"
        )


def _facts(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict) and {"value", "status", "source"} <= set(node):
        yield path, node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from _facts(child, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for place, child in enumerate(node):
            yield from _facts(child, f"{path}[{place}]")


def _short(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def title(gpu: Gpu) -> str:
    """Return the maker and name of a GPU, or its PCI ids if the name is unknown."""
    maker = _MAKERS.get(gpu.vendor.value or "")
    if gpu.name.value is None:
        vendor, device = gpu.vendor_id.value, gpu.device_id.value
        ids = f" {vendor}:{device}" if vendor and device else ""
        return visible(f"{maker or gpu.driver.name.value or 'unknown'} GPU{ids}")
    return visible(f"{maker} {gpu.name.value}" if maker and gpu.name_precision == "family" else gpu.name.value)


def gib(size: int | None) -> str:
    """Return a number of bytes as a text in GiB, or `unknown` for None."""
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def _or(value: object) -> str:
    return "?" if value is None else str(value)


def _cpu(machine: Machine) -> MachinePart:
    cpu = machine.cpu
    counts = f"{_or(cpu.cores.value)} cores, {_or(cpu.logical.value)} CPUs, {_or(cpu.available.value)} usable"
    if cpu.logical.value is None:
        counts = "number of CPUs unknown"
    if cpu.limited_by.value not in (None, "online"):
        counts += f" (limited by {cpu.limited_by.value})"
    if cpu.smt.value in _SMT:
        counts += f", {_SMT[cpu.smt.value]}"
    kinds = [f"{_or(kind.cores)} cores on CPUs {kind.cpus}" for kind in cpu.kinds.value or ()]
    caches = group_by((c for c in cpu.caches.value or () if c.type != "instruction"), lambda cache: cache.level)
    sizes = [
        f"L{level} {' + '.join(f'{format_bytes(c.size_bytes)} x{c.instances}' for c in own)}"
        for level, own in caches.items()
    ]
    return _part(
        "CPU", visible(cpu.model.value or "unknown model"), counts,
        "kinds: " + "; ".join(kinds) if len(kinds) > 1 else None,
        _clock(cpu.now_hz.value, cpu.max_hz.value, cpu.base_hz.value),
        f"governor {cpu.governor.value}" if cpu.governor.value else None,
        ", ".join(sizes), " ".join(cpu.isa.value or ()),
        *_blas_lines(machine),
    )  # fmt: skip


def _clock(now: int | None, highest: int | None, base: int | None = None) -> str | None:
    """Return a text with the known clocks, given in hertz, or None if none is known."""
    clocks = ((now, "now"), (base, "base"), (highest, "at most"))
    shown = [f"{hertz / 1e9:.2f} GHz {word}" for hertz, word in clocks if hertz]
    return f"clock {', '.join(shown)}" if shown else None


def _blas_lines(machine: Machine) -> Iterator[str]:
    """Yield a line for each BLAS with its number of threads, or a line that says how to see them."""
    cpu = machine.cpu
    for blas in cpu.blas.value or ():
        odd = f": {cpu.available.value} CPUs are usable!" if misfits(blas, cpu) else ""
        name = f"{blas.library} {blas.version}" if blas.version else blas.library
        yield f"BLAS {name} with {_or(blas.threads)} threads{odd}"
    if cpu.blas.status == "not_probed":
        yield "BLAS not asked: --deep shows it and its threads" if machine.live else ""
    elif cpu.blas.value is None:
        yield f"BLAS unknown ({cpu.blas.status})"


def _ram(machine: Machine) -> MachinePart:
    memory = machine.memory
    total, usable, of_gpus = (
        memory.total_bytes.value, memory.usable_bytes.value, memory.gpu_numa_bytes.value
    )  # fmt: skip
    limit = memory.limit_bytes.value
    return _part(
        "RAM", "size unknown" if total is None else f"{gib(total)}, {gib(usable)} usable",
        None if limit is None else f"limited to {gib(limit)} by a control group",
        f"{gib(of_gpus)} of GPU memory, which the kernel counts as RAM, taken out" if of_gpus else None,
        *_numa_lines(machine.numa.nodes), used=_fill_level(total, usable),
    )  # fmt: skip


def _fill_level(total: int | None, free: int | None) -> float | None:
    """Return the used share of a memory, from 0 to 1, or None if it is unknown."""
    return 1 - min(1.0, free / total) if total and free is not None else None


def _numa_lines(nodes: Sequence[NumaNode]) -> Iterator[str]:
    """Yield a line for each of the first MOST_NODES NUMA nodes, and the number of all if there are more."""
    for node in nodes[:MOST_NODES]:
        cpus, memory = node.cpus.value, node.memory_bytes.value
        parts = (
            None if cpus is None else f"CPUs {cpus}" if cpus else "no CPUs",
            None if memory is None else gib(memory) if memory else "no memory",
            "memory of a GPU" if node.kind.value == "gpu" else None,
        )
        yield f"NUMA node {node.id}: {', '.join(filter(None, parts))}"
    if len(nodes) > MOST_NODES:
        yield f"NUMA ... {len(nodes)} nodes in all"


def _gpus(machine: Machine) -> Iterator[MachinePart]:
    """Yield a part for each GPU, or for three and more that differ only in address and present clock."""
    rejected = {entry.device_id: entry.code for entry in machine.recommendation.rejected}

    def looks(entry: tuple[int, Gpu]) -> tuple[str, ...]:
        gpu = entry[1]
        return title(gpu), _vram(gpu), *_gpu_lines(gpu, rejected.get(gpu.id), now=False)

    groups = group_by(enumerate(machine.gpus), looks).values()
    alone = [[entry] for group in groups if len(group) < 3 for entry in group]
    for group in sorted(alone + [group for group in groups if len(group) >= 3]):
        yield _gpu(group, rejected)


def _gpu(group: list[tuple[int, Gpu]], rejected: dict[str, str]) -> MachinePart:
    gpu, many = group[0][1], len(group) > 1
    size, free = gpu.memory.dedicated_bytes.value, gpu.memory.free_bytes.value
    places = ", ".join(entry.bdf.value or entry.id for _, entry in group[:4]) if many else gpu.bdf.value or ""
    places += " ..." if len(group) > 4 else ""
    headline = f"{title(gpu)}, {_vram(gpu)}"
    if many:
        headline = f"{len(group)} x {headline}" + (" each" if size else "")
    facts, *more = _gpu_lines(gpu, rejected.get(gpu.id), now=not many)
    return _part(
        f"GPU {list_form(place for place, _ in group)}", headline, ", ".join(filter(None, (places, facts))), *more,
        used=None if many else _fill_level(size, free), good=not gpu.why_not,
    )  # fmt: skip


def _gpu_lines(gpu: Gpu, rejected: str | None, *, now: bool) -> tuple[str, ...]:
    """Return lines with the facts, the reasons against the use of the GPU, and the verdict."""
    driver, link, compute, power = gpu.driver, gpu.link, gpu.compute, gpu.power
    usable = gib(gpu.memory.usable_bytes.value)
    facts = (
        gpu.kind.value,
        f"driver {driver.name.value} {driver.version.value or ''}".strip() if driver.name.value else None,
        compute.arch.value, f"{compute.units.value} units" if compute.units.value else None,
        f"PCIe {link.gen_max.value} x{_or(link.width_max.value)}" if link.gen_max.value else None,
    )  # fmt: skip
    settings = (
        # the present clock differs between GPUs that share a part
        _clock(compute.now_hz.value if now else None, compute.max_hz.value),
        f"power limit {format_watts(power.limit_w.value)}" if power.limit_w.value else None,
        None if compute.ecc.value is None else f"ECC {'on' if compute.ecc.value else 'off'}",
    )
    slices, asleep = len(compute.partitions), power.state.value in ASLEEP
    largest = f", the largest {usable}" if gpu.memory.usable_bytes.value else ""
    more = (
        ", ".join(filter(None, settings)), f"{slices} partitions{largest}" if slices else None,
        f"clocks held down now: {', '.join(power.throttle)}" if power.throttle else None,
        f"asleep ({power.state.value})" if asleep else None,
        f"listed by {', '.join(sorted(gpu.apis))}" if gpu.apis else None,
        *(f"{_NO} not usable: {code}. {about(code, gpu)}" for code in gpu.why_not),
    )  # fmt: skip
    if rejected is not None:
        verdict = (
            "" if rejected in gpu.why_not else f"{_NO} not chosen: {rejected}. {DETECTION.get(rejected, '')}"
        )
    elif gpu.usable.value:
        verdict = f"{_YES} usable: {usable}"
    else:
        verdict = f"{_YES} {usable} for one process; whether it opens was not tried"
    return (", ".join(filter(None, facts)), *filter(None, (*more, verdict)))


def _vram(gpu: Gpu) -> str:
    usable, dedicated = gpu.memory.usable_bytes.value, gpu.memory.dedicated_bytes.value
    if gpu.memory.unified.value:
        return "shares RAM" + (f", {gib(usable)} usable" if usable else "")
    return gib(dedicated) if dedicated else "memory unknown"


def _mode(machine: Machine) -> MachinePart:
    advice = machine.recommendation
    on = f" on GPU {_numbers(machine, advice.device_ids)}" if advice.device_ids else ""
    threads = f", {advice.cpu_threads} CPU threads" if advice.cpu_threads else ""
    rejected = {(entry.device_id, entry.code) for entry in advice.rejected}  # the GPU's own section says why
    refused = group_by(advice.rejected, lambda entry: entry.code)
    code = f", {advice.reasons[0].code}" if advice.reasons else ""  # the sentence above has its text
    return _part(
        "Mode", f"{advice.mode}{on}{threads} ({advice.confidence}{code})",
        *(f"{r.code}: {r.text}" for r in advice.reasons[1:] if (r.device_id, r.code) not in rejected),
        *(f"not GPU {_numbers(machine, [e.device_id for e in own])}: {code}" for code, own in refused.items()),
        *(quote(advice.measured.break_even) if advice.measured else ()),
    )  # fmt: skip


def _numbers(machine: Machine, ids: Sequence[str]) -> str:
    """Return the places in `gpus[]` of the GPUs with these ids, as a text such as "0-3"."""
    return list_form(place for place, gpu in enumerate(machine.gpus) if gpu.id in ids)


LARGEST_SIDE = 10_000
_REGIMES: dict[str, str] = {
    WAITED: "with data on the GPU", QUEUED: "with calls queued on the GPU", "transfer-always": "copied at every call",
    "transfer-once": "with one copy", STREAMED: "copied in a pipeline",
    MAPPED: "in place", MANAGED: "in place, managed",
}  # fmt: skip


def quote(points: Sequence[MeasuredBreakEven]) -> list[str]:
    """Return a line for each op, params and dtype of the break-evens `points`. An example is "matmul float32:
    GPU from n = 320 copied at every call"."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for point in points:
        size = point.note or "at no size"
        if point.size is not None:
            # The side of a matrix has all its digits, and no side is as large as this.
            n = str(point.size) if point.size < LARGEST_SIDE else " ".join(scale_size(point.size))
            size = f"from n = {n}" + (f" ({point.note})" if point.note else "")
        key = (point.op, point.params, point.dtype)
        lines.setdefault(key, []).append(f"{size} {_regime(point.regime)}")
    return [f"{' '.join(part for part in key if part)}: GPU {', '.join(sizes)}" for key, sizes in lines.items()]


def _regime(regime: str) -> str:
    calls = regime.removeprefix("transfer-once-")
    if calls.isdigit():
        return f"with {calls} calls a copy"
    return _REGIMES.get(regime, regime)


def _variables(machine: Machine) -> dict[str, object]:
    advice = machine.recommendation
    best = next((gpu for gpu in machine.gpus if gpu.id in advice.device_ids[:1]), None)
    return {
        "GPUBENCH_MODE": advice.mode, "GPUBENCH_CONFIDENCE": advice.confidence,
        "GPUBENCH_REASONS": ",".join(dict.fromkeys(reason.code for reason in advice.reasons)),
        "GPUBENCH_DEVICE_IDS": ",".join(advice.device_ids), "GPUBENCH_CPU_THREADS": advice.cpu_threads,
        "GPUBENCH_GPU_COUNT": machine.gpu_count.value,
        "GPUBENCH_GPU_NAME": visible(best.name.value or "") if best else None,
        "GPUBENCH_GPU_USABLE_BYTES": best.memory.usable_bytes.value if best else None,
        "GPUBENCH_CPU_AVAILABLE": machine.cpu.available.value,
        "GPUBENCH_MEMORY_USABLE_BYTES": machine.memory.usable_bytes.value,
    }  # fmt: skip


def draw(advice: str, parts: Sequence[MachinePart], *, color: int, ascii: bool, bars: bool) -> str:
    """Return the recommendation and the parts as text, as wide as the terminal within NARROWEST and WIDEST
    columns. `bars` shows the used memory as bars. `color` is the number of colours: 0, 16 or 256. `ascii`
    replaces signs beyond ASCII."""
    import shutil

    # the terminal may show no others
    ascii = ascii or not _unicode()
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size().columns))
    rows = tuple(_row(part, ascii=ascii, bars=bars) for part in parts)
    table = Table((Column(""), Column("", least=NARROWEST // 2)), rows, bare=True)
    lines: list[Line] = [*((Cell(line, "bold"),) for line in fill(advice, width, "")), (Cell(""),)]
    text = "\n".join(paint(line, color=color) for line in (*lines, *table_lines(table, width)))
    return text.encode("ascii", "replace").decode() if ascii else text


def _row(part: MachinePart, *, ascii: bool, bars: bool) -> Line:
    lines = [Cell(spell(line) if ascii else line, _TONES.get(line[:1], "plain")) for line in part.lines]
    if part.used is not None:
        full = round(max(0.0, part.used) * BAR_CELLS)
        on, off = ("#", "-") if ascii else ("█", "░")
        bar = f"{on * full}{off * (BAR_CELLS - full)} " if bars else ""
        lines.insert(0, Cell(f"{bar}{part.used:.0%} used", "gpu"))
    return Cell(part.title, "bold"), Cell(part.headline, "bold" if part.good else "warn", more=tuple(lines))


def _unicode() -> bool:
    try:
        "╭█✓✗".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_WORDS = {"switch": "switch", "host-bridge": "bridge", "numa-node": "node", "system": "system"}
LEGEND = {
    "NV": "NVn: n NVLinks", "XGMI": "XGMI: AMD's link", "switch": "switch: one PCIe switch",
    "bridge": "bridge: one host bridge", "node": "node: one NUMA node", "system": "system: between NUMA nodes",
}  # fmt: skip


def matrix(gpus: Sequence[Gpu]) -> list[str]:
    """Return a table of the paths between the GPUs as lines of text, the legend last, or no lines if no path
    is known."""
    words = [[_cell(gpu, other) for other in gpus] for gpu in gpus]
    shown = {word for line in words for word in line} - {"-", "?"}
    if not shown:
        return []
    rows = tuple(cells(str(place), *paths) for place, paths in enumerate(words))
    table = Table(heads("", *(number(str(place)) for place in range(len(gpus)))), rows, bare=True)
    legend = [text for key, text in LEGEND.items() if any(word.startswith(key) for word in shown)]
    return [*map(line_text, table_lines(table, natural_width(table))), "; ".join(legend)]


def _cell(gpu: Gpu, other: Gpu) -> str:
    path = next((path for path in gpu.link.paths if path.to == other.id), None)
    if gpu is other:
        return "-"
    if path is None:
        return "?"
    if path.kind.value == "nvlink":
        return f"NV{path.lanes.value or '?'}"
    return "XGMI" if path.kind.value == "xgmi" else _WORDS.get(path.common.value or "", "?")
