"""A leak grows in both halves; a cache or an arena that fills once is none."""

import os

from benchmarks import leak_traces as leaks
from gpubench import backends, kernels
from gpubench.result.case import Case


def test_a_file_forgotten_in_each_launch_is_found(tmp_path):
    op = kernels.load("add")
    session = backends.load("numpy").open("numpy:0")
    kept = []
    whole = session.run
    session.run = lambda launch, repeat=1: (kept.append(open(os.devnull)), whole(launch, repeat))  # noqa: SIM115
    case = Case("add", "vector", {"n": 1000}, "float32", "library", "resident", "numpy:0")
    try:
        found = leaks.launches(session, op, case, tmp_path, leaks.Repeats(1000))
    finally:
        session.close()
        for file in kept:
            file.close()
    assert found.count == 1000
    assert [text.partition(" ")[0] for text in found.leaks()] == ["handles"]
