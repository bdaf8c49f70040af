"""Cases: one row of a result, and its stable id `matmul/n=4096/float32/tuned/resident-waited@cupy:0`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from gpubench.kernels.contract.op import Dtype, Form, Params

RegimeKind = Literal["resident", "resident-waited", "resident-queued", "transfer-once", "transfer-always"]
# Where the data is, and what is waited for. On a GPU, data that stays there has two regimes: the caller waits for each
# launch, or queues many and waits once. Elsewhere they are one, `resident`: a call on the CPU ends when it returns.
RESIDENT: RegimeKind = "resident"
WAITED: RegimeKind = "resident-waited"
QUEUED: RegimeKind = "resident-queued"
REGIMES: tuple[RegimeKind, ...] = (WAITED, QUEUED, "transfer-once", "transfer-always")  # a GPU's
# Of a workload whose stages are placed on two sides: inputs on both, or on the host.
PLACED_REGIMES: tuple[RegimeKind, ...] = (WAITED, "transfer-always")
FORMS: tuple[Form, ...] = ("library", "tuned")
# The variant of a library call that may round float32 inputs to TF32.
TF32 = "tf32"
DTYPES: tuple[Dtype, ...] = ("float64", "float32", "float16", "bfloat16")
SHORT_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
LONG_DTYPES = {short: dtype for dtype, short in SHORT_DTYPES.items()}


# Backends whose devices are made of another backend's and the CPU. They are measured when asked for, because each size
# then takes a sweep of its own.
COMPOSED = ("hybrid",)
# The backend whose devices are several GPUs of another backend: ranks.
GANG = "gang"
FUNCTIONS = "function"  # the group of users' functions


# Op, dtype and the params beside the size: what is the same on one curve over the sizes.
SeriesKey = tuple[str, str, tuple[tuple[str, int], ...]]
CellKey = tuple[SeriesKey, str, str]  # series, device and regime, by id


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """Op, params, dtype, form, regime and device: what is measured once and shown as one row.

    `calls` is the number of launches per transfer; it is set for the regime transfer-once alone. `variant` names an
    extra kernel of the form (`naive`), or another way to run the library call (`tf32`); None is the form itself.
    """

    op: str
    group: str
    params: dict[str, int]
    dtype: Dtype
    form: Form
    regime: RegimeKind
    device_id: str
    calls: int | None = None
    variant: str | None = None

    @property
    def id(self) -> str:
        """The stable key of every table and format; it holds no date, host or version."""
        return f"{self.workload}/{self.form_id}/{self.regime_id}@{self.device_id}"

    @property
    def workload(self) -> str:
        """`matmul/n=1024/float32`: seeds the inputs, so every backend gets the same bytes."""
        return workload_key(self.op, self.params, self.dtype)

    @property
    def series(self) -> SeriesKey:
        """The curve over the sizes that this case is a point of, whatever its form, regime and device."""
        return self.op, self.dtype, beside_size(self.params)

    @property
    def n(self) -> int:
        """The size."""
        return self.params["n"]

    @property
    def cell(self) -> CellKey:
        """The cell of the answer that this case is a point of, whatever its form."""
        return self.series, self.device_id, self.regime_id

    @property
    def form_id(self) -> str:
        """`tuned`, or with a variant `tuned-naive`: which of a device's kernels runs."""
        return f"{self.form}-{self.variant}" if self.variant else self.form

    @property
    def precision(self) -> str:
        """The format whose unit round-off the gate grants: the dtype, or `tf32` where that was asked for."""
        return TF32 if self.variant == TF32 else self.dtype

    @property
    def regime_id(self) -> str:
        """`resident-waited`, `transfer-once-10`, ..."""
        return regime_name(self.regime, self.calls)

    @property
    def resident(self) -> bool:
        """Whether the data stays where the device computes."""
        return self.regime in (RESIDENT, WAITED, QUEUED)

    @property
    def queued(self) -> bool:
        """Whether a sample is launches in a row with one wait, on data that stays: what a kernel's own rate is read
        from, on whatever device."""
        return self.regime in (RESIDENT, QUEUED)

    @property
    def shared_with(self) -> str | None:
        """The GPU of a split case: `cupy:0` for `hybrid:cupy:0`."""
        return inner_device(self.device_id)

    @property
    def backend(self) -> str:
        """The backend's name: the part of the device id before the colon."""
        return self.device_id.partition(":")[0]


def inner_device(device_id: str) -> str | None:
    """The device that a composed one shares its work with, by id; None for any other device."""
    backend, _, inner = device_id.partition(":")
    return inner if backend in COMPOSED else None


def gang_id(backend: str, ranks: Sequence[int]) -> str:
    """`gang:cupy:0+1`; three and more in a row are written `0-7`."""
    several = len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    text = f"{ranks[0]}-{ranks[-1]}" if several else "+".join(map(str, ranks))
    return f"{GANG}:{backend}:{text}"


def gang_ranks(device_id: str) -> tuple[int, ...]:
    """The ordinals of a gang's members, in the order of its ranks; of a plain number so many, of a word two. Empty for
    what is no gang."""
    own, _, rest = device_id.partition(":")
    if own != GANG:
        return ()
    text = rest.partition(":")[2]
    if text.isdecimal():
        return tuple(range(int(text)))
    ranks: list[int] = []
    for part in text.split("+"):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return (0, 1)
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)


def gang_sizes(count: int) -> list[int]:
    """2, 4, 8, ... and all: the gangs of so many GPUs."""
    doubled = [1 << power for power in range(1, count.bit_length()) if 1 << power <= count]
    return [*doubled, *([count] if count > 2 and count not in doubled else [])]


def regime_name(regime: str, calls: int | None) -> str:
    """`resident-waited`, `transfer-once-10`, ...; `calls` are those of transfer-once."""
    return f"{regime}-{calls}" if regime == "transfer-once" else regime


def beside_size(params: Params) -> tuple[tuple[str, int], ...]:
    """The params beside n, by name."""
    return tuple(sorted((name, value) for name, value in params.items() if name != "n"))


def workload_key(op: str, params: Params, dtype: str) -> str:
    """`op/n=size[,param=value...]/dtype`, with n first and the other params sorted."""
    rest = "".join(f",{name}={value}" for name, value in beside_size(params))
    return f"{op}/n={params['n']}{rest}/{dtype}"


_CASE_ID = re.compile(
    r"(?P<op>[\w.]+)/n=(?P<n>\d+)(?P<rest>(?:,[a-z_]+=\d+)*)/(?P<dtype>[a-z0-9]+)"
    r"/(?P<form>library|tuned)(?:-(?P<variant>[a-z0-9_]+))?/(?P<regime>resident(?:-waited|-queued)?|transfer-always|transfer-once-(?P<calls>\d+))@(?P<device>\S+)"
)


def parse_case_id(text: str, group: str = "") -> Case:
    """The inverse of `Case.id`. Raises ValueError if `text` is not a case id."""
    match = _CASE_ID.fullmatch(text)
    if not match:
        raise ValueError(f"not a case id: {text!r}")
    params = {"n": int(match["n"])}
    for pair in filter(None, match["rest"].split(",")):
        name, _, value = pair.partition("=")
        params[name] = int(value)
    calls = int(match["calls"]) if match["calls"] else None
    regime = "transfer-once" if calls else match["regime"]
    fields = {
        "op": match["op"], "group": group, "params": params, "dtype": match["dtype"], "form": match["form"],
        "regime": regime, "device_id": match["device"], "calls": calls, "variant": match["variant"],
    }  # fmt: skip
    try:
        return msgspec.convert(fields, Case)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a case id: {text!r} ({error})") from error


def own_names(ops: Iterable[str]) -> dict[str, str]:
    """Return what each op is called: a user's function `options.pairwise` by its own name, unless another op has it."""
    ops = dict.fromkeys(ops)
    short = Counter(op.rpartition(".")[2] for op in ops)
    return {op: name if short[name := op.rpartition(".")[2]] == 1 else op for op in ops}
