"""Planted faults: functions that are right on NumPy and wrong, stale or false on any other array library.

A test measures this file as a user's own, on PyTorch's CPU here and on CuPy with an NVIDIA GPU. Each fault has to be
refused: no time of it may stand in a result. FAULTS has what is said of each.
"""

import functools
import threading
import time

import numpy as np

import gpubench

FAULTS: dict[str, str] = {}
IMPLEMENTATIONS: dict[str, tuple] = {}
CACHE: dict[object, object] = {}
CALLS: dict[str, int] = {}


def plant(right, says="largest error", inputs=None):
    """Declare a fault: `right(xp, ...)` is taken on NumPy, the decorated function elsewhere."""

    def declare(wrong):
        @functools.wraps(wrong)
        def program(xp, *values):
            return (right if xp.__name__ == "numpy" else wrong)(xp, *values)

        FAULTS[wrong.__name__], IMPLEMENTATIONS[wrong.__name__] = says, (right, wrong)
        return gpubench.function(program, inputs=inputs)

    return declare


def count(name):
    """The number of this call, from 1 on."""
    CALLS[name] = CALLS.get(name, 0) + 1
    return CALLS[name]


def ordered(xp, x):
    return xp.sort(x)


def line(xp, x):
    return 2 * x + 1


def total(xp, x):
    return xp.sum(x)


def rows(rng, n):
    return [rng.random((n // 8, n // 8), dtype="float32")]


def factors(rng, n):
    return [rng.random((n // 8, n // 8), dtype="float32") for _ in range(2)]


def signed(rng, n):
    return [rng.standard_normal(n, dtype="float32")]


def large(rng, n):
    return [100 + rng.random(n, dtype="float32")]


def whole(rng, n):
    return [rng.integers(0, 2**20, n)]


def with_nan(rng, n):
    values = rng.random(n, dtype="float32")
    values[n // 2] = np.nan
    return [values]


# ---------------------------------------------------------------- elements


@plant(ordered)
def tail_is_zero(xp, x):
    result = xp.sort(x)
    result[-1] = 0
    return result


@plant(line)
def last_block_is_skipped(xp, x):
    result, end = xp.zeros_like(x), x.shape[0] // 256 * 256
    result[:end] = line(xp, x[:end])
    return result


@plant(line)
def first_element_is_skipped(xp, x):
    result = line(xp, x)
    result[0] = 0
    return result


@plant(line)
def an_element_is_off(xp, x):
    result = line(xp, x)
    result[x.shape[0] // 2] *= 1.001
    return result


@plant(line)
def shifted_by_one(xp, x):
    return xp.roll(line(xp, x), 1)


@plant(line)
def large_sizes_alone(xp, x):
    return line(xp, x) if x.shape[0] < 500 else line(xp, x) * 1.01


@plant(lambda xp, x: xp.exp(x) - 1, inputs=signed)
def negative_values(xp, x):
    return xp.exp(xp.abs(x)) - 1


@plant(lambda xp, x: x * 1, inputs=with_nan)
def nan_becomes_zero(xp, x):
    return xp.where(xp.isnan(x), xp.zeros_like(x), x)


@plant(lambda xp, x: xp.where(x > 0.7, x, -x))
def mask_is_inverted(xp, x):
    return xp.where(x > 0.7, -x, x)


@plant(line)
def constant_is_missing(xp, x):
    return 2 * x


@plant(lambda xp, x: xp.exp(x))
def exp_by_a_series(xp, x):
    return 1 + x + x**2 / 2 + x**3 / 6


@plant(lambda xp, a, b: a - b)
def operands_are_swapped(xp, a, b):
    return b - a


@plant(line)
def memory_as_it_was(xp, x):
    result = xp.empty_like(x)
    result[:8] = line(xp, x[:8])
    result[8:] = x[8:]
    return result


@plant(line)
def input_is_returned(xp, x):
    return x


@plant(
    lambda xp, x: xp.exp(x) / xp.sum(xp.exp(x)) if x.dtype == np.float64 else ordered_softmax(xp, x),
    inputs=large,
)
def softmax_overflows(xp, x):
    powers = xp.exp(x)
    return powers / xp.sum(powers)


def ordered_softmax(xp, x):
    powers = xp.exp(x - xp.max(x))
    return powers / xp.sum(powers)


# ---------------------------------------------------------------- precision


@plant(line)
def float16_inside(xp, x):
    return xp.astype(line(xp, xp.astype(x, xp.float16)), xp.float32)


@plant(total)
def float16_sum(xp, x):
    return xp.astype(xp.sum(xp.astype(x, xp.float16), dtype=xp.float16), xp.float32)


@plant(lambda xp, a, b: a @ b, inputs=factors)
def product_in_float16(xp, a, b):
    return xp.astype(xp.astype(a, xp.float16) @ xp.astype(b, xp.float16), xp.float32)


@plant(line)
def eight_bits(xp, x):
    return xp.round(line(xp, x) * 256) / 256


@plant(lambda xp, a, b: a @ b, inputs=factors)
def ten_bits_as_tensor_cores(xp, a, b):
    return (xp.round(a * 1024) / 1024) @ (xp.round(b * 1024) / 1024)


@plant(line)
def cancelled_digits(xp, x):
    return (line(xp, x) + 1e4) - 1e4


@plant(line)
def noise(xp, x):
    return line(xp, x) * (1 + 1e-4 * xp.sin(1e6 * x))


@plant(lambda xp, x: xp.cumulative_sum(x), r"out\[\d+\] is", inputs=whole)
def integers_overflow(xp, x):
    return xp.astype(xp.cumulative_sum(xp.astype(x, xp.int32) * 2**6, dtype=xp.int32) // 2**6, xp.int64)


@plant(line)
def truncated_to_integers(xp, x):
    return xp.astype(xp.astype(line(xp, x), xp.int32), xp.float32)


# ---------------------------------------------------------------- axes and shapes


@plant(lambda xp, x: xp.sum(x, axis=1), inputs=rows)
def wrong_axis(xp, x):
    return xp.sum(x, axis=0)


@plant(lambda xp, a, b: a @ b, inputs=factors)
def transposed(xp, a, b):
    return (a @ b).T


@plant(lambda xp, x: x / xp.sum(x, axis=1, keepdims=True), inputs=rows)
def normalised_as_a_whole(xp, x):
    return x / xp.sum(x)


@plant(lambda xp, x: x - xp.mean(x, axis=0), inputs=rows)
def one_row_for_all(xp, x):
    return x[:1] - xp.mean(x, axis=0) + 0 * x


@plant(line, "has the shape")
def one_axis_more(xp, x):
    return line(xp, x)[:, None]


@plant(line, "has the shape")
def an_element_is_missing(xp, x):
    return line(xp, x)[:-1]


@plant(line, "has the shape")
def empty(xp, x):
    return x[:0]


@plant(line, "has the shape")
def a_number_for_all(xp, x):
    return xp.sum(x)


@plant(lambda xp, x: (xp.min(x), xp.max(x)), "it returns 1 results, not 2")
def a_result_is_missing(xp, x):
    return xp.min(x)


@plant(lambda xp, x: (xp.min(x), xp.max(x)))
def results_are_swapped(xp, x):
    return xp.max(x), xp.min(x)


@plant(lambda xp, x: xp.sum(x > 1), r"out\[\] is")
def count_is_off_by_one(xp, x):
    return xp.sum(x > 1) + 1


@plant(ordered)
def descending(xp, x):
    return xp.flip(xp.sort(x))


@plant(total)
def mean_for_a_sum(xp, x):
    return xp.mean(x)


# ---------------------------------------------------------------- what a call may not do


@plant(line, "it changes x")
def writes_into_its_input(xp, x):
    x *= 2
    return x + 1


@plant(lambda xp, a, b: a + b, "it changes b")
def writes_into_the_other(xp, a, b):
    result = a + b
    b[0] = 0
    return result


@plant(line, "it changes x")
def returns_its_input_changed(xp, x):
    x[:] = line(xp, x)
    return x


@plant(line, "which is no array")
def returns_nothing(xp, x):
    return None


@plant(line, "which is no array")
def returns_what_is_no_array(xp, x):
    return object()


@plant(line, "it raises RuntimeError: no kernel")
def raises(xp, x):
    raise RuntimeError("no kernel")


@plant(line, "it raises RuntimeError: the third")
def raises_at_a_later_call(xp, x):
    if count("raises") > 2:
        raise RuntimeError("the third")
    return line(xp, x)


# ---------------------------------------------------------------- results that are no results of the call

STALE = "called with other values it returns what is not theirs"


@plant(ordered, STALE)
def kept_by_shape(xp, x):
    if ("shape", x.shape) not in CACHE:
        CACHE["shape", x.shape] = xp.sort(x)
    return CACHE["shape", x.shape]


@plant(ordered, STALE)
def kept_by_identity(xp, x):
    if ("id", id(x)) not in CACHE:
        CACHE["id", id(x)] = xp.sort(x)
    return CACHE["id", id(x)]


@plant(ordered, "it keeps results: a call takes")
def kept_by_value(xp, x):
    key = float(xp.sum(x))
    if key not in CACHE:
        time.sleep(0.003)
        CACHE[key] = xp.sort(x)
    return CACHE[key]


@plant(ordered, STALE)
def stops_after_five_calls(xp, x):
    if count("five") <= 5:
        CACHE["five"] = xp.sort(x)
    return CACHE["five"]


@plant(ordered, f"{STALE}|largest error")
def each_other_call_is_skipped(xp, x):
    if count("other") % 2:
        CACHE["other"] = xp.sort(x)
    return CACHE["other"]


@plant(ordered, f"{STALE}|largest error")
def result_of_the_call_before(xp, x):
    before, CACHE["before"] = CACHE.get("before", xp.zeros_like(x)), xp.sort(x)
    return before


@plant(ordered, STALE)
def output_is_filled_once(xp, x):
    if "output" not in CACHE:
        CACHE["output"] = xp.empty_like(x)
        CACHE["output"][:] = xp.sort(x)
    return CACHE["output"]


@plant(ordered, f"{STALE}|largest error")
def a_thread_fills_it_later(xp, x):
    result = xp.zeros_like(x)
    threading.Timer(0.02, lambda: result.__setitem__(slice(None), xp.sort(x))).start()
    return result


class Later:
    """A result that is computed when it is read."""

    def __init__(self, compute):
        self.compute = compute

    def to_numpy(self):
        time.sleep(0.02)
        return self.compute()


@plant(ordered, "computed when it is read")
def computed_when_it_is_read(xp, x):
    return Later(lambda: xp.sort(x))
