"""Count the altered lines that no test notices.

Run: python benchmarks/mutants.py [PART ...] [--number N] [--seed S] [--jobs J] (default: 150 mutants of all
parts, some minutes). `--number 0` tries all mutants, and `--only gpubench/result/store/files.py:191` tries
those of one line.

A mutant is one small change of a module. The tests that run its line are tried first, the fastest before the
others; then all tests of its part. A survivor, which passes all of them, is printed as file, line and change.
It shows a missing test or unnecessary code. The exit code is 1 if 5 % or more survive. Texts for people are not
altered, because golden files contain them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 0.05
# The tests that check decisions in documents and reports.
REPORTS = (
    *(
        f"tests/unit/report/test_{name}.py"
        for name in ("decisions", "estimate", "answer", "formats")
    ),
    "tests/functions/test_python.py::test_an_answer_tells_what_it_rests_on",
)  # fmt: skip
# For each part: the files to alter, the narrow tests that have to notice, and wider tests for what the narrow
# ones pass.
PARTS = {
    "stats": (
        ("gpubench/curves/stats.py",), ("tests/unit/stats",),
        ("tests/unit/report/test_estimate.py", "tests/unit/report/test_compare.py", "tests/unit/report/test_noise.py"),
    ),
    "curves": (
        tuple(
            f"gpubench/curves/{name}.py"
            for name in ("relatives", "threshold", "time_curve")
        ),
        ("tests/unit/curves",), ("tests/unit/report/test_derived.py", "tests/unit/report/test_advise.py"),
    ),
    "passes": (
        tuple(f"gpubench/measure/{name}.py" for name in ("passes", "points")),
        ("tests/unit/measure/test_passes.py",), (),
    ),
    "plan": (("gpubench/measure/plan.py",), ("tests/unit/measure/test_plan.py",), ("tests/unit/measure",)),
    "store": (("gpubench/result/store",), ("tests/unit/store",), ()),
    "compare": (
        ("gpubench/compare",),
        ("tests/unit/report/test_compare.py", "tests/unit/report/test_noise.py"),
        REPORTS,
    ),
    "estimate": (
        tuple(f"gpubench/analysis/{name}.py" for name in ("estimate", "speedup")),
        tuple(f"tests/unit/report/test_{name}.py" for name in ("estimate", "derived")),
        REPORTS,
    ),
    "advice": (
        tuple(f"gpubench/analysis/{name}.py" for name in ("advice", "contenders", "policy", "claims")),
        tuple(f"tests/unit/report/test_{name}.py" for name in ("advise", "claims")),
        REPORTS,
    ),
    "report": (
        ("gpubench/report",),
        tuple(
            f"tests/unit/report/test_{name}.py"
            for name in (
                "formats", "answer", "sections", "charts", "derived", "estimate", "advise", "claims",
                "command", "ci", "html",
            )
        ),
        (
            "tests/consumers/test_go_text.py", "tests/consumers/test_tools.py",
            "tests/unit/workloads/test_stages.py",
            "tests/unit/multi/test_collectives.py",
            "tests/unit/fleet/test_survey.py",
            "tests/functions/test_reports.py::test_a_comparison_says_that_the_text_changed_and_by_how_much_the_results",
        ),
    ),
    "hybrid": (
        ("gpubench/backends/hybrid.py", "gpubench/backends/shared/pieces.py", "gpubench/backends/shared/sides.py"),
        ("tests/unit/backends/test_hybrid_parts.py", "tests/conformance/test_hybrid.py"),
        (
            "tests/unit/multi/test_device_groups.py", "tests/fake/test_hybrid_run.py", "tests/fake/test_pipelines.py",
            "tests/unit/workloads/test_workloads.py",
        ),
    ),
    "shared": (
        (
            *(
                f"gpubench/backends/shared/{name}.py"
                for name in ("blocks", "choices", "host", "memory", "peaks", "reference")
            ),
            "gpubench/backends/__init__.py", "gpubench/backends/contract",
        ),
        tuple(
            f"tests/unit/backends/test_{name}.py"
            for name in ("backends", "choices", "cuda_memory", "host", "peak_wgsl", "reference")
        ),
        (
            "tests/unit/measure/test_peaks.py", "tests/fake/test_foreign_backend.py",
            "tests/unit/kernels/test_cpu_kernels.py",
            "tests/unit/measure/test_gate.py",
            "tests/vulkan/test_in_place.py",
        ),
    ),
    "numpy": (
        tuple(f"gpubench/backends/numpy/{name}.py" for name in ("__init__", "compiled", "machine_code")),
        ("tests/unit/kernels/test_cpu_kernels.py", "tests/unit/backends/test_hybrid_parts.py"),
        (
            "tests/unit/backends/test_backends.py", "tests/faults/test_cache.py",
            "tests/conformance/test_built_in_backends.py",
        ),
    ),
    "wgpu": (
        tuple(f"gpubench/backends/wgpu/{name}.py" for name in ("__init__", "programs", "queues", "transfers")),
        ("tests/unit/backends/test_wgpu.py",),
        ("tests/vulkan/test_queues.py", "tests/vulkan/test_in_place.py", "tests/vulkan/test_transfers.py"),
    ),
    "functions": (
        tuple(
            f"gpubench/functions/{name}.py"
            for name in ("declare", "describe", "loading", "session", "sources", "trial")
        ),
        ("tests/functions/test_describe.py",),
        tuple(
            f"tests/functions/test_run.py::test_{name}"
            for name in (
                "a_file_that_cannot_be_used", "pairs_of_any_objects", "what_is_wrong_with_a_function_costs_it_alone",
                "files_modules_and_ops_in_one_run", "names_that_nothing_has",
            )
        ),
    ),
    "nouns": (
        tuple(
            f"gpubench/analysis/{name}.py"
            for name in (
                "analyse", "answer", "samples", "winners", "thresholds", "hybrid", "roofline", "findings", "machine",
            )
        ),
        tuple(
            f"tests/unit/report/test_{name}.py"
            for name in (
                "estimate", "derived", "advise", "answer", "charts", "ci",
            )
        ),
        (*REPORTS, "tests/detect/test_mode.py", "tests/fake/test_pipelines.py"),
    ),
    "detect": (
        ("gpubench/detect",), ("tests/detect",),
        ("tests/unit/measure/test_monitor.py",),
    ),
    "templates": (
        ("gpubench/kernels/templates",),
        ("tests/unit/kernels/test_declarations.py", "tests/functions/test_formula.py"), ("tests/unit/kernels",),
    ),
    "workloads": (
        ("gpubench/workloads",), ("tests/unit/workloads",),
        ("tests/fake/workloads", "tests/unit/report/test_derived.py"),
    ),
    "multi": (("gpubench/multi",), ("tests/unit/multi",), ("tests/fake/multi",)),
    "energy": (("gpubench/energy",), ("tests/unit/energy",), ("tests/fake/energy", "tests/cli/test_refusals.py")),
    "fleet": (("gpubench/fleet",), ("tests/unit/fleet", "tests/cli/fleet"), ("tests/unit/report/test_decisions.py",)),
    "running": (
        tuple(
            f"gpubench/measure/{name}.py"
            for name in ("runner", "case_run", "schedule", "budget", "recorder", "worker_pool")
        ),
        ("tests/unit/measure",),
        tuple(
            f"tests/fake/test_{name}.py"
            for name in (
                "passes_run", "sessions", "measuring", "accidents", "append", "hybrid_run", "foreign_backend",
            )
        ),
    ),
    "devices": (
        tuple(
            f"gpubench/measure/{name}.py"
            for name in ("targets", "adapters", "monitor", "monitor_child", "scratch")
        ),
        ("tests/unit/measure", "tests/unit/energy"),
        ("tests/fake/test_throttling.py", "tests/fake/test_foreign_backend.py"),
    ),
    "worker": (
        ("gpubench/measure/worker", "gpubench/measure/protocol.py"), ("tests/unit/measure",),
        (
            *(
                f"tests/fake/test_{name}.py"
                for name in ("worker", "pipelines", "overheads", "measuring", "mutants", "in_place")
            ),
            "tests/conformance/test_hybrid.py", "tests/functions/test_describe.py", "tests/functions/test_planted.py",
            "tests/fake/workloads/test_assignment_run.py::test_a_check_times_neither_side",
        ),
    ),
    "conformance": (
        ("gpubench/measure/conformance.py",), ("tests/conformance/test_suite_finds.py",),
        ("tests/conformance/test_built_in_backends.py",),
    ),
    "cli": (
        (
            *(
                f"gpubench/cli/{name}.py"
                for name in ("ci", "command", "declaration", "delivery", "progress", "request", "resume", "selection")
            ),
            "gpubench/base",
        ),
        (
            *(
                f"tests/cli/test_{name}.py" for name in ("config", "errors", "help", "presets", "progress", "refusals")
            ),
            "tests/unit/base", "tests/unit/report/test_command.py", "tests/unit/report/test_ci.py",
        ),
        (
            "tests/unit/report/test_formats.py", "tests/cli/test_ci.py", "tests/cli/test_run.py",
            "tests/fake/test_append.py", "tests/faults/test_limits.py", "tests/faults/test_package_clash.py",
            "tests/faults/test_plugins.py",
            "tests/faults/test_failing_disk.py::test_the_result_is_rescued_and_the_message_names_both_places",
        ),
    ),
    "ops": (
        (
            *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("gpubench/kernels/*.py"))),
            "gpubench/kernels/contract",
        ),
        tuple(
            f"tests/unit/kernels/test_{name}.py"
            for name in ("declarations", "layers", "cuda_sources", "wgsl_sources", "matmul", "tokenise")
        ),
        ("tests/faults/test_plugins.py", "tests/fake/test_worker.py"),
    ),
    "native": (
        ("gpubench/backends/numpy/native.py",), ("tests/unit/kernels/test_cpu_kernels.py",), (),
    ),
    "torch": (
        ("gpubench/backends/torch.py",), ("tests/unit/backends/test_torch_devices.py",), ("tests/torch",),
    ),
    "hidden": (
        ("gpubench/backends/hidden",), ("tests/conformance/test_suite_finds.py",),
        tuple(
            f"tests/fake/test_{name}.py"
            for name in ("measuring", "sessions", "overheads", "pipelines", "throttling")
        ),
    ),
    "types": (
        tuple(f"gpubench/result/{name}.py" for name in ("case", "identity", "machine", "run")),
        (
            "tests/unit/store/test_document.py", "tests/unit/report/test_selectors.py",
            "tests/unit/report/test_compare.py", "tests/unit/measure/test_recorder.py",
            "tests/unit/fleet/test_merging.py", "tests/unit/backends/test_reference.py",
            "tests/unit/multi/test_device_groups.py::test_an_id_names_its_ranks",
        ),
        (
            "tests/detect/test_mode.py", "tests/unit/report/test_estimate.py",
            "tests/functions/test_python.py::test_each_name_that_a_reader_sees_is_taken",
            "tests/functions/test_reports.py::test_a_name_that_another_op_has_is_no_own_name",
        ),
    ),
    "commands": (
        (
            *(
                f"gpubench/cli/{name}.py"
                for name in (
                    "__init__", "advise", "check", "compare", "detect", "exit", "noise", "ops", "options", "report",
                    "run", "schema",
                )
            ),
            "gpubench/api.py",
        ),
        ("tests/cli", "tests/unit/report/test_command.py"),
        ("tests/functions/test_python.py", "tests/unit/report/test_advise.py", "tests/detect/test_command.py"),
    ),
}  # fmt: skip
# Changes without an effect that a test could notice, by file: the beginning of the line, a text in the changed line
# (empty: any), and the reason.
# fmt: off
EQUIVALENT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "backends/shared/reference.py": (
        ("name = hashlib", "[:17]", "any number of digits that tells keys apart will do"),
        ("if op.blas or rows <= step:", "rows < step", "one slice is the whole"),
        ("within = largest <=", "<", "no largest error is that very number"),
    ),
    "kernels/templates/reduce.py": (
        ("_UNROLL = ", "", "loads in flight change no result"),
    ),
    "kernels/templates/formula.py": (
        ("return (words, 4 if", "4 if operand < 1 else 5", "brackets about a number change no value"),
    ),
    "functions/sources.py": (
        ("disk.read_regular(path, 0)", "", "a byte that is read and not looked at"),
    ),
    "functions/session.py": (
        ("if kinds.isdisjoint(", "< {*'biufc'}", "two kinds are never all five"),
        ("if not {got.dtype.kind", "< {*'biu'}", "two kinds are never all three"),
    ),
    "energy/section.py": (
        ("columns = heads(", "at rest', 3", "any rank beyond the others' goes first"),
        ("side: Tone = 'gpu' if", "> 1", "no two energies are the same"),
        ("ROWS = ", "order=136", "any number between its neighbours' will do"),
        ("return msgspec.structs.replace(", "next_j >= CLOSE", "no energy is that very multiple of another"),
    ),
    "energy/windows.py": (
        ("STEPS, LEAST_S, MOST_S = ", "", "more steps, and longer or shorter windows, give the same mean"),
        ("IDLE_S = ", "", "a time at rest of any length will do"),
        ("WARM_UP_S = ", "", "a time to settle of any length will do"),
        ("AHEAD_S = ", "", "any start that is still to come will do"),
        ("READ_EVERY_S = ", "", "read more or less often, a counter counts the same"),
        ("inside = [", "begin_s < reading.t_s", "nothing is read at that very moment"),
        ("inside = [", "t_s < end_s", "nothing is read at that very moment"),
        ("return lack('the case broke", "", "the failure of the case takes its place"),
    ),
    "measure/passes.py": (
        ("late = shortest > ", ">=", "no time is that very multiple of another"),
        ("fitting = sorted(", "cost_s < left_s", "no step takes the very time that is left"),
        ("if not wishes or wishes[0].cost_s", ">= left_s", "no step takes the very time that is left"),
    ),
    "report/charts.py": (
        ("DASHES = ", "", "any dashes that tell the lines apart will do"),
        ("OTHER_DASH = ", "", "any dashes that tell the lines apart will do"),
    ),
    "base/processes.py": (
        ("return [*own, *(child for parent in own", "return None", "psutil is asked instead, which says the same"),
    ),
    "base/plugins/containment.py": (
        ("mask = os.umask(", "", "no file is made before the mask is set back"),
    ),
    "backends/shared/blocks.py": (
        ("self.written[start:", "+= 2", "any write empties a cache"),
    ),
    "backends/shared/host.py": (
        ("while others_run()", "<= end", "no look ends at that very moment"),
        ("step = max(1, SLICE", "max(2", "rows are as right two by two"),
        ("memory = np.empty(size + 64", "65", "a byte more is touched by nobody"),
    ),
    "backends/hybrid.py": (
        ("CHUNK = 8", "", "one launch more in a submit changes no result"),
    ),
    "backends/shared/sides.py": (
        ("if stop - start < op.units", "<=", "a part of all units has the op's own params"),
    ),
    "curves/time_curve.py": (
        ("if not ", "x < self.last + 1e-09", "no size lies at that very distance"),
        ("if not ", "1.5000000000000002e-09", "no size lies at that very distance"),
        ("gap: tuple[float, float]", "", "without a jump nobody asks for its gap"),
        ("steps = max(1,", "1.5000000000000002e-09", "no size lies at that very distance"),
        ("if excess ** 2 <= sure", "< sure", "no excess has that very square"),
    ),
    "compare/two_runs.py": (
        ("sides = [(b, a) if flip", "not flip", "of two mirror images either one will do"),
    ),
    "compare/judge.py": (
        ("return distance * math.sqrt(", "len(new) * (len(base)",
         "as many runs stand about each place, so their sum orders nothing"),
        ("values = [value - centre", "+ centre", "moving all values changes no difference of means"),
    ),
    "analysis/contenders.py": (
        ("return any((low <= n <= high", "(low < n <= high", "no size is that very place"),
        ("return any((low <= n <= high", "(low <= n < high", "no size is that very place"),
        ("key = (key[0], device_id", "key[1]", "a key of its own in its group, as well"),
    ),
    "analysis/advice.py": (
        ("return 'clear' if wrong", "wrong < CLEAR", "no probability is that very number"),
        ("return 'clear' if wrong", "cost < HIGHEST", "no cost is that very number"),
    ),
    "analysis/speedup.py": (
        ("return math.sqrt((self.lo", "or 2)", "a bracket has both ends, and none is 0"),
    ),
    "analysis/winners.py": (
        ("largest = 0.0 if cell.gain", "1.0 if", "any key above all negative ones will do"),
    ),
    "curves/threshold.py": (
        ("if low > high + 1e-09", "1.5", "no two ends lie so close to each other"),
        ("if stretches and stretches", ">= begin", "no two ends lie so close to each other"),
        ("if stretches and stretches", "1.5000000000000002e-09", "no two ends lie so close to each other"),
        ("return math.exp(x) if math.isfinite(x)", "x <= 0", "what is not finite is not 0"),
        ("inside = sorted(", "1e-09 < x", "no size lies at that very distance"),
        ("for i in range(steps + 1)", "steps + 2", "beyond the last size no curve is looked at"),
    ),
    "measure/case_run.py": (
        ("PAUSES_S = ", "", "pauses of any length will do"),
    ),
    "report/renderers/html/__init__.py": (
        ("MOST_SAMPLES = ", "", "a bound with room on both sides; a test holds what is done at it"),
        ("MOST_CASES = ", "", "a bound with room on both sides; a test holds what is done at it"),
    ),
    "analysis/machine.py": (
        ("MOST_FILES = ", "", "a bound with room on both sides; a test holds what is done at it"),
    ),
    "detect/facts.py": (
        ("raise ValueError(", "[:41]", "a letter more of a quoted text tells as much"),
    ),
    "detect/recommend.py": (
        ("MOST_FILES = ", "", "a bound with room on both sides; a test holds what is done at it"),
    ),
    "report/sections/machines.py": (
        ("_WIDE = ", "", "an axis of about that span is read with either ticks"),
    ),
    "report/sections/break_even.py": (
        ("ROWS = ", "order=31", "any number between its neighbours' will do"),
    ),
    "backends/numpy/__init__.py": (
        ("self.limits = Limits(", "max_binding_bytes=2 * 62", "nothing is bound on a CPU"),
    ),
    "measure/conformance.py": (
        *((f"{name} = ", "", "any other size or number of about that will do")
          for name in ("VECTOR_SIZES", "MATRIX_SIZES", "LARGE_BYTES", "PERIOD", "MOST_FLOPS", "REUSES")),
        ("LONG_LAUNCH_S = ", "", "a little longer is long enough as well"),
        ("_UNLIMITED = ", "2 <<", "no device has so much memory"),
        ("_UNLIMITED = ", "<< 61", "no device has so much memory"),
        ("seeds: Sequence[int] = ", "", "inputs of any seed will do"),
        ("self.round_trip(", "self.round_trip(", "any other size or number of about that will do"),
        ("for count in (1, 257", "", "any other size or number of about that will do"),
        ("session, host = (self.session, _draw(", "", "any other size or number of about that will do"),
    ),
    "backends/numpy/compiled.py": (
        ("written = path.stat().st_size", "> 1", "a mark has more than a byte"),
    ),
    "measure/worker_pool.py": (
        ("OPEN_DEADLINE_S = ", "", "a deadline with room on both sides"),
        ("PEAK_DEADLINE_S = ", "", "a deadline with room on both sides"),
        ("COMPILES_S = ", "", "any time that no call takes and each compilation does will do"),
    ),
    "measure/recorder.py": (
        ("GIT_LIMIT_S = ", "", "a deadline with room on both sides"),
    ),
    "measure/worker/hardware.py": (
        ("TIMINGS, TIMINGS_OF_LONG", "", "one timing more or less moves no rate that the tests could see"),
    ),
    "measure/worker/pipeline.py": (
        ("self.last_inputs[place] = (place", "- number", "the sets take turns in either order"),
    ),
    "measure/worker/operands.py": (
        ("GUARD = ", "65", "an element more behind the longest input does as well"),
        ("_SHARED_SHARE = ", "", "any small share of the memory will do"),
        ("_WEIGHTS_SHARE, _WEIGHTS_BYTES = ", "", "any small share of the memory will do"),
    ),
    "curves/relatives.py": (
        ("reduces = all(", "written <= ", "no whole number of bytes is that very share"),
    ),
    "curves/stats.py": (
        ("FARTHEST = ", "", "a factor of e^100 is as good as any larger one"),
        ("MOST_EXACT = ", "", "on either side of the limit both ways give the same digits"),
        ("if n > MOST_EXACT:", ">=", "on either side of the limit both ways give the same digits"),
    ),
    "result/run.py": (
        ("LINK_BYTES = ", "", "a bound with room on both sides"),
    ),
    "result/store/cache.py": (
        ("_MOST_BYTES = ", "", "a bound with room on both sides"),
        ("disk.replace_file(", "mode=421", "what others run of it does no harm"),
        ("disk.replace_file(", "lasting=True", "slower, and lost by fewer power cuts"),
    ),
    "result/store/files.py": (
        ("data = gzip.compress(data, mtime=0)", "mtime=1", "any time that is always the same will do"),
        ("return data[:end]", "return None", "then the whole file is read, which says the same"),
        ("parts, rest = ", "+ 2", "any byte too many is too many"),
        ("data = _read_standard_input() if", "+ 2", "any byte too many is too many"),
        ("_PIECE = ", "", "pieces of any size add up"),
        ("_HEAD_PIECE, _MOST_HEAD = ", "", "a head is found, or the whole file is read, which says the same"),
    ),
    "result/store/document.py": (
        ("MAX_", "", "bounds with room on both sides; tests hold what is done at each of them"),
        ("require(source, 'bytes in one", "default=1", "no text is within every limit"),
        ("devices = max(", "default=1", "no run is within every limit"),
    ),
    "result/store/journal.py": (
        ("self._flushed = 0.0", "= 1.0", "any time long ago"),
        ("os.ftruncate(self._file, 0)", "1)", "the byte that stays is written over"),
    ),
    "workloads/training.py": (
        ("reads[2] = x @ w", "b - margin", "one training goes up and one down, whichever is first"),
    ),
    "detect/merge.py": (
        ("return (record.ordinal, '') if", "2 << 30", "any number beyond all ordinals will do"),
        ("return 0 if record.adapter_type in kinds", "else 3 if other", "any number beyond 1 comes last"),
    ),
    "fleet/survey.py": (
        ("slow = [_verdict(", "threshold or 1.0", "in a group without a threshold none falls short"),
    ),
    "workloads/chains.py": (
        ("LONG_S = ", "", "how long is long moves no result"),
        ("TOGETHER = ", "", "any number that a device has stamps for will do"),
    ),
    "multi/identical_gpus.py": (
        ("", "id=1", "the worker's next number replaces it"),
    ),
    "backends/wgpu/transfers.py": (
        ("self._aside = ThreadPool", "(2)", "two threads copy what one copies"),
    ),
    "multi/device_group.py": (
        ("limits = Limits(", "41", "no buffer is so large"),
        ("limits = Limits(", "2 << 40", "no buffer is so large"),
        ("GUARD = ", "", "a guard that is longer by one sees as much"),
        ("PIECE = ", "25", "pieces of any length make the same whole"),
        ("PIECE = ", "2 <<", "pieces of any length make the same whole"),
        ("FETCHED_BYTES = ", "65", "the host and the device compare alike"),
        ("FETCHED_BYTES = ", "21", "the host and the device compare alike"),
        ("if held.nbytes <= FETCHED", "< FETCHED", "the host and the device compare alike"),
        ("if size <= INLINE", "< INLINE", "one thread and several move the same"),
        ("WARM_UP = ", "", "one exchange more warms up as well"),
    ),
    "multi/scaling.py": (
        ("SLICES = ", "", "one slice more scatters as much"),
    ),
}
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

    part: str  # its key in PARTS
    file: str  # path from the root of the repository
    line: int  # number of the changed line
    change: str  # change in words
    source: str  # new text of the whole file

    @property
    def text(self) -> str:
        """The file, the line and the change in words."""
        return f"{self.file}:{self.line}: {self.change}"


def draw(parts: list[str], only: tuple[str, ...], number: int, seed: int) -> tuple[list[Mutant], int]:
    """Return `number` random mutants (0: all), and the number of all changes from which they were drawn. If `only` is
    not empty, `Mutant.text` must begin with one of its texts."""
    files = [(part, file) for part in parts for file in _files(part)]
    if only:
        near = [
            (part, file)
            for part, file in files
            if file.startswith(only) or file in {text.partition(":")[0] for text in only}
        ]
        every = [
            mutant for part, file in near for mutant in mutants(part, file) if mutant.text.startswith(only)
        ]
        return random.Random(seed).sample(every, min(number or len(every), len(every))), len(every)
    changes = [(part, file, place) for part, file in files for place in range(len(list(_changes(_tree(file)))))]
    drawn = random.Random(seed).sample(changes, min(number or len(changes), len(changes)))
    places: dict[tuple[str, str], set[int]] = {}
    for part, file, place in drawn:
        places.setdefault((part, file), set()).add(place)
    return [mutant for names, chosen in places.items() for mutant in mutants(*names, chosen)], len(changes)


def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def mutants(part: str, file: str, chosen: Container[int] = range(sys.maxsize)) -> list[Mutant]:
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
        alterations.append(Mutant(part, file, line, f"{before}  ->  {after}", source))
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
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--number", type=int, default=150, help="mutants of all parts together; 0: every one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="those whose `file:line: change` begins so"
    )
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    if wrong := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(wrong))}")
    parts = options.parts or list(PARTS)
    tried, count = draw(parts, tuple(options.only or ()), options.number, options.seed)
    outcomes: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        with context.Pool(options.jobs, _prepare, (folder, tracked.split("\0"))) as pool:
            runs = list(dict.fromkeys(tests for part in parts for tests in PARTS[part][1:] if tests))
            surveys = dict(zip(runs, pool.imap(_survey, runs), strict=True))
            orders = [(mutant, _runs(mutant, surveys)) for mutant in tried]
            for mutant, outcome in pool.imap_unordered(_attempt, orders):
                outcomes[mutant.part, outcome] += 1
                if outcome in ("survived", "equivalent"):
                    why = f"  ({_why_equivalent(mutant)})" if outcome == "equivalent" else ""
                    print(f"{outcome}: {mutant.text}{why}", flush=True)
    print(_table(parts, outcomes))
    print(f"\n{len(tried)} of {count} mutants, seed {options.seed}, {time.monotonic() - began:.0f} s.")
    survived = sum(count for (_, outcome), count in outcomes.items() if outcome == "survived")
    return 1 if survived >= LIMIT * len(tried) else 0


def _files(part: str) -> list[str]:
    paths = []
    for place in PARTS[part][0]:
        path = ROOT / place
        paths += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def _table(parts: list[str], outcomes: Counter[tuple[str, str]]) -> str:
    kinds = ("killed", "too slow", "equivalent", "survived")
    lines = ["", f"| part | tried | {' | '.join(kinds)} | share |", "|---" * 7 + "|"]
    for part in [*parts, "**all**"]:
        counts = [
            sum(n for (p, o), n in outcomes.items() if o == kind and part in (p, "**all**")) for kind in kinds
        ]
        tried = sum(counts)
        share = f"{counts[-1] / tried:.1%}" if tried else "-"
        lines.append(f"| {part} | {tried} | {' | '.join(map(str, counts))} | {share} |")
    return "\n".join(lines)


def _prepare(folder: str, tracked: list[str]) -> None:
    """Prepare a process of the pool: copy the tree, and import packages that most tests use before any fork."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    os.chdir(copy)
    # Cached bytecode could hide the change of a module, because the file may have the same size and second.
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    sys.dont_write_bytecode = True
    sys.path[0] = str(copy)
    for name in ("pytest", "hypothesis", "hypothesis.strategies", "msgspec", "numpy"):
        __import__(name)


@dataclass(frozen=True)
class Survey:
    """The results of the unaltered tests."""

    together_s: float  # seconds of all tests together
    each_s: dict[str, float]  # seconds of each test
    tests: dict[str, dict[int, list[str]]]  # by file and line, the tests that run the line


def _survey(tests: tuple[str, ...]) -> Survey:
    """Run the unaltered tests, which must pass, and record the lines that each runs."""
    notes = Path(f"survey-{os.getpid()}.json")
    began = time.monotonic()
    if _pass(tests, 1800, notes) is not True:
        raise RuntimeError(f"without any change these tests fail: {' '.join(tests)}")
    each_s, lines = json.loads(notes.read_text(encoding="utf-8"))
    by_line = {
        file: {int(line): names for line, names in by_number.items()} for file, by_number in lines.items()
    }
    return Survey(time.monotonic() - began, each_s, by_line)


class _Counted:
    """A pytest plugin that records the lines that each test runs."""

    def __init__(self, notes: Path) -> None:
        import coverage

        self._kept, self._each_s, self._began = notes, dict[str, float](), 0.0
        places = [os.path.abspath(place) for files, *_ in PARTS.values() for place in files]
        places += [f"{place}/*" for place in places]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=places)
        self._coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)
        self._began = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._each_s[nodeid] = time.monotonic() - self._began
        self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            os.path.relpath(file): {
                line: sorted(filter(None, names)) for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        self._kept.write_text(json.dumps([self._each_s, lines]), encoding="utf-8")


def _runs(mutant: Mutant, surveys: dict[tuple[str, ...], Survey]) -> list[tuple[tuple[str, ...], float]]:
    """Return pairs (tests, deadline in seconds) in the order in which they are run."""
    own = [(tests, surveys[tests]) for tests in PARTS[mutant.part][1:] if tests]
    reach = _statement(mutant)
    running: dict[str, float] = {}
    for _, survey in own:
        by_line = survey.tests.get(mutant.file, {})
        running |= {name: survey.each_s[name] for line in reach for name in by_line.get(line, ())}
    first = tuple(sorted(running, key=running.__getitem__))
    runs = [(first, sum(running.values()))] if first else []
    return [(tests, 4 * took + 10) for tests, took in [*runs, *((test, s.together_s) for test, s in own)]]


def _statement(mutant: Mutant) -> range:
    """Return the lines of the altered statement, or the lines of its head if it is a compound statement."""
    extent = range(mutant.line, mutant.line + 1)
    for node in ast.walk(ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            extent = range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1)
    return extent


def _attempt(order: tuple[Mutant, list[tuple[tuple[str, ...], float]]]) -> tuple[Mutant, str]:
    mutant, runs = order
    if _why_equivalent(mutant):
        return mutant, "equivalent"
    path = Path(mutant.file)
    original = path.read_text(encoding="utf-8")

    def run(tests: tuple[str, ...], deadline_s: float) -> bool | None:
        path.write_text(mutant.source, encoding="utf-8")
        try:
            return _pass(tests, deadline_s)
        finally:
            path.write_text(original, encoding="utf-8")

    for tests, deadline_s in runs:
        outcome = run(tests, deadline_s)
        if outcome is None:  # other programs may load the machine: how long do the unaltered tests take now?
            began = time.monotonic()
            _pass(tests, 10 * deadline_s)
            outcome = run(tests, 4 * (time.monotonic() - began) + 10)
        if not outcome:
            return mutant, "killed" if outcome is False else "too slow"
    return mutant, "survived"


def _why_equivalent(mutant: Mutant) -> str:
    before, _, after = mutant.change.partition("  ->  ")
    rows = EQUIVALENT.get(mutant.file.removeprefix("gpubench/"), ())
    reasons = (why for line, part, why in rows if before.startswith(line) and part in after)
    return next(reasons, "")


def _pass(tests: tuple[str, ...], deadline_s: float, survey: Path | None = None) -> bool | None:
    """Run the tests in a fork until one fails. Return whether all pass, or None if they take too long."""
    child = os.fork()
    if not child:
        _run(tests, survey)
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run(tests: tuple[str, ...], survey: Path | None) -> None:
    """Run the tests in this forked process, and end it."""
    # With a group of its own, all its children can be ended with it.
    os.setsid()
    with open(os.devnull, "r+b") as nothing:
        for stream in (0, 1, 2):
            os.dup2(nothing.fileno(), stream)
    code = 1
    try:
        import pytest

        options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-profile=check"]
        code = pytest.main([*options, *tests], plugins=[_Counted(survey)] if survey else [])
    finally:
        os._exit(int(code))


if __name__ == "__main__":
    sys.exit(main())
