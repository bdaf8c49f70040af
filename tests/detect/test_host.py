"""Is a result of this machine? CPU model, usable CPUs and memory decide, as far as both sides know them."""

from __future__ import annotations

from gpubench.detect import differences
from gpubench.detect.host import this_host
from gpubench.result.machine import Cpu, Fact, Machine, Memory

GIB = 2**30


def host(model: str | None = "Example", cpus: int | None = 16, memory: int | None = 64 * GIB) -> Machine:
    known = [Fact(value, "ok" if value is not None else "absent", "test") for value in (model, cpus, memory)]
    return Machine(cpu=Cpu(model=known[0], available=known[1]), memory=Memory(total_bytes=known[2]))


def test_this_machine_is_this_machine() -> None:
    assert not differences(this_host())


def test_what_differs_is_named() -> None:
    assert not differences(host(), host())
    assert differences(host(model="Other"), host()) == {"CPU": "Other, here Example"}
    assert differences(host(cpus=2), host()) == {"usable CPUs": "2, here 16"}
    assert differences(host(memory=32 * GIB), host()) == {"memory": "32 GiB, here 64 GiB"}


def test_the_kernels_share_of_memory_and_missing_facts_say_nothing() -> None:
    assert not differences(host(memory=63 * GIB), host())
    assert not differences(host(None, None, None), host())
    assert not differences(host(), host(None, None, None))
