"""Functions of a user's own: declared in a file or a notebook, described by a child process, measured as ops.

The command line, the Python interface and workers use it. The parent process never runs the user's
code. It knows what the child says of each function: its name, its arguments, the shapes of its inputs and results at
some sizes.
"""

# A call may take this share of free memory, its reference included: its bytes are extrapolated from small sizes.
MEMORY_SHARE = 0.6
