"""Planted faults: functions that are right on NumPy and wrong, stale or false on any other array library.

A test measures this file as a user's own, on PyTorch's CPU here and on CuPy with an NVIDIA GPU. Each fault has to be
refused: no time of it may stand in a result. FAULTS has what is said of each.
"""

import threading
import time

import numpy as np

import gpubench

FAULTS: dict[str, str] = {}
IMPLEMENTATIONS: dict[str, tuple] = {}
CACHE: dict[object, object] = {}
CALLS: dict[str, int] = {}


def plant(name, right, wrong, says="largest error", inputs=None):
    """Declare a fault: `right(xp, ...)` is taken on NumPy, `wrong` elsewhere."""

    def one(xp, x):
        return (right if xp.__name__ == "numpy" else wrong)(xp, x)

    def two(xp, a, b):
        return (right if xp.__name__ == "numpy" else wrong)(xp, a, b)

    FAULTS[name], IMPLEMENTATIONS[name] = says, (right, wrong)
    globals()[name] = gpubench.function(two if wrong.__code__.co_argcount == 3 else one, inputs=inputs)


def count(name):
    CALLS[name] = CALLS.get(name, 0) + 1
    return CALLS[name]


def ordered(xp, x):
    return xp.sort(x)


def line(xp, x):
    return 2 * x + 1


def total(xp, x):
    return xp.sum(x)


def product(xp, a, b):
    return a @ b


def extremes(xp, x):
    return xp.min(x), xp.max(x)


def softmax(xp, x):
    powers = xp.exp(x)
    return powers / xp.sum(powers)


def changed(array, place, value):
    array[place] = value
    return array


def rows(rng, n):
    return [rng.random((n // 8, n // 8), dtype="float32")]


def factors(rng, n):
    return [rng.random((n // 8, n // 8), dtype="float32") for _ in range(2)]


def half(xp, x):
    return xp.astype(x, xp.float16)


def single(xp, x):
    return xp.astype(x, xp.float32)


# ---------------------------------------------------------------- elements
def last_block_is_skipped(xp, x):
    end = x.shape[0] // 256 * 256
    return changed(xp.zeros_like(x), slice(end), line(xp, x[:end]))


def memory_as_it_was(xp, x):
    return changed(changed(xp.empty_like(x), slice(8), line(xp, x[:8])), slice(8, None), x[8:])


plant("tail_is_zero", ordered, lambda xp, x: changed(xp.sort(x), -1, 0))
plant("last_block_is_skipped", line, last_block_is_skipped)
plant("first_element_is_skipped", line, lambda xp, x: changed(line(xp, x), 0, 0))
plant("an_element_is_off", line, lambda xp, x: changed(line(xp, x), len(x) // 2, 1.001 * line(xp, x)[len(x) // 2]))  # fmt: skip
plant("shifted_by_one", line, lambda xp, x: xp.roll(line(xp, x), 1))
plant("large_sizes_alone", line, lambda xp, x: line(xp, x) if x.shape[0] < 500 else line(xp, x) * 1.01)
plant("negative_values", lambda xp, x: xp.exp(x) - 1, lambda xp, x: xp.exp(xp.abs(x)) - 1,
      inputs=lambda rng, n: [rng.standard_normal(n, dtype="float32")])  # fmt: skip
plant("nan_becomes_zero", lambda xp, x: x * 1, lambda xp, x: xp.where(xp.isnan(x), xp.zeros_like(x), x),
      inputs=lambda rng, n: [changed(rng.random(n, dtype="float32"), n // 2, np.nan)])  # fmt: skip
plant("mask_is_inverted", lambda xp, x: xp.where(x > 0.7, x, -x), lambda xp, x: xp.where(x > 0.7, -x, x))
plant("constant_is_missing", line, lambda xp, x: 2 * x)
plant("exp_by_a_series", lambda xp, x: xp.exp(x), lambda xp, x: 1 + x + x**2 / 2 + x**3 / 6)
plant("operands_are_swapped", lambda xp, a, b: a - b, lambda xp, a, b: b - a)
plant("memory_as_it_was", line, memory_as_it_was)
plant("input_is_returned", line, lambda xp, x: x)
plant("softmax_overflows", lambda xp, x: softmax(xp, x if x.dtype == np.float64 else x - xp.max(x)), softmax,
      inputs=lambda rng, n: [100 + rng.random(n, dtype="float32")])  # fmt: skip

# ---------------------------------------------------------------- precision
plant("float16_inside", line, lambda xp, x: single(xp, line(xp, half(xp, x))))
plant("float16_sum", total, lambda xp, x: single(xp, xp.sum(half(xp, x), dtype=xp.float16)))
plant("product_in_float16", product, lambda xp, a, b: single(xp, half(xp, a) @ half(xp, b)), inputs=factors)
plant("eight_bits", line, lambda xp, x: xp.round(line(xp, x) * 256) / 256)
plant("ten_bits_as_tensor_cores", product,
      lambda xp, a, b: (xp.round(a * 1024) / 1024) @ (xp.round(b * 1024) / 1024), inputs=factors)  # fmt: skip
plant("cancelled_digits", line, lambda xp, x: (line(xp, x) + 1e4) - 1e4)
plant("noise", line, lambda xp, x: line(xp, x) * (1 + 1e-4 * xp.sin(1e6 * x)))
plant(
    "integers_overflow", lambda xp, x: xp.cumulative_sum(x),
    lambda xp, x: xp.astype(xp.cumulative_sum(xp.astype(x, xp.int32) * 2**6, dtype=xp.int32) // 2**6, xp.int64),
    r"out\[\d+\] is", inputs=lambda rng, n: [rng.integers(0, 2**20, n)])  # fmt: skip
plant("truncated_to_integers", line, lambda xp, x: single(xp, xp.astype(line(xp, x), xp.int32)))

# ---------------------------------------------------------------- axes and shapes
plant("wrong_axis", lambda xp, x: xp.sum(x, axis=1), lambda xp, x: xp.sum(x, axis=0), inputs=rows)
plant("transposed", product, lambda xp, a, b: (a @ b).T, inputs=factors)
plant("normalised_as_a_whole", lambda xp, x: x / xp.sum(x, axis=1, keepdims=True), lambda xp, x: x / xp.sum(x), inputs=rows)  # fmt: skip
plant("one_row_for_all", lambda xp, x: x - xp.mean(x, axis=0), lambda xp, x: x[:1] - xp.mean(x, axis=0) + 0 * x, inputs=rows)  # fmt: skip
SHAPE = "has the shape"
plant("one_axis_more", line, lambda xp, x: line(xp, x)[:, None], SHAPE)
plant("an_element_is_missing", line, lambda xp, x: line(xp, x)[:-1], SHAPE)
plant("empty", line, lambda xp, x: x[:0], SHAPE)
plant("a_number_for_all", line, total, SHAPE)
plant("a_result_is_missing", extremes, lambda xp, x: xp.min(x), "it returns 1 results, not 2")
plant("results_are_swapped", extremes, lambda xp, x: extremes(xp, x)[::-1])
plant("count_is_off_by_one", lambda xp, x: xp.sum(x > 1), lambda xp, x: xp.sum(x > 1) + 1, "out is")
plant("descending", ordered, lambda xp, x: xp.flip(xp.sort(x)))
plant("mean_for_a_sum", total, lambda xp, x: xp.mean(x))


# ---------------------------------------------------------------- what a call may not do
def writes_into_its_input(xp, x):
    x *= 2
    return x + 1


def raises(xp, x):
    raise RuntimeError("no kernel")


def raises_at_a_later_call(xp, x):
    if count("raises") > 2:
        raise RuntimeError("the third")
    return line(xp, x)


plant("writes_into_its_input", line, writes_into_its_input, "it changes x")
plant("writes_into_the_other", lambda xp, a, b: a + b, lambda xp, a, b: (a + b, changed(b, 0, 0))[0], "it changes b")  # fmt: skip
plant("returns_its_input_changed", line, lambda xp, x: changed(x, slice(None), line(xp, x)), "it changes x")
plant("returns_nothing", line, lambda xp, x: None, "which is no array")
plant("returns_what_is_no_array", line, lambda xp, x: object(), "which is no array")
plant("computed_by_numpy", line, lambda xp, x: 2 * np.asarray(x) + 1, "computes with NumPy|Implicit conversion")
plant("raises", line, raises, "it raises RuntimeError: no kernel")
plant("raises_at_a_later_call", line, raises_at_a_later_call, "it raises RuntimeError: the third")

# ---------------------------------------------------------------- results that are no results of the call
STALE = "called with other values it returns what is not theirs"
LATE = f"{STALE}|largest error"


def kept(xp, x, key):
    if key not in CACHE:
        CACHE[key] = xp.sort(x)
    return CACHE[key]


def kept_by_value(xp, x):
    key = float(xp.sum(x))
    if key not in CACHE:
        time.sleep(0.003)
    return kept(xp, x, key)


def stops_after_five_calls(xp, x):
    if count("five") <= 5:
        CACHE["five"] = xp.sort(x)
    return CACHE["five"]


def each_other_call_is_skipped(xp, x):
    if count("other") % 2:
        CACHE["other"] = xp.sort(x)
    return CACHE["other"]


def result_of_the_call_before(xp, x):
    before, CACHE["before"] = CACHE.get("before", xp.zeros_like(x)), xp.sort(x)
    return before


def output_is_filled_once(xp, x):
    if "output" not in CACHE:
        CACHE["output"] = changed(xp.empty_like(x), slice(None), xp.sort(x))
    return CACHE["output"]


def a_thread_fills_it_later(xp, x):
    result = xp.zeros_like(x)
    threading.Timer(0.02, lambda: changed(result, slice(None), xp.sort(x))).start()
    return result


class Later:
    """A result that is computed when it is read."""

    def __init__(self, compute):
        self.compute = compute

    def to_numpy(self):
        time.sleep(0.02)
        return self.compute()


plant("kept_by_shape", ordered, lambda xp, x: kept(xp, x, ("shape", x.shape)), STALE)
plant("kept_by_identity", ordered, lambda xp, x: kept(xp, x, ("id", id(x))), STALE)
plant("kept_by_value", ordered, kept_by_value, "it keeps results: a call takes")
plant("stops_after_five_calls", ordered, stops_after_five_calls, STALE)
plant("each_other_call_is_skipped", ordered, each_other_call_is_skipped, LATE)
plant("result_of_the_call_before", ordered, result_of_the_call_before, LATE)
plant("output_is_filled_once", ordered, output_is_filled_once, STALE)
plant("a_thread_fills_it_later", ordered, a_thread_fills_it_later, LATE)
plant("computed_when_it_is_read", ordered, lambda xp, x: Later(lambda: xp.sort(x)), "computed when it is read")
