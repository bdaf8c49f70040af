"""The document for people and scripts: a compact picture, Markdown, shell variables, or every fact with its source."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench.detect import _sets, remedies
from gpubench.detect._blas import misfit
from gpubench.foreign_text import escaped
from gpubench.model.machine import Gpu, Machine, MeasuredBreakEven

GIB = 1 << 30
_SMT = {"on": "SMT on", "off": "no SMT", "hidden": "SMT hidden by the hypervisor"}
_YES, _NO = "✓", "✗"
# pci.ids names the chip, and the maker elsewhere.
_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}


class Section(NamedTuple):
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
    machine: Machine, format: str, *, color: str = "auto", ascii: bool = False, explain: bool = False
) -> str:
    """The machine as `table`, `markdown` or `env` (shell variables); `explain` lists every fact instead."""
    if format == "env":
        return "\n".join(f"{key}={shlex.quote(value)}" for key, value in _variables(machine).items())
    if explain:
        return "\n".join(explained(machine))
    found = list(sections(machine))
    if format == "markdown":
        rows = [
            f"| {s.title} | {'<br>'.join(escaped(line) for line in (s.headline, *s.lines))} |" for s in found
        ]
        text = "\n".join(["| part | what was found |", "| --- | --- |", *rows])
        return spelled(text) if ascii else text
    from gpubench.detect import _terminal

    return _terminal.draw(found, color=color, ascii=ascii)


def spelled(text: str) -> str:
    """The signs in ASCII."""
    return text.replace(_YES, "+").replace(_NO, "!")


def sections(machine: Machine) -> Iterator[Section]:
    """CPU, RAM, each GPU, what is no GPU, and the mode."""
    yield _cpu(machine)
    yield _ram(machine)
    yield from _gpus(machine)
    others = [f"{clean(s.name)} (software, {', '.join(s.apis)})" for s in machine.software_renderers]
    others += [f"{a.bdf.value} display adapter ({a.role.value})" for a in machine.display_adapters]
    others += [
        f"{a.bdf.value} accelerator {a.vendor_id.value}:{a.device_id.value}" for a in machine.accelerators
    ]
    if others:
        yield Section("Other", others[0], others[1:])
    yield _mode(machine)


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
    """What to call a GPU."""
    maker = _MAKERS.get(gpu.vendor.value or "")
    if gpu.name.value is None:
        ids = (
            f" {gpu.vendor_id.value}:{gpu.device_id.value}"
            if gpu.vendor_id.value and gpu.device_id.value
            else ""
        )
        return f"{maker or 'unknown'} GPU{ids}"
    return clean(f"{maker} {gpu.name.value}" if maker and gpu.name_precision == "family" else gpu.name.value)


def gib(size: int | None) -> str:
    """Bytes as GiB with one decimal."""
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def clean(text: str) -> str:
    """Text from a device without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _cpu(machine: Machine) -> Section:
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
    lines += [", ".join(f"L{level} {' + '.join(sizes)}" for level, sizes in caches.items())] if caches else []
    lines += [" ".join(cpu.isa.value)] if cpu.isa.value else []
    lines += list(_blas_lines(machine))
    return Section("CPU", clean(cpu.model.value or "unknown model"), [clean(line) for line in lines])


def _cache_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 and size % (1 << 20) == 0 else f"{size >> 10} KiB"


def _blas_lines(machine: Machine) -> Iterator[str]:
    """Each BLAS with its threads; or how to see it."""
    cpu = machine.cpu
    for blas in cpu.blas.value or ():
        odd = f": {cpu.available.value} CPUs are usable!" if misfit(blas, cpu) else ""
        yield (
            " ".join(f"BLAS {blas.library} {blas.version or ''} with {_or(blas.threads)} threads".split()) + odd
        )
    if machine.live and cpu.blas.status == "not_probed":
        yield "BLAS not asked: --deep shows it and its threads"
    elif cpu.blas.value is None and cpu.blas.status != "not_probed":
        yield f"BLAS unknown ({cpu.blas.status})"


def _ram(machine: Machine) -> Section:
    memory = machine.memory
    lines = []
    if memory.limit_bytes.value is not None:
        lines.append(f"limited to {gib(memory.limit_bytes.value)} by a control group")
    if memory.gpu_numa_bytes.value:
        lines.append(
            f"{gib(memory.gpu_numa_bytes.value)} of GPU memory, which the kernel counts as RAM, taken out"
        )
    total, usable = memory.total_bytes.value, memory.usable_bytes.value
    used = 1 - min(1.0, usable / total) if total and usable is not None else None
    headline = "size unknown" if total is None else f"{gib(total)}, {gib(usable)} usable"
    return Section("RAM", headline, lines, used)


def _gpus(machine: Machine) -> Iterator[Section]:
    """One section per GPU; three and more that differ in nothing but their address are one."""
    rejected = {entry.device_id: entry.code for entry in machine.recommendation.rejected}
    groups: dict[tuple[object, ...], list[tuple[int, Gpu]]] = {}
    for number, gpu in enumerate(machine.gpus):
        groups.setdefault((title(gpu), _vram(gpu), *_gpu_lines(gpu, rejected.get(gpu.id))), []).append(
            (number, gpu)
        )
    small = [[entry] for group in groups.values() if len(group) < 3 for entry in group]
    for group in sorted(small + [group for group in groups.values() if len(group) >= 3]):
        yield _gpu(group, rejected)


def _gpu(group: list[tuple[int, Gpu]], rejected: dict[str, str]) -> Section:
    gpu, many = group[0][1], len(group) > 1
    places = ", ".join(entry.bdf.value or entry.id for _, entry in group[:4]) + (
        " ..." if len(group) > 4 else ""
    )
    each = " each" if many and gpu.memory.dedicated_bytes.value else ""
    headline = (f"{len(group)} x " if many else "") + f"{title(gpu)}, {_vram(gpu)}{each}"
    lines = [places if many else gpu.bdf.value or "", *_gpu_lines(gpu, rejected.get(gpu.id))]
    name = f"GPU {_sets.list_form(number for number, _ in group)}"
    lines = _joined(lines)
    size, free = gpu.memory.dedicated_bytes.value, gpu.memory.free_bytes.value
    used = 1 - min(1.0, free / size) if size and free is not None and not many else None
    return Section(name, headline, [clean(line) for line in lines], used, not gpu.why_not)


def _joined(lines: list[str]) -> list[str]:
    """The place and the first line as one."""
    head = ", ".join(line for line in lines[:2] if line)
    return [line for line in (head, *lines[2:]) if line]


def _gpu_lines(gpu: Gpu, rejected: str | None) -> tuple[str, ...]:
    """What is known, then what is usable, then why not."""
    driver, link, memory = gpu.driver, gpu.link, gpu.memory
    facts = (
        gpu.kind.value,
        f"driver {driver.name.value} {driver.version.value or ''}".strip() if driver.name.value else None,
        gpu.compute.arch.value, f"{gpu.compute.units.value} units" if gpu.compute.units.value else None,
        f"PCIe {link.gen_max.value} x{_or(link.width_max.value)}" if link.gen_max.value else None,
    )  # fmt: skip
    lines = [", ".join(fact for fact in facts if fact)]
    if gpu.compute.partitions:
        largest = f", the largest {gib(memory.usable_bytes.value)}" if memory.usable_bytes.value else ""
        lines.append(f"{len(gpu.compute.partitions)} partitions{largest}")
    if gpu.power.throttle:
        lines.append(f"clocks held down now: {', '.join(gpu.power.throttle)}")
    if gpu.power.state.value in ("suspended", "suspending"):
        lines.append(f"asleep ({gpu.power.state.value})")
    if gpu.apis:
        lines.append(f"listed by {', '.join(sorted(gpu.apis))}")
    lines += [f"{_NO} not usable: {code}. {remedies.about(code, gpu)}" for code in gpu.why_not]
    if rejected is not None and rejected not in gpu.why_not:
        lines.append(f"{_NO} not chosen: {rejected}. {remedies.text(rejected)}")
    elif gpu.usable.value and rejected is None:
        lines.append(f"{_YES} usable: {gib(memory.usable_bytes.value)}")
    elif rejected is None:
        lines.append(f"{_YES} {gib(memory.usable_bytes.value)} for one process; whether it opens was not tried")
    return tuple(lines)


def _vram(gpu: Gpu) -> str:
    memory = gpu.memory
    if memory.unified.value:
        return "shares RAM" + (
            f", {gib(memory.usable_bytes.value)} usable" if memory.usable_bytes.value else ""
        )
    return f"{gib(memory.dedicated_bytes.value)}" if memory.dedicated_bytes.value else "memory unknown"


def _mode(machine: Machine) -> Section:
    advice = machine.recommendation
    numbers = {gpu.id: number for number, gpu in enumerate(machine.gpus)}
    chosen = [numbers[name] for name in advice.device_ids if name in numbers]
    on = f" on GPU {_sets.list_form(chosen)}" if chosen else ""
    threads = f", {advice.cpu_threads} CPU threads" if advice.cpu_threads else ""
    told = {(entry.device_id, entry.code) for entry in advice.rejected}  # the GPU's own section says why
    lines = [f"{r.code}: {r.text}" for r in advice.reasons if (r.device_id, r.code) not in told]
    refused: dict[str, list[int]] = {}
    for entry in advice.rejected:
        refused.setdefault(entry.code, []).append(numbers[entry.device_id])
    lines += [f"not GPU {_sets.list_form(found)}: {code}" for code, found in refused.items()]
    lines += quoted(advice.measured.break_even) if advice.measured else []
    return Section("Mode", f"{advice.mode}{on}{threads} ({advice.confidence})", [clean(line) for line in lines])


def quoted(points: Sequence[MeasuredBreakEven]) -> list[str]:
    """ "matmul float32: GPU from n = 320 with transfers": a line per op, dtype and other params."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for point in points:
        size = point.note or "never"
        if point.size is not None:
            size = f"from n = {point.size}" + (f" ({point.note})" if point.note else "")
        key = (point.op, point.params, point.dtype)
        lines.setdefault(key, []).append(f"{size} {_regime(point.regime)}")
    return [f"{' '.join(part for part in key if part)}: GPU {', '.join(sizes)}" for key, sizes in lines.items()]


def _regime(regime: str) -> str:
    calls = regime.removeprefix("transfer-once-")
    if regime.startswith("transfer-once"):
        return f"with one copy for {calls} calls" if calls.isdigit() else "with one copy"
    return {"resident": "with resident data", "transfer-always": "with transfers"}.get(regime, regime)


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
