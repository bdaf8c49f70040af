"""The tuned NumPy form of elementwise ops: the same expression over blocks, on all cores, without temporaries.

The expression is recorded once as steps of one ufunc each. Every block then runs them with `out=`: into its
slice of the output, or into scratch that stays in cache. On 16 cores gelu gains 22 x this way, add 12 x.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpubench.model.op import Array, Params

Launch = Callable[[Sequence[Array], Array], None]

# NumPy holds the interpreter's lock between calls, so short slices make threads slower than one thread:
# under 256 Ki elements for an addition, half of that where an element costs more. Several steps over a block find
# it in cache only if it is short, but 16 threads wait in line for the lock: there 512 Ki reach 0.90 of a copy with
# two steps, 256 Ki 0.43. A lone step does not read what it wrote, and one slice a thread serves it best: tanh of
# 16 Mi takes 1.5 ms on 16 threads in 16 slices and 3.0 in 64.
_SHORTEST_CHEAP, _SHORTEST, _LONGEST = 256 * 1024, 128 * 1024, 512 * 1024
_LONGEST_ALONE = 2 * 1024 * 1024
_CHEAP_STEPS = 2

_HALF_BYTES = 2
_OUTPUT = -1  # the slot of the output; scratch counts up from 0


class Blocks(Protocol):
    """What runs a function over slices (start, stop) of at most `grain`, on so many threads."""

    threads: int

    def run(self, function: Callable[[int, int], None], length: int, grain: int) -> None:
        """All slices up to `length`, in any order."""


def grain(length: int, threads: int, *, cheap: bool, alone: bool) -> int:
    """Elements of one block, so that all threads are busy in the last round too.

    `cheap`: an element costs little more than its traffic; `alone`: it takes one step.
    """
    shortest = _SHORTEST_CHEAP if cheap or alone else _SHORTEST
    longest = _LONGEST_ALONE if alone else _LONGEST
    rounds = max(1, -(-length // (threads * longest)))
    return max(shortest, -(-length // (threads * rounds)))


class Scratch:
    """Arrays that belong to the thread that asks for them and are kept from launch to launch."""

    def __init__(self, np: Any) -> None:
        self._np = np
        self._kept = threading.local()

    def arrays(self, count: int, size: int, dtype: Any) -> list[Array]:
        """`count` arrays of `size` elements, with whatever they held last."""
        key = (count, size, dtype)
        if getattr(self._kept, "key", None) != key:
            self._kept.arrays = [self._np.empty(size, dtype) for _ in range(count)]
            self._kept.key = key
        found: list[Array] = self._kept.arrays
        return found


def widen(np: Any, half: Array, wide: Array) -> Array:
    """`wide`, float32, with the values of `half`, float16, by integer steps: a third of the time of NumPy's cast.

    The exponent and fraction move up by 13 bits, and a product with 2^112 sets the exponent's bias right, exactly.
    Infinities and NaNs would come out finite, so a slice that holds any takes the cast.
    """
    bits = wide.view(np.int32)
    np.copyto(bits, half.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _SIGN_AND_REST, out=bits)
    np.multiply(wide, _REBIAS, out=wide)
    if wide.size and max(np.max(wide), -np.min(wide)) > _LARGEST_HALF:
        np.copyto(wide, half)
    return wide


_SIGN_AND_REST = ~0x7FFFFFFF + 0x0FFFE000  # bits 31 and 13 to 27, as an int32
_REBIAS = 2.0**112
_LARGEST_HALF = 65504.0


class _Step:
    """One ufunc: operands are recorded values or plain numbers; `slot` receives the result."""

    def __init__(self, ufunc: str, operands: tuple[Any, ...]) -> None:
        self.ufunc = ufunc
        self.operands = operands
        self.slot = _OUTPUT


class _Recorded:
    """Stands for an array while the expression is recorded: an input (by position) or a step's result."""

    def __init__(self, tape: list[_Step], origin: int | _Step) -> None:
        self._tape = tape
        self.origin = origin

    def record(self, ufunc: str, *operands: Any) -> _Recorded:
        """Append a step and return its result."""
        step = _Step(ufunc, operands)
        self._tape.append(step)
        return _Recorded(self._tape, step)

    def copy(self) -> _Recorded:
        """The array method."""
        return self.record("copy", self)

    def __neg__(self) -> _Recorded:
        return self.record("negative", self)

    def __add__(self, other: Any) -> _Recorded:
        return self.record("add", self, other)

    def __radd__(self, other: Any) -> _Recorded:
        return self.record("add", other, self)

    def __sub__(self, other: Any) -> _Recorded:
        return self.record("subtract", self, other)

    def __rsub__(self, other: Any) -> _Recorded:
        return self.record("subtract", other, self)

    def __mul__(self, other: Any) -> _Recorded:
        return self.record("multiply", self, other)

    def __rmul__(self, other: Any) -> _Recorded:
        return self.record("multiply", other, self)

    def __truediv__(self, other: Any) -> _Recorded:
        return self.record("divide", self, other)

    def __rtruediv__(self, other: Any) -> _Recorded:
        return self.record("divide", other, self)


class _Namespace:
    """Stands for the array library: any function of it is recorded as the ufunc of that name."""

    def __getattr__(self, ufunc: str) -> Callable[..., _Recorded]:
        def function(*operands: Any) -> _Recorded:
            first = next(operand for operand in operands if isinstance(operand, _Recorded))
            return first.record(ufunc, *operands)

        return function


def record(expr: Callable[..., Any], inputs: int) -> tuple[list[_Step], int]:
    """The steps of `expr` on that many inputs, and the number of scratch slots they need."""
    tape: list[_Step] = []
    expr(_Namespace(), *(_Recorded(tape, i) for i in range(inputs)))
    last_use: dict[_Step, _Step] = {}
    for step in tape:
        for operand in step.operands:
            if isinstance(operand, _Recorded) and isinstance(operand.origin, _Step):
                last_use[operand.origin] = step
    slots, free = 0, [_OUTPUT]
    for step in tape[:-1]:
        # An operand that is done gives its slot to the result: a ufunc may work in place.
        free += [origin.slot for origin, user in last_use.items() if user is step]
        if not free:
            free.append(slots)
            slots += 1
        step.slot = min(free)
        free.remove(step.slot)
    return tape, slots


def build(expr: Callable[..., Any], inputs: int, np: Any, blocks: Blocks, params: Params) -> Launch:
    """A launch that fills the output block by block; scratch belongs to its thread and is kept.

    The steps find their arrays by place: the inputs, the output, the scratch slots, then the plain numbers.
    """
    steps, slots = record(expr, inputs)
    calls, numbers = _placed(np, steps, inputs, slots)
    scratch = Scratch(np)
    # A lone step streams; several pass the block on, and it has to be in cache still.
    cheap, alone = len(steps) <= _CHEAP_STEPS, len(steps) == 1
    moves = alone and steps[0].ufunc == "copy"

    def run(parts: Sequence[Array], output: Array, size: int) -> None:
        spare = scratch.arrays(slots, size, output.dtype) if slots else []
        perform([*parts, output, *(array[: output.size] for array in spare), *numbers])

    def run_halves(parts: Sequence[Array], output: Array, size: int) -> None:
        spare = [array[: output.size] for array in scratch.arrays(inputs + 1 + slots, size, np.float32)]
        for part, wide in zip(parts, spare, strict=False):
            widen(np, part, wide)
        perform([*spare, *numbers])
        np.copyto(output, spare[inputs], casting="same_kind")

    def perform(places: list[Any]) -> None:
        for function, operands, result in calls:
            function(*[places[i] for i in operands], out=places[result])

    def launch(arrays: Sequence[Array], output: Array) -> None:
        half = output.itemsize == _HALF_BYTES and not moves
        size = grain(output.size, blocks.threads, cheap=cheap, alone=alone and not half)
        work = run_halves if half else run
        if output.size <= size:
            work(arrays, output, output.size)
            return

        def block(start: int, stop: int) -> None:
            # The caller's error state does not reach the threads of the block runner.
            with np.errstate(all="ignore"):
                work([array[start:stop] for array in arrays], output[start:stop], size)

        blocks.run(block, output.size, size)

    return launch


_Call = tuple[Callable[..., Any], list[int], int]


def _placed(np: Any, steps: list[_Step], inputs: int, slots: int) -> tuple[list[_Call], list[Any]]:
    """The steps as (function, places of the operands, place of the result), and the plain numbers in use."""
    numbers: list[Any] = []

    def place(operand: Any) -> int:
        if not isinstance(operand, _Recorded):
            numbers.append(operand)
            return inputs + slots + len(numbers)
        return operand.origin if isinstance(operand.origin, int) else slot_place(operand.origin)

    def slot_place(step: _Step) -> int:
        return inputs if step.slot == _OUTPUT else inputs + 1 + step.slot

    calls = [
        (_function(np, step.ufunc), [place(operand) for operand in step.operands], slot_place(step))
        for step in steps
    ]
    return calls, numbers


def _function(np: Any, ufunc: str) -> Callable[..., Any]:
    if ufunc == "copy":
        return lambda x, out: np.copyto(out, x)
    function: Callable[..., Any] = getattr(np, ufunc)
    return function
