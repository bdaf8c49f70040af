"""gpubench: measure whether a computation should run on the CPU, the GPU or both."""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, which would be the package's first import
if TYPE_CHECKING:
    from gpubench.analysis.policy import Policy as Policy
    from gpubench.api import Result as Result
    from gpubench.api import bench as bench
    from gpubench.api import detect as detect  # the package of this name is called so
    from gpubench.api import load as load
    from gpubench.api import run as run
    from gpubench.functions.declare import function as function
    from gpubench.functions.declare import pair as pair
    from gpubench.functions.declare import stays as stays

_PLACES = {
    "bench": "gpubench.api",
    "load": "gpubench.api",
    "run": "gpubench.api",
    "Policy": "gpubench.analysis.policy",
    "Result": "gpubench.api",
    "function": "gpubench.functions.declare",
    "pair": "gpubench.functions.declare",
    "stays": "gpubench.functions.declare",
}


def __getattr__(name: str) -> object:
    """Load a name of the package on first use, so that importing the package costs little."""
    import importlib

    if name == "detect":  # a package that can be called
        return importlib.import_module("gpubench.detect")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_PLACES[name]), name)
    except Exception as error:  # a random.py beside the user's script hides Python's
        importlib.import_module("gpubench.base.installation").note_shadow(error)
        raise


def __dir__() -> list[str]:
    """List all names, including those not loaded yet, so that notebooks can complete them."""
    return sorted([*globals(), *_PLACES, "detect"])
