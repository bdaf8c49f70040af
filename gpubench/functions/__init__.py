"""Functions of a user's own: declared in a file or a notebook, described by a child process, measured as ops.

The parent process never runs the user's code. It knows what the child says of each function: its name, its arguments,
the shapes of its inputs and results at some sizes.
"""
