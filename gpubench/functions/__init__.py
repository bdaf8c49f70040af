"""The functions of the user: a file or a notebook declares them, a child process describes them, and a run
measures them as ops.

The command line, the Python interface and the workers use this package. The parent process never runs the
user's code. It knows only what a child process described: the name of each function, its arguments, and the
shapes of its inputs and results.
"""

# The largest share of free memory that a call and its reference may take. Their bytes are only extrapolated from
# small sizes.
MEMORY_SHARE = 0.6
