"""BLAS and its threads: asked where they are in doubt, and a warning where they do not fit."""

import json
import os

import pytest

from gpubench.detect import picture
from gpubench.detect.cpu import blas_warnings, doubtful_blas
from gpubench.detect.facts import make_fact
from gpubench.result.machine import NOT_PROBED, Cpu, CpuBlas, Machine


def cpu(available=8, limited_by="online", threads=None):
    blas = (
        make_fact([CpuBlas(library="openblas", version="0.3", threads=threads)], "blas")
        if threads
        else NOT_PROBED
    )
    return Cpu(available=make_fact(available, "t"), limited_by=make_fact(limited_by, "t"), blas=blas)


@pytest.mark.parametrize(
    ("machine", "environ", "asked"),
    [(cpu(), {}, False), (cpu(limited_by="affinity"), {}, False), (cpu(limited_by="quota"), {}, True), (cpu(limited_by="cpuset"), {}, True),
     (cpu(available=96), {}, True), (cpu(), {"OMP_NUM_THREADS": "1"}, True), (cpu(), {"OMP_NUM_THREADS": ""}, False), (Cpu(), {}, False)],
)  # fmt: skip
def test_the_blas_is_asked_where_its_threads_may_not_fit(machine, environ, asked):
    assert doubtful_blas(machine, environ) is asked


@pytest.mark.parametrize("threads", [1, 64])
def test_threads_that_do_not_fit_are_told_with_the_variable_that_helps(threads):
    (warning,) = blas_warnings(cpu(threads=threads))
    assert warning.code == "BLAS_THREADS"
    assert f"{threads} thread" in warning.text
    assert "OPENBLAS_NUM_THREADS=8" in warning.text
    assert blas_warnings(cpu(threads=8)) == []


def test_the_picture_shows_blas_and_its_threads_or_how_to_see_them():
    for machine, part in (
        (Machine(cpu=cpu()), "BLAS not asked: --deep shows it"),
        (Machine(cpu=cpu(threads=64)), "BLAS openblas 0.3 with 64 threads: 8 CPUs are usable!"),
    ):
        assert part in picture.render(machine, "markdown")
    assert "BLAS" not in picture.render(Machine(live=False, cpu=cpu()), "markdown")


def test_a_variable_brings_the_probe_and_the_warning_into_the_default_command(gpubench):
    done = gpubench("detect", "--json", env={"OPENBLAS_NUM_THREADS": "1"})
    document = json.loads(done.stdout)
    (blas,) = (b for b in document["cpu"]["blas"]["value"] if b["library"] == "openblas")
    assert blas["threads"] == 1
    warned = any(w["code"] == "BLAS_THREADS" for w in document["warnings"])
    assert warned is (document["cpu"]["available"]["value"] != 1)


@pytest.mark.skipif(os.cpu_count() == 1, reason="one thread fits one CPU")
def test_a_run_warns_too(gpubench, in_process):
    words = "run --devices fake:cpu,fake:gpu --ops saxpy --sizes 1k --quick --max-samples 10 -o r.json"
    done = gpubench(*words.split(), env={"OPENBLAS_NUM_THREADS": "1"}, timeout=110)
    assert done.returncode == 0, done.stderr
    text = in_process("report", "r.json", "--format", "plain").stdout
    assert "OPENBLAS_NUM_THREADS=" in " ".join(text.split())
