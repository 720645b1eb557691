// Wire bytes of compressed gradients, by the name in a run file's sync.compress (docs/compression.md): bytes per value
// of a long vector. Encoding runs beside backward and is not counted.
#pragma once

#include <string>

#include "esp/plan/shape.h"

namespace esp::plan {

// `plain`: bytes of an uncompressed value ("none"). UsageError suggests the nearest known name.
double code_bytes(const std::string& compress, const ModelShape& shape, double plain);

}  // namespace esp::plan
