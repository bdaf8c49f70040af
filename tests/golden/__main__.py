"""Write the golden reports and crossings anew."""

from __future__ import annotations

from tests.golden import CASES, path, text
from tests.unit.stats import crossing_figures

for run, name in CASES:
    path(run, name).write_text(text(run, name), encoding="utf-8", newline="\n")
    print(path(run, name).name)
crossing_figures.write()
print(crossing_figures.PATH.name)
