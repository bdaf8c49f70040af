#!/bin/sh
# Has the new version become slower? Five sessions of each, in turn, so that slow drift hits both alike.
#
#   sh examples/interleaved-compare.sh BASE NEW [OPTIONS OF gpubench run]
#
# BASE and NEW are programs that run gpubench with the one version and with the other: those of two virtual
# environments, or scripts that set what is to be compared and call the same one. The first call of each creates its file; every
# later one adds a session with the plan of base.json, so that the options after the first round decide nothing.
# Exit code: that of `gpubench compare` (0: no case is slower; 3: one is).
#
#   sh examples/interleaved-compare.sh old/bin/gpubench new/bin/gpubench --ops vector,matmul --sizes 64k,1M
set -eu

base=$1
new=$2
shift 2

rounds=${ROUNDS:-5} # `compare` applies no gate to fewer than five sessions a side

for _ in $(seq "$rounds"); do
  "$base" run --quick "$@" --append base.json --quiet --format plain >base.txt
  "$new" run --quick "$@" --like base.json --append new.json --quiet --format plain >new.txt
done

"$new" compare base.json new.json --fail-on slower,failed,missing
