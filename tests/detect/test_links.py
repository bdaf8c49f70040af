"""How GPUs reach each other: from the folders of PCI and KFD, and from a scripted NVML."""

from types import SimpleNamespace

import pytest

from gpubench import detect
from gpubench.detect import picture
from gpubench.detect.facts import parse_record, record_to_json
from gpubench.detect.probes import nvml
from tests.detect.recorded import last_answer
from tests.detect.trees import GIB, check, pci
from tests.nvml import Nvml

BUS = "sys/bus/pci/devices"
SWITCH = "pci0000:10/0000:10:01.0/0000:11:00.0"
SWITCHED, DIRECT = 2, 0


def card(bdf, above, node=None):
    """One NVIDIA card in its real folder below the bridges `above`, and the bus's link to it."""
    folder = f"sys/devices/{above}/{bdf}"
    files = {f"{folder}/class": "0x030200", f"{folder}/vendor": "0x10de", f"{folder}/device": "0x2335"}
    files |= {} if node is None else {f"{folder}/numa_node": str(node)}
    return files | {f"{BUS}/{bdf}": f"-> ../../../devices/{above}/{bdf}"}


# Above each card, its node; what they share.
@pytest.mark.parametrize(("one", "other", "common", "kind"), [
    ((f"{SWITCH}/0000:12:00.0", 0), (f"{SWITCH}/0000:12:01.0", 0), "switch", "pcie"),
    ((f"{SWITCH}/0000:12:00.0", 0), ("pci0000:10/0000:10:02.0", 0), "host-bridge", "pcie"),
    (("pci0000:00", None), ("pci0000:00", None), "host-bridge", "pcie"),
    (("pci0000:10/0000:10:01.0", 0), ("pci0000:20/0000:20:01.0", 0), "numa-node", "host"),
    (("pci0000:10/0000:10:01.0", 0), ("pci0000:80/0000:80:01.0", 1), "system", "host"),
    (("pci0000:10/0000:10:01.0", None), ("pci0000:80/0000:80:01.0", 1), None, None)])  # fmt: skip
def test_the_folders_of_pci_tell_what_two_cards_share(look, one, other, common, kind):
    first, second = look(card("0000:13:00.0", *one) | card("0000:23:00.0", *other)).gpus
    (path,) = first.link.paths
    assert (path.to, path.common.value, path.kind.value) == (second.id, common, kind)
    assert path.common.source == f"/{BUS}/0000:13:00.0" + ("/numa_node" if kind in (None, "host") else "")
    assert (path.read.status, first.link.peers) == ("not_probed", [])


@pytest.mark.parametrize(("gpu", "upstream", "downstream", "link"), [
    ("1002", "1002", "1002", (3, 8)), ("8086", "8086", "8086", (3, 8)),  # a switch on the card
    ("10de", "10b5", "10b5", (1, 1)), ("1002", "1022", "1022", (1, 1)), ("1002", "1002", None, (1, 1)),
    ("1002", "1022:1470", "1022:1471", (3, 8))])  # fmt: skip
def test_the_link_of_a_card_is_that_of_its_own_switch(look, gpu, upstream, downstream, link):
    above, tree = "pci0000:00", {}
    ports = (("0000:00:01.0", gpu, "5.0", 16), ("0000:01:00.0", upstream, "8.0", 8), ("0000:02:00.0", downstream, "2.5", 1),
             ("0000:03:00.0", gpu, "2.5", 1))  # fmt: skip
    for bdf, vendor, speed, lanes in ports:
        if vendor is not None:
            texts = {
                "class": "0x030000" if bdf == "0000:03:00.0" else "0x060400",
                "vendor": f"0x{vendor[:4]}",
                "device": f"0x{vendor[5:] or '1478'}",
            }
            texts |= {f"{when}_link_{what}": str(text) for when in ("max", "current")
                      for what, text in (("speed", f"{speed} GT/s PCIe"), ("width", lanes))}  # fmt: skip
            tree |= {f"sys/devices/{above}/{bdf}/{name}": text for name, text in texts.items()}
            tree[f"{BUS}/{bdf}"] = f"-> ../../../devices/{above}/{bdf}"
        above += f"/{bdf}"
    generation, lanes = link
    check(look(tree), {"gpus.0.link.gen_max": generation, "gpus.0.link.width_max": lanes, "gpus.0.link.gen_now": generation,
                       "gpus.0.link.width_now": lanes})  # fmt: skip


def test_a_folder_that_is_no_link_tells_nothing(look):
    cards = [pci(f"0000:0{n}:00.0", "10de", "2335") for n in (1, 2)]
    for gpu in look(cards[0] | cards[1]).gpus:
        assert [(path.kind.status, path.common.status) for path in gpu.link.paths] == [("absent", "absent")]


def test_a_sleeping_card_has_its_place_all_the_same(look):
    tree = card("0000:13:00.0", "pci0000:00") | card("0000:23:00.0", "pci0000:00")
    tree["sys/devices/pci0000:00/0000:13:00.0/power/runtime_status"] = "suspended"
    check(look(tree), {"gpus.*.link.paths.0.common": ["host-bridge"] * 2})


def kfd(links):
    """Two AMD GPUs, nodes 1 and 2; `links` are those of node 1 by folder."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    tree = {f"{nodes}/0/properties": "cpu_cores_count 8\nsimd_count 0"}
    for number, location in ((1, 0x300), (2, 0x400)):
        table = f"simd_count 208\nsimd_per_cu 4\nlocation_id {location}\nunique_id {number}\nvendor_id 4098"
        tree[f"{nodes}/{number}/properties"] = table
    return tree | {f"{nodes}/1/{folder}/properties": text for folder, text in links.items()}


XGMI = {"io_links/1": "type 11\nnode_from 1\nnode_to 2\nmax_bandwidth 50000\nflags 1",
        "io_links/0": "type 2\nnode_from 1\nnode_to 0"}  # fmt: skip
PCIE = {"p2p_links/0": "type 2\nnode_to 2\nflags 12"}
SENSELESS = {"io_links/0": "type 11\nnode_to 9", "io_links/1": "junk", "p2p_links/0": "?"}


@pytest.mark.parametrize(("links", "paths"), [
    (XGMI, [{"kind": "xgmi", "via": "direct", "max_bytes_per_s": 50_000_000_000, "read": True, "write": True, "atomics": True,
             "kind.source": "/sys/class/kfd/kfd/topology/nodes/1/io_links/1/properties"}]),
    (PCIE, [{"kind": "pcie", "read": True, "atomics": False, "via": "absent", "max_bytes_per_s": "absent"}]), (SENSELESS, [])])  # fmt: skip
def test_kfd_tells_the_links_of_a_node(look, links, paths):
    first, second = look(kfd(links)).gpus
    assert len(first.link.paths) == len(paths)
    for path, expected in zip(first.link.paths, paths, strict=True):
        check(path, {"to": second.id, **expected})
    check(first, {"bdf": "0000:03:00.0", "kind": "absent", "compute.arch": "absent", "compute.max_hz": "absent", "compute.units": 52})  # fmt: skip
    assert first.link.peers == [second.id] * (links is XGMI)
    assert second.link.peers == [], "its own folder says nothing"


def library(**answers):
    """An NVML of GPUs of 100 GiB; a number is an error, where no number is the answer."""
    numbers = ("nvmlDeviceGetCount", "nvmlSystemGetCudaDriverVersion_v2")
    answers = {
        "nvmlSystemGetCudaDriverVersion_v2": 13000, "nvmlDeviceGetUUID": "GPU-00000000-1111-2222-3333-444444444444",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100 * GIB, free=90 * GIB, reserved=GIB, used=9 * GIB)} | answers  # fmt: skip
    return Nvml(**{name: Nvml.NVMLError(answer) if isinstance(answer, int) and name not in numbers else answer
                   for name, answer in answers.items()})  # fmt: skip


def host(links, **answers):
    """GPUs 0000:00:06.0 and up, whose links are lists of (remote type, remote number) or None for one that is down."""

    def link_of(handle, number):
        if number >= len(links[handle]):
            raise Nvml.NVMLError(2)
        return links[handle][number]

    def place(number):
        return SimpleNamespace(busId=f"00000000:0{6 + number}:00.0".encode(), pciDeviceId=0x233510DE)

    answers = {
        "nvmlDeviceGetCount": len(links), "nvmlDeviceGetPciInfo": place,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle + 1:08x}-1111-2222-3333-444444444444",
        "nvmlDeviceGetNvLinkState": lambda handle, number: int(link_of(handle, number) is not None),
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle, number: link_of(handle, number)[0],
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, number: place(link_of(handle, number)[1]),
        "nvmlDeviceGetFieldValues": lambda _handle, fields: [
            SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal={90: 26562}[field])) for field in fields],
        "nvmlDeviceGetTopologyCommonAncestor": lambda _a, _b: 40, "nvmlDeviceGetP2PStatus": lambda _a, _b, _index: 0} | answers  # fmt: skip
    return detect.inspect(records=last_answer(nvml.probe_nvml, library(**answers))["records"])


def test_cards_on_a_switch_have_the_fewer_lanes_of_both_sides():
    first, second = host([[(SWITCHED, 0)] * 18, [(SWITCHED, 0)] * 17 + [None]]).gpus
    for gpu, other in ((first, second), (second, first)):
        (path,) = gpu.link.paths
        assert (path.to, path.kind.value) == (other.id, "nvlink")
        assert (path.lanes.value, path.via.value) == (17, "switch")
        assert path.max_bytes_per_s.value == 17 * 26_562_000_000
        assert (path.common.value, path.read.value, path.atomics.value) == ("numa-node", True, True)
        assert gpu.link.peers == [other.id]


def test_direct_links_count_for_the_card_at_their_end():
    links = [[(DIRECT, 1), (DIRECT, 1), (DIRECT, 2)], [(DIRECT, 0), (DIRECT, 0)], [(DIRECT, 0)]]
    machine = host(links, nvmlDeviceGetP2PStatus=lambda a, b, index: 5 if index == 2 and 0 not in (a, b) else 0)
    lanes = {path.to: (path.lanes.value, path.via.value) for path in machine.gpus[0].link.paths}
    assert lanes == {machine.gpus[1].id: (2, "direct"), machine.gpus[2].id: (1, "direct")}
    unlinked = next(path for path in machine.gpus[1].link.paths if path.to == machine.gpus[2].id)
    assert (unlinked.kind.value, unlinked.read.value) == (None, True)
    assert machine.gpus[1].link.peers == [machine.gpus[0].id]


@pytest.mark.parametrize(("code", "common"), [
    *((code, "switch") for code in (0, 10, 20)), (30, "host-bridge"), (40, "numa-node"), (50, "system"), (60, None)])  # fmt: skip
def test_what_two_cards_share_and_may_do(code, common):
    """P2P of the driver: 0 reads, 1 writes, 3 atomics. Of a card at most 36 links are asked."""
    may = {"read": 0, "write": 1, "atomics": 3}
    for name, index in may.items():
        machine = host([[(SWITCHED, 0)] * 40] * 2, nvmlDeviceGetTopologyCommonAncestor=lambda _a, _b: code,
                       nvmlDeviceGetP2PStatus=lambda _a, _b, asked, index=index: 0 if asked == index else 5)  # fmt: skip
        (path,) = machine.gpus[0].link.paths
        assert (path.common.value, path.lanes.value) == (common, 36)
        assert [getattr(path, other).value for other in may] == [other == name for other in may]


def test_what_a_library_does_not_tell_costs_that_fact_alone():
    path = "gpus.0.link.paths.0."
    guest = host([[], []])  # it sees no lane
    check(guest, {f"{path}kind": "nvlink", f"{path}lanes.value": None, f"{path}lanes.status": "invalid"})
    old = host([[], []], nvmlDeviceGetP2PStatus=3, nvmlDeviceGetNvLinkState=3)
    check(old, {f"{path}common": "numa-node", f"{path}read": "unsupported", f"{path}kind.value": None})
    instances = host([[(SWITCHED, 0)] * 18] * 2, nvmlDeviceGetMigMode=lambda handle: (handle, handle))
    assert [gpu.link.paths for gpu in instances.gpus] == [[], []]


def test_the_matrix_shows_each_pair_and_needs_two_gpus(look):
    assert "Links" not in detect.render(look(card("0000:13:00.0", "pci0000:00")), "plain")
    assert "Links" not in detect.render(host([[]]), "plain")
    linked = host([[(SWITCHED, 0)] * 18] * 2)
    rows = ["      0     1", "0     -  NV18", "1  NV18     -"]
    assert picture.matrix(linked.gpus) == [*rows, "NVn: n NVLinks"]
    text = [line.removeprefix("Links").strip() for line in detect.render(linked, "plain").splitlines()]
    assert [row for row in (*rows, "NVn: n NVLinks") if row.strip() not in text] == []


def test_records_carry_their_paths_there_and_back():
    records = last_answer(nvml.probe_nvml, library(nvmlDeviceGetCount=2))["records"]
    known = {"to": "00:07.0", "kind": 3, "lanes": {"value": 4, "status": "ok"}}
    record = parse_record(records[0] | {"paths": [{"to": "no address"}, "junk", known]})
    (path,) = record.paths
    assert (path.kind.status, path.lanes.value, path.lanes.source) == ("not_probed", 4, "nvml")
    assert parse_record(record_to_json(record)).paths == record.paths
