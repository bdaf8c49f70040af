"""`python -m gpubench.detect.probes NAME [OPTIONS]`: one JSON object as its message, whatever libraries print."""

from __future__ import annotations

import importlib
import json
import os
import sys

from gpubench.base.child_main import Messages
from gpubench.detect.probes import ProbeFailure


def main(arguments: list[str]) -> None:
    """Run one probe. OPTIONS is a JSON object of keyword arguments.

    A probe of several devices gives several answers: each replaces the one before, and one that is `partial` stands
    only where no other follows.
    """
    messages = Messages()
    name, options = arguments[0], json.loads(arguments[1]) if len(arguments) > 1 else {}
    try:
        # A child loads what it runs: the bindings and layouts of the others take longer than a default `detect` may.
        module = importlib.import_module(f"gpubench.detect.probes.{'nvml' if name == 'nvml' else 'libraries'}")
        answers = getattr(module, f"probe_{name}")(**options)
        for answer in [answers] if isinstance(answers, dict) else answers:
            messages.write(json.dumps(answer).encode())
    except ProbeFailure as failure:
        messages.write(json.dumps({"records": [], **vars(failure)}).encode())
    # Native libraries have crashed in their own exit handlers; the answer is out, so leave without them.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
