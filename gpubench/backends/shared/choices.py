"""The choice of a kernel's candidate for a device, and the hash of what an op means.

Candidates are timed once, and a file in the user's cache folder remembers the choice. A file that cannot be read
counts as empty. If it cannot be written, a choice lasts as long as the session.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from gpubench.backends.contract import Buffer, Session
from gpubench.backends.shared.host import allocate_outputs, random_inputs
from gpubench.base import hash_text, processes
from gpubench.base.errors import BackendError, BuildError, DeviceOutOfMemory
from gpubench.curves.stats import median
from gpubench.kernels.contract.op import Array, Given, Ids, Op, Operand, Params, each
from gpubench.result.case import Case
from gpubench.result.store.cache import SealedFiles

FILE_NAME = "choices.json"
# A candidate is dropped if it is _OUT_OF_REACH times as slow as the best one in a single launch, or _HOPELESS
# times as slow in its best sample of two rounds. In a single launch the machine may happen to be half as fast.
_OUT_OF_REACH, _HOPELESS = 2.0, 1.3
# Launches that take this share of the budget are timed only once, since long launches have little noise.
_LONG = 0.05
_ROUNDS, _LEAST_ROUNDS = 5, 2
# If other programs took more than _LOADED of the CPUs' time during trials, the trials are repeated once that load
# is halved. On a loaded machine few threads win, and later, on a quiet machine, few threads halve the speed of
# the CPU. In less than _LONG_ENOUGH_S seconds the counters of the system have too few ticks.
_LOADED = 0.15
_LONG_ENOUGH_S = 0.25
_SAMPLE_S, _MOST_LAUNCHES = 0.0005, 50
# A size that is not on its op's ladder takes the choice of the nearest size, at most _NEAR half octaves away.
# So a second run with other sizes needs no trials. Candidates that take long to build are each the fastest for
# about an octave. Their choices are taken at most _COSTLY_NEAR half octaves away. Other sizes try only the
# default and the choices of the nearest smaller and larger sizes, at most _COSTLY_REACH half octaves away.
_NEAR, _COSTLY_NEAR, _COSTLY_REACH = 4, 1, 10

# Takes the name of a candidate. Returns a function that does a number of launches and returns their seconds.
Timer = Callable[[str], Callable[[int], float]]


class Chosen(msgspec.Struct, frozen=True):
    """A choice that was made among candidates."""

    name: str  # name of the candidate
    load: float = 0.0  # share of the CPUs' time that other programs took during the trials


_FILE = msgspec.json.Decoder(dict[str, dict[str, Chosen]])
_WHAT = "the list of chosen kernels"


class Choices:
    """The choices of one device. `device` is a text with everything that a choice depends on, such as the adapter,
    the driver and the library's version. `opened` has the CPU's counters at the beginning of the session; None
    means that they cannot be read."""

    def __init__(self, device: str, cache: SealedFiles, opened: processes.CpuTimes | None = None) -> None:
        self._device, self._cache, self._opened = device, cache, opened

    @functools.cached_property
    def _known(self) -> dict[str, Chosen]:
        return self._read().get(self._device, {})

    def get(self, key: str) -> Chosen | None:
        """Return the choice that is remembered under `key`, or None."""
        return self._known.get(key)

    def at(self, place: str) -> list[Chosen]:
        """Return the choices among any candidates that are remembered for `place`, a result of `_place`."""
        return [chosen for key, chosen in self._known.items() if key.startswith(f"{place}/")]

    def put(self, key: str, choice: Chosen) -> None:
        """Remember the choice in memory and in the file. The file keeps the choices of other processes."""
        self._known = {**self._known, key: choice}
        every = self._read()
        every[self._device] = {**every.get(self._device, {}), **self._known}
        self._cache.write(
            FILE_NAME, msgspec.json.format(msgspec.json.encode(every, order="sorted"), indent=1) + b"\n"
        )

    def needs_new_trials(self, choice: Chosen) -> bool:
        """Return whether the choice was made on a loaded machine that is quieter now."""
        if choice.load <= _LOADED or self._opened is None or (now := processes.read_cpu_times()) is None:
            return False
        foreign = processes.load_in_ticks(self._opened, now).foreign
        return (
            foreign is not None and now.at_s - self._opened.at_s >= _LONG_ENOUGH_S and foreign < choice.load / 2
        )

    def _read(self) -> dict[str, dict[str, Chosen]]:
        """Return all choices in the file by device, or none if the file has another format."""
        with contextlib.suppress(msgspec.DecodeError):
            return _FILE.decode(self._cache.read(FILE_NAME, _WHAT) or b"{}")
        return {}


def _foreign_share(before: processes.CpuTimes | None, after: processes.CpuTimes | None) -> float:
    """Return the share of the CPUs that other processes and virtual machines took. An unknown share counts as
    0."""
    return sum(share or 0.0 for share in processes.load_in_ticks(before, after))


class Trials(msgspec.Struct, frozen=True):
    """The candidates of one case, and how to time them."""

    names: tuple[str, ...]  # names of the candidates, the default first
    timer: Callable[[str, Buffer], Callable[[int], float]]  # a `Timer` whose launches write to the buffer
    budget_s: float  # about the longest time of the trials
    # Number of threads that build candidates at the same time, if building takes far longer than timing. The threads
    # may take another `budget_s` seconds. 0: the thread that times also builds.
    builders: int = 0
    # A candidate replaces the default only if it is this many times as fast, because trials are uncertain.
    margin: float = 1.0
    always: str = ""  # name of a candidate that is timed even if others have used up the budget


def key(case: Case, names: Sequence[str]) -> str:
    """Return the key of a choice: op, params rounded to half an octave, dtype, variant, and a digest of the
    candidates' names."""
    digest = hash_text("\n".join(sorted(names)), 8)
    return f"{_place(case)}/{digest}"


def _place(case: Case, away: int = 0) -> str:
    """Return the key of a case without the digest. Its size is moved by `away` half octaves."""
    params = {**case.params, "n": round(case.n * 2 ** (away / 2))}
    sizes = ",".join(f"{name}={_half_octave(value)}" for name, value in sorted(params.items()))
    return "/".join([case.op, sizes, case.dtype, *([case.variant] if case.variant else [])])


def _half_octave(value: int) -> str:
    return f"{2 ** (round(2 * math.log2(value)) / 2):.0f}" if value > 0 else "0"


class TrialsNeeded(BackendError):
    """Error: a kernel has still to be chosen, but trials are forbidden now."""


_without_trials = contextvars.ContextVar("without_trials", default=False)


@contextlib.contextmanager
def without_trials() -> Iterator[None]:
    """Forbid trials in the `with` block, because work on other devices would disturb them. `choose` then raises
    TrialsNeeded if no choice is remembered, or only a choice that may have to be repeated."""
    token = _without_trials.set(True)
    try:
        yield
    finally:
        _without_trials.reset(token)


def trials_forbidden() -> bool:
    """Return whether trials are forbidden now."""
    return _without_trials.get()


def choose(session: Session, op: Op, case: Case, choices: Choices, trials: Trials) -> str | None:
    """Return the name of the candidate to use: a remembered choice, or the winner of trials. Returns None, which
    means the default, if there is no memory for trials. Raises TrialsNeeded if trials are needed but forbidden,
    and BackendError if the default fails."""
    place = key(case, trials.names)
    earlier, busy = choices.get(place), trials_forbidden()
    if earlier is not None and earlier.name in trials.names:
        # A choice that was made on a loaded machine is made again on a quieter one.
        settled = earlier.load <= _LOADED if busy else not choices.needs_new_trials(earlier)
        if settled:
            return earlier.name
    elif case.n not in op.sizes.rungs() and (near := _nearest(case, trials, choices)):
        return near
    names = _around(case, trials, choices) if earlier is None else ()
    if len(names) == 1:
        choices.put(place, Chosen(names[0]))
        return names[0]
    names = names or trials.names
    if busy:
        raise TrialsNeeded(f"{case.id}: its kernel is still to be chosen")
    before = processes.read_cpu_times()
    try:
        # The correctness gate does not check this output.
        output = allocate_outputs(session, op, case)
    except DeviceOutOfMemory:
        return None
    try:
        timer = built_ahead(names, lambda name: trials.timer(name, output), trials, session.clock)
        name = fastest(
            names,
            timer,
            clock=session.clock,
            budget_s=trials.budget_s,
            margin=trials.margin,
            always=trials.always,
        )
    except DeviceOutOfMemory:
        return None
    finally:
        for buffer in each(output):
            session.free(buffer)
    choices.put(place, Chosen(name, _foreign_share(before, processes.read_cpu_times())))
    return name


def _nearest(case: Case, trials: Trials, choices: Choices) -> str | None:
    """Return the choice of the nearest remembered size whose choice is a candidate of `trials`, or None."""
    reach = _COSTLY_NEAR if trials.builders else _NEAR
    for away in (0, *itertools.chain.from_iterable((step, -step) for step in range(1, reach + 1))):
        names = [chosen.name for chosen in choices.at(_place(case, away)) if chosen.name in trials.names]
        if names:
            return names[0]
    return None


def _around(case: Case, trials: Trials, choices: Choices) -> tuple[str, ...]:
    """Return the default and the choices of the nearest sizes, or an empty tuple if all have to be tried."""
    if not trials.builders:
        return ()
    taken = {trials.names[0]}
    for side in (-1, 1):
        nearest = next(
            filter(None, (choices.at(_place(case, side * i)) for i in range(1, _COSTLY_REACH + 1))), []
        )
        quiet = [chosen.name for chosen in nearest if chosen.load <= _LOADED and chosen.name in trials.names]
        if not quiet:
            return ()
        taken.add(quiet[0])
    return tuple(name for name in trials.names if name in taken)


def built_ahead(names: Sequence[str], timer: Timer, trials: Trials, clock: Callable[[], float]) -> Timer:
    """Build the candidates on several threads, and return a timer of the built ones. For a candidate whose build
    did not begin within the budget, the timer raises BuildError. The default is always built."""
    if not trials.builders:
        return timer
    start = clock()

    def build(name: str) -> Callable[[int], float]:
        if name != names[0] and clock() - start > trials.budget_s:
            raise BuildError(f"{name}: no time is left to build it")
        return timer(name)

    with ThreadPoolExecutor(min(trials.builders, len(names))) as threads:
        begun = {name: threads.submit(build, name) for name in names}
    return lambda name: begun[name].result()


def fastest(
    names: Sequence[str],
    timer: Timer,
    *,
    clock: Callable[[], float],
    budget_s: float,
    margin: float = 1.0,
    always: str = "",
) -> str:
    """Time the candidates for about `budget_s` seconds, and return the name of the fastest one. It replaces the
    first one only if it is `margin` times as fast. `timer(name)` builds a candidate. The candidate `always` is
    timed even without budget. A candidate that fails loses; if the first one fails, raises BackendError."""
    start = clock()
    built = _build_each(names, timer, lambda: clock() - start > budget_s, budget_s, always)
    least = min(single for _, single in built.values())
    if least > _LONG * budget_s:
        return _prefer(names[0], {name: single for name, (_, single) in built.items()}, margin)
    # Short launches may only have waited for their threads to wake.
    rivals = [name for name, (_, single) in built.items() if single <= max(_OUT_OF_REACH * least, _SAMPLE_S)]
    # Candidates take samples in turns, so that a slow moment affects all of them.
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    for done in range(_ROUNDS):
        if len(rivals) == 1 or (done >= _LEAST_ROUNDS and clock() - start > budget_s):
            break
        for name in list(rivals):
            try:
                samples[name].append(_sample(*built[name]))
            except BackendError:
                if name == names[0]:
                    raise
                rivals.remove(name)
        if done + 1 >= _LEAST_ROUNDS:
            limit = _HOPELESS * min(min(samples[name]) for name in rivals)
            rivals = [name for name in rivals if min(samples[name]) <= limit]
    if len(rivals) == 1:
        return rivals[0]
    return _prefer(names[0], {name: median(samples[name]) for name in rivals}, margin)


def _prefer(first: str, seconds: Mapping[str, float], margin: float) -> str:
    best = min(seconds, key=lambda name: seconds[name])
    return first if seconds.get(first, math.inf) <= margin * seconds[best] else best


def _build_each(
    names: Sequence[str], timer: Timer, late: Callable[[], bool], budget_s: float, always: str
) -> dict[str, tuple[Callable[[int], float], float]]:
    """Build candidates in order until it is `late`, but the first and `always` in any case. Return the timer and
    the seconds of a launch of each."""
    timers = {}
    for name in names:
        if name not in (names[0], always) and late():
            continue
        try:
            took = timer(name)
            once = took(1)  # it loads the program
            if once <= budget_s or not late():
                once = took(1)
            timers[name] = took, min(once, took(1), took(1)) if once < _SAMPLE_S else once
        except BackendError:
            if name == names[0]:
                raise
    return timers


def _sample(took: Callable[[int], float], single: float) -> float:
    """Return the mean seconds of the launches that fit into one sample. `single` is the time of one launch."""
    repeat = max(1, min(_MOST_LAUNCHES, int(_SAMPLE_S / single))) if single > 0 else _MOST_LAUNCHES
    return took(repeat) / repeat


# ---------------------------------------------------------------- what an op means

_MOST_DIGITS_OF = 1 << 18  # most values of which the hash of an op contains digits


def op_hash(op: Op) -> str:
    """Return twelve hexadecimal digits that change when the meaning of the op changes: its shapes, costs,
    inputs, reference or tolerance. They depend on behaviour, not on source text, so that a reformatted file
    stays comparable. For a user's function they depend on names and dtypes alone."""
    import numpy as np

    if op.digest:  # a user's function is called only at requested sizes
        names = [operand.name for operand in op.inputs]
        return hash_text(f"{op.name} {names} {sorted(op.dtypes)}")
    seen: list[str] = [op.name, str(op.tolerance.units)]
    for n in (1, 7, 96):
        params = {"n": n}
        seen += [f"{x.shape(params)}{_describe_values(x, params)}" for x in op.operands]
        seen += [str(op.flops(params)), str(op.bytes(params, "float32"))]
    inputs = random_inputs(op, {"n": 7}, "float64", seed=0)
    with np.errstate(all="ignore"):
        bound = op.at({"n": 7})
        answers = each((bound.reference or bound.expr)(np, *inputs))
    values = [np.ravel(np.asarray(answer, np.float64)) for answer in answers]
    # Among many values of a workload, some have another ninth digit with another BLAS, and some are only round-off.
    rounds = bool(op.stages) and sum(map(len, values)) > _MOST_DIGITS_OF
    seen += [line for own in values for line in (_sums(own) if rounds else (f"{value:.9g}" for value in own))]
    return hash_text("\n".join(seen))


def _sums(values: Array) -> tuple[str, str]:
    """Return the length of a vector and its share along a fixed vector, with digits that rounding keeps."""
    import numpy as np

    length = math.sqrt(values @ values)
    along = np.cos(np.arange(len(values))) @ values / (length or 1.0)
    return f"{length:.6g}", f"{along:.6f}"


def _describe_values(operand: Operand, params: Params) -> str:
    """Describe how an operand is drawn, and its role, dtype and tolerance if they are not the usual ones."""
    values = operand.values
    drawn: object = values.make(params) if isinstance(values, Given) else values
    words = [f"ids below {values.below(params)}" if isinstance(values, Ids) else f"{drawn}"]
    words += [operand.role] if operand.role != "activation" else []
    words += [operand.dtype] if operand.dtype else []
    words += [f"{operand.tolerance.units}"] if operand.tolerance else []
    return " ".join(words)
