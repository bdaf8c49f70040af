"""gpubench: measure whether a computation should run on the CPU, the GPU or both."""

__version__ = "0.1.0"
