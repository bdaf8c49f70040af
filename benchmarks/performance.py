"""Measure the data of docs/performance.md, or rewrite its tables from result files.

    python benchmarks/performance.py                rewrite the page from the files that it names (`make docs`)
    python benchmarks/performance.py FILE...        rewrite the page from these files
    python benchmarks/performance.py --run          run every measurement on this machine, then rewrite the page
    python benchmarks/performance.py --run --quick  make a trial run under a minute with software adapters;
                                                    save nothing and print the page

--only PART,... runs some of the parts (peaks matmul shapes ladder memory rows dtypes cpu overheads), and the
page is then made from their files and the given FILEs. --results-dir DIR and --page FILE (`-`: print) set other
places for the output. The exit code is 1 if a measurement failed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
GIB = 2**30
_SAVED = re.compile(r"^saved (.+)$", re.MULTILINE)
_BRIEF = ("--quick", "--max-time", "200ms", "--regimes", "resident-queued")
_GPU = ("--backends", "cupy?,wgpu?")
_CPU = ("--backends", "numpy")
_CPU_OPS = "copy,add,saxpy,chain,dot,sum,max,relu,gelu,softmax,transpose,gemv"


class Sizes(NamedTuple):
    """The sizes for one class of devices, in the form of the option `--sizes`."""

    least_bytes: int  # smallest device memory of the class
    elements: str  # sizes of vectors on a GPU, such as "64M"
    more_elements: str  # sizes of copy and add on a GPU
    cpu_elements: str  # sizes of vectors on the CPU
    sides: str  # sides of the matrices of matmul, such as "512,1000"
    rungs: str  # sides of the matrices for the table of all variants
    large_side: str  # side of the matrices of transpose and gemv
    shapes: tuple[tuple[str, ...], ...]  # for matrices that are not square: a size, then texts for `--params`
    widths: str  # lengths of rows, such as "256,1024"
    product: str  # side of the matrices in other dtypes


LARGE = Sizes(
    24 * GIB, "64M", "128M", "64M", "512,1000,1024,2048,4096,4097,8192", "1024,4096", "8k",
    (("4096", "m=256", "k=256", "m=256,k=256"), ("256", "m=4096,k=4096", "m=64k,k=1k"), ("1024", "batch=16")),
    "256,1024,4096,16384,65536", "4096",
)  # fmt: skip
MIDDLE = LARGE._replace(
    least_bytes=6 * GIB,
    elements="32M",
    more_elements="64M",
    cpu_elements="32M",
    sides="512,1000,1024,2048,4096,4097",
)
SMALL = LARGE._replace(
    least_bytes=0, elements="8M", more_elements="16M", cpu_elements="16M", sides="512,1000,1024,2048", rungs="1024",
    large_side="2k", shapes=(("1024", "m=256", "k=256"), ("256", "batch=16")), product="1024",
)  # fmt: skip
_TRIAL = LARGE._replace(
    elements="64k", more_elements="128k", cpu_elements="64k", sides="64,100", rungs="64", large_side="128",
    shapes=(("64", "m=16,k=32", "batch=2"),), widths="256,1024", product="64",
)  # fmt: skip


def plan(sizes: Sizes) -> dict[str, list[tuple[str, ...]]]:
    """Return for each part the arguments of its `gpubench run` commands. Except for `overheads`, the ops of a run
    include copy or matmul, which give the peaks for its rows."""
    sided = ("--sizes", f"transpose={sizes.large_side}", "--sizes", f"gemv={sizes.large_side}")
    elements = ("--sizes", sizes.elements)
    return {
        "peaks": [("--ops", "roofline")],
        "matmul": [("--ops", "matmul", "--sizes", sizes.sides, "--skip", "matmul/n>=4097@numpy")],
        "shapes": [
            ("--ops", "matmul", "--sizes", f"{side}", *_each("--params", texts), *_GPU) for side, *texts in sizes.shapes
        ],
        "ladder": [
            ("--ops", "matmul", "--sizes", sizes.rungs, "--variant", "naive,tiled,register", "--allow-tf32", *_GPU)
        ],
        "memory": [
            ("--ops", "vector,reduction,activation,derivative,transpose,gemv", *elements, *sided, *_GPU),
            ("--ops", "copy,add", "--sizes", sizes.more_elements, *_GPU),
        ],
        "rows": [("--ops", "copy,softmax", *elements, "--params", f"columns={sizes.widths}", *_GPU)],
        "dtypes": [
            ("--ops", "copy,sum,matmul", *elements, "--sizes", f"matmul={sizes.product}",
             "--dtypes", "float64,float16,bfloat16", *_GPU)
        ],
        "cpu": [("--ops", _CPU_OPS, "--sizes", sizes.cpu_elements, *sided, *_CPU)],
        "overheads": [("--ops", "overhead,add", "--sizes", "add=1M", *_GPU)],
    }  # fmt: skip


def _each(option: str, texts: Sequence[str]) -> list[str]:
    return [word for text in texts for word in (option, text)]


def trial(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments changed for a short run on any device, with the fewest samples."""
    words = list(arguments)
    if "roofline" in words:
        words = ["--ops", "roofline", "--sizes", "copy=64k", "--sizes", "matmul=64"]
    if "overhead,add" in words:
        ops = "launch,roundtrip,sync,allocate,upload,download,add"  # not `open`: a process for every sample
        words = ["--ops", ops, "--sizes", "add=64k", "--sizes", "overhead=64k", *_GPU]
    return (*words, "--allow-software", "--max-time", "20ms", "--min-samples", "3")


def device_bytes() -> int | None:
    """Return the memory of the largest GPU in bytes, or None if no GPU with a known size is found."""
    ended = subprocess.run(
        [sys.executable, "-m", "gpubench", "detect", "--json"], capture_output=True, text=True, cwd=ROOT
    )
    gpus = json.loads(ended.stdout or "{}").get("gpus", [])
    capacities = [gpu.get("memory", {}).get("usable_bytes", {}).get("value") for gpu in gpus]
    return max((value for value in capacities if value), default=None)


def measure(arguments: Sequence[str], folder: Path) -> tuple[int, str | None]:
    """Make one `gpubench run`, print its time, and return its exit code and its result file (None: it saved
    none)."""
    began = time.monotonic()
    words = ["run", *_BRIEF, *arguments, "--tag", "performance", "--results-dir", str(folder), "--no-progress"]
    ended = subprocess.run([sys.executable, "-m", "gpubench", *words], capture_output=True, text=True, cwd=ROOT)
    saved = _SAVED.search(ended.stdout)
    print(
        f"{time.monotonic() - began:6.1f} s, exit {ended.returncode}: gpubench run {' '.join(arguments)}",
        file=sys.stderr,
    )
    if ended.returncode:
        print(*ended.stderr.splitlines()[-4:], sep="\n", file=sys.stderr)
    return ended.returncode, saved[1] if saved else None


def measure_all(folder: Path, *, quick: bool, parts: Sequence[str]) -> tuple[list[str], bool]:
    """Make the runs of all `parts`, or with `quick` a trial of the first run of each part. Return the result files
    (relative to the repository if they are inside it), and whether all runs succeeded."""
    memory = device_bytes()
    sizes = (
        _TRIAL
        if quick
        else next(scale for scale in (LARGE, MIDDLE, SMALL) if (memory or 0) >= scale.least_bytes)
    )
    chosen = plan(sizes)
    saved, well = [], True
    for arguments in (arguments for part in parts for arguments in chosen[part][: 1 if quick else None]):
        code, path = measure(trial(arguments) if quick else arguments, folder)
        well = well and code == 0
        if path is not None:
            place = (ROOT / path).resolve()
            saved.append(str(place.relative_to(ROOT) if place.is_relative_to(ROOT) else place))
    return saved, well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", metavar="PART,...", default=",".join(plan(LARGE)))
    parser.add_argument("--results-dir", type=Path, default=ROOT / "results")
    parser.add_argument("--page", default=None)
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(plan(LARGE)):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(plan(LARGE))}")
    sys.path.insert(0, str(ROOT))  # as a script, this file's own folder is there instead
    from benchmarks.performance_page import files_of, rewrite

    text = PAGE.read_text(encoding="utf-8")
    files, well = options.files, True
    with tempfile.TemporaryDirectory() as scratch:
        if options.run:
            folder = Path(scratch) if options.quick else options.results_dir
            saved, well = measure_all(folder, quick=options.quick, parts=parts)
            files = [*files, *saved]
        if options.run and not files:
            print("nothing was measured", file=sys.stderr)
            return 1
        new = rewrite(text, files or files_of(text))
    page = options.page or ("-" if options.quick else str(PAGE))
    if page == "-":
        sys.stdout.write(new)
    else:
        Path(page).write_text(new, encoding="utf-8")
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
