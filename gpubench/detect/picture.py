"""The document for people and scripts: a compact picture, Markdown, shell variables, or every fact with its source.

On a terminal memory is a bar; the picture does without colour, width and Unicode.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench.base.escaping import escaped, filled
from gpubench.base.installation import installs, located
from gpubench.base.messages import DETECTION
from gpubench.base.table import Cell, Column, Line, Table, Tone, markdown_table, painted, table_lines
from gpubench.base.units import scale_size
from gpubench.detect.cpu import misfits
from gpubench.detect.libraries import is_needed
from gpubench.detect.links import matrix
from gpubench.detect.recommend import about
from gpubench.detect.root import list_form
from gpubench.result.case import QUEUED, WAITED
from gpubench.result.machine import Gpu, Machine, MeasuredBreakEven

GIB = 1 << 30
_SMT = {"on": "SMT on", "off": "no SMT", "hidden": "SMT hidden by the hypervisor"}
_YES, _NO = "✓", "✗"
# What is usable, and what is not: by sign first, so that it is seen without colour.
_TONES: dict[str, Tone] = {_YES: "good", _NO: "warn"}
NARROWEST, WIDEST, BAR_CELLS = 40, 100, 20
MOST_NODES = 8
# pci.ids names the chip, and the maker elsewhere.
_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}


class MachinePart(NamedTuple):
    """A titled part of the picture: a headline, lines below it, and how full its memory is (0 to 1)."""

    title: str
    headline: str
    lines: list[str]
    used: float | None = None
    good: bool = True


def machine_line(machine: Machine) -> str:
    """One line: CPU model, usable of logical CPUs, RAM, each GPU with its memory."""
    cpu = machine.cpu
    parts = [
        clean(cpu.model.value or "unknown CPU"),
        f"{_or(cpu.available.value)} of {_or(cpu.logical.value)} CPUs", f"{gib(machine.memory.total_bytes.value)} RAM",
    ]  # fmt: skip
    parts += [f"{title(gpu)} ({_vram(gpu)})" for gpu in machine.gpus]
    return ", ".join(
        parts if machine.gpus else [*parts, "no GPU" if machine.gpu_count.value == 0 else "GPUs unknown"]
    )


def render(
    machine: Machine, format: str, *, color: bool = False, ascii: bool = False, explain: bool = False
) -> str:
    """The machine as `table`, `plain` text, `markdown` or `env` (shell variables); the advice leads. `explain` lists
    every fact instead of the sections."""
    if format == "env":
        return "\n".join(f"{key}={shlex.quote(value)}" for key, value in _variables(machine).items())
    if explain:
        return "\n".join([advice(machine), *explained(machine)])
    parts = list(sections(machine))
    if format == "markdown":
        rows = tuple(
            (Cell(part.title), Cell(part.headline, more=tuple(map(Cell, part.lines)))) for part in parts
        )
        table = Table((Column("part"), Column("what was found")), rows)
        text = f"{escaped(advice(machine))}\n\n{markdown_table(table)}"
        return spelled(text) if ascii else text
    return draw(advice(machine), parts, color=color, ascii=ascii, bars=format == "table")


def advice(machine: Machine) -> str:
    """The recommended mode and its first reason, in words."""
    recommended = machine.recommendation
    chosen = _chosen(machine)
    where = {"cpu": "on the CPU", "gpu": "on the GPU", "hybrid": "on CPU and GPU together"}[recommended.mode]
    which = f" (GPU {list_form(chosen)})" if chosen and len(machine.gpus) > 1 else ""
    reason = f" {recommended.reasons[0].text}" if recommended.reasons else ""
    return clean(f"Recommended mode: {recommended.mode}, compute {where}{which}.{reason}")


def spelled(text: str) -> str:
    return text.replace(_YES, "+").replace(_NO, "!")


def sections(machine: Machine) -> Iterator[MachinePart]:
    """The mode, CPU, RAM, each GPU, and what is no GPU."""
    yield _mode(machine)
    yield _cpu(machine)
    yield _ram(machine)
    yield from _gpus(machine)
    if rows := matrix(machine.gpus):
        yield MachinePart("Links", rows[-1], rows[:-1])
    others = [f"{clean(s.name)} (software, {', '.join(s.apis)})" for s in machine.software_renderers]
    others += [f"{a.bdf.value} display adapter ({a.role.value})" for a in machine.display_adapters]
    others += [
        f"{a.bdf.value} accelerator {a.vendor_id.value}:{a.device_id.value}" for a in machine.accelerators
    ]
    if others:
        yield MachinePart("Other", others[0], others[1:])
    if lacks := _missing(machine):
        yield MachinePart("Missing", lacks[0], lacks[1:])


def _missing(machine: Machine) -> list[str]:
    """Return the libraries that are not installed, with the commands that install them."""
    lacks = [warning.text for warning in machine.warnings if warning.code == "RUNTIME_MISSING"]
    hints = [
        (provider.name, provider.hint)
        for provider in machine.providers
        if provider.status == "absent" and provider.hint and is_needed(provider, machine)
    ]
    for name, hint in hints:
        if installs(hint) or "not installed" in hint:
            lacks += [] if any(hint in text for text in lacks) else [f"{name}: {hint}"]
    return [clean(located(text)) for text in lacks]


def explained(machine: Machine) -> Iterator[str]:
    """One line per fact: path, value or status, source, note, and what other sources said."""
    for path, node in _facts(msgspec.to_builtins(machine), ""):
        value = node["status"] if node["value"] is None else _short(node["value"])
        line = f"{path} = {value}" + ("" if node["status"] in ("ok", value) else f" ({node['status']})")
        line += f"  <- {node['source']}" if node["source"] else ""
        line += f"  [{node['note']}]" if node.get("note") else ""
        for other in node.get("alternatives") or ():
            line += f"  (or {_short(other['value'])} <- {other['source']})"
        yield clean(line)
    for reason in machine.recommendation.reasons:
        yield clean(f"reason {reason.code}{f' {reason.device_id}' if reason.device_id else ''}: {reason.text}")


def title(gpu: Gpu) -> str:
    maker = _MAKERS.get(gpu.vendor.value or "")
    if gpu.name.value is None:
        vendor, device = gpu.vendor_id.value, gpu.device_id.value
        return f"{maker or 'unknown'} GPU" + (f" {vendor}:{device}" if vendor and device else "")
    return clean(f"{maker} {gpu.name.value}" if maker and gpu.name_precision == "family" else gpu.name.value)


def gib(size: int | None) -> str:
    """Bytes as GiB with one decimal."""
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def clean(text: str) -> str:
    """Text from a device without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _cpu(machine: Machine) -> MachinePart:
    cpu = machine.cpu
    counts = f"{_or(cpu.cores.value)} cores, {_or(cpu.logical.value)} CPUs, {_or(cpu.available.value)} usable"
    if cpu.logical.value is None:
        counts = "number of CPUs unknown"
    if cpu.limited_by.value not in (None, "online"):
        counts += f" (limited by {cpu.limited_by.value})"
    kinds = [f"{_or(kind.cores)} cores on CPUs {kind.cpus}" for kind in cpu.kinds.value or ()]
    caches: dict[int, list[str]] = {}
    for c in cpu.caches.value or ():
        if c.type != "instruction":
            caches.setdefault(c.level, []).append(f"{_cache_size(c.size_bytes)} x{c.instances}")
    lines = [counts + (f", {_SMT[cpu.smt.value]}" if cpu.smt.value in _SMT else "")]
    lines += ["kinds: " + "; ".join(kinds)] if len(kinds) > 1 else []
    lines += [text] if (text := _clock(cpu.now_hz.value, cpu.max_hz.value, cpu.base_hz.value)) else []
    lines += [f"governor {cpu.governor.value}"] if cpu.governor.value else []
    lines += [", ".join(f"L{level} {' + '.join(sizes)}" for level, sizes in caches.items())] if caches else []
    lines += [" ".join(cpu.isa.value)] if cpu.isa.value else []
    lines += list(_blas_lines(machine))
    return MachinePart("CPU", clean(cpu.model.value or "unknown model"), [clean(line) for line in lines])


def _clock(now: int | None, highest: int | None, base: int | None = None) -> str | None:
    """The clocks that are known, in words."""
    clocks = ((now, "now"), (base, "base"), (highest, "at most"))
    shown = [f"{hertz / 1e9:.2f} GHz {word}" for hertz, word in clocks if hertz]
    return f"clock {', '.join(shown)}" if shown else None


def _cache_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 and size % (1 << 20) == 0 else f"{size >> 10} KiB"


def _blas_lines(machine: Machine) -> Iterator[str]:
    """Each BLAS with its threads; or how to see it."""
    cpu = machine.cpu
    for blas in cpu.blas.value or ():
        odd = f": {cpu.available.value} CPUs are usable!" if misfits(blas, cpu) else ""
        name = f"{blas.library} {blas.version}" if blas.version else blas.library
        yield f"BLAS {name} with {_or(blas.threads)} threads{odd}"
    if machine.live and cpu.blas.status == "not_probed":
        yield "BLAS not asked: --deep shows it and its threads"
    elif cpu.blas.value is None and cpu.blas.status != "not_probed":
        yield f"BLAS unknown ({cpu.blas.status})"


def _ram(machine: Machine) -> MachinePart:
    memory = machine.memory
    lines = []
    if memory.limit_bytes.value is not None:
        lines.append(f"limited to {gib(memory.limit_bytes.value)} by a control group")
    if memory.gpu_numa_bytes.value:
        of_gpus = gib(memory.gpu_numa_bytes.value)
        lines.append(f"{of_gpus} of GPU memory, which the kernel counts as RAM, taken out")
    lines += _numa_lines(machine)
    total, usable = memory.total_bytes.value, memory.usable_bytes.value
    used = 1 - min(1.0, usable / total) if total and usable is not None else None
    headline = "size unknown" if total is None else f"{gib(total)}, {gib(usable)} usable"
    return MachinePart("RAM", headline, lines, used)


def _numa_lines(machine: Machine) -> list[str]:
    """The NUMA nodes with their CPUs and memory, the first ones of many."""
    nodes = machine.numa.nodes
    lines = [
        f"node {node.id}: " + ", ".join(
            ([f"CPUs {node.cpus.value}"] if node.cpus.value else ["no CPUs"] if node.cpus.value == "" else [])
            + ([gib(node.memory_bytes.value)] if node.memory_bytes.value is not None else [])
            + (["memory of a GPU"] if node.kind.value == "gpu" else [])
        )
        for node in nodes[:MOST_NODES]
    ]  # fmt: skip
    if len(nodes) > MOST_NODES:
        lines.append(f"... {len(nodes)} nodes in all")
    return [f"NUMA {line}" for line in lines]


def _gpus(machine: Machine) -> Iterator[MachinePart]:
    """One section per GPU; three and more that differ in nothing but their address are one."""
    rejected = {entry.device_id: entry.code for entry in machine.recommendation.rejected}
    groups: dict[tuple[object, ...], list[tuple[int, Gpu]]] = {}
    for number, gpu in enumerate(machine.gpus):
        looks = (title(gpu), _vram(gpu), *_gpu_lines(gpu, rejected.get(gpu.id), now=False))
        groups.setdefault(looks, []).append((number, gpu))
    small = [[entry] for group in groups.values() if len(group) < 3 for entry in group]
    for group in sorted(small + [group for group in groups.values() if len(group) >= 3]):
        yield _gpu(group, rejected)


def _gpu(group: list[tuple[int, Gpu]], rejected: dict[str, str]) -> MachinePart:
    gpu, many = group[0][1], len(group) > 1
    places = ", ".join(entry.bdf.value or entry.id for _, entry in group[:4]) if many else gpu.bdf.value or ""
    places += " ..." if len(group) > 4 else ""
    each = " each" if many and gpu.memory.dedicated_bytes.value else ""
    headline = (f"{len(group)} x " if many else "") + f"{title(gpu)}, {_vram(gpu)}{each}"
    facts, *more = _gpu_lines(gpu, rejected.get(gpu.id), now=not many)
    lines = [line for line in (", ".join(text for text in (places, facts) if text), *more) if line]
    name = f"GPU {list_form(number for number, _ in group)}"
    size, free = gpu.memory.dedicated_bytes.value, gpu.memory.free_bytes.value
    used = 1 - min(1.0, free / size) if size and free is not None and not many else None
    return MachinePart(name, headline, [clean(line) for line in lines], used, not gpu.why_not)


def _gpu_lines(gpu: Gpu, rejected: str | None, *, now: bool) -> tuple[str, ...]:
    """What is known, then what is usable, then why not; `now`: with the current clock, which is one GPU's own."""
    driver, link, memory = gpu.driver, gpu.link, gpu.memory
    facts = (
        gpu.kind.value,
        f"driver {driver.name.value} {driver.version.value or ''}".strip() if driver.name.value else None,
        gpu.compute.arch.value, f"{gpu.compute.units.value} units" if gpu.compute.units.value else None,
        f"PCIe {link.gen_max.value} x{_or(link.width_max.value)}" if link.gen_max.value else None,
    )  # fmt: skip
    lines = [", ".join(fact for fact in facts if fact)]
    limit, ecc = gpu.power.limit_w.value, gpu.compute.ecc.value
    settings = (
        _clock(gpu.compute.now_hz.value if now else None, gpu.compute.max_hz.value),
        f"power limit {limit:.0f} W" if limit else None,
        None if ecc is None else f"ECC {'on' if ecc else 'off'}",
    )
    lines += [", ".join(text for text in settings if text)] if any(settings) else []
    if gpu.compute.partitions:
        largest = f", the largest {gib(memory.usable_bytes.value)}" if memory.usable_bytes.value else ""
        lines.append(f"{len(gpu.compute.partitions)} partitions{largest}")
    if gpu.power.throttle:
        lines.append(f"clocks held down now: {', '.join(gpu.power.throttle)}")
    if gpu.power.state.value in ("suspended", "suspending"):
        lines.append(f"asleep ({gpu.power.state.value})")
    if gpu.apis:
        lines.append(f"listed by {', '.join(sorted(gpu.apis))}")
    lines += [f"{_NO} not usable: {code}. {about(code, gpu)}" for code in gpu.why_not]
    if rejected is not None and rejected not in gpu.why_not:
        lines.append(f"{_NO} not chosen: {rejected}. {DETECTION.get(rejected, '')}")
    elif gpu.usable.value and rejected is None:
        lines.append(f"{_YES} usable: {gib(memory.usable_bytes.value)}")
    elif rejected is None:
        lines.append(f"{_YES} {gib(memory.usable_bytes.value)} for one process; whether it opens was not tried")
    return tuple(lines)


def _vram(gpu: Gpu) -> str:
    usable, dedicated = gpu.memory.usable_bytes.value, gpu.memory.dedicated_bytes.value
    if gpu.memory.unified.value:
        return "shares RAM" + (f", {gib(usable)} usable" if usable else "")
    return gib(dedicated) if dedicated else "memory unknown"


def _mode(machine: Machine) -> MachinePart:
    advice = machine.recommendation
    numbers = {gpu.id: number for number, gpu in enumerate(machine.gpus)}
    chosen = _chosen(machine)
    on = f" on GPU {list_form(chosen)}" if chosen else ""
    threads = f", {advice.cpu_threads} CPU threads" if advice.cpu_threads else ""
    rejected = {(entry.device_id, entry.code) for entry in advice.rejected}  # the GPU's own section says why
    lines = [f"{r.code}: {r.text}" for r in advice.reasons if (r.device_id, r.code) not in rejected]
    refused: dict[str, list[int]] = {}
    for entry in advice.rejected:
        refused.setdefault(entry.code, []).append(numbers[entry.device_id])
    lines += [f"not GPU {list_form(found)}: {code}" for code, found in refused.items()]
    lines += quoted(advice.measured.break_even) if advice.measured else []
    return MachinePart(
        "Mode", f"{advice.mode}{on}{threads} ({advice.confidence})", [clean(line) for line in lines]
    )


def _chosen(machine: Machine) -> list[int]:
    """The numbers of the recommended GPUs."""
    numbers = {gpu.id: number for number, gpu in enumerate(machine.gpus)}
    return [numbers[name] for name in machine.recommendation.device_ids if name in numbers]


LARGEST_SIDE = 10_000


def quoted(points: Sequence[MeasuredBreakEven]) -> list[str]:
    """ "matmul float32: GPU from n = 320 with transfers": a line per op, dtype and other params."""
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
    if regime.startswith("transfer-once"):
        return f"with one copy for {calls} calls" if calls.isdigit() else "with one copy"
    words: dict[str, str] = {
        WAITED: "with data on the GPU", QUEUED: "with calls queued on the GPU", "transfer-always": "with transfers",
    }  # fmt: skip
    return words.get(regime, regime)


def _variables(machine: Machine) -> dict[str, str]:
    advice = machine.recommendation
    best = next((gpu for gpu in machine.gpus if gpu.id in advice.device_ids[:1]), None)
    return {
        "GPUBENCH_MODE": advice.mode, "GPUBENCH_CONFIDENCE": advice.confidence,
        "GPUBENCH_REASONS": ",".join(dict.fromkeys(reason.code for reason in advice.reasons)),
        "GPUBENCH_DEVICE_IDS": ",".join(advice.device_ids), "GPUBENCH_CPU_THREADS": _text(advice.cpu_threads),
        "GPUBENCH_GPU_COUNT": _text(machine.gpu_count.value),
        "GPUBENCH_GPU_NAME": clean(best.name.value or "") if best else "",
        "GPUBENCH_GPU_USABLE_BYTES": _text(best.memory.usable_bytes.value) if best else "",
        "GPUBENCH_CPU_AVAILABLE": _text(machine.cpu.available.value),
        "GPUBENCH_MEMORY_USABLE_BYTES": _text(machine.memory.usable_bytes.value),
    }  # fmt: skip


def _facts(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict) and {"value", "status", "source"} <= set(node):
        yield path, node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from _facts(child, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from _facts(child, f"{path}[{number}]")


def _short(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _or(value: object) -> str:
    return "?" if value is None else str(value)


def draw(advice: str, parts: Sequence[MachinePart], *, color: bool, ascii: bool, bars: bool) -> str:
    """The advice and the parts as text; `bars` for memory."""
    import shutil

    ascii = ascii or not _unicode()
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size().columns))
    rows = tuple(_row(part, ascii=ascii, bars=bars) for part in parts)
    table = Table((Column(""), Column("", least=NARROWEST // 2)), rows, bare=True)
    lines: list[Line] = [*((Cell(line, "bold"),) for line in filled(advice, width, "")), (Cell(""),)]
    text = "\n".join(painted(line, color=color) for line in (*lines, *table_lines(table, width)))
    return text.encode("ascii", "replace").decode() if ascii else text


def _row(part: MachinePart, *, ascii: bool, bars: bool) -> Line:
    used = [] if part.used is None else [Cell(bar(part.used, ascii) if bars else share(part.used), "gpu")]
    lines = [Cell(spelled(line) if ascii else line, _TONES.get(line[:1], "plain")) for line in part.lines]
    return Cell(part.title, "bold"), Cell(part.headline, "bold" if part.good else "warn", more=(*used, *lines))


def bar(used: float, ascii: bool) -> str:
    """How full something is, with the share in words."""
    full = round(max(0.0, min(1.0, used)) * BAR_CELLS)
    on, off = ("#", "-") if ascii else ("█", "░")
    return f"{on * full}{off * (BAR_CELLS - full)} {share(used)}"


def share(used: float) -> str:
    """How full something is, in words."""
    return f"{used:.0%} used"


def _unicode() -> bool:
    try:
        "╭█✓✗".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
