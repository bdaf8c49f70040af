"""One more thread, which drives the GPU while the caller's own computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class Beside:
    """A thread that starts with the first piece of work and stays; `enter` runs on it once, before that."""

    def __init__(self, enter: Work) -> None:
        self._enter = enter
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def both(self, aside: Work, here: Work) -> None:
        """Run `aside` there and `here` on the calling thread, at once; both have ended on return.

        Raises what either raised, what `here` raised first.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gpubench-beside", daemon=True)
            self._thread.start()
        self._work.put(aside)
        try:
            here()
        finally:
            error = self._ended.get()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread; later work starts a new one."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        entered = False
        while (work := self._work.get()) is not None:
            error: BaseException | None = None
            try:
                if not entered:
                    self._enter()
                    entered = True
                work()
            except BaseException as caught:  # handed to the caller of `both`
                error = caught
            self._ended.put(error)
