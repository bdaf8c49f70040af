"""From the words of `run`'s options to a Selection, Settings and a Wish; every unknown word gets a suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from gpubench import backends, kernels, units
from gpubench.cli import _roofline
from gpubench.errors import UsageError
from gpubench.measure.targets import Wish
from gpubench.model.case import DTYPES, FORMS, REGIMES
from gpubench.model.op import Dtype
from gpubench.model.result import Settings
from gpubench.suggestions import require_choice

DEFAULT_SUITE = "vector,matmul,activation"
DEFAULT_BUDGET_S = 60.0
# Without --sizes the budget is spent on finding sizes rather than on precision: one session, one block of
# samples a case, and the first batch of launches as the warm-up (docs/decisions/0003-default-suite.md).
SUITE = {"warmup_s": 0.0, "min_samples": 5, "max_samples": 10, "max_time_s": 0.02}
_SHORT_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"sessions": 1, "min_samples": 7, "max_samples": 30, "max_time_s": 0.5, "precision": 0.05},
    "default": {"sessions": 3, "min_samples": 10, "max_samples": 100, "max_time_s": 2.0, "precision": 0.02},
    "rigorous": {"sessions": 10, "min_samples": 20, "max_samples": 200, "max_time_s": 5.0, "precision": 0.01},
}


def words(text: str, option: str) -> list[str]:
    """The items of a comma-separated list. Raises UsageError if it is empty."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise UsageError(
            "empty-list", f"{option}: the list is empty", why=f"{text!r} names nothing",
            hint=f"name something, or leave {option} out",
        )  # fmt: skip
    return list(dict.fromkeys(found))


def parse_ops(text: str) -> list[str]:
    """Op names of a list of ops and groups, in the order of `gpubench ops`; `all` are those that compute, `roofline`
    those that show the roofs."""
    groups = kernels.groups()
    every = [name for members in groups.values() for name in members]
    known = [*groups, *every, "all", _roofline.WORD]
    wanted: set[str] = set()
    foreign: list[str] = []
    for word in words(text, "--ops"):
        if word == "all":
            wanted.update(kernels.computed())
        elif word == _roofline.WORD:
            wanted.update(_roofline.OPS)
        elif word in groups:
            wanted.update(groups[word])
        elif word in every:
            wanted.add(word)
        else:
            foreign.append(_foreign(word, known))
    return [*(name for name in every if name in wanted), *foreign]


def _foreign(word: str, known: Sequence[str]) -> str:
    """An op of another package, or a UsageError with the nearest name."""
    try:
        return kernels.load(word).name
    except KeyError:
        return require_choice(word, known, "--ops")


def parse_sizes(texts: Iterable[str], ops: Sequence[str]) -> dict[str, list[int]]:
    """Sizes by op. `OP=LIST` limits a list to one op or group; later lists win; `auto` means the ladder."""
    groups = kernels.groups()
    sizes: dict[str, list[int]] = {}
    for text in texts:
        where, equals, numbers = text.rpartition("=")
        targets = list(ops) if not equals else list(groups.get(where, (where,)))
        if equals and where not in groups:
            require_choice(where, [*groups, *ops], "--sizes")
        if numbers.strip() == "auto":
            continue
        found = units.parse_sizes(numbers)
        sizes.update({op: found for op in targets if op in ops})
    return sizes


def parse_dtypes(text: str) -> list[Dtype]:
    """Dtype names, long or short."""
    long = [_SHORT_DTYPES.get(word, word) for word in words(text, "--dtypes")]
    return [cast("Dtype", require_choice(word, [*DTYPES, *_SHORT_DTYPES], "--dtypes")) for word in long]


def parse_forms(text: str | None) -> list[str]:
    """library, tuned; None or `all`: both."""
    named = words(text, "--forms") if text is not None else ["all"]
    found = [require_choice(word, [*FORMS, "all"], "--forms") for word in named]
    return list(FORMS) if "all" in found else found


def parse_regimes(text: str | None) -> list[str]:
    """resident, transfer-once, transfer-always; None: all."""
    if text is None:
        return list(REGIMES)
    return [require_choice(word, REGIMES, "--regimes") for word in words(text, "--regimes")]


def parse_wish(backend_text: str, device_text: str | None, allow_software: bool) -> Wish:
    """Backends (`cupy?` is optional) and device ids."""
    required: list[str] = []
    optional: list[str] = []
    known = [*backends.names(), "auto"]
    for word in words(backend_text, "--backends"):
        name = word.removesuffix("?")
        if name != "auto" and not backends.known(name):
            require_choice(name, known, "--backends")
        if name != "auto":
            (optional if word.endswith("?") else required).append(name)
    if "auto" in words(backend_text, "--backends") and required + optional:
        optional += [name for name in backends.usual() if name not in required + optional]
    devices = words(device_text, "--devices") if device_text is not None else []
    for device in devices:
        name, colon, index = device.partition(":")
        if not backends.known(name):
            require_choice(name, backends.names(), "--devices")
        if not colon or not index:
            raise UsageError(
                "bad-device", f"--devices: {device!r} is not a device id",
                why="a device id is a backend, a colon and an index", hint=f"write {name}:0",
            )  # fmt: skip
    return Wish(tuple(required), tuple(optional), tuple(devices), allow_software)


def settings(
    *, preset: str | None, every_size_given: bool, more: bool, budget: str | None, case_timeout: str | None,
    max_time: str | None, precision: str | None, **given: Any,
) -> Settings:  # fmt: skip
    """Preset, then what was given. Without sizes and without a preset, the budget decides: `quick`.

    Where there is `more` to measure after a search (overheads, splits), it gets as much time again.
    """
    name = preset or ("default" if every_size_given else "quick")
    values: dict[str, Any] = {"preset": name, **PRESETS[name]}
    if not every_size_given:
        values["budget_s"] = DEFAULT_BUDGET_S * (2 if more else 1)
        values.update(SUITE if preset is None else {})
    if budget is not None:
        values["budget_s"] = units.parse_duration(budget, option="--budget")
    if case_timeout is not None:
        values["case_timeout_s"] = units.parse_duration(case_timeout, option="--case-timeout")
    if max_time is not None:
        values["max_time_s"] = units.parse_duration(max_time, option="--max-time")
    if precision is not None:
        values["precision"] = units.parse_percent(precision, option="--precision")
    values.update({key: value for key, value in given.items() if value is not None})
    if values["max_samples"] < values["min_samples"]:
        raise UsageError(
            "bad-samples", "--max-samples is below --min-samples",
            why=f"{values['max_samples']} < {values['min_samples']}", hint="raise --max-samples",
        )  # fmt: skip
    return Settings(**values)
