"""Child side: `device_hot` of a GPU that tells no time of its own (measurement.md, section 3).

The wall time of 3r launches less that of r is the time of 2r launches without what a sample costs besides: starting the
first launch and waiting for the last.
"""

from __future__ import annotations

from gpubench.model.backend import Launch, Session

# Twice as long are the launches that the difference leaves: an interruption of 50 us is 1 % of them.
SPAN_S = 2.5e-3


def derives(session: Session) -> bool:
    """Whether the hot time of this device has to be derived: of a GPU without a clock."""
    return session.device.kind == "gpu" and session.device.clock is None


def launches(session: Session, launch: Launch, most: int) -> int:
    """r: so many launches that they last `SPAN_S`, at most `most`."""
    repeat = 1
    while repeat < most and wall_s(session, launch, repeat) < SPAN_S:
        repeat *= 2
    return repeat


def hot_s(session: Session, launch: Launch, repeat: int) -> float | None:
    """Seconds per launch; None where an interruption made the shorter sample the longer one."""
    short_s = wall_s(session, launch, repeat)
    seconds = (wall_s(session, launch, 3 * repeat) - short_s) / (2 * repeat)
    return seconds if seconds > 0 else None


def wall_s(session: Session, launch: Launch, repeat: int) -> float:
    """Wall seconds of so many launches and one wait."""
    start = session.clock()
    session.run(launch, repeat)
    session.sync()
    return session.clock() - start
