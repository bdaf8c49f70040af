"""Operating system, architecture, hypervisor and container, from files alone."""

from __future__ import annotations

import re

from gpubench.detect import _cpuinfo
from gpubench.detect._cpuinfo import CpuInfo
from gpubench.detect._fact import known, lost, missing
from gpubench.detect._root import Root, words
from gpubench.model.facts import Fact
from gpubench.model.machine import Platform

VERSION = "/proc/version"
_DMI = ("/sys/class/dmi/id", "/sys/devices/virtual/dmi/id")
_VIRTUAL = (
    (r"VMware", "vmware"), (r"VirtualBox|innotek", "virtualbox"), (r"Xen\b", "xen"), (r"Parallels", "parallels"),
    (r"BHYVE", "bhyve"), (r"QEMU|KVM|Bochs|OpenStack|RHEV|oVirt|Amazon EC2|Google|DigitalOcean|Alibaba", "kvm"),
    (r"Apple Virtualization", "apple"),
)  # fmt: skip
_CONTAINERS = (
    (r"kubepods", "kubernetes"), (r"docker[-/]", "docker"), (r"libpod", "podman"), (r"/lxc[/.]", "lxc"),
    (r"containerd", "containerd"), (r"/buildkit/", "buildkit"),
)  # fmt: skip


def acquire(root: Root, blocks: Fact[CpuInfo]) -> Platform:
    """What the files under /proc and the DMI tables say."""
    version = root.read(VERSION)
    vendor, product = _dmi(root, "sys_vendor"), _dmi(root, "product_name")
    return Platform(
        os=version.fact(lambda text: "linux" if _kernel(text) else None), kernel=version.fact(_kernel),
        arch=_arch(blocks, version.text or ""),
        hypervisor=hypervisor(root, blocks, vendor.value or "", product.value or ""), container=_container(root),
        wsl=version.fact(lambda text: "microsoft" in text.lower()), dmi_vendor=vendor, dmi_product=product,
    )  # fmt: skip


def hypervisor(root: Root, blocks: Fact[CpuInfo], vendor: str, product: str) -> Fact[str]:
    """The hypervisor's name, "unknown" if it has none, "none" only where x86 denies one."""
    name: str | None = next(
        (name for pattern, name in _VIRTUAL if re.search(pattern, f"{vendor} {product}")), None
    )
    if vendor.startswith("Microsoft") and "Virtual Machine" in product:
        name = "hyperv"
    told = root.read("/sys/hypervisor/type")
    if told.text:
        return known(told.text.split()[0], told.path)
    flags = (blocks.value.any("flags") or "").split() if blocks.value else []
    if flags and "hypervisor" not in flags:
        return known("none", "/proc/cpuinfo")
    if flags:
        return known(name or "unknown", _DMI[0] if name else "/proc/cpuinfo")
    if blocks.value and "emulated by qemu" in (blocks.value.any("machine") or ""):
        return known("kvm", "/proc/cpuinfo")
    # Off x86 there is no flag: a firmware table can show a hypervisor, its silence shows nothing.
    if name is None and blocks.status not in ("ok", "absent"):
        return lost(blocks)
    return known(name, _DMI[0]) if name else missing("absent")


def _arch(blocks: Fact[CpuInfo], version: str) -> Fact[str]:
    if blocks.value is None:
        return lost(blocks)
    value = _cpuinfo.arch(blocks.value, version)
    return known(value, blocks.source or "") if value else missing("absent", blocks.source)


def _kernel(text: str) -> str:
    found = re.match(r"Linux version (\S{1,128})", text)
    if not found:
        raise ValueError("not a kernel version")
    return found[1]


def _dmi(root: Root, name: str) -> Fact[str]:
    fact: Fact[str] = missing("absent")
    for folder in _DMI:
        fact = root.fact(f"{folder}/{name}", words)
        if fact.value is not None:
            break
    return fact


def _container(root: Root) -> Fact[str]:
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if root.exists(path):
            return known(name, path)
    path = "/proc/self/cgroup"
    text = root.read(path).text or ""
    manager = next((word for pattern, word in _CONTAINERS if re.search(pattern, text)), None)
    return known(manager, path) if manager else missing("absent")
