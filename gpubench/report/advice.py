"""From results to the advice that `gpubench advise` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpubench.errors import InputError

if TYPE_CHECKING:
    from gpubench.model.result import Run
    from gpubench.report.analysis.advise import Advice
    from gpubench.report.analysis.contest import Field, Key

FORMATS = ("table", "json", "env")


def answer(runs: Iterable[Run], key: Key, n: int, calls: int | None) -> Advice:
    """Where a call of size n should run: by the first of `runs` (newest first) that compares two devices there, else
    by what is known. `calls` as in `analysis.cost_curves.call_time`.

    Raises InputError if no run has a result for the op, dtype and params, naming what there is.
    """
    from gpubench.report.analysis.advise import advise
    from gpubench.report.analysis.contest import first_to_know

    seen: set[Key] = set()
    best = first_to_know(_fields(runs, key, calls, seen), n)
    if best is None:
        raise _no_result(key, seen)
    return advise(key, best, n, calls)


def render(advice: Advice, format: str) -> str:
    """The advice as text with one trailing newline; `format` is one of FORMATS."""
    from gpubench.report.formats import _advice

    return {"table": _advice.text, "json": _advice.json, "env": _advice.env}[format](advice)


def _fields(runs: Iterable[Run], key: Key, calls: int | None, seen: set[Key]) -> Iterator[Field]:
    from gpubench.report.analysis.contest import families, field

    for run in runs:
        found = families(run)
        seen.update(found)
        if key in found:
            yield field(run, found[key], calls)


def _no_result(key: Key, seen: set[Key]) -> InputError:
    ops = sorted({other.op for other in seen})
    why, flag = f"measured: {', '.join(ops)}" if ops else "nothing in it has a number", ""
    what = f"of {key.op}"
    if key.op in ops:
        shapes = sorted({_shape(other) for other in seen if other.op == key.op})
        what, why = f"of {_shape(key)}", f"measured: {'; '.join(shapes)}"
        flag = f" --dtypes {key.dtype}"
        flag += f" --params {','.join(f'{name}={value}' for name, value in key.params)}" if key.params else ""
    return InputError(
        "no-result-for-op", f"there is no result {what}", why=why,
        hint=f"measure it: gpubench run --ops {key.op}{flag}",
    )  # fmt: skip


def _shape(key: Key) -> str:
    return f"{key.op} {key.dtype}" + "".join(f" {name}={value}" for name, value in key.params)
