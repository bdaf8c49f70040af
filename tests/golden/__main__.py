"""Write the golden reports, the digests of programs, the sizes of runs and what tests hold anew."""

from tests import held
from tests.golden import CASES, NETWORK_CASES, path, programs, text, wing_texts, write_small
from tests.unit.measure import test_passes

for run, name in (*CASES, *NETWORK_CASES):
    path(run, name).write_text(text(run, name), encoding="utf-8", newline="\n")
    print(path(run, name).name)
for file, draw in wing_texts().items():
    file.parent.mkdir(exist_ok=True)
    file.write_text(draw(), encoding="utf-8", newline="\n")
write_small()
programs.write()
held.write()
test_passes.write()
