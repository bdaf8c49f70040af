"""detokenise: the ids of n tokens to their text, what a reader of a language model sees. It runs on the host alone.

By `tiktoken` and the vocabulary of `tokenise`, whose counterpart it is; a loop in Python judges it
(`templates/bpe.py`). The ids are the first n of the text that `tokenise` cuts.
"""

from array import array
from typing import Any

from gpubench.kernels.contract.op import EXACT, Array, Given, HostLibrary, Ladder, Op, Operand, Params, Shape
from gpubench.kernels.templates import bpe


def _length(params: Params) -> Shape:
    size, beside = bpe.beginning(params["n"])
    return (size - beside,)


def _expr(xp: Array, ids: Array) -> Array:
    return xp.frombuffer(bpe.encoder().decode_bytes(ids.tolist()), dtype=xp.uint8)


def _reference(xp: Array, ids: Array) -> Array:
    return xp.frombuffer(bpe.decode([int(number) for number in ids]), dtype=xp.uint8)


def _torch(torch: Any, ids: Array) -> Any:
    return torch.tensor(list(bpe.encoder().decode_bytes(ids.tolist())), dtype=torch.uint8)


OP = Op(
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
            Given(lambda params: array("i", bpe.ids_of(params["n"])).tobytes()),
            role="host",
            dtype="int32",
        ),
    ),
    output=Operand("text", _length, dtype="uint8"),
    flops=lambda params: 0,
    expr=_expr,
    library={"torch": _torch},
    reference=_reference,
    tolerance=EXACT,
    host=HostLibrary("tiktoken", "workloads"),
)
