"""The user's own functions: declared in a file or a notebook, described by a child process, measured as ops.

The command line, the Python interface and workers use this package. The parent process never runs the user's code. The
parent knows only the child's description of each function: its name, its arguments, and the shapes of its inputs and
results at some sizes.
"""

# A call may take this share of free memory, its reference included: its bytes are extrapolated from small sizes.
MEMORY_SHARE = 0.6
