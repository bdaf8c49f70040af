"""/proc/cpuinfo in its many forms: x86, Arm, POWER, s390x, RISC-V."""

from __future__ import annotations

import re
from typing import NamedTuple

_KEPT = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "sve", "sve2", "i8mm", "bf16", "sme",
    "vx", "vxe", "vxe2",
)  # fmt: skip
_X86_HOMONYMS = {"sme"}  # AMD encrypts memory under the name of Arm's matrix extension
_POWER = r"POWER|PPC970|Cell"  # the 64-bit ones
_FLAG_KEYS = ("flags", "Features", "features")
_ARM_MAKERS = {
    "0x41": "Arm", "0x42": "Broadcom", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA",
    "0x50": "APM", "0x51": "Qualcomm", "0x53": "Samsung", "0x56": "Marvell", "0x61": "Apple", "0x70": "Phytium",
    "0xc0": "Ampere",
}  # fmt: skip


class CpuInfo(NamedTuple):
    """`cpus` maps a CPU number to the lines of its block; `common` holds all other lines."""

    cpus: dict[int, dict[str, str]]
    common: dict[str, str]

    def any(self, key: str) -> str | None:
        """The value of `key` in the first block that has it."""
        for block in (*self.cpus.values(), self.common):
            if block.get(key):
                return block[key]
        return None


def parse(text: str) -> CpuInfo:
    """Blocks of one /proc/cpuinfo. Raises ValueError if not one line has the form `key : value`."""
    cpus: dict[int, dict[str, str]] = {}
    common: dict[str, str] = {}
    block = common
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        s390 = re.fullmatch(r"processor (\d{1,5})", key)
        if not line.strip():
            block = common
        elif not colon:
            continue
        elif key in ("processor", "cpu number") and value.isascii() and value.isdigit():
            block = cpus.setdefault(int(value), {})
        elif s390:
            cpus.setdefault(int(s390[1]), {})["machine"] = _field(value, "machine")
        else:
            block.setdefault(key, value)
    if not cpus and not common:
        raise ValueError("no line of the form `key : value`")
    return CpuInfo(cpus, common)


def arch(info: CpuInfo, version: str = "") -> str | None:
    """The machine's architecture from the form of the file; `version` is the text of /proc/version."""
    flags = (info.any("flags") or "").split()
    if info.any("vendor_id") == "IBM/S390":
        return "s390x"
    if flags:
        return "x86_64" if "lm" in flags else "i686"
    if re.fullmatch(r"8|AArch64", info.any("CPU architecture") or ""):
        return "aarch64"
    if (info.any("isa") or "").startswith("rv64"):
        return "riscv64"
    if info.any("arch") == "IA-64":
        return "ia64"
    if re.match(_POWER, info.any("cpu") or ""):
        return "ppc64le" if "ppc64le" in version else "ppc64"
    return None


def model(info: CpuInfo) -> str | None:
    """The name of the CPU as the kernel gives it."""
    for key in ("model name", "cpu model", "uarch"):
        if found := info.any(key):
            return " ".join(found.split())
    if re.match(_POWER, info.any("cpu") or ""):
        return (info.any("cpu") or "").partition(",")[0].strip()
    if info.any("vendor_id") == "IBM/S390" and (machine := info.any("machine")):
        return f"IBM {machine}"
    return None


def vendor(info: CpuInfo) -> str | None:
    """The maker: the kernel's word, or the name behind Arm's implementer code."""
    if found := info.any("vendor_id"):
        return found
    if code := info.any("CPU implementer"):
        return _ARM_MAKERS.get(code.lower(), code.lower())
    return "IBM" if re.match(_POWER, info.any("cpu") or "") else None


def isa(info: CpuInfo, online: frozenset[int] | None = None) -> list[str] | None:
    """The kept flags that all CPUs have in common, in a fixed order; None if no flags are listed."""
    common: set[str] | None = None
    for number, block in (*info.cpus.items(), (None, info.common)):
        if online is not None and number is not None and number not in online:
            continue
        for key in _FLAG_KEYS:
            if key in block:
                flags = set(block[key].split()) - (_X86_HOMONYMS if key == "flags" else set())
                common = flags if common is None else common & flags
    return None if common is None else [flag for flag in _KEPT if flag in common]


def parts(info: CpuInfo, online: frozenset[int]) -> dict[int, str] | None:
    """Arm's `CPU part` of each online CPU ("0xd85"), or None if one is missing."""
    found = {n: info.cpus.get(n, {}).get("CPU part", "").lower() for n in online}
    return found if found and all(re.fullmatch(r"0x[0-9a-f]{3}", part) for part in found.values()) else None


def _field(line: str, name: str) -> str:
    found = re.search(rf"\b{name}\s*=\s*(\w+)", line)
    return found[1] if found else ""
