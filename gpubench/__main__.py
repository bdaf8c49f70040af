"""`python -m gpubench` is the same program as `gpubench`."""

import sys

from gpubench.cli import main

if __name__ == "__main__":
    sys.exit(main())
