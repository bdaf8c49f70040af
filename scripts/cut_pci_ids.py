"""Extract the names of GPU vendors' devices from a file pci.ids, and write the table that gpubench ships.

The package pci.ids in Debian's suite sid has the newest file. To renew the table:

    apt-get download pci.ids/sid    # with `deb http://deb.debian.org/debian sid main` among the sources
    dpkg-deb -x pci.ids_*.deb unpacked
    python scripts/cut_pci_ids.py unpacked/usr/share/misc/pci.ids

The date of the file becomes the first line of the table. Change the years and the version in
gpubench/detect/data/pci.ids.LICENSE and the date in docs/detection.md by hand: tests compare them. The table is
used under the BSD-3-Clause option of pci.ids, and the LICENSE file is its notice.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from gpubench.detect import pci
from gpubench.detect.merge import GPU_VENDORS


def main() -> None:
    """Write the table, and print its size."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    lines = [f"# {pci.ids_date(text)}"]
    for vendor in sorted(GPU_VENDORS):
        for device, name in sorted(pci.ids_names(text, vendor).items()):
            lines.append(f"{vendor:04x}{device:04x}{name}")
    pci.TABLE.parent.mkdir(exist_ok=True)
    pci.TABLE.write_bytes(zlib.compress("\n".join([*lines, ""]).encode(), 9))
    print(f"{len(lines) - 1} names, {pci.TABLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
