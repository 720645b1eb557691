// What compressed gradients weigh on the wire, by the name a run file's sync.compress gives (docs/compression.md):
// bytes per value of a long vector. Encoding itself runs beside backward and is not counted.
#pragma once

#include <string>

#include "esp/plan/shape.h"

namespace esp::plan {

// `plain`: bytes of a value that is not compressed ("none"). UsageError names the nearest known.
double code_bytes(const std::string& compress, const Shape& shape, double plain);

}  // namespace esp::plan
