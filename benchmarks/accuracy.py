"""Compare gpubench's device times with the times of other tools on the same kernels, and write
docs/accuracy.md.

    python benchmarks/accuracy.py                rewrite the tables from the file that the page names
    python benchmarks/accuracy.py FILE           rewrite the tables from this file
    python benchmarks/accuracy.py --run -o FILE  measure on the first CUDA device (3 minutes), print the tables

gpubench and the other tools take turns. A tool that is not installed or that fails is left out, and the page
states the reason. The exit code is 1 if nothing was measured.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # a script has its own folder there instead

from benchmarks import accuracy_ncu, accuracy_page  # noqa: E402
from benchmarks.accuracy_record import Agreement, Pairing, Reading  # noqa: E402
from benchmarks.accuracy_subjects import SIZES, Subject, cupy_subject, floors, reading, torch_subject  # noqa: E402
from benchmarks.accuracy_tools import TOOLS, Tool, turns  # noqa: E402
from gpubench import backends  # noqa: E402
from gpubench.backends.contract import Session  # noqa: E402
from gpubench.base.errors import BackendUnavailable  # noqa: E402

TURNS = 3
CHILD_S = 90.0
PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "torch", "triton", "cuda-bench", "numpy")


def usable(subjects: Sequence[Subject]) -> tuple[list[Tool], dict[str, str]]:
    """Return the tools that measure a small kernel of their library without an exception, and by name the
    exceptions of the others. A tool for a library without a subject is in neither."""
    tools, absent = [], {}
    for tool in TOOLS:
        mine = [subject for subject in subjects if subject.library == tool.library]
        try:
            for subject in mine:
                tool.measure(subject)
        except Exception as error:
            absent[tool.name] = _why(error)
        else:
            tools += [tool] if mine else []
    return tools, absent


def both(session: Session, op: str, n: int, *, torch: bool) -> list[Subject]:
    """Return the op as a CuPy kernel and, if `torch` is true, also as a PyTorch op on the same arrays."""
    readings = cupy_subject(session, op, n)
    return [readings, torch_subject(session, readings)] if torch else [readings]


def in_turns(
    session: Session, op: str, n: int, tools: Sequence[Tool], *, torch: bool
) -> tuple[list[Pairing], Reading]:
    """Return the pairings for one op and size, and one additional reading of the CuPy kernel by gpubench."""
    subjects = both(session, op, n, torch=torch)
    pairings = [
        pairing
        for subject in subjects
        for pairing in turns(subject, [tool for tool in tools if tool.library == subject.library], TURNS)
    ]
    return pairings, reading(subjects[0])


def beside_ncu(
    readings: dict[tuple[str, int], Reading],
) -> tuple[list[Pairing], dict[str, str], dict[str, float]]:
    """Return the pairings with ncu, for each mode that fails the reason, and for each other mode the seconds of
    the empty kernel."""
    pairings, absent, empty = [], {}, {}
    for tool, cache, clocks in accuracy_ncu.MODES:
        try:
            rows = accuracy_ncu.profile(cache, timeout_s=CHILD_S)
            pairings += accuracy_ncu.pairings(tool, clocks, rows, readings)
            empty[f"empty, {tool}"] = accuracy_ncu.empty_s(rows)
        except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            absent[tool] = f"{type(error).__name__}: {error}"[:600]
        _say(tool)
    return pairings, absent, empty


def beside_nvbench() -> tuple[list[Pairing], dict[str, str]]:
    """Return the pairings with nvbench. If nvbench fails, return none, and the reason."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pairings.json"
        words = [sys.executable, "-m", "benchmarks.accuracy_nvbench", str(out)]
        try:
            ended = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=CHILD_S, cwd=ROOT,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return [], {"nvbench": str(error)[-300:]}
        if out.exists():
            return msgspec.json.decode(out.read_bytes(), type=list[Pairing]), {}
        print(ended.stdout[-4000:], file=sys.stderr)
        last = ended.stdout.strip().splitlines()[-4:]
        return [], {"nvbench": f"exit {ended.returncode}: {' / '.join(last)}"[:600]}


def measure_stages() -> Iterator[Agreement]:
    """Yield the agreement after each of three stages: the tools in this process, nvbench, and ncu. Each agreement
    includes the one before.

    Raises BackendUnavailable if the CuPy backend cannot be opened.
    """
    session = backends.load("cupy").open("cupy:0")
    agreement = Agreement(
        measured_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        device=session.device.name, driver=session.device.driver, versions=_versions(), absent={},
        floors=floors(session), pairings=[],
    )  # fmt: skip
    alone: dict[tuple[str, int], Reading] = {}
    agreement = _here(session, agreement, alone)
    session.close()
    yield agreement
    pairings, absent = beside_nvbench()
    agreement = _join(agreement, pairings, absent)
    yield agreement
    pairings, absent, empty = beside_ncu(alone)
    yield msgspec.structs.replace(_join(agreement, pairings, absent), floors=agreement.floors | empty)


def _here(session: Session, agreement: Agreement, alone: dict[tuple[str, int], Reading]) -> Agreement:
    """Return the agreement with the tools of this process added. Store gpubench's additional readings in
    `alone`."""
    small = [cupy_subject(session, "matmul", 256)]
    try:
        small.append(torch_subject(session, small[0]))
    except Exception as error:  # torch is absent, or cannot run here: all else goes on
        agreement = _join(agreement, [], {"torch": _why(error)})
    tools, absent = usable(small)
    agreement = _join(agreement, [], absent)
    for op, n in ((op, n) for op, sizes in SIZES.items() for n in sizes):
        try:
            pairings, alone[op, n] = in_turns(session, op, n, tools, torch=len(small) > 1)
            agreement = _join(agreement, pairings, {})
        except Exception as error:  # one size is lost, not the rest
            agreement = _join(agreement, [], {f"{op} {n}": _why(error)})
        _say(f"{op} {n}")
    return agreement


def _join(agreement: Agreement, pairings: list[Pairing], absent: dict[str, str]) -> Agreement:
    return msgspec.structs.replace(
        agreement, pairings=[*agreement.pairings, *pairings], absent=agreement.absent | absent
    )


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _versions() -> dict[str, str]:
    from gpubench import __version__

    versions = {"gpubench": __version__}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    command = accuracy_ncu.where()
    if command is not None:
        printed = subprocess.run(
            [command, "--version"], capture_output=True, text=True, check=False
        ).stdout.split("Version ")
        versions["ncu"] = printed[-1].split()[0] if len(printed) > 1 else "?"
    return versions


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="FILE", type=Path)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    if not options.run:
        accuracy_page.rewrite(options.file)
        return 0
    agreement = None
    try:
        for agreement in measure_stages():
            if options.output:
                options.output.write_bytes(
                    msgspec.json.format(msgspec.json.encode(agreement), indent=1) + b"\n"
                )
    except BackendUnavailable as error:
        print(f"no CUDA device: {error.detail}", file=sys.stderr)
    if agreement is None or not agreement.pairings:
        print("nothing was measured", file=sys.stderr)
        return 1
    print(accuracy_page.tables(agreement))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
