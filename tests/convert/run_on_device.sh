#!/usr/bin/env bash
# Conversion in both directions against the transformers of the machine this runs on: one PASS or FAIL line per model.
#   tests/convert/run_on_device.sh [BIN_FOLDER]        espalier and convert_probe lie there; build/bin otherwise
# Beside the C++ runtime the programs need libfmt.so.9, libhwy.so.1, libzstd.so.1, libz.so.1 and libcrypto.so.3; toml++ and
# xxhash are compiled in. What is missing is said.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../build/bin}
for program in "$bin/espalier" "$bin/convert_probe"; do
  if [ ! -x "$program" ]; then echo "FAIL  $program is not there"; exit 1; fi
  if missing=$(ldd "$program" | grep 'not found'); then echo "FAIL  $program: $missing"; exit 1; fi
done
export HF_HUB_OFFLINE=1
exec python3 "$here/transformers_check.py" "$bin/espalier" "$bin/convert_probe"
