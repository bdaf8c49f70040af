"""Child side: import a user's functions, make their inputs, read their results and make their ops.

A result may be any nesting of arrays, numbers and frames. It is divided into its arrays on the host.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import dis
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from gpubench.base import hash_text
from gpubench.base.errors import Unsupported, UsageError
from gpubench.base.plugins import PluginError, error_text
from gpubench.base.plugins.containment import contain
from gpubench.base.streams import shorten
from gpubench.functions import declare
from gpubench.functions.declare import DECLARED, Maker, Stays, UserFunction, array_names, tensor_names
from gpubench.functions.describe import DRAWN, Code, CodeSource, Description, make_op, read_manifest
from gpubench.kernels.contract.op import Array, Op, Params, Tolerance
from gpubench.kernels.templates.cpu import MOST_INPUTS
from gpubench.kernels.templates.formula import Formula, Namespace, Untraceable, trace


class Unreadable(PluginError):
    """The error for an object that cannot be compared. Its text is the reason, in one sentence."""


def leaves(value: Any, name: str = "out") -> list[tuple[str, Any]]:
    """Return the arrays, numbers and columns of frames in a result, each with a name such as `out`, `out[0]` or
    `out['mean']`. Tuples, lists and dicts are opened, but a list of numbers counts as an array. `name` is the
    name of the whole."""
    value = columns(value)
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{name}[{key!r}]")]
    if _has_items(value):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{name}[{i}]")]
    return [(name, value)]


def _has_items(value: Any) -> bool:
    """Tell whether an object is a tuple, or a list with an item that is no number."""
    return isinstance(value, tuple) or (isinstance(value, list) and not all(map(_is_number, value)))


def change_input(function: UserFunction, change: Callable[[Any], Any], value: Any) -> Any:
    """Return an input after a change, without its mark `stays`. An input of a pair is changed as a whole. In an
    input of a function of arrays, each object inside dicts, lists, tuples and dataclasses is changed, in a
    copy."""

    def replace(value: Any) -> Any:
        if type(value) is dict:
            return {key: replace(item) for key, item in value.items()}
        if _has_items(value):
            items = map(replace, value)
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if dataclasses.is_dataclass(value) and not isinstance(value, dict):
            value = copy.copy(value)
            for name, item in columns(value).items():
                object.__setattr__(value, name, replace(item))
            return value
        return change(value)

    return (change if function.gpu is not None else replace)(plain(value))


def _is_number(value: Any) -> bool:
    """Tell whether an object is a number of Python, or an array of numbers without axes, such as a NumPy scalar."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # PyTorch's dtypes have no kind
    return isinstance(value, int | float) or (getattr(value, "shape", None) == () and kind in "biufc")


def is_tensor(value: Any) -> bool:
    """Tell whether an object is a tensor of PyTorch, without importing it."""
    return hasattr(value, "data_ptr")


def columns(value: Any) -> Any:
    """Return a frame as its columns by name, a dataclass as its fields by name, and any other object unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, dict):  # one of Transformers is both
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not (hasattr(value, "columns") and hasattr(value, "to_numpy")):
        return value
    frame = value.to_pandas() if hasattr(value, "to_pandas") else value
    return dict(frame.items())


def on_host(value: Any) -> Array:
    """Return an array, a column or a number of any library as a NumPy array. Masked elements are NaN, or the fill
    value of integers. Raises Unreadable if that is impossible."""
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        return value.filled(np.nan if value.dtype.kind in "fc" else None)
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, list):  # of numbers, which may be arrays without axes
        value = [on_host(x) if hasattr(x, "dtype") else x for x in value]
    if is_tensor(value):
        value = value.detach().cpu()
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):  # CuPy
        return np.asarray(value.get())
    for method in ("to_pandas", "to_numpy", "toarray"):
        if hasattr(value, method):
            return on_host(getattr(value, method)())
    array = np.asarray(getattr(value, "array", value))
    if array.dtype.kind == "O":
        raise Unreadable(
            f"it returns an object of type {type(value).__name__}, which is no array: say same=, or convert by to_cpu="
        )
    return array


def size(value: Any) -> int:
    """Return the bytes of an object, as the object or its contents report them, or else as Python counts them."""
    value = columns(value) if dataclasses.is_dataclass(value) else value
    if isinstance(value, dict | list | tuple):
        return sum(map(size, value.values() if isinstance(value, dict) else value))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "memory_usage"):  # pandas
        usage = value.memory_usage(deep=True)
        return int(usage if isinstance(usage, int) else usage.sum())
    if hasattr(value, "data") and hasattr(value, "indices"):  # a sparse matrix
        return int(value.data.nbytes + value.indices.nbytes)
    return sys.getsizeof(value)


def is_floating(value: Any) -> bool:
    """Tell whether the object is a NumPy array of floating-point or complex numbers."""
    import numpy as np

    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"


def widen(value: Any) -> Any:
    """Return an array of floating-point numbers in float64, or in complex128 if it is complex. Return any other
    object unchanged."""
    if not is_floating(value):
        return value
    return value.astype("float64" if value.dtype.kind == "f" else "complex128")


def nudge(value: Any, roundoff: float) -> Any:
    """Return a copy of an array of floating-point numbers, each multiplied by 1 + `roundoff` or 1 - `roundoff`.
    Equal numbers get the same factor. Whole numbers stay, because they may be labels. Return any other object
    unchanged."""
    import numpy as np

    if not is_floating(value):
        return value
    wide = widen(value)
    numbers = np.asarray(wide)  # without a mask, which `wide` keeps
    with np.errstate(all="ignore"):  # infinities
        ups = np.where(np.frexp(numbers.real)[0] * 2**10 % 2 < 1, roundoff, -roundoff)
        np.copyto(numbers, numbers + numbers * ups, where=numbers != np.rint(numbers))
    return wide.astype(value.dtype)


def differences(a: Array, b: Array) -> Array:
    """Return an array of bools: whether two arrays of the same shape differ at each element. A missing value
    (NaN, NaT, NA) equals itself."""
    import numpy as np

    def differ(x: Any, y: Any) -> bool:
        try:
            return not (x is y or x == y or (x != x and y != y))
        except TypeError:  # NA is neither equal nor unequal to a value
            return True

    if "O" in (a.dtype.kind, b.dtype.kind):
        return np.asarray(np.frompyfunc(differ, 2, 1)(a, b), dtype=bool)
    with contextlib.suppress(TypeError):  # a structured array beside one of other fields or of numbers
        wrong = np.asarray(a != b)
        return wrong & ~((a != a) & (b != b)) if wrong.any() else wrong
    return np.ones(a.shape, dtype=bool)


def equal(first: Any, second: Any) -> bool:
    """Tell whether two objects contain the same values. Objects that cannot be read count as equal."""

    def same(a: Array, b: Array) -> bool:
        return a.shape == b.shape and not differences(a, b).any()

    try:
        firsts, seconds = _arrays(first), _arrays(second)
        return (len(firsts) == len(seconds) and all(map(same, firsts, seconds))) or _equal_sparse(first, second)
    except (Unreadable, ValueError):
        return True


def _equal_sparse(first: Any, second: Any) -> bool:
    """Tell whether both are sparse matrices with nearly the same elements. The order of storage is ignored."""
    import numpy as np

    if not all(hasattr(x, "indptr") for x in (first, second)):
        return False
    a, b = (matrix.get() if hasattr(matrix, "get") else matrix.copy() for matrix in (first, second))
    a.sum_duplicates()
    b.sum_duplicates()
    places = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("indices", "indptr"))
    return bool(a.shape == b.shape and places and np.allclose(a.data, b.data, equal_nan=True))


def _arrays(value: Any) -> list[Array]:
    """Return the arrays in an object. A sparse matrix gives the arrays of its stored elements."""
    rows = [x.tocsr() if hasattr(x, "tocsr") else x for _, x in leaves(value)]
    parts = [(x.data, x.indices, x.indptr) if hasattr(x, "indptr") else (x,) for x in rows]
    return [on_host(array) for part in parts for array in part]


COMPLEX = {"float64": "complex128", "float32": "complex64", "float16": "complex64"}


class Loaded(NamedTuple):
    """The functions of a source."""

    functions: dict[str, UserFunction]  # declared functions by name
    wrong: dict[str, str]  # for each other declared name the reason why the function cannot be measured
    file_digest: str = ""  # digest of the imported file; empty for a pickled function
    # The other functions, measured only if they are named: first the file's own, then those that it imports.
    undeclared: dict[str, Callable[..., Any]] = {}

    def find(self, name: str) -> UserFunction:
        """Return the function with this name, and declare it if the file does not. Raises KeyError if there is
        none, and PluginError if it cannot be measured."""
        if name not in self.functions:
            try:
                self.functions[name] = UserFunction(self.undeclared[name])
            except UsageError as error:
                raise PluginError(f"{error} ({error.why}; {error.hint})") from error
        return self.functions[name]


@cache
def load_source(source: CodeSource) -> Loaded:
    """Import the user's code into this process. Raises PluginError if that fails. The error names the last line
    of the user's file that ran."""
    declare.MEASURES = False
    before = len(DECLARED)
    try:
        with contain(), same_random_numbers():
            sys.argv = [source.place]  # a parser of arguments at the file's top finds none
            content, file_digest = _import(source)
    except SystemExit as error:
        raise PluginError(f"it calls sys.exit({error.code!r}) when it is imported") from None
    except BaseException as error:
        why = f" ({error.why}; {error.hint})" if isinstance(error, UsageError) else ""
        raise PluginError(f"{_place(error, source)}{error_text(error)}{why}") from error
    if isinstance(content, UserFunction):
        return Loaded({source.only or content.name: content}, {})
    functions = {name: value for name, value in vars(content).items() if isinstance(value, UserFunction)}
    wrong = {
        lost.name: f"two functions are called {lost.name}: rename one of them"
        if lost.name in functions
        else "it has no name in the file: assign it to one outside of classes, functions and other decorators"
        for lost in DECLARED[before:]
        if lost.__module__ == content.__name__ and lost not in functions.values()
    }
    undeclared = sorted(
        (item for item in vars(content).items()
         if callable(item[1]) and not isinstance(item[1], type | UserFunction) and item[0] not in wrong),
        key=lambda item: getattr(item[1], "__module__", None) != content.__name__,
    )  # fmt: skip
    return Loaded(
        {name: f for name, f in functions.items() if name not in wrong}, wrong, file_digest, dict(undeclared)
    )


def _import(source: CodeSource) -> tuple[ModuleType | UserFunction, str]:
    """Return the user's module and the digest of its file, or the function of a pickle and an empty text."""
    for folder in source.path:
        if folder not in sys.path:
            sys.path.append(folder)
    if source.kind == "pickle":
        import cloudpickle

        return cloudpickle.loads(Path(source.place).read_bytes()), ""
    if source.kind == "module":
        package = importlib.import_module(source.place)
        path = Path(package.__file__ or "")  # no file if it is in an archive, or is a folder alone
        return package, hash_text(path.read_bytes() if path.is_file() else b"")
    path = Path(source.place)
    parents, top = "", path.parent
    while top.name and (top / "__init__.py").is_file():  # a file of a package may import relatively
        parents, top = f"{top.name}.{parents}", top.parent
    sys.path[:0] = [str(path.parent), str(top)]
    text = path.read_bytes()
    name = path.stem if path.stem not in sys.modules else f"_gpubench_{path.stem}"
    if parents and re.search(rb"^\s*from\s*\.", text, re.M):
        name = f"{parents}{path.stem}"  # a process of the user's pool finds the module only by this name
        importlib.import_module(parents[:-1])
        if name in sys.modules:  # the package imports it
            return sys.modules[name], hash_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The file's cached bytecode is not used: it may come from another text of the same second and length.
    exec(compile(text, source.place, "exec", dont_inherit=True), vars(module))
    return module, hash_text(text)


def _place(error: BaseException, source: CodeSource) -> str:
    """Return the position of an error in the user's file, such as `line 7: `, or an empty text if it is
    elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == source.place:
        return f"line {error.lineno}: "
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == source.place]
    return f"line {own[-1].lineno}: " if own else ""


def where(error: BaseException, function: UserFunction) -> str:
    """Return the text of an error, at most 240 characters, and the last line that ran in the function's file:
    `NameError: ... (options.py, line 7)`."""
    file = ""
    with contextlib.suppress(TypeError):
        file = inspect.getsourcefile(function.original) or ""
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    place = "" if file.startswith("<") else f"{os.path.basename(file)}, "  # cloudpickle drops it
    # An error of numba fills pages and begins with a step of its compiler.
    text = shorten(re.sub(r"Failed in \w+ mode pipeline \(.*?\) ", "", error_text(error)), 240)
    return text + (f" ({place}line {own[-1].lineno})" if own else "")


# ---------------------------------------------------------------- its inputs


def make_inputs(function: UserFunction, arguments: Sequence[str], n: int, dtype: str, seed: int) -> list[Any]:
    """Return the inputs at size n. The user's function for inputs makes them; without such a function each of
    `arguments` is a random vector. The same seed gives the same inputs. Floating-point arrays get the dtype.

    Raises PluginError if the user's function returns no list, and whatever it raises. For a single argument, the
    input itself is enough.
    """
    import numpy as np

    rng = np.random.default_rng([seed, n])
    if function.make is None:
        width = np.float64 if dtype == "float64" else np.float32
        low, high = DRAWN.low, DRAWN.high
        return [(low + (high - low) * rng.random(n, dtype=width)).astype(dtype) for _ in arguments]
    _seed_others((seed + n) % 2**32)
    made = call_maker(function.make, {"rng": rng, "n": n, "dtype": dtype})
    if isinstance(made, Iterator):
        made = list(made)
    if not isinstance(made, list | tuple):
        if made is None or len(arguments) != 1:
            raise PluginError(
                f"its inputs are of type {type(made).__name__}: return a list, one item an argument"
            )
        made = [made]

    def cast(x: Any) -> Any:
        if function.gpu is None and is_tensor(x):
            x = on_host(x)  # the session of each library makes its arrays from those of NumPy
        if not is_floating(x):
            return x
        # The copy is contiguous, and keeps Fortran's order of axes and a subclass, such as a masked array.
        return x.astype(dtype if x.dtype.kind == "f" else COMPLEX[dtype], order="A")

    inputs = [change_input(function, cast, x) for x in made]
    return [Stays(x) if isinstance(mark, Stays) else x for x, mark in zip(inputs, made, strict=True)]


def _seed_others(seed: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch, from which a user may draw in place of `rng`."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Let the user's file draw the same random numbers in every process, such as the weights of a network."""
    import numpy as np

    entropy, initialised = np.random.default_rng, _SeedsTorch()

    def default_rng(seed: Any = None) -> Any:
        return entropy(0 if seed is None else seed)

    _seed_others(0)
    np.random.default_rng = default_rng
    sys.meta_path.insert(0, initialised)
    try:
        yield
    finally:
        np.random.default_rng = entropy
        sys.meta_path.remove(initialised)


class _SeedsTorch(importlib.abc.MetaPathFinder):
    """A finder of modules that seeds PyTorch's generators right after PyTorch is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _seed_others(0)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def call_maker(make: Maker, arguments: Mapping[str, Any]) -> Any:
    """Call the user's function for inputs, with as many of `arguments` as it takes, by name or in order."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # a function written in C may have no signature
        return make(arguments["rng"], arguments["n"])
    taken = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and (p.default is p.empty or p.name in arguments)
    ]
    if taken and all(p.name in arguments and p.kind is p.POSITIONAL_OR_KEYWORD for p in taken):
        return make(**{p.name: arguments[p.name] for p in taken})
    # A single parameter that has another name gets n.
    return make(arguments["n"]) if len(taken) == 1 else make(*list(arguments.values())[: max(2, len(taken))])


def plain(value: Any) -> Any:
    """Return an input without the mark `stays`."""
    return value.value if isinstance(value, Stays) else value


# ---------------------------------------------------------------- the op


@lru_cache
def bind_library(function: UserFunction, library: Any) -> Callable[..., Any]:
    """Return the program for the CPU as a function of the inputs alone, for any array library. The library has the
    names of the array API standard: NumPy itself since 2.0; CuPy and PyTorch by another module. For a function
    that is written for NumPy they have NumPy's: in CuPy its own come first, because they mean what NumPy's do."""
    name = library.__name__
    if name not in ("cupy", "torch"):
        return function.bind(library)
    standard = importlib.import_module(f"array_api_compat.{name}")
    if not function.of_numpy:
        return function.bind(standard)
    both = ModuleType(name)
    vars(both).update(tensor_names(standard) if name == "torch" else array_names(library, standard))
    return function.bind(both)


# Functions written in C that have no side effects. A call of a class, such as float(x), is not reported as a C
# call.
_PURE = (abs, all, any, divmod, getattr, hasattr, isinstance, len, max, min, next, pow, round, sum)
_STORES = ("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "DELETE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR")


class Effects:
    """A profile function that notes the first side effect of the user's code as text in `first`, or leaves it
    empty. A kernel that is compiled from a trace would lose side effects."""

    def __init__(self) -> None:
        self.first = ""

    def __call__(self, frame: FrameType, event: str, call: Any) -> None:
        """Inspect a call of a function written in C, or the bytecode of a Python function that begins."""
        if frame.f_globals.get("__name__", "").startswith("gpubench."):
            return
        if event == "c_call" and call not in _PURE and getattr(call, "__module__", "") != "math":
            self._note(f"calls {'.'.join(filter(None, (call.__module__, call.__qualname__)))}")
        elif event == "call":
            for step in dis.get_instructions(frame.f_code):
                outer = step.opname == "STORE_DEREF" and step.argval in frame.f_code.co_freevars
                if outer or step.opname in _STORES:
                    self._note(f"assigns to {step.argval or 'an item'}")

    def _note(self, text: str) -> None:
        self.first = self.first or text.replace("builtins.", "")


def trace_pure(function: UserFunction, arguments: Sequence[str]) -> Formula:
    """Return the traced formula of a function. Raises Untraceable if the function cannot be traced or has side
    effects."""
    effects, before, xp = Effects(), sys.getprofile(), Namespace()
    program = function.bind(xp)  # before the profile, because it calls functions written in C
    sys.setprofile(effects)
    try:
        traced = trace(lambda _, *inputs: program(*inputs), arguments)
    finally:
        sys.setprofile(before)
        if effects.first:
            raise Untraceable(effects.first)
    return traced


def formula(function: UserFunction, arguments: Sequence[str], inputs: Sequence[Any], n: int) -> Formula:
    """Return the traced formula of an elementwise function, which takes `inputs` at size `n`. Raises Untraceable
    if the function or its inputs do not allow a formula."""
    if function.gpu is not None:
        raise Untraceable("has two programs")
    if function.same is not None:
        raise Untraceable("is compared by same=")
    if not all(getattr(x, "shape", None) == (n,) and getattr(x.dtype, "kind", "") == "f" for x in inputs):
        raise Untraceable("takes other inputs than vectors of n floating-point numbers")
    if len(arguments) > MOST_INPUTS:
        raise Untraceable(f"takes more than {MOST_INPUTS} arrays")
    return trace_pure(function, arguments)


@cache
def load(name: str) -> Op:
    """Return the op with this id, including the user's code.

    Raises KeyError if the manifest does not list the op. Raises Unsupported if the file cannot be imported
    again or was edited after the description.
    """
    manifest = read_manifest()
    description = {entry.id: entry for entry in manifest.functions}[name]
    source = next(entry for entry in manifest.sources if entry.name == description.source)
    file = os.path.basename(source.place)
    try:
        loaded = load_source(source)
    except PluginError as error:
        raise Unsupported(f"{file} cannot be imported again: {error}", reason="bad-function") from error
    if loaded.file_digest != description.file_digest:
        raise Unsupported(f"{file} was edited during the run", hint="run it again", reason="bad-function")
    return bound_op(loaded.find(description.name), description)


def bound_op(function: UserFunction, description: Description) -> Op:
    """Return the op for a description, with the user's code. The op is compiled if the function is a formula."""
    names = [shown.name for shown in description.inputs]

    def expr(xp: Any, *inputs: Array) -> Any:
        return bind_library(function, xp)(*inputs)

    if description.operations is None:
        return make_op(description, Code(expr, calls=function))
    traced = trace(function.cpu, [f"{name}_in" for name in names])

    @lru_cache(maxsize=2)
    def arrays(n: int, dtype: str, seed: int) -> list[Any]:
        return make_inputs(function, names, n, dtype, seed)

    def make(i: int, params: Params, dtype: str, seed: int) -> Array:
        return arrays(params["n"], dtype, seed)[i].copy()

    code = Code(
        expr, formula=function.cpu, tolerance=_tolerance(function, traced),
        made=[partial(make, i) for i in range(len(names))] if description.own_inputs else None,
    )  # fmt: skip
    return make_op(description, code)


def _tolerance(function: UserFunction, traced: Formula) -> Tolerance:
    """Return the tolerance of a compiled function: the user's, or else a bound on the formula's rounding
    errors."""
    allowed = function.tolerance
    if allowed is None:
        return traced.tolerance()

    def size(xp: Any, *inputs: Array) -> Array:
        return xp.abs(function.cpu(xp, *inputs))

    return Tolerance(1e-9, scale=size, slack=lambda xp, u, *inputs: allowed * size(xp, *inputs))
