"""The words and numbers of the tables: devices, regimes, implementations and sizes.

A number with an interval has two or three digits, as many as the interval supports.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult, Rates
from gpubench.analysis.samples import Label
from gpubench.analysis.speedup import NUMBA, CpuCode, Speedup, about_equal, cpu_threads
from gpubench.base import group_by
from gpubench.base.streams import printable, shorten
from gpubench.base.table import Tone
from gpubench.base.units import (
    count_noun,
    earned_digits,
    format_number,
    format_rate,
    format_seconds,
    format_size,
    list_words,
)
from gpubench.curves.stats import Interval, IntervalLike
from gpubench.result.case import (
    FUNCTIONS,
    MANAGED,
    MAPPED,
    ORDERED,
    QUEUED,
    RESIDENT,
    STREAMED,
    WAITED,
    Case,
    beside_size,
)
from gpubench.result.run import Run

IMPLEMENTATIONS = {"library": "lib", "tuned": "tuned"}
ALWAYS = "transfer-always"
# The names of regimes for people.
_SITUATIONS = {
    RESIDENT: "data on the device", WAITED: "data on the GPU", QUEUED: "queued on the GPU",
    ALWAYS: "copied at every call", STREAMED: "copied in a pipeline", MAPPED: "in place", MANAGED: "in place, managed",
}  # fmt: skip
# The names in a table that has both waited and queued calls.
_BESIDE_QUEUED = {WAITED: "on the GPU, waited", QUEUED: "on the GPU, queued"}
_WITH: dict[str, str] = {
    RESIDENT: "with data on the device", WAITED: "with data on the GPU", QUEUED: "with calls queued on the GPU",
}  # fmt: skip
# Short names of regimes, for tables whose legend explains them.
_DATA = {RESIDENT: "resident", WAITED: "waited", QUEUED: "queued", ALWAYS: "copied", STREAMED: "streamed",
         MAPPED: "in place", MANAGED: "managed"}  # fmt: skip
_WHERE = {
    RESIDENT: "resident: the data is where the device computes",
    WAITED: "waited: data on the GPU, the caller waits for each call",
    QUEUED: "queued: data on the GPU, many calls are queued and waited for once",
    ALWAYS: "copied: each call copies its inputs in and its output back",
    STREAMED: "streamed: independent calls in a row, whose copies overlap with the kernels of others",
    MAPPED: "in place: the data stays in host memory, where the GPU reads and writes it",
    MANAGED: "managed: in place, in managed memory, whose pages move to the side that touches them",
}  # fmt: skip


def device_text(analysis: Analysis, device_id: str) -> str:
    """Return the device id with the device's model, such as `cupy:0 (NVIDIA H200)`. Software adapters are
    marked."""
    device = next((device for device in analysis.run.devices if device.id == device_id), None)
    if device is None:
        return device_id
    software = "software adapter: no GPU, no headline; " if device.kind == "software" else ""
    return f"{device_id} ({software}{shorten(device.name)})"


def devices_text(analysis: Analysis, device_ids: Sequence[str]) -> str:
    """Return each model with the ids of its devices, such as `NVIDIA H200 (cupy:0, wgpu:0)`. The model of a
    device that the run does not list is `an unknown device`."""
    names = {device.id: shorten(device.name) for device in analysis.run.devices}
    together = group_by(device_ids, lambda device_id: names.get(device_id, "an unknown device"))
    return ", ".join(f"{name} ({', '.join(ids)})" for name, ids in together.items())


BACKENDS = {"cupy": "CuPy", "wgpu": "WebGPU", "torch": "PyTorch", "numpy": "NumPy"}


def backend_text(device_id: str) -> str:
    """Return the usual spelling of a backend, such as `CuPy` for `cupy:0`."""
    name = device_id.partition(":")[0]
    return BACKENDS.get(name, name)


def device_names(devices: Iterable[str]) -> dict[str, str]:
    """Return a name for each device, such as `CuPy` for `cupy:0`, or `CuPy 0` if the backend has several
    devices."""
    backends = {device: backend_text(device) for device in devices}
    several = Counter(backends.values())
    return {
        device: f"{name} {device.partition(':')[2]}" if several[name] > 1 else name
        for device, name in backends.items()
    }


def gpus_text(run: Run, device_ids: Iterable[str], length: int = 40) -> str:
    """Return each GPU model with the libraries that ran on it, such as `NVIDIA H200 (CuPy, WebGPU)` or `2 x
    NVIDIA H200 (CuPy)`. If backends name one GPU differently, the name of the run's first device counts. Model
    names are shortened to `length` characters."""
    gpus = {device.id: device.gpu_id or device.id for device in run.devices}
    names = {gpus[device.id]: shorten(device.name, length) for device in reversed(run.devices)}
    texts = []
    for name, ids in group_by(device_ids, lambda id: names.get(gpus.get(id, id), id)).items():
        driven = group_by(ids, lambda id: ", ".join(_driver_texts(run, id)))
        count = max(len({gpus.get(id, id) for id in backend_ids}) for backend_ids in driven.values())
        texts.append(f"{name if count == 1 else f'{count} x {name}'} ({', '.join(driven)})")
    return ", ".join(texts)


def _driver_texts(run: Run, device_id: str) -> list[str]:
    """Return the names of the libraries that ran on a device: its backend, or the libraries of users'
    programs."""
    timed = (x for x in run.measurements if x.case.device_id == device_id)
    names = {
        (x.kernel if x.case.group == FUNCTIONS and x.case.implementation == "library" else None) for x in timed
    }
    return sorted(name or backend_text(device_id) for name in names) or [backend_text(device_id)]


_LONG_VERSION = re.compile(r"(\d+\.\d+\.\d+)(?:\.\d+)+")  # 0.3.34.0.0 is a build of 0.3.34


def cpu_names(codes: Sequence[CpuCode], *, short: bool = False, versions: bool = False) -> list[str]:
    """Return the names of the libraries that ran on the CPU, in the order of `codes`: `numba`, `PyTorch with
    MKL`, `OpenBLAS`. `NumPy without numba` means that numba might be faster. `short` writes `PyTorch/MKL`, and
    leaves out NumPy if a BLAS is named. `versions` adds the versions of the libraries."""
    names: dict[str, None] = {}
    for code in codes:
        libraries = {other.library for other in codes if other.backend == code.backend} - {"", NUMBA}
        blas = [_blas(library, versions) for library in sorted(libraries)]
        if code.backend != "numpy":
            names[("/" if short else " with ").join([backend_text(code.backend), *blas])] = None
        elif code.library:
            names[NUMBA if code.library == NUMBA else _blas(code.library, versions)] = None
        elif code.weaker or not (short and blas):
            names[backend_text(code.backend) + (f" without {NUMBA}" if code.weaker else "")] = None
    return list(names)


def plain_text(codes: Sequence[CpuCode]) -> str:
    """Return `plain NumPy`. If NumPy's place is taken by users' programs alone, return the names of their libraries
    instead."""
    plain = [code for code in codes if code.backend == "numpy"]
    return list_words(cpu_names(plain)) if plain and all(code.own for code in plain) else "plain NumPy"


def _blas(text: str, versions: bool) -> str:
    """Return the short name of a library: `OpenBLAS` for `OpenBLAS 0.3.34.0.0 (Haswell)`. `versions`
    adds `0.3.34`."""
    if not versions:
        name = text.partition(" ")[0]
        return printable(BACKENDS.get(name, name))
    return printable(_LONG_VERSION.sub(r"\1", text.partition(" (")[0]))


def cpu_text(run: Run, names: Sequence[str]) -> str:
    """Return a text such as `16 CPU threads (numba, OpenBLAS)`, with `names` in brackets. If the number of
    threads is unknown, the text begins with `the CPU`. NumPy uses more than one in BLAS alone."""
    threads = cpu_threads(run)
    if len(names) == 1 and names[0] in ("NumPy", "scipy", "pandas") and (threads or 1) > 1:
        return f"{names[0]}, mostly on 1 of {threads} CPU threads"
    text = "the CPU" if threads is None else count_noun(threads, "CPU thread")
    return f"{text} ({', '.join(names)})" if names else text


def shared_text(analysis: Analysis, cases: Sequence[Case]) -> tuple[bool, bool, str]:
    """Return (whether the cases have several dtypes, whether they have several devices, a title). The title
    names the dtype if there is only one, and the device if there is only one."""
    dtypes, devices = (dict.fromkeys(getattr(case, name) for case in cases) for name in ("dtype", "device_id"))
    title = [*dtypes] if len(dtypes) == 1 else []
    title += [f"on {device_text(analysis, *devices)}"] if len(devices) == 1 else []
    return len(dtypes) > 1, len(devices) > 1, printable(" ".join(title))


def size_text(entry: CaseResult) -> str:
    """Return n, followed by the other params of the case, such as `4096 batch=8`."""
    return with_params(format_size(entry.case.params.get("n", 0)), dict(beside_size(entry.case.params)))


def series_name(entry: Case) -> str:
    """Return the name of the series of a case, such as `matmul float32` or `matmul float32 k=8`."""
    return with_params(f"{entry.op} {entry.dtype}", dict(beside_size(entry.params)))


def with_params(text: str, params: Mapping[str, int]) -> str:
    """Return the text followed by the params, such as `matmul k=8`."""
    return text + "".join(f" {name}={value}" for name, value in sorted(params.items()))


def situation_text(regime_id: str, *, beside_queued: bool = False) -> str:
    """Return the name of a regime, such as `data on the GPU`, `copied at every call` or `10 calls a copy`.
    `beside_queued` tells that queued calls are in the same table. Then, waited calls are `on the GPU,
    waited`."""
    if beside_queued and regime_id in _BESIDE_QUEUED:
        return _BESIDE_QUEUED[regime_id]
    return _SITUATIONS.get(regime_id) or f"{regime_id.rpartition('-')[2]} calls a copy"


def with_text(regime_id: str) -> str:
    """Return the name of a regime as a part of a sentence, such as `with data on the GPU`."""
    text = situation_text(regime_id)
    return _WITH.get(regime_id) or (text if regime_id in _SITUATIONS else f"with {text}")


def short_text(regime_id: str) -> str:
    """Return the name of a regime in one or two words, such as `waited`, `queued`, `10 calls` or `copied`."""
    return _DATA.get(regime_id) or f"{regime_id.rpartition('-')[2]} calls"


def data_text(entry: Case) -> str:
    """Return the name of the regime of a case in one or two words."""
    return short_text(entry.regime_id)


def regime_order(entry: Case) -> tuple[int, int]:
    """Return the sort key for the order in which regimes are shown."""
    return (ORDERED.index(entry.regime), entry.calls or 0)


def regimes(rows: Iterable[Case]) -> list[str]:
    """Return the short names of the regimes of `rows`, each once, in the order in which regimes are shown."""
    return list(dict.fromkeys(data_text(entry) for entry in sorted(rows, key=regime_order)))


def where_legend(rows: Iterable[Case]) -> str:
    """Return the meanings of the short regime names that `rows` use."""
    return "; ".join(
        dict.fromkeys(
            f"{data_text(entry)}: {entry.calls} calls share one copy"
            if entry.regime == "transfer-once"
            else _WHERE[entry.regime]
            for entry in sorted(rows, key=regime_order)
        )
    )


COMPUTE_INTENSITY = 4


def computes(case: CaseResult) -> bool:
    """Return whether a launch has more than COMPUTE_INTENSITY FLOP per byte, so that its rate is in FLOP/s."""
    return case.flops > COMPUTE_INTENSITY * case.bytes


_MARKS: dict[Label, str] = {"noisy": "~", "unstable": "~~"}


def time_text(time: IntervalLike | None, unit: str = "auto") -> str:
    """Return a time such as `1.52 ms`, with two or three digits depending on its interval, or `-` for None.
    `unit` is as in `format_seconds`."""
    return "-" if time is None else format_seconds(time.estimate, digits=_digits(time), unit=unit)


def seconds_text(seconds: float | None, unit: str) -> str:
    """Return a time without an interval with three digits, such as `1.52 ms`, or `-` for None. `unit` is as in
    `format_seconds`."""
    return "-" if seconds is None else format_seconds(seconds, digits=3, unit=unit)


def interval_text(interval: IntervalLike) -> str:
    """Return both ends of an interval with the decimals of its estimate, such as `[33.2, 34.1]`. A low end
    above 0 is never written as 0."""
    decimals = _decimals(interval)
    low = _decimal_text(interval.low, decimals)
    if interval.low > 0 and not float(low):
        low = f"{interval.low:.1g}"
    return f"[{low}, {_decimal_text(interval.high, decimals)}]"


def ratio_text(ratio: IntervalLike) -> str:
    """Return the ratio with its interval, such as `33.7x [33.2, 34.1]`."""
    return f"{short_ratio_text(ratio)} {interval_text(ratio)}"


def short_ratio_text(ratio: IntervalLike) -> str:
    """Return the ratio without its interval, such as `33.7x`."""
    return f"{_decimal_text(ratio.estimate, _decimals(ratio))}x"


TONES: dict[str, Tone] = {"win": "gpu", "loss": "cpu", "tie": "plain"}  # the tone of a gain by `Speedup.state`
GainStyle = Callable[[IntervalLike], str]
_FASTER = {"gpu": "GPU", "software": "adapter", "hybrid": "split"}


def gain_text(entry: Speedup, style: GainStyle = short_ratio_text) -> str:
    """Return the winner and its factor, as `style` writes it: `GPU 33.7x` or `GPU 33.7x [33.2, 34.1]`. A factor
    within 15 % of 1 is `about equal`, with the interval if `style` writes one. Any other factor ends in ` ?` if
    the interval leaves the winner open."""
    kind, other = entry.case.device_kind, entry.baseline.device_kind
    side, shown = _FASTER.get(kind, entry.case.case.device_id), entry.interval
    if shown.estimate < 1:
        side = "CPU" if other == "cpu" else "GPU" if (kind, other) == ("hybrid", "gpu") else "baseline"
        shown = Interval(1 / shown.high, 1 / shown.estimate, 1 / shown.low, "prior")
    text = style(shown)
    if about_equal(shown.estimate):
        return f"about equal{text[text.index(' ') :] if ' ' in text else ''}"
    return f"{side} {text}" + (" ?" if shown.low <= 1 else "")


def time_interval_text(time: IntervalLike, unit: str = "auto") -> str:
    """Return the interval of a time in the unit of its estimate, such as `[1.50, 1.54] ms`."""
    name = time_text(time, unit).rpartition(" ")[2]
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[name]
    scaled = Interval(time.low * scale, time.estimate * scale, time.high * scale, time.kind)
    return f"{interval_text(scaled)} {name}"


def rate_text(rates: Rates | None, *, flops: bool) -> str:
    """Return a rate as text: FLOP/s if `flops` is True, such as `1.35 TFLOP/s`, else B/s, such as `4.1 GB/s`. An
    unknown rate is `-`."""
    value = None if rates is None else rates.flops_per_s if flops else rates.bytes_per_s
    return "-" if value is None else format_rate(value, "FLOP/s" if flops else "B/s")


def share_text(share: float) -> str:
    """Return a share as text, such as `12%`, `3.1%` below 10 %, or `12x` from ten on. A share below 0.05 % is
    `0%`."""
    if abs(share) >= 9.995:
        return f"{format_number(share)}x"
    percent = share * 100 if abs(share) >= 5e-4 else 0.0
    return f"{percent:.0f}%" if abs(percent) >= 9.95 or not percent else f"{percent:.1f}%"


def mark(label: Label | None) -> str:
    """Return the mark of a label: `~` for noisy, `~~` for unstable, `!` for any other, nothing for `ok` or
    None."""
    return "" if label in (None, "ok") else _MARKS.get(label, "!")


def join_texts(*texts: str) -> str:
    """Return the texts that are not empty, separated by semicolons."""
    return "; ".join(filter(None, texts))


def legend(labels: AbstractSet[Label | None]) -> str:
    """Return the meanings of the marks of `labels`, or an empty text if no label has a mark."""
    parts = [f"{sign} {label}" for label, sign in _MARKS.items() if label in labels]
    others = sorted(label for label in labels if label and label != "ok" and label not in _MARKS)
    return join_texts(*parts, f"! {', '.join(others)}" if others else "")


def _digits(interval: IntervalLike) -> int:
    return min(3, max(2, earned_digits(interval.estimate, interval.low, interval.high)))


def _decimals(interval: IntervalLike) -> int:
    """Return the number of decimals to which the estimate is rounded. It is below 0 if tens are rounded, too."""
    digits = _digits(interval)
    exponent = f"{interval.estimate:.{digits - 1}e}".partition("e")[2]  # empty for infinity
    return digits - 1 - int(exponent or 0)


def _decimal_text(value: float, decimals: int) -> str:
    return f"{round(value, decimals):.{max(0, decimals)}f}"
