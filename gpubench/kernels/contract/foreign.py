"""Ops of other packages, each imported and examined in a child process before the program imports it.

The child process is `python -m gpubench.kernels.contract.foreign NAME`. It sends one JSON object. Everything
that the package prints goes to stderr, and the parent sees how the process ends.
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
import threading
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, NoReturn, get_type_hints

import msgspec

from gpubench.base import plugins, processes
from gpubench.base.child_main import Messages
from gpubench.base.errors import BadPlugin
from gpubench.base.plugins import PluginError, containment
from gpubench.kernels.contract.op import Defect, Op, Params

# Most seconds of importing a package. An array library that is imported for the first time takes several
# seconds.
TRIAL_S = 20.0
_NAME, _PARAM = re.compile(r"[a-z0-9_]+"), re.compile(r"[a-z_]+")
_PROBE = 64  # a size at which every cost has to be defined, in addition to the sizes of the op's ladder
# The fault that the trial of each op found, by the op's name; an empty text if the trial passed.
_trials: dict[str, str] = {}


def entry(name: str) -> EntryPoint:
    """Return the entry point `name`. Raises KeyError if there is none."""
    entries = plugins.entries(plugins.OPS, name)
    if not entries:
        raise KeyError(name)
    return entries[0]


@cache
def load(name: str) -> Op:
    """Return the op after its trial. Raises KeyError if there is none, and BadPlugin if it is broken."""
    point = entry(name)
    try_out([name])
    if _trials[name]:
        raise _bad(name, point, _trials[name])
    try:
        return guard(load_without_trial(name))
    except PluginError as error:
        raise _bad(name, point, str(error)) from error


@cache
def load_without_trial(name: str) -> Op:
    """Import and examine the op in this process. Raises KeyError if there is none, and PluginError if it
    is broken."""
    return examine(plugins.load(entry(name)), name)


def try_out(names: Iterable[str]) -> None:
    """Try each op that was not tried before, and remember the results. All are imported at the same time, each
    in its own child process. A name fails if it has characters other than a-z, 0-9 and _."""
    new = []
    for name in dict.fromkeys(names):
        if not _NAME.fullmatch(name):
            _trials[name] = f"the name {name!r} is not made of a-z, 0-9 and _"
        elif name not in _trials:
            new.append(name)
    try:
        ended = processes.run_all(
            [(processes.python("gpubench.kernels.contract.foreign", name), TRIAL_S) for name in new]
        )
    except OSError as error:
        _trials.update(dict.fromkeys(new, f"no process can be started to import it: {error}"))
        return
    _trials.update(zip(new, map(_result, ended), strict=True))


def _result(ended: processes.Ended) -> str:
    """Return why the trial failed, or an empty text if it passed."""
    if ended.status is None:
        return f"its import did not end within {TRIAL_S:g} s"
    try:
        return str(json.loads(ended.message)["broken"])
    except (ValueError, TypeError, KeyError):
        why = f"its import ends the process, which {processes.ending(ended.status)}"
        return f"{why}; {ended.noise}" if ended.noise else why


def _bad(name: str, point: EntryPoint, why: str) -> BadPlugin:
    package = plugins.package(point)
    return BadPlugin(
        "bad-plugin", f"the op {name} of the package {package} is left out",
        why=f"{why}; its entry point is {point.name} = {point.value}",
        hint=f"mend the package {package}, or uninstall it; everything else works without it",
    )  # fmt: skip


# ---------------------------------------------------------------- what an op has to be


@cache
def _declaration() -> type[msgspec.Struct]:
    """Return a struct type with the fields of `Op`, for checking the types in a declaration."""
    # msgspec does not check the union of `split`
    return msgspec.defstruct("Op", list((get_type_hints(Op) | {"split": Any}).items()))


def examine(op: object, name: str) -> Op:
    """Return the object of the entry point `name`, if it is an op that can be listed and planned. Raises
    PluginError if not."""
    if not isinstance(op, Op):
        raise PluginError(f"it is no Op but of the type {type(op).__name__}")
    try:
        msgspec.convert(op, _declaration(), from_attributes=True)
    except msgspec.ValidationError as error:
        raise PluginError(f"its declaration does not hold: {error}") from error
    if op.name != name:
        raise PluginError(f"its Op calls itself {op.name!r}: both names have to be the same")
    if not op.group.isprintable() or not op.group or not op.dtypes:
        raise PluginError("it declares no group or no dtype")
    if "n" not in op.params:
        raise PluginError("its params do not say what n is")
    odd = [option for option in op.options if not _PARAM.fullmatch(option) or option == "n"]
    if odd:
        raise PluginError(f"the option {odd[0]!r} is n, or is not made of a-z and _")
    ladder = op.sizes
    whole = all(type(value) is int and value >= 1 for value in msgspec.structs.astuple(ladder))
    if not whole or ladder.factor < 2 or ladder.low > ladder.high:
        raise PluginError("its sizes do not ascend from low to high by a factor of 2 or more")
    for n in (_PROBE, *ladder.sizes()):
        unfit = _unfit(op, {"n": n})
        if isinstance(unfit, Defect):
            raise PluginError(unfit)
    return op


def guard(op: Op) -> Op:
    """Return the op with a stricter `fits`, which also refuses params at which another function of the
    op fails."""
    # plans call `fits` before these functions
    return msgspec.structs.replace(op, fits=lambda params: _unfit(op, params))


def _unfit(op: Op, params: Params) -> str | None:
    """Return why the op refuses these params, a Defect if one of its functions fails there, or None."""
    what = "fits"
    try:
        unfit = op.fits(params)
        if unfit is not None:
            return str(unfit)
        for operand in op.operands:
            what = f"the shape of {operand.name}"
            _require_counts(*operand.shape(params))
        what = "flops"
        _require_counts(op.flops(params))
        what = "split"
        op.whole(params)
    except KeyError as error:
        missing = error.args[0] if error.args else None
        if isinstance(missing, str) and missing not in params:
            return Defect(
                f"{what} needs the param {missing!r}, which has no default: params.get({missing!r}, ...)"
            )
        return _describe_error(what, error, params)
    except (Exception, SystemExit) as error:
        return _describe_error(what, error, params)
    return None


def _require_counts(*values: int) -> None:
    if any(operator.index(value) < 0 for value in values):
        raise ValueError("it is negative")


def _describe_error(what: str, error: BaseException, params: Params) -> Defect:
    shown = ", ".join(f"{name}={value}" for name, value in params.items())
    return Defect(f"{what} raises {plugins.error_text(error)} at {shown}")


# ---------------------------------------------------------------- the child process


def _broken(name: str) -> str:
    """Import and examine an op in this process. Return why it is broken, or an empty text."""
    threads, before = threading.enumerate(), containment.lasting_state()
    try:
        load_without_trial(name)
    except KeyError:
        return "a child process does not find its entry point"
    except PluginError as error:
        return str(error)
    except BaseException as error:
        return f"its import raises {plugins.error_text(error)}"
    if containment.new_threads(threads):
        return "its import starts a thread that goes on"
    now = containment.lasting_state()
    changed = [what for what, value in before.items() if now[what] != value]
    return f"its import changes {changed[0]} of the process" if changed else ""


def main(name: str) -> NoReturn:
    """Import and examine one op, as the child process."""
    messages = Messages()
    messages.write(json.dumps({"broken": _broken(name)}).encode())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
