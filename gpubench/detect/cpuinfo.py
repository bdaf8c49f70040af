"""/proc/cpuinfo in its many forms: x86, Arm, POWER, s390x, RISC-V, LoongArch, MIPS, Alpha, SPARC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpubench.result.identity import is_placeholder

_KEPT = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "sve", "sve2", "i8mm", "bf16", "sme",
    "vx", "vxe", "vxe2",
)  # fmt: skip
_X86_HOMONYMS = {"sme"}  # AMD encrypts memory under the name of Arm's matrix extension
_IBM = r"POWER|PPC970|Cell"
_POWER = rf"{_IBM}|PA6T|e[56]500"  # the 64-bit ones
_FLAG_KEYS = ("flags", "features")
# `Processor` names the CPU on old Arm kernels; `cpu` on POWER ("POWER9, altivec supported"), SPARC and PA-RISC.
_MODEL_KEYS = ("model name", "cpu model", "uarch", "cpu type", "c-sky cpu model", "processor")
_ARM_MAKERS = {
    "0x41": "Arm", "0x42": "Broadcom", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA",
    "0x50": "APM", "0x51": "Qualcomm", "0x53": "Samsung", "0x56": "Marvell", "0x61": "Apple", "0x6d": "Microsoft",
    "0x70": "Phytium", "0xc0": "Ampere",
}  # fmt: skip
# The first line that fits tells the architecture: key, beginning of the value, name of uname.
_ARCHITECTURES = (
    ("vendor_id", r"IBM/S390", "s390x"), ("flags", r".*\blm\b", "x86_64"), ("flags", r"", "i686"),
    ("cpu architecture", r"8|AArch64", "aarch64"), ("cpu architecture", r"7", "armv7l"),
    ("cpu architecture", r"6", "armv6l"), ("isa", r"rv64", "riscv64"), ("isa", r"rv32", "riscv32"),
    ("isa", r".*loongarch64", "loongarch64"), ("cpu family", r"Loongson-64bit", "loongarch64"),
    ("isa", r".*mips64", "mips64"), ("cpu model", r".*(Loongson|Octeon)", "mips64"),
    ("isa", r"mips", "mips"), ("cpu model", r"MIPS", "mips"), ("arch", r"IA-64", "ia64"),
    ("cpu", r"Alpha", "alpha"), ("type", r"sun4[uv]", "sparc64"), ("type", r"sun4", "sparc"),
    ("cpu family", r"PA-RISC 2", "parisc64"), ("cpu family", r"PA-RISC", "parisc"),
    ("cpu", _POWER, "ppc64"), ("revision", r".*\(pvr ", "ppc"),
)  # fmt: skip
# Current clocks: x86 and LoongArch, s390x, POWER ("3425.000000MHz").
_CLOCK_KEYS = ("cpu mhz", "cpu mhz dynamic", "clock")


class CpuInfo(NamedTuple):
    """The lines of the file, with keys in lower case: kernels spell them differently."""

    cpus: dict[int, dict[str, str]]  # the lines of each block, by its CPU number
    common: dict[str, str]  # all other lines

    def any(self, key: str) -> str | None:
        """The value of `key` in the first block that has it; a placeholder is none."""
        return next(self.values(key), None)

    def values(self, key: str) -> Iterator[str]:
        """The values of `key` in all blocks, without placeholders."""
        for block in (*self.cpus.values(), self.common):
            if (value := block.get(key)) and not is_placeholder(value):
                yield value


def parse(text: str) -> CpuInfo:
    """Blocks of one /proc/cpuinfo. Raises ValueError if not one line has the form `key : value`."""
    cpus: dict[int, dict[str, str]] = {}
    common: dict[str, str] = {}
    block = common
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = " ".join(key.lower().split()), value.strip()
        s390, sparc = (re.fullmatch(form, key) for form in (r"processor (\d{1,5})", r"cpu(\d{1,5})"))
        if not line.strip():
            block = common
        elif not colon:
            continue
        elif key in ("processor", "cpu number") and value.isascii() and value.isdigit():
            block = cpus.setdefault(int(value), {})
        elif s390:
            cpus.setdefault(int(s390[1]), {})["machine"] = _field(value, "machine")
        elif sparc and value == "online":
            cpus.setdefault(int(sparc[1]), {})
        else:
            block.setdefault(key, value)
    if not cpus and not common:
        raise ValueError("no line of the form `key : value`")
    return CpuInfo(cpus, common)


def arch(info: CpuInfo, version: str = "") -> str | None:
    """The machine's architecture from the form of the file; `version` is the text of /proc/version."""
    for key, form, name in _ARCHITECTURES:
        if (value := info.any(key)) and re.match(form, value, re.I):
            return "ppc64le" if name == "ppc64" and "ppc64le" in version else name
    return None


def model(info: CpuInfo) -> str | None:
    """The name of the CPU as the kernel gives it."""
    for key in _MODEL_KEYS:
        if value := info.any(key):
            return " ".join(value.split())
    if cpu := (info.any("cpu") or "").partition(",")[0].strip():
        return cpu
    if info.any("vendor_id") == "IBM/S390" and (machine := info.any("machine")):
        return f"IBM {machine}"
    return None


def vendor(info: CpuInfo) -> str | None:
    """The maker: the kernel's word, or the name behind Arm's implementer code."""
    if value := info.any("vendor_id") or info.any("vendor"):
        return value
    if code := info.any("cpu implementer"):
        return _ARM_MAKERS.get(code.lower(), code.lower())
    if any("Loongson" in (info.any(key) or "") for key in ("cpu family", "model name", "cpu model")):
        return "Loongson"
    return "IBM" if re.match(_IBM, info.any("cpu") or "") else None


def isa(info: CpuInfo, online: frozenset[int] | None = None) -> list[str] | None:
    """The kept flags that all CPUs have in common, in a fixed order; None if no flags are listed.

    Blocks of CPUs beyond `online` are left out, unless the file numbers the CPUs otherwise.
    """
    numbered_alike = online is not None and online <= info.cpus.keys()
    common: set[str] | None = None
    for number, block in (*info.cpus.items(), (None, info.common)):
        if numbered_alike and online is not None and number is not None and number not in online:
            continue
        for key in _FLAG_KEYS:
            if key in block:
                flags = set(block[key].split()) - (_X86_HOMONYMS if key == "flags" else set())
                common = flags if common is None else common & flags
    return None if common is None else keep_flags(common)


def keep_flags(flags: Iterable[str]) -> list[str]:
    """The flags that matter for speed, in a fixed order. macOS calls the first AVX `avx1.0`."""
    spelled = {"avx" if flag == "avx1.0" else flag for flag in flags}
    return [flag for flag in _KEPT if flag in spelled]


def parts(info: CpuInfo, online: frozenset[int]) -> dict[int, str]:
    """Arm's `CPU part` of each online CPU ("0xd85"); empty if one is missing."""
    table = {n: info.cpus.get(n, {}).get("cpu part", "").lower() for n in online}
    return table if all(re.fullmatch(r"0x[0-9a-f]{3}", part) for part in table.values()) else {}


def drop_numbers(info: CpuInfo) -> CpuInfo:
    """Return the same blocks under numbers that are no CPU's: nobody knows which CPU each is about."""
    return info._replace(cpus={-1 - number: block for number, block in info.cpus.items()})


def clock_hz(info: CpuInfo) -> int | None:
    """The highest clock that the kernel shows for a CPU now, in hertz."""
    for key in _CLOCK_KEYS:
        shown = [re.fullmatch(r"(\d{1,6}(?:\.\d{1,9})?)(?: ?MHz)?", value) for value in info.values(key)]
        clocks = [round(float(match[1]) * 1e6) for match in shown if match]
        if any(clocks):
            return max(clocks)
    return None


def _field(line: str, name: str) -> str:
    match = re.search(rf"\b{name}\s*=\s*(\w+)", line)
    return match[1] if match else ""
