"""The inventory of a fleet: who answered, which nodes are equal, which software differs."""

import pytest

from gpubench.fleet.survey import SAME_MEMORY, inventory_of, list_node
from gpubench.fleet.tables import inventory_document, inventory_headline
from tests.unit.fleet.samples import lines, listed


def test_the_first_line_names_who_is_missing_and_what_differs_the_worst_first():
    nodes = [
        listed("d", 8), listed("b", 8, driver="550.2", cuda="12.4"), listed("c", 4, lost=1), listed("a", 8),
        list_node(name="e", reason="busy", why="others hold it"),
        list_node(name="f", reason="hung", why="nothing came from it"),
        list_node(name="g", reason="version-skew", why="other code", gpubench="0.2.0 (def)"),
    ]  # fmt: skip
    found = inventory_of(nodes, expected=8)
    assert found == inventory_of(nodes[::-1], expected=8)
    assert inventory_headline(found) == (
        "Fleet: 4 of 8 nodes answered, 27 GPUs; 1 hung (f); 1 version-skew (g); 1 busy (e); nothing is known of 1 more; "
        "1 GPU not usable; 2 kinds of nodes; software differs (CUDA, driver nvidia, gpubench)"
    )
    equal, apart = found.groups
    assert (equal.nodes, equal.gpus) == (["a", "b", "d"], {"Test GPU, 16 GiB": 8})
    assert apart.gpus == {"Test GPU, 16 GiB": 3, "Test GPU, 16 GiB (not usable)": 1}
    assert {one.what: (one.usual, one.others) for one in found.drift} == {
        "CUDA": ("12.8", {"12.4": ["b"]}),
        "driver nvidia": ("570.1", {"550.2": ["b"]}), "gpubench": ("0.1.0 (abc)", {"0.2.0 (def)": ["g"]}),
    }  # fmt: skip
    whys = ["nothing came from it", "other code", "others hold it"]
    order = [*whys, "Equal nodes", "NO_DRIVER", "Software that differs"]
    assert sorted(order, key=lines(inventory_document(found)).index) == order
    assert not found.complete
    assert inventory_headline(inventory_of([listed("a", 8)])) == "Fleet: 1 of 1 nodes answered, 8 GPUs"


@pytest.mark.parametrize(("share", "groups"), [(SAME_MEMORY / 2, 1), (SAME_MEMORY * 2, 2)])
def test_memory_is_equal_if_the_kernel_alone_could_make_the_difference(share, groups):
    assert len(inventory_of([listed("a", 8), listed("b", 8, memory=256 * (1 - share))]).groups) == groups


def test_of_a_thousand_nodes_few_lines_are_printed():
    nodes = [listed(f"n{i}", memory=16 + i, kernel=f"6.{i}", lost=1) for i in range(100)]
    absent = [list_node(name=f"x{i}", reason="busy", why="others hold it") for i in range(900)]
    found = inventory_of([*nodes, *absent])
    assert (len(lines(inventory_document(found)).splitlines()) <= 300, len(found.nodes)) == (True, 1000)
