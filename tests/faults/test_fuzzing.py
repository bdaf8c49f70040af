"""Whatever a document holds, it is reported or refused: never another exception, never beyond the bound of time.

`python benchmarks/fuzz.py` tries 100,000; `fuzzer.attempt(kind, seed, folder)` repeats one."""

import copy
import gzip
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpubench import report
from gpubench.base.errors import GpubenchError
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.report.layout import RenderOptions
from gpubench.result import store
from tests.faults import fuzzer

COUNT = 3000
PARTS = 20  # that workers of pytest take side by side; the first is in `make test`
# Other seeds every day would be a test that fails by luck: who wants some sets the variable.
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "20260101"))


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.fuzz) for part in range(1, PARTS))])
def test_spoiled_documents_are_reported_or_refused(tmp_path, part):
    share = COUNT // PARTS
    inputs = itertools.islice(fuzzer.inputs(COUNT, FIRST_SEED), part * share, (part + 1) * share)
    tried = [fuzzer.attempt(kind, seed, tmp_path) for kind, seed in inputs]
    failures = [f"{one.kind}, seed {one.seed}: {one.why}" for one in tried if one.outcome == "failed"]
    assert not failures, "\n".join(failures)
    assert {one.kind for one in tried} == set(fuzzer.KINDS)
    # A fuzzer whose documents all end at the decoder says nothing of what comes after it.
    outcomes = Counter(one.outcome for one in tried)
    assert min(outcomes["reported"], outcomes["refused"]) > len(tried) / 5, outcomes


# ---------------------------------------------------------------------- a zero, or a list that is cut, in any place


RESULTS = Path(__file__).parents[2] / "results"
# Assigned stages; stages; a split; identical GPUs; GPUs that work together.
STORED = "20261124T104405Z-f972ed75 20261123T175721Z-079482ca 20261124T200505Z-377ffcce 20261124T193435Z-a67af8ce".split()
PLACES = "assignment_times stages identical_gpus together beside_s gpu_share parts params flops bytes".split()


def small(name):
    """The stored result with the cases of one op and size alone."""
    (path,) = RESULTS.glob(f"*/{name}.json.gz")
    document = json.loads(gzip.decompress(path.read_bytes()))
    outcomes = document["outcomes"]
    chosen = next((o["case"] for o in outcomes if o.get("stages") or o.get("assignment_times")),
                  outcomes[0]["case"])  # fmt: skip
    wanted = chosen["op"], chosen["params"]
    document["outcomes"] = [o for o in outcomes if (o["case"]["op"], o["case"]["params"]) == wanted]
    return document


def places(value, path=()):
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def spoiled(document, wanted, change):
    """The document with one kind of value changed, kind by kind."""
    kinds = {}
    for path, value in places(document):
        if path and wanted(value) and any(key in PLACES for key in path):
            kinds.setdefault(tuple(str(key) if isinstance(key, str) else "#" for key in path), []).append(path)
    for kind, paths in kinds.items():
        changed = copy.deepcopy(document)
        for path in paths:
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = change(holder[path[-1]])
        yield ".".join(kind), changed


CHANGES: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any]]] = {
    "zero": (lambda value: isinstance(value, int | float) and not isinstance(value, bool), lambda value: 0),
    "empty": (lambda value: isinstance(value, list | dict) and bool(value), lambda value: type(value)()),
    "cut": (lambda value: isinstance(value, list) and bool(value), lambda value: value[:-1])}  # fmt: skip


@pytest.mark.parametrize("how", CHANGES)
def test_it_is_reported_or_refused(how):
    """Each kind of value once, in the first result that has it."""
    broken, tried = [], set()
    for name in STORED:
        document = small(name)
        whole = store.loads(json.dumps(document).encode(), "whole")
        for what, changed in spoiled(document, *CHANGES[how]):
            if what in tried:
                continue
            tried.add(what)
            try:
                run = store.loads(json.dumps(changed).encode(), "changed")
                for form in ("plain", "json"):
                    report.draw_report(report.analyse_runs([run]), form, RenderOptions())
                compare(("base", whole), [("new", run)], CompareOptions())
            except GpubenchError:
                continue
            except Exception as error:
                broken.append(f"{name}: {what}: {type(error).__name__}: {error}")
    assert not broken, "\n".join(broken)
