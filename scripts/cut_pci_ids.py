"""Cut the names of GPU vendors' devices out of a pci.ids, into the table that gpubench ships.

Run: python scripts/cut_pci_ids.py /usr/share/misc/pci.ids (Debian: package pci.ids). The table is used under the
BSD-3-Clause option of pci.ids; its notice stands beside it, in gpubench/detect/data/pci.ids.LICENSE.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from gpubench.detect import _names
from gpubench.detect._classify import GPU_VENDORS


def main() -> None:
    """Write the table and tell its size."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    lines = [f"# {_names.date(text)}"]
    for vendor in sorted(GPU_VENDORS):
        for device, name in sorted(_names.devices(text, vendor).items()):
            lines.append(f"{vendor:04x}{device:04x}{name}")
    _names.TABLE.parent.mkdir(exist_ok=True)
    _names.TABLE.write_bytes(zlib.compress("\n".join([*lines, ""]).encode(), 9))
    print(f"{len(lines) - 1} names, {_names.TABLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
