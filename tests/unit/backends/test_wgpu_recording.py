"""What a compute pass is told, by wgpu-py's methods and by wgpu-native's functions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpubench.backends.wgpu import programs
from gpubench.backends.wgpu.programs import WgpuLaunch, encode


class Pass:
    """A compute pass of wgpu-py that writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def set_pipeline(self, pipeline) -> None:
        self.calls.append(("pipeline", pipeline._internal))

    def set_bind_group(self, index, group) -> None:
        self.calls.append(("group", index, group._internal))

    def dispatch_workgroups(self, *grid) -> None:
        self.calls.append(("dispatch", *grid))


class NativePass(Pass):
    """The same behind a pointer."""

    @property
    def _internal(self) -> NativePass:
        return self


LIBRARY = SimpleNamespace(
    wgpuComputePassEncoderSetPipeline=lambda own, pipeline: own.calls.append(("pipeline", pipeline)),
    wgpuComputePassEncoderSetBindGroup=lambda own, index, group, count, offsets: own.calls.append(
        ("group", index, group)
    ),
    wgpuComputePassEncoderDispatchWorkgroups=lambda own, *grid: own.calls.append(("dispatch", *grid)),
)


def step(name: str, *, bound: bool = True):
    group = SimpleNamespace(_internal=f"group {name}") if bound else None
    return SimpleNamespace(_internal=name), group, (1, 2, 3)


@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("steps", [[step("a")], [step("a", bound=False)], [step("a"), step("b")]], ids=len)
def test_both_ways_record_the_same(steps, repeat, monkeypatch):
    launch = WgpuLaunch(steps, "output", None)
    public, native = Pass(), NativePass()
    monkeypatch.setattr(programs, "native_calls", lambda: (LIBRARY, None))
    encode(public, launch, repeat)  # no pointer: by its methods
    encode(native, launch, repeat)
    assert native.calls == public.calls
    assert sum(what[0] == "dispatch" for what in native.calls) == repeat * len(steps)


def test_a_step_that_repeats_is_bound_once():
    recorded = Pass()
    encode(recorded, WgpuLaunch([step("a")], "output", None), 3)
    assert recorded.calls == [("pipeline", "a"), ("group", 0, "group a"), *[("dispatch", 1, 2, 3)] * 3]


def test_without_the_library_the_methods_are_called(monkeypatch):
    monkeypatch.setattr(programs, "native_calls", lambda: None)
    recorded = NativePass()
    encode(recorded, WgpuLaunch([step("a"), step("b")], "output", None), 1)
    assert [what[0] for what in recorded.calls] == ["pipeline", "group", "dispatch"] * 2
