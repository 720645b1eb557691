#!/usr/bin/env bash
# Compares conversion in both directions with the transformers package of this machine. Prints one PASS or FAIL line per
# model.
#   tests/convert/run_on_device.sh [BIN_FOLDER]        BIN_FOLDER contains espalier and convert_probe; default build/bin
# Besides the C++ runtime, the programs need libfmt.so.9, libhwy.so.1, libzstd.so.1, libz.so.1 and libcrypto.so.3.
# toml++ and xxhash are compiled in. Missing libraries are reported.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../build/bin}
for program in "$bin/espalier" "$bin/convert_probe"; do
  if [ ! -x "$program" ]; then echo "FAIL  $program is missing"; exit 1; fi
  if missing=$(ldd "$program" | grep 'not found'); then echo "FAIL  $program: $missing"; exit 1; fi
done
export HF_HUB_OFFLINE=1
exec python3 "$here/transformers_check.py" "$bin/espalier" "$bin/convert_probe"
