"""The decorators of a user's file: `gpubench.function`, `gpubench.pair` and `gpubench.stays`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, overload

from gpubench.base.errors import UsageError, suggest

# All functions that this process has declared, in order: two of one name in a file are noticed by it.
DECLARED: list[UserFunction] = []
Maker = Callable[..., Sequence[Any]]


class Meaning(TypedDict, total=False):
    """The options of a function that describe its inputs and decide whether a result is right."""

    inputs: Maker | None  # (rng, n) or (rng, n, dtype): the list of inputs at size n
    tolerance: float | None  # the largest relative error of a result
    same: Callable[[Any, Any], bool] | None  # whether two results are equal
    flops: Callable[[int], float] | None  # the operations of a call at size n
    to_gpu: Callable[[Any], Any] | None  # move an input to the GPU
    to_cpu: Callable[[Any], Any] | None  # move a result back
    wait: Callable[[Any], Any] | None  # return when the call that gave this result is done
    gradients: bool  # PyTorch records them


class Options(Meaning, total=False):
    """All options of a function."""

    backends: str | None  # those to measure, as "numpy,cupy"; default: all
    dtypes: str | None  # as "float32,float64"


OPTIONS = (*Meaning.__annotations__, "backends", "dtypes")


class Stays:
    """An input that stays on the device in every situation, as weights do."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"gpubench.stays({type(self.value).__name__})"


class UserFunction:
    """A function to measure. It stays a plain callable: `pairwise(numpy, x)`.

    `cpu` is the program for the CPU. `gpu` is the program for the GPU, or None if `cpu` runs on both: `cpu` then takes
    the array library as its first argument. `make(rng, n)` returns the list of inputs at size n.
    """

    def __init__(
        self, cpu: Callable[..., Any], gpu: Callable[..., Any] | None = None, **options: Unpack[Options]
    ) -> None:
        for program in (cpu, *([gpu] if gpu is not None else [])):
            _require_plain(program)
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise UsageError(
                "bad-function", f"a function has no option {unknown[0]!r}",
                why="the options are " + ", ".join(OPTIONS),
                hint=suggest(unknown[0], OPTIONS) or None,
            )  # fmt: skip
        self.cpu, self.gpu, self.make = cpu, gpu, options.get("inputs")
        self.backends, self.dtypes = options.get("backends"), options.get("dtypes")
        self.tolerance, self.same, self.flops = (
            options.get("tolerance"),
            options.get("same"),
            options.get("flops"),
        )
        self.to_gpu, self.to_cpu, self.wait = options.get("to_gpu"), options.get("to_cpu"), options.get("wait")
        self.gradients = options.get("gradients", False)
        functools.update_wrapper(self, cpu)
        DECLARED.append(self)

    def __call__(self, *arguments: Any, **words: Any) -> Any:
        return self.cpu(*arguments, **words)

    def __repr__(self) -> str:
        kind = "function" if self.gpu is None else "pair"
        return f"<gpubench.{kind} {self.name}({', '.join(self.parameters)})>"

    def inputs(self, make: Maker) -> Maker:
        """Decorate the function that makes the inputs: `make(rng, n)` or `make(rng, n, dtype)` returns a list of
        them."""
        self.make = make
        return make

    @property
    def name(self) -> str:
        """The function's name in the source; `lambda` for a lambda, which has no name of its own."""
        return getattr(self.cpu, "__name__", type(self.cpu).__name__).strip("<>")

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments without a default, in order."""
        try:
            parameters = inspect.signature(self.cpu).parameters.values()
        except (TypeError, ValueError):  # a function of C tells nothing
            return []
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [p.name for p in parameters if p.kind in plain and p.default is inspect.Parameter.empty]

    @property
    def arguments(self) -> list[str]:
        """The names of the function's inputs: all parameters except the array library."""
        return self.parameters if self.gpu is not None else self.parameters[1:]


def _require_plain(program: Any) -> None:
    """Raise UsageError for an object that is not callable, and for an async function or a generator."""
    if not callable(program):
        raise UsageError(
            "bad-function", f"{program!r} is not a function", why="what is measured is called",
            hint="decorate a function, or give gpubench.pair two of them",
        )  # fmt: skip
    if inspect.iscoroutinefunction(program) or inspect.isgeneratorfunction(program):
        kind = "async" if inspect.iscoroutinefunction(program) else "a generator"
        raise UsageError(
            "bad-function", f"{program.__name__} is {kind}", why="a call of it computes nothing",
            hint="write a plain function that returns its result",
        )  # fmt: skip


@overload
def function(call: Callable[..., Any], /) -> UserFunction: ...
@overload
def function(**options: Unpack[Options]) -> Callable[[Callable[..., Any]], UserFunction]: ...
def function(call: Callable[..., Any] | None = None, /, **options: Unpack[Options]) -> Any:
    """Declare a function `f(xp, x, ...)` of arrays, where `xp` is the array library: numpy, cupy or torch.

    Without `inputs` each argument is a float32 vector of n elements. Raises UsageError for an async function or a
    generator, and for an unknown option.
    """
    return UserFunction(call, **options) if call is not None else lambda later: UserFunction(later, **options)


def pair(*, cpu: Callable[..., Any], gpu: Callable[..., Any], **options: Unpack[Options]) -> UserFunction:
    """Declare two programs that compute the same, `cpu(x, ...)` and `gpu(x, ...)`; they take arrays or any objects.

    Without `to_gpu` and `to_cpu` the GPU's library moves the arrays. Without `wait` each call is followed by a wait for
    the whole device. Raises UsageError for an async function or a generator, and for an unknown option.
    """
    return UserFunction(cpu, gpu, **options)


def stays(value: Any) -> Stays:
    """Mark an input in the list that `inputs` returns: it stays on the device in every situation."""
    return Stays(value)


# False in a child, where `bench` and `run` of the user's file measure nothing.
MEASURES = True
