"""Kernels that CUDA and WGSL write alike: one text in the words of WGSL, of which CUDA's is made.

A body sees `thread`, `block` (the index of its group), `group`, the buffers, the shared arrays and the sizes by their
names; `real` is the type of the arithmetic, `stored` that of memory, `wide` and `narrow` go from one to the other.
`clamped(i, last)` is the smaller one in WGSL, which reads what a buffer holds only if its bounds are kept, and `i` in
CUDA. A line `// unroll N` is a pragma there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from gpubench.kernels.contract.kernel import CudaPass, WgslPass
from gpubench.kernels.templates.cuda import kernel_pass
from gpubench.kernels.templates.wgsl import elements, shader

# Of a body in WGSL, what CUDA says in its place.
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
    """A kernel in both languages."""

    name: str  # name of the kernel
    # by name, in the order of the arguments, the type of an element: "stored", "real", "i32", or one that `cuda` and
    # `wgsl` declare
    buffers: Mapping[str, str]
    writes: tuple[str, ...]  # the buffers that are written
    sizes: str  # the words that follow the buffers
    body: str  # statements in WGSL, whose words CUDA replaces
    bounds: str = ""  # words that only `clamped` takes
    threads: int = 256  # threads of a group
    shared: Mapping[str, int] = {}  # lengths of arrays of reals that a group shares
    cuda: str = ""  # the text before the kernel in CUDA
    wgsl: str = ""  # the text before the kernel in WGSL

    def cuda_pass(
        self, dtype: str, blocks: int | tuple[int, int, int], sizes: tuple[int, ...],
        renamed: Mapping[str, str] = {},
    ) -> CudaPass:  # fmt: skip
        """The launch with these sizes; `renamed` buffers stand for those of the kernel. Raises Unsupported."""
        kinds = {"i32": "int"}
        pointers = [
            f"{'' if name in self.writes else 'const '}{kinds.get(kind, kind)}* __restrict__ {name}"
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
        """The dispatch with these sizes, behind which the bounds stand."""
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
