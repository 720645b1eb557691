// Formatting of numbers with units, for messages.
#pragma once

#include <cstdint>
#include <string>

namespace esp {

std::string format_bytes(uint64_t bytes);  // "1.25 GiB"

}  // namespace esp
