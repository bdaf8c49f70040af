#!/bin/sh
# Has the new version become slower? Five sessions of each, in turn, so that slow drift hits both alike.
#
#   sh examples/interleaved-compare.sh BASE NEW [OPTIONS OF gpubench run]
#
# BASE and NEW are programs that run gpubench with the one version and with the other: those of two virtual
# environments, or scripts that set what is to be compared and call the same one. The first call of each creates its file; every
# later one adds a session with the plan of base.json, so that the options after the first round decide nothing.
# Exit code: that of `gpubench compare` (0: no case is slower; 3: one is, or one broke that was right in BASE).
#
#   sh examples/interleaved-compare.sh old/bin/gpubench new/bin/gpubench --ops vector,matmul --sizes 64k,1M
set -eu

base=$1
new=$2
shift 2

rounds=${ROUNDS:-5} # `compare` applies no gate to fewer than five sessions a side

# A case that breaks (exit 1) is for `compare` to judge; anything else ends it here.
session() { # REPORT PROGRAM OPTION...
  report=$1
  shift
  status=0
  "$@" --quiet --format plain >"$report" || status=$?
  [ "$status" -le 1 ] || exit "$status"
}

for _ in $(seq "$rounds"); do
  session base.txt "$base" run --quick "$@" --append base.json
  session new.txt "$new" run --quick "$@" --like base.json --append new.json
done

"$new" compare base.json new.json --fail-on slower,failed,missing
