"""The decorators that a user's file takes from gpubench: `gpubench.function`, `gpubench.pair` and
`gpubench.stays`."""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypedDict, Unpack, overload

from gpubench.base.errors import UsageError, suggest

# All functions that this process has declared, in order. Several may have the same name.
DECLARED: list[UserFunction] = []
Maker = Callable[..., Sequence[Any]]


class Meaning(TypedDict, total=False):
    """The options that say how a function is called and when its result is correct. None means the default, as
    `gpubench.function` describes it."""

    inputs: Maker | None  # returns the list of inputs; called with rng, n and dtype, as far as it takes them
    tolerance: float | None  # largest allowed relative error of a result
    same: Callable[[Any, Any], bool] | None  # returns whether two results are equal
    flops: Callable[[int], float] | None  # returns the number of operations of a call at size n
    to_gpu: Callable[[Any], Any] | None  # moves an input to the GPU
    to_cpu: Callable[[Any], Any] | None  # moves a result to the host
    wait: Callable[[Any], Any] | None  # waits until the call that returned the given result has ended
    gradients: bool  # whether PyTorch records gradients during the call


class Options(Meaning, total=False):
    """The options of `gpubench.function` and `gpubench.pair`."""

    backends: str | None  # backends to measure, such as "numpy,cupy"; default: all
    # dtypes in which it may be measured, such as "float32,float64"; default: float32, float64 and float16
    dtypes: str | None


OPTIONS = tuple(Options.__annotations__)


class Stays:
    """An input that stays on the device in every situation, as the weights of a network do."""

    def __init__(self, value: Any) -> None:
        self.value = value


class UserFunction:
    """A function to measure, which can still be called like the original one: `pairwise(numpy, x)`. `cpu` is
    the program for the CPU, and `gpu` is the program for the GPU. Without `gpu`, `cpu` runs on both, and its
    first argument is the array library; it is a ForAnyLibrary if the original one takes no `xp`."""

    def __init__(
        self, cpu: Callable[..., Any], gpu: Callable[..., Any] | None = None, **options: Unpack[Options]
    ) -> None:
        _require_plain(cpu)
        if gpu is not None:
            _require_plain(gpu)
        for name, value in options.items():
            if name not in OPTIONS:
                raise UsageError(
                    "bad-function", f"a function has no option {name!r}",
                    why=f"the options are {', '.join(OPTIONS)}",
                    hint=suggest(name, OPTIONS)
                    or "sizes, budget and devices are options of the run: gpubench run FILE --sizes 1k,4k",
                )  # fmt: skip
            _require_kind(name, value)
        functools.update_wrapper(
            self, cpu
        )  # first, because it copies attributes, which may have the names below
        self.original, self.cpu, self.gpu, self.make = cpu, cpu, gpu, options.get("inputs")
        if gpu is None and self.parameters[:1] not in (["xp"], ["np"]):
            self.cpu = ForAnyLibrary(cpu)
        self.backends, self.dtypes = options.get("backends"), options.get("dtypes")
        self.tolerance, self.same, self.flops = (
            options.get("tolerance"),
            options.get("same"),
            options.get("flops"),
        )
        self.to_gpu, self.to_cpu, self.wait = options.get("to_gpu"), options.get("to_cpu"), options.get("wait")
        self.gradients = options.get("gradients", False)
        DECLARED.append(self)

    def __call__(self, *arguments: Any, **words: Any) -> Any:
        return self.original(*arguments, **words)

    def __repr__(self) -> str:
        kind = "function" if self.gpu is None else "pair"
        return f"<gpubench.{kind} {self.name}({', '.join(self.parameters)})>"

    def inputs(self, make: Maker) -> Maker:
        """Set the function that makes the inputs, as a decorator. `make(rng, n)`, `make(n)` or `make(rng, n,
        dtype)` returns a list of inputs."""
        self.make = make
        return make

    @property
    def name(self) -> str:
        """The name of the function, or of the class of a callable object; `lambda` for a lambda expression."""
        original = without_arguments(self.original)
        return getattr(original, "__name__", type(original).__name__).strip("<>")

    @property
    def parameters(self) -> list[str]:
        """The names of the positional arguments without a default, in order; of `*args` if there are no others. The
        list is empty if the signature is unknown."""
        try:
            # A call of a PyTorch module takes anything; its forward tells what.
            parameters = inspect.signature(getattr(self.original, "forward", self.original)).parameters.values()
        except (TypeError, ValueError):  # a function written in C may have no signature
            return []
        needed = [
            p for p in parameters if p.default is p.empty and p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)
        ]
        plain = [p.name for p in needed if p.kind is not p.VAR_POSITIONAL]
        return plain or [p.name for p in needed]

    @property
    def arguments(self) -> list[str]:
        """The names of the inputs: all parameters except the array library."""
        return self.parameters[self.gpu is None and not self.of_numpy :]

    def bind(self, xp: Any) -> Callable[..., Any]:
        """Return the program for the CPU as a function of the inputs alone, with `xp` as its array library."""
        return self.cpu.program(xp) if isinstance(self.cpu, ForAnyLibrary) else functools.partial(self.cpu, xp)

    @property
    def of_numpy(self) -> bool:
        """Whether the function is written for NumPy and takes no array library."""
        return isinstance(self.cpu, ForAnyLibrary)


class ForAnyLibrary:
    """A function `f(x, ...)` that calls NumPy, as a function `f(xp, x, ...)` of any array library. Where the
    function and the functions of the same file that it calls name NumPy, they get the library's names."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original
        self._programs: dict[Any, Callable[..., Any]] = {}  # by array library

    def __call__(self, xp: Any, *inputs: Any) -> Any:
        return self.program(xp)(*inputs)

    def program(self, xp: Any) -> Callable[..., Any]:
        """Return the function with the names of a library in place of those of NumPy."""
        if xp not in self._programs:
            self._programs[xp] = _with_library(self.original, xp)
        return self._programs[xp]


def _with_library(program: Callable[..., Any], xp: Any) -> Callable[..., Any]:
    """Return the program with the names of `xp` in place of those of NumPy. Return the program itself if NumPy is
    `xp`, or if the program is not written in Python."""
    import numpy as np

    if xp is np:
        return program
    if isinstance(program, functools.partial):
        return functools.partial(_with_library(program.func, xp), *program.args, **program.keywords)
    if isinstance(program, MethodType):
        return MethodType(_with_library(program.__func__, xp), program.__self__)
    if not isinstance(program, FunctionType):
        call = getattr(type(program), "__call__", None)  # noqa: B004 - of a class in the user's file
        if isinstance(call, FunctionType):
            return MethodType(_with_library(call, xp), program)
        return _counterpart(program, xp)  # type: ignore[no-any-return]
    variables = dict(program.__globals__)
    copies: dict[int, FunctionType] = {}  # by the id of the original

    def replace(value: Any) -> Any:
        if isinstance(value, FunctionType) and value.__globals__ is program.__globals__:
            return copies.get(id(value)) or copy_of(value)
        if isinstance(value, UserFunction) and value.of_numpy:
            return functools.partial(value.cpu, xp)
        return _counterpart(value, xp)

    def copy_of(plain: FunctionType) -> FunctionType:
        cells = tuple(CellType() for _ in plain.__closure__ or ())
        copied = FunctionType(plain.__code__, variables, plain.__name__, None, cells)
        copies[id(plain)] = copied  # before its cells, which may hold the function itself
        copied.__defaults__ = tuple(map(replace, plain.__defaults__ or ()))
        copied.__kwdefaults__ = {name: replace(value) for name, value in (plain.__kwdefaults__ or {}).items()}
        for cell, old in zip(cells, plain.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                cell.cell_contents = replace(old.cell_contents)
        return copied

    variables.update({name: replace(value) for name, value in program.__globals__.items()})
    return replace(program)  # type: ignore[no-any-return]


# The modules whose names have a counterpart in an array library: in CuPy those of SciPy, in cupyx.scipy.
_SCIPY = ("fft", "linalg", "ndimage", "signal", "sparse", "spatial.distance", "special", "stats")
_MODULES = ("numpy", "numpy.linalg", "numpy.fft", *(f"scipy.{part}" for part in _SCIPY), "scipy")


def _counterpart(value: Any, xp: Any) -> Any:
    """Return what `xp` has in place of a module of NumPy or SciPy, or of a function of one. Return any other value
    as it is, and what `xp` lacks too."""
    name = getattr(value, "__name__", None)
    for module in _MODULES:
        own = sys.modules.get(module)
        if own is not None and (value is own or (isinstance(name, str) and vars(own).get(name) is value)):
            with contextlib.suppress(Exception):  # such as an AttributeError, or what a tracer says
                library = _library(module, xp)
                return library if value is own else getattr(library, str(name))
    return value


def _library(module: str, xp: Any) -> Any:
    """Return the counterpart of a module of NumPy or SciPy. Raises any error if there is none."""
    package, _, part = module.partition(".")
    if package == "numpy":
        return getattr(xp, part) if part else xp
    if not (isinstance(xp, ModuleType) and xp.__name__ == "cupy"):  # PyTorch and a tracer have erf beside exp
        names = {"scipy.special": xp, "scipy": SimpleNamespace(**vars(sys.modules["scipy"]) | {"special": xp})}
        return names[module]
    for other in _SCIPY if module == "scipy" else ():
        with contextlib.suppress(ImportError):
            importlib.import_module(f"cupyx.scipy.{other}")
    return importlib.import_module(f"cupyx.{module}")


class TensorType:
    """A dtype of PyTorch that is also called, like NumPy's: np.float32(0.5)."""

    def __init__(self, own: Any, plain: Any) -> None:
        self.own, self._plain = own, plain

    def __call__(self, value: Any) -> Any:
        return value.to(self.own) if hasattr(value, "to") else self._plain(value).item()

    def __eq__(self, other: object) -> bool:
        return self.own == getattr(other, "own", other)  # type: ignore[no-any-return]

    __hash__ = None  # type: ignore[assignment]


def _leave_numbers(names: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the names with functions of one argument that leave numbers, as in np.sqrt(2), to NumPy. `convert` is
    applied to what NumPy returns."""
    import numpy as np

    def either(call: Any, plain: Any) -> Any:
        def call_either(x: Any, *rest: Any, **options: Any) -> Any:
            return convert(plain(x)) if isinstance(x, numbers) else call(x, *rest, **options)

        return call_either

    numbers = (int, float, complex, np.generic)
    unary = {name: value for name, value in vars(np).items() if isinstance(value, np.ufunc) and value.nin == 1}
    return names | {name: either(names[name], plain) for name, plain in unary.items() if name in names}


def array_names(cupy: ModuleType, standard: ModuleType) -> dict[str, Any]:
    """Return CuPy's functions by name, and those of the array API that it lacks."""
    return _leave_numbers(vars(standard) | vars(cupy), lambda number: number)


def tensor_names(standard: ModuleType) -> dict[str, Any]:
    """Return PyTorch's functions with the names and arguments that they have in NumPy. `standard` has those of the
    array API. Tensors get `astype` and `copy`."""
    import numpy as np
    import torch

    tensor = torch.Tensor

    def along(call: Any) -> Any:
        def call_along(x: Any, axis: int | None = None, **options: Any) -> Any:
            return call(x.flatten(), 0, **options) if axis is None else call(x, axis, **options)

        return call_along

    def spread(call: Any) -> Any:
        return lambda x, axis=None, ddof=0, **options: call(x, axis=axis, correction=ddof, **options)

    def tensor_type(dtype: Any) -> Any:
        own = getattr(dtype, "own", dtype)
        return own if own is None or isinstance(own, torch.dtype) else getattr(torch, np.dtype(own).name)

    def take_types(call: Any) -> Any:
        def call_with_type(*args: Any, dtype: Any = None, **options: Any) -> Any:
            if args and isinstance(args[-1], TensorType | type | str):
                *args, dtype = args  # type: ignore[assignment]
            return call(*args, dtype=tensor_type(dtype), **options)

        return call_with_type

    names = vars(standard) | {
        "array": take_types(lambda x, dtype: standard.asarray(x, dtype=dtype, copy=True)),
        "finfo": lambda x: torch.finfo(tensor_type(x)), "ascontiguousarray": tensor.contiguous,
        "copy": torch.clone, "fabs": torch.abs, "mod": torch.remainder,
        "power": torch.pow, "rint": torch.round, "cumsum": along(torch.cumsum), "cumprod": along(torch.cumprod),
        "std": spread(standard.std), "var": spread(standard.var),
        "round": lambda x, decimals=0: torch.round(x, decimals=decimals),
        "median": lambda x, axis=None: torch.quantile(x, 0.5, dim=axis),
        "percentile": lambda x, q, axis=None: torch.quantile(x, q / 100, dim=axis),
        "transpose": lambda x, axes=None: x.permute(axes or tuple(range(x.ndim))[::-1]),
        "squeeze": lambda x, axis=None: torch.squeeze(x) if axis is None else torch.squeeze(x, axis),
        "shape": lambda x: tuple(x.shape), "ndim": lambda x: x.ndim, "size": lambda x: x.numel(),
    }  # fmt: skip
    names = _leave_numbers(names, lambda number: number.item())
    typed = (
        "arange asarray empty eye full linspace ones zeros empty_like full_like ones_like zeros_like prod sum"
    )
    names |= {name: take_types(names[name]) for name in typed.split()}
    kinds = [f"float{bits}" for bits in (16, 32, 64)] + [f"int{bits}" for bits in (8, 16, 32, 64)]
    kinds += ["uint8", "complex64", "complex128"]
    names |= {name: TensorType(names[name], getattr(np, name)) for name in kinds}
    tensor.astype = lambda x, dtype: x.to(tensor_type(dtype))
    tensor.copy = tensor.clone
    return names


def _require_kind(name: str, value: Any) -> None:
    """Raise UsageError if the option cannot have this value. None is always allowed."""
    kinds = dict.fromkeys(
        ("backends", "dtypes"), (isinstance(value, str), 'a text such as "numpy,cupy" or "float32,float64"')
    )
    storable = isinstance(value, Real) and (not value or 1e-30 < float(value) < 1e30)  # in a result file
    kinds["tolerance"] = storable, "a number such as 1e-4"
    kinds["gradients"] = isinstance(value, bool), "True or False"
    kinds["inputs"] = callable(value), "a function such as lambda rng, n: [rng.random(n)]"
    right, kind = kinds.get(name, (callable(value), "a function"))
    if value is not None and not right:
        raise UsageError(
            "bad-function",
            f"the option {name} is {reprlib.repr(value)}",
            why=f"it is {kind}",
            hint=f"give {name}= {kind}",
        )


def _require_plain(program: Any) -> None:
    """Raise UsageError if the object is not callable, or is an async function or a generator function."""
    if not callable(program):
        raise UsageError(
            "bad-function", f"{program!r} is not a function", why="gpubench measures what can be called",
            hint="decorate a function, give gpubench.pair two of them, or name a file to gpubench.run",
        )  # fmt: skip
    if (waits := inspect.iscoroutinefunction(program)) or inspect.isgeneratorfunction(program):
        kind = "async" if waits else "a generator"
        raise UsageError(
            "bad-function", f"{getattr(program, '__name__', program)} is {kind}", why="a call of it computes nothing",
            hint="write a plain function that returns its result",
        )  # fmt: skip


@overload
def function(call: Callable[..., Any], /) -> UserFunction: ...
@overload
def function(**options: Unpack[Options]) -> Callable[[Callable[..., Any]], UserFunction]: ...
def function(call: Callable[..., Any] | None = None, /, **options: Unpack[Options]) -> Any:
    """Declare a function of arrays: `f(xp, x, ...)`, where `xp` is the array library, numpy, cupy or torch; or
    `f(x, ...)` as it is written for NumPy, whose names then stand for those of each library.

    `@gpubench.function` stands above the function, alone or with options:
    - `inputs(rng, n)`, `inputs(n)` or `inputs(rng, n, dtype)` returns the list of inputs at size n; without it
      every argument is a vector of n random numbers from 0.5 to 2; `@f.inputs` declares it below `f`;
    - `tolerance` is the largest allowed relative error of a result; `same(a, b)` compares two results instead;
    - `flops(n)` returns the number of operations of a call at size n;
    - `backends` ("numpy,cupy") and `dtypes` ("float32,float64") limit what is measured;
    - `to_gpu(x)`, `to_cpu(result)` and `wait(result)` replace the copies of an input and of a result, and the
      wait for the device;
    - `gradients=True` lets PyTorch record gradients.

    Returns an object that is called like the function. Raises UsageError for an async or a generator function, and
    for an unknown option or one of the wrong kind.
    """
    return UserFunction(call, **options) if call is not None else lambda later: UserFunction(later, **options)


def pair(*, cpu: Callable[..., Any], gpu: Callable[..., Any], **options: Unpack[Options]) -> UserFunction:
    """Declare two programs, `cpu(x, ...)` and `gpu(x, ...)`, that compute the same result from arrays or any
    other objects.

    Without `to_gpu` and `to_cpu` the GPU's array library moves the arrays. Without `wait` gpubench waits for the
    whole device. Options and errors are those of `gpubench.function`.
    """
    return UserFunction(cpu, gpu, **options)


def stays(value: Any) -> Stays:
    """Mark an input in the list that `inputs` returns, so that it stays on the device in every situation."""
    return Stays(value)


# The libraries of GPU programs, each with the backend that measures it. None: any backend can, because each backend
# waits for the whole device.
GPU_LIBRARIES = {
    "cupy": "cupy", "cupyx": "cupy", "torch": "torch", "torchvision": "torch", "triton": "torch",
    **dict.fromkeys(("jax", "numba", "cudf", "cuml", "tensorflow", "pycuda", "cuda")),
}  # fmt: skip


def without_arguments(program: Any) -> Any:
    """Return the function inside of a partial call, or the program itself."""
    while isinstance(program, functools.partial):
        program = program.func
    return program


def libraries(program: Any) -> Iterator[str]:
    """Yield the names of the packages that a program uses: those of its class, then those that its code imports
    or names, then in the same way those of the functions that it names. A name may occur several times."""
    reached: list[Any] = [program]  # grows during the loop
    for value in reached:
        value = without_arguments(value)
        places = [base.__module__ for base in type(value).__mro__]
        plain = inspect.unwrap(value)
        variables, codes = getattr(plain, "__globals__", {}), [getattr(plain, "__code__", None)]
        for code in codes:
            if code is None:
                continue
            codes += [
                part for part in code.co_consts if isinstance(part, CodeType)
            ]  # such as a loop in brackets
            for step in dis.get_instructions(code):
                if step.opname == "IMPORT_NAME":
                    places.append(str(step.argval))
                elif step.opname == "LOAD_GLOBAL" and step.argval in variables:
                    named = variables[step.argval]
                    places.append(str(getattr(named, "__module__", None) or getattr(named, "__name__", "")))
                    if isinstance(named, FunctionType) and not any(named is other for other in reached):
                        reached.append(named)
        for place in places:
            yield place.partition(".")[0].replace("jaxlib", "jax")


def gpu_library(program: Any) -> str:
    """Return the first of `libraries` that is in GPU_LIBRARIES, or an empty text if the program uses none."""
    return next((name for name in libraries(program) if name in GPU_LIBRARIES), "")


# False in a child process: a call of `bench` or `run` in the user's file then measures nothing.
MEASURES = True
