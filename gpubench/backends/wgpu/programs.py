"""WGSL programs on a wgpu device: shader modules without runtime checks, cached pipelines and bind groups, and
programs that fill or compare whole buffers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpubench.backends.contract import Buffer, HostCall, Launch
from gpubench.backends.shared.host import host_dtype, named_buffers, tuned_kernel, usable_cpus
from gpubench.base import hash_text
from gpubench.base.errors import BuildError, Unsupported
from gpubench.kernels.contract.kernel import Candidate, Limits, WgslPass, WgslProgram
from gpubench.kernels.contract.op import ITEMSIZE, Op, Shape, Stored, each
from gpubench.kernels.templates import shader
from gpubench.result.case import Case

# Most launches that are cached. Their bind groups keep buffers alive. A few launches are enough, because the pool
# reuses buffers.
_BIND_GROUPS = 64

# Most steps in the first submit of a launch, and in each later one. The device works on them while the host
# records the next steps. The first submit has few steps, so that the device begins early. The host of an H200
# takes 15 us for a submit, and 3 us for a step. Recording ahead goes in slices, so that the host notices early
# that the device is done.
FIRST_STEPS, STEPS, SLICE = 16, 64, 2

Step = tuple[Any, Any, tuple[int, int, int]]  # pipeline, bind group, groups in x, y and z
Pipelines = dict[str, Any]  # by the source text


class WgpuLaunch(Launch):
    """Prepared dispatches: the pipeline, the bind group and the grid of each pass."""

    def __init__(
        self, steps: list[Step], output: Buffer, digest: str | None, kernel_name: str | None = None
    ) -> None:
        self.before: tuple[HostCall, ...] = ()  # calls on the host before each launch
        self.ran = False  # whether these calls were made before, so that their results are on the device
        self.chained = False  # whether its next call is recorded while the device works
        self._begun: Iterator[Any] | None = None
        self._slices_recorded: int  # slices of the next call that are recorded
        self._recorded: Any = None  # the commands of the next call
        self.steps = steps
        self._parts: list[WgpuLaunch] = []
        self.output = output
        self.kernel_hash = digest
        self.kernel_name = kernel_name

    def parts(self) -> list[WgpuLaunch]:
        """Return a list with the launch itself or, if it has many steps, the launches that do them in order."""
        if len(self.steps) <= STEPS:
            return [self]
        if not self._parts:
            self._parts = self._cut([0, *range(FIRST_STEPS, len(self.steps), STEPS)])
        return self._parts

    @functools.cached_property
    def slices(self) -> list[WgpuLaunch]:
        """Launches that do a few steps each, in order. The first ones have the fewest steps."""
        # While a slice is recorded, the host does not poll the device, which has soon done a short chain.
        count = max(1, len(self.steps))
        return self._cut([*range(0, min(count, FIRST_STEPS), SLICE), *range(FIRST_STEPS, count, FIRST_STEPS)])

    def _cut(self, starts: Sequence[int]) -> list[WgpuLaunch]:
        ends = [*starts, len(self.steps)]
        return [WgpuLaunch(self.steps[i:j], self.output, None) for i, j in itertools.pairwise(ends)]

    def record_ahead(self, recording: Callable[[WgpuLaunch], Iterator[Any]]) -> bool:
        """Record one more slice of the next call. Return False once all are recorded. `recording(launch)` yields after
        each slice. A recording that failed begins again."""
        if self._recorded is None:
            begun, self._begun = self._begun, None
            if begun is None:
                begun, self._slices_recorded = recording(self), 0
            self._recorded = next(begun)
            self._begun = begun
            self._slices_recorded += 1
        return self._recorded is None

    def take_ahead(self) -> Any:
        """Return the commands of the next call that were recorded ahead, or None if there are none. If the launch
        has a single part, missing slices are recorded now. Forgets the commands, which can be submitted only
        once."""
        recorded, begun = self._recorded, self._begun
        self._recorded = self._begun = None
        # A launch of several parts whose recording has not come to an end is faster part by part.
        if (
            recorded is None
            and begun is not None
            and (len(self.parts()) == 1 or self._slices_recorded >= len(self.slices))
        ):
            *_, recorded = begun
        return recorded

    @functools.cached_property
    def native(self) -> list[Step]:
        """The steps with the pointers of wgpu-native in place of wgpu-py's objects."""
        return [(p._internal, g and g._internal, grid) for p, g, grid in self.steps]


def encode(compute: Any, launch: WgpuLaunch, repeat: int, native: tuple[Any, Any]) -> None:
    """Record `repeat` launches into an open compute pass. `compute` is the pointer of the pass. `native` has the
    functions of wgpu-native and its NULL."""
    # The functions are called directly, which takes a fifth less time than through a wrapper. WebGPU orders
    # dispatches that share a buffer.
    lib, null = native
    set_pipeline, bind = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    # A single step is bound once and dispatched again and again.
    turns, more = (1, repeat - 1) if len(launch.steps) == 1 else (repeat, 0)
    for _ in range(turns):
        for pipeline, group, (x, y, z) in launch.native:
            set_pipeline(compute, pipeline)
            if group is not None:
                bind(compute, 0, group, 0, null)
            dispatch(compute, x, y, z)
            if more:
                for _ in range(more):
                    dispatch(compute, x, y, z)


class Programs:
    """The caches of one device: pipelines by source text, programs by workload, and launches by buffers."""

    def __init__(self, device: Any, limits: Limits) -> None:
        self.device = device
        self._limits = limits
        self._pipelines: Pipelines = {}
        self._programs: dict[tuple[str, str | None], tuple[WgslProgram, str, str | None]] = {}
        self._chosen: dict[tuple[str, str | None], str] = {}
        self._launches: dict[tuple[Any, ...], tuple[WgpuLaunch, tuple[Buffer, ...]]] = {}

    def launch(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> WgpuLaunch:
        """Return a launch of the case's WGSL kernel on these buffers. Raises Unsupported if it exceeds a limit
        of the device, and BuildError with the compiler's text."""
        key = (case.workload, case.variant, *(id(b) for b in (*inputs, *each(output))))
        if key not in self._launches:
            if len(self._launches) >= _BIND_GROUPS:
                self._launches.clear()
            # The buffers are kept with the launch: as long as they live, no other object has their id.
            self._launches[key] = (self._bind(op, case, inputs, output), (*inputs, *each(output)))
        return self._launches[key][0]

    def candidates(self, op: Op, case: Case) -> tuple[Candidate, ...]:
        """Return the candidates of the case's kernel, or an empty tuple if it has no candidates."""
        kernel = tuned_kernel(op, case)
        return kernel.candidates(case.params, case.dtype, self._limits) if kernel.candidates else ()

    def choose(self, case: Case, name: str) -> None:
        """Use the candidate of that name for launches of this case from now on."""
        key = (case.workload, case.variant)
        if self._chosen.get(key) != name:
            self._chosen[key] = name
            self._programs.pop(key, None)
            self.forget_buffers()

    def has_choice(self, case: Case) -> bool:
        """Return whether `choose` was called for the case."""
        return (case.workload, case.variant) in self._chosen

    def build(self, cases: Sequence[tuple[Op, Case]]) -> None:
        """Build the missing pipelines of these cases, with one thread for each usable CPU. Raises Unsupported if a
        kernel exceeds a limit of the device, and BuildError if a kernel does not compile."""
        passes = [step for op, case in cases for step in self._program(op, case)[0].passes]
        missing = {step.source for step in passes} - self._pipelines.keys()
        with ThreadPoolExecutor(usable_cpus()) as threads:
            self._pipelines.update(zip(missing, threads.map(self._build, missing), strict=True))

    def trial(
        self, op: Op, case: Case, candidate: Candidate, inputs: Sequence[Buffer], output: Buffer
    ) -> WgpuLaunch:
        """Return a launch of one candidate. Several threads may call this at the same time. Pipelines are not cached,
        so that building the chosen candidate later takes its usual time. Raises BuildError."""
        steps = self.steps(candidate.build(), named_buffers(op, inputs, output), {}, _sizes(op, case))
        return WgpuLaunch(steps, output, None)

    def forget_buffers(self) -> None:
        """Drop all cached launches, whose bind groups have buffers."""
        self._launches.clear()

    def _bind(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> WgpuLaunch:
        program, digest, name = self._program(op, case)
        buffers = named_buffers(op, inputs, output)
        return WgpuLaunch(self.steps(program, buffers, None, _sizes(op, case)), output, digest, name)

    def steps(
        self, program: WgslProgram, buffers: Mapping[str, Buffer], pipelines: Pipelines | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> list[Step]:  # fmt: skip
        """Return the pipeline, the bind group and the grid of each pass of `program`, with new scratch memory.
        `pipelines` is used instead of the device's cache; `sizes` limits the bytes of longer buffers, by name.
        Raises BuildError."""
        scratch = {name: self.scratch_buffer(-(-size // 16) * 16) for name, size in program.scratch.items()}
        every, built = {**buffers, **scratch}, self._pipelines if pipelines is None else pipelines
        bound = []
        for step in program.passes:
            if step.source not in built:
                built[step.source] = self._build(step.source)
            pipeline = built[step.source]
            bound.append((pipeline, self._group(step, pipeline, every, sizes or {}), step.grid))
        return bound

    def _program(self, op: Op, case: Case) -> tuple[WgslProgram, str, str | None]:
        key = (case.workload, case.variant)
        if key not in self._programs:
            program, name = self._build_program(op, case, self._chosen.get(key))
            text = "\n".join(step.source for step in program.passes)
            digest = hash_text(text)
            self._programs[key] = (program, digest, name)
        return self._programs[key]

    def _build_program(self, op: Op, case: Case, preferred: str | None) -> tuple[WgslProgram, str | None]:
        """Return the program and the name of the preferred candidate, or of the default if the preferred one cannot
        be built."""
        candidates = self.candidates(op, case)
        if not candidates:
            return tuned_kernel(op, case).build(case.params, case.dtype, self._limits), None
        chosen = next((candidate for candidate in candidates if candidate.name == preferred), candidates[0])
        try:
            return chosen.build(), chosen.name
        except Unsupported:
            # It was chosen at another size of the same half octave. At this size it exceeds a limit of the device.
            return candidates[0].build(), candidates[0].name

    def _build(self, source: str) -> Any:
        import wgpu

        try:
            # The checked module is made first, because only its errors of the compiler are exceptions.
            self.device.create_shader_module(code=source)
            module = trusted_module(self.device, source)
            return self.device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"}
            )
        except (wgpu.GPUValidationError, wgpu.GPUPipelineError, wgpu.GPUInternalError) as error:
            raise BuildError(str(error)) from error

    def _group(self, step: WgslPass, pipeline: Any, buffers: dict[str, Any], sizes: Mapping[str, int]) -> Any:
        import wgpu

        entries = []
        for i, name in enumerate(step.bindings):
            offset, size = step.windows.get(name, (0, sizes.get(name, buffers[name].size)))
            entries.append(
                {"binding": i, "resource": {"buffer": buffers[name], "offset": offset, "size": size}}
            )
        if step.uniform:
            words = [*step.uniform, *[0] * (-len(step.uniform) % 4)]
            data = b"".join(int(word).to_bytes(4, "little") for word in words)
            uniform = self.device.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.UNIFORM)
            entries.append(
                {"binding": len(entries), "resource": {"buffer": uniform, "offset": 0, "size": len(data)}}
            )
        if not entries:
            return None
        layout = pipeline.get_bind_group_layout(0)
        return self.device.create_bind_group(layout=layout, entries=entries)

    def scratch_buffer(self, size: int) -> Any:
        import wgpu

        return self.device.create_buffer(size=max(16, size), usage=wgpu.BufferUsage.STORAGE)


def buffer_bytes(shape: Shape, dtype: Stored) -> int:
    """Return the size of a buffer in bytes, a multiple of 16, because kernels read 16 bytes at a time."""
    return max(16, -(-math.prod(shape) * ITEMSIZE[dtype] // 16) * 16)


def _sizes(op: Op, case: Case) -> dict[str, int]:
    """Return the bytes of each operand's buffer by the operand's name."""
    return {x.name: buffer_bytes(*x.form(case.params, case.dtype)) for x in op.operands}


def trusted_module(device: Any, source: str) -> Any:
    """Return a shader module without the checks of bounds and loops that naga adds and that make kernels slower
    (docs/kernels.md). Use it only for source texts of gpubench, which check bounds themselves, and only after
    the checked module has compiled. wgpu-py has no public function for it."""
    from wgpu.backends.wgpu_native import _api, ffi, lib

    wgsl = _api.new_struct_p("WGPUShaderSourceWGSL *", code=_api.to_c_string_view(source))
    wgsl[0].chain.next = ffi.NULL
    wgsl[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
    descriptor = _api.new_struct_p(
        "WGPUShaderModuleDescriptor *", nextInChain=ffi.cast("WGPUChainedStruct *", wgsl),
        label=_api.to_c_string_view(""),
    )  # fmt: skip
    return _api.GPUShaderModule(
        "", lib.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0), device
    )


# ---------------------------------------------------------------- programs over whole buffers
#
# They read and write the 32-bit words of a buffer, four at a time. If a binding cannot cover the buffer, the program
# has several passes.

_THREADS, _MOST_GROUPS = 128, 2048  # every adapter runs groups of 128 threads

_WORDS, _SIZES = "vec4<u32>", "fours step even odd rest"
_FILL = shader(
    {"out_": _WORDS}, _THREADS,
    "  for (var i = id.x; i < p.fours; i += p.step) { out_[i] = vec4(p.even, p.odd, p.even, p.odd); }", params=_SIZES,
)  # fmt: skip
_DIFFER = shader(
    {"a": _WORDS, "b": _WORDS, "out_": "atomic<u32>"}, _THREADS, """
  var differing = vec4(0u);
  for (var i = id.x; i < p.fours; i += p.step) { differing |= a[i] ^ b[i]; }
  if (id.x == 0u && p.rest > 0u) {
    let last = a[p.fours] ^ b[p.fours];
    differing |= select(vec4(0u), last, vec4(0u, 1u, 2u, 3u) < vec4(p.rest));
  }
  if (any(differing != vec4(0u))) { atomicStore(&out_[0], 1u); }
""", params=_SIZES,
)  # fmt: skip


def filling(size: int, dtype: Stored, value: float, limits: Limits) -> WgslProgram:
    """Return a program that fills the first `size` bytes of the buffer "out" with `value` in the dtype."""
    import numpy as np

    even, odd = np.full(8 // ITEMSIZE[dtype], value, host_dtype(dtype)).view("u4").tolist()
    return _over_words(_FILL, ("out",), ("out",), size, (even, odd), limits)


def differing(size: int, limits: Limits) -> WgslProgram:
    """Return a program that sets the first word of "out" to 1 if the first `size` bytes of "a" and "b" differ.
    `size` must be a multiple of four."""
    return _over_words(_DIFFER, ("a", "b", "out"), ("a", "b"), size, (0, 0), limits)


def _over_words(
    source: str, bindings: tuple[str, ...], seen: tuple[str, ...], size: int, pattern: tuple[int, int], limits: Limits
) -> WgslProgram:  # fmt: skip
    """Return a program with a pass for each part of the buffers `seen`. A part is as long as a binding may be."""
    step = limits.max_binding_bytes // limits.binding_alignment * limits.binding_alignment
    passes = []
    for start in range(0, size, step):
        length = min(step, size - start)
        fours, rest = divmod(length // 4, 4)
        groups = max(1, min(-(-fours // _THREADS), _MOST_GROUPS, limits.max_groups_per_dimension))
        uniform = (fours, groups * _THREADS, *pattern, rest)
        windows = dict.fromkeys(seen, (start, -(-length // 16) * 16))
        passes.append(WgslPass(source, (groups, 1, 1), bindings, uniform=uniform, windows=windows))
    return WgslProgram(tuple(passes))
