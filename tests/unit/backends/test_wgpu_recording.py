"""What a compute pass is told by wgpu-native's functions."""

import gc
import weakref
from types import SimpleNamespace

import msgspec
import pytest

from gpubench import kernels
from gpubench.backends.wgpu import queues
from gpubench.backends.wgpu.programs import FIRST_STEPS, SLICE, STEPS, Programs, WgpuLaunch, differing, encode
from gpubench.backends.wgpu.queues import Library, Queue
from gpubench.result.case import Case
from tests.shapes import H200

LIBRARY = SimpleNamespace(
    wgpuComputePassEncoderSetPipeline=lambda own, pipeline: own.append(("pipeline", pipeline)),
    wgpuComputePassEncoderSetBindGroup=lambda own, index, group, count, offsets: own.append(
        ("group", index, group)
    ),
    wgpuComputePassEncoderDispatchWorkgroups=lambda own, *grid: own.append(("dispatch", *grid)),
)


def step(name: str, *, bound: bool = True):
    pipeline, group = (SimpleNamespace(_internal=text) for text in (name, f"group {name}"))
    return pipeline, group if bound else None, (1, 2, 3)


def device_of(**calls):
    return SimpleNamespace(_internal=None, queue=SimpleNamespace(_internal=None), **calls)


def test_a_pass_over_words_has_groups_in_one_dimension_for_each_binding():
    limits = msgspec.structs.replace(H200, max_binding_bytes=2**20)
    passes = differing(3 * 2**20, limits).passes
    assert [step.grid[1:] for step in passes] == [(1, 1)] * 3
    assert [step.windows["a"] for step in passes] == [(i * 2**20, 2**20) for i in range(3)]


def test_every_step_is_dispatched_as_often_as_it_is_launched():
    """One that repeats is bound once."""
    alone, several = [], []
    encode(alone, WgpuLaunch([step("a")], "output", None), 3, (LIBRARY, None))
    assert alone == [("pipeline", "a"), ("group", 0, "group a"), *[("dispatch", 1, 2, 3)] * 3]
    encode(several, WgpuLaunch([step("a", bound=False), step("b")], "output", None), 2, (LIBRARY, None))
    turn = [("pipeline", "a"), alone[-1], ("pipeline", "b"), ("group", 0, "group b"), alone[-1]]
    assert several == turn * 2


def test_a_pass_that_wgpu_py_has_opened_is_recorded_too():
    own, library = [], Library(LIBRARY, None, SimpleNamespace(NULL=None), None, None)
    queue = Queue(device_of(), library, asks=False)
    queue.encode(SimpleNamespace(_internal=own), WgpuLaunch([step("a")], "output", None), 2)
    assert own == [("pipeline", "a"), ("group", 0, "group a"), *[("dispatch", 1, 2, 3)] * 2]


def test_a_candidate_that_was_chosen_replaces_the_launches_of_another(monkeypatch):
    programs, op = Programs(None, H200), kernels.load("matmul")
    case = Case("matmul", "matrix", {"n": 512}, "float32", "tuned", "resident", "wgpu:0")
    first, other = (candidate.name for candidate in programs.candidates(op, case)[:2])
    monkeypatch.setattr(programs, "steps", lambda program, *_: list(program.passes))

    def launch():
        return programs.launch(op, case, ["a", "b"], "out")

    default, has_choice = launch(), programs.has_choice(case)
    assert (default.kernel_name, has_choice, launch() is default) == (first, False, True)
    for name in (other, first):
        programs.choose(case, name)
        chosen = launch()
        programs.choose(case, name)
        assert (chosen.kernel_name, programs.has_choice(case), launch() is chosen) == (name, True, True)
    assert chosen.kernel_hash == default.kernel_hash
    outputs = [{number} for number in range(70)]
    assert [programs.launch(op, case, ["a", "b"], output).output for output in outputs] == outputs
    alive = [weakref.ref(output) for output in outputs]
    outputs.clear()
    gc.collect()
    assert sum(output() is not None for output in alive) <= 64, "a launch that is kept holds its buffers"


@pytest.mark.parametrize(
    ("steps", "sizes"),
    [(1, [1]), (STEPS, [STEPS]), (STEPS + 1, [FIRST_STEPS, STEPS + 1 - FIRST_STEPS]),
     (FIRST_STEPS + 2 * STEPS, [FIRST_STEPS, STEPS, STEPS]),
     (FIRST_STEPS + 2 * STEPS + 1, [FIRST_STEPS, STEPS, STEPS, 1])],
)  # fmt: skip
def test_a_launch_of_many_steps_has_parts(steps, sizes):
    """They do all steps in order, and the first is short."""
    launch = WgpuLaunch([step(str(number)) for number in range(steps)], "output", None)
    parts = launch.parts()
    assert [len(part.steps) for part in parts] == sizes
    assert [one for part in parts for one in part.steps] == launch.steps
    assert launch.parts() is parts or parts == [launch]


def slice_by_slice(part: WgpuLaunch):
    """None behind every slice, then the names of the steps."""
    for _ in part.slices:
        yield None
    yield [vars(pipeline)["_internal"] for one in part.slices for pipeline, _, _ in one.steps]


@pytest.mark.parametrize("slices", [0, 1, 2, 99])
def test_as_many_slices_are_recorded_ahead_as_there_is_time_for(slices):
    """A call records what is left of what was begun; what nobody began it records in parts."""
    names = [str(number) for number in range(2 * SLICE + 1)]
    launch = WgpuLaunch([step(name) for name in names], "output", None)
    assert [launch.record_ahead(slice_by_slice) for _ in range(slices)] == [i < 3 for i in range(slices)]
    assert launch.take_ahead() == (names if slices else None)
    assert launch.take_ahead() is None


@pytest.mark.parametrize("missing", [0, 1])
def test_of_a_long_chain_nothing_counts_but_all_slices(missing):
    """Without them the device begins earlier if the call records part by part."""
    launch = WgpuLaunch([step(str(number)) for number in range(STEPS + 1)], "output", None)
    for _ in range(2):  # what was dropped is begun anew
        assert all(launch.record_ahead(slice_by_slice) for _ in range(len(launch.slices) - missing))
        assert (launch.take_ahead() is None) == bool(missing)


@pytest.mark.parametrize("slices", [1, 3])
def test_what_cannot_be_recorded_is_begun_anew(slices):
    launch = WgpuLaunch([step(str(number)) for number in range(2 * SLICE)], "output", None)

    def fails(part: WgpuLaunch):
        yield None
        raise ValueError("a buffer is gone")

    launch.record_ahead(fails)
    with pytest.raises(ValueError, match="a buffer is gone"):
        launch.take_ahead() if slices == 1 else launch.record_ahead(fails)
    assert launch.take_ahead() is None
    for _ in range(slices):
        launch.record_ahead(slice_by_slice)
    assert launch.take_ahead() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("asks", "well", "asked", "asleep"), [
    (True, True, 1, 0), (True, False, 1, 1), (True, None, 1, 1), (False, None, 0, 1),
])  # fmt: skip
def test_a_wait_asks_for_a_while_and_sleeps_if_it_is_not_told_well(asks, well, asked, asleep, monkeypatch):
    numbers, waits = [], []

    def poll(own, wait, null):
        if well is not None:
            queues.done[numbers[-1]] = well

    monkeypatch.setattr(queues, "ASK_S", 0.01)
    library = SimpleNamespace(
        WGPUCallbackMode_AllowProcessEvents=1, wgpuDevicePoll=poll,
        wgpuQueueOnSubmittedWorkDone=lambda queue, info: numbers.append(info["userdata1"]),
    )  # fmt: skip
    ffi = SimpleNamespace(NULL=None, new=lambda kind, fields: [fields], cast=lambda kind, number: number)
    device = device_of(_poll_wait=lambda: waits.append("asleep"))
    Queue(device, Library(library, None, ffi, None, None), asks=asks).wait()
    assert (len(numbers), len(waits)) == (asked, asleep)
    assert not queues.done.keys() & {*numbers}
