"""The child that draws: a list of calls of vl_convert as JSON on stdin, their results on stdout."""

from __future__ import annotations

import base64
import json
import sys


def main() -> None:
    """Make all calls, then tell all results: bytes in base64."""
    import vl_convert

    found = (
        getattr(vl_convert, name)(*arguments, **options) for name, arguments, options in json.load(sys.stdin)
    )
    results = [one if isinstance(one, bytes) else one.encode() for one in found]
    json.dump([base64.b64encode(one).decode() for one in results], sys.stdout)


if __name__ == "__main__":
    main()
