"""A hypervisor may hide its flag, and a maker's name is no proof of one."""

from __future__ import annotations

import pytest

DMI = "/sys/class/dmi/id"


def machine(host, *, flag, model="Test CPU", **dmi):
    flags = "lm hypervisor" if flag else "lm"
    blocks = "\n\n".join(f"processor : {n}\nmodel name : {model}\nflags : {flags}" for n in (0, 1))
    tree = host | {"/proc/cpuinfo": blocks} | {f"{DMI}/{name}": text for name, text in dmi.items()}
    for number in (0, 1):
        tree[f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"] = str(number)
    return tree


VIRTUAL = [
    ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "kvm"), ("ASUS", "Standard PC (i440FX + PIIX, 1996)", "kvm"),
    ("innotek GmbH", "VirtualBox", "virtualbox"), ("Oracle Corporation", "VirtualBox", "virtualbox"),
    ("VMware, Inc.", "VMware7,1", "vmware"), ("Xen", "HVM domU", "xen"), ("Bochs", "Bochs", "kvm"),
    ("Microsoft Corporation", "Virtual Machine", "hyperv"), ("Google", "Google Compute Engine", "kvm"),
    ("Amazon EC2", "m5.large", "kvm"), ("Red Hat", "KVM", "kvm"), ("KubeVirt", "None", "kvm"),
    ("Parallels International GmbH.", "Parallels Virtual Platform", "parallels"), ("BHYVE", "BHYVE", "bhyve"),
]  # fmt: skip
REAL = [
    ("Microsoft Corporation", "Surface Book 3"), ("Google", "Eve"), ("Amazon EC2", "c5.metal"), ("Nutanix", "NX-3060-G5"),
    ("Oracle Corporation", "ORACLE SERVER X8-2"), ("Apple Inc.", "MacBookPro16,1"), ("Xenon Systems", "Nitro G12"),
    ("To Be Filled By O.E.M.", "Default string"), ("", ""),
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "product", "name"), VIRTUAL)
def test_firmware_of_a_hypervisor_outweighs_a_flag_that_is_hidden(look, host, vendor, product, name):
    guest = look(machine(host, flag=False, sys_vendor=vendor, product_name=product))
    fact = guest.platform.hypervisor
    assert (fact.value, fact.status, fact.alternatives[0].value) == (name, "conflict", "none")
    assert guest.cpu.smt.value == "hidden"
    fact = look(machine(host, flag=True, sys_vendor=vendor, product_name=product)).platform.hypervisor
    assert (fact.value, fact.status) == (name, "ok")


@pytest.mark.parametrize(("vendor", "product"), REAL)
def test_a_makers_name_is_no_proof(look, host, vendor, product):
    guest = look(machine(host, flag=False, sys_vendor=vendor, product_name=product))
    assert (guest.platform.hypervisor.value, guest.platform.hypervisor.status) == ("none", "ok")
    assert guest.cpu.smt.value == "off"


def test_what_else_the_firmware_and_the_cpu_are_called_is_looked_at(look, host):
    renamed = machine(host, flag=False, sys_vendor="ASUS", product_name="PRIME X570", chassis_vendor="QEMU")
    assert look(renamed).platform.hypervisor.value == "kvm"
    emulated = machine(host, flag=False, model="QEMU Virtual CPU version 2.5+")
    assert look(emulated).platform.hypervisor.status == "conflict"


@pytest.mark.parametrize(("vendor", "name"), [("Amazon EC2", "kvm"), ("Hetzner", "kvm"), ("ASUS", "unknown")])
def test_with_the_flag_the_maker_names_the_hypervisor(look, host, vendor, name):
    assert look(machine(host, flag=True, sys_vendor=vendor, product_name="X")).platform.hypervisor.value == name


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("QEMU", "KVM Virtual Machine", "kvm"),
        ("Amazon EC2", "c7g.large", "kvm"),
        ("Amazon EC2", "c7g.metal", None),
        ("Google", "Kevin", None),
    ],
)
def test_without_flags_only_such_firmware_tells(look, host, vendor, product, name):
    host |= {
        "/proc/cpuinfo": "processor : 0\nCPU architecture: 8",
        f"{DMI}/sys_vendor": vendor,
        f"{DMI}/product_name": product,
    }
    fact = look(host).platform.hypervisor
    assert (fact.value, fact.status) == (name, "ok" if name else "absent")
