"""Entry point of `python -m gpubench`, the same program as `gpubench`."""

import os
import sys


def _leave_working_folder() -> None:
    """Remove the working folder from the module path, unless it holds this package."""
    try:
        # A random.py of the user there would hide Python's.
        first, here = os.path.realpath(sys.path[0]), os.path.realpath(os.getcwd())
    except OSError:  # the folder is gone, so nothing can be imported from it
        return
    package = os.path.realpath(f"{__file__}/../..")
    if not sys.flags.safe_path and first == here != package:
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_folder()
    try:
        from gpubench.cli import main
    except (ImportError, AttributeError) as error:  # files that are not ours
        from gpubench.base.installation import tell_bug

        sys.exit(tell_bug(error))
    sys.exit(main())
