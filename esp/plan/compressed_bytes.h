// Bytes on the wire per gradient value of a long vector, for each compressor of sync.compress (docs/compression.md).
// Encoding time is not included, because encoding overlaps backward.
#pragma once

#include <string>

#include "esp/plan/shape.h"

namespace esp::plan {

// Bytes per value. `plain`: bytes of an uncompressed value, the result for "none". UsageError for an unknown name
// suggests the nearest one.
double compressed_value_bytes(const std::string& compress, const ModelShape& shape, double plain);

}  // namespace esp::plan
