"""Cases, which are the rows of a result, and selectors of cases. A case has a stable id such as
`matmul/n=4096/float32/tuned/resident-waited@cupy:0`.

A selector is a case id in which any segment may contain `*` and trailing segments may be left out: `matmul`,
`matmul/n>=4096@cupy`, `*@wgpu:0`, `activation/*/float16`, `matmul/n=1k..4k`. The first segment is an op or a
group. The size segment can also compare. `@cupy` means `@cupy:*`, `transfer-once` means any number of calls,
`resident` includes `resident-waited` and `resident-queued`, and `in-place` includes `in-place-mapped` and
`in-place-managed`. `tuned` selects only the plain implementation, `tuned-naive` one variant, and `tuned*` the
implementation with all variants.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal, NoReturn

import msgspec

from gpubench.base.errors import UsageError
from gpubench.base.units import MAX_SIZE, parse_sizes
from gpubench.kernels.contract.op import Dtype, Implementation, Params

RegimeKind = Literal[
    "resident", "resident-waited", "resident-queued", "transfer-once", "transfer-always", "streamed",
    "in-place-mapped", "in-place-managed",
]  # fmt: skip
# The regimes: where the data is, and what the caller waits for. If data stays on a GPU, there are two regimes:
# the caller waits for each launch, or queues many launches and waits once. On a CPU both are the same,
# `resident`, because a call on the CPU ends when it returns.
RESIDENT: RegimeKind = "resident"
WAITED: RegimeKind = "resident-waited"
QUEUED: RegimeKind = "resident-queued"
REGIMES: tuple[RegimeKind, ...] = (WAITED, QUEUED, "transfer-once", "transfer-always")  # of a GPU
# STREAMED_CALLS independent calls in a row with one wait at the end. The copies of each call overlap with the
# kernels of others.
STREAMED: RegimeKind = "streamed"
STREAMED_CALLS = 24
# In place: the data stays in host memory and the GPU reads and writes it there. Mapped memory is in the address
# space of both; pages of managed memory move to the side that touches them.
IN_PLACE = "in-place"
MAPPED: RegimeKind = "in-place-mapped"
MANAGED: RegimeKind = "in-place-managed"
UNIFIED_REGIMES: tuple[RegimeKind, ...] = (WAITED, QUEUED, MAPPED)  # of a GPU whose memory is the host's
# Regimes that are measured only on request, and all regimes in the order of tables.
ON_REQUEST: tuple[RegimeKind, ...] = (STREAMED, MAPPED, MANAGED)
ORDERED: tuple[RegimeKind, ...] = (RESIDENT, *REGIMES, *ON_REQUEST)
# The regime of each situation, by the situation's name in options and in Python. _ALIASES has the names in the
# answer and in earlier versions.
SITUATIONS: dict[str, str] = {
    "waited": WAITED, "queued": QUEUED, "10 calls a copy": "transfer-once-10", "copied": "transfer-always",
    "streamed": STREAMED, "in place": MAPPED, "managed": MANAGED,
}  # fmt: skip
_ALIASES = {
    "data on the gpu": WAITED, "on the gpu": WAITED, "on the gpu, waited": WAITED,
    "on the gpu, queued": QUEUED, "queued on the gpu": QUEUED,
    "copied at every call": "transfer-always", "ten calls a copy": "transfer-once-10",
    "copied in a pipeline": STREAMED,
    IN_PLACE: MAPPED, "in place, mapped": MAPPED, "in place, managed": MANAGED,
}  # fmt: skip
# The regimes of a workload whose stages run on two sides. WAITED: its inputs are on both sides.
# transfer-always: its inputs are on the host.
ASSIGNED_REGIMES: tuple[RegimeKind, ...] = (WAITED, "transfer-always")
IMPLEMENTATIONS: tuple[Implementation, ...] = ("library", "tuned")
# The variant of a library call that may round float32 inputs to TF32.
TF32 = "tf32"
DTYPES: tuple[Dtype, ...] = ("float64", "float32", "float16", "bfloat16")
SHORT_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
LONG_DTYPES = {short: dtype for dtype, short in SHORT_DTYPES.items()}


# Backends whose devices combine a device of another backend with the CPU. They are measured only on request,
# because each size takes a sweep of its own.
COMPOSED = ("hybrid",)
# The backend whose devices are groups of GPUs of another backend. The members of a group are its ranks.
DEVICE_GROUP = "group"
# The backends whose devices consist of several devices of other backends.
SEVERAL = (*COMPOSED, DEVICE_GROUP)
_RANKS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_MOST_RANKS = 1000  # more GPUs than any host has; the id of a hostile file must not take all memory
_OLD_GROUP = re.compile(r"^gang(?=[:?]|$)|(?<=@)gang(?=:)")
FUNCTIONS = "function"  # the group of users' functions


# Op, dtype and the params other than the size: the cases of one series differ in size, implementation, regime
# and device.
SeriesKey = tuple[str, str, tuple[tuple[str, int], ...]]
CellKey = tuple[SeriesKey, str, str]  # a series, and the ids of a device and a regime


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of a result: an op with its params and dtype, computed by one implementation on one device, in
    one regime."""

    op: str  # the name of the op
    group: str  # the group of the op
    params: dict[str, int]  # the size `n` and the other params
    dtype: Dtype  # the dtype of the elements
    implementation: Implementation  # `library` or `tuned`
    regime: RegimeKind  # the kind of the regime, without `calls`
    device_id: str  # the id of the device
    # the number of calls per copy (transfer-once) or per wait (streamed); None for other regimes
    calls: int | None = None
    # the name of an extra kernel (`naive`), or of another way to call the library (`tf32`); None: the
    # implementation itself
    variant: str | None = None

    @property
    def id(self) -> str:
        """The stable id of the case, which is its key in every table and format. It contains no date, host or
        version."""
        return f"{self.workload}/{self.implementation_id}/{self.regime_id}@{self.device_id}"

    @property
    def workload(self) -> str:
        """The id of the workload, such as `matmul/n=1024/float32`. It seeds the inputs, so every backend gets
        the same bytes."""
        return workload_key(self.op, self.params, self.dtype)

    @property
    def series(self) -> SeriesKey:
        """The op, the dtype and the params other than the size. All cases of one curve share them."""
        return self.op, self.dtype, beside_size(self.params)

    @property
    def n(self) -> int:
        """The size."""
        return self.params["n"]

    @property
    def cell(self) -> CellKey:
        """The series, device and regime of the case. They identify a cell of the answer."""
        return self.series, self.device_id, self.regime_id

    @property
    def implementation_id(self) -> str:
        """The implementation with its variant, if there is one: `tuned`, `tuned-naive`."""
        return f"{self.implementation}-{self.variant}" if self.variant else self.implementation

    @property
    def precision(self) -> str:
        """The number format whose rounding error the check allows: `tf32` for the variant `tf32`, else the
        dtype."""
        return TF32 if self.variant == TF32 else self.dtype

    @property
    def regime_id(self) -> str:
        """The id of the regime: `resident-waited`, `transfer-once-10`, ..."""
        return f"{self.regime}-{self.calls}" if self.regime == "transfer-once" else self.regime

    @property
    def resident(self) -> bool:
        """Whether the data stays on the computing device."""
        return self.regime in (RESIDENT, WAITED, QUEUED)

    @property
    def memory(self) -> str | None:
        """The host memory in which the GPU computes: `mapped` or `managed`. None unless the call is in
        place."""
        return self.regime.removeprefix(f"{IN_PLACE}-") if self.regime in (MAPPED, MANAGED) else None

    @property
    def prepared_with(self) -> str:
        """The key of the data that a device prepares once: the workload, and the host memory of a call in
        place."""
        return f"{self.workload} {self.memory}" if self.memory else self.workload

    @property
    def queued(self) -> bool:
        """Whether a sample is many launches with one wait, on data that stays on the device. Such samples
        measure the kernel itself."""
        return self.regime in (RESIDENT, QUEUED)

    @property
    def shared_with(self) -> str | None:
        """The GPU of a split case, such as `cupy:0` for `hybrid:cupy:0`. None for other cases."""
        return inner_device(self.device_id)

    @property
    def backend(self) -> str:
        """The backend's name: the part of the device id before the colon."""
        return self.device_id.partition(":")[0]


def inner_device(device_id: str) -> str | None:
    """Return the id of the device that a composed device combines with the CPU, or None for any other
    device."""
    backend, _, inner = device_id.partition(":")
    return inner if backend in COMPOSED else None


def rename_old_devices(text: str) -> str:
    """Return the id of a backend, a device or a case with `group` in place of `gang`, the name of a device
    group before version 4 of the result file."""
    return _OLD_GROUP.sub("group", text)


def ordinal(device_id: str) -> int | None:
    """Return the number at the end of a device's id, such as 1 for `cupy:1`. Return None if there is none."""
    digits = re.search(r"\d+$", device_id)
    return int(digits[0]) if digits else None


def group_id(backend: str, ranks: Sequence[int]) -> str:
    """Return the id of a device group, such as `group:cupy:0+1`. `ranks` holds the numbers of its GPUs. Three
    or more consecutive numbers are written as `0-7`."""
    several = len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    text = f"{ranks[0]}-{ranks[-1]}" if several else "+".join(map(str, ranks))
    return f"{DEVICE_GROUP}:{backend}:{text}"


def group_ranks(device_id: str) -> tuple[int, ...]:
    """Return the numbers of the GPUs in a device group, in the order of its ranks. Other ids give an empty
    tuple. `group:NAME:4`, with a single number, means the GPUs 0 to 3. An id that cannot be read means the GPUs
    0 and 1."""
    own, _, rest = device_id.partition(":")
    if own != DEVICE_GROUP:
        return ()
    text = rest.partition(":")[2]
    if re.fullmatch(r"\d{1,4}", text):
        return tuple(range(int(text)))
    ranks: list[int] = []
    for part in text.split("+"):
        match = _RANKS.fullmatch(part)
        if match is None or len(ranks) > _MOST_RANKS:
            return (0, 1)
        ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(ranks)


def group_sizes(count: int) -> list[int]:
    """Return the sizes of the device groups for `count` GPUs: 2, 4, 8, ... and `count` itself. Fewer than two
    GPUs have none."""
    return sorted({*(1 << power for power in range(count.bit_length())), count} - {0, 1})


def copies(regime: str) -> bool:
    """Return whether calls of the regime with this id copy between host and device."""
    return regime.startswith(("transfer-", STREAMED))


def calls_behind(regime: str, copy: int | None = None) -> int | None:
    """Return the field `calls` of a case in this regime: `copy` for transfer-once, STREAMED_CALLS for streamed,
    else None."""
    return copy if regime == "transfer-once" else STREAMED_CALLS if regime == STREAMED else None


def parse_situation(text: str) -> str:
    """Return the regime id of a situation, such as `transfer-once-20` for `20 calls a copy`. Other texts are
    returned unchanged."""
    words = " ".join(text.split()).lower()
    if calls := re.fullmatch(r"([1-9]\d*) calls(?: a copy)?", words):
        return "transfer-always" if calls[1] == "1" else f"transfer-once-{calls[1]}"
    return SITUATIONS.get(words) or _ALIASES.get(words, text)


def beside_size(params: Params) -> tuple[tuple[str, int], ...]:
    """Return the params other than n, sorted by name."""
    return tuple(sorted((name, value) for name, value in params.items() if name != "n"))


def workload_key(op: str, params: Params, dtype: str) -> str:
    """Return the id of a workload: `op/n=size[,param=value...]/dtype`, with the other params sorted."""
    rest = "".join(f",{name}={value}" for name, value in beside_size(params))
    return f"{op}/n={params['n']}{rest}/{dtype}"


_CASE_ID = re.compile(
    r"(?P<op>[\w.]+)/n=(?P<n>\d+)(?P<rest>(?:,[a-z_]+=\d+)*)/(?P<dtype>[a-z0-9]+)"
    r"/(?P<implementation>library|tuned)(?:-(?P<variant>[a-z0-9_]+))?/(?P<regime>resident(?:-waited|-queued)?|transfer-always|streamed|transfer-once-(?P<calls>\d+)|in-place-(?:mapped|managed))@(?P<device>\S+)"
)


def parse_case_id(text: str) -> Case:
    """Return the case with the id `text`, which does not contain the group of its op. Raises ValueError if `text`
    is not a case id."""
    match = _CASE_ID.fullmatch(rename_old_devices(text))
    if not match:
        raise ValueError(f"not a case id: {text!r}")
    params = {"n": int(match["n"])}
    for pair in filter(None, match["rest"].split(",")):
        name, _, value = pair.partition("=")
        params[name] = int(value)
    calls = int(match["calls"]) if match["calls"] else calls_behind(match["regime"])
    regime = "transfer-once" if match["calls"] else match["regime"]
    fields = {
        "op": match["op"], "group": "", "params": params, "dtype": match["dtype"],
        "implementation": match["implementation"],
        "regime": regime, "device_id": match["device"], "calls": calls, "variant": match["variant"]
    }  # fmt: skip
    try:
        return msgspec.convert(fields, Case)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a case id: {text!r} ({error})") from error


def own_names(ops: Iterable[str]) -> dict[str, str]:
    """Return a short name for each of `ops`, by the full name. The short name of `options.pairwise` is
    `pairwise`, unless another of `ops` has the same short name."""
    ops = dict.fromkeys(ops)
    short = Counter(op.rpartition(".")[2] for op in ops)
    return {op: name if short[name := op.rpartition(".")[2]] == 1 else op for op in ops}


Selector = Callable[[Case], bool]
_SEGMENTS = ("op", "n=SIZE", "dtype", "implementation", "regime")
_SIZE = re.compile(r"n(?P<sign>>=|<=|=)(?P<first>[^,.]+(?:\.\d+[a-zA-Z]*)?)(?:\.\.(?P<last>[^,]+))?")


def selector(text: str, *, option: str = "--filter") -> Selector:
    """Return a function that tells whether the selector `text` selects a case. Raises UsageError, which names
    `option`, if `text` is not a selector."""
    path, at, device = rename_old_devices(text.strip()).partition("@")
    segments = path.split("/")
    if len(segments) > len(_SEGMENTS) or "" in segments or (at and not device):
        _refuse(text, option, f"a selector is {'/'.join(_SEGMENTS)}@DEVICE, from the left, each part may be *")
    parts = [*segments, *["*"] * len(_SEGMENTS)]
    size = _size_test(parts[1], text, option)
    dtype = LONG_DTYPES.get(parts[2], parts[2])
    pattern = device if not device or ":" in device or device == "*" else f"{device}:*"

    def matches(case: Case) -> bool:
        return (
            any(fnmatchcase(name, parts[0]) for name in (case.op, case.group))
            and size(case)
            and fnmatchcase(case.dtype, dtype)
            and fnmatchcase(case.implementation_id, parts[3])
            and any(fnmatchcase(name, parts[4]) for name in _regimes(case))
            and (not pattern or fnmatchcase(case.device_id, pattern))
        )

    return matches


def _regimes(case: Case) -> tuple[str, ...]:
    """Return all names by which a selector can select the regime of the case."""
    stands_for = [name for name, belongs in ((RESIDENT, case.resident), (IN_PLACE, case.memory)) if belongs]
    return (case.regime_id, case.regime, *stands_for)


def select_cases(keep: Sequence[str], skip: Sequence[str]) -> Selector | None:
    """Return a function that tells whether a selector of `keep`, but none of `skip`, selects a case. An empty
    `keep` selects every case. If both are empty, the result is None. Raises UsageError for a bad selector."""
    if not keep and not skip:
        return None
    tests = [selector(text) for text in keep]
    unwanted = [selector(text, option="--skip") for text in skip]

    def selects(case: Case) -> bool:
        return (not tests or any(test(case) for test in tests)) and not any(test(case) for test in unwanted)

    return selects


def _size_test(text: str, whole: str, option: str) -> Selector:
    if text == "*":
        return lambda case: True
    first, *others = text.split(",")
    match = _SIZE.fullmatch(first)
    if not match or (match["last"] and match["sign"] != "="):
        _refuse(whole, option, f"{text!r} is no size: n=1024, n=1k..4k, n>=4096, n<=1M or *")
    bound = _one_size(match["first"], option)
    low, high = {
        "=": (bound, _one_size(match["last"], option) if match["last"] else bound),
        ">=": (bound, MAX_SIZE),
        "<=": (1, bound),
    }[match["sign"]]
    if low > high:
        _refuse(whole, option, f"{text!r} is an empty range: the smaller size comes first")
    params = dict(_param(other, whole, option) for other in others)

    def matches(case: Case) -> bool:
        return low <= case.n <= high and all(case.params.get(name) == value for name, value in params.items())

    return matches


def _param(text: str, whole: str, option: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdecimal() or len(value) > 19:  # params are 64-bit integers
        _refuse(whole, option, f"{text!r} is no parameter of the form name=number")
    return name, int(value)


def _one_size(text: str, option: str) -> int:
    size, *others = parse_sizes(text, option=option)
    if others:
        _refuse(text, option, "one size is wanted here, not several")
    return size


def _refuse(text: str, option: str, why: str) -> NoReturn:
    raise UsageError("bad-selector", f"{option}: {text[:60]!r} is not a selector", why=why)
