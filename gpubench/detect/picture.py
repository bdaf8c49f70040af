"""The document for people and scripts: a compact picture, Markdown, shell variables, or every fact with its source."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench.detect import remedies
from gpubench.detect._blas import misfit
from gpubench.model.machine import Gpu, Machine, MeasuredBreakEven

GIB = 1 << 30
_SMT = {"on": "SMT on", "off": "no SMT", "hidden": "SMT hidden by the hypervisor"}
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
        rows = [f"| {s.title} | {'<br>'.join(_cell(line) for line in (s.headline, *s.lines))} |" for s in found]
        return "\n".join(["| part | what was found |", "| --- | --- |", *rows])
    from gpubench.detect import _terminal

    return _terminal.draw(found, color=color, ascii=ascii)


def sections(machine: Machine) -> Iterator[Section]:
    """CPU, RAM, each GPU, what is no GPU, and the mode."""
    yield _cpu(machine)
    yield _ram(machine)
    for gpu in machine.gpus:
        yield _gpu(gpu)
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
    fallback = f"{gpu.vendor.value or 'unknown'} GPU {gpu.vendor_id.value or '?'}:{gpu.device_id.value or '?'}"
    maker = _MAKERS.get(gpu.vendor.value or "", "") if gpu.name_precision == "family" else ""
    return clean(" ".join(part for part in (maker, gpu.name.value or fallback) if part))


def gib(size: int | None) -> str:
    """Bytes as GiB with one decimal."""
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def clean(text: str) -> str:
    """Text from a device without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _cpu(machine: Machine) -> Section:
    cpu = machine.cpu
    counts = f"{_or(cpu.cores.value)} cores, {_or(cpu.logical.value)} CPUs, {_or(cpu.available.value)} usable"
    if cpu.limited_by.value not in (None, "online"):
        counts += f" (limited by {cpu.limited_by.value})"
    kinds = [f"{_or(kind.cores)} cores on CPUs {kind.cpus}" for kind in cpu.kinds.value or ()]
    caches = [
        f"L{c.level} {c.size_bytes >> 10} KiB x{c.instances}"
        for c in cpu.caches.value or ()
        if c.type != "instruction"
    ]
    lines = [counts + (f", {_SMT[cpu.smt.value]}" if cpu.smt.value in _SMT else "")]
    lines += ["kinds: " + "; ".join(kinds)] if len(kinds) > 1 else []
    lines += [", ".join(caches)] if caches else []
    lines += [" ".join(cpu.isa.value)] if cpu.isa.value else []
    lines += list(_blas_lines(machine))
    return Section("CPU", clean(cpu.model.value or "unknown model"), [clean(line) for line in lines])


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
    return Section("RAM", f"{gib(total)}, {gib(usable)} usable", lines, used)


def _gpu(gpu: Gpu) -> Section:
    memory = gpu.memory
    size, free = memory.dedicated_bytes.value, memory.free_bytes.value
    used = 1 - min(1.0, free / size) if size and free is not None else None
    driver = (
        f"driver {gpu.driver.name.value} {gpu.driver.version.value or ''}".strip()
        if gpu.driver.name.value
        else None
    )
    link = f"PCIe {gpu.link.gen_max.value} x{gpu.link.width_max.value}" if gpu.link.gen_max.value else None
    parts = (gpu.kind.value, gpu.bdf.value, driver, gpu.compute.arch.value, link)
    lines = [", ".join(part for part in parts if part)]
    if gpu.compute.partitions:
        lines.append(f"{len(gpu.compute.partitions)} partitions, the largest {gib(memory.usable_bytes.value)}")
    if gpu.power.throttle:
        lines.append(f"clocks held down now: {', '.join(gpu.power.throttle)}")
    lines += [f"not usable: {code}. {remedies.text(code)}" for code in gpu.why_not]
    return Section(
        "GPU", f"{title(gpu)}, {_vram(gpu)}", [clean(line) for line in lines if line], used, not gpu.why_not
    )


def _vram(gpu: Gpu) -> str:
    memory = gpu.memory
    if memory.unified.value:
        return f"shares RAM, {gib(memory.usable_bytes.value)} usable"
    return f"{gib(memory.dedicated_bytes.value)}" if memory.dedicated_bytes.value else "memory unknown"


def _mode(machine: Machine) -> Section:
    advice = machine.recommendation
    threads = f", {advice.cpu_threads} CPU threads" if advice.cpu_threads else ""
    lines = [f"{reason.code}: {reason.text}" for reason in advice.reasons]
    lines += quoted(advice.measured.break_even) if advice.measured else []
    return Section("Mode", f"{advice.mode} ({advice.confidence}){threads}", [clean(line) for line in lines])


def quoted(points: Sequence[MeasuredBreakEven]) -> list[str]:
    """ "matmul float32: GPU from n = 320 with transfers": a line per op, dtype and other params."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for point in points:
        size = f"from n = {point.size}" if point.size is not None else "never"
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


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _or(value: object) -> str:
    return "?" if value is None else str(value)
