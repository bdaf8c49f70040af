"""Count the altered lines that no test notices.

Run: python benchmarks/mutants.py [PATH ...] [--number N] [--seed S] [--jobs J] (default: 150 mutants of all
modules). `--number 0` tries all mutants, and `--only gpubench/result/store/files.py:191` tries those of one line.
`--seconds 20` gives a mutant so many seconds of tests: faster, but some survive that other tests would notice.
`--unrun` lists the lines that no test runs, and tries nothing.

A mutant is one small change of a module. It is tried with the tests that run its line, the fastest first. Which
they are says a survey: one run of the whole suite, child processes included, that `.setup/survey` keeps until
`--survey` makes it anew. Lines are found in it by their text, so that it serves while the modules change. A survivor,
which passes all its tests, is printed as file, line and change. It shows a missing test or unnecessary code.
A line that no test runs is a survivor without a trial. The exit code is 1 if 5 % or more survive of those that have
an effect. Texts for people are not altered, because golden files contain them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMIT = 0.05
SURVEY = ROOT / ".setup" / "survey"
# What runs no line of gpubench, or sees coverage itself.
LEFT_OUT = (
    *(f"--ignore=tests/{folder}" for folder in ("architecture", "browser", "cuda", "end_to_end")),
    "--deselect=tests/faults/test_failing_disk.py::test_a_limit_on_the_size_of_files",
)
# Modules whose tests need a GPU.
CUDA = "gpubench/backends/cupy/"
# Modules that run as machine code, or before coverage can start, and the tests that notice their changes first. All
# tests of their folder may run each line.
UNSEEN = {
    "gpubench/backends/numpy/native.py": "tests/unit/kernels/test_cpu_kernels.py",
    "gpubench/base/child_main.py": "tests/unit/base/test_processes.py",
}
# Seconds, as the survey timed them: of the tests that run a line, and of others that may notice its change.
RUNNING_S, NEAR_S = 150.0, 20.0
# Changes without an effect that a test could notice: the file, the beginning of the line, a text in the changed line
# (empty: any), and the reason.
# fmt: off
EQUIVALENT = (
    ("", "", "reshape(-2", "NumPy takes any negative number"),
    ("backends/numpy/compiled.py", "LEAST_SHARE, MOST_PROCESSES, AHEAD_S = ", "", "bounds with room on both sides"),
    ("backends/numpy/compiled.py", "self._active = min(", "3", "the number is set anew by a launch that needs another"),
    ("backends/numpy/compiled.py", "digest = hash_text(", "21", "a name that is longer by a digit"),
    ("backends/numpy/compiled.py", "return ' '.join(f", "[:301]", "a letter more of a quoted text tells as much"),
    ("backends/numpy/native.py", "return context.get_dummy_value()", "", "nobody reads this value"),
    ("backends/numpy/native.py", "kind = args[0].type", "", "both numbers have one type"),
    ("backends/shared/host.py", "SLICE = ", "2 <<", "slices of any length make the same whole"),
    ("backends/shared/host.py", "SLICE = ", "19", "slices of any length make the same whole"),
    ("backends/shared/host.py", "_MOST_CHECKERS = ", "", "one thread more does the same"),
    ("backends/shared/peaks.py", "_ROWS = ", "", "slices of any length make the same whole"),
    ("backends/shared/peaks.py", "THREADS = ", "", "any number of threads has the same rate"),
    ("backends/shared/peaks.py", "CHAINS, LANES = ", "(9", "any number of chains has the same rate"),
    ("backends/shared/peaks.py", "UNROLLED = ", "", "any number of steps has the same rate"),
    *(("backends/shared/peaks.py", "signs = np.where(", part, "the signs may be drawn in any way")
      for part in ("0.75", "<=", ">=", "SFC64(2)")),
    ("backends/shared/peaks.py", "return bool(abs(", "65 *", "a limit with room on both sides"),
    ("backends/shared/peaks.py", "limit = 32 *", "33 *", "a limit with room on both sides"),
    ("backends/shared/reference.py", "_ODD = ", "", "any odd number will do"),
    ("backends/shared/reference.py", "_NO_ID = ", "2 * 31", "any negative number is no id"),
    ("backends/shared/reference.py", "name = hash_text(", "17", "a name that is longer by a digit"),
    ("backends/shared/reference.py", "if rows > step and", ">=", "one slice is the whole"),
    ("backends/shared/reference.py", "step = max(1, SLICE", "max(2", "slices of any length make the same whole"),
    ("backends/shared/reference.py", "step = max(1, SLICE", "else 2", "without rows there is no slice"),
    ("backends/shared/reference.py", "flat, size = ", "max(2", "the only slice begins at 0"),
    ("backends/shared/reference.py", "_PERIOD = ", "", "terms may repeat after any number of them"),
    ("backends/shared/reference.py", "values = generator.integers(", "(2, 5", "any small whole numbers will do"),
    ("backends/shared/reference.py", "values = generator.integers(", "(1, 6", "any small whole numbers will do"),
    ("backends/shared/reference.py", "return np.concatenate((values,", "half // 4", "any turn will do"),
    ("backends/shared/reference.py", "return np.concatenate((values,", "half * 3", "any turn will do"),
    ("backends/shared/reference.py", "overflow = np.isinf(", "> past", "no value is that very number"),
    ("backends/shared/reference.py", "error[overflow |", "< flushed", "no error is that very number"),
    ("backends/shared/reference.py", "if same_size and len(", ">= 1", "what is looked at twice is judged alike"),
    ("backends/shared/reference.py", "BLOCK = ", "2 <<", "blocks of any length find the same"),
    ("backends/shared/reference.py", "BLOCK = ", "17", "blocks of any length find the same"),
    ("backends/shared/reference.py", "_COMPARERS = ", "", "one thread more does the same"),
    ("kernels/templates/__init__.py", "GROUP_THREADS = ", "", "it is rounded down to a power of two"),
    ("kernels/templates/__init__.py", "return 16 // ITEMSIZE", "17", "a part of an element does not count"),
    ("kernels/templates/rows/cuda.py", "HELD_BYTES = ", "", "a part of a unit does not count"),
    ("kernels/templates/rows/cuda.py", "_FIRST_BYTES = ", "", "a part of a unit does not count"),
    ("kernels/templates/rows/cuda.py", "if units <= row_threads", "<", "a cluster of one block is the same"),
    ("kernels/templates/rows/cuda.py", "_MOST_CLUSTER = ", "", "clusters are powers of two"),
    ("backends/shared/reference.py", "if op.blas or rows <= step:", "rows < step", "one slice is the whole"),
    ("backends/shared/reference.py", "within = largest <=", "<", "no largest error is that very number"),
    ("kernels/templates/reduce.py", "_UNROLL = ", "", "loads in flight change no result"),
    *((f"kernels/{file}.py", f"{name} = ", "", "blocks of any length make the same whole") for file, name in (
        ("tokens", "_EMBEDDING_BLOCK"), ("rows", "_ARGMAX_BLOCK"), ("matmul", "_BLOCK"), ("reductions", "_BLOCK"),
        ("conv2d", "_BAND"), ("conv2d", "_TOGETHER"), ("attention_grad", "_ROWS"))),
    ("kernels/templates/matmul/register.py", "_LONG, _BLOCK = ", "", "no sum has a step more"),
    ("kernels/templates/formula.py", "return (words, 4 if", "4 if operand < 1 else 5",
     "brackets about a number change no value"),
    ("functions/session.py", "if kinds.isdisjoint(", "< {*'biufc'}", "two kinds are never all five"),
    ("functions/session.py", "if not {got.dtype.kind", "< {*'biu'}", "two kinds are never all three"),
    ("energy/section.py", "columns = heads(", "at rest', 3", "any rank beyond the others' goes first"),
    ("energy/section.py", "side: Tone = 'gpu' if", "> 1", "no two energies are the same"),
    ("energy/section.py", "ROWS = ", "order=136", "any number between its neighbours' will do"),
    ("energy/windows.py", "STEPS, LEAST_S, MOST_S = ", "",
     "more steps, and longer or shorter windows, give the same mean"),
    ("energy/windows.py", "IDLE_S = ", "", "a time at rest of any length will do"),
    ("energy/windows.py", "WARM_UP_S = ", "", "a time to settle of any length will do"),
    ("energy/windows.py", "AHEAD_S = ", "", "any start that is still to come will do"),
    ("energy/windows.py", "READ_EVERY_S = ", "", "read more or less often, a counter counts the same"),
    ("energy/windows.py", "inside = [", "begin_s < reading.t_s", "nothing is read at that very moment"),
    ("energy/windows.py", "inside = [", "t_s < end_s", "nothing is read at that very moment"),
    ("energy/windows.py", "return lack('the case broke", "", "the failure of the case takes its place"),
    ("measure/passes.py", "heights = {name", "x < curve.last", "no size lies at the end of the room for rounding"),
    ("measure/passes.py", "heights = {name", "09 < x", "no size lies at the end of the room for rounding"),
    ("measure/passes.py", "heights = {name", "1.5000", "any room for rounding does"),
    ("measure/passes.py", "late = shortest > ", ">=", "no time is that very multiple of another"),
    ("measure/passes.py", "fitting = sorted(", "cost_s < left_s", "no step takes the very time that is left"),
    ("measure/passes.py", "if not wishes or wishes[0].cost_s", ">= left_s",
     "no step takes the very time that is left"),
    ("report/charts.py", "DASHES = ", "", "any dashes that tell the lines apart will do"),
    ("report/charts.py", "OTHER_DASH = ", "", "any dashes that tell the lines apart will do"),
    ("base/processes.py", "return [*own, *(child for parent in own", "return None",
     "psutil is asked instead, which says the same"),
    ("base/plugins/containment.py", "mask = os.umask(", "", "no file is made before the mask is set back"),
    ("backends/shared/blocks.py", "self.written[start:", "+= 2", "any write empties a cache"),
    ("backends/shared/host.py", "while others_run()", "<= end", "no look ends at that very moment"),
    ("backends/shared/host.py", "step = max(1, SLICE", "max(2", "rows are as right two by two"),
    ("backends/shared/host.py", "memory = np.empty(size + 64", "65", "a byte more is touched by nobody"),
    ("backends/hybrid.py", "CHUNK = 8", "", "one launch more in a submit changes no result"),
    ("backends/shared/sides.py", "if stop - start < op.units", "<=", "a part of all units has the op's own params"),
    ("curves/time_curve.py", "if not ", "x < self.last + 1e-09", "no size lies at that very distance"),
    ("curves/time_curve.py", "if not ", "1.5000000000000002e-09", "no size lies at that very distance"),
    ("curves/time_curve.py", "gap: tuple[float, float]", "", "without a jump nobody asks for its gap"),
    ("curves/time_curve.py", "steps = max(1,", "1.5000000000000002e-09", "no size lies at that very distance"),
    ("curves/time_curve.py", "if excess ** 2 <= sure", "< sure", "no excess has that very square"),
    ("compare/two_runs.py", "sides = [(b, a) if flip", "not flip", "of two mirror images either one will do"),
    *(("compare/judge.py", line, part, "no interval ends at that very number, and no test gives it") for line, part in (
        ("return min(self.p) <=", "< CONTRADICTION"), ("return max(effect(low)", "< limit"),
        ("return any((factor *", "< alpha"), ("if p[side] <= alpha", "< alpha"),
        ("if not (1 / limit <=", "< low"), ("if not (1 / limit <=", "high < limit"),
        ("return [(sum((most >=", "> t - close"), ("return [(sum((most >=", "least < t"))),
    ("compare/judge.py", "return 1 / min(math.comb(", "+ 2", "one more of so many moves no verdict"),
    ("compare/pairing.py", "ROUNDING = ", "", "any number between rounding and a change will do"),
    ("compare/pairing.py", "if off > ROUNDING or", ">=", "any number between rounding and a change will do"),
    ("compare/pairing.py", "off = max(", "default=1.0", "without a number the shapes differ"),
    ("compare/pairing.py", "BILLION = ", "", "any factor beyond all changes will do"),
    ("compare/pairing.py", "clocks: dict[int", "1 < hertz", "no clock is so slow"),
    ("compare/two_runs.py", "older = base if", "<= int", "the two differ"),
    ("compare/two_runs.py", "older = base if", " or 1", "the other one has a larger number"),
    ("compare/two_runs.py", "sides = [(b, a) if flip", "(True, *", "of two mirror images either one will do"),
    ("compare/two_runs.py", "flips = [tuple((draw", ">= 0.5", "any sample will do"),
    ("compare/two_runs.py", "for item in judge(pairs, alpha, 0", "1)", "nobody reads the number of the file"),
    ("compare/judge.py", "return distance * math.sqrt(", "len(new) * (len(base)",
     "as many runs stand about each place, so their sum orders nothing"),
    ("compare/judge.py", "values = [value - centre", "+ centre", "moving all values changes no difference of means"),
    ("analysis/contenders.py", "return any((low <= n <= high", "(low < n <= high", "no size is that very place"),
    ("analysis/contenders.py", "return any((low <= n <= high", "(low <= n < high", "no size is that very place"),
    *(("analysis/contenders.py", line, part, "what is measured there is given back before") for line, part in (
        ("inside = self.curve.first <", "= x"), ("inside = self.curve.first <", "<= self"), ("low, high = (max(", "="),
        ("below = [", "<="), ("above = [", ">="))),
    ("analysis/contenders.py", "cpu_gone, others_gone = (", "default=1", "no size is smaller"),
    ("analysis/contenders.py", "return 0", "1", "no size is smaller"),
    ("analysis/contenders.py", "if parts is not None and (not", "<= time.low", "no time is that very number"),
    ("analysis/contenders.py", "return split if split", "<=", "no two times are the same"),
    ("analysis/answer.py", "counts = {", ": 1 for", "all begin alike"),
    ("analysis/answer.py", "if best is plain or ratio is None", "< 1", "no ratio is that very number"),
    ("analysis/answer.py", "if a.gain.n != b.gain.n", ">=", "no two ends are the same"),
    ("analysis/answer.py", "return op is not None and any(", "> 2", "an output has one element or many"),
    ("analysis/thresholds.py", "return self.low is not None", "high < self", "no interval has that very width"),
    ("analysis/thresholds.py", "kind = 'at' if curve.n", "hi < curve", "no interval has that very width"),
    *((f"analysis/{file}.py", line, part, "a bracket has both ends") for file, line in (
        ("thresholds", "text = range_text(cell.low"), ("winners", "return f'somewhere in"))
      for part in ("or 1, c", "or 1, curve", "high or 1", "hi or 1")),
    *(("analysis/claims.py", line, part, "no interval ends at that very number") for line, part in (
        ("if interval.low >=", "low > bound"), ("if interval.high <", "<= bound"),
        ("if first <= low", "first < low"), ("if first <= low", "high < last"),
        ("return 'refuted' if high <", "high <= first"), ("return 'refuted' if high <", "low >= last"))),
    ("analysis/claims.py", "return (curve.lo or 0.0", "or 1.0", "no size is smaller than 1"),
    ("analysis/samples.py", "marks.append('unstable'", ">=", "no noise is that very number"),
    ("analysis/samples.py", "if overheads and singles and", "<=", "no time is that very number"),
    ("analysis/samples.py", "return 'short' if", "<=", "no time is that very number"),
    ("analysis/winners.py", "if start < end * (1", "", "a part of a lane that is not empty is longer than rounding"),
    ("analysis/winners.py", "return 'unsure' if TAIL", "=", "no probability is that very number"),
    ("report/sections/answer_text.py", "side, factor = ('GPU'", "gain.ratio > 1", "1 is about equal"),
    ("result/store/document.py", "return cut(repr(value)", "81", "a letter more of a quoted text tells as much"),
    ("result/identity.py", "marks = ', '.join(", ":13]", "a letter more of a quoted text tells as much"),
    ("result/case.py", "_MOST_RANKS = ", "", "a bound with room on both sides"),
    ("result/case.py", "if match is None or len(ranks)", ">=", "a bound with room on both sides"),
    ("analysis/advice.py", "refused += [", "case.n < n", "those of this size are in it"),
    ("analysis/contenders.py", "key = (key[0], device_id", "key[1]", "a key of its own in its group, as well"),
    ("analysis/advice.py", "return 'clear' if wrong", "wrong < CLEAR", "no probability is that very number"),
    ("analysis/advice.py", "return 'clear' if wrong", "cost < HIGHEST", "no cost is that very number"),
    ("analysis/speedup.py", "return math.sqrt((self.lo", "or 2)", "a bracket has both ends, and none is 0"),
    ("analysis/winners.py", "largest = 0.0 if cell.gain", "1.0 if", "any key above all negative ones will do"),
    ("curves/threshold.py", "if low > high + 1e-09", "1.5", "no two ends lie so close to each other"),
    ("curves/threshold.py", "if stretches and stretches", ">= begin", "no two ends lie so close to each other"),
    ("curves/threshold.py", "if stretches and stretches", "1.5000000000000002e-09",
     "no two ends lie so close to each other"),
    ("curves/threshold.py", "return math.exp(x) if math.isfinite(x)", "x <= 0", "what is not finite is not 0"),
    ("curves/threshold.py", "inside = sorted(", "1e-09 < x", "no size lies at that very distance"),
    ("curves/threshold.py", "for i in range(steps + 1)", "steps + 2", "beyond the last size no curve is looked at"),
    ("measure/case_run.py", "PAUSES_S = ", "", "pauses of any length will do"),
    ("report/renderers/html/__init__.py", "MOST_SAMPLES = ", "",
     "a bound with room on both sides; a test holds what is done at it"),
    ("report/renderers/html/__init__.py", "MOST_CASES = ", "",
     "a bound with room on both sides; a test holds what is done at it"),
    ("analysis/machine.py", "MOST_FILES = ", "", "a bound with room on both sides; a test holds what is done at it"),
    *((f"{file}.py", "raise ", cut, "a letter more of a quoted text tells as much")
      for file in ("detect/facts", "cli/advise", "cli/ci", "cli/request", "cli/resume", "cli/selection")
      for cut in ("[:21]", "[:41]", "[:61]", "[:81]")),
    ("detect/proc.py", "MOST_MOUNTS = ", "", "a bound with room on both sides"),
    ("detect/inspection.py", "DRIVER_LIMIT_S, LIBRARY_LIMIT_S", "", "a deadline with room on both sides"),
    ("detect/inspection.py", "provider = Provider(", "7)", "a digit more of a duration"),
    ("detect/vendors.py", "return (None if node < 0", "< 1", "the memory of no GPU is node 0"),
    ("cli/ci.py", "COMMENT_BYTES = ", "", "a bound of GitHub's with room"),
    ("cli/ops.py", "_SIZES = ", "", "any two large sizes find a formula"),
    ("fleet/nodes.py", "whole_s, *parts_s", "1.0", "no run takes no time"),
    ("fleet/driver.py", "MOST_BYTES = ", "", "a bound with room on both sides; a test holds what is done at it"),
    ("fleet/node.py", "_STORE_BYTES = ", "", "a bound with room on both sides"),
    ("fleet/node.py", "PIECE_BYTES = ", "", "pieces of any length make the same whole"),
    ("fleet/node.py", "if now - looked >= PART_S", "> PART_S", "no look is at that very moment"),
    ("multi/data_parallel.py", "for segment in range(len(", "ranks[1]", "all ranks have the same launches"),
    ("multi/device_group.py", "usual = [", "default=1", "one GPU is no group"),
    ("multi/scaling.py", "ROWS = (", "order=", "any number between its neighbours' will do"),
    ("detect/recommend.py", "MOST_FILES = ", "", "a bound with room on both sides; a test holds what is done at it"),
    ("report/sections/machines.py", "_WIDE = ", "", "an axis of about that span is read with either ticks"),
    ("report/sections/break_even.py", "ROWS = ", "order=31", "any number between its neighbours' will do"),
    ("backends/numpy/__init__.py", "self.limits = Limits(", "max_binding_bytes=2 * 62", "nothing is bound on a CPU"),
    ("measure/conformance.py", "VECTOR_SIZES = ", "", "any other size or number of about that will do"),
    ("measure/conformance.py", "MATRIX_SIZES = ", "", "any other size or number of about that will do"),
    ("measure/conformance.py", "LARGE_BYTES = ", "", "any other size or number of about that will do"),
    ("measure/conformance.py", "PERIOD = ", "", "any other size or number of about that will do"),
    ("measure/conformance.py", "MOST_FLOPS = ", "", "any other size or number of about that will do"),
    ("measure/conformance.py", "REUSES = ", "", "any other size or number of about that will do"),
    ("measure/conformance.py", "LONG_LAUNCH_S = ", "", "a little longer is long enough as well"),
    ("measure/conformance.py", "_UNLIMITED = ", "2 <<", "no device has so much memory"),
    ("measure/conformance.py", "_UNLIMITED = ", "<< 61", "no device has so much memory"),
    ("measure/conformance.py", "seeds: Sequence[int] = ", "", "inputs of any seed will do"),
    ("measure/conformance.py", "self.round_trip(", "self.round_trip(",
     "any other size or number of about that will do"),
    ("measure/conformance.py", "for count in (1, 257", "", "any other size or number of about that will do"),
    ("measure/conformance.py", "session, host = (self.session, _draw(", "",
     "any other size or number of about that will do"),
    ("backends/numpy/compiled.py", "written = path.stat().st_size", "> 1", "a mark has more than a byte"),
    ("measure/worker_pool.py", "OPEN_DEADLINE_S = ", "", "a deadline with room on both sides"),
    ("measure/worker_pool.py", "PEAK_DEADLINE_S = ", "", "a deadline with room on both sides"),
    ("measure/worker_pool.py", "COMPILES_S = ", "", "any time that no call takes and each compilation does will do"),
    ("measure/recorder.py", "GIT_LIMIT_S = ", "", "a deadline with room on both sides"),
    ("backends/wgpu/transfers.py", "CHUNK_BYTES, BUFFERS = ", "", "chunks of any length move the same"),
    ("backends/wgpu/programs.py", "FIRST_STEPS, STEPS, SLICE = ", "", "parts of any length make the same whole"),
    ("backends/wgpu/programs.py", "words = [*step.uniform", "% 5", "a uniform may be longer"),
    ("backends/wgpu/programs.py", "_THREADS, _MOST_GROUPS = ", "2049", "groups take turns at any number of words"),
    ("backends/wgpu/__init__.py", "_FLUSH_BYTES", "", "any buffer larger than the caches empties them"),
    ("backends/wgpu/__init__.py", "_STAMP_SETS = ", "", "a bound with room on both sides"),
    ("backends/wgpu/__init__.py", "TUNING_S = ", "", "a time with room on both sides"),
    ("measure/worker/functions.py", "return self.reading_s - usual_s > ", ">=", "no time is that very number"),
    ("measure/worker/hardware.py", "ARRAY_BYTES = ", "", "any arrays that no cache holds have the memory's rate"),
    ("measure/worker/hardware.py", "TIMINGS, TIMINGS_OF_LONG", "",
     "one timing more or less moves no rate that the tests could see"),
    ("measure/worker/pipeline.py", "self.last_inputs[place] = (place", "- number",
     "the sets take turns in either order"),
    ("measure/worker/operands.py", "GUARD = ", "65", "an element more behind the longest input does as well"),
    ("measure/worker/operands.py", "_SHARED_SHARE = ", "", "any small share of the memory will do"),
    ("measure/worker/operands.py", "_WEIGHTS_SHARE, _WEIGHTS_BYTES = ", "", "any small share of the memory will do"),
    ("curves/relatives.py", "reduces = all(", "written <= ", "no whole number of bytes is that very share"),
    ("curves/stats.py", "FARTHEST = ", "", "a factor of e^100 is as good as any larger one"),
    ("curves/stats.py", "MOST_EXACT = ", "", "on either side of the limit both ways give the same digits"),
    ("curves/stats.py", "if n > MOST_EXACT:", ">=", "on either side of the limit both ways give the same digits"),
    ("result/run.py", "LINK_BYTES = ", "", "a bound with room on both sides"),
    ("result/store/cache.py", "_MOST_BYTES = ", "", "a bound with room on both sides"),
    ("result/store/cache.py", "disk.replace_file(", "mode=421", "what others run of it does no harm"),
    ("result/store/cache.py", "disk.replace_file(", "lasting=True", "slower, and lost by fewer power cuts"),
    ("result/store/files.py", "data = gzip.compress(data, mtime=0)", "mtime=1",
     "any time that is always the same will do"),
    ("result/store/files.py", "return data[:end]", "return None", "then the whole file is read, which says the same"),
    ("result/store/files.py", "parts, rest = ", "+ 2", "any byte too many is too many"),
    ("result/store/files.py", "data = _read_standard_input() if", "+ 2", "any byte too many is too many"),
    ("result/store/files.py", "_PIECE = ", "", "pieces of any size add up"),
    ("result/store/files.py", "_HEAD_PIECE, _MOST_HEAD = ", "",
     "a head is found, or the whole file is read, which says the same"),
    ("result/store/document.py", "MAX_", "",
     "bounds with room on both sides; tests hold what is done at each of them"),
    ("result/store/document.py", "require(source, 'bytes in one", "default=1", "no text is within every limit"),
    ("result/store/document.py", "devices = max(", "default=1", "no run is within every limit"),
    ("result/store/journal.py", "self._flushed = 0.0", "= 1.0", "any time long ago"),
    ("result/store/journal.py", "os.ftruncate(self._file, 0)", "1)", "the byte that stays is written over"),
    ("workloads/training.py", "reads[2] = x @ w", "b - margin",
     "one training goes up and one down, whichever is first"),
    ("detect/merge.py", "return (record.ordinal, '') if", "2 << 30", "any number beyond all ordinals will do"),
    ("detect/merge.py", "return 0 if record.adapter_type in kinds", "else 3 if other",
     "any number beyond 1 comes last"),
    ("fleet/survey.py", "slow = [_verdict(", "threshold or 1.0", "in a group without a threshold none falls short"),
    *((f"workloads/{file}.py", "ROWS = ", "order=", "any number between its neighbours' will do") for file in (
        "stages", "stage_assignments")),
    ("workloads/chains.py", "LONG_S = ", "", "how long is long moves no result"),
    ("workloads/chains.py", "TOGETHER = ", "", "any number that a device has stamps for will do"),
    ("multi/identical_gpus.py", "", "id=1", "the worker's next number replaces it"),
    ("backends/wgpu/transfers.py", "self._aside = ThreadPool", "(2)", "two threads copy what one copies"),
    ("multi/device_group.py", "limits = Limits(", "41", "no buffer is so large"),
    ("multi/device_group.py", "limits = Limits(", "2 << 40", "no buffer is so large"),
    ("multi/device_group.py", "GUARD = ", "", "a guard that is longer by one sees as much"),
    ("multi/device_group.py", "PIECE = ", "25", "pieces of any length make the same whole"),
    ("multi/device_group.py", "PIECE = ", "2 <<", "pieces of any length make the same whole"),
    ("multi/device_group.py", "FETCHED_BYTES = ", "65", "the host and the device compare alike"),
    ("multi/device_group.py", "FETCHED_BYTES = ", "21", "the host and the device compare alike"),
    ("multi/device_group.py", "if held.nbytes <= FETCHED", "< FETCHED", "the host and the device compare alike"),
    ("multi/device_group.py", "if size <= INLINE", "< INLINE", "one thread and several move the same"),
    ("multi/device_group.py", "WARM_UP = ", "", "one exchange more warms up as well"),
    ("multi/scaling.py", "SLICES = ", "", "one slice more scatters as much"),
    *(("functions/trial.py", line, part, "any other numbers, drawn or scaled, show as much") for line, part in (
        ("share = np.random.default_rng(", ""), ("yield [(x * share(", "x / share"), ("yield [(x * share(", "0.75"),
        ("yield [(x * share(", "0.5, 1.5"), ("_require_fresh(call, ", "seed=3"), ("def _inputs(", "seed: int=2"))),
    *(("functions/trial.py", line, part, "no call takes that very time or memory") for line, part in (
        ("if max(last.seconds", ">= times"), ("if count >= 3", ">= TELLING_S"), ("if count >= 3", ">= MOST_S"),
        ("if took > SHORT_S", ">="))),
    ("base/units.py", "if unit == name or", "1.5e-12", "no time lies at that very distance"),
    ("base/units.py", "if unit == name or", "> scale", "no time lies at that very distance"),
    ("base/units.py", "return f'{_short(format_number(value, 4", "> 1000", "1000 has no fourth digit to lose"),
    ("base/units.py", "return ' and '.join(", "> 2", "two are joined alike"),
    ("functions/loading.py", "text = shorten(", "241", "a letter more of an error tells as much"),
    ("measure/case_run.py", "LOOP_S = ", "", "calls of about that length keep a core awake"),
    ("measure/case_run.py", "return self.call_s * ", "call_s > ONCE_S", "no launch takes that very time"),
    *(("measure/worker/timer.py", f"{name} = clock() if noted", "else 1.0", "it is read where the steps are noted")
      for name in ("began", "taken", "uploaded", "launched", "fetched")),
    ("measure/worker/timer.py", "while len(cycles_s) <", "<= WARM_S", "no launches take that very time"),
    ("measure/worker/timer.py", "return LONGEST_REPEAT if", "< target", "there both are the longest count"),
    ("measure/runner.py", "if runtime.budget.left_s() <= last", "< last", "no check takes the very time that is left"),
)
# fmt: on

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str  # path from the root of the repository
    line: int  # number of the changed line
    change: str  # change in words
    source: str  # new text of the whole file

    @property
    def text(self) -> str:
        """The file, the line and the change in words."""
        return f"{self.file}:{self.line}: {self.change}"


def draw(files: list[str], only: tuple[str, ...], number: int, seed: int) -> tuple[list[Mutant], int]:
    """Return `number` random mutants (0: all), and the number of all changes from which they were drawn. If `only` is
    not empty, `Mutant.text` must begin with one of its texts."""
    if only:
        near = [file for file in files if file.startswith(tuple(text.partition(":")[0] for text in only))]
        every = [mutant for file in near for mutant in mutants(file) if mutant.text.startswith(only)]
        return random.Random(seed).sample(every, min(number or len(every), len(every))), len(every)
    changes = [(file, place) for file in files for place in range(len(list(_changes(_tree(file)))))]
    drawn = random.Random(seed).sample(changes, min(number or len(changes), len(changes)))
    places: dict[str, set[int]] = {}
    for file, place in drawn:
        places.setdefault(file, set()).add(place)
    return [mutant for file, chosen in places.items() for mutant in mutants(file, chosen)], len(changes)


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def _tree(file: str) -> ast.Module:
    return ast.parse(_text(file))


def mutants(file: str, chosen: Container[int] = range(sys.maxsize)) -> list[Mutant]:
    """Return the mutants of a file, in the order of its lines. `chosen` has the positions in `_changes` of the changes
    to make. A change that leaves the text as it is gives no mutant."""
    tree = _tree(file)
    original = ast.unparse(tree)
    alterations = []
    for place, (node, name, index, new) in enumerate(_changes(tree)):
        if place not in chosen:
            continue
        held = getattr(node, name)
        old = held if index is None else held[index]
        _put(node, name, index, new)
        source = ast.unparse(tree)
        _put(node, name, index, old)
        if source == original:
            continue
        before, after = _differing(original, source)
        line = getattr(old, "lineno", 0) or getattr(node, "lineno", 0)
        alterations.append(Mutant(file, line, f"{before}  ->  {after}", source))
    return alterations


def _put(node: ast.AST, name: str, index: int | None, new: object) -> None:
    if index is None:
        setattr(node, name, new)
    else:
        getattr(node, name)[index] = new


def _differing(original: str, source: str) -> tuple[str, str]:
    """Return the first line that differs between the two texts, from both of them."""
    pairs = zip(original.splitlines(), source.splitlines(), strict=False)
    return next((old.strip(), new.strip()) for old, new in pairs if old != new)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None, object]]:
    """Yield (node, field, index, new value) for each change."""
    for node in _altered_nodes(tree):
        yield from _reassignments(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            for index, statement in enumerate(statements if isinstance(statements, list) else ()):
                if _deletable(statement):
                    yield node, name, index, ast.copy_location(ast.Pass(), statement)


def _reassignments(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, object]]:
    match node:
        case ast.Compare():
            for index, op in enumerate(node.ops):
                for other in _COMPARE[type(op)]:
                    yield node, "ops", index, other()
        case ast.BoolOp():
            yield node, "op", None, ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _ARITHMETIC:
            yield node, "op", None, _ARITHMETIC[type(node.op)]()
        case ast.UnaryOp(op=ast.USub()):
            yield node, "op", None, ast.UAdd()
        case ast.Constant(value=bool(value)):
            yield node, "value", None, not value
        case ast.Constant(value=int(value)):
            yield node, "value", None, value + 1
        case ast.Constant(value=float(value)):
            yield node, "value", None, value * 1.5 or 1.0
        case ast.If() | ast.IfExp() | ast.While():
            yield node, "test", None, ast.UnaryOp(ast.Not(), node.test)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, "value", None, ast.Constant(None)


def _deletable(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):
            return False  # a docstring
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _altered_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and all nodes inside it that may be altered."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    # Annotations, decorators, bases and keywords of a class alter nothing that a test sees.
    silent = {
        "annotation",
        "returns",
        "decorator_list",
        *(("bases", "keywords") if isinstance(node, ast.ClassDef) else ()),
    }
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in silent:
                yield from _altered_nodes(child)


def main() -> int:
    """Print a line for each survivor and each equivalent mutant, and then the table. Return 1 if too many mutants
    survive, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="gpubench/detect, or one file; default: all")
    parser.add_argument("--number", type=int, default=150, help="mutants of all modules together; 0: every one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="those whose `file:line: change` begins so"
    )
    parser.add_argument("--seconds", type=float, default=RUNNING_S, help="seconds of tests for a mutant")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--survey", action="store_true", help="make the survey anew")
    parser.add_argument("--unrun", action="store_true", help="list the lines that no test runs")
    options = parser.parse_args()
    files = [file for file in _list_files() if file.startswith("gpubench/") and file.endswith(".py")]
    places = tuple(options.paths)
    files = [file for file in files if file.startswith(places or "") and not file.startswith(CUDA)]
    if not files:
        parser.error(f"no module of gpubench: {' '.join(places)}")
    if options.survey or not SURVEY.exists():
        make_survey(options.jobs)
    survey = Survey()
    if options.unrun:
        print("\n".join(_unrun(survey, files)))
        return 0
    tried, count = draw(files, tuple(options.only or ()), options.number, options.seed)
    outcomes: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        orders = [(mutant, survey.tests(mutant, options.seconds)) for mutant in tried]
        pool = multiprocessing.get_context("fork").Pool(options.jobs, _prepare, (folder, survey.seconds))
        with pool:
            for mutant, outcome, note in pool.imap_unordered(_attempt, orders):
                outcomes[_room(mutant.file), outcome] += 1
                if note or outcome in ("survived", "unrun"):
                    print(f"{outcome}: {mutant.text}{note and f'  ({note})'}", flush=True)
    print(_table(outcomes))
    print(f"\n{len(tried)} of {count} mutants, seed {options.seed}, {time.monotonic() - began:.0f} s.")
    survived = sum(count for (_, outcome), count in outcomes.items() if outcome in ("survived", "unrun"))
    able = len(tried) - sum(count for (_, outcome), count in outcomes.items() if outcome == "equivalent")
    return 1 if survived >= LIMIT * able else 0


def _list_files() -> list[str]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return sorted(name for name in names.split("\0") if (ROOT / name).is_file())


def _room(file: str) -> str:
    return file.split("/")[1].removesuffix(".py")


def _table(outcomes: Counter[tuple[str, str]]) -> str:
    kinds = ("killed", "too slow", "equivalent", "unrun", "survived")
    lines = ["", f"| room | tried | {' | '.join(kinds)} | share |", "|---" * 8 + "|"]
    for room in [*sorted({room for room, _ in outcomes}), "**all**"]:
        counts = [
            sum(n for (r, o), n in outcomes.items() if o == kind and room in (r, "**all**")) for kind in kinds
        ]
        able = sum(counts) - counts[kinds.index("equivalent")]
        share = sum(counts[-2:]) / (able or 1)
        lines.append(f"| {room} | {sum(counts)} | {' | '.join(map(str, counts))} | {share:.1%} |")
    return "\n".join(lines)


def _unrun(survey: Survey, files: list[str]) -> Iterator[str]:
    """Yield the lines that no test runs by file, and the share of each room."""
    statements: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for file in files:
        if file in UNSEEN:
            continue
        every = list(_statements(_tree(file)))
        unrun = [extent for extent in every if survey.runs(file, extent) is False]
        statements[_room(file)] += len(every)
        missed[_room(file)] += len(unrun)
        if unrun:
            yield f"{file}: {', '.join(_join(unrun))}"
    for room, count in sorted(statements.items()):
        yield f"{room}: {missed[room]} of {count} statements, {missed[room] / count:.1%}"
    yield f"all: {missed.total()} of {statements.total()} statements, {missed.total() / statements.total():.1%}"


def _join(extents: list[range]) -> Iterator[str]:
    """Yield "3" or "3-7" for lines in a row."""
    lines = sorted({line for extent in extents for line in extent})
    begin = lines[0]
    for line, after in zip(lines, [*lines[1:], 0], strict=True):
        if after != line + 1:
            yield f"{begin}-{line}" if begin < line else f"{line}"
            begin = after


def _extent(node: ast.stmt) -> range:
    """Return the lines of a statement, or the lines of its head if it is a compound statement."""
    body = getattr(node, "body", None)
    if isinstance(node, ast.Match):
        body = [node.cases[0].pattern]
    return range(node.lineno, max(body[0].lineno, node.lineno + 1) if body else (node.end_lineno or 0) + 1)


def _statements(node: ast.AST) -> Iterator[range]:
    """Yield the lines of each statement that leaves a trace when it runs."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    silent = ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.stmt) and not (constant or isinstance(node, silent)):
        yield _extent(node)
    for child in ast.iter_child_nodes(node):
        yield from _statements(child)


def _reach(file: str, line: int) -> range:
    """Return the lines of the innermost statement around a line."""
    extents = [_extent(node) for node in ast.walk(_tree(file)) if isinstance(node, ast.stmt)]
    around = [extent for extent in extents if line in extent]
    return min(around, key=len, default=range(line, line + 1))


def _names(file: str, line: int) -> set[str]:
    """Return the names that the line sets in its module or class, outside of functions."""
    bodies = (node.body for node in ast.walk(_tree(file)) if isinstance(node, ast.Module | ast.ClassDef))
    around = (node for body in bodies for node in body if node.lineno <= line <= (node.end_lineno or 0))
    targets = [ast.Tuple(node.targets) if isinstance(node, ast.Assign) else node.target
               for node in around if isinstance(node, ast.Assign | ast.AnnAssign)]  # fmt: skip
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


class Survey:
    """Which tests run which line, and in how many seconds."""

    def __init__(self) -> None:
        import coverage

        notes = json.loads((SURVEY / "tests.json").read_text(encoding="utf-8"))
        self.seconds: dict[str, float] = notes["seconds"]  # of each test that exists
        self._failed = frozenset(notes["failed"])  # with coverage, so nothing is known of them
        self._sources: dict[str, str] = notes["sources"]  # text of each module
        self._folder: str = notes["folder"]  # in which the tests ran
        self._present = frozenset(_list_files())
        self._data = coverage.CoverageData(str(SURVEY / "lines"))
        self._data.read()
        self._names = {
            place: [test for test in self.seconds if test.startswith((f"{place}::", f"{place}/"))]
            for place in {part for test in self.seconds for part in _places(test)}
        }

    @functools.cache  # noqa: B019 - there is one
    def _tests_of_lines(self, file: str) -> dict[int, frozenset[str]]:
        """The tests of each line of the module at the time of the survey; empty for what none alone runs."""
        lines = self._data.contexts_by_lineno(f"{self._folder}/{file}")
        return {line: frozenset(self._name_tests(names)) for line, names in lines.items()}

    def _name_tests(self, contexts: Iterable[str]) -> Iterator[str]:
        """The tests of contexts; that of a fixture which tests share is their class, file or folder."""
        for context in contexts:
            name = re.sub(r" \((setup|call|teardown)\)$", "", context)
            yield from [name] if name in self.seconds else self._names.get(name, ())

    @functools.cache  # noqa: B019
    def _places(self, file: str) -> dict[int, int]:
        """Return the line at the time of the survey by the present line, for lines that stand still."""
        old, new = (text.splitlines() for text in (self._sources.get(file, ""), _text(file)))
        blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        return {block.b + 1 + at: block.a + 1 + at for block in blocks for at in range(block.size)}

    def _tests_of(self, file: str, line: int) -> frozenset[str]:
        return self._tests_of_lines(file).get(self._places(file).get(line, 0), frozenset())

    def runs(self, file: str, extent: range) -> bool | None:
        """Whether anything has run one of the lines, or None if that is not known."""
        places = self._places(file)
        if file in UNSEEN or not all(line in places for line in extent):
            return None
        return any(places[line] in self._tests_of_lines(file) for line in extent)

    def tests(self, mutant: Mutant, most_s: float) -> list[str] | None:
        """Return the tests to try, in their order, or None if no test runs the line."""
        extent = _reach(mutant.file, mutant.line)
        if self.runs(mutant.file, extent) is False:
            return None
        lines = [(mutant.file, line) for line in extent]
        if names := _names(mutant.file, mutant.line):  # set once by an import: those run it that run a use
            uses = re.compile(rf"\b({'|'.join(names)})\b")
            for file in self._sources.keys() & self._present:
                lines += [(file, i) for i, text in enumerate(_text(file).splitlines(), 1) if uses.search(text)]
        running = self._usable(self._tests_of(*place) for place in lines)
        wider = [mutant.file]
        if mutant.file in UNSEEN or mutant.file not in self._sources:
            wider = [file for file in self._sources if Path(file).parent == Path(mutant.file).parent]
        near = self._usable(tests for file in wider for tests in self._tests_of_lines(file).values()) - running
        own, words = {*map(_file, running)}, _words(mutant.file)
        if mutant.file in UNSEEN:
            own = {UNSEEN[mutant.file]}
            running |= self._usable([frozenset(self._names.get(UNSEEN[mutant.file], ()))])

        def rank(test: str) -> tuple[bool, int]:
            return _file(test) not in own, -len(words & _words(_file(test)))

        first = self._spread(running, most_s, rank)
        left_s = most_s - sum(self.seconds[test] for test in first)
        return [*first, *self._spread(near, max(left_s, min(NEAR_S, most_s / 4)), rank)]

    def _usable(self, groups: Iterable[frozenset[str]]) -> set[str]:
        tests = frozenset[str]().union(*groups) - self._failed
        return {test for test in tests if _file(test) in self._present}

    def _spread(
        self, tests: Collection[str], most_s: float, rank: Callable[[str], tuple[bool, int]]
    ) -> list[str]:
        """Return as many tests as take so many seconds: half of the time for those of the highest rank, and half for
        the fastest of each file in turn. The tests of a file stand together."""
        turns, files = dict[str, int](), Counter[str]()
        for test in sorted(tests, key=self.seconds.__getitem__):
            files[_file(test)] += 1
            turns[test] = files[_file(test)]
        slowest, took_s = dict[str, float](), 0.0
        chosen = set[str]()
        ranked = sorted(turns, key=lambda test: (rank(test), turns[test]))
        for share, order in ((0.5, ranked), (1.0, sorted(ranked, key=turns.__getitem__))):
            for test in order:
                if test not in chosen and took_s + self.seconds[test] <= share * most_s:
                    chosen.add(test)
                    took_s += self.seconds[test]
                    slowest[_file(test)] = max(self.seconds[test], slowest.get(_file(test), 0.0))
        return sorted(chosen, key=lambda test: (slowest[_file(test)], _file(test), turns[test]))


def _file(test: str) -> str:
    return test.partition("::")[0]


def _places(test: str) -> Iterator[str]:
    """Yield the file of a test, its class and its folders."""
    file, *inside, _ = test.split("[")[0].split("::")
    yield from (file, *(f"{file}::{name}" for name in inside), *map(str, Path(file).parents))


def _words(path: str) -> set[str]:
    return set(re.split(r"[/_.]", path)) - {"gpubench", "tests", "test", "py", ""}


# Start-up code of each process. Workers that SIGTERM ends take its default action back, without coverage's.
_SAVES = """
import os, signal, sys

counted = "coverage" in sys.modules and sys.modules["coverage"].Coverage.current()
usual, ending = signal.signal, (signal.SIGTERM, signal.SIG_DFL)


def leave(number, _):
    counted.save()
    usual(*ending)
    os.kill(os.getpid(), number)


if counted:
    signal.signal = lambda number, to: usual(number, leave if (number, to) == ending else to)
"""


def make_survey(jobs: int) -> None:
    """Run the whole suite in a copy of the tree, with each process counted, and keep which tests run which lines."""
    import coverage

    with tempfile.TemporaryDirectory(prefix="survey-") as folder:
        copy, rules = _copy(folder), Path(folder, "rules.ini")
        rules.write_text(
            f"[run]\ninclude = {copy}/gpubench/*\ndata_file = {folder}/lines\nparallel = true\nsigterm = true\n"
            "patch = _exit\ncontext = ${PYTEST_CURRENT_TEST-}\ndisable_warnings = no-data-collected,no-ctracer,"
            "module-not-measured,already-imported,module-not-imported,couldnt-parse,include-ignored\n",
            encoding="utf-8",
        )
        command = [
            sys.executable,
            "-m",
            "pytest",
            *["-p", "benchmarks.mutants", "-p", "no:cacheprovider", "-q"],
        ]
        command += [
            "-n",
            f"{jobs}",
            "--dist=worksteal",
            "-m",
            "not fuzz",
            "--hypothesis-profile=check",
            *LEFT_OUT,
        ]
        Path(folder, "sitecustomize.py").write_text(_SAVES, encoding="utf-8")
        paths = os.pathsep.join((str(copy), folder))
        env = os.environ | {"PYTHONPATH": paths, "CI": "true", "COVERAGE_PROCESS_START": str(rules)}
        subprocess.run(command, cwd=copy, env=env, check=False)
        counted = coverage.Coverage(config_file=str(rules))
        counted.combine()
        counted.save()
        notes = json.loads(Path(folder, "tests.json").read_text(encoding="utf-8"))
        modules = copy.rglob("gpubench/**/*.py")
        sources = {path.relative_to(copy).as_posix(): path.read_text(encoding="utf-8") for path in modules}
        SURVEY.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"{folder}/lines", SURVEY / "lines")
        notes |= {"folder": str(copy), "sources": sources}
        (SURVEY / "tests.json").write_text(json.dumps(notes), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Count: pytest loads this module for the survey."""
    config.pluginmanager.register(_Counted())


class _Counted:
    """A pytest plugin that tells coverage which test runs, and notes how long each takes."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def _switch(self, context: str) -> None:
        import coverage

        if counted := coverage.Coverage.current():
            counted.switch_context(context)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._switch(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self._switch("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """A fixture that tests share belongs to all of them."""
        if fixturedef.scope == "function":
            return (yield)
        variable = "PYTEST_CURRENT_TEST"
        test, shared = os.environ[variable], request.node.nodeid
        os.environ[variable] = shared
        self._switch(shared)
        try:
            return (yield)
        finally:
            os.environ[variable] = test
            self._switch(test.removesuffix(" (setup)"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            notes = Path(os.environ["COVERAGE_PROCESS_START"]).with_name("tests.json")
            notes.write_text(
                json.dumps({"seconds": self._seconds, "failed": sorted(self._failed)}), encoding="utf-8"
            )


def _copy(folder: str) -> Path:
    """Copy the tracked files of the tree into a new folder there."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in _list_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    return copy


_KNOWN: dict[str, float] = {}  # seconds of all tests


def _prepare(folder: str, seconds: dict[str, float]) -> None:
    """Prepare a process of the pool: copy the tree, and import packages that most tests use before any fork."""
    copy = _copy(folder)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "CI": "true"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.path[0] = str(copy)
    _KNOWN.update(seconds)
    for name in ("hypothesis", "hypothesis.strategies", "msgspec", "numpy"):
        __import__(name)


def _attempt(order: tuple[Mutant, list[str] | None]) -> tuple[Mutant, str, str]:
    """Return the mutant, its outcome and a note."""
    mutant, tests = order
    if why := _why_equivalent(mutant):
        return mutant, "equivalent", why
    if tests is None:
        return mutant, "unrun", ""
    count = len(tests)
    while tests:
        with _alter(mutant):
            failed = _pass(tests)
        if not failed:  # other programs may load the machine: are the unaltered tests in time?
            slow = failed is None and _pass(tests) == ""
            return mutant, ("too slow" if slow else "survived"), f"{count} tests"
        # What fails without the change, too, tells nothing.
        if (_pass([failed]) if failed in tests else _pass(tests, "--collect-only")) == "":
            return mutant, "killed", ""
        tests = tests[tests.index(failed) + 1 :] if failed in tests else []
    return mutant, "survived", f"{count} tests"


@contextlib.contextmanager
def _alter(mutant: Mutant) -> Iterator[None]:
    path = Path(mutant.file)
    original, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(mutant.source, encoding="utf-8")
    # Bytecode is that of a file's size and second: no two mutants have the same second.
    os.utime(path, (0, random.randrange(1 << 30)))
    try:
        yield
    finally:
        path.write_text(original, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _why_equivalent(mutant: Mutant) -> str:
    before, _, after = mutant.change.partition("  ->  ")
    entries = [entry for entry in EQUIVALENT if mutant.file.endswith(entry[0])]
    return next((why for _, line, part, why in entries if before.startswith(line) and part in after), "")


def _pass(tests: list[str], *options: str) -> str | None:
    """Run the tests in a fork until one fails. Return the one that fails, "-" for what is no test, "" if all pass, or
    None if they take too long."""
    note = Path(f"../failed-{os.getpid()}")
    note.write_text("-", encoding="utf-8")
    child = os.fork()
    if not child:
        _run(tests, note.absolute(), options)
    until = time.monotonic() + 4 * sum(_KNOWN[test] for test in tests) + 200
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return note.read_text(encoding="utf-8") if status else ""
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class _Chosen:
    """A pytest plugin that runs the chosen tests of their files, and those that the survey does not know."""

    def __init__(self, tests: list[str], note: Path) -> None:
        self._places, self._note = {test: place for place, test in enumerate(tests)}, note

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._places or item.nodeid not in _KNOWN]
        items[:] = sorted(chosen, key=lambda item: self._places.get(item.nodeid, len(self._places)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note.write_text(report.nodeid, encoding="utf-8")


def _run(tests: list[str], note: Path, more: tuple[str, ...]) -> None:
    """Run the tests in this forked process, and end it."""
    # With a group of its own, all its children can be ended with it.
    os.setsid()
    with open(os.devnull, "r+b") as nothing:
        for stream in (0, 1, 2):
            os.dup2(nothing.fileno(), stream)
    code = 1
    try:
        options = [*more, "-x", "-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-profile=check"]
        options += [f"--timeout={4 * max(_KNOWN[test] for test in tests) + 30:.0f}", "--timeout-method=signal"]
        code = pytest.main([*options, *dict.fromkeys(map(_file, tests))], plugins=[_Chosen(tests, note)])
        code = 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code
    finally:
        os._exit(int(code))


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # beside this module stands one with the name of a package
    sys.exit(main())
