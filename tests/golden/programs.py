"""The numbers that ops declare, and digests of the programs that their kernels are built to, so that a change of a text,
a grid or a choice shows: what docs/performance.md reports was measured with these."""

import hashlib
import json
from itertools import cycle, product
from pathlib import Path

import msgspec
import numpy as np

from gpubench import kernels
from gpubench.backends.shared.host import random_inputs
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Kernel, Limits
from gpubench.kernels.contract.op import Op, each
from tests.shapes import H200, SMALLEST, WEBGPU

FILE = Path(__file__).parent / "programs.json"
SIZES = (1, 17, 100, 4096, 2**17 + 3, 2**26)
OPTIONS = {
    "m": (1, 40, 4096), "k": (7, 512, 16384), "batch": (2, 65), "ta": (1,), "tb": (1,), "heads": (1, 4), "tokens": (1,),
    "columns": (15_001, 600_000, 20_000, 100_000, 100, 16_384), "width": (24, 260, 4096), "room": (9000,), "classes": (1, 10, 2048),
    "vocabulary": (17,), "context": (9000,), "channels": (3, 128), "filters": (2000, 5, 100), "side": (5, 33),
    "exponent": (1, 5), "step": (3,),
}  # fmt: skip
CPU = Limits(max_buffer_bytes=2**40, max_binding_bytes=2**40, multiprocessors=16)
DEVICES = {
    "cuda": (H200, msgspec.structs.replace(H200, clusters=False, multiprocessors=20)),
    "wgsl": (H200, SMALLEST, msgspec.structs.replace(H200, multiprocessors=None, software=True), WEBGPU),
    "numba": (CPU, msgspec.structs.replace(CPU, multiprocessors=2)),
}


def plain(value: object) -> object:
    """The fields of a program; what NumPy does is no text."""
    return "a function" if callable(value) else str(value)


def build(kernel: Kernel, params: dict[str, int], dtype: str, device: Limits) -> object:
    """The candidates of a kernel with their names, its program, or why there is none."""
    try:
        if kernel.candidates is None:
            return kernel.build(params, dtype, device)
        return [(way.name, way.build()) for way in kernel.candidates(params, dtype, device)]
    except Unsupported as error:
        return error.detail


def params_of(op: Op) -> list[dict[str, int]]:
    """Every size, and every value of an option at one of the sizes."""
    sizes = cycle(SIZES)
    one_by_one = [{"n": next(sizes), name: value} for name in op.options for value in OPTIONS[name]]
    pairs = zip(SIZES, one_by_one, strict=False)
    wide = [{**params, "n": n * params["columns"]} for n, params in pairs if "columns" in params]
    return [params for n in SIZES for params in ({"n": n},)] + one_by_one + wide


def digest(op: Op, kernel: Kernel, dtype: str) -> str:
    """The hash of what is built for all params, each on one of the devices."""
    made = hashlib.sha256()
    for params, device in product(params_of(op), DEVICES[kernel.language]):
        if op.fits(params) is None:
            made.update(f"{op.flops(params)} {op.bytes(params, dtype)} ".encode())
            made.update(msgspec.json.encode(build(kernel, params, dtype, device), enc_hook=plain))
    return made.hexdigest()[:10]


def declared(op: Op) -> str:
    """The ladder and its rungs, the means of inputs and results, and each tolerance with the means of its scale and of
    the shortfall of zeros."""
    params = {"n": 2}
    inputs, op = random_inputs(op, params, "float64", 1), op.at(params)
    results = each(op.exact()(np, *(x.copy() for x in inputs)))
    texts = [f"{msgspec.structs.astuple(op.sizes)} {op.sizes.rungs()}", means(*inputs), means(*results)]
    for bound in map(op.tolerance_of, op.outputs):
        scale = [bound.scale(np, *inputs)] if bound.scale else []
        short = [bound.shortfall(np, np.zeros_like(results[0]), *inputs)] if bound.shortfall else []
        texts.append(f"{bound.units:g} u of {means(*scale, *short)}")
    return "; ".join(texts)


def means(*arrays: np.ndarray) -> str:
    return " ".join(f"{np.abs(np.asarray(x, float)).mean():.5g}" for x in arrays if np.size(x))


def digests() -> dict[str, str]:
    ops = [kernels.load(name) for name in kernels.names() if not kernels.load(name).stages]
    return {op.name: declared(op) for op in ops if not op.collective} | {
        f"{op.name} {backend} {kernel.variant} {dtype}": digest(op, kernel, dtype)
        for op in map(kernels.load, kernels.computing_ops())
        for backend, every in op.tuned.items()
        for kernel in every
        if kernel.language in DEVICES
        for dtype in kernel.dtypes or op.dtypes
    }


def write() -> None:
    FILE.write_text(json.dumps(digests(), indent=0, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
