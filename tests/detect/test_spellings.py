"""Keys of /proc/cpuinfo have spellings, and placeholders are no values."""

from __future__ import annotations

import pytest

from gpubench.detect import cpuinfo
from gpubench.detect import facts as records

LOONGARCH = """system type\t\t: generic-loongson-machine

processor\t\t: 0
CPU Family\t\t: Loongson-64bit
Model Name\t\t: Loongson-3A5000-HV
CPU MHz\t\t\t: 2500.00
ISA\t\t\t: loongarch32 loongarch64
Features\t\t: cpucfg lam ual fpu lsx lasx"""
ARM_OLD = """Processor\t: ARMv7 Processor rev 4 (v7l)
processor\t: 0
BogoMIPS\t: 38.40

processor\t: 1
BogoMIPS\t: 38.40

Features\t: swp half thumb fastmult vfp
CPU implementer\t: 0x41
CPU architecture: 7"""
ARM64_OLD = (
    "Processor\t: AArch64 Processor rev 3 (aarch64)\nprocessor\t: 0\n\nCPU architecture: 8\nFeatures : fp asimd"
)
S390 = "vendor_id : IBM/S390\nprocessor 0: version = FF, identification = 1, machine = 8561\n\ncpu number : 0\ncpu MHz dynamic : 5200"
POWER = "processor : 0\ncpu : POWER9 (raw), altivec supported\nclock : 3425.000000MHz\nrevision : 2.2 (pvr 004e 1202)"
PPC = "processor : 0\ncpu : 7447A, altivec supported\nclock : 1416.666661MHz\nrevision : 0.5 (pvr 8003 0105)"
RISCV = "processor : 0\nhart : 1\nisa : rv64imafdc\nmmu : sv39\nuarch : sifive,u74-mc"
MIPS = "system type : ICT\nprocessor : 0\ncpu model : ICT Loongson-3 V0.2  FPU V0.1\nisa : mips1 mips64r1"
ALPHA = "cpu : Alpha\ncpu model : EV56\nsystem type : Miata"
SPARC = "cpu : TI UltraSparc IIIi (Jalapeno)\ntype : sun4u\nState:\nCPU0: online\nCPU1: online"
HPPA = "processor : 0\ncpu family : PA-RISC 2.0\ncpu : PA8700 (PCX-W2)\ncpu MHz : 650.000000"
ITANIUM = "processor : 0\nvendor : GenuineIntel\narch : IA-64\nfamily : Itanium 2\nmodel name : Madison"


@pytest.mark.parametrize(
    ("text", "model", "arch", "vendor", "mhz"),
    [
        (LOONGARCH, "Loongson-3A5000-HV", "loongarch64", "Loongson", 2500),
        (ARM_OLD, "ARMv7 Processor rev 4 (v7l)", "armv7l", "Arm", None),
        (ARM64_OLD, "AArch64 Processor rev 3 (aarch64)", "aarch64", None, None),
        (S390, "IBM 8561", "s390x", "IBM/S390", 5200),
        (POWER, "POWER9 (raw)", "ppc64", "IBM", 3425),
        (PPC, "7447A", "ppc", None, 1417),
        (RISCV, "sifive,u74-mc", "riscv64", None, None),
        (MIPS, "ICT Loongson-3 V0.2 FPU V0.1", "mips64", "Loongson", None),
        (ALPHA, "EV56", "alpha", None, None),
        (SPARC, "TI UltraSparc IIIi (Jalapeno)", "sparc64", None, None),
        (HPPA, "PA8700 (PCX-W2)", "parisc64", None, 650),
        (ITANIUM, "Madison", "ia64", "GenuineIntel", None),
    ],
)
def test_each_kernel_spells_its_keys_in_its_own_way(text, model, arch, vendor, mhz):
    info = cpuinfo.parse(text)
    assert (cpuinfo.model(info), cpuinfo.arch(info), cpuinfo.vendor(info)) == (model, arch, vendor)
    assert round((cpuinfo.clock_hz(info) or 0) / 1e6) == (mhz or 0)


def test_cpus_are_counted_where_only_their_state_is_listed():
    assert cpuinfo.parse(SPARC).cpus.keys() == {0, 1}


@pytest.mark.parametrize("nothing", ["unknown", "Unknown", "N/A", "unknown (00000000)", "0000", "-"])
def test_a_placeholder_is_no_model(look, host, nothing):
    host["/proc/cpuinfo"] = f"processor : 0\nvendor_id : {nothing}\nmodel name : {nothing}\nflags : lm"
    cpu = look(host).cpu
    assert [(fact.value, fact.status) for fact in (cpu.model, cpu.vendor)] == [(None, "absent")] * 2
    host["/proc/cpuinfo"] += f"\n\nprocessor : 1\nmodel name : Test CPU\nvendor_id : {nothing}\nflags : lm"
    assert look(host).cpu.model.value == "Test CPU"  # another block tells


@pytest.mark.parametrize(
    "nothing",
    [
        "To Be Filled By O.E.M.",
        "Default string",
        "Not Specified",
        "None",
        "System Product Name",
        "0000",
        "OEM",
        "x" * 8,
    ],
)
def test_a_placeholder_is_no_name_of_a_machine_or_a_gpu(look, host, pci, nothing):
    host |= {"/sys/class/dmi/id/sys_vendor": nothing, "/sys/class/dmi/id/product_name": nothing}
    host |= pci("0000:03:00.0", "1002", "744c", "amdgpu", product_name=nothing)
    machine = look(host)
    assert machine.platform.dmi_vendor.status == machine.platform.dmi_product.status == "absent"
    assert machine.gpus[0].name_precision == "family"
    assert records.parse_record({"source": "nvml", "name": nothing}).name is None


@pytest.mark.parametrize("real", ["AMD Radeon 780M", "NUC12WSKi7", "EV56", "Nonesuch X"])
def test_a_name_stays(real):
    assert not records.is_placeholder(real)
