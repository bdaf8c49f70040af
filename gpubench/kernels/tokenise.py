"""tokenise: text to the ids of its first n tokens, what a language model reads. It runs on the host alone.

Real byte-pair encoding, by `tiktoken` and a vocabulary of 2048 entries that comes with gpubench; nothing is downloaded.
The answer is judged by an encoder in Python, `templates/bpe.py`. The text is as long as n tokens and the rest of a
word.
"""

from typing import Any

from gpubench.kernels.contract.op import EXACT, Array, Given, HostLibrary, Ladder, Op, Operand
from gpubench.kernels.templates import bpe


def _expr(xp: Array, text: Array, n: int) -> Array:
    return xp.asarray(bpe.encoder().encode_ordinary(bytes(text).decode("ascii"))[:n], dtype=xp.int32)


def _reference(xp: Array, text: Array, n: int) -> Array:
    return xp.asarray(bpe.encode(bytes(text))[:n], dtype=xp.int32)


def _torch(torch: Any, text: Array, n: int) -> Any:
    return torch.tensor(bpe.encoder().encode_ordinary(bytes(text).decode("ascii"))[:n], dtype=torch.int32)


OP = Op(
    name="tokenise",
    group="network",
    summary="ids = the first n tokens of a text, by byte-pair encoding",
    params={"n": "number of tokens"},
    sizes=Ladder(low=16, high=65536),
    dtypes=("float32",),
    inputs=(
        Operand(
            "text",
            lambda params: (bpe.text_bytes(params["n"]),),
            Given(lambda params: bpe.text_of(params["n"])),
            role="host",
            dtype="uint8",
        ),
    ),
    output=Operand("ids", lambda params: (params["n"],), dtype="int32"),
    flops=lambda params: 0,
    takes=("n",),
    expr=_expr,
    library={"torch": _torch},
    reference=_reference,
    tolerance=EXACT,
    host=HostLibrary("tiktoken", "workloads"),
)
