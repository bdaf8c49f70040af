"""How a dtype lies in memory and in registers in WGSL: units of 16 bytes where it can be, single elements else.

Halves are read eight at a time as four words and unpacked: `unpack2x16float` is exact and the arithmetic is in
float32, so a result is rounded once, on the way out. A `bitcast` between words and halves is no way: naga 29
compiles it to wrong values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.templates import log2, require_dtype
from gpubench.kernels.templates.formula import Formula

LANES = "xyzw"
_DTYPES = ("float32", "float64", "float16")
_SCALARS = {"float32": "f32", "float64": "f64", "float16": "f16"}
_UNPACK = """fn low(v: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)); }
fn high(v: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)); }
fn packed(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
  return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}"""


class Storage(msgspec.Struct, frozen=True):
    """How elements are loaded and computed with."""

    stored: str  # the element type in memory: f16 f32 f64
    real: str  # the type of the arithmetic: f32 f64
    unit: str  # the type of a load
    width: int  # elements of a unit
    lanes: int  # reals of a part
    parts: int  # values that arithmetic takes of a unit

    @property
    def part(self) -> str:
        return self.real if self.lanes == 1 else f"vec{self.lanes}<{self.real}>"

    @property
    def functions(self) -> list[str]:
        """Return the functions that `decoded` and `encoded` call."""
        return [_UNPACK] if self.parts == 2 else []

    def decode(self, unit: str) -> tuple[str, ...]:
        """The parts of a unit, as expressions in its name."""
        if self.parts == 2:
            return (f"low({unit})", f"high({unit})")
        return (f"{self.real}({unit})",) if self.stored != self.real else (unit,)

    def encode(self, *parts: str) -> str:
        """The unit of these parts."""
        if self.parts == 2:
            return f"packed({', '.join(parts)})"
        return f"{self.stored}({parts[0]})" if self.stored != self.real else parts[0]

    def lanewise(self, name: str, function: str, arguments: tuple[str, ...]) -> str:
        """The text of the function `name` of parts that calls a function of reals for each lane."""
        calls = (f"{function}({', '.join(f'{x}.{lane}' for x in arguments)})" for lane in LANES[: self.lanes])
        parameters = ", ".join(f"{x}: {self.part}" for x in arguments)
        return f"fn {name}({parameters}) -> {self.part} {{ return {self.part}({', '.join(calls)}); }}"

    def product(self, a: str, b: str) -> str:
        """One real from two parts: the sum of the products of their lanes."""
        return f"dot({a}, {b})" if self.lanes > 1 else f"{a} * {b}"

    def across(self, function: str, part: str) -> str:
        """One real from a part: its lanes folded in pairs by a function of two reals, or by + where it is empty."""
        values = [f"{part}.{lane}" for lane in LANES[: self.lanes]] if self.lanes > 1 else [part]
        while len(values) > 1:
            values = [
                f"{function}({a}, {b})" if function else f"({a} + {b})"
                for a, b in zip(values[::2], values[1::2], strict=True)
            ]
        return values[0]


def part_function(name: str, formula: Formula, storage: Storage) -> list[str]:
    """The texts of the function `name` of parts: of vectors, unless it calls what is a function of single numbers."""
    if functions := formula.wgsl_functions():
        single = f"{name}_single"
        return [*functions, formula.wgsl(single, storage.real), storage.lanewise(name, single, formula.names)]
    return [formula.wgsl(name, storage.part, f"{storage.part}({{}})")]


# The names that the body of an entry point may use of what the device tells a thread.
_BUILTINS = {
    "group": ("workgroup_id", "vec3<u32>"), "groups": ("num_workgroups", "vec3<u32>"),
    "thread": ("local_invocation_index", "u32"), "id": ("global_invocation_id", "vec3<u32>"),
    "local": ("local_invocation_id", "vec3<u32>"),
}  # fmt: skip


def shader(
    buffers: Mapping[str, str], threads: object, body: str, *, params: str = "", before: str = "",
    writes: tuple[str, ...] = ("out_",),
) -> str:  # fmt: skip
    """The whole text of a kernel: `buffers` by name in binding order, with the type of their elements, of which it
    writes those in `writes`; `params`, words that name the u32 of the uniform `p`; what stands `before` the entry point
    of so many `threads`, and its `body`."""
    lines = ["enable f16;"] if any("f16" in text for text in (*buffers.values(), before)) else []
    if params:
        lines.append(f"struct Params {{ {' '.join(f'{name}: u32,' for name in params.split())} }}")
    lines += [
        f"@group(0) @binding({i}) var<storage, read{'_write' * (name in writes)}> {name}: array<{kind}>;"
        for i, (name, kind) in enumerate(buffers.items())
    ]
    if params:
        lines.append(f"@group(0) @binding({len(buffers)}) var<uniform> p: Params;")
    builtins = (
        f"@builtin({builtin}) {name}: {kind}"
        for name, (builtin, kind) in _BUILTINS.items()
        if re.search(rf"\b{name}\b", body)
    )
    entry = f"@compute @workgroup_size({threads})\nfn main({', '.join(builtins)}) {{"
    return "\n".join([*lines, before.strip(), entry, body.strip("\n"), "}\n"])


def vectors(dtype: str) -> Storage:
    """Units of 16 bytes. Past the end of an array stand padding bytes, which may be read and not written."""
    return {
        "float32": Storage("f32", "f32", "vec4<f32>", width=4, lanes=4, parts=1),
        "float64": Storage("f64", "f64", "vec2<f64>", width=2, lanes=2, parts=1),
        "float16": Storage("f16", "f32", "vec4<u32>", width=8, lanes=4, parts=2),
    }[dtype]


def elements(dtype: str) -> Storage:
    """Single elements, for rows that do not start on 16 bytes."""
    stored = _SCALARS[dtype]
    return Storage(stored, "f64" if stored == "f64" else "f32", stored, width=1, lanes=1, parts=1)


def whole_units(dtype: str, length: int) -> Storage:
    """Units of 16 bytes where rows of this length hold whole ones, else single elements."""
    storage = vectors(dtype)
    return elements(dtype) if length % storage.width else storage


def real_dtype(dtype: str) -> str:
    """The dtype of the arithmetic, and so of partial results."""
    return "float32" if dtype == "float16" else dtype


def require_storage(dtype: str, limits: Limits, *, threads: int = 1, exact: bool = True) -> None:
    """Raise Unsupported for a dtype that WGSL or the device does not have, or that has no function of a kernel which is
    not `exact`, and for more threads in a group than the device has."""
    require_dtype(dtype, _DTYPES)
    if dtype == "float64" and not exact:
        raise Unsupported("WGSL has no exp or tanh in double precision", reason="no-dtype")
    if limits.max_workgroup_threads < threads:
        raise Unsupported(f"{threads} threads a group exceed {limits.max_workgroup_threads}", reason="limit")
    if (dtype == "float16" and not limits.float16) or (dtype == "float64" and not limits.float64):
        feature = {"float16": "shader-f16", "float64": "shader-f64"}[dtype]
        raise Unsupported(
            f"the device has no {dtype} arithmetic in shaders (feature {feature})", reason="no-dtype"
        )


def fold_lanes(array: str, joined: str, lanes: int, lane: str = "lane") -> list[str]:
    """Fold a workgroup array over lanes, of which each thread is the one that the text `lane` says, into its first;
    `joined` is text in {a} and {b}.

    Each step folds up to eight values a thread: their reads do not wait for each other, and a barrier costs more than
    they do. On an H200 softmax takes 0.93 of the time that it takes with two values a step.
    """
    lines = []
    for half, count in _fold_steps(lanes):
        lines += ["  workgroupBarrier();", f"  if ({lane} < {half}u) {{", f"    var so_far = {array}[thread];"]
        for i in range(1, count):
            text = joined.format(a="so_far", b=f"{array}[thread + {i * half}u]")
            lines.append(f"    so_far = {text};")
        lines += [f"    {array}[thread] = so_far;", "  }"]
    return [*lines, "  workgroupBarrier();"]


def _fold_steps(lanes: int) -> list[tuple[int, int]]:
    """How many lanes are left after each step, and how many values each of them folds: about as many in every step."""
    lines, bits = [], log2(lanes)
    steps = -(-bits // 3)
    for step in range(steps):
        part = -(-bits // (steps - step))
        bits -= part
        lines.append((1 << bits, 1 << part))
    return lines
