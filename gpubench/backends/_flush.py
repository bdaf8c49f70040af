"""Caches emptied before a sample: the host's by writing twice as much as they hold, the device's by its own session."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gpubench.backends._host import usable_cpus
from gpubench.model.backend import Session
from gpubench.model.result import UNKNOWN_CACHE_BYTES


class Flush:
    """Call it before the clock starts. `host_bytes`: twice the CPU's last level of cache.

    Every thread writes its share, because the caches near the cores are their own.
    """

    def __init__(self, session: Session, host_bytes: int) -> None:
        import numpy as np

        self._session = session
        self._threads = session.threads or usable_cpus()
        self._host = np.zeros(host_bytes, np.uint8)
        self._pool = ThreadPoolExecutor(self._threads)
        self._on_device: Callable[[], None] | None = None
        if session.device.kind != "cpu":
            self._on_device = of_device(session)

    def __call__(self) -> None:
        """Flush both sides and wait for it."""
        if self._on_device is not None:
            self._on_device()
            self._session.sync()
        share = -(-self._host.size // self._threads)
        list(self._pool.map(self._write, range(0, self._host.size, share), [share] * self._threads))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _write(self, start: int, size: int) -> None:
        self._host[start : start + size] += 1


def of_device(session: Session) -> Callable[[], None]:
    """What empties a device's caches: its own way, else an upload of more than any cache holds."""
    own: Callable[[], None] | None = getattr(session, "flush", None)
    return own or _sending(session)


def _sending(session: Session) -> Callable[[], None]:
    import numpy as np

    zeros = np.zeros(UNKNOWN_CACHE_BYTES // 4, np.float32)
    buffer = session.allocate(zeros.shape, "float32")
    return lambda: session.upload(buffer, zeros)
