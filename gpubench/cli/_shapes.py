"""`--params` and `--variant`: shapes beside the size, and named kernels, checked against what the ops declare."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from gpubench import kernels, units
from gpubench.cli._selection import words
from gpubench.errors import UsageError
from gpubench.measure.plan import variants
from gpubench.model.case import TF32
from gpubench.model.op import Op
from gpubench.suggestions import require_choice, suggest

Shapes = dict[str, list[dict[str, int]]]


def parse_params(texts: Iterable[str], ops: Mapping[str, Op]) -> Shapes:
    """Shapes by op, from `[OP:]NAME=LIST[,NAME=LIST...]`: several values of several names are all combined.

    Each text adds its shapes. Without OP it concerns the ops that declare all its names; OP may be a group.
    """
    found: Shapes = {}
    for text in texts:
        where, values = _read(text)
        targets = _targets(text, where, list(values), ops)
        shapes = [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]
        for op in targets:
            known = found.setdefault(op, [])
            known += [shape for shape in shapes if shape not in known]
    return found


def _read(text: str) -> tuple[str, dict[str, list[int]]]:
    """The op or group before the colon (or an empty text), and the values by name, in the order given."""
    lists: dict[str, list[str]] = {}
    where, name = "", ""
    for place, item in enumerate(text.split(",")):
        head, equals, first = item.partition("=")
        if equals:
            name = head.strip()
            if place == 0 and ":" in name:
                where, _, name = (part.strip() for part in name.partition(":"))
            if not name or ":" in name or name in lists:
                _refuse(text, f"{item.strip()!r} is no new NAME=LIST")
        elif not name:
            _refuse(text, "there is no name before a list of values")
        lists.setdefault(name, []).append(first if equals else item)
    if name == "n" or "n" in lists:
        _refuse(text, "n is the size", "give sizes with --sizes")
    return where, {name: units.parse_sizes(",".join(items), option="--params") for name, items in lists.items()}


def _targets(text: str, where: str, names: Sequence[str], ops: Mapping[str, Op]) -> list[str]:
    """The ops that these names concern. Raises UsageError if there is none."""
    if where:
        require_choice(where, [*sorted({op.group for op in ops.values()}), *ops], "--params")
    asked = [op for name, op in ops.items() if where in ("", name, op.group)]
    targets = [op.name for op in asked if all(name in op.options for name in names)]
    if targets:
        return targets
    known = sorted({name for op in asked for name in op.options})
    unknown = [name for name in names if name not in known]
    takes = "; ".join(f"{op.name} takes {', '.join(op.options)}" for op in asked if op.options)
    why = takes or f"{', '.join(op.name for op in asked)}: nothing beside the size"
    raise UsageError(
        "bad-params",
        f"--params: no op has a param {unknown[0]!r}"
        if unknown
        else f"--params: no op has all of {text[:60]!r}",
        why=why,
        hint=(suggest(unknown[0], known) or "`gpubench ops` lists the params of each op")
        if unknown
        else "give the params of each op in a --params of its own",
    )


def _refuse(
    text: str, why: str, hint: str = "write it as columns=256,1024 or matmul:m=64,k=1k:4k:x2"
) -> NoReturn:
    raise UsageError("bad-params", f"--params: {text[:60]!r} is not usable", why=why, hint=hint)


def parse_variants(texts: Iterable[str], ops: Mapping[str, Op], *, allow_tf32: bool) -> list[str]:
    """Names of kernels that one of the ops has, and `tf32` where it was allowed."""
    named = list(dict.fromkeys(word for text in texts for word in words(text, "--variant")))
    known = sorted({name for op in ops.values() for name in variants(op)})
    for word in named:
        if word == TF32:
            raise UsageError(
                "unknown-value", f"--variant: {TF32} is no kernel", why="it is a way to run the library's matmul",
                hint="write --allow-tf32",
            )  # fmt: skip
        if not known:
            raise UsageError(
                "unknown-value", f"--variant: there is no {word!r}", why="these ops have no named kernels",
                hint=f"leave --variant out; ops that have some: {', '.join(_ops_with_variants())}",
            )  # fmt: skip
        require_choice(word, known, "--variant")
    return [*named, *([TF32] if allow_tf32 else [])]


def _ops_with_variants() -> list[str]:
    return [name for name in kernels.names() if variants(kernels.load(name))]
