"""gpubench: measure whether a computation should run on the CPU, the GPU or both."""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, which would be the package's first import
if TYPE_CHECKING:
    from gpubench.analysis.policy import Policy as Policy


def __getattr__(name: str) -> object:
    """`gpubench.Policy`, loaded on first use: importing the package costs nothing."""
    if name != "Policy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module("gpubench.analysis.policy").Policy
