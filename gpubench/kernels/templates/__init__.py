"""Templates of kernels: each has the CPU, CUDA and WGSL texts for many ops of one kind.

Files of ops, users' functions and networks use the templates. This module has what all GPU kernels share:
device limits, element types in each language, and kernels with one text for both languages.

- CUDA converts half precision by PTX instructions, so that no kernel needs a header of the CUDA toolkit. Some
  machines with a driver and CuPy do not have the toolkit.
- WGSL reads halves eight at a time as four words and unpacks them: `unpack2x16float` is exact. The arithmetic
  is in float32, so a result is rounded once, when it is stored. A `bitcast` between words and halves cannot be
  used, because naga 29 compiles it to wrong values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import CudaPass, CudaProgram, Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE, Params
from gpubench.kernels.templates.formula import Formula

# The threads per group that WebGPU guarantees. On an H200, 64 to 256 threads were equally fast.
GROUP_THREADS = 256
# The number of multiprocessors that is assumed for a device that reports none; WebGPU reports none. It is the number
# of a large GPU, because too small a tile costs a quarter of the rate at most, and too large a tile two thirds (0.36
# of cuBLAS).
ASSUMED_MULTIPROCESSORS = 128
# Most bytes of a binding, whose size is a 32-bit number in Vulkan. This number is a multiple of any alignment.
MOST_WINDOW_BYTES = 2**32 - 2**16


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient of two positive integers, rounded up."""
    return -(-dividend // divisor)


def log2(power: int) -> int:
    return power.bit_length() - 1


def power_of_two_at_least(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def multiprocessors(limits: Limits) -> int:
    """Return the number of multiprocessors of the device, or an assumed number if it is unknown."""
    return limits.multiprocessors or ASSUMED_MULTIPROCESSORS


def group_threads(limits: Limits, most: int = GROUP_THREADS) -> int:
    """Return the largest power of two that exceeds neither `most` nor the device's threads of a group."""
    return 1 << (min(most, limits.max_workgroup_threads).bit_length() - 1)


def room_of(params: Params) -> int:
    """Return how many tokens an op has places for, by default twice as many as it appends."""
    return params.get("room", 2 * params["n"])


def fits_in(room: Callable[[Params], int]) -> Callable[[Params], str | None]:
    """Return the `fits` function of an op that appends n tokens, of which `room(params)` have a place."""
    return lambda params: (
        None if room(params) >= params["n"] else f"{params['n']} tokens do not fit in {room(params)} places"
    )


def fold(groups: int, limits: Limits) -> tuple[int, int, int]:
    """Return a grid (x, y, 1) of at least `groups` groups, with y = 1 if x can hold all. A group's index is
    `group.y * groups.x + group.x`; groups beyond `groups` must do nothing. No device has memory for so many that
    two dimensions are not enough."""
    y = ceil_div(groups, limits.max_groups_per_dimension)
    # 65,535 x 3 for 131,072 groups would launch a third of them for nothing
    return (ceil_div(groups, y), y, 1)


def require_grid(limits: Limits, x: int, y: int = 1, z: int = 1) -> tuple[int, int, int]:
    """Return the grid with these extents. Raises Unsupported if an extent exceeds the device's limit
    per dimension."""
    if max(x, y, z) > limits.max_groups_per_dimension:
        raise Unsupported(
            f"{x} x {y} x {z} groups exceed {limits.max_groups_per_dimension} a dimension"
            " (maxComputeWorkgroupsPerDimension)",
            reason="limit",
        )
    return x, y, z


def require_dtype(dtype: str, able: Iterable[str]) -> None:
    """Raise Unsupported unless `dtype` is one of `able`."""
    if dtype not in able:
        detail = f"the WGSL kernel works in {', '.join(able)}, not in {dtype}"
        raise Unsupported(detail, reason="no-dtype")


def require_buffers(sizes: Mapping[str, int], limits: Limits) -> None:
    """Raise Unsupported if a buffer is larger than the device allows. `sizes` has the bytes of buffers by name."""
    for name, size in sizes.items():
        if ceil_div(size, 16) * 16 > limits.max_buffer_bytes:
            raise Unsupported(
                f"{name} has {size} bytes; the device's buffers hold at most"
                f" {limits.max_buffer_bytes} bytes (maxBufferSize)",
                reason="limit",
            )


def require_bindings(sizes: Mapping[str, int], limits: Limits) -> None:
    """Raise Unsupported if a buffer does not fit into one storage binding or exceeds the largest buffer. `sizes`
    has the bytes of buffers by name."""
    for name, size in sizes.items():
        if ceil_div(size, 16) * 16 > limits.max_binding_bytes:
            raise Unsupported(
                f"{name} has {size} bytes; the device binds at most {limits.max_binding_bytes} bytes"
                " at once (maxStorageBufferBindingSize)",
                reason="limit",
            )
    require_buffers(sizes, limits)


class BindingWindow(msgspec.Struct, frozen=True):
    """The part of a buffer that one pass binds."""

    first: int  # index of the first item that is bound
    count: int  # number of items that are bound
    total: int  # number of items of the whole buffer

    def of(self, names: Iterable[str], itemsize: int) -> dict[str, tuple[int, int]]:
        """Return the `WgslPass.windows` that bind this part of the buffers `names`, whose items take `itemsize`
        bytes. Returns {} if the part is the whole buffer."""
        if self.count == self.total:
            return {}
        size = ceil_div(self.count * itemsize, 16) * 16
        return dict.fromkeys(names, (self.first * itemsize, size))


def windows(total: int, itemsize: int, limits: Limits) -> list[BindingWindow]:
    """Divide `total` items of `itemsize` bytes into the fewest windows that fit a binding, about equally long.
    Each starts at a multiple of the device's offset alignment. Raises Unsupported if no such window fits."""
    alignment = limits.binding_alignment
    step = alignment // math.gcd(itemsize, alignment)  # items between two aligned offsets
    # Sizes and indices of a window are 32-bit numbers in the kernels, in bytes too on some drivers.
    most = min(limits.max_binding_bytes, MOST_WINDOW_BYTES)
    if ceil_div(total * itemsize, 16) * 16 <= most:
        return [BindingWindow(0, total, total)]
    longest = most // 16 * 16 // itemsize // step * step
    if not longest:
        raise Unsupported(
            f"{step} items of {itemsize} bytes, the least that can be bound apart, exceed the {most} bytes that"
            " the device binds at once (maxStorageBufferBindingSize)",
            reason="limit",
        )
    count = ceil_div(ceil_div(total, ceil_div(total, longest)), step) * step
    return [BindingWindow(first, min(count, total - first), total) for first in range(0, total, count)]


# CUDA's limits on every device: threads of a block, and blocks of a grid in x and in y.
MOST_THREADS = 1024
MOST_BLOCKS, MOST_BLOCKS_ACROSS = 2**31 - 1, 65535
# Half precision is divided to 2 ulp of float, a 4096th of its own rounding; float and double stay IEEE.
# A subnormal float16 is an ordinary float: only there may the arithmetic take subnormal floats as 0.
_OPTIONS = {"float16": ("--prec-div=false", "-ftz=true"), "bfloat16": ("--prec-div=false",)}
# Elements of 16 bits arrive twice as fast as those of 32, so exp and tanh must be short. This tanh has a relative
# error of 1e-5. Both of its branches are computed, because divergent threads would cost more. A power below 1.2e-38
# is 0 (`ftz`), which saves its scaling.
_SHORT_FUNCTIONS = """
__device__ __forceinline__ real short_exp(real x) {
  real power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.442695041f));
  return power;
}
__device__ __forceinline__ real short_tanh(real x) {
  const real z = x * x;
  const real near = x * fmaf(fmaf(fmaf(-0.05396825f, z, 0.13333333f), z, -0.33333333f), z, 1.0f);
  const real far = copysignf(1.0f - __fdividef(2.0f, short_exp(2.0f * fabsf(x)) + 1.0f), x);
  return z < 0.16f ? near : far;
}
#define exp short_exp
#define tanh short_tanh
"""
_WIDEN = {
    "float16": 'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(v.bits));',
    "bfloat16": "value = __uint_as_float((unsigned)v.bits << 16);",
}
_NARROW = {
    "float16": '  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v.bits) : "f"(value));',
    # Before compute capability 8.0 by hand: to nearest, ties to even, and a NaN stays one.
    "bfloat16": """#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v.bits) : "f"(value));
#else
  const unsigned bits = __float_as_uint(value);
  v.bits = value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif""",
}


def lanes(dtype: str) -> int:
    """Return the number of elements in one 128-bit access."""
    return 16 // ITEMSIZE[dtype]


def kernel_pass(
    name: str, dtype: str, text: str, blocks: int | tuple[int, int, int], threads: int | tuple[int, int, int],
    arguments: tuple[Any, ...],
) -> CudaPass:  # fmt: skip
    """Return a launch of the kernel `gpubench_NAME`, defined by `text`, which follows the prelude. A single number
    of blocks or threads is the extent in x. Raises Unsupported beyond CUDA's largest grid."""
    grid = (blocks, 1, 1) if isinstance(blocks, int) else blocks
    block = (threads, 1, 1) if isinstance(threads, int) else threads
    if grid[0] > MOST_BLOCKS or max(grid[1:]) > MOST_BLOCKS_ACROSS:
        taken = " x ".join(map(str, grid))
        most = f"{MOST_BLOCKS} x {MOST_BLOCKS_ACROSS} x {MOST_BLOCKS_ACROSS}"
        raise Unsupported(f"the launch takes {taken} blocks; a CUDA grid has {most} at most", reason="limit")
    return CudaPass(
        f"{prelude(dtype)}\n{text}", f"gpubench_{name}", grid, block, arguments, options=_OPTIONS.get(dtype, ())
    )


def one_launch(*launch: Any) -> CudaProgram:
    """Return the program of one launch. The arguments are those of `kernel_pass`."""
    return CudaProgram((kernel_pass(*launch),))


# The CUDA type of the data that one load reads, for kernels that define WIDTH.
UNIT = "struct alignas(WIDTH * sizeof(stored)) Unit { stored lane[WIDTH]; };"


def prelude(dtype: str) -> str:
    """Return the CUDA text that defines the types: `stored` in memory, `real` in registers, and `Pack` for one
    128-bit access. `wide` converts `stored` to `real`, and `narrow` the other way."""
    lowest = (
        "__longlong_as_double(0xfff0000000000000ll)" if dtype == "float64" else "__int_as_float(0xff800000)"
    )
    return f"""{_half(dtype) if dtype in _WIDEN else _plain(dtype)}
__device__ __forceinline__ real minus_infinity() {{ return {lowest}; }}
__device__ __forceinline__ real select(bool condition, real a, real b) {{ return condition ? a : b; }}
const int LANES = {lanes(dtype)};
struct alignas(16) Pack {{ stored lane[LANES]; }};
"""


def _plain(dtype: str) -> str:
    name = "double" if dtype == "float64" else "float"
    return f"""typedef {name} stored;
typedef {name} real;
__device__ __forceinline__ real wide(stored v) {{ return v; }}
__device__ __forceinline__ stored narrow(real v) {{ return v; }}"""


def _half(dtype: str) -> str:
    return f"""struct stored {{ unsigned short bits; }};
typedef float real;
__device__ __forceinline__ real wide(stored v) {{
  real value;
  {_WIDEN[dtype]}
  return value;
}}
__device__ __forceinline__ stored narrow(real value) {{
  stored v;
{_NARROW[dtype]}
  return v;
}}
{_SHORT_FUNCTIONS.strip()}"""


LANES = "xyzw"
_DTYPES = ("float32", "float64", "float16")
_SCALARS = {"float32": "f32", "float64": "f64", "float16": "f16"}
_UNPACK = """fn low(v: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)); }
fn high(v: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)); }
fn packed(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
  return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}"""


class Storage(msgspec.Struct, frozen=True):
    """The types with which WGSL loads elements and computes. A *unit* is the data of one load. A *part* is the
    number or vector within a unit that one arithmetic operation uses."""

    stored: str  # type of an element in memory: f16, f32 or f64
    real: str  # type of the arithmetic: f32 or f64
    unit: str  # type of a unit
    width: int  # elements of a unit
    lanes: int  # numbers of a part
    parts: int  # parts of a unit

    @property
    def part(self) -> str:
        return self.real if self.lanes == 1 else f"vec{self.lanes}<{self.real}>"

    @property
    def functions(self) -> list[str]:
        """The texts of the functions that `decode` and `encode` call."""
        return [_UNPACK] if self.parts == 2 else []

    def decode(self, unit: str) -> tuple[str, ...]:
        """Return an expression for each part of a unit. `unit` is the unit's expression."""
        if self.parts == 2:
            return (f"low({unit})", f"high({unit})")
        return (f"{self.real}({unit})",) if self.stored != self.real else (unit,)

    def encode(self, *parts: str) -> str:
        """Return the expression of the unit that consists of these parts."""
        if self.parts == 2:
            return f"packed({', '.join(parts)})"
        return f"{self.stored}({parts[0]})" if self.stored != self.real else parts[0]

    def lanewise(self, name: str, function: str, arguments: tuple[str, ...]) -> str:
        """Return the text of a WGSL function `name` of parts. For each lane it calls `function`, which takes
        single numbers."""
        calls = (f"{function}({', '.join(f'{x}.{lane}' for x in arguments)})" for lane in LANES[: self.lanes])
        parameters = ", ".join(f"{x}: {self.part}" for x in arguments)
        return f"fn {name}({parameters}) -> {self.part} {{ return {self.part}({', '.join(calls)}); }}"

    def product(self, a: str, b: str) -> str:
        """Return the expression of the dot product of the parts `a` and `b`, which is one number."""
        return f"dot({a}, {b})" if self.lanes > 1 else f"{a} * {b}"

    def across(self, function: str, part: str) -> str:
        """Return an expression that reduces a part to one number. `function` is the name of a function of two
        numbers; with an empty name the numbers are added."""
        values = [f"{part}.{lane}" for lane in LANES[: self.lanes]] if self.lanes > 1 else [part]
        while len(values) > 1:
            values = [
                f"{function}({a}, {b})" if function else f"({a} + {b})"
                for a, b in zip(values[::2], values[1::2], strict=True)
            ]
        return values[0]


def part_function(name: str, formula: Formula, storage: Storage) -> list[str]:
    """Return the lines that define the WGSL function `name`, which computes the formula for parts."""
    # functions that WGSL lacks are defined for single numbers only
    if functions := formula.wgsl_functions():
        single = f"{name}_single"
        return [*functions, formula.wgsl(single, storage.real), storage.lanewise(name, single, formula.names)]
    return [formula.wgsl(name, storage.part, f"{storage.part}({{}})")]


# Built-in values that the body of an entry point may use, by name.
_BUILTINS = {
    "group": ("workgroup_id", "vec3<u32>"), "groups": ("num_workgroups", "vec3<u32>"),
    "thread": ("local_invocation_index", "u32"), "id": ("global_invocation_id", "vec3<u32>"),
    "local": ("local_invocation_id", "vec3<u32>"),
}  # fmt: skip


def shader(
    buffers: Mapping[str, str], threads: object, body: str, *, params: str = "", before: str = "",
    writes: tuple[str, ...] = ("out_",),
) -> str:  # fmt: skip
    """Return the whole WGSL text of a kernel. `buffers` maps names to element types, in binding order, and
    `writes` names the buffers that are written. `params` names the u32 members of the uniform `p`, separated by
    blanks. `body` is the text of the entry point, and `before` precedes it."""
    lines = ["enable f16;"] if any("f16" in text for text in (*buffers.values(), before)) else []
    if params:
        lines.append(f"struct Params {{ {' '.join(f'{name}: u32,' for name in params.split())} }}")
    lines += [
        f"@group(0) @binding({i}) var<storage, read{'_write' * (name in writes)}> {name}: array<{kind}>;"
        for i, (name, kind) in enumerate(buffers.items())
    ]
    if params:
        lines.append(f"@group(0) @binding({len(buffers)}) var<uniform> p: Params;")
    words = set(re.findall(r"\w+", body))
    builtins = (
        f"@builtin({builtin}) {name}: {kind}" for name, (builtin, kind) in _BUILTINS.items() if name in words
    )
    entry = f"@compute @workgroup_size({threads})\nfn main({', '.join(builtins)}) {{"
    return "\n".join([*lines, before.strip(), entry, body.strip("\n"), "}\n"])


def vectors(dtype: str) -> Storage:
    """Return the storage in units of 16 bytes. Padding bytes past the end of an array may be read but
    not written."""
    return {
        "float32": Storage("f32", "f32", "vec4<f32>", width=4, lanes=4, parts=1),
        "float64": Storage("f64", "f64", "vec2<f64>", width=2, lanes=2, parts=1),
        "float16": Storage("f16", "f32", "vec4<u32>", width=8, lanes=4, parts=2),
    }[dtype]


def elements(dtype: str) -> Storage:
    """Return the storage in single elements, for rows that do not begin at multiples of 16 bytes."""
    stored = _SCALARS[dtype]
    return Storage(stored, "f64" if stored == "f64" else "f32", stored, width=1, lanes=1, parts=1)


def whole_units(dtype: str, length: int) -> Storage:
    """Return the storage in units of 16 bytes if they divide rows of this length, otherwise in
    single elements."""
    storage = vectors(dtype)
    return elements(dtype) if length % storage.width else storage


def real_dtype(dtype: str) -> str:
    """Return the dtype of the arithmetic and of partial results for elements of `dtype`."""
    return "float32" if dtype == "float16" else dtype


def require_storage(dtype: str, limits: Limits, *, threads: int = 1, exact: bool = True) -> None:
    """Raise Unsupported for a dtype that WGSL or the device lacks, and for too many threads in a group. Float64
    needs an `exact` kernel: WGSL has no exp or tanh in float64."""
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
    """Return lines of WGSL that reduce the values of `lanes` neighbouring threads to one. Each thread has its value
    at `array[thread]`, in workgroup memory; the result is at the place of the first of these threads. `lane` is the
    expression of a thread's number among them. `joined` is a format that combines {a} and {b}. The lines begin
    and end with a barrier."""
    lines = []
    # Up to eight values a step, because their reads cost less than a barrier: softmax takes 0.93 of its time
    # with two (H200).
    for half, count in _fold_steps(lanes):
        lines += ["  workgroupBarrier();", f"  if ({lane} < {half}u) {{", f"    var so_far = {array}[thread];"]
        for i in range(1, count):
            text = joined.format(a="so_far", b=f"{array}[thread + {i * half}u]")
            lines.append(f"    so_far = {text};")
        lines += [f"    {array}[thread] = so_far;", "  }"]
    return [*lines, "  workgroupBarrier();"]


def _fold_steps(lanes: int) -> list[tuple[int, int]]:
    """Return the steps of a reduction, as (lanes that have a value after it, values that each of them joins)."""
    steps, bits = [], log2(lanes)
    for steps_to_go in range(ceil_div(bits, 3), 0, -1):
        part = ceil_div(bits, steps_to_go)
        bits -= part
        steps.append((1 << bits, 1 << part))
    return steps


# Patterns in a WGSL body, and the CUDA text that replaces them.
_CUDA_WORDS = {
    r"\blet (\w+) =": r"const auto \1 =",
    r"\bvar (\w+) =": r"auto \1 =",
    r"\b(\d+)u\b": r"\1",
    r"\bu32\(": "(long long)(",
    r"\bi32\(": "int(",
    r"\bgroup\.": "blockIdx.",
    r"// unroll": "#pragma unroll",
    r"\bworkgroupBarrier\b": "__syncthreads",
}

_WGSL_TYPES = """alias real = {real};
alias stored = {stored};
fn wide(v: stored) -> real {{ return real(v); }}
fn narrow(v: real) -> stored {{ return stored(v); }}"""


class GpuText(msgspec.Struct, frozen=True):
    """A kernel with one text for both CUDA and WGSL. The text is WGSL, and CUDA's is made from it.

    The body uses buffers, shared arrays and sizes by name. It has `thread`, `group` and `block`, which is the index
    of the group. `wide` and `narrow` convert between `stored`, the type in memory, and `real`, that of the arithmetic.
    `clamped(i, last)` is the smaller of the two in WGSL, and `i` in CUDA. A line `// unroll N` becomes a pragma
    in CUDA.
    """

    name: str  # name of the kernel
    # the type of an element by the name of the buffer, in the order of the arguments: "stored", "real", "i32",
    # or one that `cuda` and `wgsl` declare
    buffers: Mapping[str, str]
    writes: tuple[str, ...]  # buffers that are written
    sizes: str  # names of the integer arguments after the buffers, separated by blanks
    body: str  # statements in WGSL
    bounds: str = ""  # names of further WGSL arguments, which only `clamped` uses
    threads: int = 256  # threads of a group
    shared: Mapping[str, int] = {}  # lengths of the arrays of `real` that a group shares, by name
    cuda: str = ""  # text before the kernel in CUDA
    wgsl: str = ""  # text before the kernel in WGSL

    def cuda_pass(
        self, dtype: str, blocks: int | tuple[int, int, int], sizes: tuple[int, ...],
        renamed: Mapping[str, str] = {},
    ) -> CudaPass:  # fmt: skip
        """Return a launch with the values `sizes`. `renamed` maps names of the kernel's buffers to the names of
        other buffers. Raises Unsupported beyond CUDA's largest grid."""
        pointers = [
            f"{'' if name in self.writes else 'const '}{'int' if kind == 'i32' else kind}* __restrict__ {name}"
            for name, kind in self.buffers.items()
        ]
        arguments = ", ".join([*pointers, *(f"long long {size}" for size in self.sizes.split())])
        shared = "".join(f"  __shared__ real {name}[{length}];\n" for name, length in self.shared.items())
        body = self.body
        for word, meaning in _CUDA_WORDS.items():
            body = re.sub(word, meaning, body)
        text = f"""#define clamped(i, last) (i)
{self.cuda}
extern "C" __global__ void __launch_bounds__({self.threads}) gpubench_{self.name}({arguments}) {{
{shared}  const unsigned thread = threadIdx.x;
  const long long block = blockIdx.x;
{body.strip(chr(10))}
}}
"""
        names = tuple(renamed.get(name, name) for name in self.buffers)
        return kernel_pass(self.name, dtype, text, blocks, self.threads, (*names, *sizes))

    def wgsl_pass(
        self, dtype: str, grid: tuple[int, int, int], sizes: tuple[int, ...], renamed: Mapping[str, str] = {}
    ) -> WgslPass:
        """Return a dispatch. `sizes` has the values of the kernel's sizes, then of its bounds. `renamed` maps
        names of the kernel's buffers to the names of other buffers."""
        storage, params = elements(dtype), f"{self.sizes} {self.bounds}"
        body = re.sub(rf"\b({'|'.join(params.split())})\b", r"p.\1", self.body)
        kinds = {"stored": storage.stored, "real": storage.real}
        before = [
            "fn clamped(i: u32, last: u32) -> u32 { return min(i, last); }",
            *(f"var<workgroup> {name}: array<real, {length}>;" for name, length in self.shared.items()),
            self.wgsl,
        ]
        if "stored" in self.buffers.values():  # others convert nothing
            before.insert(0, _WGSL_TYPES.format(real=storage.real, stored=storage.stored))
        buffers = {name: kinds.get(kind, kind) for name, kind in self.buffers.items()}
        lines = f"  let block = group.y * groups.x + group.x;\n{body.strip(chr(10))}"
        text = shader(buffers, self.threads, lines, params=params, before="\n".join(before), writes=self.writes)
        names = tuple(renamed.get(name, name) for name in self.buffers)
        return WgslPass(text, grid, names, uniform=sizes)

    def cuda_program(self, dtype: str, units: int, sizes: tuple[int, ...]) -> CudaProgram:
        """Return a program of one launch with a thread for each unit. Raises Unsupported beyond CUDA's
        largest grid."""
        return CudaProgram((self.cuda_pass(dtype, ceil_div(units, self.threads), sizes),))

    def wgsl_program(self, dtype: str, units: int, sizes: tuple[int, ...], limits: Limits) -> WgslProgram:
        """Return a program of one dispatch with a thread for each unit."""
        grid = fold(ceil_div(units, self.threads), limits)
        return WgslProgram((self.wgsl_pass(dtype, grid, sizes),))
