"""Write the golden reports anew."""

from __future__ import annotations

from tests.golden import CASES, NETWORK_CASES, path, text, write_screens

for run, name in (*CASES, *NETWORK_CASES):
    path(run, name).write_text(text(run, name), encoding="utf-8", newline="\n")
    print(path(run, name).name)
write_screens()
