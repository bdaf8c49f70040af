from __future__ import annotations

NODE = "/sys/devices/system/node"
GIB = 1 << 30


def gpu_node(host, node, size_kib):
    host |= {
        "/proc/driver/nvidia/gpus/0004:04:00.0/numa_status": f"Node: {node}\nStatus: online\nSize: 40000000",
        f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal: {size_kib} kB\nNode {node} MemFree: {size_kib} kB",
        f"{NODE}/node{node}/cpulist": "",
    }


def test_gpu_memory_is_taken_out_of_ram(look, host):
    gpu_node(host, 255, 1 << 20)
    machine = look(host)
    assert machine.memory.os_total_bytes.value == 8 * GIB
    assert machine.memory.gpu_numa_bytes.value == GIB
    assert machine.memory.total_bytes.value == 7 * GIB
    assert machine.memory.available_bytes.value == 5 * GIB
    assert [(n.id, n.kind.value) for n in machine.numa.nodes] == [(0, "dram"), (255, "gpu")]
    assert machine.gpus[0].memory.dedicated_bytes.value == GIB


def test_a_gpu_node_that_cannot_be_read_costs_the_total(look, host):
    gpu_node(host, 255, 1 << 20)
    host[f"{NODE}/node255/meminfo"] = "nothing"
    memory = look(host).memory
    assert memory.total_bytes.status == memory.gpu_numa_bytes.status == "invalid"
    assert memory.os_total_bytes.value == 8 * GIB


def test_old_kernels_without_available(look, host):
    host["/proc/meminfo"] = "MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 20 kB"
    fact = look(host).memory.available_bytes
    assert fact.value == 35 * 1024
    assert "too old" in fact.note


def test_overlapping_nodes_are_no_nodes(look, host):
    host[f"{NODE}/node1/cpulist"] = "1"
    machine = look(host)
    assert machine.numa.ids.status == "invalid"
    assert machine.numa.nodes == []
    assert [warning.code for warning in machine.warnings] == ["NUMA_OVERLAP"]
