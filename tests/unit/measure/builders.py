"""Runs, measurements and blocks as files have them."""

from gpubench.result.machine import Machine
from gpubench.result.run import Block, Check, Fingerprint, Fingerprints, Measurement, Run, Selection, Settings

RIGHT = Check(ok=True, max_error=0.0, limit=0.0, scale="value")


def empty_run(*outcomes, **fields):
    """A run of these outcomes, of which nothing else is known."""
    same = Fingerprint(hash="0", fields={})
    usual = {"selection": Selection(ops=["add"]), "settings": Settings(), "machine": Machine()}
    prints = Fingerprints(machine=same, device=same, software=same)
    return Run(
        id="x", started_at="2026-01-01T00:00:00Z", fingerprint=prints, outcomes=[*outcomes], **usual | fields
    )


def measured(case, *blocks, **fields):
    """The case with these blocks."""
    usual = {"flops": 1, "bytes": 1, "op_hash": "0", "check": RIGHT}
    return Measurement(id=case.id, case=case, blocks=[*blocks], **usual | fields)


def block(wall_s=(1.0,), **fields):
    """One of these samples."""
    return Block(**{"session": 0, "round": 0, "position": 0, "repeat": 1, "wall_s": [*wall_s]} | fields)
