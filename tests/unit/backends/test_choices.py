"""Which candidate a device takes: timed with a scripted clock, remembered in a file that may be missing or broken."""

import contextlib
import json
import threading
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from gpubench import kernels
from gpubench.backends.hidden.fake import BACKEND
from gpubench.backends.shared import choices as module
from gpubench.backends.shared.choices import FILE_NAME, Choices, Chosen, fastest, without_trials
from gpubench.base import installation, processes
from gpubench.base.errors import BackendError, BuildError, DeviceOutOfMemory
from gpubench.base.processes import CpuTimes
from gpubench.result.case import Case
from gpubench.result.store.cache import SUFFIX, SealedFiles
from tests.rows import rows

KEY = "matmul/n=64/float32/0"


@pytest.fixture(autouse=True)
def no_counters(monkeypatch):
    """What else this machine does decides nothing here, unless a test says how much it is."""
    monkeypatch.setattr(processes, "read_cpu_times", processes.no_cpu_times)


UNIX, OWN = {"HOME": "/home/u", "XDG_CACHE_HOME": ""}, {"GPUBENCH_CACHE_DIR": "/tmp/mine"}


@pytest.mark.parametrize(("platform", "environ", "folder"), [
    ("linux", UNIX, "/home/u/.cache/gpubench"), ("linux", {**UNIX, "XDG_CACHE_HOME": "/var"}, "/var/gpubench"),
    ("darwin", UNIX, "/home/u/Library/Caches/gpubench"), ("win32", {"LOCALAPPDATA": "C:/Local"}, "C:/Local/gpubench"),
    ("linux", {**UNIX, "XDG_CACHE_HOME": "x/y"}, "/home/u/.cache/gpubench"), ("linux", {**UNIX, **OWN}, "/tmp/mine"), ("win32", OWN, "/tmp/mine"), ("linux", {}, None), ("win32", UNIX, None),
])  # fmt: skip
def test_where_choices_live(monkeypatch, platform, environ, folder):
    monkeypatch.setattr(installation.os, "environ", environ)
    monkeypatch.setattr(installation.sys, "platform", platform)
    assert installation.cache_folder() == (folder and Path(folder))


def test_a_choice_outlives_the_session_belongs_to_its_device_and_lets_others_be(tmp_path):
    folder = tmp_path / "not" / "yet"
    one, other, same = (Choices(name, SealedFiles(folder)) for name in "ABA")
    assert [x.get(KEY) for x in (one, other, same)] == [None, None, None]  # each has read the empty file
    for choices, key in ((one, "first"), (other, "second"), (same, "third"), (one, "last")):
        choices.put(key, Chosen(key * 2))
        assert choices.get(key) == Chosen(key * 2)
    text = SealedFiles(folder).read(FILE_NAME, "").decode()
    stored = json.loads(text)
    assert text == json.dumps(stored, indent=1, sort_keys=True) + "\n"
    assert {one: [*keys] for one, keys in stored.items()} == {"A": ["first", "last", "third"], "B": ["second"]}
    assert Choices("A", SealedFiles(folder)).get("third") == Chosen("thirdthird")
    assert [path.name for path in folder.iterdir()] == [f"{FILE_NAME}{SUFFIX}"]


@pytest.mark.parametrize(
    "text", ["", "null", f'{{"GPU": {{"{KEY}": ["a"]}}}}', "[" * 100_000, "\udcff"], ids=len
)
@pytest.mark.parametrize("sealed", [True, False])
def test_a_file_of_another_form_counts_as_empty_and_is_replaced(tmp_path, text, sealed):
    """Sealed, another version has written it; without a seal it is damaged."""
    data = text.encode("utf-8", "surrogateescape")
    if sealed:
        SealedFiles(tmp_path).write(FILE_NAME, data)
    else:
        (tmp_path / f"{FILE_NAME}{SUFFIX}").write_bytes(data)
    choices = Choices("GPU", SealedFiles(tmp_path))
    assert choices.get(KEY) is None
    choices.put(KEY, Chosen("64x64"))
    assert Choices("GPU", SealedFiles(tmp_path)).get(KEY) == Chosen("64x64")


# ---------------------------------------------------------------------- what a choice holds for


def key(params, names=("a", "b"), dtype="float32", variant=None, regime="resident"):
    case = Case("matmul", "matrix", params, dtype, "tuned", regime, "wgpu:0", variant=variant)
    return module.key(case, names)


def test_a_choice_belongs_to_half_an_octave_dtype_variant_and_the_set_of_candidates():
    assert key({"n": 1024}) == key({"n": 1000}) == key({"n": 1200}) == key({"n": 900})
    assert key({"n": 1217}) != key({"n": 1218})  # 1024 times the fourth root of 2 is 1217.7
    assert key({"n": 0}) != key({"n": 1})
    assert key({"n": 64, "m": 2}) == key({"m": 2, "n": 64}) != key({"n": 2, "m": 64})
    # As text in the file: no two sizes of different half octaves may look alike.
    sizes = [round(2 ** (half / 2)) for half in range(2, 60)]
    assert len({key({"n": n}) for n in sizes}) == len(sizes)
    n = {"n": 64}
    assert key({**n, "m": 3}, variant="tiled") == "matmul/m=3,n=64/float32/tiled/7e18f737"  # as a file has it
    assert key(n) == key(n, ("b", "a")) == key(n, regime="transfer-always")
    others = [key(n, ("a", "c")), key(n, ("a", "b", "c")), key(n, dtype="float16"), key(n, variant="tiled")]
    assert len({key(n), *others}) == 5


# ---------------------------------------------------------------------- the fastest of them


class Bench:
    """Launches that take scripted times and a clock that moves with them; `build_s` passes for each text."""

    def __init__(self, costs: dict[str, float | Exception], build_s: float = 0.0) -> None:
        self.costs, self.build_s, self.now = costs, build_s, 100.0
        self.built: list[str] = []
        self.launches: dict[str, int] = {}

    def timer(self, name: str):
        self.now += self.build_s
        self.built.append(name)
        cost = self.costs[name]
        if isinstance(cost, Exception):
            raise cost

        def took(repeat: int) -> float:
            self.launches[name] = self.launches.get(name, 0) + repeat
            self.now += cost * repeat
            return cost * repeat

        return took

    def choose(self, budget_s: float = 1e9, always: str = "") -> str:
        return fastest(list(self.costs), self.timer, clock=lambda: self.now, budget_s=budget_s, always=always)


# Seconds of a launch by candidate or why it is none, of building each, the budget, what is taken, launches of each.
@rows("costs, build_s, budget_s, taken, launches", {
    "the least time": ({"a": 3e-3, "b": 1e-3, "c": 2e-3}, 0, 1e9, "b", None),
    **{f"but for one with {type(error).__name__}": ({"a": 3e-3, "b": error, "c": 1e-3}, 0, 1e9, "c", None)
       for error in (BuildError("no"), DeviceOutOfMemory("scratch"), BackendError("no", reason="x"))},
    # The budget ends the trials, but not before the default.
    "of two in the budget": ({"a": 5e-3, "b": 4e-3, "c": 3e-3, "d": 1e-3}, 1.0, 1.5, "b", {"a", "b"}),
    # The hopeless are launched no more than it takes to know.
    "slow ones": ({"a": 1e-2, "b": 2.1e-2, "c": 1.4e-2, "d": 1.2e-2}, 0, 1e9, "a", {"a": 2 + 5, "b": 2, "c": 2 + 2, "d": 2 + 5}),
    # Short ones may only have waited for their threads: samples of 0.5 ms, and two rounds of them settle it.
    "short slow ones": ({"a": 1e-4, "b": 2.1e-4}, 0, 1e9, "a", {"a": 4 + 2 * 5, "b": 4 + 2 * 2}),
    "short near ones": ({"a": 1e-4, "b": 1.2e-4}, 0, 1e9, "a", {"a": 4 + 5 * 5, "b": 4 + 5 * 4}),
    # Short launches are repeated, but not without end, and a clock that stands still ends it too.
    "very short ones": ({"a": 1e-9, "b": 1e-9}, 0, 1e9, "a", None),
    "a clock that stands still": ({"a": 0.0, "b": 0.0}, 0, 1e9, "a", {"a": 4 + 5 * 50, "b": 4 + 5 * 50}),
    "long ones, timed singly": ({"a": 0.5, "b": 0.45}, 0, 1e9, "b", {"a": 7, "b": 7}),
    "one twice as slow": ({"a": 1e-2, "b": 2e-2}, 0, 1e9, "a", {"a": 2 + 2, "b": 2 + 2}),
    "in two rounds beyond the budget": ({"a": 0.01, "b": 0.011}, 0.22, 0.5, "a", {"a": 2 + 2, "b": 2 + 2}),
    "in one more at its very end": ({"a": 1 / 64, "b": 1 / 64}, 0.1875, 0.5, "a", {"a": 2 + 3, "b": 2 + 3}),
    "one as long as the budget": ({"a": 1.0, "b": 1e-3}, 0.5, 1.0, "a", {"a": 2}),
    "one as long as a sample": ({"a": 5e-4}, 0, 1e9, "a", {"a": 2}),
    "one that begins at its very end": ({"a": 0.25, "b": 0.125}, 0.5, 1.0, "b", {"a", "b"}),
    "a twentieth of the budget": ({"a": 0.05, "b": 0.05}, 0, 1.0, "a", {"a": 7, "b": 7}),
    "more than a twentieth": ({"a": 0.06, "b": 0.055}, 0, 1.0, "b", {"a": 2, "b": 2}),
    "some as long as the budget": ({"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.1}, 0, 3.0, "b", {"a": 2, "b": 2}),  # c would begin after 3.4 s
    "one longer than the budget": ({"a": 30.0, "b": 1e-3}, 0, 3.0, "a", {"a": 1}),
})  # fmt: skip
def test_the_fastest_is_taken_after_as_many_launches_as_it_takes(costs, build_s, budget_s, taken, launches):
    bench = Bench(costs, build_s)
    assert bench.choose(budget_s) == taken
    if isinstance(launches, set):
        assert set(bench.built) == launches
    elif launches is None:
        assert bench.built == list(costs)
    else:
        assert bench.launches == launches


def test_a_candidate_that_is_always_timed_needs_no_budget():
    assert [Bench({"a": 30.0, "b": 1e-3, "c": cost}).choose(3.0, "c") for cost in (1.0, 31.0)] == ["c", "a"]


@pytest.mark.parametrize(("broken", "taken"), [("a", None), ("b", "c"), ("c", "b")])
def test_one_that_breaks_in_a_later_launch_is_left_out_and_the_default_must_not(broken, taken):
    bench = Bench({"a": 3e-2, "b": 2e-2, "c": 1.8e-2})

    def timer(name):
        took = bench.timer(name)

        def breaking(repeat):
            if name == broken and bench.launches.get(name, 0) > 2:
                raise BackendError("lost", reason="x")
            return took(repeat)

        return breaking

    with contextlib.nullcontext() if taken else pytest.raises(BackendError):
        assert fastest(list(bench.costs), timer, clock=lambda: bench.now, budget_s=1e9) == taken


def test_a_slow_first_launch_and_a_stray_sample_do_not_decide():
    stray = iter([9.0, 2e-4, 7e-3, 2e-4, 5.0, 2e-4, 5.0, 2e-4, 2e-4])  # loading, three single, five samples

    def timer(name: str):
        return (lambda repeat: next(stray) * repeat) if name == "b" else lambda repeat: 2e-3 * repeat

    assert fastest(["a", "b"], timer, clock=lambda: 0.0, budget_s=1) == "b"


@pytest.mark.parametrize(("costs", "error"), [
    ({"a": BuildError("the default"), "b": 1e-3}, BuildError), ({"a": 1e-3, "b": ZeroDivisionError()}, ZeroDivisionError),
])  # fmt: skip
def test_an_error_that_is_not_passed_over(costs, error):
    with pytest.raises(error):
        Bench(costs).choose()


def test_samples_are_taken_in_turns():
    """A slow moment of the machine meets all candidates."""
    bench, order = Bench({"a": 1e-2, "b": 1.1e-2}), []

    def timer(name):
        took = bench.timer(name)
        return lambda repeat: order.append(name) or took(repeat)

    fastest(["a", "b"], timer, clock=lambda: bench.now, budget_s=1e9)
    assert order == [*"aabb", *"ab" * 5]


class Tuning:
    """One case on the scripted device, two candidates of which the second is faster, and what the trials did."""

    op = kernels.load("add")

    def __init__(self, folder, n=1000):
        self.case = Case("add", "vector", {"n": n}, "float32", "tuned", "resident", "fake:gpu")
        self.choices = Choices("GPU", SealedFiles(folder), processes.read_cpu_times())
        self.session = BACKEND.open("fake:gpu")
        self.taken, self.freed = [], []
        self.session.allocate = lambda shape, dtype: self.taken.append(shape) or "output"
        self.session.free = self.freed.append

    def choose(self, names=("slow", "fast"), timer=None, **declared):
        trials = module.Trials(names, timer or self.timer, 1.0, **declared)
        return module.choose(self.session, self.op, self.case, self.choices, trials)

    def put(self, chosen, n=None, names=("slow", "fast")):
        """Remember what this size, or another one, took of these."""
        case = msgspec.structs.replace(self.case, params={"n": n}) if n else self.case
        self.choices.put(module.key(case, names), chosen)

    @property
    def trials(self):
        """How often candidates were tried: each time on an output of its own."""
        return len(self.taken)

    def timer(self, name, output):
        assert output == "output"
        return lambda repeat: repeat * {"slow": 0.0012, "slower": 0.0013, "fast": 0.001}[name]


RUNG = kernels.load("add").sizes.rungs()[1]
NAMES = ("slow", "slower", "fast")
BESIDE = 3 * RUNG


@pytest.mark.parametrize(("n", "known", "builders", "name", "trials"), [
    # A size beside the rungs takes what the nearest one took, of whatever set of candidates, if it is near and still there.
    *((BESIDE, {round(BESIDE * by): "slow"}, 0, "slow", 0) for by in (1, 2**0.5, 4, 0.25)),
    *((BESIDE, {round(BESIDE * by): "slow"}, 0, "fast", 1) for by in (2**2.5, 2**-2.5)),
    (BESIDE, {2 * BESIDE: "slow", BESIDE // 2: "slower"}, 0, "slow", 0),  # of two that are as near the larger
    (BESIDE, {2 * BESIDE: "slow", BESIDE // 4: "slower"}, 0, "slow", 0), (BESIDE, {2 * BESIDE: "gone", BESIDE // 4: "slow"}, 0, "slow", 0),
    (RUNG, {RUNG // 2: "slow", 2 * RUNG: "slow"}, 0, "fast", 1),  # a rung is tried whatever the sizes beside it took
    # Where building is costly, only what the sizes around took and the default are tried, also for a size beside the rungs.
    (RUNG, {RUNG >> 5: "slow", RUNG << 5: "slower"}, 2, "slow", 1), (RUNG, {RUNG >> 5: "slower", RUNG << 5: "slower"}, 2, "slow", 1),
    (RUNG, {RUNG >> 5: "slow", RUNG << 5: "slow"}, 2, "slow", 0), (BESIDE, {round(BESIDE * 2**0.5): "slower"}, 2, "slower", 0),
    (BESIDE, {BESIDE // 2: "slower", 2 * BESIDE: "slower"}, 2, "slow", 1), (BESIDE, {2 * BESIDE: "slow"}, 2, "fast", 1),
    (RUNG, {RUNG >> 5: "slower", RUNG << 5: "fast"}, 2, "fast", 1), (RUNG, {RUNG >> 5: "slow"}, 2, "fast", 1),
    (RUNG, {RUNG >> 5: "slow", round(RUNG * 2**5.5): "slow"}, 2, "fast", 1),
    (RUNG, {round(RUNG * 2**-0.5): "slow", round(RUNG * 2**0.5): "slower"}, 2, "slow", 1),
    (RUNG, {RUNG >> 5: "gone", RUNG << 5: "slower"}, 2, "fast", 1),
])  # fmt: skip
def test_what_other_sizes_took_decides_what_is_tried(tmp_path, n, known, builders, name, trials):
    tuning = Tuning(tmp_path, n=n)
    names, load = (NAMES, 0.15) if builders else (("another set",), 0.9)
    for other, took in known.items():
        tuning.put(Chosen(took, load), other, names)
    assert (tuning.choose(NAMES, **{"builders": builders} if builders else {}), tuning.trials) == (name, trials)
    handed_on = Chosen(name, 0.0) if trials or n == RUNG else None  # else a choice would wander along a search
    assert tuning.choices.get(module.key(tuning.case, NAMES)) == handed_on


@pytest.mark.parametrize(("first", "other", "name"), [(1.04, 1, "first"), (1.06, 1, "other"), (1, 1.04, "first")])  # fmt: skip
@pytest.mark.parametrize("budget_s", [1.0, 1e-3])  # in turns, and by one launch each
def test_the_likeliest_is_taken_unless_another_is_clearly_faster(first, other, name, budget_s):
    bench = Bench({"first": first * 1e-3, "other": other * 1e-3})
    assert fastest(list(bench.costs), bench.timer, clock=lambda: 0.0, budget_s=budget_s, margin=1.05) == name
    alike = Bench({"first": 1.25 / 64, "other": 1 / 64})
    assert fastest(list(alike.costs), alike.timer, clock=lambda: 0.0, budget_s=budget_s, margin=1.25) == "first"


def test_costly_candidates_are_built_side_by_side_before_any_is_timed(tmp_path):
    names, events = ("slow", "broken", "fast"), []
    all_building = threading.Barrier(len(names), timeout=10)

    def timer(name, output):
        all_building.wait()  # as long as one is not begun, none is built
        events.append("built")
        if name == "broken":
            raise BuildError("no")
        return lambda repeat: events.append("timed") or repeat * {"slow": 2e-3, "fast": 1e-3}[name]

    assert (Tuning(tmp_path).choose(names, timer, builders=8), events[:3]) == ("fast", ["built"] * 3)
    assert "built" not in events[3:]
    with pytest.raises(BuildError):  # the default must build
        Tuning(tmp_path / "other").choose(("broken", "slow", "fast"), timer, builders=8)


@pytest.mark.parametrize(("build_s", "name", "ended_s"), [(1.5, "slow", 101.5), (1.0, "fast", 102.0)])
def test_what_no_thread_began_in_the_budget_is_not_tried(tmp_path, build_s, name, ended_s):
    tuning = Tuning(tmp_path)
    now = [100.0]
    tuning.session.clock = lambda: now[0]

    def timer(name, output):
        now[0] += build_s  # the budget is 1 s
        return lambda repeat: repeat * {"slow": 2e-3, "fast": 1e-3}[name]

    assert (tuning.choose(timer=timer, builders=1), now) == (name, [ended_s])


@pytest.mark.parametrize("error", [DeviceOutOfMemory, BuildError, None])
def test_trials_that_fail_free_their_output_and_nothing_is_remembered(tmp_path, monkeypatch, error):
    tuning = Tuning(tmp_path)
    fails = Mock(side_effect=(error or DeviceOutOfMemory)("no room, or no text"))
    with monkeypatch.context() as patch:
        if error is None:  # for the output itself there is no memory
            patch.setattr(tuning.session, "allocate", fails)
        with pytest.raises(BuildError) if error is BuildError else contextlib.nullcontext():
            assert tuning.choose(timer=fails) is None
    assert tuning.freed == (["output"] if error else [])
    assert tuning.choose() == "fast", "nothing was remembered"


def test_while_other_devices_work_nothing_is_tried_and_what_is_remembered_is_taken(tmp_path):
    tuning = Tuning(tmp_path)
    with without_trials():
        with pytest.raises(module.TrialsNeeded):
            tuning.choose()
        assert (tuning.trials, tuning.taken) == (0, [])
    assert tuning.choose() == "fast", "the time of trials is back"
    with without_trials():
        assert tuning.choose() == "fast"
        tuning.put(Chosen("slow", 0.15))
        assert tuning.choose() == "slow", "on a machine that was hardly loaded"
        tuning.put(Chosen("slow", 0.16))
        with pytest.raises(module.TrialsNeeded):
            tuning.choose()
    assert tuning.trials == 1


class Machine:
    """Two CPUs of which others take `foreign`; a second passes between two readings."""

    def __init__(self, monkeypatch, foreign: float) -> None:
        self.foreign, self.now = foreign, CpuTimes(100.0, 200.0, 50.0, 0.0, 10.0)
        monkeypatch.setattr(processes, "read_cpu_times", self.read)

    def read(self) -> CpuTimes:
        at_s, total_s, busy_s, steal_s, ours_s = self.now
        self.now = CpuTimes(at_s + 1, total_s + 2, busy_s + 2 * self.foreign, steal_s, ours_s)
        return self.now


@pytest.mark.parametrize(("then", "now", "trials"), [
    (0.5, 0.0, 2), (0.5, 0.2, 2), (0.5, 0.3, 1), (0.2, 0.05, 2), (0.1, 0.0, 1), (0.0, 0.0, 1), (0.0, 0.9, 1),
])  # fmt: skip
def test_a_choice_of_a_loaded_machine_is_made_anew_once_it_is_quieter(tmp_path, monkeypatch, then, now, trials):
    machine, tuning = Machine(monkeypatch, then), Tuning(tmp_path)
    tuning.choose()
    assert (tuning.taken, tuning.freed) == ([(1000,)], ["output"]), "of its own, as large as the case's"
    machine.foreign = now
    again = Tuning(tmp_path)
    assert (again.choose(), tuning.trials + again.trials) == ("fast", trials)
    quiet = Tuning(tmp_path)
    quiet.choose()
    assert quiet.trials == 0, "the new choice carries the load of its own time"


@pytest.mark.parametrize("foreign", [0.3, 0.0])
def test_where_it_is_no_time_for_trials_a_choice_of_a_loaded_machine_stays(tmp_path, monkeypatch, foreign):
    """While other devices work, or in a session that has just begun, which cannot tell that the machine is quieter."""
    machine, tuning = Machine(monkeypatch, 0.5), Tuning(tmp_path)
    tuning.choose()
    machine.foreign = foreign
    again, begun = Tuning(tmp_path), machine.now
    with without_trials(), pytest.raises(module.TrialsNeeded):
        again.choose()
    if not foreign:
        monkeypatch.setattr(processes, "read_cpu_times", lambda: begun._replace(at_s=begun.at_s + 0.1))
    assert (again.choose(), again.trials) == ("fast", 0)


@pytest.mark.parametrize(("load", "after_s", "foreign", "anew"), [
    (0.5, 1, 0.125, True), (0.15, 1, 0, False), (0.5, 0.25, 0, True), (0.5, 0.2, 0, False),
    (0.5, 1, 0.25, False),
])  # fmt: skip
def test_the_limits_of_a_loaded_and_a_quieter_machine(tmp_path, monkeypatch, load, after_s, foreign, anew):
    begun = CpuTimes(100.0, 200.0, 50.0, 0.0, 10.0)
    later = CpuTimes(100.0 + after_s, 200.0 + 2 * after_s, 50.0 + 2 * after_s * foreign, 0.0, 10.0)
    monkeypatch.setattr(processes, "read_cpu_times", lambda: later)
    assert Choices("GPU", SealedFiles(tmp_path), begun).needs_new_trials(Chosen("slow", load)) == anew
