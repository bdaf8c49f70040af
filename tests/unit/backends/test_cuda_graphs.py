"""Chains as CUDA graphs, on a stand-in for CuPy: what is captured, what is launched, and what cannot be captured."""

from __future__ import annotations

import pytest

from gpubench.backends.contract import HostCall
from gpubench.backends.cupy.launches import CudaGraphs, CudaLaunch


class Driver:
    """What `CudaGraphs` uses of CuPy. A step that runs while a stream captures is recorded, and not done."""

    streamCaptureModeRelaxed = 2

    def __init__(self) -> None:
        self.cuda = self.runtime = self
        self.done: list[str] = []
        self.captured: list[str] | None = None

    def Stream(self, non_blocking: bool) -> Driver:
        return self

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_) -> None:
        pass

    def begin_capture(self, mode: int) -> None:
        self.captured = []

    def end_capture(self) -> Graph:
        found, self.captured = self.captured, None
        return Graph(self, found)

    def step(self, name: str):
        def do() -> None:
            (self.done if self.captured is None else self.captured).append(name)

        return do

    def launch(self, *names: str, library: bool = False) -> CudaLaunch:
        steps = [self.step(name) for name in names]
        return CudaLaunch(lambda: [step() for step in steps], None, None if library else steps)


class Graph:
    def __init__(self, driver: Driver, names: list[str]) -> None:
        self.driver, self.names = driver, names

    def launch(self) -> None:
        self.driver.done.append("graph of " + " ".join(self.names))


@pytest.fixture
def driver() -> Driver:
    return Driver()


def chain(driver: Driver, *launches, output="the output"):
    return CudaGraphs(driver).chain(launches, output)


def test_every_call_launches_what_the_first_one_captured(driver):
    whole = chain(driver, driver.launch("a", "b"), driver.launch("c"))
    whole()
    whole()
    assert driver.done == ["graph of a b c"] * 2
    assert whole.output == "the output"


def test_what_the_host_does_comes_before_the_graph_at_every_call(driver):
    class Uploads:
        def upload(self, buffer, made):
            driver.done.append(f"{buffer} = {made}")

    host = HostCall(Uploads(), lambda: "ids", "buffer")
    whole = chain(driver, host, driver.launch("a"), driver.launch("b"))
    whole()
    whole()
    assert driver.done == ["buffer = ids", "graph of a b"] * 2


@pytest.mark.parametrize("names", [("a",), ()])
def test_a_graph_of_one_launch_gains_nothing(driver, names):
    assert chain(driver, *(driver.launch(name) for name in names)) is None


def test_a_library_call_is_not_captured(driver):
    assert chain(driver, driver.launch("a"), driver.launch("b", library=True)) is None


def test_where_the_driver_captures_nothing_the_launches_go_one_by_one(driver, monkeypatch):
    def refuse():
        driver.captured = None
        raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    monkeypatch.setattr(driver, "end_capture", refuse)
    whole = chain(driver, driver.launch("a"), driver.launch("b"))
    whole()
    whole()
    assert driver.done == ["a", "b"] * 2


def test_a_step_that_fails_while_it_is_captured_leaves_the_stream_free(driver):
    def fail() -> None:
        if driver.captured is not None:
            raise RuntimeError("not while capturing")
        driver.done.append("b")

    whole = chain(driver, driver.launch("a"), CudaLaunch(fail, None, [fail]))
    whole()
    assert driver.captured is None
    assert driver.done == ["a", "b"]
