"""How data moves in each form: a session may offer several ways, one that does not has its own for both."""

from __future__ import annotations

from gpubench.model.backend import Session, Transfers
from gpubench.model.op import Form
from gpubench.model.result import Staging


class OwnTransfers:
    """The session's own calls: ordinary host memory, as far as anybody knows."""

    staging: Staging = "pageable"

    def __init__(self, session: Session) -> None:
        self.upload = session.upload
        self.download = session.download


def transfers_of(session: Session, form: Form) -> Transfers:
    """The way of this form."""
    ways = getattr(session, "transfers", None)
    return (ways(form) if ways is not None else None) or OwnTransfers(session)
