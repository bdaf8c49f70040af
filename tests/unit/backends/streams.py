"""A GPU's stream on simulated clocks of the host and the device, for the clocks of two libraries."""

from collections import deque

DEPTH = 1024


class Stream:
    """What `EventClock` uses of CuPy. Enqueueing takes `host_s`; with `depth` entries waiting the host waits, too."""

    uint8, depth = "uint8", DEPTH

    def __init__(self, host_s):
        self.host_s, self.host, self.device = host_s, 0.0, 0.0
        self.waiting = deque()
        self.cuda = self
        self.data = self
        self.flushed = self.spins = 0

    def enqueue(self, seconds):
        self.host += self.host_s
        while self.waiting and self.waiting[0] <= self.host:  # they end in order
            self.waiting.popleft()
        if len(self.waiting) >= self.depth:
            self.host = self.waiting[-self.depth]
        self.device = max(self.host, self.device) + seconds
        self.waiting.append(self.device)

    def spin(self, grid, block, arguments):
        self.spins += 1
        self.enqueue(float(arguments[0]) * 1e-9)

    def Event(self):
        return Mark(self)

    def get_elapsed_time(self, begin, end):
        return (end.at - begin.at) * 1e3

    def get_current_stream(self):
        return self

    def synchronize(self):
        self.host = max(self.host, self.device)

    def empty(self, size, dtype):
        return self

    def memset_async(self, value, size):
        self.flushed += 1
        self.enqueue(1e-4)


class Mark:
    def __init__(self, stream):
        self.stream = stream

    def record(self):
        self.stream.enqueue(0.0)
        self.at = self.stream.device

    @property
    def done(self):
        return self.at <= self.stream.host

    def synchronize(self):
        self.stream.host = max(self.stream.host, self.at)
