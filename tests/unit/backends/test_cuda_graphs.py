"""Chains as CUDA graphs, on a stand-in for CuPy that computes: results of each call, and how much is submitted."""

from __future__ import annotations

from functools import partial

import pytest

from gpubench.backends.contract import HostCall
from gpubench.backends.cupy.launches import CudaGraphs, CudaLaunch


class Driver:
    """A number on the device, and what `CudaGraphs` uses of CuPy. While a stream captures, steps only are recorded."""

    streamCaptureModeRelaxed = 2

    def __init__(self, refuses: bool = False) -> None:
        self.cuda = self.runtime = self
        self.refuses = refuses
        self.number, self.submitted, self.captures = 0, 0, 0
        self.captured: list | None = None

    def Stream(self, non_blocking: bool) -> Driver:
        return self

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_) -> None:
        pass

    def begin_capture(self, mode: int) -> None:
        self.captured = []
        self.captures += 1

    def end_capture(self) -> Driver:
        self.graph, self.captured = self.captured, None
        if self.refuses:
            raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
        return self

    def launch(self) -> None:
        self.submit(*self.graph)

    def submit(self, *changes) -> None:
        self.submitted += 1
        for change in changes:
            self.number = change(self.number)

    def step(self, change) -> None:
        if self.captured is None:
            self.submit(change)
        elif change is spoil:
            raise RuntimeError("not while capturing")
        else:
            self.captured.append(change)

    def upload(self, buffer, number) -> None:
        self.number = number


def double(number):
    return 2 * number


def add(number):
    return number + 1


def spoil(number):
    return number + 5


def launch(driver: Driver, *changes, library: bool = False) -> CudaLaunch:
    steps = [partial(driver.step, change) for change in changes]
    return CudaLaunch(lambda: [step() for step in steps], None, None if library else steps)


# Launches and their steps, whether the driver captures, the number after each of two calls, what both submit.
CHAINS = {
    "one graph a call": ([(double, add), (double,)], False, [2, 10], 2),
    "launches one by one where nothing is captured": ([(double, add), (double,)], True, [2, 10], 6),
    "launches one by one where a step cannot be captured": ([(double,), (spoil,)], False, [5, 15], 4),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_computes_what_its_launches_do_at_every_call(name):
    launches, refuses, numbers, submitted = CHAINS[name]
    driver = Driver(refuses)
    whole = CudaGraphs(driver).chain([launch(driver, *changes) for changes in launches], "the output")
    found = []
    for _ in numbers:
        whole()
        found.append(driver.number)
    assert (found, driver.submitted, whole.output) == (numbers, submitted, "the output")
    assert driver.captured is None, "the stream is free"
    assert driver.captures == 1, "later calls pay for none"


def test_what_the_host_uploads_is_there_for_the_graph_of_every_call():
    driver, numbers = Driver(), iter((3, 7))
    host = HostCall(driver, lambda: next(numbers), "buffer")
    whole = CudaGraphs(driver).chain([launch(driver, double), host, launch(driver, add)], "the output")
    found = []
    for _ in range(2):
        whole()
        found.append(driver.number)
    assert found == [7, 15]


@pytest.mark.parametrize("library", [[], [False], [False, True]], ids=["none", "one", "a library's"])
def test_launches_of_which_no_graph_is_made(library):
    """One launch gains nothing; a library's call takes memory, which a graph cannot."""
    driver = Driver()
    launches = [launch(driver, add, library=one) for one in library]
    assert CudaGraphs(driver).chain(launches, "the output") is None
