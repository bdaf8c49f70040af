"""Text to token ids and back by byte-pair encoding, and token ids to rows of a table.

This module has the vocabulary, the text, and a short encoder that is the reference for `tiktoken`: it gives the
same ids. A word is a run of letters, digits or other signs with the blank before it, or a run of white space.
Within a word, the two neighbours whose joined bytes have the lowest rank are joined first (Sennrich and others,
arXiv 1508.07909). scripts/train_vocabulary.py made the two data files. The file of ranks has tiktoken's format.

Embeddings are out = table[ids] + positions, and memory bounds them. Only the requested rows of the table are
read: `traffic` counts the expected number of distinct rows. `embedding_at` is for tokens that follow earlier
ones: their positions begin at `start`, an input of one number, which a network that makes tokens keeps on the
device. `token_append` writes tokens behind those that a sequence has.

- CPU: NumPy's `take` into the output, block by block; the positions are added while the block is in cache.
- CUDA and WGSL: a thread moves 16 bytes of a row. If these do not divide a row, it moves one element (WGSL), or
  the largest power of two of elements that does (CUDA).
"""

from __future__ import annotations

import base64
import math
import re
from array import array
from collections.abc import Sequence
from functools import cache, partial
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
    Split,
    Tolerance,
    counted_by,
    start_in,
)
from gpubench.kernels.templates import (
    UNIT,
    GpuText,
    fits_in,
    lanes,
    require_bindings,
    require_storage,
    room_of,
    whole_units,
)
from gpubench.kernels.templates.cpu import Blocks, Launch
from gpubench.kernels.templates.elementwise import vector_shape

TEXT = Path(__file__).parent / "data" / "text.txt"
RANKS = Path(__file__).parent / "data" / "ranks.txt"
ENTRIES = 2048
PATTERN = r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+"
_WORD = re.compile(PATTERN.encode())


def words(text: bytes) -> list[bytes]:
    """Return the words of the text, which make up all of it."""
    return _WORD.findall(text)


@cache
def ranks() -> dict[bytes, int]:
    """Return the rank of each entry of the vocabulary."""
    lines = RANKS.read_text(encoding="ascii").splitlines()
    return {base64.b64decode(entry): int(rank) for entry, rank in (line.split() for line in lines)}


def join_pair(parts: Sequence[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """Return the parts with each occurrence of the pair joined to one part, from left to right."""
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
    """Return the ids of the text's tokens."""
    return [number for word in words(text) for number in _ids(word)]


def decode(ids: Sequence[int]) -> bytes:
    """Return the text with these ids, as the inverse of `encode`."""
    entries = list(ranks())
    return b"".join(entries[number] for number in ids)


@cache
def _text() -> bytes:
    return TEXT.read_bytes()


class Beginning(NamedTuple):
    """The size of a beginning of the built-in text that has a requested number of tokens."""

    size: int  # number of bytes, up to the end of a word
    beside: int  # bytes at the end that belong to tokens beyond the requested number


@cache
def beginning(count: int) -> Beginning:
    """Return the size of the shortest beginning of the text, repeated if needed, that ends with a whole word
    and has at least `count` tokens."""
    text = _text()
    times, rest = 0, count
    if count * max(map(len, ranks())) > len(text):  # fewer tokens never need a repeated text
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


@cache
def _tokens() -> int:
    """Return the number of tokens of the whole text."""
    return sum(len(_ids(word)) for word in words(_text()))


def text_of(count: int) -> bytes:
    """Return the shortest text of whole words with at least `count` tokens: a beginning of the built-in text, or
    that text repeated."""
    text, size = _text(), beginning(count).size
    return (text * -(-size // len(text)))[:size]


def ids_of(count: int) -> list[int]:
    """Return the first `count` ids of `text_of(count)`."""
    return encode(text_of(count))[:count]


@cache
def encoder() -> Any:
    """Return tiktoken's encoder with the vocabulary of this module."""
    import tiktoken

    # a vocabulary that tiktoken has by name would have to be downloaded
    return tiktoken.Encoding("gpubench", pat_str=PATTERN, mergeable_ranks=ranks(), special_tokens={})


def _encode_fast(text: Array, n: int) -> list[int]:
    """Return the first n ids of the text, by tiktoken."""
    ids: list[int] = encoder().encode_ordinary(bytes(text).decode("ascii"))
    return ids[:n]


def _length(params: Params) -> Shape:
    size, beside = beginning(params["n"])
    return (size - beside,)


def _sequence(params: Params) -> Shape:
    return (room_of(params),)


def _append_expr(xp: Array, ids: Array, start: Array, sequence: Array) -> tuple[Array, Array]:
    first = int(start[0])
    sequence[first : first + ids.shape[0]] = ids
    return sequence, start + ids.shape[0]


def _append_torch(torch: Any, ids: Array, start: Array, sequence: Array) -> tuple[Array, Array]:
    """Write the ids to the sequence from `start` on. `start` is not copied to the host."""
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


def _append_wgsl(params: Params, dtype: str, limits: Limits) -> WgslProgram:
    n, room = params["n"], room_of(params)
    require_bindings({"sequence": room * ITEMSIZE["int32"]}, limits)
    return _KERNEL.wgsl_program("float32", n, (n, room - 1), limits)


_WIDTH, _VOCABULARY = 256, 2048
_EMBEDDING_BLOCK = 256 * 1024  # elements that one thread takes at a time


def _width(params: Params) -> int:
    return params.get("width", _WIDTH)


def _vocabulary(params: Params) -> int:
    return params.get("vocabulary", _VOCABULARY)


def _embedding_rows(params: Params) -> Shape:
    return (params["n"], _width(params))


def _context(params: Params) -> int:
    return params.get("context", 2 * params["n"])


def embedding(*, started: bool = False, **declared: Any) -> Op:
    """Return the op that embeds n ids, at the positions 0 to n - 1 or, if `started`, from the input `start` on.
    `declared` are further fields of the op."""
    positions = partial(_positions, started)
    return Op(
        params={"n": "number of ids"},
        options={
            "width": f"length of a row ({_WIDTH})", "vocabulary": f"rows of the table ({_VOCABULARY})",
            **({"context": "rows of positions (twice n)"} if started else {}),
        },
        sizes=Ladder(low=16, high=65536),
        inputs=(
            Operand("ids", vector_shape, Ids(_vocabulary), dtype="int32"),
            Operand("table", lambda params: (_vocabulary(params), _width(params)), "normal", role="weight"),
            Operand("positions", positions, "normal", role="weight"),
            *((start_in(_context),) if started else ()),
        ),
        output=Operand("out", _embedding_rows),
        flops=lambda params: params["n"] * _width(params),
        split=None if started else Split({"ids": 0, "positions": 0}, counted_by("n")),
        traffic=_embedding_traffic, fits=fits_in(_context), expr=_embedding_expr,
        library={"torch": _embedding_torch},
        tolerance=Tolerance(
            4,
            scale=lambda xp, ids, table, positions, *start: _embedding_expr(
                xp, ids, xp.abs(table), xp.abs(positions), *start
            ),
        ),
        tuned=by_backend(_embedding_cpu, partial(_embedding_cuda, started), partial(_embedding_wgsl, started)),
        **declared,
    )  # fmt: skip


def _positions(started: bool, params: Params) -> Shape:
    return (_context(params), _width(params)) if started else _embedding_rows(params)


def _embedding_traffic(params: Params, dtype: Dtype) -> int:
    """Return the bytes of ids, positions, output, and the rows of the table that random ids name."""
    n, entries = params["n"], _vocabulary(params)
    distinct = entries * (1 - (1 - 1 / entries) ** n)
    return round(ITEMSIZE[dtype] * _width(params) * (2 * n + distinct)) + ITEMSIZE["int32"] * n


def _embedding_expr(xp: Array, ids: Array, table: Array, positions: Array, *start: Array) -> Array:
    first = int(start[0][0]) if start else 0
    return xp.take(table, ids, axis=0) + positions[first : first + ids.shape[0]]


def _embedding_torch(torch: Any, ids: Array, table: Array, positions: Array, *start: Array) -> Array:
    """Return the embeddings of the ids, without a copy of `start` to the host."""
    if start:
        positions = positions[start[0] + torch.arange(len(ids), device=ids.device)]
    return torch.nn.functional.embedding(ids, table) + positions


def _embedding_cpu(np: Any, blocks: Blocks, params: Params) -> Launch:
    def launch(inputs: Sequence[Array], output: Array) -> None:
        ids, table, positions, *start = inputs
        first = int(start[0][0]) if start else 0

        def block(start: int, stop: int) -> None:
            out = output[start:stop]
            # other modes copy the output once more
            np.take(table, ids[start:stop], axis=0, out=out, mode="clip")
            np.add(out, positions[first + start : first + stop], out=out)

        blocks.run(block, len(ids), max(1, _EMBEDDING_BLOCK // table.shape[1]))

    return launch


# A thread moves a unit of a row.
_CUDA_SUM = """__device__ __forceinline__ Unit sum_of(const Unit a, Unit b) {
  #pragma unroll
  for (int j = 0; j < WIDTH; ++j) b.lane[j] = narrow(wide(a.lane[j]) + wide(b.lane[j]));
  return b;
}"""


def _embedding_kernel(started: bool, cuda: str = "", wgsl: str = "") -> GpuText:
    # Without a start, `first` is 0 in WGSL. Through Vulkan an H200 takes 5 % less time with it than with a plain i.
    place = "clamped(u32(start[0]), first) * across + i" if started else "first * across + i" if wgsl else "i"
    start = {"start": "i32"} if started else {}
    return GpuText(
        "embedding", {"ids": "i32", "table": "Unit", "positions": "Unit", **start, "out": "Unit"}, ("out",),
        "units across", f"""
  let i = block * 256u + thread;
  if (i >= units) {{ return; }}
  let row = i / across;
  let entry = table[clamped(u32(ids[row]), last) * across + (i - row * across)];
  out[i] = sum_of(entry, positions[{place}]);
""", bounds="last first", cuda=cuda, wgsl=wgsl,
    )  # fmt: skip


def _embedding_cuda(started: bool, params: Params, dtype: str, limits: Limits) -> CudaProgram:
    n, width = params["n"], math.gcd(_width(params), lanes(dtype))
    units = n * _width(params) // width
    kernel = _embedding_kernel(started, f"const int WIDTH = {width};\n{UNIT}\n{_CUDA_SUM}")
    return kernel.cuda_program(dtype, units, (units, _width(params) // width))


def _embedding_wgsl(started: bool, params: Params, dtype: str, limits: Limits) -> WgslProgram:
    require_storage(dtype, limits)
    n, width = _embedding_rows(params)
    sizes = {
        "table": _vocabulary(params) * width,
        "positions": math.prod(_positions(started, params)),
        "out": n * width,
    }
    require_bindings({name: size * ITEMSIZE[dtype] for name, size in sizes.items()}, limits)
    storage = whole_units(dtype, width)
    across = width // storage.width
    parts = (f"{a} + {b}" for a, b in zip(storage.decode("a"), storage.decode("b"), strict=True))
    functions = [
        f"alias Unit = {storage.unit};", *storage.functions,
        f"fn sum_of(a: Unit, b: Unit) -> Unit {{ return {storage.encode(*parts)}; }}",
    ]  # fmt: skip
    kernel = _embedding_kernel(started, wgsl="\n".join(functions))
    latest = _context(params) - n if started else 0
    return kernel.wgsl_program(dtype, n * across, (n * across, across, _vocabulary(params) - 1, latest), limits)


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
                lambda params: (beginning(params["n"]).size,),
                Given(lambda params: text_of(params["n"])),
                role="host",
                dtype="uint8",
            ),
        ),
        output=Operand("ids", vector_shape, dtype="int32"),
        flops=lambda params: 0,
        takes=("n",),
        expr=lambda xp, text, n: xp.asarray(_encode_fast(text, n), dtype=xp.int32),
        library={"torch": lambda torch, text, n: torch.tensor(_encode_fast(text, n), dtype=torch.int32)},
        reference=lambda xp, text, n: xp.asarray(encode(bytes(text))[:n], dtype=xp.int32),
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
                vector_shape,
                Given(lambda params: array("i", ids_of(params["n"])).tobytes()),
                role="host",
                dtype="int32",
            ),
        ),
        output=Operand("text", _length, dtype="uint8"),
        flops=lambda params: 0,
        expr=lambda xp, ids: xp.frombuffer(encoder().decode_bytes(ids.tolist()), dtype=xp.uint8),
        library={
            "torch": lambda torch, ids: torch.tensor(
                list(encoder().decode_bytes(ids.tolist())), dtype=torch.uint8
            )
        },
        reference=lambda xp, ids: xp.frombuffer(decode(ids.tolist()), dtype=xp.uint8),
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
            Operand("ids", vector_shape, Ids(lambda params: _VOCABULARY), dtype="int32"),
            start_in(room_of),
            Operand("sequence", _sequence, Ids(lambda params: _VOCABULARY), role="state", dtype="int32"),
        ),
        output=Operand("sequence", _sequence, role="state", dtype="int32"),
        more_outputs=(Operand("next", lambda params: (1,), dtype="int32"),),
        flops=lambda params: 0,
        # Each new id is read and written, and so is `start`. Ids already in the sequence are not moved.
        traffic=lambda params, dtype: (2 * params["n"] + 2) * ITEMSIZE["int32"],
        fits=fits_in(room_of),
        expr=_append_expr,
        library={"torch": _append_torch},
        tolerance=EXACT,
        tuned=by_backend(
            _append_cpu,
            lambda params, dtype, _: _KERNEL.cuda_program(dtype, params["n"], (params["n"],)),
            _append_wgsl,
        ),
    ),
    embedding(name="embedding", group="network", summary="out = table[ids] + positions"),
    embedding(
        name="embedding_at",
        group="layers",
        summary="out = table[ids] + positions[start : start + n]",
        started=True,
    ),  # fmt: skip
)
