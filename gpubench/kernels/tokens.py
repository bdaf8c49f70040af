"""Byte-pair encoding: the vocabulary, the text, and twenty lines that encode as `tiktoken` does, which judge it.

A word is a run of letters, digits or other signs with the blank before it, or a run of white space. Of neighbours in a
word those are joined first whose joined bytes have the lowest rank (Sennrich and others, arXiv 1508.07909). The frozen
files are those of scripts/train_vocabulary.py; a rank stands beside its bytes in base64, as in tiktoken's files.
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gpubench.kernels.contract.kernel import CudaProgram, Limits, WgslProgram, by_backend
from gpubench.kernels.contract.op import (
    EXACT,
    ITEMSIZE,
    Array,
    Dtype,
    Given,
    HostLibrary,
    Ids,
    Ladder,
    Op,
    Operand,
    Params,
    Shape,
)
from gpubench.kernels.templates import ceil_div, fold, require_bindings
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.gpu_text import GpuText

TEXT = Path(__file__).parent / "data" / "text.txt"
RANKS = Path(__file__).parent / "data" / "ranks.txt"
ENTRIES = 2048
PATTERN = r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+"
_WORD = re.compile(PATTERN.encode())


def words(text: bytes) -> list[bytes]:
    """The text cut into words; together they are the text."""
    return _WORD.findall(text)


@cache
def ranks() -> dict[bytes, int]:
    """The number of each entry of the vocabulary."""
    lines = RANKS.read_text(encoding="ascii").splitlines()
    return {base64.b64decode(entry): int(rank) for entry, rank in (line.split() for line in lines)}


def join_pair(parts: Sequence[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """The parts with each such pair joined, from the left."""
    joined: list[bytes] = []
    i = 0
    while i < len(parts):
        width = 2 if tuple(parts[i : i + 2]) == pair else 1
        joined.append(b"".join(parts[i : i + width]))
        i += width
    return joined


@cache
def _ids(word: bytes) -> tuple[int, ...]:
    numbers = ranks()
    parts = [bytes([value]) for value in word]
    while len(parts) > 1:
        pair = min(pairwise(parts), key=lambda pair: numbers.get(pair[0] + pair[1], ENTRIES))
        if pair[0] + pair[1] not in numbers:
            break
        parts = join_pair(parts, pair)
    return tuple(numbers[part] for part in parts)


def encode(text: bytes) -> list[int]:
    """The ids of the text's tokens."""
    return [number for word in words(text) for number in _ids(word)]


def decode(ids: Sequence[int]) -> bytes:
    """The text of the ids: the inverse of `encode`."""
    entries = list(ranks())
    return b"".join(entries[number] for number in ids)


@cache
def _text() -> bytes:
    return TEXT.read_bytes()


class Beginning(NamedTuple):
    """The shortest beginning of the text, repeated, that ends with a word and has at least so many tokens."""

    size: int  # its bytes
    beside: int  # bytes of the tokens that its last word has beside


@cache
def beginning(count: int) -> Beginning:
    """Return the beginning of `count` tokens."""
    text = _text()
    times, rest = 0, count
    if count * max(map(len, ranks())) > len(text):  # only then may it take the text more than once
        times, rest = divmod(count, _tokens())
    size, beside = times * len(text), 0
    for match in _WORD.finditer(text):
        if rest <= 0:
            break
        word = match[0]
        ids = _ids(word)
        if rest < len(ids):
            beside = len(decode(ids[rest:]))
        rest -= len(ids)
        size += len(word)
    return Beginning(size, beside)


def text_bytes(count: int) -> int:
    """The length of that beginning."""
    return beginning(count).size


@cache
def _tokens() -> int:
    """How many tokens the whole text has."""
    return sum(len(_ids(word)) for word in words(_text()))


def text_of(count: int) -> bytes:
    """The beginning of the text, repeated where it is short, that has `count` tokens."""
    text, size = _text(), text_bytes(count)
    return (text * -(-size // len(text)))[:size]


def ids_of(count: int) -> list[int]:
    """The first ids of that beginning."""
    return encode(text_of(count))[:count]


@cache
def encoder() -> Any:
    """tiktoken's encoder of this vocabulary: its named ones would be downloaded."""
    import tiktoken

    return tiktoken.Encoding("gpubench", pat_str=PATTERN, mergeable_ranks=ranks(), special_tokens={})


def _tokenise_expr(xp: Array, text: Array, n: int) -> Array:
    return xp.asarray(encoder().encode_ordinary(bytes(text).decode("ascii"))[:n], dtype=xp.int32)


def _tokenise_reference(xp: Array, text: Array, n: int) -> Array:
    return xp.asarray(encode(bytes(text))[:n], dtype=xp.int32)


def _tokenise_torch(torch: Any, text: Array, n: int) -> Any:
    return torch.tensor(encoder().encode_ordinary(bytes(text).decode("ascii"))[:n], dtype=torch.int32)


def _length(params: Params) -> Shape:
    size, beside = beginning(params["n"])
    return (size - beside,)


def _detokenise_expr(xp: Array, ids: Array) -> Array:
    return xp.frombuffer(encoder().decode_bytes(ids.tolist()), dtype=xp.uint8)


def _detokenise_reference(xp: Array, ids: Array) -> Array:
    return xp.frombuffer(decode([int(number) for number in ids]), dtype=xp.uint8)


def _detokenise_torch(torch: Any, ids: Array) -> Any:
    return torch.tensor(list(encoder().decode_bytes(ids.tolist())), dtype=torch.uint8)


_VOCABULARY = 2048


def _room(params: Params) -> int:
    return params.get("room", 2 * params["n"])


def _sequence(params: Params) -> Shape:
    return (_room(params),)


def _append_traffic(params: Params, dtype: Dtype) -> int:
    """Return the bytes that are read, twice: the ids that are there already stay where they are."""
    return (2 * params["n"] + 2) * ITEMSIZE["int32"]


def _append_expr(xp: Array, ids: Array, start: Array, sequence: Array) -> tuple[Array, Array]:
    first = int(start[0])
    sequence[first : first + ids.shape[0]] = ids
    return sequence, start + ids.shape[0]


def _append_torch(torch: Any, ids: Array, start: Array, sequence: Array) -> tuple[Array, Array]:
    """The place stays on the device."""
    sequence.index_copy_(0, start + torch.arange(len(ids), device=ids.device), ids)
    return sequence, start + len(ids)


def _append_cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Any) -> None:
        ids, start, _ = inputs
        sequence, behind = output
        first = int(start[0])
        sequence[first : first + len(ids)] = ids
        behind[0] = first + len(ids)

    return launch


_KERNEL = GpuText(
    "token_append", dict.fromkeys(("ids", "start", "sequence", "next"), "i32"), ("sequence", "next"), "count", """
  let i = block * 256u + thread;
  if (i < count) { sequence[clamped(u32(start[0]) + i, last)] = ids[i]; }
  if (i == 0u) { next[0] = start[0] + i32(count); }
""", bounds="last",
)  # fmt: skip


def _append_cuda(params: Params, dtype: str, limits: Limits) -> CudaProgram:
    """One launch. Raises Unsupported for another dtype, and beyond CUDA's largest grid."""
    n = params["n"]
    return CudaProgram((_KERNEL.cuda_pass(dtype, ceil_div(max(n, 1), _KERNEL.threads), (n,)),))


def _append_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    """One dispatch. Raises Unsupported for what the device does not hold."""
    n, room = params["n"], _room(params)
    require_bindings({"sequence": room * ITEMSIZE["int32"]}, limits)
    grid = fold(ceil_div(max(n, 1), _KERNEL.threads), limits)
    return WgslProgram((_KERNEL.wgsl_pass("float32", grid, (n, max(room, 1) - 1)),))


def _append_fits(params: Params) -> str | None:
    room = _room(params)
    return None if room >= params["n"] else f"{params['n']} ids do not fit a sequence of {room}"


OPS = (
    Op(
        name="tokenise",
        group="network",
        summary="ids = the first n tokens of a text, by byte-pair encoding",
        params={"n": "number of tokens"},
        sizes=Ladder(low=16, high=65536),
        dtypes=("float32",),
        inputs=(
            Operand(
                "text",
                lambda params: (text_bytes(params["n"]),),
                Given(lambda params: text_of(params["n"])),
                role="host",
                dtype="uint8",
            ),
        ),
        output=Operand("ids", lambda params: (params["n"],), dtype="int32"),
        flops=lambda params: 0,
        takes=("n",),
        expr=_tokenise_expr,
        library={"torch": _tokenise_torch},
        reference=_tokenise_reference,
        tolerance=EXACT,
        host=HostLibrary("tiktoken", "workloads"),
    ),
    Op(
        name="detokenise",
        group="layers",
        summary="text = that of n tokens, by byte-pair encoding",
        params={"n": "number of tokens"},
        sizes=Ladder(low=16, high=65536),
        dtypes=("float32",),
        inputs=(
            Operand(
                "ids",
                lambda params: (params["n"],),
                Given(lambda params: array("i", ids_of(params["n"])).tobytes()),
                role="host",
                dtype="int32",
            ),
        ),
        output=Operand("text", _length, dtype="uint8"),
        flops=lambda params: 0,
        expr=_detokenise_expr,
        library={"torch": _detokenise_torch},
        reference=_detokenise_reference,
        tolerance=EXACT,
        host=HostLibrary("tiktoken", "workloads"),
    ),
    Op(
        name="token_append",
        group="layers",
        summary="sequence[start : start + n] = ids, in place; next = start + n",
        params={"n": "number of ids"},
        options={"room": "ids of the sequence (twice n)"},
        sizes=Ladder(low=1, high=65536),
        inputs=(
            Operand("ids", lambda params: (params["n"],), Ids(lambda params: _VOCABULARY), dtype="int32"),
            Operand(
                "start", lambda params: (1,), Ids(lambda params: _room(params) - params["n"] + 1), dtype="int32"
            ),
            Operand("sequence", _sequence, Ids(lambda params: _VOCABULARY), role="state", dtype="int32"),
        ),
        output=Operand("sequence", _sequence, role="state", dtype="int32"),
        more_outputs=(Operand("next", lambda params: (1,), dtype="int32"),),
        flops=lambda params: 0,
        traffic=_append_traffic,
        fits=_append_fits,
        expr=_append_expr,
        library={"torch": _append_torch},
        tolerance=EXACT,
        tuned=by_backend(_append_cpu, _append_cuda, _append_wgsl),
    ),
)
