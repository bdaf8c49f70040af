"""Whatever a document holds, it is reported or refused: never another exception, never beyond the bound of time.

`python benchmarks/fuzz.py` tries 100,000; `fuzzer.attempt(kind, seed, folder)` repeats one.
"""

import itertools
import os
from collections import Counter

import pytest

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
