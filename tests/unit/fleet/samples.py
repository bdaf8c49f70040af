"""A fleet with an example of everything that its report and its inventory tell."""

import itertools
import json
from functools import cache

import msgspec
from msgspec.structs import replace

from gpubench.fleet.nodes import Node
from gpubench.fleet.survey import figures, inventory_of, list_node, survey_fleet
from gpubench.fleet.tables import fleet_document, inventory_document
from gpubench.report import renderers
from gpubench.report.layout import RenderOptions
from gpubench.result.machine import Cpu, Driver, Fact, Machine, Memory, Platform
from tests.unit.fleet.fleets import fleet_of, gpu, node_run


def uuids(name, count=4):
    return [f"{name}{number}" for number in range(count)]


def with_driver(run, version):
    driver = Driver(name=Fact("nvidia", "ok", "nvml"), version=Fact(version, "ok", "nvml"))
    machine = replace(run.machine, gpus=[replace(gpu, driver=driver) for gpu in run.machine.gpus])
    return replace(run, machine=machine)


def throttled(run, device):
    outcomes = [*run.outcomes]
    for i, outcome in enumerate(outcomes):
        if getattr(outcome, "blocks", None) and outcome.case.device_id == device:
            blocks = [replace(block, throttle=["sw_power_cap"]) for block in outcome.blocks]
            outcomes[i] = replace(outcome, blocks=blocks)
    return replace(run, outcomes=outcomes)


@cache
def fleet_report():
    """Nodes that are slow, partial, lost or of other software; and a fleet from before, in which all were faster."""
    runs = [
        node_run("a", uuids("A"), spread=itertools.cycle((0.99, 1.0, 1.02)).__next__),
        throttled(node_run("b", uuids("B"), slow={"B2": 1.3, "B3": 1.08}), "cupy:2"),
        node_run("c", uuids("C"), broken=["C1"], known=["C9"]),
        node_run("d", uuids("D"), complete=False, slow={"D0": 1.1}, sessions=1),
        with_driver(node_run("e", uuids("E", 2), slow={"E1": 1.5}), "550.2"),
        *(node_run(f"f{number}", [f"F{number}"], sessions=1) for number in range(2)),
    ]
    runs[1] = replace(runs[1], tool={**runs[1].tool, "gpubench": "0.0.9"})
    hung = Node(key="", status="failed", reason="hung", error="nothing came")
    gone = replace(hung, key="gone.json", reason="unusable", error="gone.json: it is empty")
    failed = [gone, *(replace(hung, key=name, label=name) for name in uuids("x", 5))]
    fleet = fleet_of(runs, failed, expected=16, names=["a", "z"])
    before = [node_run("a", [*uuids("A"), "A9"], slow={"A9": 0.5}), node_run("b", uuids("B"), slow={"B0": 0.9})]
    saved = [figure for run in before for figure in figures(run, "before")]
    return survey_fleet(fleet.nodes, expected=fleet.nodes_expected, known_good=saved)


def known(value):
    return Fact(value, "ok", "test")


def listed(name, gpus=2, *, memory=256, driver="570.1", cuda="12.8", kernel="6.8", lost=0, cpu="Test CPU"):
    """A node that answered; its first `lost` GPUs are not usable."""
    version = Driver(name=known("nvidia"), version=known(driver), cuda=known(cuda))
    cards = [replace(gpu(f"{name}-{i}"), driver=version, usable=known(True)) for i in range(gpus)]
    cards[:lost] = [replace(card, usable=known(False), why_not=["NO_DRIVER"]) for card in cards[:lost]]
    machine = Machine(
        cpu=Cpu(model=known(cpu), available=known(64)), gpus=cards, platform=Platform(kernel=known(kernel)),
        memory=Memory(total_bytes=known(int(memory * 2**30))),
    )  # fmt: skip
    return list_node(name, machine, gpubench="0.1.0 (abc)")


@cache
def inventory():
    nodes = [
        listed("a"), listed("b", driver="550.2"), listed("c", lost=1), listed("d", gpus=0, cpu="Other CPU"),
        listed("e", memory=128, kernel="6.9"), *(listed(f"f{number}", memory=255) for number in range(3)),
        list_node("g", reason="busy", why="others hold it"), *(list_node(name, Machine()) for name in "hj"),
        list_node("i", reason="version-skew", why="other code", gpubench="0.2.0 (def)"),
    ]  # fmt: skip
    return inventory_of(nodes, expected=12)


def lines(document):
    return renderers.draw_lines([document], RenderOptions(width=120), plain=True)


def rows(document):
    """As other programs read it, a value a line."""
    values = msgspec.to_builtins(document)
    values |= {f"peers.{name}": value for name, value in values.pop("peers", {}).items()}
    lists = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in values.items()}
    return "".join(f"{name} {json.dumps(row)}\n" for name, rows in lists.items() for row in rows)


# Golden texts, by file.
TEXTS = {
    "fleet.txt": lambda: lines(fleet_document(fleet_report())), "fleet.jsonl": lambda: rows(fleet_report()),
    "inventory.txt": lambda: lines(inventory_document(inventory())), "inventory.jsonl": lambda: rows(inventory()),
}  # fmt: skip
