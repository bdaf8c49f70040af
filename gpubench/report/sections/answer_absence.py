"""What the final screen says where no GPU was compared with a CPU."""

from __future__ import annotations

import re

from gpubench.analysis.absence import Absence
from gpubench.analysis.answer import MachineAnswer
from gpubench.foreign_text import printable, shortened
from gpubench.model.result import Run
from gpubench.report.sections.answer_text import backend_text, factor_text
from gpubench.units import listed

_MISSING = "No module named"  # how Python says that a package is not installed
_ADAPTER = re.compile(r"(\S+) \((.+)\) is a software adapter")
MOST_FORMS = 6  # names of ops in the sentence
_BEGIN = {
    "no-gpu": "No GPU here: compute on the CPU", "not-asked": "No GPU was measured", "no-time": "The GPU gave no time",
    "wrong": "The GPU gave wrong numbers", "hidden": "No case of a GPU is among those shown",
}  # fmt: skip


def absence_sentences(found: MachineAnswer, why: Absence) -> tuple[tuple[str, ...], ...]:
    """With the names of ops, and without."""
    if why.kind == "checked":
        right = "1 case is right" if why.checked == 1 else f"{why.checked} cases are right"
        return ((f"{right}; nothing was timed (--check-only).",),)
    if why.kind == "nothing":
        return ((f"Nothing was measured{_because(why)}.",),)
    if why.kind == "overheads":
        return ((f"Overheads were measured, and no op{_because(why)}: there is nothing to compare.",),)
    if why.kind == "no-cpu":
        return (("The GPU was measured, and no CPU beside it: there is nothing to compare with.",),)
    begin = _BEGIN[why.kind] + ("" if why.kind == "no-gpu" else _because(why))
    return tuple((f"{begin}{rest}",) for rest in _forms(found))


def _because(why: Absence) -> str:
    causes = "; ".join(shortened(cause.rstrip("."), 100) for cause in why.causes[:2])
    return f" ({causes})" if causes else ""


def _forms(found: MachineAnswer) -> tuple[str, ...]:
    """Which CPU forms win: how the sentence goes on."""
    ops = len({form.op for form in found.forms})
    better = list(dict.fromkeys(form.op for form in found.forms if form.ratio is not None))
    if not any(form.plain_s is not None for form in found.forms):
        return (".",)
    if not better:
        return (". No faster code than plain NumPy was measured.",)
    if ops == 1:
        best = max(form.ratio or 1.0 for form in found.forms)
        return (f". Faster code than plain NumPy exists for {better[0]}: up to {factor_text(best)}.",)
    share = f"{len(better)} of {ops} ops"
    if len(better) == ops:
        share = "both ops" if ops == 2 else f"all {ops} ops"
    counted = f". Faster code than plain NumPy exists for {share}"
    return (f"{counted}: {listed(better)}." if len(better) <= MOST_FORMS else f"{counted}.", f"{counted}.")


def looked_for(run: Run) -> str:
    """What was looked for and not found, by the words of the run; empty without such words."""
    found: dict[str, str] = {}
    for warning in run.warnings:
        backend, _, why = warning.message.partition(":")
        name = str(warning.data.get("backend") or backend)
        if warning.code == "unavailable" and name not in ("torch", "numpy", "hybrid"):
            why = (why or warning.message).strip().removeprefix(f"{backend_text(name)} ")
            found.setdefault(backend_text(name), "not installed" if _MISSING in why else shortened(why, 50))
        elif warning.code == "software-device" and (adapter := _ADAPTER.match(warning.message)):
            found.setdefault(backend_text(adapter[1]), _software(adapter[2]))
    software = [device for device in run.devices if device.kind == "software"]
    found |= {backend_text(device.id): _software(device.name) for device in software}
    texts = [f"{shortened(name, 20)} ({printable(why)})" for name, why in found.items()]
    return f"Looked for: {', '.join(texts)}." if texts else ""


def _software(name: str) -> str:
    """`llvmpipe: not a GPU`, without the versions in brackets behind its name."""
    return f"{shortened(name.partition(' (')[0], 30)}: not a GPU"
