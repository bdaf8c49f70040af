"""Hashes over named fields, so that two files can say *which* field they differ in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gpubench.model.result import Fingerprint


def fingerprint(fields: Mapping[str, str]) -> Fingerprint:
    """A hash over named fields, whatever their order."""
    text = "\n".join(f"{name}={fields[name]}" for name in sorted(fields))
    return Fingerprint(hash=hashlib.sha256(text.encode()).hexdigest()[:12], fields=dict(fields))
