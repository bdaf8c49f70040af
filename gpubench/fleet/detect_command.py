"""`gpubench detect --cluster`: what the nodes of a cluster are made of, and which software differs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.base.errors import require_choice
from gpubench.cli.options import DetectedOptions
from gpubench.fleet import cluster
from gpubench.fleet.options import ClusterDetectOptions
from gpubench.report.renderers import DOCUMENT_FORMATS

if TYPE_CHECKING:
    from gpubench.fleet.clocks import FleetLimits
    from gpubench.fleet.driver import Engine, NodeEnd
    from gpubench.fleet.inventory import Inventory

# They describe one machine, or do more than look at it.
_REFUSED = [name for name in DetectedOptions.declared if name not in ("as_json", "format")]
NODE_ARGUMENTS = ("detect", "--no-config", "--quiet")


def detect_cluster(options: ClusterDetectOptions, names: Sequence[str]) -> int:
    """Ask every node what it is made of, and print what they add up to. `names`: the options that were given."""
    cluster.refuse_options(
        options, names, _REFUSED, hint="leave it out, and ask the node itself: gpubench detect"
    )
    format = "json" if options.as_json else options.format or ("table" if sys.stdout.isatty() else "plain")
    require_choice(format, DOCUMENT_FORMATS, "--format, with --cluster")
    limits = cluster.fleet_limits(options)
    with closing(cluster.engine_at(options.cluster or "")) as engine:
        found, ends, interrupted = detected(options, engine, limits)
    _print(found, format, options)
    if interrupted is not None:
        raise interrupted
    return int(cluster.fleet_code(found, ends, options.expect))


def detected(
    options: ClusterDetectOptions, engine: Engine, limits: FleetLimits
) -> tuple[Inventory, list[NodeEnd], KeyboardInterrupt | None]:
    """The inventory of the nodes behind `engine`, and how each ended. Nothing of what they send stays on the disk."""
    from gpubench.fleet.document import chosen, inventory_of_ends, load_machine, named
    from gpubench.fleet.driver import FleetDriver, PlacedNode
    from gpubench.fleet.journal import FleetJournal
    from gpubench.fleet.merge import named_nodes

    found = named(engine.nodes(), hostnames=not options.no_hostnames)
    asked, absent = chosen(found, named_nodes(options.nodes), options.min_gpus)
    cluster.require_nodes(len(asked), absent, options.expect)
    with (
        tempfile.TemporaryDirectory(prefix="gpubench-") as folder,
        closing(FleetJournal(Path(folder) / "fleet.json", load_machine)) as journal,
    ):
        tell = cluster.teller(options, len(asked))
        driver = FleetDriver(engine, journal, limits, retries=options.retry_failed, tell=tell)
        ends = driver.run([PlacedNode(node, name, NODE_ARGUMENTS) for name, node in asked.items()])
        return inventory_of_ends(ends, absent, journal, expected=options.expect), ends, driver.interrupted


def _print(found: Inventory, format: str, options: ClusterDetectOptions) -> None:
    from gpubench.cli import rendering
    from gpubench.fleet.inventory_tables import inventory_document
    from gpubench.report.layout import RenderOptions
    from gpubench.report.renderers import render_documents

    to_terminal = sys.stdout.isatty()
    style = RenderOptions(
        color=rendering.wants_color(options.color, os.environ, terminal=to_terminal), ascii_only=options.ascii,
        width=rendering.table_width(to_terminal),
    )  # fmt: skip
    text = render_documents(found, lambda: [inventory_document(found)], format, style, "gpubench inventory")
    rendering.write(text, None)
