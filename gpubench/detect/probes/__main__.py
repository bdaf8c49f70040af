"""`python -m gpubench.detect.probes NAME [OPTIONS]`: one JSON object as its message, whatever libraries print."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys

from gpubench.base.child_main import Messages
from gpubench.detect.probes import ProbeFailure


def main(arguments: list[str]) -> int:
    """Run one probe. OPTIONS is a JSON object of keyword arguments.

    A probe of several devices has `steps`: each answer replaces the one before, and one that is `partial` stands only
    where no other follows.
    """
    messages = Messages()
    name, options = arguments[0], json.loads(arguments[1]) if len(arguments) > 1 else {}
    if not re.fullmatch(r"[a-z]+", name):
        return 2
    module = importlib.import_module(f"gpubench.detect.probes.{name}")
    try:
        if hasattr(module, "steps"):
            for answer in module.steps(**options):
                messages.write(json.dumps(answer).encode())
        else:
            messages.write(json.dumps(module.probe(**options)).encode())
    except ProbeFailure as failure:
        messages.write(json.dumps({"records": [], **vars(failure)}).encode())
    # Native libraries have crashed in their own exit handlers; the answer is out, so leave without them.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
